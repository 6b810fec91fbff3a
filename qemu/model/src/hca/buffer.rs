// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Buffers in host memory: the walk of a page list, and access by offset.

use crate::mem::{Dma, DmaFault};
use qiao_hw::pages::{limit, PageList};
use zerocopy::FromBytes;

/// Why a page list was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalkError {
    /// A field is out of range, or the list holds fewer bytes than needed.
    Operand,
    /// More pages than the device can keep.
    Resources,
    /// A table could not be read.
    Dma(DmaFault),
}

impl From<DmaFault> for WalkError {
    fn from(fault: DmaFault) -> Self {
        Self::Dma(fault)
    }
}

/// A buffer in host memory.
#[derive(Debug)]
pub struct Buffer {
    pages: Vec<u64>,
    shift: u8,
    /// Offset of the first byte in the first page.
    offset: u64,
    length: u64,
}

impl Buffer {
    /// Reads `list`, which must hold `length` bytes in pages whose size is set in `page_sizes`;
    /// `max_pages` is what the device has left.
    ///
    /// # Errors
    ///
    /// If the list is malformed or its tables cannot be read.
    pub fn walk(
        dma: &Dma,
        list: &PageList,
        length: u64,
        page_sizes: u64,
        max_pages: usize,
    ) -> Result<Self, WalkError> {
        let shift = list.page_shift;
        let shift_known = (limit::MIN_PAGE_SHIFT..=limit::MAX_PAGE_SHIFT).contains(&shift.into());
        if !shift_known || page_sizes & (1 << shift) == 0 || list.rsvd.get() != 0 {
            return Err(WalkError::Operand);
        }
        let (count, offset) = (u64::from(list.count.get()), list.offset.get());
        let levels = u32::from(list.levels);
        if levels > limit::MAX_LEVELS || offset >= 1 << shift || length == 0 {
            return Err(WalkError::Operand);
        }
        let capacity = u64::from(limit::TABLE_ENTRIES).pow(levels);
        let end = offset.checked_add(length).ok_or(WalkError::Operand)?;
        if count == 0 || count > capacity || end > count << shift {
            return Err(WalkError::Operand);
        }
        // Pages behind the last byte are not needed, so that a list costs what it holds.
        let needed = end.div_ceil(1 << shift) as usize;
        if needed > max_pages {
            return Err(WalkError::Resources);
        }
        let mut pages = Vec::with_capacity(needed);
        collect(dma, list.addr.get(), levels, needed, &mut pages)?;
        if pages.iter().any(|page| page & ((1 << shift) - 1) != 0) {
            return Err(WalkError::Operand);
        }
        Ok(Self {
            pages,
            shift,
            offset,
            length,
        })
    }

    /// Returns the number of pages that the device keeps.
    pub fn pages(&self) -> usize {
        self.pages.len()
    }

    /// Returns whether the first byte lies at a multiple of `alignment`, a power of two up to 4096.
    pub fn is_aligned(&self, alignment: u64) -> bool {
        self.offset & (alignment - 1) == 0
    }

    /// Returns the DMA address of the byte at `at` and how many bytes follow it in the same page;
    /// [`None`] beyond the end.
    fn locate(&self, at: u64) -> Option<(u64, u64)> {
        let within = at.checked_add(self.offset)?;
        let page = *self
            .pages
            .get(usize::try_from(within >> self.shift).ok()?)?;
        let into = within & ((1 << self.shift) - 1);
        let left = (1 << self.shift) - into;
        Some((
            page.checked_add(into)?,
            left.min(self.length.checked_sub(at)?),
        ))
    }

    /// Calls `access` with the DMA address and the range in the transfer of every piece.
    fn pieces(
        &self,
        at: u64,
        len: usize,
        mut access: impl FnMut(u64, std::ops::Range<usize>) -> Result<(), DmaFault>,
    ) -> Result<(), DmaFault> {
        let mut done = 0;
        while done < len {
            let place = self.locate(at + done as u64).filter(|(_, left)| *left > 0);
            let (addr, left) = place.ok_or(DmaFault { addr: at })?;
            // CAST: At most the rest of the transfer.
            let n = left.min((len - done) as u64) as usize;
            access(addr, done..done + n)?;
            done += n;
        }
        Ok(())
    }

    /// Copies from byte `at` of the buffer on into `out`.
    ///
    /// # Errors
    ///
    /// If it cannot be read.
    pub fn read(&self, dma: &Dma, at: u64, out: &mut [u8]) -> Result<(), DmaFault> {
        self.pieces(at, out.len(), |addr, range| dma.read(addr, &mut out[range]))
    }

    /// Copies `data` to byte `at` of the buffer on.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub fn write(&self, dma: &Dma, at: u64, data: &[u8]) -> Result<(), DmaFault> {
        self.pieces(at, data.len(), |addr, range| {
            dma.write_bytes(addr, &data[range])
        })
    }

    /// Reads the word at byte `at`, a multiple of 4 from an aligned start.
    ///
    /// # Errors
    ///
    /// If it cannot be read.
    pub fn load_u32(&self, dma: &Dma, at: u64) -> Result<u32, DmaFault> {
        let (addr, _) = self.locate(at).ok_or(DmaFault { addr: at })?;
        dma.load_u32(addr)
    }

    /// Writes the word at byte `at`, a multiple of 4 from an aligned start, after everything before.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    pub fn store_u32(&self, dma: &Dma, at: u64, value: u32) -> Result<(), DmaFault> {
        let (addr, _) = self.locate(at).ok_or(DmaFault { addr: at })?;
        dma.store_u32(addr, value)
    }

    /// Does an atomic operation on the 8 bytes at `at`.
    ///
    /// # Errors
    ///
    /// If they cannot be accessed.
    pub fn update_u64(
        &self,
        dma: &Dma,
        at: u64,
        change: impl Fn(u64) -> u64,
    ) -> Result<u64, DmaFault> {
        let place = self.locate(at).filter(|(_, left)| *left >= 8);
        let (addr, _) = place.ok_or(DmaFault { addr: at })?;
        dma.update_u64(addr, change)
    }
}

/// Appends pages of the table at `addr` to `pages` until there are `needed`.
fn collect(
    dma: &Dma,
    addr: u64,
    levels: u32,
    needed: usize,
    pages: &mut Vec<u64>,
) -> Result<(), WalkError> {
    if levels == 0 {
        pages.push(addr);
        return Ok(());
    }
    if addr % u64::from(limit::TABLE_SIZE) != 0 {
        return Err(WalkError::Operand);
    }
    let below = (limit::TABLE_ENTRIES as usize).pow(levels - 1);
    let entries = (needed - pages.len())
        .div_ceil(below)
        .min(limit::TABLE_ENTRIES as usize);
    let mut table = [0; limit::TABLE_SIZE as usize];
    let table = &mut table[..8 * entries];
    dma.read(addr, table)?;
    for entry in table.chunks_exact(8) {
        let entry = u64::read_from_bytes(entry).map_err(|_| WalkError::Operand)?;
        collect(dma, u64::from_le(entry), levels - 1, needed, pages)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
