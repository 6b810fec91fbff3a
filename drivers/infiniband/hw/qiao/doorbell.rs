// SPDX-License-Identifier: GPL-2.0

//! Doorbell pages and slots.
//!
//! A page of slots belongs to one context of user space, or to the kernel, for as long as that
//! exists: whoever can ring one slot of a page can ring them all. The first page is the kernel's
//! from the start; all others are dealt out as contexts need them.

mod map;

use kernel::{
    new_mutex,
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    }, //
};
use qiao_hw::doorbell::SLOT_SIZE;

/// Slots of a page.
const PER_PAGE: u32 = (PAGE_SIZE / SLOT_SIZE) as u32;

/// The page that the kernel has from the start.
const KERNEL_PAGE: u32 = 0;

/// The doorbell pages of a device.
#[pin_data]
pub(crate) struct Doorbells {
    count: u32,
    /// A bit for each page; set if the page is taken.
    #[pin]
    taken: Mutex<KVVec<u64>>,
}

impl Doorbells {
    /// Makes the allocator for a BAR of `len` bytes.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(len: u64) -> Result<Arc<Self>> {
        let count = (len / PAGE_SIZE as u64).min((u32::MAX / PER_PAGE).into());
        let count = u32::try_from(count)?;
        let mut taken = bits(count)?;
        map::take_first(&mut taken, KERNEL_PAGE + 1).ok_or(EINVAL)?;
        Arc::pin_init(
            pin_init!(Self {
                count,
                taken <- new_mutex!(taken),
            }),
            GFP_KERNEL,
        )
    }

    fn take(self: &Arc<Self>) -> Result<PageNumber> {
        let number = map::take_first(&mut self.taken.lock(), self.count).ok_or(ENOSPC)?;
        Ok(PageNumber {
            pool: self.clone(),
            number,
        })
    }
}

/// Makes clear bits.
fn bits(count: u32) -> Result<KVVec<u64>> {
    Ok(KVVec::from_elem(
        0,
        count.div_ceil(u64::BITS) as usize,
        GFP_KERNEL,
    )?)
}

/// A page that is taken.
struct PageNumber {
    pool: Arc<Doorbells>,
    number: u32,
}

impl Drop for PageNumber {
    fn drop(&mut self) {
        map::give(&mut self.pool.taken.lock(), self.number);
    }
}

/// A page with its slots.
#[pin_data]
struct Page<M> {
    /// A bit for each slot; set if the slot is taken.
    #[pin]
    taken: Mutex<KVVec<u64>>,
    // Dropped in this order: the page is free when nothing of its owner is left.
    attachment: M,
    number: PageNumber,
}

impl<M> Page<M> {
    fn take(self: &Arc<Self>, take: Take) -> Option<Slot<M>> {
        let mut taken = self.taken.lock();
        let first = match take {
            Take::One => map::take_one(&mut taken),
            Take::Pair => map::take_pair(&mut taken),
        }?;
        Some(Slot {
            page: self.clone(),
            first,
            take,
        })
    }
}

/// How many slots to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Take {
    /// One.
    One,
    /// Two in a row.
    Pair,
}

/// The slots of one context of user space, or of the kernel.
///
/// It keeps its pages as long as it lives, since user space keeps its mappings. `M` is what belongs
/// to each page, such as the handle of its mappings.
#[pin_data]
pub(crate) struct SlotSet<M> {
    pool: Arc<Doorbells>,
    #[pin]
    pages: Mutex<KVec<Arc<Page<M>>>>,
}

impl<M> SlotSet<M> {
    /// Makes a set without pages.
    pub(crate) fn new(pool: Arc<Doorbells>) -> impl PinInit<Self> {
        pin_init!(Self {
            pool,
            pages <- new_mutex!(KVec::new()),
        })
    }

    /// Takes slots, of a new page if need be. `attach` makes what belongs to the page of the number
    /// that it is given, counted from the start of the BAR.
    ///
    /// # Errors
    ///
    /// `ENOSPC` if the device has no page left, `ENOMEM`, that of `attach`.
    pub(crate) fn take(
        &self,
        take: Take,
        attach: impl FnOnce(u32) -> Result<M>,
    ) -> Result<Slot<M>> {
        let mut pages = self.pages.lock();
        // The last page is the likeliest.
        if let Some(slot) = pages.iter().rev().find_map(|page| page.take(take)) {
            return Ok(slot);
        }
        let number = self.pool.take()?;
        let page = Self::add(&mut pages, number, attach)?;
        page.take(take).ok_or(ENOSPC)
    }

    fn add(
        pages: &mut KVec<Arc<Page<M>>>,
        number: PageNumber,
        attach: impl FnOnce(u32) -> Result<M>,
    ) -> Result<Arc<Page<M>>> {
        let page = Arc::pin_init(
            try_pin_init!(Page {
                taken <- new_mutex!(bits(PER_PAGE)?),
                attachment: attach(number.number)?,
                number,
            }? Error),
            GFP_KERNEL,
        )?;
        pages.push(page.clone(), GFP_KERNEL)?;
        Ok(page)
    }
}

impl SlotSet<()> {
    /// Makes the set of the kernel, which has the first page. Once for a device.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn kernel(pool: Arc<Doorbells>) -> impl PinInit<Self, Error> {
        pin_init::pin_init_scope(move || {
            let mut pages = KVec::new();
            let number = PageNumber {
                pool: pool.clone(),
                number: KERNEL_PAGE,
            };
            Self::add(&mut pages, number, |_| Ok(()))?;
            Ok(try_pin_init!(Self {
                pool,
                pages <- new_mutex!(pages),
            }? Error))
        })
    }
}

/// One or two doorbell slots that are taken.
pub(crate) struct Slot<M> {
    page: Arc<Page<M>>,
    first: u32,
    take: Take,
}

impl<M> Slot<M> {
    /// Returns the number of the first slot, as commands name it.
    pub(crate) fn number(&self) -> u32 {
        // `Doorbells::new` has seen to it that this does not overflow.
        self.page.number.number * PER_PAGE + self.first
    }

    /// Returns the offset in bytes of the first slot in its page.
    pub(crate) fn offset(&self) -> u32 {
        self.first * SLOT_SIZE as u32
    }

    /// Returns what belongs to the page.
    pub(crate) fn attachment(&self) -> &M {
        &self.page.attachment
    }
}

impl<M> Drop for Slot<M> {
    fn drop(&mut self) {
        let mut taken = self.page.taken.lock();
        map::give(&mut taken, self.first);
        if self.take == Take::Pair {
            map::give(&mut taken, self.first + 1);
        }
    }
}

#[kunit_tests(qiao_doorbell)]
mod tests {
    use super::*;

    /// Bytes of a BAR with the kernel's page and two for users.
    const BAR: u64 = 3 * PAGE_SIZE as u64;

    fn set(pool: &Arc<Doorbells>) -> Result<Arc<SlotSet<u32>>> {
        Arc::pin_init(SlotSet::new(pool.clone()), GFP_KERNEL)
    }

    #[test]
    fn a_bar_without_a_page_is_refused() {
        assert!(Doorbells::new(PAGE_SIZE as u64 - 1).is_err());
        assert!(Doorbells::new(0).is_err());
    }

    #[test]
    fn users_get_pages_of_their_own() -> Result {
        let pool = Doorbells::new(BAR)?;
        let (one, other) = (set(&pool)?, set(&pool)?);
        let (a, b) = (one.take(Take::One, Ok)?, other.take(Take::Pair, Ok)?);
        assert_eq!((*a.attachment(), a.offset()), (1, 0));
        assert_eq!((*b.attachment(), b.offset()), (2, 0));
        assert_eq!(a.number(), PER_PAGE);
        assert_eq!(b.number(), 2 * PER_PAGE);
        // No page is left for a third user, and the kernel's is not given away.
        assert!(set(&pool)?.take(Take::One, Ok).is_err_and(|e| e == ENOSPC));
        // Those who have one go on.
        assert_eq!(one.take(Take::One, Ok)?.number(), PER_PAGE + 1);
        Ok(())
    }

    #[test]
    fn each_slot_is_dealt_out_once() -> Result {
        let pool = Doorbells::new(2 * PAGE_SIZE as u64)?;
        let user = set(&pool)?;
        let mut slots = KVec::new();
        for n in 0..PER_PAGE / 2 {
            let slot = user.take(Take::Pair, Ok)?;
            assert_eq!(slot.number(), PER_PAGE + 2 * n);
            slots.push(slot, GFP_KERNEL)?;
        }
        assert!(user.take(Take::One, Ok).is_err_and(|e| e == ENOSPC));
        slots.pop();
        assert_eq!(user.take(Take::One, Ok)?.number(), 2 * PER_PAGE - 2);
        Ok(())
    }

    #[test]
    fn a_page_is_free_when_its_user_is_gone() -> Result {
        let pool = Doorbells::new(2 * PAGE_SIZE as u64)?;
        for _ in 0..3 {
            let user = set(&pool)?;
            let slot = user.take(Take::One, Ok)?;
            // The slot keeps the page, which its user may still have mapped.
            drop(user);
            assert!(set(&pool)?.take(Take::One, Ok).is_err());
            drop(slot);
        }
        Ok(())
    }

    #[test]
    fn a_page_that_cannot_be_mapped_is_not_lost() -> Result {
        let pool = Doorbells::new(2 * PAGE_SIZE as u64)?;
        let user = set(&pool)?;
        for _ in 0..3 {
            assert!(user
                .take(Take::One, |_| Err(EFAULT))
                .is_err_and(|e| e == EFAULT));
        }
        assert_eq!(user.take(Take::One, Ok)?.number(), PER_PAGE);
        Ok(())
    }

    #[test]
    fn the_kernel_has_the_first_page() -> Result {
        let pool = Doorbells::new(BAR)?;
        let kernel = Arc::pin_init(SlotSet::kernel(pool.clone()), GFP_KERNEL)?;
        assert_eq!(kernel.take(Take::One, |_| Ok(()))?.number(), 0);
        assert_eq!(*set(&pool)?.take(Take::One, Ok)?.attachment(), 1);
        Ok(())
    }
}
