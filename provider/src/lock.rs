// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A lock that one call of the interface takes and a later one gives back.
//!
//! ibv_start_poll() and ibv_wr_start() begin what other calls go on with, by the same thread, and
//! ibv_end_poll() or ibv_wr_complete() ends. Meanwhile other threads wait.

use std::ops::{Deref, DerefMut};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The lock.
pub(crate) struct Lock<T> {
    inner: Mutex<Inner<T>>,
    released: Condvar,
}

struct Inner<T> {
    /// Whether it is held from one call to another.
    kept: bool,
    /// Threads that wait until it is not, so that nobody makes a system call to wake none.
    waiting: usize,
    value: T,
}

/// The lock, held.
pub(crate) struct Guard<'a, T> {
    inner: MutexGuard<'a, Inner<T>>,
}

impl<T> Lock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            inner: Mutex::new(Inner {
                kept: false,
                waiting: 0,
                value,
            }),
            released: Condvar::new(),
        }
    }

    /// Takes the lock.
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        let mut inner = self.inner();
        while inner.kept {
            inner.waiting += 1;
            inner = self
                .released
                .wait(inner)
                .unwrap_or_else(PoisonError::into_inner);
            inner.waiting -= 1;
        }
        Guard { inner }
    }

    /// Goes on with the lock that this thread has kept.
    pub(crate) fn resume(&self) -> Guard<'_, T> {
        Guard {
            inner: self.inner(),
        }
    }

    /// Gives back the lock that this thread has kept.
    pub(crate) fn release(&self) {
        let mut inner = self.inner();
        inner.kept = false;
        if inner.waiting > 0 {
            // One that takes the lock and does not keep it wakes nobody.
            self.released.notify_all();
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner<T>> {
        // Panics abort: a poisoned lock is never seen.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Guard<'_, T> {
    /// Keeps the lock for later calls of this thread, until [`Lock::release`].
    pub(crate) fn keep(mut self) {
        self.inner.kept = true;
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner.value
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner.value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_wait_go_on_when_a_kept_lock_is_released() {
        const WAITING: usize = 3;
        let lock = Lock::new(0);
        lock.lock().keep();
        std::thread::scope(|scope| {
            for _ in 0..WAITING {
                scope.spawn(|| *lock.lock() += 1);
            }
            while lock.resume().inner.waiting < WAITING {
                std::thread::yield_now();
            }
            assert_eq!(*lock.resume(), 0);
            lock.release();
        });
        assert_eq!(*lock.lock(), WAITING);
    }

    #[test]
    fn others_wait_until_a_kept_lock_is_released() {
        const THREADS: usize = 4;
        const ROUNDS: usize = 2000;
        let lock = Lock::new((0, 0));
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for _ in 0..ROUNDS {
                        let mut first = lock.lock();
                        first.0 += 1;
                        first.keep();
                        std::thread::yield_now();
                        let mut then = lock.resume();
                        then.1 += 1;
                        // Nobody else has come in between.
                        assert_eq!(then.0, then.1);
                        drop(then);
                        lock.release();
                    }
                });
            }
        });
        assert_eq!(*lock.lock(), (THREADS * ROUNDS, THREADS * ROUNDS));
    }
}
