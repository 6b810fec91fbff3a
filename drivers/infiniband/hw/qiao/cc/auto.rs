// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The default: a queueing-delay target that falls with the share of the link a flow has.
//!
//! Every flow of a bottleneck sees one delay, so with a target that is a strictly falling function
//! of the rate there is one rate at which all of them are content: fairness needs no additive
//! increase, and so no constant that depends on how many flows there are. The target grows with
//! the logarithm of their number, which is how far 1024 senders are from one.
//!
//! Per round trip the window moves by `(base + target) / (base + delay)`. With windows the queue is
//! the sum of what is in flight less what the path holds, so this ratio is what makes the delay
//! equal the target, whatever the number of flows.
//!
//! The delay comes from what the fabric gives: telemetry of the longest queue, else round trips,
//! else marks and notifications, else the time for which link flow control held the sender.
//! `docs/congestion-control.md` has the argument.

use crate::event::{Action, Event, Port, Telemetry};
use crate::fixed::{after, clamp_u32, div, log2_q16, mul_div, mul_q16, Rate, ONE_Q16};
use crate::Algorithm;

/// Windows are kept in 1/16 byte: the share of one of many senders is less than a packet.
const WINDOW_SHIFT: u32 = 4;
/// Part of the base round trip that a flow alone may queue, and part per halving of its rate.
const TARGET_SHIFT: u32 = 2;
/// The same where telemetry gives the queue itself, without the noise of a round trip.
const EXACT_TARGET_SHIFT: u32 = 4;
/// Part of the bandwidth-delay product that a new flow sends unasked. Nothing can be known before
/// the first acknowledgment, so this part times the senders of an incast is what a switch needs.
const START_SHIFT: u32 = 3;
/// Window that each acknowledged byte of the start adds: half a bandwidth-delay product in one
/// round trip, and clocked by the share of the bottleneck that the start got.
const START_GAIN: u32 = 3;
/// Base round trips of delay from which a start does not grow.
const START_LIMIT: u32 = 3;
/// Smallest part of the bandwidth-delay product that a window can be.
const FLOOR_SHIFT: u32 = 12;
/// Part of the full correction downwards that one round trip applies.
const GAIN_DOWN: u32 = ONE_Q16 / 2;

/// State of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// Window in bytes, shifted by [`WINDOW_SHIFT`].
    window: u32,
    /// Shortest round trip of this path; `u32::MAX` before the first sample.
    base_ns: u32,
    /// Delay that the last marks or stalls stand for, where no delay is measured.
    implied_ns: u32,
    /// Bytes of the start that are not acknowledged.
    starting: u32,
    /// Sequence number at which the next loss counts.
    loss_end: u32,
    /// Low bits of the time of the last event.
    seen_ns: u32,
    /// Window from which the changes of this round trip start; with telemetry only.
    reference: u32,
    /// Sequence number that ends the round trip.
    round_end: u32,
    /// Average utilisation of the most loaded hop, in Q16.
    utilisation: u32,
    lost: bool,
    /// Delays come from telemetry.
    exact: bool,
    /// The fabric marks, so that a stall says nothing new.
    marks: bool,
    /// Telemetry still shows the time before the window that counts.
    stale: bool,
    /// An acknowledgment has come.
    answered: bool,
}

/// The default algorithm; it has no constants to choose.
#[derive(Clone, Copy, Debug)]
pub struct Auto;

impl Algorithm for Auto {
    type Tuning = ();
    type State = State;

    fn start(port: &Port, _tuning: &(), now_ns: u64) -> State {
        let start = (port.bdp() >> START_SHIFT).max(port.mtu);
        State {
            window: shifted(start),
            base_ns: u32::MAX,
            implied_ns: 0,
            starting: start,
            loss_end: 0,
            seen_ns: now_ns as u32,
            reference: shifted(start),
            round_end: 0,
            utilisation: ONE_Q16,
            lost: false,
            exact: false,
            marks: false,
            stale: true,
            answered: false,
        }
    }

    fn on_event(port: &Port, _tuning: &(), state: &mut State, event: &Event) -> Action {
        if event.rtt_min_ns != 0 {
            state.base_ns = state.base_ns.min(event.rtt_min_ns);
        }
        let base = state.base(port);
        if event.acked != 0 {
            state.answered = true;
            let delay = state.delay(port, event, base);
            if !state.grow_start(port, event, delay) {
                match event.telemetry {
                    Some(sample) => state.rescale(port, event, &sample, base),
                    None => state.correct(port, event.acked, base, delay),
                }
            }
            state.seen_ns = event.now_ns as u32;
        }
        if event.losses != 0 {
            state.halve_once(event);
        }
        state.limit(port, base);
        Action {
            rate: state.rate(port, base),
            window: (state.window >> WINDOW_SHIFT).max(1),
            wake_ns: 0,
        }
    }
}

const fn shifted(bytes: u32) -> u32 {
    bytes.saturating_mul(1 << WINDOW_SHIFT)
}

impl State {
    /// Round trip of the empty path.
    fn base(&self, port: &Port) -> u32 {
        self.base_ns.min(port.base_rtt_ns).max(1)
    }

    /// Target of a flow alone, and of each halving of its rate.
    fn step(&self, port: &Port) -> u32 {
        let shift = if self.exact {
            EXACT_TARGET_SHIFT
        } else {
            TARGET_SHIFT
        };
        port.base_rtt_ns >> shift
    }

    /// Target of the queueing delay for the rate that `window` gives at `delay`.
    fn target(&self, port: &Port, window: u32, base: u32, delay: u32) -> u32 {
        let step = self.step(port);
        let full = shifted(port.bytes_in(base.saturating_add(delay)));
        let below_line = log2_q16(mul_div(full, ONE_Q16, window.max(1)));
        step.saturating_add(mul_q16(step, below_line))
    }

    /// Queueing delay of the path as the best source has it.
    fn delay(&mut self, port: &Port, event: &Event, base: u32) -> u32 {
        if let Some(sample) = event.telemetry {
            self.exact = true;
            return sample.queue_ns;
        }
        self.exact = false;
        if event.rtt_last_ns != 0 {
            return event.rtt_last_ns.saturating_sub(base);
        }
        // Marks say that a queue is too long and not how long it is: a bandwidth-delay product
        // beyond the target if all are marked.
        let fraction = self.congested_part(event);
        self.implied_ns = if fraction == 0 {
            0
        } else {
            let target = self.target(port, self.window, base, 0);
            target.saturating_add(mul_q16(port.base_rtt_ns, fraction))
        };
        self.implied_ns
    }

    /// Part in Q16 of what was acknowledged that met congestion. Where nothing is marked, the part
    /// of the time for which the link was held is all there is.
    fn congested_part(&mut self, event: &Event) -> u32 {
        if event.marked != 0 {
            self.marks = true;
            return mul_div(event.marked.min(event.acked), ONE_Q16, event.acked);
        }
        if event.notifications != 0 {
            self.marks = true;
            return ONE_Q16;
        }
        if self.marks {
            return 0;
        }
        let span = (event.now_ns as u32).wrapping_sub(self.seen_ns).max(1);
        mul_div(event.stalled_ns.min(span), ONE_Q16, span)
    }

    /// Grows the window by the acknowledged bytes of the start, while the queue is short; false if
    /// the start is over.
    fn grow_start(&mut self, port: &Port, event: &Event, delay: u32) -> bool {
        if self.starting == 0 {
            return false;
        }
        if delay >= port.base_rtt_ns.saturating_mul(START_LIMIT) {
            self.starting = 0;
            self.stale = false;
            return false;
        }
        let part = event.acked.min(self.starting);
        self.starting = self.starting.saturating_sub(part);
        self.window = self
            .window
            .saturating_add(shifted(part).saturating_mul(START_GAIN));
        self.reference = self.window;
        self.round_end = event.sent_to;
        true
    }

    /// Moves the window by the part of a round trip that `acked` bytes are.
    fn correct(&mut self, port: &Port, acked: u32, base: u32, delay: u32) {
        let target = self.target(port, self.window, base, delay);
        let want = base.saturating_add(target);
        let have = base.saturating_add(delay);
        let ratio = mul_div(ONE_Q16, want, have).clamp(ONE_Q16 / 2, 2 * ONE_Q16);
        let part = shifted(acked).min(self.window);
        self.window = if ratio >= ONE_Q16 {
            let gain = ratio.saturating_sub(ONE_Q16);
            self.window.saturating_add(mul_q16(part, gain))
        } else {
            let gain = mul_q16(GAIN_DOWN, ONE_Q16.saturating_sub(ratio));
            self.window.saturating_sub(mul_q16(part, gain))
        };
        self.reference = self.window;
    }

    /// Sets the window from the one of the last round trip, whose effect telemetry shows.
    ///
    /// What is in flight is the utilisation times the bandwidth-delay product, be the link full or
    /// not, so that one round trip gets all the way. The reference moves once per round trip:
    /// the effect of a change is not corrected a second time before it can be seen.
    fn rescale(&mut self, port: &Port, event: &Event, sample: &Telemetry, base: u32) {
        let next_round = after(event.acked_to, self.round_end);
        if self.stale && !next_round {
            return;
        }
        let began = core::mem::replace(&mut self.stale, false);
        let span = sample.span_ns.min(port.base_rtt_ns);
        let rest = port.base_rtt_ns.saturating_sub(span);
        self.utilisation = mul_div(self.utilisation, rest, port.base_rtt_ns)
            .saturating_add(mul_div(sample.utilisation, span, port.base_rtt_ns));

        let target = self.target(port, self.reference, base, 0);
        let want = mul_div(ONE_Q16, base.saturating_add(target), base);
        let ratio = mul_div(ONE_Q16, want, self.utilisation.max(1));
        self.window = mul_q16(self.reference, ratio.clamp(ONE_Q16 / 4, 4 * ONE_Q16));
        self.limit(port, base);
        if next_round {
            self.round_end = event.sent_to;
            if !began {
                self.reference = self.window;
            }
        }
    }

    /// Halves the window for the first loss of a round trip.
    fn halve_once(&mut self, event: &Event) {
        if self.lost && !after(event.acked_to, self.loss_end) {
            return;
        }
        self.lost = true;
        self.loss_end = event.sent_to;
        self.window >>= 1;
        self.reference = self.window;
        self.starting = 0;
    }

    fn limit(&mut self, port: &Port, base: u32) {
        let alone = base.saturating_add(port.base_rtt_ns >> TARGET_SHIFT);
        let most = shifted(port.bytes_in(alone));
        let least = (shifted(port.bdp()) >> FLOOR_SHIFT).max(1);
        self.window = self.window.clamp(least, most.max(least));
    }

    /// The rate that spreads the window over the shortest round trip. The window alone makes it
    /// slower than that where there is a queue. A start is not spread: it is short, and most
    /// messages are not longer.
    fn rate(&self, port: &Port, base: u32) -> Rate {
        if !self.answered {
            return Rate::LINE;
        }
        let full = u64::from(shifted(port.bytes_in(base)));
        Rate::new(clamp_u32(div(u64::from(self.window) << 24, full)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORT: Port = Port {
        link_mbps: 100_000,
        base_rtt_ns: 8000,
        mtu: 1000,
    };

    fn ack(step: u32, event: Event) -> Event {
        Event {
            now_ns: u64::from(step).wrapping_mul(8000),
            acked: 12_500,
            acked_to: step.wrapping_mul(12_500),
            sent_to: step.wrapping_mul(12_500).wrapping_add(50_000),
            ..event
        }
    }

    /// The window after 64 events of one kind, in parts of the bandwidth-delay product.
    fn settled(event: Event) -> f64 {
        let mut state = Auto::start(&PORT, &(), 0);
        let mut window = 0;
        for step in 1..=64 {
            window = Auto::on_event(&PORT, &(), &mut state, &ack(step, event)).window;
        }
        f64::from(window) / f64::from(PORT.bdp())
    }

    #[test]
    fn an_empty_fabric_gives_the_line_rate_whatever_it_reports() {
        let rtt = Event {
            rtt_min_ns: 8000,
            rtt_last_ns: 8000,
            ..Event::default()
        };
        assert!(settled(rtt) >= 1.0);
        assert!(settled(Event::default()) >= 1.0);
    }

    #[test]
    fn each_source_of_delay_alone_slows_the_flow() {
        let late = Event {
            rtt_min_ns: 8000,
            rtt_last_ns: 40_000,
            ..Event::default()
        };
        let marked = Event {
            marked: 12_500,
            ..Event::default()
        };
        let notified = Event {
            notifications: 1,
            ..Event::default()
        };
        let held = Event {
            stalled_ns: 6000,
            ..Event::default()
        };
        let loaded = Event {
            telemetry: Some(Telemetry {
                utilisation: 3 * ONE_Q16,
                span_ns: 8000,
                queue_ns: 16_000,
            }),
            ..Event::default()
        };
        for event in [late, marked, notified, held, loaded] {
            assert!(settled(event) < 0.3, "{event:?}: {}", settled(event));
        }
    }

    #[test]
    fn a_stall_is_no_congestion_where_the_fabric_marks() {
        let mut state = Auto::start(&PORT, &(), 0);
        let marked = Event {
            marked: 100,
            ..Event::default()
        };
        Auto::on_event(&PORT, &(), &mut state, &ack(1, marked));
        let before = state.window;
        let held = Event {
            stalled_ns: 8000,
            ..Event::default()
        };
        Auto::on_event(&PORT, &(), &mut state, &ack(2, held));
        assert!(state.window >= before);
    }

    #[test]
    fn the_start_grows_only_before_a_short_queue() {
        for (delay, grown) in [(0, 4), (23_000, 4), (24_000, 1)] {
            let mut state = Auto::start(&PORT, &(), 0);
            let start = state.window;
            let event = Event {
                rtt_min_ns: 8000,
                rtt_last_ns: 8000 + delay,
                ..Event::default()
            };
            Auto::on_event(&PORT, &(), &mut state, &ack(1, event));
            assert_eq!(state.window.div_ceil(start), grown);
        }
    }
}
