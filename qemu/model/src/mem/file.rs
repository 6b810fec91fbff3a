// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Files mapped into this process.

use super::MapError;
use rustix::fs::{fcntl_getfl, fstat, OFlags};
use rustix::mm::{MapFlags, ProtFlags};
use std::collections::HashMap;
use std::fs::File;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;
use vm_memory::{FileOffset, MmapRegion, VolatileMemory};

/// A file, mapped whole and shared.
#[derive(Debug)]
pub(super) struct FileMap {
    region: MmapRegion,
    writable: bool,
}

impl FileMap {
    pub(super) fn new(file: File, size: u64) -> Result<Self, MapError> {
        let mode = fcntl_getfl(&file).map_err(std::io::Error::from)? & OFlags::ACCMODE;
        let writable = mode == OFlags::RDWR;
        let mut prot = ProtFlags::READ;
        prot.set(ProtFlags::WRITE, writable);
        let size = usize::try_from(size).map_err(|_| MapError::Range)?;
        // CAST: The bits of `mmap` are small and positive.
        let (prot, flags) = (prot.bits() as i32, MapFlags::SHARED.bits() as i32);
        let region = MmapRegion::build(Some(FileOffset::new(file, 0)), size, prot, flags)
            .map_err(|error| std::io::Error::other(error.to_string()))?;
        Ok(Self { region, writable })
    }

    pub(super) fn is_writable(&self) -> bool {
        self.writable
    }

    fn slice(&self, offset: u64, len: usize) -> vm_memory::VolatileSlice<'_> {
        // `Files::map` has checked that the range lies within the file.
        self.region
            .get_slice(offset as usize, len)
            .expect("ranges lie within their file")
    }

    pub(super) fn read(&self, offset: u64, out: &mut [u8]) {
        self.slice(offset, out.len()).copy_to(out);
    }

    pub(super) fn write(&self, offset: u64, data: &[u8]) {
        self.slice(offset, data.len()).copy_from(data);
    }

    pub(super) fn load_u32(&self, offset: u64) -> Option<u32> {
        let cell = self
            .region
            .get_atomic_ref::<AtomicU32>(offset as usize)
            .ok()?;
        Some(u32::from_le(cell.load(Ordering::Acquire)))
    }

    pub(super) fn store_u32(&self, offset: u64, value: u32) -> Option<()> {
        let cell = self
            .region
            .get_atomic_ref::<AtomicU32>(offset as usize)
            .ok()?;
        cell.store(value.to_le(), Ordering::Release);
        Some(())
    }

    pub(super) fn load_u64(&self, offset: u64) -> Option<u64> {
        let cell = self
            .region
            .get_atomic_ref::<AtomicU64>(offset as usize)
            .ok()?;
        Some(u64::from_le(cell.load(Ordering::Acquire)))
    }

    pub(super) fn store_u64(&self, offset: u64, value: u64) -> Option<()> {
        let cell = self
            .region
            .get_atomic_ref::<AtomicU64>(offset as usize)
            .ok()?;
        cell.store(value.to_le(), Ordering::Release);
        Some(())
    }

    pub(super) fn update_u64(&self, offset: u64, change: impl Fn(u64) -> u64) -> Option<u64> {
        let cell = self
            .region
            .get_atomic_ref::<AtomicU64>(offset as usize)
            .ok()?;
        let apply = |old| Some(change(u64::from_le(old)).to_le());
        match cell.fetch_update(Ordering::SeqCst, Ordering::SeqCst, apply) {
            Ok(old) | Err(old) => Some(u64::from_le(old)),
        }
    }
}

/// The files that ranges refer to, by device and inode.
#[derive(Debug, Default)]
pub(super) struct Files {
    maps: HashMap<(u64, u64), Arc<FileMap>>,
}

impl Files {
    /// Returns the mapping of `file`, which must have at least `end` bytes.
    pub(super) fn map(&mut self, file: File, end: u64) -> Result<Arc<FileMap>, MapError> {
        let stat = fstat(&file).map_err(std::io::Error::from)?;
        let size = u64::try_from(stat.st_size).map_err(|_| MapError::Range)?;
        if end > size {
            return Err(MapError::Range);
        }
        let id = (stat.st_dev, stat.st_ino);
        if let Some(map) = self.maps.get(&id) {
            if end <= map.region.size() as u64 {
                return Ok(Arc::clone(map));
            }
        }
        // New, or grown since it was mapped; ranges that use the old mapping keep it alive.
        let map = Arc::new(FileMap::new(file, size)?);
        self.maps.insert(id, Arc::clone(&map));
        Ok(map)
    }

    pub(super) fn forget_unused(&mut self) {
        self.maps.retain(|_, map| Arc::strong_count(map) > 1);
    }

    pub(super) fn len(&self) -> usize {
        self.maps.len()
    }
}
