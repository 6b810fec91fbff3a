// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A vfio-user server: the protocol that QEMU's `vfio-user-pci` speaks to a device in another
//! process (vfio-user specification 0.9.1, in QEMU's documentation).
//!
//! [`proto`] knows the messages and does no I/O; [`server`] moves them over a socket and calls a
//! [`Device`].

pub mod proto;
pub mod server;

pub use rustix::io::Errno;

use std::fs::File;
use std::os::fd::BorrowedFd;

/// A region of the device as GET_REGION_INFO gives it. If the client can map any region of a device,
/// none of its writes is posted: a read of memory could pass it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Region<'a> {
    /// Bytes; 0 if the device does not have the region.
    pub size: u64,
    /// The file that is the region, if the client may map it.
    pub memory: Option<BorrowedFd<'a>>,
}

/// A range of client memory as DMA_MAP gives it.
#[derive(Debug)]
pub struct DmaRange {
    /// I/O virtual address.
    pub addr: u64,
    /// Bytes.
    pub size: u64,
    /// Whether the device may read it.
    pub read: bool,
    /// Whether the device may write it.
    pub write: bool,
    /// The file that holds it and the offset in the file.
    pub file: Option<(File, u64)>,
}

/// What SET_IRQS asks for.
#[derive(Debug)]
pub enum IrqAction {
    /// Binds vectors from `start` on to these event descriptors; [`None`] unbinds one.
    Bind {
        /// First vector.
        start: u32,
        /// One per vector.
        fds: Vec<Option<File>>,
    },
    /// Unbinds all vectors.
    UnbindAll,
    /// Raises vectors, as a test of the path.
    Raise {
        /// First vector.
        start: u32,
        /// Number of vectors.
        count: u32,
    },
}

/// A device behind a [`server::Server`]. Methods are called from the server's thread, one at a time, and
/// answer at once: the client stalls a virtual CPU while it waits.
pub trait Device {
    /// Returns region `index`; [`None`] if there is no such index.
    fn region(&self, index: u32) -> Option<Region<'_>>;

    /// Returns how many interrupts `index` has; [`None`] if there is no such index.
    fn irqs(&self, index: u32) -> Option<u32>;

    /// Reads a region; the access lies within it.
    ///
    /// # Errors
    ///
    /// What the client gets.
    fn read(&mut self, region: u32, offset: u64, out: &mut [u8]) -> Result<(), Errno>;

    /// Writes a region; the access lies within it.
    ///
    /// # Errors
    ///
    /// What the client gets, if it waits for a reply.
    fn write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<(), Errno>;

    /// Maps client memory.
    ///
    /// # Errors
    ///
    /// What the client gets.
    fn dma_map(&mut self, range: DmaRange) -> Result<(), Errno>;

    /// Unmaps client memory, or all of it without a range; none of it is in use on return.
    ///
    /// # Errors
    ///
    /// What the client gets.
    fn dma_unmap(&mut self, range: Option<(u64, u64)>) -> Result<(), Errno>;

    /// Changes the interrupts of `index`; the vectors exist.
    ///
    /// # Errors
    ///
    /// What the client gets.
    fn set_irqs(&mut self, index: u32, action: IrqAction) -> Result<(), Errno>;

    /// Resets the device. Mappings and interrupts stay.
    fn reset(&mut self);

    /// The client has gone: mappings and interrupts go too, and the device is reset.
    fn disconnected(&mut self);
}
