// SPDX-License-Identifier: GPL-2.0

//! Attributes of queue pairs.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use super::{
    Access,
    AhAttr,
    Mtu, //
};
use crate::bindings;
use kernel::prelude::*;

/// Transport of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum QpType {
    /// Subnet management, queue pair 0 of a port: datagrams.
    Smi = bindings::ib_qp_type_IB_QPT_SMI,
    /// General services, queue pair 1 of a port: datagrams.
    Gsi = bindings::ib_qp_type_IB_QPT_GSI,
    /// Reliable connection.
    Rc = bindings::ib_qp_type_IB_QPT_RC,
    /// Unreliable connection.
    Uc = bindings::ib_qp_type_IB_QPT_UC,
    /// Unreliable datagram.
    Ud = bindings::ib_qp_type_IB_QPT_UD,
}

impl QpType {
    /// Returns whether each send request says where it goes.
    pub const fn is_datagram(self) -> bool {
        matches!(self, Self::Smi | Self::Gsi | Self::Ud)
    }

    /// Returns the number that packets and consumers know a special queue pair by (IBTA vol. 1,
    /// 3.9).
    pub(super) const fn special_number(self) -> Option<u32> {
        match self {
            Self::Smi => Some(0),
            Self::Gsi => Some(1),
            Self::Rc | Self::Uc | Self::Ud => None,
        }
    }
}

impl TryFrom<bindings::ib_qp_type> for QpType {
    type Error = Error;

    fn try_from(raw: bindings::ib_qp_type) -> Result<Self> {
        Ok(match raw {
            bindings::ib_qp_type_IB_QPT_SMI => Self::Smi,
            bindings::ib_qp_type_IB_QPT_GSI => Self::Gsi,
            bindings::ib_qp_type_IB_QPT_RC => Self::Rc,
            bindings::ib_qp_type_IB_QPT_UC => Self::Uc,
            bindings::ib_qp_type_IB_QPT_UD => Self::Ud,
            _ => return Err(EOPNOTSUPP),
        })
    }
}

/// State of a queue pair (IBTA vol. 1, 10.3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum QpState {
    /// Reset.
    #[default]
    Reset = bindings::ib_qp_state_IB_QPS_RESET,
    /// Initialized.
    Init = bindings::ib_qp_state_IB_QPS_INIT,
    /// Ready to receive.
    Rtr = bindings::ib_qp_state_IB_QPS_RTR,
    /// Ready to send.
    Rts = bindings::ib_qp_state_IB_QPS_RTS,
    /// Send queue drained.
    Sqd = bindings::ib_qp_state_IB_QPS_SQD,
    /// Send queue error.
    Sqe = bindings::ib_qp_state_IB_QPS_SQE,
    /// Error.
    Err = bindings::ib_qp_state_IB_QPS_ERR,
}

impl TryFrom<u32> for QpState {
    type Error = Error;

    /// Takes the encoding of `enum ib_qp_state`.
    fn try_from(raw: u32) -> Result<Self> {
        Ok(match raw {
            bindings::ib_qp_state_IB_QPS_RESET => Self::Reset,
            bindings::ib_qp_state_IB_QPS_INIT => Self::Init,
            bindings::ib_qp_state_IB_QPS_RTR => Self::Rtr,
            bindings::ib_qp_state_IB_QPS_RTS => Self::Rts,
            bindings::ib_qp_state_IB_QPS_SQD => Self::Sqd,
            bindings::ib_qp_state_IB_QPS_SQE => Self::Sqe,
            bindings::ib_qp_state_IB_QPS_ERR => Self::Err,
            _ => return Err(EINVAL),
        })
    }
}

/// Sizes of a queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpCap {
    /// Send requests.
    pub max_send_wr: u32,
    /// Receive requests.
    pub max_recv_wr: u32,
    /// Scatter/gather entries of a send request.
    pub max_send_sge: u32,
    /// Scatter/gather entries of a receive request.
    pub max_recv_sge: u32,
    /// Bytes of inline data in a send request.
    pub max_inline_data: u32,
}

impl QpCap {
    pub(super) fn from_raw(raw: &bindings::ib_qp_cap) -> Self {
        Self {
            max_send_wr: raw.max_send_wr,
            max_recv_wr: raw.max_recv_wr,
            max_send_sge: raw.max_send_sge,
            max_recv_sge: raw.max_recv_sge,
            max_inline_data: raw.max_inline_data,
        }
    }

    pub(super) fn write_to(&self, raw: &mut bindings::ib_qp_cap) {
        raw.max_send_wr = self.max_send_wr;
        raw.max_recv_wr = self.max_recv_wr;
        raw.max_send_sge = self.max_send_sge;
        raw.max_recv_sge = self.max_recv_sge;
        raw.max_inline_data = self.max_inline_data;
    }
}

/// A set of attributes of a queue pair (`enum ib_qp_attr_mask`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpMask(u32);

impl QpMask {
    /// [`QpAttr::state`], the state to go to.
    pub const STATE: Self = Self(bindings::ib_qp_attr_mask_IB_QP_STATE);
    /// [`QpAttr::cur_state`], the state that the consumer takes the queue pair to be in.
    pub const CUR_STATE: Self = Self(bindings::ib_qp_attr_mask_IB_QP_CUR_STATE);
    /// [`QpAttr::sqd_async_notify`].
    pub const SQD_ASYNC_NOTIFY: Self = Self(bindings::ib_qp_attr_mask_IB_QP_EN_SQD_ASYNC_NOTIFY);
    /// [`QpAttr::access`].
    pub const ACCESS: Self = Self(bindings::ib_qp_attr_mask_IB_QP_ACCESS_FLAGS);
    /// [`QpAttr::pkey_index`].
    pub const PKEY_INDEX: Self = Self(bindings::ib_qp_attr_mask_IB_QP_PKEY_INDEX);
    /// [`QpAttr::port`].
    pub const PORT: Self = Self(bindings::ib_qp_attr_mask_IB_QP_PORT);
    /// [`QpAttr::qkey`].
    pub const QKEY: Self = Self(bindings::ib_qp_attr_mask_IB_QP_QKEY);
    /// [`QpAttr::ah`].
    pub const AV: Self = Self(bindings::ib_qp_attr_mask_IB_QP_AV);
    /// [`QpAttr::path_mtu`].
    pub const PATH_MTU: Self = Self(bindings::ib_qp_attr_mask_IB_QP_PATH_MTU);
    /// [`QpAttr::timeout`].
    pub const TIMEOUT: Self = Self(bindings::ib_qp_attr_mask_IB_QP_TIMEOUT);
    /// [`QpAttr::retry_cnt`].
    pub const RETRY_CNT: Self = Self(bindings::ib_qp_attr_mask_IB_QP_RETRY_CNT);
    /// [`QpAttr::rnr_retry`].
    pub const RNR_RETRY: Self = Self(bindings::ib_qp_attr_mask_IB_QP_RNR_RETRY);
    /// [`QpAttr::rq_psn`].
    pub const RQ_PSN: Self = Self(bindings::ib_qp_attr_mask_IB_QP_RQ_PSN);
    /// [`QpAttr::max_rd_atomic`].
    pub const MAX_RD_ATOMIC: Self = Self(bindings::ib_qp_attr_mask_IB_QP_MAX_QP_RD_ATOMIC);
    /// [`QpAttr::min_rnr_timer`].
    pub const MIN_RNR_TIMER: Self = Self(bindings::ib_qp_attr_mask_IB_QP_MIN_RNR_TIMER);
    /// [`QpAttr::sq_psn`].
    pub const SQ_PSN: Self = Self(bindings::ib_qp_attr_mask_IB_QP_SQ_PSN);
    /// [`QpAttr::max_dest_rd_atomic`].
    pub const MAX_DEST_RD_ATOMIC: Self = Self(bindings::ib_qp_attr_mask_IB_QP_MAX_DEST_RD_ATOMIC);
    /// [`QpAttr::dest_qpn`].
    pub const DEST_QPN: Self = Self(bindings::ib_qp_attr_mask_IB_QP_DEST_QPN);

    /// All of the above. Missing are: the alternate path and migration, a change of the sizes, and
    /// the rate limit.
    const ALL: u32 = Self::STATE.0
        | Self::CUR_STATE.0
        | Self::SQD_ASYNC_NOTIFY.0
        | Self::ACCESS.0
        | Self::PKEY_INDEX.0
        | Self::PORT.0
        | Self::QKEY.0
        | Self::AV.0
        | Self::PATH_MTU.0
        | Self::TIMEOUT.0
        | Self::RETRY_CNT.0
        | Self::RNR_RETRY.0
        | Self::RQ_PSN.0
        | Self::MAX_RD_ATOMIC.0
        | Self::MIN_RNR_TIMER.0
        | Self::SQ_PSN.0
        | Self::MAX_DEST_RD_ATOMIC.0
        | Self::DEST_QPN.0;

    /// Returns whether all attributes of `other` are in `self`.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Attributes of a queue pair (IBTA vol. 1, 11.2.5.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpAttr {
    /// State.
    pub state: QpState,
    /// State that a change starts from.
    pub cur_state: QpState,
    /// MTU of the path, none for datagrams.
    pub path_mtu: Option<Mtu>,
    /// What peers may do, of `REMOTE_*`.
    pub access: Access,
    /// Address of the peer, if connected.
    pub ah: AhAttr,
    /// Number of the peer's queue pair, 24 bits, if connected.
    pub dest_qpn: u32,
    /// Q_Key, for datagrams.
    pub qkey: u32,
    /// Number of the first packet to receive, 24 bits.
    pub rq_psn: u32,
    /// Number of the first packet to send, 24 bits.
    pub sq_psn: u32,
    /// Index of the P_Key.
    pub pkey_index: u16,
    /// Number of the local port, from 1.
    pub port: u32,
    /// Outstanding RDMA reads and atomic operations as the requester.
    pub max_rd_atomic: u8,
    /// Outstanding RDMA reads and atomic operations as the responder.
    pub max_dest_rd_atomic: u8,
    /// Code of the time in RNR NAKs, 5 bits.
    pub min_rnr_timer: u8,
    /// Time to wait for an acknowledgment: 4.096 µs * 2^n, or 0 for ever; 5 bits.
    pub timeout: u8,
    /// Retries after a timeout or a sequence error, 3 bits.
    pub retry_cnt: u8,
    /// Retries after an RNR NAK, 3 bits, 7 for ever.
    pub rnr_retry: u8,
    /// Whether to raise an event when the send queue is drained.
    pub sqd_async_notify: bool,
}

impl QpAttr {
    pub(super) fn write_to(&self, raw: &mut bindings::ib_qp_attr) {
        raw.qp_state = self.state as u32;
        raw.cur_qp_state = self.cur_state as u32;
        raw.path_mtu = self.path_mtu.map_or(0, |mtu| mtu as u32);
        raw.path_mig_state = bindings::ib_mig_state_IB_MIG_MIGRATED;
        raw.qp_access_flags = self.access.as_raw();
        self.ah.write_to(&mut raw.ah_attr);
        raw.dest_qp_num = self.dest_qpn;
        raw.qkey = self.qkey;
        raw.rq_psn = self.rq_psn;
        raw.sq_psn = self.sq_psn;
        raw.pkey_index = self.pkey_index;
        raw.port_num = self.port;
        raw.max_rd_atomic = self.max_rd_atomic;
        raw.max_dest_rd_atomic = self.max_dest_rd_atomic;
        raw.min_rnr_timer = self.min_rnr_timer;
        raw.timeout = self.timeout;
        raw.retry_cnt = self.retry_cnt;
        raw.rnr_retry = self.rnr_retry;
        raw.en_sqd_async_notify = u8::from(self.sqd_async_notify);
    }
}

/// A change of attributes. All of it is user input, checked to fit the fields of packets.
#[derive(Clone, Copy, Debug)]
pub struct QpModify {
    mask: QpMask,
    attr: QpAttr,
}

impl QpModify {
    /// # Errors
    ///
    /// `EOPNOTSUPP` for attributes that [`QpMask`] does not have, `EINVAL` for values that do not
    /// fit.
    pub(super) fn from_raw(raw: &bindings::ib_qp_attr, mask: u32) -> Result<Self> {
        if mask & !QpMask::ALL != 0 {
            return Err(EOPNOTSUPP);
        }
        let mask = QpMask(mask);
        let mut attr = QpAttr::default();
        if mask.contains(QpMask::STATE) {
            attr.state = QpState::try_from(raw.qp_state)?;
        }
        if mask.contains(QpMask::CUR_STATE) {
            attr.cur_state = QpState::try_from(raw.cur_qp_state)?;
        }
        if mask.contains(QpMask::PATH_MTU) {
            attr.path_mtu = Some(Mtu::try_from(raw.path_mtu)?);
        }
        if mask.contains(QpMask::ACCESS) {
            attr.access = Access::from_raw(raw.qp_access_flags);
        }
        if mask.contains(QpMask::AV) {
            attr.ah = AhAttr::from_raw(&raw.ah_attr)?;
        }
        if mask.contains(QpMask::PORT) {
            attr.port = raw.port_num;
        }
        if mask.contains(QpMask::QKEY) {
            attr.qkey = raw.qkey;
        }
        if mask.contains(QpMask::PKEY_INDEX) {
            attr.pkey_index = raw.pkey_index;
        }
        if mask.contains(QpMask::SQD_ASYNC_NOTIFY) {
            attr.sqd_async_notify = raw.en_sqd_async_notify != 0;
        }
        attr.read_connection(raw, mask)?;
        Ok(Self { mask, attr })
    }

    /// Returns the attributes that change.
    pub fn mask(&self) -> QpMask {
        self.mask
    }

    /// Returns the new values. Those that are not in the mask are meaningless.
    pub fn attr(&self) -> &QpAttr {
        &self.attr
    }

    /// Returns the state after the change, if the change is allowed for a queue pair of this type
    /// in the state `cur` (IBTA vol. 1, 11.2.5.2, table 91).
    ///
    /// # Errors
    ///
    /// `EINVAL` if it is not, or if the mask lacks what the change needs.
    pub fn next_state(&self, cur: QpState, ty: QpType) -> Result<QpState> {
        let next = if self.mask.contains(QpMask::STATE) {
            self.attr.state
        } else {
            cur
        };
        // SAFETY: All states and types are in the range of the tables of this function.
        let ok = unsafe {
            bindings::ib_modify_qp_is_ok(cur as u32, next as u32, ty as u32, self.mask.0)
        };
        ok.then_some(next).ok_or(EINVAL)
    }

    /// Puts the new values into `attr`, all but the states.
    pub fn apply(&self, attr: &mut QpAttr) {
        macro_rules! apply {
            ($($mask:ident => $field:ident),* $(,)?) => {
                $(if self.mask.contains(QpMask::$mask) {
                    attr.$field = self.attr.$field;
                })*
            };
        }
        apply!(
            SQD_ASYNC_NOTIFY => sqd_async_notify,
            ACCESS => access,
            PKEY_INDEX => pkey_index,
            PORT => port,
            QKEY => qkey,
            AV => ah,
            PATH_MTU => path_mtu,
            TIMEOUT => timeout,
            RETRY_CNT => retry_cnt,
            RNR_RETRY => rnr_retry,
            RQ_PSN => rq_psn,
            MAX_RD_ATOMIC => max_rd_atomic,
            MIN_RNR_TIMER => min_rnr_timer,
            SQ_PSN => sq_psn,
            MAX_DEST_RD_ATOMIC => max_dest_rd_atomic,
            DEST_QPN => dest_qpn,
        );
    }
}

impl QpAttr {
    /// Reads the attributes of connections.
    fn read_connection(&mut self, raw: &bindings::ib_qp_attr, mask: QpMask) -> Result {
        /// Returns `value` if it has at most `bits` bits.
        fn fits<T: Copy + Into<u32>>(value: T, bits: u32) -> Result<T> {
            if value.into() >> bits != 0 {
                return Err(EINVAL);
            }
            Ok(value)
        }

        if mask.contains(QpMask::TIMEOUT) {
            self.timeout = fits(raw.timeout, 5)?;
        }
        if mask.contains(QpMask::RETRY_CNT) {
            self.retry_cnt = fits(raw.retry_cnt, 3)?;
        }
        if mask.contains(QpMask::RNR_RETRY) {
            self.rnr_retry = fits(raw.rnr_retry, 3)?;
        }
        if mask.contains(QpMask::MIN_RNR_TIMER) {
            self.min_rnr_timer = fits(raw.min_rnr_timer, 5)?;
        }
        if mask.contains(QpMask::RQ_PSN) {
            self.rq_psn = fits(raw.rq_psn, 24)?;
        }
        if mask.contains(QpMask::SQ_PSN) {
            self.sq_psn = fits(raw.sq_psn, 24)?;
        }
        if mask.contains(QpMask::DEST_QPN) {
            self.dest_qpn = fits(raw.dest_qp_num, 24)?;
        }
        if mask.contains(QpMask::MAX_RD_ATOMIC) {
            self.max_rd_atomic = raw.max_rd_atomic;
        }
        if mask.contains(QpMask::MAX_DEST_RD_ATOMIC) {
            self.max_dest_rd_atomic = raw.max_dest_rd_atomic;
        }
        Ok(())
    }
}
