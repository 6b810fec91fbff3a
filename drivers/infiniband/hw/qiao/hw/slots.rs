// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The places of an SRQ, which become free in any order.

use core::ops::DerefMut;

/// A place: free, or what its owner has there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slot<T> {
    /// Free; the number of the next free one follows.
    Free(u32),
    /// In use.
    Used(T),
}

/// Places by number, from 0 on. `S` is the memory that the owner has for them.
#[derive(Debug)]
pub struct SlotTable<S> {
    slots: S,
    /// Number of the first free one; that of no place if there is none.
    free: u32,
}

impl<T, S: DerefMut<Target = [Slot<T>]>> SlotTable<S> {
    /// Makes a table whose places, all of `slots`, are free.
    pub fn new(mut slots: S) -> Self {
        for (next, slot) in (1..).zip(slots.iter_mut()) {
            *slot = Slot::Free(next);
        }
        Self { slots, free: 0 }
    }

    /// Takes a free place and puts `value` there; returns its number, or [`None`] if none is free.
    pub fn take(&mut self, value: T) -> Option<u32> {
        let number = self.free;
        let slot = self.slots.get_mut(usize::try_from(number).ok()?)?;
        let Slot::Free(next) = *slot else {
            return None;
        };
        *slot = Slot::Used(value);
        self.free = next;
        Some(number)
    }

    /// Returns whether a place is free.
    pub fn has_free(&self) -> bool {
        usize::try_from(self.free).is_ok_and(|first| first < self.slots.len())
    }

    /// Frees a place and returns what was there; [`None`] if it is free or does not exist, wherever
    /// the number comes from.
    pub fn give(&mut self, number: u32) -> Option<T> {
        let slot = self.slots.get_mut(usize::try_from(number).ok()?)?;
        if matches!(slot, Slot::Free(_)) {
            return None;
        }
        let old = core::mem::replace(slot, Slot::Free(self.free));
        self.free = number;
        match old {
            Slot::Used(value) => Some(value),
            Slot::Free(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::{vec, vec::Vec};

    #[test]
    fn places_become_free_in_any_order() {
        let mut table = SlotTable::new(vec![Slot::Free(0); 4]);
        let taken: Vec<_> = (10..14).filter_map(|id| table.take(id)).collect();
        assert_eq!(taken, [0, 1, 2, 3]);
        assert_eq!(table.take(14), None);
        assert!(!table.has_free());
        assert_eq!(table.give(2), Some(12));
        assert_eq!(table.give(2), None);
        assert_eq!(table.give(0), Some(10));
        assert!(table.has_free());
        let again: Vec<_> = (20..).map_while(|id| table.take(id)).collect();
        assert_eq!(again, [0, 2]);
        assert_eq!(table.give(2), Some(21));
    }

    #[test]
    fn number_of_no_place_is_refused() {
        let mut table = SlotTable::new(vec![Slot::Used(1); 2]);
        for number in [0, 2, u32::MAX] {
            assert_eq!(table.give(number), None, "{number}");
        }
        let mut none = SlotTable::new(Vec::<Slot<u32>>::new());
        assert_eq!(none.take(1), None);
    }
}
