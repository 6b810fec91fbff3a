// SPDX-License-Identifier: GPL-2.0

//! A device as the operations of the verbs see it.

use crate::{
    caps::Caps,
    cmdq::CommandQueue,
    cq::KernelCqs,
    doorbell::{
        Doorbells,
        Slot,
        SlotSet,
        Take, //
    },
    eq,
    fatal::{
        Oddity,
        Part, //
    },
    hal::State,
    table::Tables, //
};
use core::convert::Infallible;
use kernel::{
    device::Bound,
    io::Io,
    pci,
    prelude::*,
    sync::Arc, //
};
use qiao_hw::{
    doorbell::SLOT_SIZE,
    queue::Limits, //
};
use rdma::{
    pci::Enabled,
    sync::IdTable,
    CqHandle,
    DeviceHandle,
    QpHandle,
    SrqHandle, //
};

/// A device that executes commands.
#[pin_data]
pub(crate) struct Hca<'bound> {
    caps: Caps,
    comp_vectors: u16,
    #[pin]
    cmd: CommandQueue<'bound>,
    tables: Tables,
    #[pin]
    kernel_slots: SlotSet<()>,
    doorbells: Arc<Doorbells>,
    doorbell_bar: pci::Bar<'bound>,
    part: Arc<Part<'bound>>,
    // Dropped last, when nothing of the device is mapped any more.
    _enabled: Enabled<'bound>,
}

/// What an [`Hca`] is made of.
pub(crate) struct Parts<'bound> {
    /// The memory space answers.
    pub(crate) enabled: Enabled<'bound>,
    /// The registers.
    pub(crate) part: Arc<Part<'bound>>,
    /// The doorbell pages.
    pub(crate) doorbell_bar: pci::Bar<'bound>,
    /// What it has.
    pub(crate) caps: Caps,
    /// How many vectors of completions there are.
    pub(crate) comp_vectors: u16,
}

impl<'bound> Hca<'bound> {
    /// Makes a device whose command queue is not started.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(parts: Parts<'bound>) -> Result<Arc<Self>> {
        let Parts {
            enabled,
            part,
            doorbell_bar,
            caps,
            comp_vectors,
        } = parts;
        let doorbells = Doorbells::new((&doorbell_bar).size() as u64)?;
        Arc::pin_init(
            try_pin_init!(Self {
                cmd <- CommandQueue::new(
                    part.clone(),
                    caps.log_max_cmds,
                    caps.cmd_timeout_ms.get(),
                ),
                tables: Tables::new(&caps)?,
                kernel_slots <- SlotSet::kernel(doorbells.clone()),
                doorbells,
                doorbell_bar,
                part,
                caps,
                comp_vectors,
                _enabled: enabled,
            }? Error),
            GFP_KERNEL,
        )
    }

    /// Returns the PCI function.
    pub(crate) fn pdev(&self) -> &'bound pci::Device<Bound> {
        self.part.binding().device()
    }

    /// Returns what the device has.
    pub(crate) fn caps(&self) -> &Caps {
        &self.caps
    }

    /// Returns what the device has for queues.
    pub(crate) fn queue_limits(&self) -> Limits {
        Limits::from(&**self.caps())
    }

    /// Returns whether the device has a feature.
    pub(crate) fn has(&self, feature: u64) -> bool {
        self.caps.features.get() & feature != 0
    }

    /// Returns the command queue.
    pub(crate) fn cmd(&self) -> &CommandQueue<'bound> {
        &self.cmd
    }

    /// Returns whether the device works, as far as is known.
    ///
    /// If not, it is fenced: it neither writes memory nor raises interrupts, so what was mapped for
    /// it can be taken back even if it did not confirm that.
    pub(crate) fn is_alive(&self) -> bool {
        self.part.check().is_ok()
    }

    /// Reads the state of the device.
    pub(crate) fn state(&self) -> State {
        self.part.state()
    }

    /// Returns the table of QPs by QP number.
    pub(crate) fn qps(&self) -> &Arc<IdTable<QpHandle>> {
        &self.tables.qps
    }

    /// Returns the table of CQs by CQ number.
    pub(crate) fn cqs(&self) -> &Arc<IdTable<CqHandle>> {
        &self.tables.cqs
    }

    /// Returns the table of SRQs by SRQ number.
    pub(crate) fn srqs(&self) -> &Arc<IdTable<SrqHandle>> {
        &self.tables.srqs
    }

    /// Returns the CQs of the kernel.
    pub(crate) fn kernel_cqs(&self) -> &KernelCqs {
        self.part.kernel_cqs()
    }

    /// Returns the numbers of protection domains.
    pub(crate) fn pds(&self) -> &Arc<IdTable<Infallible>> {
        &self.tables.pds
    }

    /// Returns the indices of keys.
    pub(crate) fn keys(&self) -> &Arc<IdTable<Infallible>> {
        &self.tables.keys
    }

    /// Returns the doorbell pages, to make a [`SlotSet`] of.
    pub(crate) fn doorbells(&self) -> &Arc<Doorbells> {
        &self.doorbells
    }

    /// Takes doorbell slots for a queue, or two, of the kernel.
    ///
    /// # Errors
    ///
    /// Those of [`SlotSet::take`].
    pub(crate) fn kernel_slots(&self, take: Take) -> Result<Slot<()>> {
        self.kernel_slots.take(take, |_| Ok(()))
    }

    /// Writes to a doorbell slot. What was written to memory before is visible to the device then.
    /// Callable from any context.
    pub(crate) fn ring_doorbell(&self, slot: u32, value: u64) {
        let written = self
            .doorbell_bar
            .try_write64(value, slot as usize * SLOT_SIZE);
        // `Doorbells` has the size of the BAR.
        debug_assert!(written.is_ok());
    }

    /// Returns the number of vectors of completions.
    pub(crate) fn comp_vectors(&self) -> u16 {
        self.comp_vectors
    }

    /// Returns the EQ of a vector of completions; [`None`] if there is no such vector.
    pub(crate) fn completion_eqn(&self, vector: u32) -> Option<u32> {
        (vector < self.comp_vectors.into()).then(|| vector + u32::from(eq::FIRST_COMPLETION))
    }

    /// Returns what events of the device and of its ports go to.
    pub(crate) fn events(&self) -> &DeviceHandle {
        self.part.events()
    }

    /// Notes something wrong that the device has done.
    pub(crate) fn note(&self, oddity: Oddity) {
        self.part.note(oddity);
    }
}
