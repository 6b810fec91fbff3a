// SPDX-License-Identifier: GPL-2.0

//! How many asynchronous events are credible.
//!
//! Each event costs the kernel memory until its consumer has seen it, and the consumer may be slow
//! or asleep. So a device that never stops is stopped.
//!
//! No user may bring a device into that. What a user does costs at least a command for each event
//! that it raises: commands wait when many events have come, for as long as the device is forgiven
//! one.
//!
//! No kernel in here: the tests are those of `qemu/driver`.

/// Most events in a row: each QP of a large system may fail at once.
const BURST: u32 = 1 << 16;

/// Events that are forgotten in each millisecond.
const PER_MS: u32 = 1;

/// From this many on, who may cause one more waits for [`PAUSE_MS`].
const MANY: u32 = BURST / 2;

/// Milliseconds in which an event is forgotten.
pub(crate) const PAUSE_MS: u32 = 1_u32.div_ceil(PER_MS);

/// Counts events, and forgets them at a steady rate.
pub(crate) struct Pace {
    level: u32,
    since_ms: i64,
}

impl Pace {
    /// Starts to count at the time 0.
    pub(crate) const fn new() -> Self {
        Self {
            level: 0,
            since_ms: 0,
        }
    }

    /// Counts an event; false if it is one too many.
    pub(crate) fn count(&mut self, now_ms: i64) -> bool {
        self.forget(now_ms);
        if self.level >= BURST {
            return false;
        }
        self.level += 1;
        true
    }

    /// Returns whether many events have come.
    pub(crate) fn is_many(&mut self, now_ms: i64) -> bool {
        self.forget(now_ms);
        self.level >= MANY
    }

    fn forget(&mut self, now_ms: i64) {
        let elapsed = now_ms.saturating_sub(self.since_ms).max(0);
        let forgotten = u32::try_from(elapsed)
            .unwrap_or(u32::MAX)
            .saturating_mul(PER_MS);
        self.level = self.level.saturating_sub(forgotten);
        self.since_ms = now_ms;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_and_no_more() {
        let mut pace = Pace::new();
        for _ in 0..BURST {
            assert!(pace.count(100));
        }
        assert!(!pace.count(100));
        assert!(pace.count(101));
        assert!(!pace.count(101));
    }

    #[test]
    fn a_steady_rate_passes_for_ever() {
        let mut pace = Pace::new();
        for ms in 0..4 * i64::from(BURST) {
            assert!(pace.count(ms));
        }
    }

    #[test]
    fn who_waits_causes_no_flood() {
        let (mut pace, mut now) = (Pace::new(), 0);
        for _ in 0..4 * BURST {
            if pace.is_many(now) {
                now += i64::from(PAUSE_MS);
            }
            assert!(pace.count(now));
        }
        assert!(now > i64::from(BURST));
    }

    #[test]
    fn time_does_not_overflow() {
        let mut pace = Pace::new();
        assert!(pace.count(i64::MIN));
        assert!(pace.count(i64::MAX));
        assert!(pace.count(0));
    }
}
