// SPDX-License-Identifier: GPL-2.0

//! Access to a C object from contexts that may outlive it.

use crate::bindings;
use core::ptr::NonNull;
use kernel::{
    new_spinlock_irq,
    prelude::*,
    sync::{
        Arc,
        Completion,
        Refcount,
        SpinLockIrq, //
    }, //
};

/// A C object that others may use until it is revoked.
///
/// The pattern of an event that meets the destruction of its object: the event takes a reference
/// unless the object is on its way out, and destruction waits for the references that were taken.
/// The `Gate` is counted on its own, so it may stay in tables of the driver for any time; what it
/// leads to is unreachable once [`revoke`](Self::revoke) has returned.
///
/// # Invariants
///
/// `raw` is valid for as long as `users` is not zero.
#[pin_data]
pub(super) struct Gate<R> {
    raw: NonNull<R>,
    users: Refcount,
    #[pin]
    idle: Completion,
    #[pin]
    turn: SpinLockIrq<()>,
}

// SAFETY: `raw` is only handed out while `users` is held, to closures whose authors answer for what
// they do with it on this thread; the other fields are `Send`.
unsafe impl<R> Send for Gate<R> {}

// SAFETY: As for `Send`; `Refcount` and `Completion` are made for concurrent use.
unsafe impl<R> Sync for Gate<R> {}

impl<R> Gate<R> {
    /// Creates an open gate to `raw`.
    ///
    /// # Safety
    ///
    /// `raw` must stay valid until [`revoke`](Self::revoke) has returned.
    pub(super) unsafe fn new(raw: NonNull<R>) -> Result<Arc<Self>> {
        let gate = Self::new_closed(raw)?;
        // SAFETY: By the safety requirements of this function.
        unsafe { gate.open() };
        Ok(gate)
    }

    /// Creates a gate that is closed: [`with`](Self::with) returns [`None`].
    pub(super) fn new_closed(raw: NonNull<R>) -> Result<Arc<Self>> {
        Arc::pin_init(
            // INVARIANT: `users` is zero.
            pin_init!(Self {
                raw,
                users: Refcount::new(0),
                idle <- Completion::new(),
                turn <- new_spinlock_irq!(()),
            }),
            GFP_KERNEL,
        )
    }

    /// Opens a gate that was created closed.
    ///
    /// # Safety
    ///
    /// - The gate must never have been open.
    /// - `raw` must be valid, and stay so until [`revoke`](Self::revoke) has returned.
    pub(super) unsafe fn open(&self) {
        // INVARIANT: `raw` is valid by the safety requirements. The release pairs with the acquire
        // in `with`, which thus sees all that was written to the object.
        //
        // SAFETY: `users` is a valid `refcount_t`.
        unsafe { bindings::refcount_set_release(self.users(), 1) };
    }

    fn users(&self) -> *mut bindings::refcount_t {
        // `Refcount` is a transparent wrapper of `Opaque<refcount_t>`.
        core::ptr::from_ref(&self.users).cast_mut().cast()
    }

    /// Calls `f` with the object, which stays valid meanwhile, unless the gate is closed or
    /// revoked.
    ///
    /// May be called from any context that `f` may be called from, hard interrupts included.
    #[inline]
    pub(super) fn with<T>(&self, f: impl FnOnce(NonNull<R>) -> T) -> Option<T> {
        // SAFETY: `users` is a valid `refcount_t`.
        if !unsafe { bindings::refcount_inc_not_zero_acquire(self.users()) } {
            return None;
        }
        let ret = f(self.raw);
        self.put();
        Some(ret)
    }

    /// As [`with`](Self::with), one call at a time, with interrupts off.
    #[inline]
    pub(super) fn with_alone<T>(&self, f: impl FnOnce(NonNull<R>) -> T) -> Option<T> {
        self.with(|raw| {
            let _turn = self.turn.lock();
            f(raw)
        })
    }

    fn put(&self) {
        if self.users.dec_and_test() {
            self.idle.complete_all();
        }
    }

    /// Waits for all running [`with`](Self::with); later ones return [`None`].
    ///
    /// May sleep.
    ///
    /// # Safety
    ///
    /// - The gate must have been opened, and must not have been revoked before.
    /// - Must not be called from within [`with`](Self::with).
    pub(super) unsafe fn revoke(&self) {
        // This is the reference of `open`.
        self.put();
        self.idle.wait_for_completion();
    }
}

#[kunit_tests(rdma_gate)]
mod tests {
    use super::*;
    use crate::sync;
    use kernel::{
        time::msecs_to_jiffies,
        workqueue, //
    };

    /// A guard against hangs.
    const PATIENCE_MS: u32 = 120_000;

    /// What gates lead to here.
    static OBJECT: u32 = 42;

    fn open() -> Result<Arc<Gate<u32>>> {
        // SAFETY: A static is valid for ever.
        unsafe { Gate::new(NonNull::from(&OBJECT)) }
    }

    fn read(gate: &Gate<u32>) -> Option<u32> {
        // SAFETY: The gate keeps the object valid, and nobody writes it.
        gate.with(|object| unsafe { object.read() })
    }

    fn completion() -> Result<Arc<sync::Completion>> {
        Arc::pin_init(sync::Completion::new(), GFP_KERNEL)
    }

    #[test]
    fn a_closed_gate_leads_nowhere() -> Result {
        let gate = Gate::new_closed(NonNull::from(&OBJECT))?;
        assert!(read(&gate).is_none());
        // SAFETY: It was never open, and a static is valid for ever.
        unsafe { gate.open() };
        assert_eq!(read(&gate), Some(42));
        // SAFETY: It is open, and not in use by this task.
        unsafe { gate.revoke() };
        assert!(read(&gate).is_none());
        Ok(())
    }

    #[test]
    fn users_may_be_nested() -> Result {
        let gate = open()?;
        assert_eq!(gate.with(|_| read(&gate)), Some(Some(42)));
        // SAFETY: It is open, and not in use by this task.
        unsafe { gate.revoke() };
        assert!(read(&gate).is_none());
        Ok(())
    }

    /// An event runs while its object is destroyed: destruction waits, and later events find
    /// nothing.
    #[test]
    fn revoking_waits_for_who_is_inside() -> Result {
        let gate = open()?;
        let (entered, go, revoked) = (completion()?, completion()?, completion()?);
        let patience = msecs_to_jiffies(PATIENCE_MS);

        let (user, is_in, may_leave) = (gate.clone(), entered.clone(), go.clone());
        workqueue::system_unbound().try_spawn(GFP_KERNEL, move || {
            user.with(|_| {
                is_in.complete();
                may_leave.wait_timeout(patience)
            });
        })?;
        entered.wait_timeout(patience)?;
        let (owner, ended) = (gate.clone(), revoked.clone());
        workqueue::system_unbound().try_spawn(GFP_KERNEL, move || {
            // SAFETY: It is open, this is the only call, and not from within `with`.
            unsafe { owner.revoke() };
            ended.complete();
        })?;
        // However long this waits, revoking must not be through.
        assert!(revoked.wait_timeout(msecs_to_jiffies(50)).is_err());
        go.complete();
        revoked.wait_timeout(patience)?;
        assert!(read(&gate).is_none());
        Ok(())
    }
}
