// SPDX-License-Identifier: GPL-2.0

//! Contexts of user space, and what they map.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use super::{
    device::Shims,
    gate::Gate,
    Cx,
    Driver,
    Obj,
    Udata, //
};
use crate::bindings;
use core::ptr::NonNull;
use kernel::{
    device::Bound,
    error::{
        from_result,
        to_result, //
    },
    page::{
        PAGE_SHIFT,
        PAGE_SIZE, //
    },
    pci,
    prelude::*,
    sync::Arc,
    types::Opaque, //
};

/// A context of user space: one opened device file.
pub type Ucontext<T> = Obj<bindings::ib_ucontext, <T as Driver>::Ucontext>;

/// The driver's part of a [`Ucontext`].
pub trait UcontextOps: Sized + Send + Sync + 'static {
    /// The driver.
    type Driver: Driver<Ucontext = Self>;

    /// Creates a context. It is dropped when all its objects are gone, and all its
    /// [`MmapHandle`]s with it.
    fn alloc(
        cx: &Cx<'_, Self::Driver>,
        handle: &UcontextHandle,
        udata: &mut Udata,
    ) -> impl PinInit<Self, Error>;
}

/// Leads to a context for as long as it exists.
#[derive(Clone)]
pub struct UcontextHandle(Arc<Gate<bindings::ib_ucontext>>);

impl UcontextHandle {
    /// Lets user space map `pages`, until the handle that is returned is dropped.
    ///
    /// A mapping stays until the process undoes it, or until the device goes away: then the core
    /// replaces it by empty memory.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if there is no memory or no offset left, `ENODEV` if the context is gone.
    pub fn mmap_insert(&self, pages: IoPages, cache: IoCache) -> Result<MmapHandle> {
        let entry = KBox::pin_init(
            pin_init!(MmapEntry {
                raw: Opaque::zeroed(),
                pages,
                cache,
            }),
            GFP_KERNEL,
        )?;
        // SAFETY: The entry stays pinned until `mmap_free`.
        let entry = KBox::into_raw(unsafe { Pin::into_inner_unchecked(entry) });
        let inserted = self.0.with(|ctx| {
            // SAFETY: `with` keeps the context valid; it is open, or the core is about to open it,
            // which needs no less. `raw` is zeroed and belongs to us.
            to_result(unsafe {
                bindings::rdma_user_mmap_entry_insert(ctx.as_ptr(), entry.cast(), pages.len)
            })
        });
        if let Err(e) = inserted.unwrap_or(Err(ENODEV)) {
            // SAFETY: The core did not take the entry, which came from `into_raw` above.
            drop(unsafe { KBox::from_raw(entry) });
            return Err(e);
        }
        // INVARIANT: Just inserted. `KBox` is never null.
        Ok(MmapHandle {
            // SAFETY: As before.
            entry: unsafe { NonNull::new_unchecked(entry) },
            ctx: self.clone(),
        })
    }
}

/// Whole pages of a device's memory.
///
/// # Invariants
///
/// `phys` and `len` are multiples of the page size, and are in a memory BAR of a device that was
/// bound when this was made.
#[derive(Clone, Copy, Debug)]
pub struct IoPages {
    phys: u64,
    len: usize,
}

impl IoPages {
    /// Takes `count` pages of a BAR from the page number `first` on.
    ///
    /// User space gets what these pages do: the driver answers for the device.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the BAR does not have these pages, does not start on a page of the CPU, or if
    /// `count` is zero.
    pub fn from_bar(pdev: &pci::Device<Bound>, bar: u32, first: u32, count: u32) -> Result<Self> {
        let start = pdev.resource_start(bar)?;
        let first = u64::from(first) << PAGE_SHIFT;
        let len = u64::from(count) << PAGE_SHIFT;
        let end = first.checked_add(len).ok_or(EINVAL)?;
        let phys = start.checked_add(first).ok_or(EINVAL)?;
        if len == 0 || end > pdev.resource_len(bar)? || start % PAGE_SIZE as u64 != 0 {
            return Err(EINVAL);
        }
        // INVARIANT: Just checked.
        Ok(Self {
            phys,
            len: usize::try_from(len)?,
        })
    }
}

/// How the CPU treats a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoCache {
    /// Each write goes out as it is.
    Uncached,
    /// Writes may be gathered.
    WriteCombined,
}

/// Something that user space may map; the core holds it by `raw`.
#[repr(C)]
#[pin_data]
struct MmapEntry {
    #[pin]
    raw: Opaque<bindings::rdma_user_mmap_entry>,
    pages: IoPages,
    cache: IoCache,
}

/// Keeps pages mappable. Dropping it forbids new mappings; the pages must not get a new use while
/// old mappings may exist, that is before the context is gone.
///
/// # Invariants
///
/// `entry` was inserted in `ctx`, and not removed.
pub struct MmapHandle {
    entry: NonNull<MmapEntry>,
    ctx: UcontextHandle,
}

// SAFETY: The entry may be used and removed from any thread.
unsafe impl Send for MmapHandle {}

// SAFETY: `&MmapHandle` only reads.
unsafe impl Sync for MmapHandle {}

impl MmapHandle {
    /// Returns the offset that user space passes to `mmap`.
    pub fn offset(&self) -> u64 {
        // SAFETY: By the type invariants; the entry is valid until it is removed.
        unsafe { bindings::rdma_user_mmap_get_offset(self.entry.as_ptr().cast()) }
    }
}

impl Drop for MmapHandle {
    fn drop(&mut self) {
        // If the context is gone, then the driver has kept this for too long, the core has
        // complained, and the entry can only be leaked.
        self.ctx.0.with(|_| {
            // SAFETY: By the type invariants, and only this removes the entry. The core calls
            // `mmap_free` when the last mapping is gone.
            unsafe { bindings::rdma_user_mmap_entry_remove(self.entry.as_ptr().cast()) };
        });
    }
}

impl<T: Driver> Shims<T> {
    /// # Safety
    ///
    /// As the device operation `alloc_ucontext`.
    pub(super) unsafe extern "C" fn alloc_ucontext(
        raw: *mut bindings::ib_ucontext,
        udata: *mut bindings::ib_udata,
    ) -> c_int {
        from_result(|| {
            let ctx = NonNull::new(raw).ok_or(EINVAL)?;
            // SAFETY: Contexts belong to system calls, of which this is the running one.
            let udata = unsafe { Udata::from_raw(udata) }.ok_or(EINVAL)?;
            // SAFETY: The core keeps the context until `dealloc_ucontext` has returned, or until
            // this has failed; both revoke the handle.
            let handle = UcontextHandle(unsafe { Gate::new(ctx) }?);
            // SAFETY: The core sets the device before it calls this.
            let device = unsafe { (*raw).device };
            let create = |cx: &Cx<'_, T>| {
                let init = T::Ucontext::alloc(cx, &handle, udata);
                // SAFETY: The core allocated `size_ib_ucontext` bytes for this call.
                unsafe { Ucontext::<T>::init(raw, handle.clone(), init) }
            };
            // SAFETY: A device operation is running.
            let ret = unsafe { Self::with_cx(device, create) };
            if ret.is_err() {
                // SAFETY: Opened above, and not revoked before.
                unsafe { handle.0.revoke() };
            }
            ret.map(|()| 0)
        })
    }

    /// # Safety
    ///
    /// As the device operation `dealloc_ucontext`.
    pub(super) unsafe extern "C" fn dealloc_ucontext(raw: *mut bindings::ib_ucontext) {
        // SAFETY: The core destroys what `alloc_ucontext` made, once.
        let ctx = unsafe { Ucontext::<T>::from_raw(raw) };
        let handle = ctx.handle().clone();
        // SAFETY: This is the last operation on the context.
        unsafe { Ucontext::<T>::drop_in_place(raw) };
        // Last, since dropping the driver's part removes its mappings.
        //
        // SAFETY: Opened by `alloc_ucontext`, and not revoked before.
        unsafe { handle.0.revoke() };
    }

    /// There is nothing to do: all mappings are made by `rdma_user_mmap_io`, and the core replaces
    /// those. That this operation exists says so.
    ///
    /// # Safety
    ///
    /// As the device operation `disassociate_ucontext`.
    pub(super) unsafe extern "C" fn disassociate_ucontext(_ctx: *mut bindings::ib_ucontext) {}

    /// # Safety
    ///
    /// As the device operation `mmap`.
    pub(super) unsafe extern "C" fn mmap(
        ctx: *mut bindings::ib_ucontext,
        vma: *mut bindings::vm_area_struct,
    ) -> c_int {
        // SAFETY: The core passes a valid context, and a valid area that is being set up.
        let entry = unsafe { bindings::rdma_user_mmap_entry_get(ctx, vma) };
        if entry.is_null() {
            return EINVAL.to_errno();
        }
        // SAFETY: All entries of this driver are in an `MmapEntry` at offset 0, which the reference
        // that was taken keeps.
        let MmapEntry { pages, cache, .. } = unsafe { &*entry.cast::<MmapEntry>() };
        // SAFETY: The area is valid and is being set up by this thread.
        let prot = unsafe { (*vma).vm_page_prot };
        // SAFETY: These take and return a value.
        let prot = unsafe {
            match cache {
                IoCache::Uncached => bindings::pgprot_noncached(prot),
                IoCache::WriteCombined => bindings::pgprot_writecombine(prot),
            }
        };
        let pfn = (pages.phys >> PAGE_SHIFT) as usize;
        // SAFETY: The context and the area are valid, by the invariants of `IoPages` these are
        // pages of the device, and the entry is the one of the area.
        let ret = unsafe { bindings::rdma_user_mmap_io(ctx, vma, pfn, pages.len, prot, entry) };
        // SAFETY: Gives back the reference taken above; the mapping has its own.
        unsafe { bindings::rdma_user_mmap_entry_put(entry) };
        ret
    }

    /// # Safety
    ///
    /// As the device operation `mmap_free`.
    pub(super) unsafe extern "C" fn mmap_free(entry: *mut bindings::rdma_user_mmap_entry) {
        // SAFETY: All entries of this driver come from `KBox::into_raw`, and the core gives each
        // back once, when nothing refers to it.
        drop(unsafe { KBox::from_raw(entry.cast::<MmapEntry>()) });
    }
}
