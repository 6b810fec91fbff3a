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
//! else marks and notifications. `docs/congestion-control.md` has the argument.

use crate::event::{Action, Event, Port};
use crate::fixed::{clamp_u32, div, log2_q16, mul_div, mul_q16, Rate, ONE_Q16};
use crate::Algorithm;

/// Windows are kept in 1/16 byte: the share of one of many senders is less than a packet.
const WINDOW_SHIFT: u32 = 4;
/// Part of the base round trip that a flow alone may queue, and part per halving of its rate.
const TARGET_SHIFT: u32 = 2;
/// Part of the bandwidth-delay product that a new flow sends unasked.
const START_SHIFT: u32 = 1;
/// Smallest part of the bandwidth-delay product that a window can be.
const FLOOR_SHIFT: u32 = 12;
/// Part of the full correction downwards that one round trip applies.
const GAIN_DOWN: u32 = ONE_Q16 / 2;
/// The same upwards.
const GAIN_UP: u32 = ONE_Q16;

/// State of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// Window in bytes, shifted by [`WINDOW_SHIFT`].
    window: u32,
    /// Shortest round trip of this path; `u32::MAX` before the first sample.
    base_ns: u32,
    /// Delay that the last marks stand for, where no delay is measured.
    marked_ns: u32,
    /// Sequence number at which the next loss counts.
    loss_end: u32,
    lost: bool,
    /// Delays come from telemetry, which has no noise: half the target will do.
    exact: bool,
}

/// The default algorithm; it has no constants to choose.
#[derive(Clone, Copy, Debug)]
pub struct Auto;

impl Algorithm for Auto {
    type Tuning = ();
    type State = State;

    fn start(port: &Port, _tuning: &(), _now_ns: u64) -> State {
        let start = (port.bdp() >> START_SHIFT).max(port.mtu);
        State {
            window: shifted(start),
            base_ns: u32::MAX,
            marked_ns: 0,
            loss_end: 0,
            lost: false,
            exact: false,
        }
    }

    fn on_event(port: &Port, _tuning: &(), state: &mut State, event: &Event) -> Action {
        if event.rtt_min_ns != 0 {
            state.base_ns = state.base_ns.min(event.rtt_min_ns);
        }
        let base = state.base(port);
        if event.acked != 0 {
            let delay = state.delay(port, event, base);
            state.correct(port, event.acked, base, delay);
        }
        if event.losses != 0 {
            state.halve_once(event);
        }
        state.limit(port, base);
        let target = state.target(port, base, 0);
        Action {
            rate: state.rate(port, base.saturating_add(target)),
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
        port.base_rtt_ns >> TARGET_SHIFT.saturating_add(u32::from(self.exact))
    }

    /// Target of the queueing delay for the rate that the window gives at `delay`.
    fn target(&self, port: &Port, base: u32, delay: u32) -> u32 {
        let step = self.step(port);
        let full = shifted(port.bytes_in(base.saturating_add(delay)));
        let below_line = log2_q16(mul_div(full, ONE_Q16, self.window.max(1)));
        step.saturating_add(mul_q16(step, below_line))
    }

    /// Queueing delay of the path as the best source has it.
    fn delay(&mut self, port: &Port, event: &Event, base: u32) -> u32 {
        if let Some(sample) = event.telemetry {
            self.exact = true;
            return sample.queue_ns;
        }
        if event.rtt_last_ns != 0 {
            return event.rtt_last_ns.saturating_sub(base);
        }
        // Marks say that a queue is too long and not how long it is: a bandwidth-delay product
        // beyond the target if all are marked.
        let marked = event.marked.min(event.acked);
        let fraction = match (marked, event.notifications) {
            (0, 0) => 0,
            (0, _) => ONE_Q16,
            _ => mul_div(marked, ONE_Q16, event.acked),
        };
        if fraction == 0 {
            self.marked_ns = 0;
        } else {
            let target = self.target(port, base, 0);
            self.marked_ns = target.saturating_add(mul_q16(port.base_rtt_ns, fraction));
        }
        self.marked_ns
    }

    /// Moves the window by the part of a round trip that `acked` bytes are.
    fn correct(&mut self, port: &Port, acked: u32, base: u32, delay: u32) {
        let target = self.target(port, base, delay);
        let want = base.saturating_add(target);
        let have = base.saturating_add(delay);
        let ratio = mul_div(ONE_Q16, want, have).clamp(ONE_Q16 / 2, 2 * ONE_Q16);
        let part = shifted(acked).min(self.window);
        self.window = if ratio >= ONE_Q16 {
            let gain = mul_q16(GAIN_UP, ratio.saturating_sub(ONE_Q16));
            self.window.saturating_add(mul_q16(part, gain))
        } else {
            let gain = mul_q16(GAIN_DOWN, ONE_Q16.saturating_sub(ratio));
            self.window.saturating_sub(mul_q16(part, gain))
        };
    }

    /// Halves the window for the first loss of a round trip.
    fn halve_once(&mut self, event: &Event) {
        if self.lost && !crate::fixed::after(event.acked_to, self.loss_end) {
            return;
        }
        self.lost = true;
        self.loss_end = event.sent_to;
        self.window >>= 1;
    }

    fn limit(&mut self, port: &Port, base: u32) {
        let alone = base.saturating_add(port.base_rtt_ns >> TARGET_SHIFT);
        let most = shifted(port.bytes_in(alone));
        let least = (shifted(port.bdp()) >> FLOOR_SHIFT).max(1);
        self.window = self.window.clamp(least, most.max(least));
    }

    /// The rate that spreads the window over `ns`.
    fn rate(&self, port: &Port, ns: u32) -> Rate {
        let full = u64::from(shifted(port.bytes_in(ns)));
        Rate::new(clamp_u32(div(u64::from(self.window) << 24, full)))
    }
}
