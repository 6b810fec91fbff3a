// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Memory that holds doorbell slots.

use super::file::FileMap;
use super::MapError;
use qiao_hw::doorbell::SLOT_SIZE;
use rustix::fs::{fcntl_add_seals, fstat, ftruncate, memfd_create, MemfdFlags, SealFlags};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

/// Doorbell slots in a file, which whoever has the file may map and write at any time.
#[derive(Debug)]
pub struct SlotMemory {
    file: File,
    map: FileMap,
    count: u32,
}

impl SlotMemory {
    /// Makes `bytes` of slots, all zero. The size is sealed: no client can take the memory away.
    ///
    /// # Errors
    ///
    /// If there is no memory.
    pub fn new(bytes: u64) -> Result<Self, MapError> {
        let make = || {
            let fd = memfd_create("doorbells", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
            ftruncate(&fd, bytes)?;
            fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
            Ok::<_, rustix::io::Errno>(fd)
        };
        Self::open(make().map_err(io::Error::from)?.into())
    }

    /// Maps the slots of a file.
    ///
    /// # Errors
    ///
    /// If it cannot be mapped.
    pub fn open(file: File) -> Result<Self, MapError> {
        let stat = fstat(&file).map_err(io::Error::from)?;
        let bytes = u64::try_from(stat.st_size).map_err(|_| MapError::Range)?;
        let count = u32::try_from(bytes / SLOT_SIZE as u64).map_err(|_| MapError::Range)?;
        let map = FileMap::new(file.try_clone()?, bytes)?;
        Ok(Self { file, map, count })
    }

    /// Returns the file, for clients to map.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Returns the number of slots.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Reads a slot before everything that follows; [`None`] if there is no such slot.
    pub fn load(&self, slot: u32) -> Option<u64> {
        self.map.load_u64(u64::from(slot) * SLOT_SIZE as u64)
    }

    /// Writes a slot after everything before; [`None`] if there is no such slot.
    pub fn store(&self, slot: u32, value: u64) -> Option<()> {
        self.map
            .store_u64(u64::from(slot) * SLOT_SIZE as u64, value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_maps_of_a_file_are_the_same_slots() {
        let own = SlotMemory::new(4096).unwrap();
        let file = own.file().try_clone_to_owned().unwrap();
        let client = SlotMemory::open(file.into()).unwrap();
        assert_eq!((own.count(), client.count()), (512, 512));
        assert_eq!(client.store(511, 0x0102_0304_0506_0708), Some(()));
        assert_eq!(client.store(512, 1), None);
        assert_eq!(own.load(511), Some(0x0102_0304_0506_0708));
        assert_eq!((own.load(0), own.load(512)), (Some(0), None));
    }

    #[test]
    fn a_client_cannot_cut_the_memory_off() {
        let own = SlotMemory::new(4096).unwrap();
        assert!(ftruncate(own.file(), 0).is_err());
        assert_eq!(own.load(511), Some(0));
    }
}
