// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What must hold when congestion control can not: a dead host, and a port that is held for good.

use crate::dctcp;
use crate::event::Port;
use crate::flow::{FlowState, Params, Tuning};
use crate::Rate;

/// After this time without an answer to an event, a device does without its host. In nanoseconds.
pub const FALLBACK_NS: u32 = 500_000;

/// The law that a device runs on its own: DCTCP, which needs no more than a window and a counter
/// of marks per flow. Without marks the window is what bounds the queue.
pub const fn fallback(port: &Port) -> Params {
    Params {
        port: *port,
        tuning: Tuning::Dctcp(dctcp::Tuning::new(port, port.base_rtt_ns)),
    }
}

/// State of a flow under [`fallback`] that had `rate`.
pub const fn fall_back(rate: Rate) -> FlowState {
    FlowState::resume(dctcp::State::at(rate))
}

/// Tells a storm of pause frames, or of missing credits, from congestion.
///
/// Congestion holds a port for microseconds. A device that is stuck holds it for good, and its
/// pause frames spread through the fabric. The driver samples the time that the port was held once
/// per [`PauseWatch::PERIOD_NS`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PauseWatch {
    held: u8,
}

impl PauseWatch {
    /// Time between samples.
    pub const PERIOD_NS: u32 = 1_000_000;
    /// Samples in a row that make a storm: it is known within ten periods, also if it began in the
    /// middle of one.
    const STORM: u8 = 8;

    /// Takes the time that the port was held since the last sample; true when a storm begins.
    pub fn sample(&mut self, held_ns: u32) -> bool {
        if held_ns <= Self::PERIOD_NS / 2 {
            self.held = 0;
            return false;
        }
        self.held = self.held.saturating_add(1);
        self.held == Self::STORM
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{on_event, Event};

    #[test]
    fn a_storm_begins_once_and_ends_with_the_first_free_period() {
        let mut watch = PauseWatch::default();
        let mut begun = [0, 0];
        for storm in &mut begun {
            for _ in 0..300 {
                *storm += u32::from(watch.sample(PauseWatch::PERIOD_NS));
            }
            assert!(!watch.sample(PauseWatch::PERIOD_NS / 2));
        }
        assert_eq!(begun, [1, 1]);
    }

    #[test]
    fn congestion_is_no_storm() {
        let mut watch = PauseWatch::default();
        for sample in 0..1000 {
            let held = if sample % 8 == 7 { 0 } else { 900_000 };
            assert!(!watch.sample(held));
        }
    }

    #[test]
    fn the_fallback_goes_on_with_the_rate_of_the_flow() {
        let port = Port {
            link_mbps: 100_000,
            base_rtt_ns: 4160,
            mtu: 1000,
        };
        let params = fallback(&port);
        let quarter = Rate::LINE.scaled(1, 4);
        let mut flow = fall_back(quarter);
        let action = on_event(&params, &mut flow, &Event::default());
        assert_eq!((action.rate, action.window), (quarter, port.bdp() / 4));
    }
}
