// SPDX-License-Identifier: GPL-2.0 OR MIT

//! How long to wait until memory is looked at again that changes without a word.

use std::time::Duration;

/// Looks that find nothing before the first wait.
const EAGER: u32 = 32;

/// The first wait. Each that follows is twice as long.
const SHORTEST: Duration = Duration::from_micros(2);

/// The longest wait: a thousand looks a second cost nothing, and this is what a doorbell costs at
/// worst that ends a silence.
const LONGEST: Duration = Duration::from_millis(1);

/// Looks often while there is something to find, and more and more seldom when there is not.
#[derive(Clone, Copy, Debug, Default)]
pub struct Backoff {
    /// Looks in a row that have found nothing.
    idle: u32,
}

impl Backoff {
    /// Takes whether the last look found something; returns how long to wait for the next.
    pub fn after(&mut self, found: bool) -> Duration {
        self.idle = if found {
            0
        } else {
            self.idle.saturating_add(1)
        };
        let Some(doublings) = self.idle.checked_sub(EAGER) else {
            return Duration::ZERO;
        };
        let factor = 1u32.checked_shl(doublings).unwrap_or(u32::MAX);
        SHORTEST.saturating_mul(factor).min(LONGEST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_a_limit_and_start_anew() {
        let mut backoff = Backoff::default();
        let waits: Vec<Duration> = (0..100).map(|_| backoff.after(false)).collect();
        assert!(waits.is_sorted());
        assert_eq!((waits[0], waits[99]), (Duration::ZERO, LONGEST));
        assert!(waits.contains(&SHORTEST));
        assert_eq!(backoff.after(true), Duration::ZERO);
        backoff.idle = u32::MAX - 1;
        assert_eq!(backoff.after(false), LONGEST);
        assert_eq!(backoff.after(false), LONGEST);
    }
}
