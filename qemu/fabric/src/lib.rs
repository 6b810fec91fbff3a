// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The InfiniBand fabric: packets as they are on the wire, management datagrams and the agents that
//! answer them, links with faults and counters, and captures. Nothing here knows of time or I/O beyond what the caller passes in, but for
//! [`capture`], which writes files.

pub mod agent;
pub mod arbiter;
pub mod capture;
pub mod counters;
pub mod credit;
pub mod link;
pub mod mad;
pub mod net;
pub mod node;
pub mod pma;
pub mod shape;
pub mod sm;
pub mod sma;
pub mod wire;

#[cfg(test)]
mod testing;
