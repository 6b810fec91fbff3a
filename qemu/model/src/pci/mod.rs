// SPDX-License-Identifier: GPL-2.0 OR MIT

//! PCI configuration space of the function (PCI Express base specification 5.0, chapter 7).

mod layout;

use layout::Layout;

/// Bytes of the configuration space.
pub const CONFIG_SIZE: usize = 4096;

/// What tells one function from another.
#[derive(Clone, Copy, Debug)]
pub struct Identity {
    /// Vendor id.
    pub vendor: u16,
    /// Device id.
    pub device: u16,
    /// Class code, 24 bits.
    pub class: u32,
    /// Sizes of BARs 0, 2 and 4 in bytes, powers of two.
    pub bars: [u64; 3],
    /// Number of MSI-X vectors.
    pub vectors: u16,
    /// Serial number.
    pub serial: u64,
}

/// What a write to the configuration space leads to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Effect {
    /// The function was reset, by FLR or by leaving D3hot.
    pub reset: bool,
}

/// The configuration space.
#[derive(Debug)]
pub struct ConfigSpace {
    bytes: Box<[u8; CONFIG_SIZE]>,
    layout: Layout,
}

impl ConfigSpace {
    /// Makes the configuration space of a function after a reset.
    pub fn new(identity: &Identity) -> Self {
        let layout = Layout::new(identity);
        Self {
            bytes: layout.initial.clone(),
            layout,
        }
    }

    /// Reads from `offset` on.
    ///
    /// # Panics
    ///
    /// If the access reaches beyond [`CONFIG_SIZE`].
    pub fn read(&self, offset: usize, out: &mut [u8]) {
        out.copy_from_slice(&self.bytes[offset..offset + out.len()]);
    }

    /// Writes from `offset` on, bit by bit as the registers allow.
    ///
    /// # Panics
    ///
    /// If the access reaches beyond [`CONFIG_SIZE`].
    pub fn write(&mut self, offset: usize, data: &[u8]) -> Effect {
        let power_before = self.power_state();
        let mut flr = false;
        for (at, &value) in (offset..).zip(data) {
            flr |= at == layout::DEVICE_CONTROL + 1 && value & layout::FLR != 0;
            let writable = self.layout.writable[at];
            let clearable = self.layout.clearable[at];
            let old = self.bytes[at];
            self.bytes[at] = (old & !writable | value & writable) & !(value & clearable);
        }
        // D3hot to D0 resets the function: No_Soft_Reset is clear (PCI Express 5.0, 5.3.1.4).
        let woken = power_before == layout::D3HOT && self.power_state() == layout::D0;
        if flr || woken {
            self.reset();
        }
        Effect {
            reset: flr || woken,
        }
    }

    /// Puts every register but the sticky ones to its initial value.
    pub fn reset(&mut self) {
        for (at, byte) in self.bytes.iter_mut().enumerate() {
            if !layout::is_sticky(at) {
                *byte = self.layout.initial[at];
            }
        }
    }

    /// Returns whether the function may start transactions.
    pub fn bus_master(&self) -> bool {
        self.command() & layout::COMMAND_BUS_MASTER != 0
    }

    /// Returns whether the function answers accesses to its BARs.
    pub fn memory_enabled(&self) -> bool {
        self.command() & layout::COMMAND_MEMORY != 0 && self.power_state() == layout::D0
    }

    fn command(&self) -> u16 {
        u16::from_le_bytes([self.bytes[layout::COMMAND], self.bytes[layout::COMMAND + 1]])
    }

    fn power_state(&self) -> u8 {
        self.bytes[layout::POWER_CONTROL] & 3
    }
}

#[cfg(test)]
mod tests;
