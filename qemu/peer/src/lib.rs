// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The device model's transport as a peer of other implementations, over RoCE v2.
//!
//! The transport is that of the model, as it is: [`qiao_model::transport`] on memory of its own. Around it
//! are Ethernet, IPv4 and UDP, a link with faults, and a control port, on which a test program of the
//! other side opens queue pairs and says what to post. What arrives is compared where it arrives.

pub mod control;
mod endpoint;
mod frame;
mod peer;

pub use peer::{Peer, Statistics, CONTROL_PORT};
