// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Objects with a C part that libibverbs uses and a Rust part that it does not see.

use crate::Errno;

/// A C structure of libibverbs and what belongs to it.
///
/// # Invariants
///
/// `base` is at offset 0, so that a pointer to it is a pointer to the object.
#[repr(C)]
pub(super) struct Object<B, T> {
    base: B,
    inner: Option<T>,
}

impl<B, T> Object<B, T> {
    /// Makes an object: `create` fills the C part by a libibverbs command and returns the rest. The C
    /// part does not move from the time `create` sees it on.
    pub(super) fn create(create: impl FnOnce(*mut B) -> Result<T, Errno>) -> Result<*mut B, Errno> {
        // SAFETY: Structures of libibverbs are made of integers, pointers and pthread objects for which
        // zero is a valid value; its own providers allocate them by calloc().
        let base = unsafe { std::mem::zeroed() };
        let object = Box::into_raw(Box::new(Self { base, inner: None }));
        match create(object.cast()) {
            Ok(inner) => {
                // SAFETY: `object` was made above and is not yet known to anyone else.
                unsafe { (*object).inner = Some(inner) };
                Ok(object.cast())
            }
            Err(errno) => {
                // SAFETY: As above; the command has failed and keeps no pointer.
                drop(unsafe { Box::from_raw(object) });
                Err(errno)
            }
        }
    }

    /// Returns the Rust part.
    ///
    /// # Safety
    ///
    /// `base` must come from [`Object::create`] of the same types and not be destroyed for `'a`.
    pub(super) unsafe fn inner<'a>(base: *mut B) -> &'a T {
        // SAFETY: By the safety requirements and the type invariant. Only `inner` is borrowed: the C
        // part may be written by libibverbs meanwhile.
        let inner = unsafe { &(*base.cast::<Self>()).inner };
        match inner {
            Some(inner) => inner,
            None => unreachable!("create() has set it before it returned the object"),
        }
    }

    /// Destroys the object.
    ///
    /// # Safety
    ///
    /// As [`Object::inner`], and nobody may use it any more.
    pub(super) unsafe fn destroy(base: *mut B) {
        // SAFETY: By the safety requirements it comes from `Box::into_raw` in `create`.
        drop(unsafe { Box::from_raw(base.cast::<Self>()) });
    }
}
