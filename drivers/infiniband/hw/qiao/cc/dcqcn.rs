// SPDX-License-Identifier: GPL-2.0 OR MIT

//! DCQCN, the reaction point (Zhu et al., SIGCOMM'15), in the shape that deployed adapters have.
//!
//! Differences of the adapters from the paper: alpha starts at one with the first notification,
//! alpha and decrease run on their own periods from then on and look at a sticky bit, and the
//! target is not overwritten by a second decrease before an increase. The timers are evaluated
//! lazily: an event applies every period that passed, in closed form.

use crate::event::{Action, Event, Port};
use crate::fixed::{clamp_u32, div, mul_q30, pow_q30, Rate, ONE_Q30};
use crate::Algorithm;

/// The constants that operators have to find. Times in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// Gain of the alpha average in Q30.
    pub gain: u32,
    /// Period of the alpha average.
    pub alpha_ns: u32,
    /// Shortest time between two decreases.
    pub decrease_ns: u32,
    /// Increase timer.
    pub increase_ns: u32,
    /// Increase byte counter; 0 turns it off.
    pub increase_bytes: u32,
    /// Increase events of fast recovery.
    pub fast_recovery: u32,
    /// Additive increase in Mb/s.
    pub additive_mbps: u32,
    /// Hyper increase in Mb/s.
    pub hyper_mbps: u32,
    /// Floor in Mb/s.
    pub min_mbps: u32,
    /// Whether a window of one bandwidth-delay product, scaled by the rate, limits the flow.
    pub window: bool,
}

impl Tuning {
    /// Timers of the adapters' defaults; increases scale with the port rate (HPCC artifact).
    pub const fn vendor(link_mbps: u32, window: bool) -> Self {
        Self {
            gain: ONE_Q30 >> 8,
            alpha_ns: 1_000,
            decrease_ns: 4_000,
            increase_ns: 300_000,
            increase_bytes: 0,
            fast_recovery: 1,
            additive_mbps: link_mbps / 5_000,
            hyper_mbps: link_mbps / 500,
            min_mbps: link_mbps / 100,
            window,
        }
    }

    /// Timers of the paper on the adapters' state machine (HPCC artifact).
    pub const fn paper_timers(link_mbps: u32, window: bool) -> Self {
        Self {
            alpha_ns: 50_000,
            decrease_ns: 50_000,
            increase_ns: 55_000,
            ..Self::vendor(link_mbps, window)
        }
    }

    /// The paper's own set: byte counter and five rounds of fast recovery.
    pub const fn paper(link_mbps: u32, window: bool) -> Self {
        Self {
            alpha_ns: 55_000,
            increase_bytes: 10_000_000,
            fast_recovery: 5,
            additive_mbps: 40,
            hyper_mbps: 400,
            min_mbps: 10,
            ..Self::paper_timers(link_mbps, window)
        }
    }
}

/// State of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// Start of the alpha periods: the first notification. 0 before it.
    epoch_ns: u64,
    /// Alpha is right up to this time.
    alpha_at_ns: u64,
    /// When the pending decrease is due; 0 if none is.
    decrease_at_ns: u64,
    /// When the increase timer ends; 0 while it is off.
    increase_at_ns: u64,
    rate: Rate,
    target: Rate,
    alpha: u32,
    bytes: u32,
    timer_stage: u16,
    byte_stage: u16,
    notified: bool,
}

/// DCQCN with a given set of constants.
#[derive(Clone, Copy, Debug)]
pub struct Dcqcn;

impl Algorithm for Dcqcn {
    type Tuning = Tuning;
    type State = State;

    fn start(_port: &Port, _tuning: &Tuning, _now_ns: u64) -> State {
        State {
            epoch_ns: 0,
            alpha_at_ns: 0,
            decrease_at_ns: 0,
            increase_at_ns: 0,
            rate: Rate::LINE,
            target: Rate::LINE,
            alpha: ONE_Q30,
            bytes: 0,
            timer_stage: 0,
            byte_stage: 0,
            notified: false,
        }
    }

    fn on_event(port: &Port, tuning: &Tuning, state: &mut State, event: &Event) -> Action {
        state.advance(port, tuning, event.now_ns);
        state.count_bytes(port, tuning, event.acked);
        if event.notifications != 0 {
            state.notify(tuning, event.now_ns);
        }
        state.action(port, tuning, event.now_ns)
    }
}

impl State {
    fn notify(&mut self, tuning: &Tuning, now_ns: u64) {
        if self.epoch_ns == 0 {
            self.epoch_ns = now_ns.max(1);
            self.alpha_at_ns = self.epoch_ns;
        } else {
            self.notified = true;
        }
        if self.decrease_at_ns == 0 {
            let since = now_ns.saturating_sub(self.epoch_ns);
            let period = u64::from(tuning.decrease_ns.max(1));
            let ticks = div(since, period).saturating_add(1);
            self.decrease_at_ns = self.epoch_ns.saturating_add(ticks.saturating_mul(period));
        }
    }

    /// Applies all timers that ended up to `now_ns`, in their order.
    fn advance(&mut self, port: &Port, tuning: &Tuning, now_ns: u64) {
        if self.epoch_ns == 0 {
            return;
        }
        if self.decrease_at_ns != 0 && self.decrease_at_ns <= now_ns {
            let due = self.decrease_at_ns;
            self.run_increases(port, tuning, due);
            self.run_alpha(tuning, due);
            self.decrease(port, tuning, due);
        }
        self.run_increases(port, tuning, now_ns);
        self.run_alpha(tuning, now_ns);
    }

    fn run_alpha(&mut self, tuning: &Tuning, until_ns: u64) {
        let period = u64::from(tuning.alpha_ns.max(1));
        let periods = div(until_ns.saturating_sub(self.alpha_at_ns), period);
        if periods == 0 {
            return;
        }
        self.alpha_at_ns = self
            .alpha_at_ns
            .saturating_add(periods.saturating_mul(period));
        let keep = ONE_Q30.saturating_sub(tuning.gain);
        let mut decays = periods;
        if self.notified {
            self.notified = false;
            self.alpha = mul_q30(self.alpha, keep)
                .saturating_add(tuning.gain)
                .min(ONE_Q30);
            decays = decays.saturating_sub(1);
        }
        self.alpha = mul_q30(self.alpha, pow_q30(keep, decays));
    }

    fn decrease(&mut self, port: &Port, tuning: &Tuning, due_ns: u64) {
        if self.timer_stage != 0 || self.byte_stage != 0 {
            self.target = self.rate;
        }
        let kept = ONE_Q30.saturating_sub(self.alpha >> 1);
        let floor = Rate::from_mbps(tuning.min_mbps, port.link_mbps);
        self.rate = Rate::new(mul_q30(self.rate.raw(), kept)).max(floor);
        self.timer_stage = 0;
        self.byte_stage = 0;
        self.bytes = 0;
        self.decrease_at_ns = 0;
        self.increase_at_ns = due_ns.saturating_add(u64::from(tuning.increase_ns));
    }

    fn run_increases(&mut self, port: &Port, tuning: &Tuning, until_ns: u64) {
        while self.increase_at_ns != 0 && self.increase_at_ns <= until_ns {
            if self.rate == Rate::LINE {
                // Nothing left to raise: only the phase of the timer matters from here on.
                let period = u64::from(tuning.increase_ns.max(1));
                let late = div(until_ns.saturating_sub(self.increase_at_ns), period);
                let skipped = late.saturating_add(1).saturating_mul(period);
                self.increase_at_ns = self.increase_at_ns.saturating_add(skipped);
                self.timer_stage = u16::MAX;
                return;
            }
            self.increase(port, tuning);
            self.timer_stage = self.timer_stage.saturating_add(1);
            let period = u64::from(tuning.increase_ns.max(1));
            self.increase_at_ns = self.increase_at_ns.saturating_add(period);
        }
    }

    fn count_bytes(&mut self, port: &Port, tuning: &Tuning, acked: u32) {
        if tuning.increase_bytes == 0 || self.increase_at_ns == 0 {
            return;
        }
        self.bytes = self.bytes.saturating_add(acked);
        if self.bytes >= tuning.increase_bytes {
            self.bytes = 0;
            self.increase(port, tuning);
            self.byte_stage = self.byte_stage.saturating_add(1);
        }
    }

    fn increase(&mut self, port: &Port, tuning: &Tuning) {
        let (low, high) = if tuning.increase_bytes == 0 {
            (self.timer_stage, self.timer_stage)
        } else {
            (
                self.timer_stage.min(self.byte_stage),
                self.timer_stage.max(self.byte_stage),
            )
        };
        if u32::from(high) >= tuning.fast_recovery {
            let hyper = u32::from(low) > tuning.fast_recovery;
            let step = if hyper {
                tuning.hyper_mbps
            } else {
                tuning.additive_mbps
            };
            self.target = self.target.plus(Rate::from_mbps(step, port.link_mbps));
        }
        self.rate = self.rate.mean(self.target);
        // Halving the distance never ends; one step of the pacer is close enough.
        if self.target == Rate::LINE && self.rate.raw() >= Rate::LINE.raw().saturating_sub(1 << 8) {
            self.rate = Rate::LINE;
        }
    }

    fn action(&self, port: &Port, tuning: &Tuning, now_ns: u64) -> Action {
        let window = if tuning.window {
            self.rate.share_of(port.bdp())
        } else {
            Action::UNLIMITED
        };
        let mut due = self.decrease_at_ns;
        let rising = self.rate != Rate::LINE && self.increase_at_ns != 0;
        if rising && (due == 0 || self.increase_at_ns < due) {
            due = self.increase_at_ns;
        }
        Action {
            rate: self.rate,
            window,
            wake_ns: clamp_u32(due.saturating_sub(now_ns)),
        }
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

    fn notified(now_ns: u64) -> Event {
        Event {
            now_ns,
            notifications: 1,
            ..Event::default()
        }
    }

    fn tick(now_ns: u64) -> Event {
        Event {
            now_ns,
            ..Event::default()
        }
    }

    #[test]
    fn the_first_notification_halves_the_rate_one_period_later() {
        let tuning = Tuning::vendor(100_000, false);
        let mut state = Dcqcn::start(&PORT, &tuning, 0);
        let action = Dcqcn::on_event(&PORT, &tuning, &mut state, &notified(1_000));
        assert_eq!((action.rate, action.wake_ns), (Rate::LINE, 4_000));
        let action = Dcqcn::on_event(&PORT, &tuning, &mut state, &tick(5_000));
        let share = f64::from(action.rate.raw()) / f64::from(Rate::LINE.raw());
        // Four periods of decay from alpha = 1.
        assert!((share - (1.0 - (255.0f64 / 256.0).powi(4) / 2.0)).abs() < 1e-6);
        assert_eq!(action.wake_ns, 300_000);
    }

    #[test]
    fn a_late_host_reaches_the_same_state_as_one_that_is_on_time() {
        let tuning = Tuning::vendor(100_000, true);
        let mut prompt = Dcqcn::start(&PORT, &tuning, 0);
        let mut late = prompt;
        Dcqcn::on_event(&PORT, &tuning, &mut prompt, &notified(1_000));
        Dcqcn::on_event(&PORT, &tuning, &mut late, &notified(1_000));
        let mut last = Action::LINE;
        for now in (2_000..=2_000_000).step_by(1_000) {
            last = Dcqcn::on_event(&PORT, &tuning, &mut prompt, &tick(now));
        }
        let action = Dcqcn::on_event(&PORT, &tuning, &mut late, &tick(2_000_000));
        assert_eq!(action, last);
        assert!(prompt.alpha.abs_diff(late.alpha) < 4096);
    }

    #[test]
    fn the_rate_returns_to_line_and_stays_above_the_floor() {
        let tuning = Tuning::paper(100_000, false);
        let mut state = Dcqcn::start(&PORT, &tuning, 0);
        for now in (1_000..5_000_000).step_by(10_000) {
            Dcqcn::on_event(&PORT, &tuning, &mut state, &notified(now));
        }
        let floor = Rate::from_mbps(10, 100_000);
        assert!(state.rate >= floor && state.rate < Rate::from_mbps(1_000, 100_000));
        let action = Dcqcn::on_event(&PORT, &tuning, &mut state, &tick(10_000_000_000));
        assert_eq!((action.rate, action.wake_ns), (Rate::LINE, 0));
    }
}
