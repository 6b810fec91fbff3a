// SPDX-License-Identifier: GPL-2.0 OR MIT

use super::command;
use crate::{describe::layout, U64};

layout! {
    /// Reads the counters of a port.
    pub struct QueryPortCounters[8] {
        /// Port number, from 1.
        pub port: u8,
        /// Reserved.
        pub rsvd: [u8; 7],
    }
}
command!(QueryPortCounters => QueryPortCounters, PortCounters);

layout! {
    /// The counters of a port since the last reset of the device. They count up and do not wrap in
    /// practice. The first four are those of the IBTA PortCountersExtended attribute (16.1.4.11).
    pub struct PortCounters[112] {
        /// PortXmitData: bytes sent divided by 4, link headers included, VCRC excluded.
        pub xmit_data: U64,
        /// PortRcvData: bytes received divided by 4, counted as above.
        pub rcv_data: U64,
        /// PortXmitPkts: packets sent.
        pub xmit_pkts: U64,
        /// PortRcvPkts: packets received, those with errors included.
        pub rcv_pkts: U64,
        /// PortRcvErrors: packets dropped for a bad VCRC, ICRC or header.
        pub rcv_errors: U64,
        /// PortXmitDiscards: packets that could not be sent.
        pub xmit_discards: U64,
        /// Packets sent again after a timeout or a NAK.
        pub retransmits: U64,
        /// Local ACK timeouts.
        pub local_ack_timeouts: U64,
        /// Packets out of sequence as responder.
        pub out_of_sequence: U64,
        /// NAKs for a sequence error received as requester.
        pub sequence_naks: U64,
        /// Receiver-not-ready NAKs received as requester.
        pub rnr_naks: U64,
        /// Duplicate requests as responder.
        pub duplicate_requests: U64,
        /// Local errors of requesters: length, protection, operation.
        pub local_errors: U64,
        /// Remote errors reported by responders: access, operation, invalid request.
        pub remote_errors: U64,
    }
}
