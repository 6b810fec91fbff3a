// SPDX-License-Identifier: GPL-2.0

//! Pinned memory of user space.
//!
//! C headers: [`include/rdma/ib_umem.h`](srctree/include/rdma/ib_umem.h),
//! [`include/rdma/iter.h`](srctree/include/rdma/iter.h)

use super::{
    gate::Gate,
    Access,
    Device,
    Driver,
    Udata, //
};
use crate::bindings;
use core::{
    marker::PhantomData,
    ptr::NonNull, //
};
use kernel::{
    dma::DmaAddress,
    error::from_err_ptr,
    prelude::*,
    sync::Arc, //
};

/// Memory of user space, pinned and mapped for the device.
///
/// The driver owns it, and keeps it until the device has confirmed that it does not use it any
/// more.
///
/// # Invariants
///
/// `raw` is a valid `struct ib_umem` that this owns.
pub struct Umem {
    raw: NonNull<bindings::ib_umem>,
    /// Open for as long as the device may be used for DMA.
    device: Arc<Gate<bindings::ib_device>>,
}

// SAFETY: A umem may be used and released from any thread.
unsafe impl Send for Umem {}

// SAFETY: `&Umem` only reads.
unsafe impl Sync for Umem {}

impl Umem {
    /// Pins `len` bytes at `addr` of the calling process.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the range is empty or wraps around, `EFAULT` if it is not mapped as `access`
    /// needs, `ENOMEM` if the limit for pinned memory is reached, `EPERM` if the process may not
    /// pin memory.
    pub fn pin<T: Driver>(
        device: &Device<T>,
        addr: u64,
        len: usize,
        access: Access,
    ) -> Result<Self> {
        // SAFETY: The device is valid and registered, else there is no `Device` reference during a
        // system call. No attributes, hence no attribute id.
        let raw = unsafe {
            bindings::ib_umem_get_attr_or_va(
                device.as_raw(),
                core::ptr::null(),
                0,
                addr,
                len,
                access.as_raw(),
            )
        };
        Self::from_err_ptr(device, raw)
    }

    /// Pins the buffer of a completion queue: `size` bytes at `addr`, or what the system call gives
    /// by attribute (user memory or a DMA buffer), of which `size` bytes are needed.
    ///
    /// `size` must be what the device will use, computed by the driver.
    ///
    /// # Errors
    ///
    /// As for [`pin`](Self::pin), and `EINVAL` if the buffer given by attribute is too small.
    pub fn pin_cq_buffer<T: Driver>(
        device: &Device<T>,
        udata: &mut Udata,
        addr: u64,
        size: usize,
    ) -> Result<Self> {
        // SAFETY: The device is valid, as in `pin`; the bundle is valid by the invariants of
        // `Udata`, and is that of the creation of a completion queue, or has no such attributes.
        let raw = unsafe {
            bindings::ib_umem_get_cq_buf_or_va(
                device.as_raw(),
                udata.bundle(),
                addr,
                size,
                Access::LOCAL_WRITE.as_raw(),
            )
        };
        Self::from_err_ptr(device, raw)
    }

    /// Pins the buffer of a queue pair; as [`pin_cq_buffer`](Self::pin_cq_buffer).
    ///
    /// # Errors
    ///
    /// As for [`pin_cq_buffer`](Self::pin_cq_buffer).
    pub fn pin_qp_buffer<T: Driver>(
        device: &Device<T>,
        udata: &mut Udata,
        addr: u64,
        size: usize,
    ) -> Result<Self> {
        const ATTR: u32 =
            bindings::uverbs_attrs_create_qp_cmd_attr_ids_UVERBS_ATTR_CREATE_QP_BUF_UMEM;

        // SAFETY: The attribute is one of the creation of a queue pair.
        unsafe { Self::pin_buffer(device, udata, ATTR, addr, size) }
    }

    /// Pins the buffer of a shared receive queue; as [`pin_cq_buffer`](Self::pin_cq_buffer).
    ///
    /// # Errors
    ///
    /// As for [`pin_cq_buffer`](Self::pin_cq_buffer).
    pub fn pin_srq_buffer<T: Driver>(
        device: &Device<T>,
        udata: &mut Udata,
        addr: u64,
        size: usize,
    ) -> Result<Self> {
        const ATTR: u32 =
            bindings::uverbs_attrs_create_srq_cmd_attr_ids_UVERBS_ATTR_CREATE_SRQ_BUF_UMEM;

        // SAFETY: The attribute is one of the creation of a shared receive queue.
        unsafe { Self::pin_buffer(device, udata, ATTR, addr, size) }
    }

    /// # Safety
    ///
    /// `attr` must be an attribute for a buffer of the system call that `udata` may belong to.
    unsafe fn pin_buffer<T: Driver>(
        device: &Device<T>,
        udata: &mut Udata,
        attr: u32,
        addr: u64,
        size: usize,
    ) -> Result<Self> {
        // CAST: Numbers of attributes have 16 bits.
        //
        // SAFETY: The device is valid, as in `pin`; the bundle is valid by the invariants of
        // `Udata`, and the attribute is as the core wants it, or the bundle has none.
        let raw = unsafe {
            bindings::ib_umem_get_attr_or_va(
                device.as_raw(),
                udata.bundle(),
                attr as u16,
                addr,
                size,
                Access::LOCAL_WRITE.as_raw(),
            )
        };
        Self::from_err_ptr(device, raw)
    }

    fn from_err_ptr<T: Driver>(device: &Device<T>, raw: *mut bindings::ib_umem) -> Result<Self> {
        let raw = NonNull::new(from_err_ptr(raw)?).ok_or(EINVAL)?;
        // INVARIANT: The core gave a valid umem to us.
        Ok(Self {
            raw,
            device: device.lifeline().clone(),
        })
    }

    /// Returns the address of the first byte, modulo the page size of the CPU at least.
    pub fn addr(&self) -> u64 {
        // SAFETY: By the type invariants.
        unsafe { (*self.raw.as_ptr()).address as u64 }
    }

    /// Cuts the memory into blocks of the largest size, of those that `sizes` has as bits, which
    /// lets the device find a byte from its address in `[iova, iova + len)` by shift and mask.
    ///
    /// # Errors
    ///
    /// `EINVAL` if no size fits, or if `iova + len` overflows.
    pub fn blocks(&mut self, sizes: u64, iova: u64) -> Result<Blocks<'_>> {
        let sizes = usize::try_from(sizes)?;
        // SAFETY: By the type invariants; `&mut self` since this writes to the umem.
        match unsafe { bindings::ib_umem_find_best_pgsz(self.raw.as_ptr(), sizes, iova) } {
            0 => Err(EINVAL),
            // INVARIANT: The size was found for this umem, whose `iova` it also set.
            size => Ok(Blocks { umem: self, size }),
        }
    }
}

impl Drop for Umem {
    fn drop(&mut self) {
        // A driver that kept this over the unregistration of its device has leaked it, since there
        // is no device left to unmap the memory from.
        self.device.with(|_| {
            // SAFETY: By the type invariants, and this was the last use. The device that the umem
            // is mapped for is bound while the gate is open.
            unsafe { bindings::ib_umem_release(self.raw.as_ptr()) }
        });
    }
}

/// The memory of a [`Umem`] as blocks of one size.
///
/// # Invariants
///
/// `size` is what `ib_umem_find_best_pgsz` returned last for the umem: a power of two.
pub struct Blocks<'a> {
    umem: &'a Umem,
    size: usize,
}

impl Blocks<'_> {
    /// Returns the logarithm of the block size.
    pub fn shift(&self) -> u32 {
        self.size.trailing_zeros()
    }

    /// Returns the number of blocks, at least 1.
    pub fn count(&self) -> usize {
        // SAFETY: The umem is valid, and by the type invariants the size fits.
        unsafe { bindings::ib_umem_num_dma_blocks(self.umem.raw.as_ptr(), self.size) }
    }

    /// Returns the offset of the first byte in the first block.
    pub fn offset(&self) -> u64 {
        // SAFETY: As in `count`.
        unsafe { bindings::ib_umem_dma_offset(self.umem.raw.as_ptr(), self.size) as u64 }
    }

    /// Returns the DMA addresses of the blocks, [`count`](Self::count) of them, each a multiple of
    /// the block size.
    pub fn iter(&self) -> BlockIter<'_> {
        let mut iter = bindings::ib_block_iter::default();
        // SAFETY: `iter` is valid for writes; the umem is valid for the lifetime of the result, and
        // by the type invariants the size fits.
        unsafe {
            bindings::rdma_umem_block_iter_start(&mut iter, self.umem.raw.as_ptr(), self.size)
        };
        // INVARIANT: Just started.
        BlockIter(iter, PhantomData)
    }
}

/// Iterator over the DMA addresses of [`Blocks`].
///
/// # Invariants
///
/// Was started for a umem that lives longer.
pub struct BlockIter<'a>(bindings::ib_block_iter, PhantomData<&'a Umem>);

impl Iterator for BlockIter<'_> {
    type Item = DmaAddress;

    fn next(&mut self) -> Option<DmaAddress> {
        // SAFETY: By the type invariants.
        let more = unsafe { bindings::rdma_umem_block_iter_next(&mut self.0) };
        // SAFETY: As before, and there is a current block.
        more.then(|| unsafe { bindings::rdma_block_iter_dma_address(&mut self.0) })
    }
}
