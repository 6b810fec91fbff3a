// SPDX-License-Identifier: GPL-2.0

//! Completions that are consumed one by one, and waited for with a limit.
//!
//! C header: [`include/linux/completion.h`](srctree/include/linux/completion.h)

use crate::bindings;
use kernel::{
    prelude::*,
    time::Jiffies,
    types::Opaque, //
};

/// A counter of things that have happened, for which tasks can wait.
///
/// [`kernel::sync::Completion`] can only happen once and for all.
#[pin_data]
pub struct Completion {
    #[pin]
    inner: Opaque<bindings::completion>,
}

// SAFETY: A `struct completion` may be used from any task.
unsafe impl Send for Completion {}

// SAFETY: A `struct completion` serialises its users.
unsafe impl Sync for Completion {}

impl Completion {
    /// Creates a completion that has not happened.
    pub fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            inner <- Opaque::ffi_init(|slot: *mut bindings::completion| {
                // SAFETY: `slot` is valid for writes.
                unsafe { bindings::init_completion(slot) };
            }),
        })
    }

    /// Lets one waiter go on, now or when it comes. Callable from any context.
    #[inline]
    pub fn complete(&self) {
        // SAFETY: By the type the completion is initialised.
        unsafe { bindings::complete(self.inner.get()) };
    }

    /// Lets all waiters go on, now and for ever. Callable from any context.
    #[inline]
    pub fn complete_all(&self) {
        // SAFETY: By the type the completion is initialised.
        unsafe { bindings::complete_all(self.inner.get()) };
    }

    /// Consumes one [`complete`](Self::complete); false if there is none. Callable from any
    /// context.
    #[inline]
    pub fn try_wait(&self) -> bool {
        // SAFETY: By the type the completion is initialised.
        unsafe { bindings::try_wait_for_completion(self.inner.get()) }
    }

    /// Waits for one [`complete`](Self::complete) and consumes it, or for
    /// [`complete_all`](Self::complete_all). May sleep, and does so uninterruptibly.
    ///
    /// # Errors
    ///
    /// `ETIMEDOUT` if neither happened in `timeout` jiffies.
    #[inline]
    pub fn wait_timeout(&self, timeout: Jiffies) -> Result {
        // SAFETY: By the type the completion is initialised.
        match unsafe { bindings::wait_for_completion_timeout(self.inner.get(), timeout) } {
            0 => Err(ETIMEDOUT),
            _ => Ok(()),
        }
    }
}
