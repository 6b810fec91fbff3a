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

#[kunit_tests(rdma_completion)]
mod tests {
    use super::*;
    use kernel::{
        sync::Arc,
        time::msecs_to_jiffies,
        workqueue, //
    };

    /// A guard against hangs.
    const PATIENCE_MS: u32 = 120_000;

    fn completion() -> Result<Arc<Completion>> {
        Arc::pin_init(Completion::new(), GFP_KERNEL)
    }

    #[test]
    fn each_complete_is_consumed_once() -> Result {
        let happened = completion()?;
        assert!(!happened.try_wait());
        happened.complete();
        happened.complete();
        assert!(happened.try_wait());
        assert!(happened.wait_timeout(0).is_ok());
        assert!(!happened.try_wait());
        Ok(())
    }

    #[test]
    fn a_wait_ends_with_its_time() -> Result {
        let never = completion()?;
        assert!(never.wait_timeout(1).is_err_and(|e| e == ETIMEDOUT));
        Ok(())
    }

    #[test]
    fn complete_all_is_for_ever() -> Result {
        let happened = completion()?;
        happened.complete_all();
        for _ in 0..3 {
            assert!(happened.try_wait());
            assert!(happened.wait_timeout(1).is_ok());
        }
        Ok(())
    }

    #[test]
    fn another_task_ends_the_wait() -> Result {
        let happened = completion()?;
        let other = happened.clone();
        workqueue::system_unbound().try_spawn(GFP_KERNEL, move || other.complete())?;
        happened.wait_timeout(msecs_to_jiffies(PATIENCE_MS))
    }
}
