// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Congestion control of Qiao adapters.
//!
//! Pure functions from what a device saw to what it shall enforce, in fixed point. The driver, the
//! device model and the simulator compile these files: there is no second definition.
//!
//! An algorithm sees [`Event`]s, which add up all that happened to a flow since the previous one,
//! and answers with an [`Action`]. It holds at most [`FLOW_STATE_MAX`] bytes per flow, allocates
//! nothing, has no clock of its own and runs no timer: whatever a period would have done is applied
//! when the next event comes.

#![no_std]
#![deny(unsafe_code)]
#![warn(missing_docs)]

#[cfg(test)]
extern crate std;

#[cfg(test)]
use crate as cc;

mod auto;
mod dcqcn;
mod dctcp;
mod event;
mod feedback;
mod fixed;
mod flow;
#[cfg(test)]
mod golden;
mod hpcc;
mod ibcca;
mod swift;
mod telemetry;
mod watch;

pub use auto::Auto;
pub use dcqcn::{Dcqcn, Tuning as DcqcnTuning};
pub use dctcp::{Dctcp, Tuning as DctcpTuning};
pub use event::{Action, Event, Port, Telemetry};
pub use feedback::{asks, ACK_EVERY};
pub use fixed::Rate;
pub use flow::{on_event, FlowState, Params, Tuning, FLOW_STATE_MAX};
pub use hpcc::{Hpcc, Tuning as HpccTuning};
pub use ibcca::{IbCca, Table as IbCcaTable, Tuning as IbCcaTuning};
pub use swift::{Swift, Tuning as SwiftTuning};
pub use telemetry::{most_loaded, Hop, MAX_HOPS};
pub use watch::{fall_back, fallback, PauseWatch, FALLBACK_NS};

/// A congestion control law.
pub trait Algorithm {
    /// Constants of the law; `()` if there is nothing to choose.
    type Tuning;
    /// What the law remembers of a flow.
    type State;

    /// The state of a flow that starts at device time `now_ns`.
    fn start(port: &Port, tuning: &Self::Tuning, now_ns: u64) -> Self::State;

    /// Takes in one event and says what to enforce from now on.
    fn on_event(
        port: &Port,
        tuning: &Self::Tuning,
        state: &mut Self::State,
        event: &Event,
    ) -> Action;
}
