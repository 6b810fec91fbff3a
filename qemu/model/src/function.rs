// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The PCI function of an HCA as its vfio-user thread serves it: configuration space, registers and
//! doorbells. Nothing here waits for the engine.

use crate::mem::{Gate, MapError, Rights, SlotMemory};
use crate::pci::{ConfigSpace, Identity, CONFIG_SIZE};
use crate::shared::{Bell, CommandQueueSetup, Mailbox, Shared};
use crate::vfio::{Device, DmaRange, Errno, IrqAction, Region};
use qiao_hw::bar::{control, reg, status, ALL_ONES};
use qiao_hw::doorbell::SLOT_SIZE;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;
use vfio_bindings::bindings::vfio;

/// Where the capability block lies in BAR0.
pub const CAPS_OFFSET: usize = 0x400;

/// What the registers of a function read as before anything has happened.
#[derive(Clone, Debug)]
pub struct Registers {
    /// MAGIC.
    pub magic: u32,
    /// VERSION.
    pub version: u32,
    /// Offset in CAPS.
    pub caps_offset: u16,
    /// Length in CAPS.
    pub caps_length: u16,
    /// The capability block, at [`CAPS_OFFSET`].
    pub caps: Vec<u8>,
}

/// A switch that makes the function read as all ones, as if it had been pulled. Counts how often it was switched: odd while the
/// function is gone.
#[derive(Clone, Debug, Default)]
pub struct Gone(Arc<AtomicU32>);

impl Gone {
    /// Pulls the function, or puts it back.
    pub fn set(&self, gone: bool) {
        let switch = |count: u32| ((count % 2 == 1) != gone).then_some(count.wrapping_add(1));
        // An error means that it is so already.
        let _ = self
            .0
            .fetch_update(Ordering::Release, Ordering::Relaxed, switch);
    }

    fn count(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }
}

/// The function.
#[derive(Debug)]
pub struct Function {
    hca: usize,
    shared: Arc<Shared>,
    mailbox: Arc<Mailbox>,
    gone: Gone,
    /// What `gone` had counted when the function was last powered.
    powered: u32,
    identity: Identity,
    config: ConfigSpace,
    registers: Registers,
    setup: CommandQueueSetup,
    enabled: bool,
    msix: Vec<u8>,
}

impl Function {
    /// Makes the function of the HCA with number `hca` in the mailbox.
    pub fn new(
        hca: usize,
        shared: Arc<Shared>,
        mailbox: Arc<Mailbox>,
        gone: Gone,
        identity: Identity,
        registers: Registers,
    ) -> Self {
        let msix = identity.bars[2] as usize;
        let mut function = Self {
            hca,
            shared,
            mailbox,
            gone,
            powered: 0,
            identity,
            config: ConfigSpace::new(&identity),
            registers,
            setup: CommandQueueSetup::default(),
            enabled: false,
            msix: vec![0; msix],
        };
        function.clear();
        function
    }

    /// Resets the function but for its configuration space. When this returns no DMA is under way,
    /// and none begins before the engine has dropped all objects.
    fn clear(&mut self) {
        self.shared.dma.set_gate(Gate::Reset, false);
        let generation = self.shared.status.begin_reset();
        self.setup = CommandQueueSetup::default();
        self.enabled = false;
        self.mailbox.post_reset(self.hca, generation);
    }

    fn reset_function(&mut self) {
        self.config.reset();
        // The reset comes first: the engine, which has not seen it, breaks no rule meanwhile, and nothing that the lost memory would
        // make the device say leaves it.
        self.clear();
        self.shared.dma.set_gate(Gate::BusMaster, false);
    }

    fn config_write(&mut self, offset: usize, data: &[u8]) {
        let effect = self.config.write(offset, data);
        // As in `reset_function`.
        if effect.reset {
            self.clear();
        }
        self.shared
            .dma
            .set_gate(Gate::BusMaster, self.config.bus_master());
    }

    /// Reads the 4 bytes at `offset` of BAR0.
    fn register(&self, offset: usize) -> u32 {
        let low = |value: u64| value as u32;
        let high = |value: u64| (value >> 32) as u32;
        match offset {
            reg::MAGIC => self.registers.magic,
            reg::VERSION => self.registers.version,
            reg::STATUS => self.shared.status.status(),
            reg::CAPS => {
                let Registers {
                    caps_offset,
                    caps_length,
                    ..
                } = self.registers;
                (u32::from(caps_length) << 16) | u32::from(caps_offset)
            }
            reg::FATAL_CAUSE => self.shared.status.cause(),
            reg::CMDQ_BASE => low(self.setup.base),
            CMDQ_BASE_HIGH => high(self.setup.base),
            reg::CMDQ_COMPLETION_BASE => low(self.setup.completion_base),
            CMDQ_COMPLETION_BASE_HIGH => high(self.setup.completion_base),
            reg::CMDQ_CONFIG => self.setup.config,
            _ => offset
                .checked_sub(CAPS_OFFSET)
                .and_then(|at| self.registers.caps.get(at..at + 4))
                .and_then(|bytes| bytes.try_into().ok())
                .map_or(0, u32::from_le_bytes),
        }
    }

    fn control_read(&self, offset: usize, out: &mut [u8]) {
        self.shared.coverage.read(offset);
        for (at, byte) in (offset..).zip(out) {
            *byte = self.register(at & !3).to_le_bytes()[at & 3];
        }
    }

    fn set_register(&mut self, offset: usize, value: u32) {
        let low = |old: u64| (old >> 32 << 32) | u64::from(value);
        let high = |old: u64| (u64::from(value) << 32) | old & 0xffff_ffff;
        self.shared.coverage.written(offset);
        let setup = &mut self.setup;
        match offset {
            reg::CONTROL if value & control::RESET != 0 => self.clear(),
            reg::CONTROL => self.enable(value & control::ENABLE != 0),
            // The description of a queue that runs does not change.
            reg::CMDQ_BASE..=CMDQ_CONFIG_END if self.enabled => {}
            reg::CMDQ_BASE => setup.base = low(setup.base),
            CMDQ_BASE_HIGH => setup.base = high(setup.base),
            reg::CMDQ_COMPLETION_BASE => setup.completion_base = low(setup.completion_base),
            CMDQ_COMPLETION_BASE_HIGH => setup.completion_base = high(setup.completion_base),
            reg::CMDQ_CONFIG => setup.config = value,
            reg::CMDQ_PRODUCER => self.bell(Bell::CommandProducer, value.into()),
            reg::CMDQ_CONSUMER => self.bell(Bell::CommandConsumer, value.into()),
            _ => {}
        }
    }

    fn enable(&mut self, enable: bool) {
        let ready = self.shared.status.status() == status::READY;
        if enable && ready && !self.enabled {
            self.enabled = true;
            self.mailbox.post_enable(self.hca, self.setup);
        }
    }

    fn bell(&self, bell: Bell, value: u64) {
        self.mailbox.post_bell(self.hca, bell, value);
    }

    fn control_write(&mut self, offset: usize, data: &[u8]) {
        if offset % 4 != 0 {
            return;
        }
        for (n, word) in data.chunks_exact(4).enumerate() {
            let value = u32::from_le_bytes(word.try_into().expect("chunks of 4 bytes"));
            self.set_register(offset + 4 * n, value);
        }
    }

    /// Reads slots that lie in memory; others read as zero.
    fn doorbell_read(&self, offset: usize, out: &mut [u8]) {
        for (at, byte) in (offset..).zip(out) {
            // CAST: BAR2 is far smaller than 2^32 slots.
            let slot = (at / SLOT_SIZE) as u32;
            let value = self.shared.slots.as_ref().and_then(|m| m.load(slot));
            *byte = value.unwrap_or(0).to_le_bytes()[at % SLOT_SIZE];
        }
    }

    /// A slot is written as a whole; other accesses have no effect.
    fn doorbell_write(&mut self, offset: usize, data: &[u8]) {
        let Ok(value) = data.try_into() else {
            return;
        };
        if offset % SLOT_SIZE != 0 {
            return;
        }
        // CAST: BAR2 is far smaller than 2^32 slots.
        let slot = (offset / SLOT_SIZE) as u32;
        let value = u64::from_le_bytes(value);
        match &self.shared.slots {
            None => self.bell(Bell::Slot(slot), value),
            // The client has not mapped it, or not yet.
            Some(memory) => {
                if memory.store(slot, value).is_some() {
                    self.mailbox.wake();
                }
            }
        }
    }

    /// Whether the function is in its slot. When it has been put back it has lost its state, as it had no power meanwhile.
    fn is_present(&mut self) -> bool {
        let count = self.gone.count();
        if count % 2 == 1 {
            return false;
        }
        if count != self.powered {
            self.powered = count;
            self.reset_function();
            self.shared.dma.set_gate(Gate::Present, true);
        }
        true
    }

    fn answers(&mut self, region: u32) -> bool {
        self.is_present()
            && (region == vfio::VFIO_PCI_CONFIG_REGION_INDEX || self.config.memory_enabled())
    }
}

const CMDQ_BASE_HIGH: usize = reg::CMDQ_BASE + 4;
const CMDQ_COMPLETION_BASE_HIGH: usize = reg::CMDQ_COMPLETION_BASE + 4;
const CMDQ_CONFIG_END: usize = reg::CMDQ_CONFIG + 3;

impl Device for Function {
    fn region(&self, index: u32) -> Option<Region<'_>> {
        let [control, doorbells, msix] = self.identity.bars;
        let size = match index {
            vfio::VFIO_PCI_BAR0_REGION_INDEX => control,
            vfio::VFIO_PCI_BAR2_REGION_INDEX => doorbells,
            vfio::VFIO_PCI_BAR4_REGION_INDEX => msix,
            vfio::VFIO_PCI_CONFIG_REGION_INDEX => CONFIG_SIZE as u64,
            _ if index < vfio::VFIO_PCI_NUM_REGIONS => 0,
            _ => return None,
        };
        let slots = self.shared.slots.as_ref();
        let memory = slots.filter(|_| index == vfio::VFIO_PCI_BAR2_REGION_INDEX);
        Some(Region {
            size,
            memory: memory.map(SlotMemory::file),
        })
    }

    fn irqs(&self, index: u32) -> Option<u32> {
        match index {
            vfio::VFIO_PCI_MSIX_IRQ_INDEX => Some(self.identity.vectors.into()),
            // QEMU warns about a device without them; they are never raised.
            vfio::VFIO_PCI_ERR_IRQ_INDEX | vfio::VFIO_PCI_REQ_IRQ_INDEX => Some(1),
            _ if index < vfio::VFIO_PCI_NUM_IRQS => Some(0),
            _ => None,
        }
    }

    fn read(&mut self, region: u32, offset: u64, out: &mut [u8]) -> Result<(), Errno> {
        if !self.answers(region) {
            out.fill(ALL_ONES as u8);
            return Ok(());
        }
        // CAST: The server has checked the access against the size of the region.
        let at = offset as usize;
        match region {
            vfio::VFIO_PCI_CONFIG_REGION_INDEX => self.config.read(at, out),
            vfio::VFIO_PCI_BAR0_REGION_INDEX => self.control_read(at, out),
            vfio::VFIO_PCI_BAR2_REGION_INDEX => self.doorbell_read(at, out),
            vfio::VFIO_PCI_BAR4_REGION_INDEX => out.copy_from_slice(&self.msix[at..at + out.len()]),
            _ => return Err(Errno::INVAL),
        }
        Ok(())
    }

    fn write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<(), Errno> {
        if !self.answers(region) {
            return Ok(());
        }
        // CAST: The server has checked the access against the size of the region.
        let at = offset as usize;
        match region {
            vfio::VFIO_PCI_CONFIG_REGION_INDEX => self.config_write(at, data),
            vfio::VFIO_PCI_BAR0_REGION_INDEX => self.control_write(at, data),
            vfio::VFIO_PCI_BAR2_REGION_INDEX => self.doorbell_write(at, data),
            vfio::VFIO_PCI_BAR4_REGION_INDEX => {
                self.msix[at..at + data.len()].copy_from_slice(data);
            }
            _ => return Err(Errno::INVAL),
        }
        Ok(())
    }

    fn dma_map(&mut self, range: DmaRange) -> Result<(), Errno> {
        let rights = Rights {
            read: range.read,
            write: range.write,
        };
        let mapped = self
            .shared
            .dma
            .map(range.addr, range.size, rights, range.file);
        mapped.map_err(errno)
    }

    fn dma_unmap(&mut self, range: Option<(u64, u64)>) -> Result<(), Errno> {
        match range {
            Some((addr, size)) => self.shared.dma.unmap(addr, size).map_err(errno),
            None => {
                self.shared.dma.unmap_all();
                Ok(())
            }
        }
    }

    fn set_irqs(&mut self, index: u32, action: IrqAction) -> Result<(), Errno> {
        // The other indices are never raised: the client may bind them and nothing follows.
        if index != vfio::VFIO_PCI_MSIX_IRQ_INDEX {
            return Ok(());
        }
        let vectors = &self.shared.vectors;
        match action {
            IrqAction::Bind { start, fds } => vectors.bind(start, fds),
            IrqAction::UnbindAll => vectors.unbind_all(),
            IrqAction::Raise { start, count } => {
                for vector in start..start + count {
                    let vector = u16::try_from(vector).map_err(|_| Errno::INVAL)?;
                    vectors.raise(vector).map_err(|_| Errno::IO)?;
                }
            }
        }
        Ok(())
    }

    fn reset(&mut self) {
        if self.is_present() {
            self.reset_function();
        }
    }

    fn disconnected(&mut self) {
        self.reset();
        self.shared.dma.unmap_all();
        self.shared.vectors.unbind_all();
    }
}

fn errno(error: MapError) -> Errno {
    match error {
        MapError::Range => Errno::INVAL,
        MapError::Overlap => Errno::EXIST,
        MapError::Io(error) => {
            log::warn!("cannot map client memory: {error}");
            error
                .raw_os_error()
                .map_or(Errno::IO, Errno::from_raw_os_error)
        }
    }
}
