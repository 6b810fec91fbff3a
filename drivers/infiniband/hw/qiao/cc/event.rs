// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What a device tells an algorithm, and what the algorithm answers.

use crate::fixed::Rate;

/// The port-wide facts that every algorithm derives its constants from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    /// Port rate in Mb/s.
    pub link_mbps: u32,
    /// Round trip of an empty fabric in nanoseconds: the longest that the port has measured.
    pub base_rtt_ns: u32,
    /// Payload of a full packet in bytes.
    pub mtu: u32,
}

impl Port {
    /// Bytes that the port sends in `ns` nanoseconds.
    #[inline]
    pub const fn bytes_in(&self, ns: u32) -> u32 {
        // Mb/s times ns is millibits.
        crate::fixed::clamp_u32((self.link_mbps as u64).saturating_mul(ns as u64) / 8000)
    }

    /// Bandwidth-delay product in bytes, at least one packet.
    #[inline]
    pub const fn bdp(&self) -> u32 {
        let bdp = self.bytes_in(self.base_rtt_ns);
        if bdp < self.mtu {
            self.mtu
        } else {
            bdp
        }
    }
}

/// In-band telemetry of the most loaded hop since the previous event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Telemetry {
    /// Utilisation as HPCC defines it, queue term included, in Q16.
    pub utilisation: u32,
    /// Time that the sample covers, in nanoseconds.
    pub span_ns: u32,
    /// Time that the longest queue on the path takes to drain, in nanoseconds.
    pub queue_ns: u32,
}

/// Everything that happened to a flow since its previous event, as the device added it up.
///
/// All counters are deltas. A slow host sees fewer and bigger events, never a lost edge, so no
/// algorithm may assume one event per packet or per round trip.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// Device time in nanoseconds when the event was closed.
    pub now_ns: u64,
    /// Payload bytes that became acknowledged.
    pub acked: u32,
    /// Of them, bytes whose packets arrived marked (ECN CE or FECN).
    pub marked: u32,
    /// Congestion notifications (CNP or BECN).
    pub notifications: u32,
    /// Sequence number up to which all is acknowledged, modulo 2^32.
    pub acked_to: u32,
    /// Sequence number up to which all was sent, modulo 2^32.
    pub sent_to: u32,
    /// Shortest round trip seen, 0 if none was measured.
    pub rtt_min_ns: u32,
    /// Latest round trip seen, 0 if none was measured.
    pub rtt_last_ns: u32,
    /// Time that the sender was held by link flow control (credits or pause) in nanoseconds.
    pub stalled_ns: u32,
    /// Losses: NAKs for a sequence error, and retransmission timeouts.
    pub losses: u32,
    /// RNR NAKs: the receiver was not ready, which says nothing of the fabric.
    pub rnr_naks: u32,
    /// In-band telemetry, if the fabric has it.
    pub telemetry: Option<Telemetry>,
}

impl Event {
    /// Adds a newer event to this one: what a device does while the host has not read it yet.
    pub fn absorb(&mut self, newer: &Self) {
        let shortest = match (self.rtt_min_ns, newer.rtt_min_ns) {
            (0, rtt) | (rtt, 0) => rtt,
            (a, b) if a < b => a,
            (_, b) => b,
        };
        let telemetry = match (self.telemetry, newer.telemetry) {
            (Some(old), Some(new)) => Some(old.followed_by(&new)),
            (old, new) => new.or(old),
        };
        *self = Self {
            now_ns: newer.now_ns,
            acked: self.acked.saturating_add(newer.acked),
            marked: self.marked.saturating_add(newer.marked),
            notifications: self.notifications.saturating_add(newer.notifications),
            acked_to: newer.acked_to,
            sent_to: newer.sent_to,
            rtt_min_ns: shortest,
            rtt_last_ns: if newer.rtt_last_ns == 0 {
                self.rtt_last_ns
            } else {
                newer.rtt_last_ns
            },
            stalled_ns: self.stalled_ns.saturating_add(newer.stalled_ns),
            losses: self.losses.saturating_add(newer.losses),
            rnr_naks: self.rnr_naks.saturating_add(newer.rnr_naks),
            telemetry,
        };
    }
}

impl Telemetry {
    /// Both samples as one: mean utilisation over the time of both, and the latest queue.
    fn followed_by(&self, newer: &Self) -> Self {
        let span = u64::from(self.span_ns).saturating_add(u64::from(newer.span_ns));
        let sum = u64::from(self.utilisation)
            .saturating_mul(u64::from(self.span_ns))
            .saturating_add(u64::from(newer.utilisation).saturating_mul(u64::from(newer.span_ns)));
        Self {
            utilisation: crate::fixed::clamp_u32(crate::fixed::div(sum, span)),
            span_ns: crate::fixed::clamp_u32(span),
            queue_ns: newer.queue_ns,
        }
    }
}

/// What the device shall enforce for a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Action {
    /// Pacing rate.
    pub rate: Rate,
    /// Limit of unacknowledged payload bytes; [`Action::UNLIMITED`] for none.
    ///
    /// A device sends a packet while less than this is in flight, so any window lets one packet
    /// out and rates below one packet per round trip come from pacing.
    pub window: u32,
    /// Nanoseconds after which the algorithm wants an event even if nothing happened; 0 for never.
    pub wake_ns: u32,
}

impl Action {
    /// No window.
    pub const UNLIMITED: u32 = u32::MAX;

    /// Line rate without a window.
    pub const LINE: Self = Self {
        rate: Rate::LINE,
        window: Self::UNLIMITED,
        wake_ns: 0,
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_add_up() {
        let sample = |utilisation, span_ns, queue_ns| {
            Some(Telemetry {
                utilisation,
                span_ns,
                queue_ns,
            })
        };
        let mut sum = Event {
            acked: 1000,
            rtt_min_ns: 5000,
            rtt_last_ns: 5000,
            telemetry: sample(10, 100, 7),
            ..Event::default()
        };
        let newer = Event {
            now_ns: 9,
            acked: 500,
            marked: 500,
            acked_to: 1500,
            rtt_min_ns: 6000,
            rtt_last_ns: 6000,
            telemetry: sample(40, 200, 3),
            ..Event::default()
        };
        sum.absorb(&newer);
        assert_eq!(
            (sum.now_ns, sum.acked, sum.marked, sum.acked_to),
            (9, 1500, 500, 1500)
        );
        assert_eq!((sum.rtt_min_ns, sum.rtt_last_ns), (5000, 6000));
        assert_eq!(sum.telemetry, sample(30, 300, 3));
        sum.absorb(&Event {
            acked: u32::MAX,
            ..Event::default()
        });
        assert_eq!(
            (sum.acked, sum.rtt_min_ns, sum.rtt_last_ns),
            (u32::MAX, 5000, 6000)
        );
    }
}
