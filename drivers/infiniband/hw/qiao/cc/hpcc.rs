// SPDX-License-Identifier: GPL-2.0 OR MIT

//! HPCC (Li et al., SIGCOMM'19): rate and window from in-band telemetry.

use crate::event::{Action, Event, Port};
use crate::fixed::{after, clamp_u32, div, Rate, ONE_Q16};
use crate::Algorithm;

/// Constants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// Target utilisation in Q16.
    pub target: u32,
    /// Additive steps in a row before a multiplicative one.
    pub max_stage: u32,
    /// Additive increase in Mb/s.
    pub additive_mbps: u32,
    /// Floor in Mb/s.
    pub min_mbps: u32,
}

impl Tuning {
    /// `percent` of utilisation; no additive stage (the published results, not the paper's text).
    pub const fn new(link_mbps: u32, percent: u32) -> Self {
        Self {
            target: clamp_u32(div((ONE_Q16 as u64).saturating_mul(percent as u64), 100)),
            max_stage: 0,
            additive_mbps: link_mbps / 2_500,
            min_mbps: link_mbps / 100,
        }
    }
}

/// State of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    rate: Rate,
    /// The rate at the last full round trip, from which all changes within one start.
    reference: Rate,
    /// Average utilisation in Q16.
    utilisation: u32,
    round_end: u32,
    stage: u32,
    started: bool,
}

/// HPCC.
#[derive(Clone, Copy, Debug)]
pub struct Hpcc;

impl Algorithm for Hpcc {
    type Tuning = Tuning;
    type State = State;

    fn start(_port: &Port, _tuning: &Tuning, _now_ns: u64) -> State {
        State {
            rate: Rate::LINE,
            reference: Rate::LINE,
            utilisation: ONE_Q16,
            round_end: 0,
            stage: 0,
            started: false,
        }
    }

    fn on_event(port: &Port, tuning: &Tuning, state: &mut State, event: &Event) -> Action {
        if !state.started {
            if event.acked != 0 {
                state.started = true;
                state.round_end = event.sent_to;
            }
            return state.action(port);
        }
        let round = event.acked != 0 && after(event.acked_to, state.round_end);
        if event.telemetry.is_some() {
            state.react(port, tuning, event, round);
        }
        if round {
            state.round_end = event.sent_to;
        }
        state.action(port)
    }
}

impl State {
    fn react(&mut self, port: &Port, tuning: &Tuning, event: &Event, round: bool) {
        let Some(sample) = event.telemetry else {
            return;
        };
        let span = u64::from(sample.span_ns.min(port.base_rtt_ns));
        let rest = u64::from(port.base_rtt_ns).saturating_sub(span);
        let sum = u64::from(self.utilisation)
            .saturating_mul(rest)
            .saturating_add(u64::from(sample.utilisation).saturating_mul(span));
        self.utilisation = clamp_u32(div(sum, u64::from(port.base_rtt_ns)));

        let step = Rate::from_mbps(tuning.additive_mbps, port.link_mbps);
        let scale = self.utilisation >= tuning.target || self.stage >= tuning.max_stage;
        let (rate, stage) = if scale {
            let scaled = self
                .reference
                .scaled(tuning.target, self.utilisation.max(1));
            (scaled.plus(step), 0)
        } else {
            (self.reference.plus(step), self.stage.saturating_add(1))
        };
        self.rate = rate.max(Rate::from_mbps(tuning.min_mbps, port.link_mbps));
        if round {
            self.reference = self.rate;
            self.stage = stage;
        }
    }

    fn action(&self, port: &Port) -> Action {
        Action {
            rate: self.rate,
            window: self.rate.share_of(port.bdp()),
            wake_ns: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Telemetry;

    const PORT: Port = Port {
        link_mbps: 100_000,
        base_rtt_ns: 4000,
        mtu: 1000,
    };

    fn ack(to: u32, utilisation: u32) -> Event {
        Event {
            acked: 1000,
            acked_to: to,
            sent_to: to.wrapping_add(50_000),
            telemetry: Some(Telemetry {
                utilisation,
                span_ns: 4000,
                queue_ns: 0,
            }),
            ..Event::default()
        }
    }

    #[test]
    fn utilisation_above_the_target_scales_down_once_per_reference() {
        let tuning = Tuning::new(100_000, 95);
        let mut state = Hpcc::start(&PORT, &tuning, 0);
        Hpcc::on_event(&PORT, &tuning, &mut state, &ack(1000, 2 * ONE_Q16));
        let once = Hpcc::on_event(&PORT, &tuning, &mut state, &ack(2000, 2 * ONE_Q16));
        let twice = Hpcc::on_event(&PORT, &tuning, &mut state, &ack(3000, 2 * ONE_Q16));
        assert_eq!(once.rate, twice.rate);
        let share = f64::from(once.rate.raw()) / f64::from(Rate::LINE.raw());
        assert!((share - (0.475 + 0.0004)).abs() < 1e-3);
        assert_eq!(once.window, once.rate.share_of(50_000));
        let next = Hpcc::on_event(&PORT, &tuning, &mut state, &ack(60_000, 2 * ONE_Q16));
        let after = Hpcc::on_event(&PORT, &tuning, &mut state, &ack(61_000, 2 * ONE_Q16));
        assert_eq!(next.rate, once.rate);
        assert!(after.rate < next.rate);
    }

    #[test]
    fn events_without_telemetry_change_nothing() {
        let tuning = Tuning::new(100_000, 95);
        let mut state = Hpcc::start(&PORT, &tuning, 0);
        Hpcc::on_event(&PORT, &tuning, &mut state, &ack(1000, ONE_Q16));
        let before = state.rate;
        let blind = Event {
            telemetry: None,
            ..ack(2000, 0)
        };
        assert_eq!(
            Hpcc::on_event(&PORT, &tuning, &mut state, &blind).rate,
            before
        );
    }
}
