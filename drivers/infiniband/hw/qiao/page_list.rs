// SPDX-License-Identifier: GPL-2.0

//! Page lists: how the device finds the memory of a buffer.

use kernel::{
    device::{
        self,
        Bound, //
    },
    dma::{
        Coherent,
        CoherentBox,
        DmaAddress, //
    },
    prelude::*, //
};
use qiao_hw::{
    pages::{
        levels_for,
        limit,
        PageList, //
    },
    queue::BUFFER_ALIGN,
};
use rdma::{
    dma::RingMemory,
    Umem, //
};

use crate::hca::Hca;

const ENTRIES: usize = limit::TABLE_ENTRIES as usize;

/// One table: addresses, little-endian.
type Table = [u64; ENTRIES];

/// A page list with its tables.
///
/// The device reads the tables while it runs the command that the list is for: this must live
/// until the command has completed.
pub(crate) struct PageTables {
    list: PageList,
    _tables: KVVec<Coherent<Table>>,
}

impl PageTables {
    /// Makes the list of a buffer that was cut into `blocks`.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the buffer has more blocks than a list can name, `ENOMEM`.
    pub(crate) fn new(dev: &device::Device<Bound>, blocks: &rdma::Blocks<'_>) -> Result<Self> {
        let mut this = Self::of_pages(dev, blocks.count(), blocks.shift(), blocks.iter())?;
        this.list.offset.set(blocks.offset());
        Ok(this)
    }

    /// Makes the list of a queue's buffer in the memory of its user.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it is not aligned; as for [`new`](Self::new).
    pub(crate) fn of_buffer(hca: &Hca<'_>, umem: &mut Umem) -> Result<Self> {
        let addr = umem.addr();
        if addr % BUFFER_ALIGN != 0 {
            return Err(EINVAL);
        }
        let blocks = umem.blocks(hca.caps().page_sizes.get(), addr)?;
        Self::new(hca.pdev().as_ref(), &blocks)
    }

    /// Makes the list of the memory of rings, which is contiguous, by pages of the size that every
    /// part knows.
    ///
    /// # Errors
    ///
    /// As for [`new`](Self::new).
    pub(crate) fn of_memory(dev: &device::Device<Bound>, memory: &RingMemory) -> Result<Self> {
        let page = 1 << limit::MIN_PAGE_SHIFT;
        let pages = (memory.dma_address()..).step_by(page);
        Self::of_pages(
            dev,
            memory.size().div_ceil(page),
            limit::MIN_PAGE_SHIFT,
            pages,
        )
    }

    /// Makes the list of the first `count` of `pages`, which have `2^shift` bytes each.
    fn of_pages(
        dev: &device::Device<Bound>,
        count: usize,
        shift: u32,
        mut pages: impl Iterator<Item = DmaAddress>,
    ) -> Result<Self> {
        let levels = levels_for(count as u64).ok_or(EINVAL)?;
        let mut tables = KVVec::new();
        let addr = if levels == 0 {
            pages.next().ok_or(EINVAL)?
        } else {
            write_tables(dev, &mut tables, pages.take(count))?
        };

        let mut list = PageList::zeroed();
        list.addr.set(addr);
        list.count.set(u32::try_from(count)?);
        list.page_shift = u8::try_from(shift)?;
        list.levels = levels;
        Ok(Self {
            list,
            _tables: tables,
        })
    }

    /// Returns the list, for the command.
    pub(crate) fn list(&self) -> PageList {
        self.list
    }
}

/// Appends tables of `pages`, then tables of these tables, until a level has only one, whose
/// address this returns.
fn write_tables(
    dev: &device::Device<Bound>,
    tables: &mut KVVec<Coherent<Table>>,
    pages: impl Iterator<Item = DmaAddress>,
) -> Result<DmaAddress> {
    let mut level = 0;
    append_level(dev, tables, pages)?;
    loop {
        let below = tables.get(level..).ok_or(EINVAL)?;
        if let [top] = below {
            return Ok(top.dma_address());
        }
        let mut addresses = KVVec::with_capacity(below.len(), GFP_KERNEL)?;
        for table in below {
            addresses.push(table.dma_address(), GFP_KERNEL)?;
        }
        level = tables.len();
        append_level(dev, tables, addresses.into_iter())?;
    }
}

/// Appends one level of tables; all but the last are full, as the interface demands.
fn append_level(
    dev: &device::Device<Bound>,
    tables: &mut KVVec<Coherent<Table>>,
    mut addresses: impl Iterator<Item = DmaAddress>,
) -> Result {
    let mut next = addresses.next();
    while next.is_some() {
        let mut table = CoherentBox::<Table>::zeroed(dev, GFP_KERNEL)?;
        for entry in table.iter_mut() {
            let Some(addr) = next else {
                break;
            };
            *entry = addr.to_le();
            next = addresses.next();
        }
        tables.push(table.into(), GFP_KERNEL)?;
    }
    Ok(())
}
