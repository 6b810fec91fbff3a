// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A link between two ports: order, delay, faults and counters.

use crate::counters::Counters;
use crate::credit::FlowControl;
use crate::wire::{Frame, WireError};
use rand::{rngs::SmallRng, Rng, SeedableRng};
use std::collections::VecDeque;

/// One of the two ends of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    /// The first end.
    A,
    /// The second end.
    B,
}

impl End {
    /// Returns the other end.
    pub fn peer(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }

    fn index(self) -> usize {
        match self {
            Self::A => 0,
            Self::B => 1,
        }
    }
}

/// What a link does to packets. Probabilities are from 0 to 1, per packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Deserialize, serde::Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Faults {
    /// Loses the packet.
    pub drop: f64,
    /// Flips one bit.
    pub corrupt: f64,
    /// Delivers the packet twice.
    pub duplicate: f64,
    /// Holds the packet back by `reorder_ns`, so that later ones overtake it.
    pub reorder: f64,
    /// How long, in nanoseconds.
    pub reorder_ns: u64,
    /// Delay of every packet in nanoseconds.
    pub delay_ns: u64,
    /// The link goes down on its own after this time on the average, in nanoseconds; never if it is 0.
    pub flap_after_ns: u64,
    /// How long it is down then, in nanoseconds.
    pub flap_down_ns: u64,
}

/// What a link carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// A packet.
    Packet(Frame),
    /// A flow control message.
    FlowControl(FlowControl),
}

#[derive(Debug)]
struct InFlight {
    due: u64,
    to: End,
    what: Arrival,
}

/// A link between two ports.
#[derive(Debug)]
pub struct Link {
    faults: Faults,
    rng: SmallRng,
    up: bool,
    /// Whether a fault holds the link down.
    flapped: bool,
    /// When that changes.
    flap_at: Option<u64>,
    /// By the time when they are due, and among equals as they were sent.
    flying: VecDeque<InFlight>,
    counters: [Counters; 2],
    /// What the faults did, for reports.
    injected: u64,
}

impl Link {
    /// Makes a link that is up; equal seeds give equal faults.
    pub fn new(seed: u64, faults: Faults) -> Self {
        Self {
            faults,
            rng: SmallRng::seed_from_u64(seed),
            up: true,
            flapped: false,
            flap_at: None,
            flying: VecDeque::new(),
            counters: [Counters::default(); 2],
            injected: 0,
        }
    }

    /// Replaces the faults.
    pub fn set_faults(&mut self, faults: Faults) {
        self.faults = faults;
    }

    /// Lets the link go down or come up on its own, if that is due at `now`. Returns whether that has changed; the caller then takes it
    /// down or up.
    pub fn flap(&mut self, now: u64) -> bool {
        let Faults {
            flap_after_ns,
            flap_down_ns,
            ..
        } = self.faults;
        if flap_after_ns == 0 {
            self.flap_at = None;
            return std::mem::take(&mut self.flapped);
        }
        let at = match self.flap_at {
            Some(at) => at,
            None => self.next_flap(now, flap_after_ns),
        };
        self.flap_at = Some(at);
        if at > now {
            return false;
        }
        self.flapped = !self.flapped;
        self.injected += u64::from(self.flapped);
        self.flap_at = Some(if self.flapped {
            now.saturating_add(flap_down_ns)
        } else {
            self.next_flap(now, flap_after_ns)
        });
        true
    }

    fn next_flap(&mut self, now: u64, average: u64) -> u64 {
        now.saturating_add(self.rng.random_range(0..=average.saturating_mul(2)))
    }

    /// Returns whether a fault holds the link down.
    pub fn is_flapped(&self) -> bool {
        self.flapped
    }

    /// Returns whether the link is up.
    pub fn is_up(&self) -> bool {
        self.up
    }

    /// Takes the link down, which loses what is in flight, or up.
    pub fn set_up(&mut self, up: bool) {
        self.up = up;
        if !up {
            self.flying.clear();
        }
    }

    /// Returns the counters of the port at `end`.
    pub fn counters(&self, end: End) -> Counters {
        self.counters[end.index()]
    }

    /// Returns how many faults have been injected.
    pub fn injected(&self) -> u64 {
        self.injected
    }

    /// Returns how many packets and messages are in flight.
    pub fn in_flight(&self) -> usize {
        self.flying.len()
    }

    /// Sends a packet at time `now` in nanoseconds.
    pub fn send(&mut self, from: End, now: u64, mut frame: Frame) {
        let counters = &mut self.counters[from.index()];
        if !self.up {
            counters.xmit_discards += 1;
            return;
        }
        counters.xmit_pkts += 1;
        counters.xmit_data += words(&frame);
        let faults = self.faults;
        if self.chance(faults.drop) {
            return;
        }
        if self.chance(faults.corrupt) {
            frame.flip(self.rng.random_range(0..frame.wire_len() * 8));
        }
        let mut due = now.saturating_add(faults.delay_ns);
        if self.chance(faults.reorder) {
            due = due.saturating_add(faults.reorder_ns);
        }
        if self.chance(faults.duplicate) {
            self.fly(from.peer(), due, Arrival::Packet(frame.clone()));
        }
        self.fly(from.peer(), due, Arrival::Packet(frame));
    }

    /// Sends a flow control message, which no fault concerns but the delay. It keeps its place among the packets, which it counts.
    pub fn send_message(&mut self, from: End, now: u64, message: FlowControl) {
        if self.up {
            let due = now.saturating_add(self.faults.delay_ns);
            self.fly(from.peer(), due, Arrival::FlowControl(message));
        }
    }

    /// Returns what is due next at `now`, with the end that gets it. A packet whose VCRC is wrong is counted and dropped, as the
    /// link layer does (IBTA 7.8.2).
    pub fn receive(&mut self, now: u64) -> Option<(End, Arrival)> {
        while self.flying.front().is_some_and(|p| p.due <= now) {
            let InFlight { to, what, .. } = self.flying.pop_front()?;
            let Arrival::Packet(frame) = what else {
                return Some((to, what));
            };
            let counters = &mut self.counters[to.index()];
            counters.rcv_pkts += 1;
            counters.rcv_data += words(&frame);
            match frame.check_vcrc() {
                Ok(()) => return Some((to, Arrival::Packet(frame))),
                Err(WireError::Vcrc | WireError::Length) => counters.rcv_errors += 1,
                Err(_) => unreachable!("check_vcrc has two errors"),
            }
        }
        None
    }

    /// Returns when the next packet or message is due, or the link goes down or up on its own, in nanoseconds.
    pub fn next_due(&self) -> Option<u64> {
        let arrival = self.flying.front().map(|p| p.due);
        arrival.into_iter().chain(self.flap_at).min()
    }

    fn chance(&mut self, probability: f64) -> bool {
        let hit = probability > 0.0 && self.rng.random_bool(probability.min(1.0));
        self.injected += u64::from(hit);
        hit
    }

    fn fly(&mut self, to: End, due: u64, what: Arrival) {
        // Almost always at the end: what is due later is there by a fault.
        let later = self.flying.iter().rev().take_while(|p| p.due > due);
        let at = self.flying.len() - later.count();
        self.flying.insert(at, InFlight { due, to, what });
    }
}

/// PortXmitData counts words without the VCRC (IBTA 16.1.3.5).
fn words(frame: &Frame) -> u64 {
    (frame.wire_len() as u64).saturating_sub(2) / 4
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{vcrc, MIN_PACKET};

    fn packet(tag: u8) -> Frame {
        let mut p = vec![tag; MIN_PACKET];
        let n = p.len() - 2;
        let crc = vcrc(&p[..n]);
        p[n..].copy_from_slice(&crc);
        Frame::from_wire(&p).unwrap()
    }

    #[test]
    fn a_clean_link_keeps_order_and_counts() {
        let mut link = Link::new(
            1,
            Faults {
                delay_ns: 10,
                ..Faults::default()
            },
        );
        for tag in 0..100 {
            link.send(End::A, u64::from(tag), packet(tag));
        }
        assert_eq!(link.receive(9), None);
        for tag in 0..100 {
            assert_eq!(
                link.receive(1000),
                Some((End::B, Arrival::Packet(packet(tag))))
            );
        }
        assert_eq!(link.receive(1000), None);
        assert_eq!(link.counters(End::A).xmit_pkts, 100);
        assert_eq!(link.counters(End::B).rcv_data, 600);
    }

    #[test]
    fn corrupt_packets_are_counted_and_dropped() {
        let mut link = Link::new(
            1,
            Faults {
                corrupt: 1.0,
                ..Faults::default()
            },
        );
        for tag in 0..50 {
            link.send(End::B, 0, packet(tag));
        }
        assert_eq!(link.receive(0), None);
        assert_eq!(link.counters(End::A).rcv_errors, 50);
    }

    #[test]
    fn equal_seeds_give_equal_faults() {
        let faults = Faults {
            drop: 0.3,
            duplicate: 0.2,
            reorder: 0.2,
            reorder_ns: 5,
            ..Faults::default()
        };
        let run = |seed| {
            let mut link = Link::new(seed, faults);
            for tag in 0..200 {
                link.send(End::A, u64::from(tag), packet(tag));
            }
            std::iter::from_fn(|| link.receive(1 << 40))
                .map(|(_, arrival)| match arrival {
                    Arrival::Packet(frame) => frame.into_wire()[0],
                    Arrival::FlowControl(_) => unreachable!("none was sent"),
                })
                .collect::<Vec<_>>()
        };
        assert_eq!(run(7), run(7));
        assert_ne!(run(7), run(8));
    }

    #[test]
    fn a_link_that_is_down_loses_packets() {
        let mut link = Link::new(1, Faults::default());
        link.send(End::A, 0, packet(1));
        link.set_up(false);
        link.send(End::A, 0, packet(2));
        link.set_up(true);
        assert_eq!(link.receive(10), None);
        assert_eq!(link.counters(End::A).xmit_discards, 1);
    }

    #[test]
    fn a_link_flaps_as_its_seed_says() {
        let faults = Faults {
            flap_after_ns: 1000,
            flap_down_ns: 10,
            ..Faults::default()
        };
        let run = |seed| {
            let mut link = Link::new(seed, faults);
            let mut changes = Vec::new();
            while changes.len() < 200 {
                let now = link.next_due().unwrap_or(0);
                if link.flap(now) {
                    changes.push((now, link.is_flapped()));
                }
            }
            assert_eq!(link.injected(), 100);
            changes
        };
        let changes = run(7);
        assert_eq!(changes, run(7));
        assert_ne!(changes, run(8));
        for pair in changes.chunks(2) {
            let [(down, true), (up, false)] = pair else {
                unreachable!("down and up take turns: {pair:?}");
            };
            assert_eq!(up - down, 10);
        }
        // 100 times up for 1000 ns on the average.
        let last = changes[199].0;
        assert!((60_000..150_000).contains(&last), "{last} ns");
        let mut link = Link::new(1, faults);
        while !link.is_flapped() {
            link.flap(link.next_due().unwrap_or(0));
        }
        link.set_faults(Faults::default());
        assert!(link.flap(0) && !link.is_flapped());
        assert_eq!(link.next_due(), None);
    }

    #[test]
    fn a_message_keeps_its_place_among_the_packets() {
        let mut link = Link::new(1, Faults::default());
        let message = FlowControl {
            vl: 0,
            fctbs: 1,
            fccl: 9,
        };
        link.send(End::A, 0, packet(1));
        link.send_message(End::A, 0, message);
        link.send(End::A, 0, packet(2));
        for want in [
            Arrival::Packet(packet(1)),
            Arrival::FlowControl(message),
            Arrival::Packet(packet(2)),
        ] {
            assert_eq!(link.receive(0), Some((End::B, want)));
        }
    }
}
