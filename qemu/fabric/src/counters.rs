// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Counters of a port.

/// Counters of a port, named as IBTA 16.1.3.5 and 16.1.4.11 name them; data in units of 4 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[expect(missing_docs, reason = "the names are those of the specification")]
pub struct Counters {
    pub xmit_data: u64,
    pub rcv_data: u64,
    pub xmit_pkts: u64,
    pub rcv_pkts: u64,
    pub multicast_xmit_pkts: u64,
    pub multicast_rcv_pkts: u64,
    pub rcv_errors: u64,
    pub rcv_switch_relay_errors: u64,
    pub rcv_constraint_errors: u64,
    pub xmit_discards: u64,
    pub xmit_constraint_errors: u64,
    pub xmit_wait: u64,
    pub vl15_dropped: u64,
    pub link_downed: u64,
}

impl Counters {
    /// Combines two sets counter by counter.
    pub fn zip(self, other: Self, f: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            xmit_data: f(self.xmit_data, other.xmit_data),
            rcv_data: f(self.rcv_data, other.rcv_data),
            xmit_pkts: f(self.xmit_pkts, other.xmit_pkts),
            rcv_pkts: f(self.rcv_pkts, other.rcv_pkts),
            multicast_xmit_pkts: f(self.multicast_xmit_pkts, other.multicast_xmit_pkts),
            multicast_rcv_pkts: f(self.multicast_rcv_pkts, other.multicast_rcv_pkts),
            rcv_errors: f(self.rcv_errors, other.rcv_errors),
            rcv_switch_relay_errors: f(self.rcv_switch_relay_errors, other.rcv_switch_relay_errors),
            rcv_constraint_errors: f(self.rcv_constraint_errors, other.rcv_constraint_errors),
            xmit_discards: f(self.xmit_discards, other.xmit_discards),
            xmit_constraint_errors: f(self.xmit_constraint_errors, other.xmit_constraint_errors),
            xmit_wait: f(self.xmit_wait, other.xmit_wait),
            vl15_dropped: f(self.vl15_dropped, other.vl15_dropped),
            link_downed: f(self.link_downed, other.link_downed),
        }
    }
}
