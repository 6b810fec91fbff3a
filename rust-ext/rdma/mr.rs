// SPDX-License-Identifier: GPL-2.0

//! Memory regions.

use super::{
    device::Shims,
    Access,
    Cx,
    Driver,
    Obj,
    Pd,
    Udata, //
};
use crate::bindings;
use kernel::{
    error::from_result,
    prelude::*, //
};

/// A memory region. The driver allocates it: the core wants no more than its own part.
pub type Mr<T> = Obj<bindings::ib_mr, <T as Driver>::Mr>;

/// The driver's part of an [`Mr`].
pub trait MrOps: Sized + Send + Sync + 'static {
    /// The driver.
    type Driver: Driver<Mr = Self>;

    /// Registers memory of the calling process. Nothing can fail after this.
    fn reg_user(
        cx: &Cx<'_, Self::Driver>,
        pd: &Pd<Self::Driver>,
        attr: &UserMrAttr,
        udata: &mut Udata,
    ) -> impl PinInit<Self, Error>;

    /// Makes all memory that is mapped for DMA accessible to the queue pairs of a domain of the
    /// kernel: work requests and peers use its DMA addresses. Nothing can fail after this.
    fn get_dma(
        cx: &Cx<'_, Self::Driver>,
        pd: &Pd<Self::Driver>,
        access: Access,
    ) -> impl PinInit<Self, Error>;

    /// Returns the keys of the region.
    fn keys(&self) -> MrKeys;

    /// Takes the region from the device; then it is dropped.
    ///
    /// After this neither work requests nor peers can reach the memory, or it is
    /// [abandoned](super::Lent::abandon).
    fn dereg(mr: &Mr<Self::Driver>, cx: &Cx<'_, Self::Driver>);
}

/// What a process asks to be registered. All of it is user input.
#[derive(Clone, Copy, Debug)]
pub struct UserMrAttr {
    /// Address in the process.
    pub start: u64,
    /// Length in bytes.
    pub length: u64,
    /// Address that work requests and peers use for the first byte.
    pub iova: u64,
    /// Rights. The core has checked that rights for peers to write come with the local one.
    pub access: Access,
}

/// Keys of a memory region.
#[derive(Clone, Copy, Debug)]
pub struct MrKeys {
    /// For work requests of the owner.
    pub lkey: u32,
    /// For peers.
    pub rkey: u32,
}

impl<T: Driver> Shims<T> {
    /// # Safety
    ///
    /// As the device operation `reg_user_mr`.
    pub(super) unsafe extern "C" fn reg_user_mr(
        pd: *mut bindings::ib_pd,
        start: u64,
        length: u64,
        iova: u64,
        access: c_int,
        dmah: *mut bindings::ib_dmah,
        udata: *mut bindings::ib_udata,
    ) -> *mut bindings::ib_mr {
        let attr = UserMrAttr {
            start,
            length,
            iova,
            access: Access::from_raw(access),
        };
        let register = || -> Result<*mut bindings::ib_mr> {
            // The kernel registers user memory too, for a process that it acts for.
            //
            // SAFETY: The core passes null, or the udata of the running system call.
            let udata = unsafe { Udata::from_raw(udata) }.ok_or(EOPNOTSUPP)?;
            if !dmah.is_null() {
                return Err(EOPNOTSUPP);
            }
            // SAFETY: The core passes a valid domain, whose device does not change.
            let device = unsafe { (*pd).device };
            // SAFETY: The core passes what `alloc_pd` made, and keeps it during the call.
            let pd = unsafe { Pd::<T>::from_raw(pd) };
            // SAFETY: A device operation is running.
            unsafe {
                Self::with_cx(device, |cx| {
                    Self::hand_over_mr(|| T::Mr::reg_user(cx, pd, &attr, udata))
                })
            }
        };
        register().unwrap_or_else(|e| e.to_ptr())
    }

    /// # Safety
    ///
    /// As the device operation `get_dma_mr`.
    pub(super) unsafe extern "C" fn get_dma_mr(
        pd: *mut bindings::ib_pd,
        access: c_int,
    ) -> *mut bindings::ib_mr {
        // SAFETY: The core passes a valid domain, whose device does not change.
        let device = unsafe { (*pd).device };
        // SAFETY: The core passes what `alloc_pd` made, and keeps it during the call.
        let pd = unsafe { Pd::<T>::from_raw(pd) };
        let access = Access::from_raw(access);
        // SAFETY: A device operation is running.
        unsafe {
            Self::with_cx(device, |cx| {
                Self::hand_over_mr(|| T::Mr::get_dma(cx, pd, access))
            })
        }
        .unwrap_or_else(|e| e.to_ptr())
    }

    /// Creates a region for the core, which gives it back by `dereg_mr`.
    ///
    /// `create` is called when all else that can fail is done: only `dereg` takes a region from the
    /// device, and a region that is merely dropped stays there while its memory gets other uses.
    fn hand_over_mr<I: PinInit<T::Mr, Error>>(
        create: impl FnOnce() -> I,
    ) -> Result<*mut bindings::ib_mr> {
        let data = pin_init::pin_init_scope(|| Ok(create()));
        let mr = KBox::pin_init(Mr::<T>::new((), data), GFP_KERNEL)?;
        let keys = mr.keys();
        let raw = mr.as_raw();
        // SAFETY: The core does not know the region yet.
        unsafe {
            (*raw).lkey = keys.lkey;
            (*raw).rkey = keys.rkey;
        }
        // SAFETY: The region stays pinned until `dereg_mr`.
        let _ = KBox::into_raw(unsafe { Pin::into_inner_unchecked(mr) });
        Ok(raw)
    }

    /// # Safety
    ///
    /// As the device operation `dereg_mr`.
    pub(super) unsafe extern "C" fn dereg_mr(
        raw: *mut bindings::ib_mr,
        _udata: *mut bindings::ib_udata,
    ) -> c_int {
        from_result(|| {
            // SAFETY: The core sets the device when it gets the region.
            let device = unsafe { (*raw).device };
            // SAFETY: The core destroys what `hand_over_mr` made, until this returns 0.
            let mr = unsafe { Mr::<T>::from_raw(raw) };
            // SAFETY: A device operation is running.
            unsafe { Self::with_cx(device, |cx| T::Mr::dereg(mr, cx)) };
            // SAFETY: From `KBox::into_raw` in `hand_over_mr`; the core does not use the region
            // after this operation.
            drop(unsafe { Pin::new_unchecked(KBox::from_raw(raw.cast::<Mr<T>>())) });
            Ok(0)
        })
    }
}
