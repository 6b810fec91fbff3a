// SPDX-License-Identifier: GPL-2.0 OR MIT

//! One flow of any algorithm, for tables that hold them side by side.

use crate::auto::{self, Auto};
use crate::dcqcn::{self, Dcqcn};
use crate::dctcp::{self, Dctcp};
use crate::event::{Action, Event, Port};
use crate::hpcc::{self, Hpcc};
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
}

/// Everything that is remembered of a flow.
#[derive(Clone, Copy, Debug)]
pub struct FlowState(State);

const _: () = assert!(core::mem::size_of::<FlowState>() <= FLOW_STATE_MAX);

impl FlowState {
    /// The state of a flow that starts at device time `now_ns`.
    pub fn start(params: &Params, now_ns: u64) -> Self {
        let port = &params.port;
        Self(match &params.tuning {
            Tuning::Auto => State::Auto(Auto::start(port, &(), now_ns)),
            Tuning::Dcqcn(tuning) => State::Dcqcn(Dcqcn::start(port, tuning, now_ns)),
            Tuning::Dctcp(tuning) => State::Dctcp(Dctcp::start(port, tuning, now_ns)),
            Tuning::Hpcc(tuning) => State::Hpcc(Hpcc::start(port, tuning, now_ns)),
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
        _ => {
            *flow = FlowState::start(params, event.now_ns);
            Action {
                rate: crate::fixed::Rate::LINE,
                window: port.bdp(),
                wake_ns: 0,
            }
        }
    }
}
