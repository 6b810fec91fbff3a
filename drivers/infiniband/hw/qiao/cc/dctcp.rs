// SPDX-License-Identifier: GPL-2.0 OR MIT

//! DCTCP's law on rate and window (Alizadeh et al., SIGCOMM'10; as the HPCC artifact runs it).

use crate::event::{Action, Event, Port};
use crate::fixed::{after, clamp_u32, div, mul_q30, Rate, ONE_Q30};
use crate::Algorithm;

/// Constants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// Gain of the alpha average in Q30.
    pub gain: u32,
    /// Additive increase per round trip in Mb/s.
    pub additive_mbps: u32,
    /// Floor in Mb/s.
    pub min_mbps: u32,
}

impl Tuning {
    /// One full packet per `increase_rtt_ns`, and a gain of 1/16.
    pub const fn new(port: &Port, increase_rtt_ns: u32) -> Self {
        let bits = (port.mtu as u64).saturating_mul(8000);
        Self {
            gain: ONE_Q30 >> 4,
            additive_mbps: clamp_u32(div(bits, increase_rtt_ns as u64)),
            min_mbps: port.link_mbps / 100,
        }
    }
}

/// State of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    rate: Rate,
    alpha: u32,
    /// End of the round over which marks are counted.
    round_end: u32,
    /// End of the round in which the rate was cut.
    cut_end: u32,
    acked: u32,
    marked: u32,
    started: bool,
    cutting: bool,
}

/// DCTCP.
#[derive(Clone, Copy, Debug)]
pub struct Dctcp;

impl Algorithm for Dctcp {
    type Tuning = Tuning;
    type State = State;

    fn start(_port: &Port, _tuning: &Tuning, _now_ns: u64) -> State {
        State::at(Rate::LINE)
    }

    fn on_event(port: &Port, tuning: &Tuning, state: &mut State, event: &Event) -> Action {
        state.acked = state.acked.saturating_add(event.acked);
        state.marked = state.marked.saturating_add(event.marked);
        let round = event.acked != 0 && (!state.started || after(event.acked_to, state.round_end));
        if round {
            state.close_round(tuning, event.sent_to);
        }
        if state.cutting && after(event.acked_to, state.cut_end) {
            state.cutting = false;
        }
        if event.marked != 0 && !state.cutting {
            let kept = ONE_Q30.saturating_sub(state.alpha >> 1);
            let floor = Rate::from_mbps(tuning.min_mbps, port.link_mbps);
            state.rate = Rate::new(mul_q30(state.rate.raw(), kept)).max(floor);
            state.cutting = true;
            state.cut_end = event.sent_to;
        }
        if round && !state.cutting {
            let step = Rate::from_mbps(tuning.additive_mbps, port.link_mbps);
            state.rate = state.rate.plus(step);
        }
        Action {
            rate: state.rate,
            window: state.rate.share_of(port.bdp()),
            wake_ns: 0,
        }
    }
}

impl State {
    /// A flow that has `rate` already.
    pub(crate) const fn at(rate: Rate) -> Self {
        Self {
            rate,
            alpha: ONE_Q30,
            round_end: 0,
            cut_end: 0,
            acked: 0,
            marked: 0,
            started: false,
            cutting: false,
        }
    }

    fn close_round(&mut self, tuning: &Tuning, sent_to: u32) {
        // The first round only sets the yardstick: alpha keeps its initial one.
        if self.started {
            let marked = u64::from(self.marked.min(self.acked)) << 30;
            let fraction = clamp_u32(div(marked, u64::from(self.acked)));
            let keep = ONE_Q30.saturating_sub(tuning.gain);
            self.alpha = mul_q30(self.alpha, keep).saturating_add(mul_q30(fraction, tuning.gain));
            self.marked = 0;
            self.acked = 0;
        }
        self.started = true;
        self.round_end = sent_to;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORT: Port = Port {
        link_mbps: 100_000,
        base_rtt_ns: 4160,
        mtu: 1000,
    };

    fn ack(to: u32, sent_to: u32, marked: bool) -> Event {
        Event {
            acked: 1000,
            marked: if marked { 1000 } else { 0 },
            acked_to: to,
            sent_to,
            ..Event::default()
        }
    }

    #[test]
    fn one_cut_per_round_trip() {
        let tuning = Tuning::new(&PORT, 13_000);
        let mut state = Dctcp::start(&PORT, &tuning, 0);
        let first = Dctcp::on_event(&PORT, &tuning, &mut state, &ack(1000, 52_000, true));
        assert_eq!(first.rate.raw(), Rate::LINE.raw() / 2);
        let second = Dctcp::on_event(&PORT, &tuning, &mut state, &ack(2000, 53_000, true));
        assert_eq!(second.rate, first.rate);
        let third = Dctcp::on_event(&PORT, &tuning, &mut state, &ack(53_000, 80_000, true));
        assert!(third.rate < first.rate);
    }

    #[test]
    fn unmarked_rounds_raise_the_rate_and_lower_alpha() {
        let tuning = Tuning::new(&PORT, 13_000);
        assert_eq!(tuning.additive_mbps, 615);
        let mut state = Dctcp::start(&PORT, &tuning, 0);
        Dctcp::on_event(&PORT, &tuning, &mut state, &ack(1000, 50_000, true));
        let mut to = 1000u32;
        for _ in 0..400 {
            to = to.wrapping_add(50_000);
            let sent = to.wrapping_add(49_000);
            Dctcp::on_event(&PORT, &tuning, &mut state, &ack(to, sent, false));
        }
        assert_eq!(state.rate, Rate::LINE);
        assert!(state.alpha < ONE_Q30 / 1000);
    }
}
