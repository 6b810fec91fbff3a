// SPDX-License-Identifier: GPL-2.0

//! Which slots of a page are taken.
//!
//! No kernel in here: the tests are those of `qemu/driver`.

/// The first slots of all pairs.
const FIRSTS: u64 = 0x5555_5555_5555_5555;

/// Takes a slot, of a pair that is broken already if there is one.
pub(crate) fn take_one(words: &mut [u64]) -> Option<u32> {
    let broken = |word: u64| (word ^ (word >> 1)) & FIRSTS;
    let place = words.iter().position(|&w| broken(w) != 0);
    let place = place.or_else(|| words.iter().position(|&w| w != u64::MAX))?;
    let word = words.get_mut(place)?;
    let pair = match broken(*word) {
        0 => (!*word).trailing_zeros() & !1,
        pairs => pairs.trailing_zeros(),
    };
    let bit = pair + ((*word >> pair) & 1) as u32;
    *word |= 1 << bit;
    Some(place as u32 * u64::BITS + bit)
}

/// Takes two slots in a row, and returns the first.
pub(crate) fn take_pair(words: &mut [u64]) -> Option<u32> {
    let whole = |word: u64| !(word | (word >> 1)) & FIRSTS;
    let place = words.iter().position(|&w| whole(w) != 0)?;
    let word = words.get_mut(place)?;
    let bit = whole(*word).trailing_zeros();
    *word |= 3 << bit;
    Some(place as u32 * u64::BITS + bit)
}

/// Takes the first bit that is clear, below `limit`.
pub(crate) fn take_first(words: &mut [u64], limit: u32) -> Option<u32> {
    let place = words.iter().position(|&w| w != u64::MAX)?;
    let word = words.get_mut(place)?;
    let bit = (!*word).trailing_zeros();
    let number = place as u32 * u64::BITS + bit;
    if number >= limit {
        return None;
    }
    *word |= 1 << bit;
    Some(number)
}

/// Gives back what was taken.
pub(crate) fn give(words: &mut [u64], number: u32) {
    if let Some(word) = words.get_mut((number / u64::BITS) as usize) {
        *word &= !(1 << (number % u64::BITS));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_slots_fill_every_place_once() {
        let mut words = [0; 8];
        let mut seen = [false; 512];
        for _ in 0..512 {
            let slot = take_one(&mut words).unwrap() as usize;
            assert!(!std::mem::replace(&mut seen[slot], true));
        }
        assert_eq!(take_one(&mut words), None);
        assert_eq!(take_pair(&mut words), None);
    }

    #[test]
    fn pairs_start_at_even_slots_and_do_not_overlap() {
        let mut words = [0; 2];
        for i in 0..64 {
            assert_eq!(take_pair(&mut words), Some(2 * i));
        }
        assert_eq!(take_pair(&mut words), None);
        assert_eq!(words, [u64::MAX; 2]);
    }

    #[test]
    fn single_slots_spare_the_pairs() {
        let mut words = [0];
        assert_eq!(take_one(&mut words), Some(0));
        assert_eq!(take_pair(&mut words), Some(2));
        assert_eq!(take_one(&mut words), Some(1));
        assert_eq!(take_one(&mut words), Some(4));
        give(&mut words, 0);
        assert_eq!(take_pair(&mut words), Some(6));
        assert_eq!(take_one(&mut words), Some(0));
        assert_eq!(take_one(&mut words), Some(5));
    }

    #[test]
    fn given_slots_come_back() {
        let mut words = [u64::MAX; 2];
        give(&mut words, 64 + 7);
        assert_eq!(take_pair(&mut words), None);
        assert_eq!(take_one(&mut words), Some(64 + 7));
        give(&mut words, 10);
        give(&mut words, 11);
        assert_eq!(take_pair(&mut words), Some(10));
    }

    #[test]
    fn numbers_stop_at_the_limit() {
        let mut words = [1, 0];
        for n in 1..70 {
            assert_eq!(take_first(&mut words, 70), Some(n));
        }
        assert_eq!(take_first(&mut words, 70), None);
        give(&mut words, 3);
        assert_eq!(take_first(&mut words, 70), Some(3));
    }
}
