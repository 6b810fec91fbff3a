// SPDX-License-Identifier: GPL-2.0 OR MIT

//! InfiniBand congestion control at the source (IBTA volume 1, annex A10).

use crate::event::{Action, Event, Port};
use crate::fixed::{clamp_u32, div, Rate};
use crate::Algorithm;

/// Nanoseconds of a unit of the CCTI timer.
const TIMER_UNIT_NS: u64 = 1024;

/// Shape of the congestion control table (CCT).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// Entry i delays the next packet by i packet times.
    Linear,
    /// The delay grows with the square of the index and is one packet time at this one: a few
    /// notifications, which flows that are not the cause get too, cost next to nothing.
    Square(u16),
}

/// Attributes of CACongestionSetting for one service level, and its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// CCTI_Timer in units of 1.024 us.
    pub timer: u16,
    /// CCTI_Increase.
    pub increase: u16,
    /// CCTI_Limit.
    pub limit: u16,
    /// CCTI_Min.
    pub min: u16,
    /// CCT.
    pub table: Table,
}

impl Tuning {
    /// The values of the ibccconfig(8) example.
    pub const EXAMPLE: Self = Self {
        timer: 150,
        increase: 1,
        limit: 127,
        min: 0,
        table: Table::Linear,
    };

    /// The values that Qiao ships, since the specification gives none.
    pub const SHIPPED: Self = Self {
        timer: 2,
        increase: 1,
        limit: 127,
        min: 0,
        table: Table::Square(22),
    };
}

impl Table {
    /// The rate that entry `index` stands for.
    fn rate(self, index: u16) -> Rate {
        let index = u32::from(index);
        match self {
            Self::Linear => Rate::LINE.scaled(1, index.saturating_add(1)),
            Self::Square(one) => {
                let one = u32::from(one.max(1));
                let unit = one.saturating_mul(one);
                Rate::LINE.scaled(unit, unit.saturating_add(index.saturating_mul(index)))
            }
        }
    }
}

/// State of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// Index into the congestion control table.
    index: u16,
    /// When the timer last ended.
    at_ns: u64,
}

/// Annex A10.
#[derive(Clone, Copy, Debug)]
pub struct IbCca;

impl Algorithm for IbCca {
    type Tuning = Tuning;
    type State = State;

    fn start(_port: &Port, tuning: &Tuning, now_ns: u64) -> State {
        State {
            index: tuning.min,
            at_ns: now_ns,
        }
    }

    fn on_event(_port: &Port, tuning: &Tuning, state: &mut State, event: &Event) -> Action {
        let period = u64::from(tuning.timer.max(1)).saturating_mul(TIMER_UNIT_NS);
        let ticks = div(event.now_ns.saturating_sub(state.at_ns), period);
        state.at_ns = state.at_ns.saturating_add(ticks.saturating_mul(period));
        let decay = u16::try_from(ticks).unwrap_or(u16::MAX);
        state.index = state.index.saturating_sub(decay).max(tuning.min);
        let becns = u16::try_from(event.notifications).unwrap_or(u16::MAX);
        let rise = becns.saturating_mul(tuning.increase);
        state.index = state
            .index
            .saturating_add(rise)
            .min(tuning.limit.max(tuning.min));
        let next = state
            .at_ns
            .saturating_add(period)
            .saturating_sub(event.now_ns);
        Action {
            rate: tuning.table.rate(state.index),
            window: Action::UNLIMITED,
            wake_ns: if state.index > tuning.min {
                clamp_u32(next.max(1))
            } else {
                0
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORT: Port = Port {
        link_mbps: 100_000,
        base_rtt_ns: 4000,
        mtu: 4096,
    };

    #[test]
    fn notifications_climb_the_table_and_time_descends_it() {
        let tuning = Tuning::EXAMPLE;
        let mut state = IbCca::start(&PORT, &tuning, 0);
        let becn = Event {
            now_ns: 1000,
            notifications: 3,
            ..Event::default()
        };
        let action = IbCca::on_event(&PORT, &tuning, &mut state, &becn);
        assert_eq!(action.rate, Rate::LINE.scaled(1, 4));
        assert_eq!(action.wake_ns, 152_600);
        let later = Event {
            now_ns: 2 * 153_600,
            ..Event::default()
        };
        let action = IbCca::on_event(&PORT, &tuning, &mut state, &later);
        assert_eq!(action.rate, Rate::LINE.scaled(1, 2));
        let flood = Event {
            notifications: u32::MAX,
            ..later
        };
        IbCca::on_event(&PORT, &tuning, &mut state, &flood);
        assert_eq!(state.index, 127);
    }
}
