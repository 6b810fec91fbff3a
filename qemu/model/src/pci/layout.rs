// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Registers of the configuration space: initial values and which bits can be written.

use super::{Identity, CONFIG_SIZE};

pub(super) const COMMAND: usize = 0x04;
pub(super) const COMMAND_MEMORY: u16 = 1 << 1;
pub(super) const COMMAND_BUS_MASTER: u16 = 1 << 2;
const COMMAND_PARITY: u16 = 1 << 6;
const COMMAND_SERR: u16 = 1 << 8;
const COMMAND_INTX_DISABLE: u16 = 1 << 10;
const STATUS: usize = 0x06;
const STATUS_CAPABILITIES: u16 = 1 << 4;
/// Error bits of the status register, cleared by writing one.
const STATUS_ERRORS: u16 = 0xf900;
const CLASS: usize = 0x09;
const CACHE_LINE: usize = 0x0c;
const BARS: usize = 0x10;
const BAR_64: u32 = 2 << 1;
const BAR_PREFETCHABLE: u32 = 1 << 3;
const SUBSYSTEM: usize = 0x2c;
const CAPABILITIES: usize = 0x34;
const INTERRUPT_LINE: usize = 0x3c;

const MSIX: usize = 0x40;
const POWER: usize = 0x50;
pub(super) const POWER_CONTROL: usize = POWER + 4;
pub(super) const D0: u8 = 0;
pub(super) const D3HOT: u8 = 3;
const EXPRESS: usize = 0x60;
pub(super) const DEVICE_CONTROL: usize = EXPRESS + 0x08;
/// Initiate Function Level Reset, in the upper byte of Device Control; reads as zero.
pub(super) const FLR: u8 = 1 << 7;
const SERIAL: usize = 0x100;
const AER: usize = 0x140;
const AER_SIZE: usize = 0x48;

/// Offset of the pending bits in the MSI-X BAR.
const PBA_OFFSET: u32 = 0x8000;
/// BAR of the MSI-X table, in the BIR field.
const MSIX_BIR: u32 = qiao_hw::bar::pci::BAR_MSIX;

/// Returns whether the byte keeps its value over a function level reset: the error records of AER
/// do (PCI Express 5.0, 7.8.4).
pub(super) fn is_sticky(at: usize) -> bool {
    (AER + 4..AER + AER_SIZE).contains(&at)
}

/// Initial values and masks.
#[derive(Debug)]
pub(super) struct Layout {
    pub initial: Box<[u8; CONFIG_SIZE]>,
    /// Bits that take the value written.
    pub writable: Box<[u8; CONFIG_SIZE]>,
    /// Bits that are cleared by writing one.
    pub clearable: Box<[u8; CONFIG_SIZE]>,
}

fn put(bytes: &mut [u8; CONFIG_SIZE], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

fn put16(bytes: &mut [u8; CONFIG_SIZE], at: usize, value: u16) {
    put(bytes, at, &value.to_le_bytes());
}

fn put32(bytes: &mut [u8; CONFIG_SIZE], at: usize, value: u32) {
    put(bytes, at, &value.to_le_bytes());
}

impl Layout {
    pub(super) fn new(identity: &Identity) -> Self {
        let zero = || Box::new([0; CONFIG_SIZE]);
        let mut layout = Self {
            initial: zero(),
            writable: zero(),
            clearable: zero(),
        };
        layout.header(identity);
        layout.bars(identity);
        layout.msix(identity);
        layout.power();
        layout.express();
        layout.serial(identity);
        layout.aer();
        layout
    }

    fn header(&mut self, identity: &Identity) {
        let init = &mut self.initial;
        put16(init, 0x00, identity.vendor);
        put16(init, 0x02, identity.device);
        put16(init, STATUS, STATUS_CAPABILITIES);
        put(init, CLASS, &identity.class.to_le_bytes()[..3]);
        put16(init, SUBSYSTEM, identity.vendor);
        put16(init, SUBSYSTEM + 2, identity.device);
        init[CAPABILITIES] = MSIX as u8;
        let command = COMMAND_MEMORY
            | COMMAND_BUS_MASTER
            | COMMAND_PARITY
            | COMMAND_SERR
            | COMMAND_INTX_DISABLE;
        put16(&mut self.writable, COMMAND, command);
        put16(&mut self.clearable, STATUS, STATUS_ERRORS);
        self.writable[CACHE_LINE] = 0xff;
        self.writable[INTERRUPT_LINE] = 0xff;
    }

    fn bars(&mut self, identity: &Identity) {
        for (n, size) in identity.bars.into_iter().enumerate() {
            let at = BARS + 8 * n;
            let prefetchable = if n == 1 { BAR_PREFETCHABLE } else { 0 };
            put32(&mut self.initial, at, BAR_64 | prefetchable);
            put(&mut self.writable, at, &(!(size - 1)).to_le_bytes());
        }
    }

    fn msix(&mut self, identity: &Identity) {
        let init = &mut self.initial;
        put(init, MSIX, &[0x11, POWER as u8]);
        put16(init, MSIX + 2, identity.vectors - 1);
        put32(init, MSIX + 4, MSIX_BIR);
        put32(init, MSIX + 8, PBA_OFFSET | MSIX_BIR);
        // Enable and function mask.
        put16(&mut self.writable, MSIX + 2, 0xc000);
    }

    fn power(&mut self) {
        // Version 3, no PME, no D1 and D2.
        put(&mut self.initial, POWER, &[0x01, EXPRESS as u8, 0x03, 0x00]);
        self.writable[POWER_CONTROL] = 0x03;
    }

    fn express(&mut self) {
        let init = &mut self.initial;
        // Last capability; version 2, endpoint.
        put(init, EXPRESS, &[0x10, 0x00, 0x02, 0x00]);
        // Device capabilities: FLR, role-based errors, extended tags, payload up to 512 bytes.
        put32(init, EXPRESS + 0x04, (1 << 28) | (1 << 15) | (1 << 5) | 2);
        // Device control: read requests up to 512 bytes, relaxed ordering, no snoop.
        put16(init, DEVICE_CONTROL, 0x2810);
        // Link capabilities and status: 16 GT/s, x16, ASPM optionality.
        put32(init, EXPRESS + 0x0c, (1 << 22) | (16 << 4) | 4);
        put16(init, EXPRESS + 0x12, (1 << 12) | (16 << 4) | 4);
        // Device capabilities 2: completion timeout ranges A to D and disable.
        put32(init, EXPRESS + 0x24, 0x1f);
        // Link capabilities 2: 2.5 to 16 GT/s; link control 2: target 16 GT/s.
        put32(init, EXPRESS + 0x2c, 0xf << 1);
        put16(init, EXPRESS + 0x30, 4);
        put16(&mut self.writable, DEVICE_CONTROL, 0x7fff);
        put16(&mut self.clearable, EXPRESS + 0x0a, 0x000f);
        put16(&mut self.writable, EXPRESS + 0x10, 0x00c8);
        put16(&mut self.writable, EXPRESS + 0x28, 0x001f);
        put16(&mut self.writable, EXPRESS + 0x30, 0x000f);
    }

    fn extended(&mut self, at: usize, id: u16, version: u8, next: usize) {
        // CAST: Offsets are 12 bits.
        let header = u32::from(id) | (u32::from(version) << 16) | ((next as u32) << 20);
        put32(&mut self.initial, at, header);
    }

    fn serial(&mut self, identity: &Identity) {
        self.extended(SERIAL, 0x0003, 1, AER);
        put(
            &mut self.initial,
            SERIAL + 4,
            &identity.serial.to_le_bytes(),
        );
    }

    fn aer(&mut self) {
        /// Uncorrectable errors: data link protocol to unsupported request.
        const UNCORRECTABLE: u32 = 0x003f_f010;
        /// Correctable errors.
        const CORRECTABLE: u32 = 0x0000_f1c1;
        self.extended(AER, 0x0001, 2, 0);
        // Default severity: data link protocol, flow control, receiver overflow, malformed.
        put32(&mut self.initial, AER + 0x0c, 0x0046_2030 & UNCORRECTABLE);
        // Advisory non-fatal errors are masked.
        put32(&mut self.initial, AER + 0x14, 0x2000);
        put32(&mut self.clearable, AER + 0x04, UNCORRECTABLE);
        put32(&mut self.writable, AER + 0x08, UNCORRECTABLE);
        put32(&mut self.writable, AER + 0x0c, UNCORRECTABLE);
        put32(&mut self.clearable, AER + 0x10, CORRECTABLE);
        put32(&mut self.writable, AER + 0x14, CORRECTABLE);
    }
}
