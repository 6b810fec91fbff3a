// SPDX-License-Identifier: GPL-2.0

//! Work items that belong to what they work on.
//!
//! C header: [`include/linux/workqueue.h`](srctree/include/linux/workqueue.h)

use crate::{
    bindings,
    raw, //
};
use kernel::{
    prelude::*,
    sync::LockClassKey,
    types::Opaque,
    workqueue::Queue, //
};

/// What a work item does.
pub trait Job: Send + Sync + 'static {
    /// Does it. For one work item there is one call at a time.
    fn run(&self);
}

/// A work item that can be queued again and again, and is cancelled when it is dropped.
///
/// [`kernel::workqueue::Work`] takes a reference with each [`enqueue`](Queue::enqueue), which keeps
/// what it works on alive for as long as the queue takes, and it can not be cancelled.
///
/// # Invariants
///
/// `work` is initialised, with [`run_job::<T>`] as its function.
#[repr(C)]
#[pin_data(PinnedDrop)]
pub struct Work<T: Job> {
    #[pin]
    work: Opaque<bindings::work_struct>,
    #[pin]
    job: T,
}

// SAFETY: A `work_struct` may be used from any thread; `T` is `Send`.
unsafe impl<T: Job> Send for Work<T> {}

// SAFETY: A `work_struct` serialises its users; `T` is `Sync`.
unsafe impl<T: Job> Sync for Work<T> {}

impl<T: Job> Work<T> {
    /// Creates a work item that is not queued. `key` tells lockdep which ones are of a kind.
    pub fn new(
        job: impl PinInit<T>,
        name: &'static CStr,
        key: Pin<&'static LockClassKey>,
    ) -> impl PinInit<Self> {
        const { assert!(core::mem::offset_of!(Self, work) == 0) };
        // INVARIANT: Initialised so.
        pin_init!(Self {
            work <- Opaque::ffi_init(|slot| {
                // SAFETY: `slot` is valid for writes, name and key are static. By the type
                // invariants the function gets what it requires.
                unsafe {
                    bindings::init_work_with_key(
                        slot,
                        Some(run_job::<T>),
                        false,
                        name.as_char_ptr(),
                        key.as_ptr(),
                    )
                };
            }),
            job <- job,
        })
    }

    /// Returns what the work item does.
    pub fn job(&self) -> &T {
        &self.job
    }

    /// Has the job done, once for all calls before it begins. Callable from any context.
    ///
    /// After the first call all must name the same queue.
    pub fn queue(&self, queue: &'static Queue) {
        // SAFETY: By the type invariants the work item is initialised, and it stays until `drop`
        // has cancelled it. The queue is static.
        unsafe {
            bindings::queue_work_on(
                // CAST: A constant for any CPU, which the C code has as `int` as well.
                bindings::wq_misc_consts_WORK_CPU_UNBOUND as c_int,
                raw::workqueue(queue),
                self.work.get(),
            )
        };
    }

    /// Waits for the job if it runs, and sees that it does not run for calls of
    /// [`queue`](Self::queue) before this one. Returns whether it would have. May sleep.
    pub fn cancel(&self) -> bool {
        // SAFETY: By the type invariants the work item is initialised.
        unsafe { bindings::cancel_work_sync(self.work.get()) }
    }
}

#[pinned_drop]
impl<T: Job> PinnedDrop for Work<T> {
    fn drop(self: Pin<&mut Self>) {
        self.cancel();
    }
}

/// # Safety
///
/// `work` must be that of a [`Work<T>`] that is not dropped before this returns.
unsafe extern "C" fn run_job<T: Job>(work: *mut bindings::work_struct) {
    // SAFETY: By the safety requirements; `work` is at offset 0.
    let this = unsafe { &*work.cast::<Work<T>>() };
    this.job.run();
}
