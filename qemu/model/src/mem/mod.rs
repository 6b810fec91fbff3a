// SPDX-License-Identifier: GPL-2.0 OR MIT

//! DMA: the memory that the client has mapped for the device.
//!
//! The client hands out file descriptors with ranges of I/O virtual addresses. Each file is mapped
//! into this process once, however many ranges refer to it: behind a virtual IOMMU there is a range
//! per page. Every access is checked against the ranges, their rights and the bus-master bit, is
//! split where ranges meet, and fails as a whole if any byte of it is not mapped. Removing a range
//! waits for accesses that are under way, so that a later one is a fault and not corruption.

mod breach;
mod file;
mod slots;

pub use breach::Breaches;
pub use slots::SlotMemory;

use breach::Breach;
use file::{FileMap, Files};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::fs::File;
use std::ops::Bound;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// An access that the client has not allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("DMA fault at {addr:#x}")]
pub struct DmaFault {
    /// The first address that could not be accessed.
    pub addr: u64,
}

/// Why a range could not be mapped or unmapped.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// Empty, wraps, or reaches beyond the file.
    #[error("range out of bounds")]
    Range,
    /// Overlaps a range that is mapped.
    #[error("range overlaps another")]
    Overlap,
    /// The file could not be mapped.
    #[error("cannot map the file")]
    Io(#[from] std::io::Error),
}

/// What the device may do with a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rights {
    /// It may read.
    pub read: bool,
    /// It may write.
    pub write: bool,
}

/// Why DMA is off although ranges may be mapped.
#[derive(Clone, Copy, Debug)]
pub enum Gate {
    /// The bus-master bit of the command register is clear.
    BusMaster,
    /// A reset has not reached the engine yet, or the device has failed.
    Reset,
    /// A test has pulled the function.
    Present,
}

#[derive(Debug)]
struct Range {
    size: u64,
    rights: Rights,
    /// The file and the offset in it; [`None`] for memory that only the client can reach.
    memory: Option<(Arc<FileMap>, u64)>,
}

#[derive(Debug, Default)]
struct Table {
    files: Files,
    ranges: BTreeMap<u64, Range>,
    /// Ranges that were unmapped last, by address and size: what still uses one is told from what
    /// never had one.
    former: VecDeque<(u64, u64)>,
    bus_master: bool,
    resetting: bool,
    gone: bool,
}

/// The DMA address space of a function.
#[derive(Debug, Default)]
pub struct Dma {
    table: RwLock<Table>,
    breaches: breach::Log,
}

/// Ranges that are remembered after they were unmapped.
const FORMER: usize = 4096;

impl Dma {
    /// Makes the empty address space of the function with this name.
    pub fn new(name: String) -> Self {
        Self {
            table: RwLock::default(),
            breaches: breach::Log::new(name),
        }
    }

    /// Maps `size` bytes at I/O virtual address `addr` to `file` from `offset` on. Without a file the
    /// range is known and every access to it faults.
    ///
    /// # Errors
    ///
    /// If the range is not one, overlaps another, or the file cannot be mapped.
    pub fn map(
        &self,
        addr: u64,
        size: u64,
        rights: Rights,
        file: Option<(File, u64)>,
    ) -> Result<(), MapError> {
        let end = addr.checked_add(size).ok_or(MapError::Range)?;
        if size == 0 {
            return Err(MapError::Range);
        }
        let mut table = self.write();
        let before = table.ranges.range(..end).next_back();
        if before.is_some_and(|(start, range)| start + range.size > addr) {
            return Err(MapError::Overlap);
        }
        let memory = match file {
            None => None,
            Some((file, offset)) => {
                let end = offset.checked_add(size).ok_or(MapError::Range)?;
                Some((table.files.map(file, end)?, offset))
            }
        };
        table.ranges.insert(
            addr,
            Range {
                size,
                rights,
                memory,
            },
        );
        Ok(())
    }

    /// Unmaps every range within `size` bytes at `addr` and waits until none of them is in use. There
    /// may be none: a virtual IOMMU unmaps its whole address space at once.
    ///
    /// # Errors
    ///
    /// If a range lies only partly within.
    pub fn unmap(&self, addr: u64, size: u64) -> Result<(), MapError> {
        let last = size.checked_sub(1).and_then(|n| addr.checked_add(n));
        let last = last.ok_or(MapError::Range)?;
        let mut table = self.write();
        let before = table.ranges.range(..=last).next_back();
        if before.is_some_and(|(start, range)| start + (range.size - 1) > last) {
            return Err(MapError::Range);
        }
        let outside = table.ranges.range(..addr).next_back();
        if outside.is_some_and(|(start, range)| start + range.size > addr) {
            return Err(MapError::Range);
        }
        let inside: Vec<u64> = table
            .ranges
            .range(addr..=last)
            .map(|(start, _)| *start)
            .collect();
        for start in inside {
            if let Some(range) = table.ranges.remove(&start) {
                table.forget(start, range.size);
            }
        }
        table.files.forget_unused();
        Ok(())
    }

    /// Unmaps everything.
    pub fn unmap_all(&self) {
        let mut table = self.write();
        for (start, range) in std::mem::take(&mut table.ranges) {
            table.forget(start, range.size);
        }
        table.files.forget_unused();
    }

    /// Opens or closes a gate. When this returns after closing one, no access is under way.
    pub fn set_gate(&self, gate: Gate, open: bool) {
        let mut table = self.write();
        match gate {
            Gate::BusMaster => table.bus_master = open,
            Gate::Reset => table.resetting = !open,
            Gate::Present => table.gone = !open,
        }
    }

    /// Returns whether a reset has begun that the engine has not done yet.
    pub fn is_resetting(&self) -> bool {
        self.read_table().resetting
    }

    /// Returns how many accesses the client had not allowed. What a gate has stopped that the device
    /// itself closes is none of them.
    pub fn breaches(&self) -> Breaches {
        self.breaches.counts()
    }

    /// Returns the number of ranges and of files.
    pub fn counts(&self) -> (usize, usize) {
        let table = self.read_table();
        (table.ranges.len(), table.files.len())
    }

    /// Copies memory at `addr` into `out`.
    ///
    /// # Errors
    ///
    /// If a byte cannot be read; `out` is then partly written.
    pub fn read(&self, addr: u64, out: &mut [u8]) -> Result<(), DmaFault> {
        let table = self.read_table();
        let mut done = 0;
        self.pieces(&table, addr, out.len(), Need::Read, |map, offset, n| {
            map.read(offset, &mut out[done..done + n]);
            done += n;
        })
    }

    /// Copies `data` to memory at `addr`.
    ///
    /// # Errors
    ///
    /// If a byte cannot be written; nothing is then written.
    pub fn write_bytes(&self, addr: u64, data: &[u8]) -> Result<(), DmaFault> {
        let table = self.read_table();
        let mut done = 0;
        self.pieces(&table, addr, data.len(), Need::Write, |map, offset, n| {
            map.write(offset, &data[done..done + n]);
            done += n;
        })
    }

    /// Reads the little-endian word at `addr`, a multiple of 4, before everything that follows.
    ///
    /// # Errors
    ///
    /// If it cannot be read or `addr` is not aligned.
    pub fn load_u32(&self, addr: u64) -> Result<u32, DmaFault> {
        let table = self.read_table();
        let (map, offset) = self.cell(&table, addr, 4, Need::Read)?;
        map.load_u32(offset)
            .ok_or_else(|| self.fault(Breach::Alignment, Need::Read, addr))
    }

    /// Writes the little-endian word at `addr`, a multiple of 4, after everything before.
    ///
    /// # Errors
    ///
    /// If it cannot be written or `addr` is not aligned.
    pub fn store_u32(&self, addr: u64, value: u32) -> Result<(), DmaFault> {
        let table = self.read_table();
        let (map, offset) = self.cell(&table, addr, 4, Need::Write)?;
        map.store_u32(offset, value)
            .ok_or_else(|| self.fault(Breach::Alignment, Need::Write, addr))
    }

    /// Replaces the little-endian value at `addr`, a multiple of 8, by what `change` makes of it, and
    /// returns what it was. Atomic for the CPUs of the host as well.
    ///
    /// # Errors
    ///
    /// If it cannot be read and written or `addr` is not aligned.
    pub fn update_u64(&self, addr: u64, change: impl Fn(u64) -> u64) -> Result<u64, DmaFault> {
        let table = self.read_table();
        let (map, offset) = self.cell(&table, addr, 8, Need::Update)?;
        map.update_u64(offset, change)
            .ok_or_else(|| self.fault(Breach::Alignment, Need::Update, addr))
    }

    fn fault(&self, breach: Breach, need: Need, addr: u64) -> DmaFault {
        self.breaches.add(breach, need, addr);
        DmaFault { addr }
    }

    /// Finds the file and offset of `addr`, and how many bytes of the range follow.
    fn find<'a>(
        &self,
        table: &'a Table,
        addr: u64,
        need: Need,
    ) -> Result<(&'a FileMap, u64, u64), DmaFault> {
        // The engine has not seen the reset, or may not know that the function is gone.
        if table.resetting || table.gone {
            return Err(DmaFault { addr });
        }
        let fault = |breach| self.fault(breach, need, addr);
        if !table.bus_master {
            return Err(fault(Breach::BusMaster));
        }
        let below = (Bound::Unbounded, Bound::Included(addr));
        let hit = table.ranges.range::<u64, _>(below).next_back();
        let hit = hit.filter(|(start, range)| addr - **start < range.size);
        let (start, range) = hit.ok_or_else(|| fault(table.missing(addr)))?;
        if !need.allowed(range.rights) {
            return Err(fault(Breach::Rights));
        }
        let memory = range.memory.as_ref();
        let (map, offset) = memory.ok_or_else(|| fault(Breach::NoMemory))?;
        if need != Need::Read && !map.is_writable() {
            return Err(fault(Breach::Rights));
        }
        let into = addr - start;
        Ok((map, offset + into, range.size - into))
    }

    fn cell<'a>(
        &self,
        table: &'a Table,
        addr: u64,
        size: u64,
        need: Need,
    ) -> Result<(&'a FileMap, u64), DmaFault> {
        let (map, offset, left) = self.find(table, addr, need)?;
        if left < size {
            return Err(self.fault(Breach::Alignment, need, addr));
        }
        Ok((map, offset))
    }

    /// Calls `each` with the file, offset and size of every piece of an access, after all of them
    /// have been checked.
    fn pieces(
        &self,
        table: &Table,
        addr: u64,
        len: usize,
        need: Need,
        mut each: impl FnMut(&FileMap, u64, usize),
    ) -> Result<(), DmaFault> {
        let len = len as u64;
        let end = addr
            .checked_add(len)
            .ok_or_else(|| self.fault(Breach::Unmapped, need, addr))?;
        let mut at = addr;
        while at < end {
            let (map, offset, left) = self.find(table, at, need)?;
            // The usual transfer lies within one range.
            if at == addr && left >= len {
                each(map, offset, len as usize);
                return Ok(());
            }
            at += left.min(end - at);
        }
        let mut at = addr;
        while at < end {
            let (map, offset, left) = self.find(table, at, need)?;
            let n = left.min(end - at);
            each(map, offset, n as usize);
            at += n;
        }
        Ok(())
    }

    // A thread that panicked while it held the lock was inside this module, which leaves the table
    // whole between statements: go on.
    fn read_table(&self) -> RwLockReadGuard<'_, Table> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Table> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn forget(&mut self, start: u64, size: u64) {
        if self.former.len() == FORMER {
            self.former.pop_front();
        }
        self.former.push_back((start, size));
    }

    /// Returns what an access to `addr` is, which no range has.
    fn missing(&self, addr: u64) -> Breach {
        let had = |(start, size): &(u64, u64)| addr.checked_sub(*start).is_some_and(|n| n < *size);
        if self.former.iter().any(had) {
            Breach::Unmapping
        } else {
            Breach::Unmapped
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Need {
    Read,
    Write,
    Update,
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Update => "atomic",
        })
    }
}

impl Need {
    fn allowed(self, rights: Rights) -> bool {
        match self {
            Self::Read => rights.read,
            Self::Write => rights.write,
            Self::Update => rights.read && rights.write,
        }
    }
}

#[cfg(test)]
mod tests;
