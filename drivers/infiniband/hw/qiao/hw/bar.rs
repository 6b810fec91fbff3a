// SPDX-License-Identifier: GPL-2.0 OR MIT

//! PCI identity, BARs and the registers of BAR0.

use crate::describe::{constants, Register};

constants! {
    /// PCI identity.
    pub mod pci: u32 {
        /// Class code 02 07 (InfiniBand controller) with the programming interface byte of this
        /// specification. 0x51 is provisional until one is assigned.
        CLASS = 0x02_07_51,
        /// Vendor of the device model: the range that QEMU reserves for experiments.
        MODEL_VENDOR = 0x1af4,
        /// Device id of the device model.
        MODEL_DEVICE = 0x10f0,
        /// BAR of the control registers; 64 bits wide.
        BAR_CONTROL = 0,
        /// BAR of the doorbell pages; 64 bits wide, prefetchable.
        BAR_DOORBELL = 2,
        /// BAR of the MSI-X table and pending bits; 64 bits wide.
        BAR_MSIX = 4,
    }
}

constants! {
    /// Sizes that every part has.
    pub mod size: usize {
        /// Least size of BAR0 in bytes.
        BAR_CONTROL_MIN = 0x2000,
        /// Least size of BAR2 in bytes: the kernel's page and one user page of the largest CPU
        /// page size.
        BAR_DOORBELL_MIN = 0x2_0000,
    }
}

/// Value of [`reg::MAGIC`]: the bytes `QIAO`.
pub const MAGIC: u32 = u32::from_le_bytes(*b"QIAO");

/// Major version of this interface. A driver refuses a part with another.
pub const VERSION_MAJOR: u16 = 0;

/// Minor version of this interface. A part with a higher one still serves this driver.
pub const VERSION_MINOR: u16 = 1;

/// What every register reads as when the function has left the bus.
pub const ALL_ONES: u32 = u32::MAX;

macro_rules! registers {
    ($(
        $(#[doc = $doc:literal])+
        $name:ident @ $offset:literal, $size:literal, $access:literal;
    )*) => {
        /// Offsets of the registers in BAR0, in bytes.
        pub mod reg {
            $( $(#[doc = $doc])+ pub const $name: usize = $offset; )*
        }

        /// Table of the registers in BAR0.
        pub const REGISTERS: &[Register] = &[
            $( Register {
                name: stringify!($name),
                offset: $offset,
                size: $size,
                access: $access,
                doc: concat!($($doc),+),
            }, )*
        ];
    };
}

registers! {
    /// The bytes `QIAO`; anything else is not a part of this interface.
    MAGIC @ 0x00, 4, "ro";
    /// Bits 31:16 major version, 15:0 minor version.
    VERSION @ 0x04, 4, "ro";
    /// State of the device; bits in `status`.
    STATUS @ 0x08, 4, "ro";
    /// Requests to the device; bits in `control`.
    CONTROL @ 0x0c, 4, "rw";
    /// Where the capability block lies in BAR0: bits 15:0 offset, 31:16 length, both in bytes.
    CAPS @ 0x10, 4, "ro";
    /// Why `status.FATAL` is set; a vendor's number, zero if it is not set.
    FATAL_CAUSE @ 0x14, 4, "ro";
    /// DMA address of the command ring, a multiple of 4096.
    CMDQ_BASE @ 0x18, 8, "rw";
    /// DMA address of the command completion ring, a multiple of 4096.
    CMDQ_COMPLETION_BASE @ 0x20, 8, "rw";
    /// Bits 7:0 log2 of the entries of both rings, 31:16 MSI-X vector of completions.
    CMDQ_CONFIG @ 0x28, 4, "rw";
    /// Doorbell: free-running producer index of the command ring. Last value wins.
    CMDQ_PRODUCER @ 0x2c, 4, "wo";
    /// Doorbell: free-running consumer index of the command completion ring. Last value wins.
    CMDQ_CONSUMER @ 0x30, 4, "wo";
}

constants! {
    /// Bits of [`reg::STATUS`].
    pub mod status: u32 {
        /// The device has left reset and its capability block is valid.
        READY = 1 << 0,
        /// The command queue runs.
        ENABLED = 1 << 1,
        /// The device has failed; only a reset helps.
        FATAL = 1 << 2,
    }
}

constants! {
    /// Bits of [`reg::CONTROL`].
    pub mod control: u32 {
        /// Starts the command queue that the `CMDQ_*` registers describe.
        ENABLE = 1 << 0,
        /// Resets the device: `status.READY` clears at once and sets when the reset is done. All
        /// objects, the event queues and `CMDQ_*` are gone, no DMA is in flight.
        RESET = 1 << 1,
    }
}

/// Splits [`reg::VERSION`] into major and minor.
#[inline]
pub const fn version_parts(version: u32) -> (u16, u16) {
    // CAST: Each half is 16 bits.
    ((version >> 16) as u16, version as u16)
}

/// The value of [`reg::VERSION`] of this interface.
#[inline]
pub const fn version() -> u32 {
    // CAST: Widening.
    ((VERSION_MAJOR as u32) << 16) | VERSION_MINOR as u32
}

/// Packs [`reg::CMDQ_CONFIG`].
#[inline]
pub const fn cmdq_config(log_entries: u8, vector: u16) -> u32 {
    // CAST: Widening.
    ((vector as u32) << 16) | log_entries as u32
}

/// Splits [`reg::CMDQ_CONFIG`] into log2 of the entries and the vector; [`None`] if a reserved
/// bit is set.
#[inline]
pub const fn cmdq_config_parts(config: u32) -> Option<(u8, u16)> {
    if config & 0xff00 != 0 {
        return None;
    }
    // CAST: Truncation to the field is meant.
    Some((config as u8, (config >> 16) as u16))
}

/// Splits [`reg::CAPS`] into offset and length, in bytes.
#[inline]
pub const fn caps_parts(caps: u32) -> (usize, usize) {
    // CAST: Each half is 16 bits.
    ((caps & 0xffff) as usize, (caps >> 16) as usize)
}
