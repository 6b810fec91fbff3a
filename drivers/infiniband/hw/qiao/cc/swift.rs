// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A delay-target law after Swift (Kumar et al., SIGCOMM'20), with flow scaling.

use crate::event::{Action, Event, Port};
use crate::fixed::{after, clamp_u32, div, isqrt, mul_div, mul_q16, Rate, ONE_Q16};
use crate::Algorithm;

/// Windows are kept in 1/16 byte.
const WINDOW_SHIFT: u32 = 4;

/// Constants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// Round trip to aim at, without flow scaling, in nanoseconds.
    pub target_ns: u32,
    /// Most that flow scaling adds, in nanoseconds.
    pub scaling_ns: u32,
    /// Multiplicative decrease in Q16.
    pub beta: u32,
    /// Largest decrease per round trip in Q16.
    pub max_decrease: u32,
}

impl Tuning {
    /// One and a half base round trips, and five more for tiny windows.
    pub const fn new(port: &Port) -> Self {
        Self {
            target_ns: port.base_rtt_ns.saturating_add(port.base_rtt_ns / 2),
            scaling_ns: port.base_rtt_ns.saturating_mul(5),
            beta: 52_429,
            max_decrease: ONE_Q16 / 2,
        }
    }
}

/// State of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    window: u32,
    rtt_ns: u32,
    cut_end: u32,
    cut: bool,
}

/// Swift.
#[derive(Clone, Copy, Debug)]
pub struct Swift;

impl Algorithm for Swift {
    type Tuning = Tuning;
    type State = State;

    fn start(port: &Port, _tuning: &Tuning, _now_ns: u64) -> State {
        State {
            window: port.bdp().saturating_mul(1 << WINDOW_SHIFT),
            rtt_ns: port.base_rtt_ns,
            cut_end: 0,
            cut: false,
        }
    }

    fn on_event(port: &Port, tuning: &Tuning, state: &mut State, event: &Event) -> Action {
        if event.rtt_last_ns != 0 {
            state.rtt_ns = event.rtt_last_ns;
        }
        let target = tuning.target_ns.saturating_add(state.scaling(port, tuning));
        let late = event.rtt_last_ns > target || event.losses != 0;
        if late {
            state.decrease(tuning, event, target);
        } else {
            state.increase(port, event.acked);
        }
        let most = port.bdp().saturating_mul(2 << WINDOW_SHIFT);
        // Not `clamp`, which panics should the bounds be the wrong way round.
        state.window = state.window.max(port.mtu >> 2).min(most.max(port.mtu));
        let full = u64::from(port.bytes_in(state.rtt_ns)) << WINDOW_SHIFT;
        Action {
            rate: Rate::new(clamp_u32(div(u64::from(state.window) << 24, full.max(1)))),
            window: (state.window >> WINDOW_SHIFT).max(1),
            wake_ns: 0,
        }
    }
}

impl State {
    /// `range * (1 / sqrt(w) - 1 / sqrt(100)) / (1 / sqrt(0.1) - 1 / sqrt(100))` for `w` packets.
    fn scaling(&self, port: &Port, tuning: &Tuning) -> u32 {
        let packet = u64::from(port.mtu.max(1)) << WINDOW_SHIFT;
        // sqrt of w in Q16 from w in Q32.
        let root = isqrt(div(u64::from(self.window) << 32, packet)).max(1);
        let inverse = clamp_u32(div(1 << 32, u64::from(root)));
        let tenth = ONE_Q16 / 10;
        // 3.0623 in Q16.
        const SPAN: u32 = 200_690;
        mul_div(tuning.scaling_ns, inverse.saturating_sub(tenth), SPAN).min(tuning.scaling_ns)
    }

    /// One packet per round trip, also for windows below one packet.
    fn increase(&mut self, port: &Port, acked: u32) {
        let packet = port.mtu.saturating_mul(1 << WINDOW_SHIFT);
        let acked = acked.saturating_mul(1 << WINDOW_SHIFT);
        let step = if self.window >= packet {
            mul_div(packet, acked, self.window)
        } else {
            acked
        };
        self.window = self.window.saturating_add(step);
    }

    fn decrease(&mut self, tuning: &Tuning, event: &Event, target: u32) {
        if self.cut && !after(event.acked_to, self.cut_end) {
            return;
        }
        self.cut = true;
        self.cut_end = event.sent_to;
        let excess = event.rtt_last_ns.saturating_sub(target);
        let share = mul_div(excess, ONE_Q16, event.rtt_last_ns.max(1));
        let cut = mul_q16(tuning.beta, share).min(tuning.max_decrease);
        let cut = if event.losses != 0 {
            tuning.max_decrease
        } else {
            cut
        };
        self.window = self.window.saturating_sub(mul_q16(self.window, cut));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORT: Port = Port {
        link_mbps: 100_000,
        base_rtt_ns: 4000,
        mtu: 1000,
    };

    #[test]
    fn late_round_trips_shrink_the_window_once_each() {
        let tuning = Tuning::new(&PORT);
        let mut state = Swift::start(&PORT, &tuning, 0);
        let late = Event {
            acked: 1000,
            acked_to: 1000,
            sent_to: 50_000,
            rtt_last_ns: 60_000,
            ..Event::default()
        };
        let first = Swift::on_event(&PORT, &tuning, &mut state, &late);
        assert_eq!(first.window, 25_000);
        let again = Swift::on_event(
            &PORT,
            &tuning,
            &mut state,
            &Event {
                acked_to: 2000,
                ..late
            },
        );
        assert_eq!(again.window, 25_000);
        let prompt = Event {
            rtt_last_ns: 4000,
            acked_to: 3000,
            ..late
        };
        assert!(Swift::on_event(&PORT, &tuning, &mut state, &prompt).window > 25_000);
    }
}
