// SPDX-License-Identifier: GPL-2.0 OR MIT

//! One flow of any algorithm, for tables that hold them side by side.

use crate::auto::{self, Auto};
use crate::dcqcn::{self, Dcqcn};
use crate::dctcp::{self, Dctcp};
use crate::event::{Action, Event, Port};
use crate::fixed::Rate;
use crate::hpcc::{self, Hpcc};
use crate::ibcca::{self, IbCca};
use crate::swift::{self, Swift};
use crate::Algorithm;

/// Upper bound of the state of a flow in bytes: one cache line.
pub const FLOW_STATE_MAX: usize = 64;

/// Which algorithm, with which constants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tuning {
    /// The default, which has nothing to tune.
    Auto,
    /// DCQCN.
    Dcqcn(dcqcn::Tuning),
    /// DCTCP.
    Dctcp(dctcp::Tuning),
    /// HPCC.
    Hpcc(hpcc::Tuning),
    /// Swift.
    Swift(swift::Tuning),
    /// Annex A10.
    IbCca(ibcca::Tuning),
}

/// What all flows of a port share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Params {
    /// The port.
    pub port: Port,
    /// The algorithm.
    pub tuning: Tuning,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Auto(auto::State),
    Dcqcn(dcqcn::State),
    Dctcp(dctcp::State),
    Hpcc(hpcc::State),
    Swift(swift::State),
    IbCca(ibcca::State),
}

/// Everything that is remembered of a flow.
#[derive(Clone, Copy, Debug)]
pub struct FlowState(State);

const _: () = assert!(size_of::<FlowState>() <= FLOW_STATE_MAX);

impl FlowState {
    /// A flow that goes on under DCTCP.
    pub(crate) const fn resume(state: dctcp::State) -> Self {
        Self(State::Dctcp(state))
    }

    /// The state of a flow that starts at device time `now_ns`.
    pub fn start(params: &Params, now_ns: u64) -> Self {
        let port = &params.port;
        Self(match &params.tuning {
            Tuning::Auto => State::Auto(Auto::start(port, &(), now_ns)),
            Tuning::Dcqcn(tuning) => State::Dcqcn(Dcqcn::start(port, tuning, now_ns)),
            Tuning::Dctcp(tuning) => State::Dctcp(Dctcp::start(port, tuning, now_ns)),
            Tuning::Hpcc(tuning) => State::Hpcc(Hpcc::start(port, tuning, now_ns)),
            Tuning::Swift(tuning) => State::Swift(Swift::start(port, tuning, now_ns)),
            Tuning::IbCca(tuning) => State::IbCca(IbCca::start(port, tuning, now_ns)),
        })
    }
}

/// Takes in one event of a flow and says what to enforce from now on.
///
/// A flow whose port has changed its algorithm starts anew.
pub fn on_event(params: &Params, flow: &mut FlowState, event: &Event) -> Action {
    let port = &params.port;
    match (&mut flow.0, &params.tuning) {
        (State::Auto(state), Tuning::Auto) => Auto::on_event(port, &(), state, event),
        (State::Dcqcn(state), Tuning::Dcqcn(tuning)) => Dcqcn::on_event(port, tuning, state, event),
        (State::Dctcp(state), Tuning::Dctcp(tuning)) => Dctcp::on_event(port, tuning, state, event),
        (State::Hpcc(state), Tuning::Hpcc(tuning)) => Hpcc::on_event(port, tuning, state, event),
        (State::Swift(state), Tuning::Swift(tuning)) => Swift::on_event(port, tuning, state, event),
        (State::IbCca(state), Tuning::IbCca(tuning)) => IbCca::on_event(port, tuning, state, event),
        _ => {
            *flow = FlowState::start(params, event.now_ns);
            Action {
                rate: Rate::LINE,
                window: port.bdp(),
                wake_ns: 0,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Telemetry;
    use crate::golden::{all, answers, script, GOLDEN, PORT};

    #[test]
    fn golden_vectors() {
        assert_eq!(answers(), GOLDEN);
    }

    /// No event, however absurd, may panic or leave the range of the pacer.
    #[test]
    fn extremes_are_safe() {
        let values = [0u32, 1, 1000, u32::MAX / 2, u32::MAX];
        let ports = [
            PORT,
            Port {
                link_mbps: 0,
                base_rtt_ns: 0,
                mtu: 0,
            },
            Port {
                link_mbps: u32::MAX,
                base_rtt_ns: u32::MAX,
                mtu: u32::MAX,
            },
        ];
        for port in ports {
            for tuning in all() {
                let params = Params { port, tuning };
                let mut flow = FlowState::start(&params, u64::MAX);
                for (i, &a) in values.iter().enumerate() {
                    for &b in &values {
                        let event = Event {
                            now_ns: u64::from(a).wrapping_mul(u64::from(b)).wrapping_mul(1 << i),
                            acked: a,
                            marked: b,
                            notifications: a,
                            acked_to: b,
                            sent_to: a,
                            rtt_min_ns: b,
                            rtt_last_ns: a,
                            stalled_ns: b,
                            losses: a & 1,
                            rnr_naks: b,
                            telemetry: Some(Telemetry {
                                utilisation: a,
                                span_ns: b,
                                queue_ns: a,
                            }),
                        };
                        let action = on_event(&params, &mut flow, &event);
                        assert!(action.window > 0 && action.rate >= Rate::MIN);
                    }
                }
            }
        }
    }

    #[test]
    fn another_algorithm_starts_anew() {
        let mut params = Params {
            port: PORT,
            tuning: Tuning::Auto,
        };
        let mut flow = FlowState::start(&params, 0);
        params.tuning = all()[4];
        let action = on_event(&params, &mut flow, &script(1));
        assert_eq!((action.rate, action.window), (Rate::LINE, PORT.bdp()));
    }
}
