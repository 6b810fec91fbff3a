// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Index arithmetic of rings.

/// Largest ring: 2^23 entries keep the distance of two free-running indices unambiguous and every
/// offset within 32 bits for entries of up to 256 bytes.
pub const MAX_LOG_ENTRIES: u8 = 23;

/// Size of a ring: a power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingSize(u8);

impl RingSize {
    /// Returns the size `2^log`; [`None`] above [`MAX_LOG_ENTRIES`].
    #[inline]
    pub const fn from_log(log: u8) -> Option<Self> {
        if log > MAX_LOG_ENTRIES {
            return None;
        }
        Some(Self(log))
    }

    /// Returns the least size that holds `entries`; [`None`] if that is above the largest ring.
    #[inline]
    pub const fn for_entries(entries: u32) -> Option<Self> {
        match entries.checked_next_power_of_two() {
            // CAST: `trailing_zeros` of a `u32` is at most 32.
            Some(n) => Self::from_log(n.trailing_zeros() as u8),
            None => None,
        }
    }

    /// Returns log2 of the number of entries.
    #[inline]
    pub const fn log(self) -> u8 {
        self.0
    }

    /// Returns the number of entries.
    #[inline]
    pub const fn entries(self) -> u32 {
        1 << self.0
    }

    /// Returns the slot of a free-running index.
    #[inline]
    pub const fn slot(self, index: u32) -> u32 {
        index & (self.entries() - 1)
    }

    /// Returns the phase that the device writes to the entry of `index`: true in the first pass
    /// over the zeroed ring, false in the second, and so on.
    #[inline]
    pub const fn phase(self, index: u32) -> bool {
        (index >> self.0) & 1 == 0
    }
}

/// Returns how many entries lie between two free-running indices of a ring; [`None`] if more than
/// the ring holds, so that one of them cannot be true.
#[inline]
pub const fn used(size: RingSize, producer: u32, consumer: u32) -> Option<u32> {
    let n = producer.wrapping_sub(consumer);
    if n > size.entries() {
        return None;
    }
    Some(n)
}

/// Returns the index behind the entries that the device has written and software has not read.
///
/// All before `known` are written, unless it is behind `consumer`. At most `limit` entries are
/// looked at from `consumer` on, whatever is in the ring.
#[inline]
pub fn written_end(consumer: u32, known: u32, limit: u32, is_written: impl Fn(u32) -> bool) -> u32 {
    let ahead = known.wrapping_sub(consumer);
    let mut end = if ahead > limit { consumer } else { known };
    while end.wrapping_sub(consumer) < limit && is_written(end) {
        end = end.wrapping_add(1);
    }
    end
}

/// The entries of a ring that are in use: from the oldest one to the next that is taken.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    size: RingSize,
    tail: u32,
    head: u32,
}

impl Window {
    /// Makes the window of an empty ring, whose indices start at zero.
    #[inline]
    pub const fn new(size: RingSize) -> Self {
        Self {
            size,
            tail: 0,
            head: 0,
        }
    }

    /// Returns the size of the ring.
    #[inline]
    pub const fn size(&self) -> RingSize {
        self.size
    }

    /// Returns the free-running index of the oldest entry in use.
    #[inline]
    pub const fn tail(&self) -> u32 {
        self.tail
    }

    /// Returns the free-running index of the next entry: the producer index.
    #[inline]
    pub const fn head(&self) -> u32 {
        self.head
    }

    /// Returns how many entries are free.
    #[inline]
    pub const fn free(&self) -> u32 {
        self.size.entries() - self.head.wrapping_sub(self.tail)
    }

    /// Returns whether the entry of an index is in use, wherever the index comes from.
    #[inline]
    pub const fn holds(&self, index: u32) -> bool {
        index.wrapping_sub(self.tail) < self.head.wrapping_sub(self.tail)
    }

    /// Takes `n` entries and returns the index of the first; [`None`] if there are not so many.
    #[inline]
    pub fn take(&mut self, n: u32) -> Option<u32> {
        if n > self.free() {
            return None;
        }
        let first = self.head;
        self.head = first.wrapping_add(n);
        Some(first)
    }

    /// Frees all entries before `end`, which is at most the head; returns whether it is.
    #[inline]
    pub fn release(&mut self, end: u32) -> bool {
        let possible = end.wrapping_sub(self.tail) <= self.head.wrapping_sub(self.tail);
        if possible {
            self.tail = end;
        }
        possible
    }
}

/// The bit of an owner word that carries the phase.
pub const OWNER_PHASE: u32 = 1;

/// Returns whether an owner word says that the device has written the entry of `index`.
#[inline]
pub const fn is_written(size: RingSize, index: u32, owner: u32) -> bool {
    (owner & OWNER_PHASE != 0) == size.phase(index)
}

/// Returns the owner word that the device writes, last, to the entry of `index`.
#[inline]
pub const fn owner(size: RingSize, index: u32) -> u32 {
    if size.phase(index) {
        OWNER_PHASE
    } else {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phase_toggles_every_pass_and_across_the_wrap() {
        for log in 0..=MAX_LOG_ENTRIES {
            let size = RingSize::from_log(log).unwrap();
            let n = size.entries();
            assert!(size.phase(0));
            assert!(size.phase(n - 1));
            assert!(!size.phase(n));
            assert_ne!(size.phase(u32::MAX), size.phase(u32::MAX.wrapping_add(1)));
            assert_eq!(size.slot(u32::MAX.wrapping_add(1)), 0);
        }
        assert_eq!(RingSize::from_log(MAX_LOG_ENTRIES + 1), None);
    }

    #[test]
    fn sizes_round_up() {
        assert_eq!(RingSize::for_entries(0).unwrap().entries(), 1);
        assert_eq!(RingSize::for_entries(5).unwrap().entries(), 8);
        assert_eq!(RingSize::for_entries(1 << 23).unwrap().log(), 23);
        assert_eq!(RingSize::for_entries((1 << 23) + 1), None);
        assert_eq!(RingSize::for_entries(u32::MAX), None);
    }

    #[test]
    fn used_refuses_what_the_ring_cannot_hold() {
        let size = RingSize::from_log(3).unwrap();
        assert_eq!(used(size, 3, u32::MAX - 3), Some(7));
        assert_eq!(used(size, 8, 0), Some(8));
        assert_eq!(used(size, 9, 0), None);
        assert_eq!(used(size, 0, 1), None);
    }

    #[test]
    fn written_entries_end_where_the_first_is_not() {
        let until = |end: u32| move |index: u32| index != end;
        assert_eq!(written_end(u32::MAX, u32::MAX, 8, until(2)), 2);
        assert_eq!(written_end(u32::MAX, 1, 8, until(2)), 2);
        // What is known is behind what was read.
        assert_eq!(written_end(5, 3, 8, until(6)), 6);
        assert_eq!(written_end(5, 5, 8, until(5)), 5);
        // A device that writes everything.
        assert_eq!(written_end(5, 5, 8, |_| true), 13);
        assert_eq!(written_end(5, 13, 8, |_| true), 13);
    }

    #[test]
    fn window_holds_what_was_taken_and_not_released() {
        let mut window = Window::new(RingSize::from_log(2).unwrap());
        (window.tail, window.head) = (u32::MAX, u32::MAX);
        assert_eq!(window.take(3), Some(u32::MAX));
        assert_eq!(window.take(2), None);
        assert_eq!(window.take(1), Some(2));
        assert_eq!((window.head(), window.free()), (3, 0));
        for (index, held) in [
            (u32::MAX, true),
            (2, true),
            (3, false),
            (u32::MAX - 1, false),
        ] {
            assert_eq!(window.holds(index), held, "{index}");
        }
        assert!(!window.release(4));
        assert!(window.release(2));
        assert_eq!((window.tail(), window.free()), (2, 3));
        assert!(!window.release(1));
    }

    #[test]
    fn zeroed_ring_is_unwritten_and_a_written_entry_stays_so() {
        let size = RingSize::from_log(2).unwrap();
        for index in 0..16 {
            assert!(is_written(size, index, owner(size, index)));
            let before = owner(size, index.wrapping_sub(4));
            if index >= 4 {
                assert!(!is_written(size, index, before));
            }
        }
        assert!(!is_written(size, 0, 0));
    }
}
