// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Utilisation of a hop from two in-band telemetry records (HPCC, SIGCOMM'19, section 3.2).

use crate::event::Telemetry;
use crate::fixed::{clamp_u32, div};

/// Hops that a telemetry header carries.
pub const MAX_HOPS: usize = 5;

/// What a switch writes into a packet when it sends it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hop {
    /// Bytes sent by the egress port so far, modulo 2^32.
    pub tx_bytes: u32,
    /// Time in nanoseconds, modulo 2^32.
    pub time_ns: u32,
    /// Bytes waiting in the egress port.
    pub queue: u32,
    /// Rate of the egress port in Mb/s.
    pub link_mbps: u32,
}

/// The most loaded hop between two sets of records of one path.
///
/// `base_rtt_ns` scales the queue term. Returns `None` if no hop has advanced, if the path has no
/// record, or if its length changed.
#[inline]
pub fn most_loaded(before: &[Hop], now: &[Hop], base_rtt_ns: u32) -> Option<Telemetry> {
    if before.len() != now.len() {
        return None;
    }
    let mut queue_ns = 0;
    let mut worst: Option<(u32, u32)> = None;
    for (old, new) in before.iter().zip(now) {
        queue_ns = queue_ns.max(drain_ns(new));
        let Some((load, span)) = utilisation(old, new, base_rtt_ns) else {
            continue;
        };
        if worst.is_none_or(|(highest, _)| load > highest) {
            worst = Some((load, span));
        }
    }
    worst.map(|(utilisation, span_ns)| Telemetry {
        utilisation,
        span_ns,
        queue_ns,
    })
}

/// Nanoseconds that the queue of `hop` takes to drain.
#[inline]
fn drain_ns(hop: &Hop) -> u32 {
    clamp_u32(div(
        u64::from(hop.queue).saturating_mul(8000),
        u64::from(hop.link_mbps),
    ))
}

/// `min(q0, q1) / (B T) + txRate / B` in Q16 and the time between the records.
#[inline]
fn utilisation(old: &Hop, new: &Hop, base_rtt_ns: u32) -> Option<(u32, u32)> {
    let span = new.time_ns.wrapping_sub(old.time_ns);
    let bytes = u64::from(new.tx_bytes.wrapping_sub(old.tx_bytes));
    let capacity = u64::from(new.link_mbps).saturating_mul(u64::from(span));
    // Bytes times 8000 are millibits, as is Mb/s times ns. 2^31 * 8000 * 2^16 would not fit, and a
    // sample of more than 16 MiB is not a round trip.
    if capacity == 0 || bytes > 1 << 24 {
        return None;
    }
    let sent = div(bytes.saturating_mul(8000) << 16, capacity);
    let queue = u64::from(old.queue.min(new.queue).min(1 << 28));
    let room = u64::from(new.link_mbps).saturating_mul(u64::from(base_rtt_ns));
    let waiting = div(queue.saturating_mul(8000) << 16, room);
    Some((clamp_u32(sent.saturating_add(waiting)), span))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hop(tx_bytes: u32, time_ns: u32, queue: u32) -> Hop {
        Hop {
            tx_bytes,
            time_ns,
            queue,
            link_mbps: 100_000,
        }
    }

    #[test]
    fn a_busy_link_without_queue_is_one() {
        let sample = most_loaded(&[hop(0, 0, 0)], &[hop(12_500, 1000, 0)], 10_000).unwrap();
        assert_eq!(sample.utilisation, 1 << 16);
        assert_eq!((sample.span_ns, sample.queue_ns), (1000, 0));
    }

    #[test]
    fn the_queue_term_is_the_smaller_queue_over_the_bandwidth_delay_product() {
        let bdp = 125_000;
        let sample = most_loaded(&[hop(0, 0, bdp)], &[hop(12_500, 1000, 3 * bdp)], 10_000).unwrap();
        assert_eq!(sample.utilisation, 2 << 16);
        assert_eq!(sample.queue_ns, 30_000);
    }

    #[test]
    fn counters_and_clock_wrap() {
        let sample = most_loaded(
            &[hop(u32::MAX - 99, u32::MAX - 9, 0)],
            &[hop(25, 0, 0)],
            10_000,
        )
        .unwrap();
        assert_eq!(sample.utilisation, 1 << 16);
        assert_eq!(sample.span_ns, 10);
    }

    #[test]
    fn what_can_not_be_compared_is_no_sample() {
        assert_eq!(most_loaded(&[], &[], 10_000), None);
        assert_eq!(most_loaded(&[hop(0, 0, 0)], &[], 10_000), None);
        assert_eq!(most_loaded(&[hop(0, 5, 0)], &[hop(9, 5, 0)], 10_000), None);
    }

    #[test]
    fn the_worst_hop_wins() {
        let old = [hop(0, 0, 0), hop(0, 0, 0)];
        let new = [hop(1250, 1000, 0), hop(6250, 1000, 700)];
        let sample = most_loaded(&old, &new, 10_000).unwrap();
        assert_eq!(sample.utilisation, 1 << 15);
        assert_eq!(sample.queue_ns, 56);
    }
}
