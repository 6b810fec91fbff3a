// SPDX-License-Identifier: GPL-2.0

//! Attributes of devices and ports.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use super::Mad;
use crate::bindings;
use core::fmt::Write;
use kernel::prelude::*;

/// A globally unique identifier (EUI-64).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Guid(pub u64);

/// A global identifier: the address of a port, in network byte order (IBTA vol. 1, 4.1.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    pub(super) fn from_raw(raw: &bindings::ib_gid) -> Self {
        // SAFETY: All members of the union are 16 plain bytes.
        Self(unsafe { raw.raw })
    }

    pub(super) fn to_raw(self) -> bindings::ib_gid {
        bindings::ib_gid { raw: self.0 }
    }
}

/// Bytes of the text of a firmware version, with the terminating zero.
pub(super) const FW_TEXT_LEN: usize = bindings::IB_FW_VERSION_NAME_MAX as usize;

/// Version of the firmware.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FwVersion {
    /// Major version.
    pub major: u32,
    /// Minor version.
    pub minor: u16,
    /// Patch.
    pub patch: u16,
}

impl FwVersion {
    /// Returns the version as text that ends with a zero.
    pub(super) fn text(self) -> [u8; FW_TEXT_LEN] {
        // The longest has 23 bytes, with the zero.
        const { assert!(FW_TEXT_LEN > 22) };

        struct Text([u8; FW_TEXT_LEN], usize);

        impl Write for Text {
            fn write_str(&mut self, s: &str) -> core::fmt::Result {
                let end = self.1 + s.len();
                let to = self.0.get_mut(self.1..end).ok_or(core::fmt::Error)?;
                to.copy_from_slice(s.as_bytes());
                self.1 = end;
                Ok(())
            }
        }

        let Self {
            major,
            minor,
            patch,
        } = self;
        let mut text = Text([0; FW_TEXT_LEN], 0);
        // It fits.
        let _ = write!(text, "{major}.{minor}.{patch}");
        text.0
    }
}

/// Access rights (`enum ib_access_flags`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access(u32);

impl Access {
    /// The device may write for work requests of the owner.
    pub const LOCAL_WRITE: Self = Self(bindings::ib_access_flags_IB_ACCESS_LOCAL_WRITE);
    /// The device may write for RDMA writes of peers.
    pub const REMOTE_WRITE: Self = Self(bindings::ib_access_flags_IB_ACCESS_REMOTE_WRITE);
    /// The device may read for RDMA reads of peers.
    pub const REMOTE_READ: Self = Self(bindings::ib_access_flags_IB_ACCESS_REMOTE_READ);
    /// The device may do atomic operations of peers.
    pub const REMOTE_ATOMIC: Self = Self(bindings::ib_access_flags_IB_ACCESS_REMOTE_ATOMIC);
    /// The device may flush for peers, to visibility.
    pub const FLUSH_GLOBAL: Self = Self(bindings::ib_access_flags_IB_ACCESS_FLUSH_GLOBAL);
    /// The device may flush for peers, to persistence.
    pub const FLUSH_PERSISTENT: Self = Self(bindings::ib_access_flags_IB_ACCESS_FLUSH_PERSISTENT);
    /// Hints that a driver may ignore: those that are declared optional, and huge pages.
    const HINTS: u32 =
        bindings::ib_access_flags_IB_ACCESS_OPTIONAL | bindings::ib_access_flags_IB_ACCESS_HUGETLB;

    pub(super) fn from_raw(raw: c_int) -> Self {
        // CAST: A set of flags.
        Self(raw as u32)
    }

    pub(super) fn as_raw(self) -> c_int {
        // CAST: A set of flags, which the core passes as `int`.
        self.0 as c_int
    }

    /// Returns whether all rights of `other` are in `self`.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns the rights of both.
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the rights that are not in `known`, without hints; zero if none.
    pub const fn beyond(self, known: Self) -> u32 {
        self.0 & !(known.0 | Self::HINTS)
    }
}

/// State of a port (IBTA vol. 1, 14.2.5.6, PortInfo.PortState).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum PortState {
    /// No link.
    Down = bindings::ib_port_state_IB_PORT_DOWN,
    /// Link, not configured by a subnet manager.
    Init = bindings::ib_port_state_IB_PORT_INIT,
    /// Configured, not in use.
    Armed = bindings::ib_port_state_IB_PORT_ARMED,
    /// In use.
    Active = bindings::ib_port_state_IB_PORT_ACTIVE,
}

/// State of the link of a port (PortInfo.PortPhysicalState).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PhysState {
    /// Sleep.
    Sleep = bindings::ib_port_phys_state_IB_PORT_PHYS_STATE_SLEEP as u8,
    /// Polling: looks for a peer.
    Polling = bindings::ib_port_phys_state_IB_PORT_PHYS_STATE_POLLING as u8,
    /// Disabled.
    Disabled = bindings::ib_port_phys_state_IB_PORT_PHYS_STATE_DISABLED as u8,
    /// Port configuration training.
    Training = bindings::ib_port_phys_state_IB_PORT_PHYS_STATE_PORT_CONFIGURATION_TRAINING as u8,
    /// Link up.
    LinkUp = bindings::ib_port_phys_state_IB_PORT_PHYS_STATE_LINK_UP as u8,
    /// Link error recovery.
    ErrorRecovery = bindings::ib_port_phys_state_IB_PORT_PHYS_STATE_LINK_ERROR_RECOVERY as u8,
}

/// Payload of the largest packet, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Mtu {
    /// 256 bytes.
    Mtu256 = bindings::ib_mtu_IB_MTU_256,
    /// 512 bytes.
    Mtu512 = bindings::ib_mtu_IB_MTU_512,
    /// 1024 bytes.
    Mtu1024 = bindings::ib_mtu_IB_MTU_1024,
    /// 2048 bytes.
    Mtu2048 = bindings::ib_mtu_IB_MTU_2048,
    /// 4096 bytes.
    Mtu4096 = bindings::ib_mtu_IB_MTU_4096,
}

impl TryFrom<u32> for Mtu {
    type Error = Error;

    /// Takes the encoding of the InfiniBand specification: 1 for 256 bytes to 5 for 4096 bytes.
    fn try_from(encoded: u32) -> Result<Self> {
        Ok(match encoded {
            bindings::ib_mtu_IB_MTU_256 => Self::Mtu256,
            bindings::ib_mtu_IB_MTU_512 => Self::Mtu512,
            bindings::ib_mtu_IB_MTU_1024 => Self::Mtu1024,
            bindings::ib_mtu_IB_MTU_2048 => Self::Mtu2048,
            bindings::ib_mtu_IB_MTU_4096 => Self::Mtu4096,
            _ => return Err(EINVAL),
        })
    }
}

/// What a device does for atomicity (IBTA vol. 1, 11.2.1.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum AtomicCap {
    /// No atomic operations.
    #[default]
    None = bindings::ib_atomic_cap_IB_ATOMIC_NONE,
    /// Atomic among the queue pairs of this device.
    Device = bindings::ib_atomic_cap_IB_ATOMIC_HCA,
    /// Atomic in the whole system.
    System = bindings::ib_atomic_cap_IB_ATOMIC_GLOB,
}

/// What a device has, for `query_device`. Zero is none.
#[derive(Clone, Copy, Debug, Default)]
pub struct DeviceAttr {
    /// Firmware version, in a form of the vendor.
    pub fw_ver: u64,
    /// GUID of the system that the device is a part of.
    pub sys_image_guid: Guid,
    /// PCI vendor.
    pub vendor_id: u32,
    /// PCI device.
    pub vendor_part_id: u32,
    /// Hardware revision.
    pub hw_ver: u32,
    /// Length of the largest memory region, in bytes.
    pub max_mr_size: u64,
    /// Sizes of pages for memory regions, a bit each.
    pub page_size_cap: u64,
    /// Queue pairs.
    pub max_qp: u32,
    /// Work requests in a work queue.
    pub max_qp_wr: u32,
    /// Scatter/gather entries of a send request.
    pub max_send_sge: u32,
    /// Scatter/gather entries of a receive request.
    pub max_recv_sge: u32,
    /// Scatter/gather entries of an RDMA read.
    pub max_sge_rd: u32,
    /// Completion queues.
    pub max_cq: u32,
    /// Entries of a completion queue.
    pub max_cqe: u32,
    /// Memory regions.
    pub max_mr: u32,
    /// Shared receive queues.
    pub max_srq: u32,
    /// Requests of a shared receive queue.
    pub max_srq_wr: u32,
    /// Pieces of memory of a request of a shared receive queue.
    pub max_srq_sge: u32,
    /// Protection domains.
    pub max_pd: u32,
    /// Address handles.
    pub max_ah: u32,
    /// Outstanding RDMA reads and atomic operations of peers, for a queue pair.
    pub max_qp_rd_atom: u32,
    /// Outstanding RDMA reads and atomic operations of peers, for the device.
    pub max_res_rd_atom: u32,
    /// Outstanding RDMA reads and atomic operations that a queue pair starts.
    pub max_qp_init_rd_atom: u32,
    /// Atomic operations.
    pub atomic_cap: AtomicCap,
    /// ATOMIC WRITE (IBTA annex A19).
    pub atomic_write: bool,
    /// FLUSH to visibility (IBTA annex A19).
    pub flush_global: bool,
    /// Entries of the P_Key table.
    pub max_pkeys: u16,
    /// Time to acknowledge: 4.096 µs * 2^n.
    pub local_ca_ack_delay: u8,
}

impl DeviceAttr {
    /// All devices of this abstraction have: `IBV_EVENT_PORT_ACTIVE`, a system image GUID, and RNR
    /// NAK on RC.
    const CAP_FLAGS: u64 = (bindings::ib_device_cap_flags_IB_DEVICE_PORT_ACTIVE_EVENT
        | bindings::ib_device_cap_flags_IB_DEVICE_SYS_IMAGE_GUID
        | bindings::ib_device_cap_flags_IB_DEVICE_RC_RNR_NAK_GEN) as u64;

    fn cap_flags(&self) -> u64 {
        // CAST: The flags are those of a mask of 64 bits.
        let flag = |has, flag| if has { flag as u64 } else { 0 };
        Self::CAP_FLAGS
            | flag(
                self.atomic_write,
                bindings::ib_device_cap_flags_IB_DEVICE_ATOMIC_WRITE,
            )
            | flag(
                self.flush_global,
                bindings::ib_device_cap_flags_IB_DEVICE_FLUSH_GLOBAL,
            )
    }

    /// Writes to the fields of `raw`, which the core has cleared.
    pub(super) fn write_to(&self, raw: &mut bindings::ib_device_attr) {
        raw.fw_ver = self.fw_ver;
        raw.sys_image_guid = self.sys_image_guid.0.to_be();
        raw.vendor_id = self.vendor_id;
        raw.vendor_part_id = self.vendor_part_id;
        raw.hw_ver = self.hw_ver;
        raw.max_mr_size = self.max_mr_size;
        raw.page_size_cap = self.page_size_cap;
        raw.max_qp = self.max_qp;
        raw.max_qp_wr = self.max_qp_wr;
        raw.max_send_sge = self.max_send_sge;
        raw.max_recv_sge = self.max_recv_sge;
        raw.max_sge_rd = self.max_sge_rd;
        raw.max_cq = self.max_cq;
        raw.max_cqe = self.max_cqe;
        raw.max_mr = self.max_mr;
        raw.max_srq = self.max_srq;
        raw.max_srq_wr = self.max_srq_wr;
        raw.max_srq_sge = self.max_srq_sge;
        raw.max_pd = self.max_pd;
        raw.max_ah = self.max_ah;
        raw.max_qp_rd_atom = self.max_qp_rd_atom;
        raw.max_res_rd_atom = self.max_res_rd_atom;
        raw.max_qp_init_rd_atom = self.max_qp_init_rd_atom;
        raw.atomic_cap = self.atomic_cap as u32;
        raw.max_pkeys = self.max_pkeys;
        raw.local_ca_ack_delay = self.local_ca_ack_delay;
        raw.device_cap_flags = self.cap_flags();
    }
}

/// What a port is at the moment, for `query_port`.
#[derive(Clone, Copy, Debug)]
pub struct PortAttr {
    /// State.
    pub state: PortState,
    /// State of the link.
    pub phys_state: PhysState,
    /// Largest MTU of the port.
    pub max_mtu: Mtu,
    /// MTU of the link.
    pub active_mtu: Mtu,
    /// Length of the largest message in bytes.
    pub max_message: u32,
    /// Entries of the GID table.
    pub gid_tbl_len: u16,
    /// Entries of the P_Key table.
    pub pkey_tbl_len: u16,
    /// PortInfo.CapabilityMask.
    pub cap_flags: u32,
    /// P_Key violations.
    pub bad_pkey_cntr: u32,
    /// Q_Key violations.
    pub qkey_viol_cntr: u32,
    /// Prefix of the subnet.
    pub subnet_prefix: u64,
    /// LID, 0 if not set.
    pub lid: u32,
    /// Number of low bits of the LID that are path bits.
    pub lmc: u8,
    /// LID of the subnet manager, 0 if not set.
    pub sm_lid: u32,
    /// Service level to reach the subnet manager.
    pub sm_sl: u8,
    /// Virtual lanes: 1 for VL0, 2 for VL0-1, 3 for VL0-3, 4 for VL0-7, 5 for VL0-14.
    pub vl_num: u8,
    /// PortInfo.SubnetTimeOut.
    pub subnet_timeout: u8,
    /// Link width, a bit of PortInfo.LinkWidthActive.
    pub active_width: u8,
    /// Link speed, a bit as in `enum ib_port_speed`.
    pub active_speed: u16,
}

impl PortAttr {
    /// Writes to the fields of `raw`, which the core has cleared.
    pub(super) fn write_to(&self, raw: &mut bindings::ib_port_attr) {
        raw.state = self.state as u32;
        raw.phys_state = self.phys_state as u8;
        raw.max_mtu = self.max_mtu as u32;
        raw.active_mtu = self.active_mtu as u32;
        raw.gid_tbl_len = c_int::from(self.gid_tbl_len);
        raw.pkey_tbl_len = self.pkey_tbl_len;
        raw.port_cap_flags = self.cap_flags;
        raw.max_msg_sz = self.max_message;
        raw.bad_pkey_cntr = self.bad_pkey_cntr;
        raw.qkey_viol_cntr = self.qkey_viol_cntr;
        raw.subnet_prefix = self.subnet_prefix;
        raw.lid = self.lid;
        raw.lmc = self.lmc;
        raw.sm_lid = self.sm_lid;
        raw.sm_sl = self.sm_sl;
        raw.max_vl_num = self.vl_num;
        raw.subnet_timeout = self.subnet_timeout;
        raw.active_width = self.active_width;
        raw.active_speed = self.active_speed;
    }
}

/// What a port will always be, for `get_port_immutable`.
#[derive(Clone, Copy, Debug)]
pub struct PortImmutable {
    /// Entries of the GID table.
    pub gid_tbl_len: u16,
    /// Entries of the P_Key table.
    pub pkey_tbl_len: u16,
    /// Whether there are management datagrams. Without them, the core and its managers of
    /// connections and multicast groups keep off the port.
    pub mads: bool,
}

impl PortImmutable {
    /// Writes to the fields of `raw`, which the core has cleared.
    pub(super) fn write_to(&self, raw: &mut bindings::ib_port_immutable) {
        raw.gid_tbl_len = c_int::from(self.gid_tbl_len);
        raw.pkey_tbl_len = c_int::from(self.pkey_tbl_len);
        if self.mads {
            raw.core_cap_flags = bindings::RDMA_CORE_PORT_IBA_IB;
            raw.max_mad_size = Mad::SIZE as u32;
        } else {
            raw.core_cap_flags = bindings::RDMA_CORE_CAP_PROT_IB;
        }
    }
}
