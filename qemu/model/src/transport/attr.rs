// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Attributes and state changes of a queue pair (IBTA 10.3.1, 11.2.5.2).

use qiao_fabric::wire::Transport;
use qiao_hw::qp::{attr, Mtu, Path, QpAttr, QpState};

/// Why a modification was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModifyError {
    /// There is no such transition from the state that the queue pair is in.
    State,
    /// An attribute is missing, not allowed or out of range.
    Attribute,
}

/// Largest MTU: that of the ports, and so of datagrams, which have no path MTU.
pub const MAX_MTU: Mtu = Mtu::Mtu4096;

/// What a queue pair of datagrams is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    /// Anything.
    None,
    /// Subnet management: QP 0 of a port, on VL 15 (IBTA 10.2.4.2).
    Smi,
    /// General services: QP 1 of a port, whose requests choose their P_Key.
    Gsi,
}

/// Attributes of a queue pair, in range.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Transport service.
    pub service: Transport,
    /// Whether it is a special one.
    pub special: Special,
    /// State.
    pub state: QpState,
    /// Rights of the peer; bits of `qiao_hw::qp::access`.
    pub access: u32,
    /// Index of the P_Key.
    pub pkey_index: u16,
    /// Port, from 1.
    pub port: u8,
    /// Q_Key.
    pub qkey: u32,
    /// Path to the peer.
    pub path: Path,
    /// Path MTU; of datagrams that of the port.
    pub mtu: Mtu,
    /// Local ACK timeout, coded.
    pub timeout: u8,
    /// Retries after a timeout or a sequence NAK.
    pub retry_count: u8,
    /// Retries after an RNR NAK; 7 is infinite.
    pub rnr_retry: u8,
    /// Most READs and atomics outstanding as requester.
    pub max_rd_atomic: u8,
    /// Most READs and atomics served at a time as responder.
    pub max_dest_rd_atomic: u8,
    /// RNR NAK timer, coded.
    pub min_rnr_timer: u8,
    /// Queue pair of the peer.
    pub dest_qpn: u32,
    /// First PSN sent.
    pub sq_psn: u32,
    /// First PSN expected.
    pub rq_psn: u32,
    /// Whether SQD raises an event.
    pub notify_drained: bool,
    /// Limit in kbit/s; 0 is none.
    pub rate_limit: u32,
}

impl Settings {
    /// Returns the attributes of a queue pair in RESET.
    pub fn new(service: Transport) -> Self {
        Self {
            service,
            special: Special::None,
            state: QpState::Reset,
            access: 0,
            pkey_index: 0,
            port: 0,
            qkey: 0,
            path: Path::zeroed(),
            mtu: if service == Transport::Ud {
                MAX_MTU
            } else {
                Mtu::Mtu256
            },
            timeout: 0,
            retry_count: 0,
            rnr_retry: 0,
            max_rd_atomic: 0,
            max_dest_rd_atomic: 0,
            min_rnr_timer: 0,
            dest_qpn: 0,
            sq_psn: 0,
            rq_psn: 0,
            notify_drained: false,
            rate_limit: 0,
        }
    }

    /// Returns the attributes of a special queue pair of a port, from 1, in RESET.
    pub fn new_special(special: Special, port: u8) -> Self {
        Self {
            special,
            port,
            // IBTA 13.4.2: a management datagram.
            mtu: Mtu::Mtu256,
            ..Self::new(Transport::Ud)
        }
    }

    /// Returns what a queue pair is after a reset.
    pub(super) fn after_reset(&self) -> Self {
        match self.special {
            Special::None => Self::new(self.service),
            special => Self::new_special(special, self.port),
        }
    }

    /// Returns the MTU in bytes.
    pub fn mtu_bytes(&self) -> usize {
        self.mtu.bytes() as usize
    }

    /// Returns the attributes after `mask` of `new` has been applied.
    ///
    /// # Errors
    ///
    /// If IBTA has no such transition, or an attribute is missing or out of range.
    pub fn modify(&self, mask: u32, new: &QpAttr) -> Result<Self, ModifyError> {
        if mask & attr::CUR_STATE != 0 && QpState::from_wire(new.cur_state) != Some(self.state) {
            return Err(ModifyError::State);
        }
        let to = if mask & attr::STATE == 0 {
            self.state
        } else {
            QpState::from_wire(new.state).ok_or(ModifyError::Attribute)?
        };
        if to == QpState::Reset {
            return Ok(self.after_reset());
        }
        let mut needed = required(self.service, self.state, to).ok_or(ModifyError::State)?;
        if self.special != Special::None {
            // The port is that of its creation.
            needed &= !attr::PORT;
            if mask & attr::PORT != 0 && new.port != self.port {
                return Err(ModifyError::Attribute);
            }
        }
        if mask & needed != needed {
            return Err(ModifyError::Attribute);
        }
        let mut next = *self;
        next.apply(mask, new)?;
        next.state = to;
        Ok(next)
    }

    fn apply(&mut self, mask: u32, new: &QpAttr) -> Result<(), ModifyError> {
        let has = |bit| mask & bit != 0;
        let small = |value: u8, max: u8| {
            if value > max {
                return Err(ModifyError::Attribute);
            }
            Ok(value)
        };
        let wide = |value: u32| {
            if value > 0xff_ffff {
                return Err(ModifyError::Attribute);
            }
            Ok(value)
        };
        if has(attr::ACCESS) {
            self.access = new.access.get();
        }
        if has(attr::PKEY_INDEX) {
            self.pkey_index = new.pkey_index.get();
        }
        if has(attr::PORT) {
            self.port = new.port;
        }
        if has(attr::QKEY) {
            self.qkey = new.qkey.get();
        }
        if has(attr::PATH) {
            if new.path.dlid.get() > 0xffff || new.path.sl > 15 {
                return Err(ModifyError::Attribute);
            }
            self.path = new.path;
        }
        if has(attr::PATH_MTU) {
            // A datagram has the MTU of its port (IBTA 11.2.5.2).
            if self.service == Transport::Ud {
                return Err(ModifyError::Attribute);
            }
            self.mtu = Mtu::from_wire(new.path_mtu).ok_or(ModifyError::Attribute)?;
        }
        if has(attr::TIMEOUT) {
            self.timeout = small(new.timeout, 31)?;
        }
        if has(attr::RETRY_COUNT) {
            self.retry_count = small(new.retry_count, 7)?;
        }
        if has(attr::RNR_RETRY) {
            self.rnr_retry = small(new.rnr_retry, 7)?;
        }
        if has(attr::MIN_RNR_TIMER) {
            self.min_rnr_timer = small(new.min_rnr_timer, 31)?;
        }
        if has(attr::MAX_RD_ATOMIC) {
            self.max_rd_atomic = new.max_rd_atomic;
        }
        if has(attr::MAX_DEST_RD_ATOMIC) {
            self.max_dest_rd_atomic = new.max_dest_rd_atomic;
        }
        if has(attr::DEST_QPN) {
            self.dest_qpn = wide(new.dest_qpn.get())?;
        }
        if has(attr::SQ_PSN) {
            self.sq_psn = wide(new.sq_psn.get())?;
        }
        if has(attr::RQ_PSN) {
            self.rq_psn = wide(new.rq_psn.get())?;
        }
        if has(attr::NOTIFY_DRAINED) {
            self.notify_drained = new.notify_drained != 0;
        }
        if has(attr::RATE_LIMIT) {
            self.rate_limit = new.rate_limit.get();
        }
        Ok(())
    }

    /// Returns the attributes as the interface has them; `sq_psn` and `rq_psn` are the next ones.
    pub fn to_wire(self, sq_psn: u32, rq_psn: u32) -> QpAttr {
        let mut out = QpAttr::zeroed();
        out.qkey.set(self.qkey);
        out.rq_psn.set(rq_psn);
        out.sq_psn.set(sq_psn);
        out.dest_qpn.set(self.dest_qpn);
        out.access.set(self.access);
        out.rate_limit.set(self.rate_limit);
        out.pkey_index.set(self.pkey_index);
        out.port = self.port;
        out.path_mtu = self.mtu.to_wire();
        out.state = self.state.to_wire();
        out.cur_state = self.state.to_wire();
        out.notify_drained = u8::from(self.notify_drained);
        out.max_rd_atomic = self.max_rd_atomic;
        out.max_dest_rd_atomic = self.max_dest_rd_atomic;
        out.min_rnr_timer = self.min_rnr_timer;
        out.timeout = self.timeout;
        out.retry_count = self.retry_count;
        out.rnr_retry = self.rnr_retry;
        out.path = self.path;
        out
    }
}

/// Returns the attributes that a transition needs (IBTA table 96); [`None`] if there is no such
/// transition.
fn required(service: Transport, from: QpState, to: QpState) -> Option<u32> {
    use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
    match (from, to) {
        (_, Reset | Err) => Some(0),
        (Reset, Init) => Some(attr::PKEY_INDEX | attr::PORT | peer_right(service)),
        (Init, Rtr) => Some(to_receive(service)),
        (Rtr, Rts) => Some(to_send(service)),
        (Init, Init) | (Rts, Rts | Sqd) | (Sqd, Sqd | Rts) | (Sqe, Rts) => Some(0),
        _ => None,
    }
}

/// Returns the changes of state that there are for a service: those that a modification may ask for, and
/// those that an error leads to.
pub fn transitions(service: Transport) -> impl Iterator<Item = (QpState, QpState)> {
    use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
    const STATES: [QpState; 7] = [Reset, Init, Rtr, Rts, Sqd, Sqe, Err];
    let states = move || {
        let of_service = move |state: &QpState| *state != Sqe || service != Transport::Rc;
        STATES.into_iter().filter(of_service)
    };
    let pairs = states().flat_map(move |from| states().map(move |to| (from, to)));
    pairs.filter(move |&(from, to)| {
        required(service, from, to).is_some() || (from, to) == (Rts, Sqe)
    })
}

/// What lets a peer in: rights of a connection, a key of datagrams.
fn peer_right(service: Transport) -> u32 {
    match service {
        Transport::Rc | Transport::Uc => attr::ACCESS,
        Transport::Ud => attr::QKEY,
    }
}

fn to_receive(service: Transport) -> u32 {
    let connected = attr::PATH | attr::PATH_MTU | attr::DEST_QPN | attr::RQ_PSN;
    match service {
        Transport::Rc => connected | attr::MAX_DEST_RD_ATOMIC | attr::MIN_RNR_TIMER,
        Transport::Uc => connected,
        Transport::Ud => 0,
    }
}

fn to_send(service: Transport) -> u32 {
    let reliable = attr::TIMEOUT | attr::RETRY_COUNT | attr::RNR_RETRY | attr::MAX_RD_ATOMIC;
    match service {
        Transport::Rc => attr::SQ_PSN | reliable,
        Transport::Uc | Transport::Ud => attr::SQ_PSN,
    }
}

/// Returns the duration of a coded local ACK timeout in nanoseconds (IBTA 9.7.6.1.3); [`None`] if it
/// is infinite.
pub(super) fn ack_timeout_ns(code: u8) -> Option<u64> {
    if code == 0 {
        return None;
    }
    Some(4096 << (code & 31))
}

/// Returns the duration of a coded RNR timer in nanoseconds (IBTA table 45).
pub(super) fn rnr_timer_ns(code: u8) -> u64 {
    /// Hundredths of a millisecond.
    const TABLE: [u64; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024,
        1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    TABLE[usize::from(code & 31)] * 10_000
}
