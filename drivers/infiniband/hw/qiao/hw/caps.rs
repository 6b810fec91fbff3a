// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The capability block.

use crate::{
    describe::{constants, layout},
    U16,
    U32,
    U64, //
};

layout! {
    /// What a part has. Lies in BAR0 where `reg::CAPS` says, is read in 4-byte words and is
    /// constant from one reset to the next. A later minor version may append fields; a reader
    /// takes those it knows.
    pub struct Caps[256] {
        /// Features; bits in `feature`.
        pub features: U64,
        /// Version of the firmware: bits 63:32 major, 31:16 minor, 15:0 patch.
        pub fw_version: U64,
        /// GUID of the node.
        pub node_guid: U64,
        /// GUID of the system image: equal on all functions of one board.
        pub sys_image_guid: U64,
        /// Page sizes that page lists may use: bit n for 2^n bytes, n from 12 to 31; 12 is always
        /// set.
        pub page_sizes: U64,
        /// Largest memory region in bytes.
        pub max_mr_size: U64,
        /// How long a command may take in milliseconds; a driver that waits longer takes the device
        /// for dead. Never 0.
        pub cmd_timeout_ms: U32,
        /// Frequency of completion timestamps in kHz; 0 if there are none.
        pub timestamp_khz: U32,
        /// Number of MSI-X vectors, at least 2.
        pub num_vectors: U16,
        /// Largest number of data segments of a send or receive request.
        pub max_sge: U16,
        /// Largest inline data of a send request in bytes.
        pub max_inline: U16,
        /// Number of ports, 1 to 255.
        pub num_ports: u8,
        /// Log2 of the largest command ring, 1 to 12.
        pub log_max_cmds: u8,
        /// Log2 of the number of QPs, QP numbers from 0 on; at most 24.
        pub log_max_qp: u8,
        /// Log2 of the largest send queue in 64-byte blocks.
        pub log_max_sq_blocks: u8,
        /// Log2 of the largest receive queue or SRQ in work requests.
        pub log_max_rq_wqes: u8,
        /// Log2 of the number of CQs; at most 24.
        pub log_max_cq: u8,
        /// Log2 of the largest CQ in entries.
        pub log_max_cqe: u8,
        /// Log2 of the number of key indices; at most 24.
        pub log_max_key: u8,
        /// Log2 of the number of protection domains; at most 24.
        pub log_max_pd: u8,
        /// Log2 of the number of event queues; at most 12.
        pub log_max_eq: u8,
        /// Log2 of the largest event queue in entries.
        pub log_max_eqe: u8,
        /// Log2 of the number of SRQ numbers, 1 to 24, of which 0 is not used. Counts if
        /// `feature.SRQ` is set.
        pub log_max_srq: u8,
        /// Log2 of the number of XRC domains; at most 24. Counts if `feature.XRC` is set.
        pub log_max_xrcd: u8,
        /// Log2 of the number of multicast groups. Counts if `feature.MULTICAST` is set.
        pub log_max_mcg: u8,
        /// Most RDMA READ, atomic, ATOMIC WRITE and FLUSH requests that a QP has outstanding as
        /// requester.
        pub max_rd_atomic: u8,
        /// Most of the same that a QP serves at a time as responder.
        pub max_dest_rd_atomic: u8,
        /// Local ACK delay as IBTA 9.9.2.1.2 codes it: 4.096 us * 2^n.
        pub local_ack_delay: u8,
        /// Reserved.
        pub rsvd0: u8,
        /// Vendor of the part, an IEEE OUI in bits 23:0.
        pub vendor_id: U32,
        /// Part number of the vendor.
        pub vendor_part: U32,
        /// Revision of the part.
        pub hw_version: U32,
        /// Reserved.
        pub rsvd1: [u8; 164],
    }
}

constants! {
    /// Bits of `Caps::features`. Bits that are not named are reserved.
    pub mod feature: u64 {
        /// Reliable connected QPs. Set in every part.
        RC = 1 << 0,
        /// Unreliable connected QPs.
        UC = 1 << 1,
        /// Unreliable datagram QPs.
        UD = 1 << 2,
        /// XRC domains and QPs.
        XRC = 1 << 3,
        /// Shared receive queues.
        SRQ = 1 << 4,
        /// Compare-and-swap and fetch-and-add on 8 bytes.
        ATOMIC = 1 << 5,
        /// Masked atomics.
        MASKED_ATOMIC = 1 << 6,
        /// ATOMIC WRITE of 8 bytes.
        ATOMIC_WRITE = 1 << 7,
        /// FLUSH to visibility. To persistence no part can.
        FLUSH = 1 << 8,
        /// Memory windows of type 1.
        MW_1 = 1 << 9,
        /// Memory windows of type 2B.
        MW_2B = 1 << 10,
        /// Fast registration, local and remote invalidate.
        FAST_REG = 1 << 11,
        /// CQ resize.
        CQ_RESIZE = 1 << 12,
        /// CQ moderation.
        CQ_MODERATION = 1 << 13,
        /// Completion timestamps.
        TIMESTAMP = 1 << 14,
        /// UD multicast.
        MULTICAST = 1 << 15,
        /// Device memory.
        DEVICE_MEMORY = 1 << 16,
        /// Reports for congestion control in the host, and per-flow rate and window.
        CONGESTION = 1 << 17,
        /// Management datagrams on QP0 and QP1.
        MAD = 1 << 18,
    }
}
