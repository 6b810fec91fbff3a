// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Types, states, rights and attributes of queue pairs.

use crate::{
    describe::{constants, layout, numbers},
    U16,
    U32, //
};

numbers! {
    /// Transport of a QP.
    pub enum QpType: u8 {
        /// Subnet management, QP0.
        Smi = 0,
        /// General services, QP1.
        Gsi = 1,
        /// Reliable connection.
        Rc = 2,
        /// Unreliable connection.
        Uc = 3,
        /// Unreliable datagram.
        Ud = 4,
        /// XRC initiator.
        XrcIni = 9,
        /// XRC target.
        XrcTgt = 10,
    }
}

impl QpType {
    /// Returns whether each request says where it goes.
    #[inline]
    pub const fn is_datagram(self) -> bool {
        matches!(self, Self::Smi | Self::Gsi | Self::Ud)
    }

    /// Returns whether receive requests may come from an SRQ.
    #[inline]
    pub const fn may_share(self) -> bool {
        matches!(self, Self::Rc | Self::Uc | Self::Ud)
    }
}

numbers! {
    /// State of a QP (IBTA 10.3.1).
    pub enum QpState: u8 {
        /// Nothing is sent or received, nothing can be posted.
        Reset = 0,
        /// Receive requests can be posted.
        Init = 1,
        /// Ready to receive.
        Rtr = 2,
        /// Ready to send.
        Rts = 3,
        /// The send queue drains or has drained.
        Sqd = 4,
        /// The send queue is in error (UC, UD).
        Sqe = 5,
        /// Every request is flushed.
        Err = 6,
    }
}

numbers! {
    /// MTU, IBTA coding.
    pub enum Mtu: u8 {
        /// 256 bytes.
        Mtu256 = 1,
        /// 512 bytes.
        Mtu512 = 2,
        /// 1024 bytes.
        Mtu1024 = 3,
        /// 2048 bytes.
        Mtu2048 = 4,
        /// 4096 bytes.
        Mtu4096 = 5,
    }
}

impl Mtu {
    /// Returns the MTU in bytes.
    #[inline]
    pub const fn bytes(self) -> u32 {
        128 << self.to_wire()
    }
}

constants! {
    /// Rights of a memory region, and of a remote peer on a QP.
    pub mod access: u32 {
        /// The region can be written locally: receive, READ and atomic results.
        LOCAL_WRITE = 1 << 0,
        /// RDMA WRITE. On a region it needs LOCAL_WRITE.
        REMOTE_WRITE = 1 << 1,
        /// RDMA READ.
        REMOTE_READ = 1 << 2,
        /// Atomics. On a region it needs LOCAL_WRITE.
        REMOTE_ATOMIC = 1 << 3,
        /// A memory window can be bound.
        MW_BIND = 1 << 4,
        /// Addresses count from the start of the region.
        ZERO_BASED = 1 << 5,
        /// The device may reorder writes to the region.
        RELAXED_ORDERING = 1 << 6,
        /// FLUSH to visibility. Counts, as the next, if `feature.FLUSH` is set.
        FLUSH_GLOBAL = 1 << 7,
        /// FLUSH to persistence: on a QP only, regions do not have it.
        FLUSH_PERSISTENT = 1 << 8,
    }
}

constants! {
    /// Bits of `ModifyQp::mask`: which attributes count.
    pub mod attr: u32 {
        /// `state`.
        STATE = 1 << 0,
        /// `cur_state`.
        CUR_STATE = 1 << 1,
        /// `notify_drained`.
        NOTIFY_DRAINED = 1 << 2,
        /// `access`.
        ACCESS = 1 << 3,
        /// `pkey_index`.
        PKEY_INDEX = 1 << 4,
        /// `port`.
        PORT = 1 << 5,
        /// `qkey`.
        QKEY = 1 << 6,
        /// `path`.
        PATH = 1 << 7,
        /// `path_mtu`.
        PATH_MTU = 1 << 8,
        /// `timeout`.
        TIMEOUT = 1 << 9,
        /// `retry_count`.
        RETRY_COUNT = 1 << 10,
        /// `rnr_retry`.
        RNR_RETRY = 1 << 11,
        /// `rq_psn`.
        RQ_PSN = 1 << 12,
        /// `max_rd_atomic`.
        MAX_RD_ATOMIC = 1 << 13,
        /// `min_rnr_timer`.
        MIN_RNR_TIMER = 1 << 14,
        /// `sq_psn`.
        SQ_PSN = 1 << 15,
        /// `max_dest_rd_atomic`.
        MAX_DEST_RD_ATOMIC = 1 << 16,
        /// `dest_qpn`.
        DEST_QPN = 1 << 17,
        /// `rate_limit`.
        RATE_LIMIT = 1 << 18,
    }
}

layout! {
    /// Where packets go: the address vector.
    pub struct Path[48] {
        /// Destination LID.
        pub dlid: U32,
        /// Service level.
        pub sl: u8,
        /// Source path bits.
        pub src_path_bits: u8,
        /// Static rate, IBTA coding; 0 is the port's own.
        pub static_rate: u8,
        /// Bits in `path_flag`.
        pub flags: u8,
        /// Flow label of the GRH, 20 bits.
        pub flow_label: U32,
        /// Index of the source GID.
        pub sgid_index: U16,
        /// Hop limit of the GRH.
        pub hop_limit: u8,
        /// Traffic class of the GRH.
        pub traffic_class: u8,
        /// Destination GID in wire order.
        pub dgid: [u8; 16],
        /// Destination MAC address (Ethernet).
        pub dmac: [u8; 6],
        /// VLAN tag (Ethernet); `path::NO_VLAN` if none.
        pub vlan: U16,
        /// Port, from 1.
        pub port: u8,
        /// Reserved.
        pub rsvd: [u8; 7],
    }
}

constants! {
    /// Bits of `Path::flags`.
    pub mod path_flag: u8 {
        /// Packets carry a GRH.
        GRH = 1 << 0,
    }
}

layout! {
    /// Attributes of a QP. Ranges and meanings are those of IBTA 11.2.5.2.
    pub struct QpAttr[104] {
        /// Q_Key.
        pub qkey: U32,
        /// First PSN expected, 24 bits.
        pub rq_psn: U32,
        /// First PSN sent, 24 bits.
        pub sq_psn: U32,
        /// QP number of the peer, 24 bits.
        pub dest_qpn: U32,
        /// Rights of the peer; bits in `access`.
        pub access: U32,
        /// Limit in kbit/s; 0 is none.
        pub rate_limit: U32,
        /// Index of the P_Key.
        pub pkey_index: U16,
        /// Port, from 1.
        pub port: u8,
        /// Path MTU: an `Mtu`.
        pub path_mtu: u8,
        /// State to go to: a `QpState`.
        pub state: u8,
        /// State that the caller takes the QP to be in: a `QpState`.
        pub cur_state: u8,
        /// Raise `SqDrained` when the send queue has drained: 0 or 1.
        pub notify_drained: u8,
        /// Most READ and atomic requests outstanding.
        pub max_rd_atomic: u8,
        /// Most READ and atomic requests served at a time.
        pub max_dest_rd_atomic: u8,
        /// RNR NAK timer, IBTA coding, 5 bits.
        pub min_rnr_timer: u8,
        /// Local ACK timeout: 4.096 us * 2^n, 5 bits; 0 is infinite.
        pub timeout: u8,
        /// Retries after a timeout or a sequence NAK, 0 to 7.
        pub retry_count: u8,
        /// Retries after an RNR NAK, 0 to 6; 7 is infinite.
        pub rnr_retry: u8,
        /// Reserved.
        pub rsvd0: [u8; 3],
        /// Path to the peer.
        pub path: Path,
        /// Reserved.
        pub rsvd1: [u8; 16],
    }
}
