// SPDX-License-Identifier: GPL-2.0

//! Counters of ports: what the transport had to make good or to refuse.
//!
//! What the links did, the device's agent for performance management tells (IBTA vol. 1, 16.1),
//! and the core asks it.

use crate::hca::Hca;
use kernel::prelude::*;
use qiao_hw::cmd::{
    PortCounters,
    QueryPortCounters, //
};
use rdma::PortCounter;

/// A counter, and its value.
type Counter = (PortCounter, fn(&PortCounters) -> u64);

/// Those that drivers before this one have, too, are called as there, for the sake of the tools
/// that look for them.
const COUNTERS: [Counter; 8] = [
    // As in mlx5.
    (PortCounter::new(c"duplicate_request"), |c| {
        c.duplicate_requests.get()
    }),
    (PortCounter::new(c"local_ack_timeout_err"), |c| {
        c.local_ack_timeouts.get()
    }),
    (PortCounter::new(c"out_of_sequence"), |c| {
        c.out_of_sequence.get()
    }),
    (PortCounter::new(c"packet_seq_err"), |c| {
        c.sequence_naks.get()
    }),
    (PortCounter::new(c"rnr_nak_retry_err"), |c| c.rnr_naks.get()),
    // As in efa.
    (PortCounter::new(c"retrans_pkts"), |c| c.retransmits.get()),
    // Others tell apart what these sum up.
    (PortCounter::new(c"req_local_errors"), |c| {
        c.local_errors.get()
    }),
    (PortCounter::new(c"req_remote_errors"), |c| {
        c.remote_errors.get()
    }),
];

/// What the counters are called.
pub(crate) const NAMES: [PortCounter; COUNTERS.len()] = {
    let mut names = [COUNTERS[0].0; COUNTERS.len()];
    let mut at = 0;
    while at < names.len() {
        names[at] = COUNTERS[at].0;
        at += 1;
    }
    names
};

/// Reads the counters of a port into `values`, in the order of [`NAMES`]; all of them or, with an
/// error, none. May sleep.
pub(crate) fn read(hca: &Hca<'_>, port: u8, values: &mut [u64]) -> Result {
    let mut cmd = QueryPortCounters::zeroed();
    cmd.port = port;
    let counters = hca.cmd().exec(&cmd)?;
    for (value, (_, of)) in values.iter_mut().zip(COUNTERS) {
        *value = of(&counters);
    }
    Ok(())
}
