// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A queue pair with memory of its own.

use crate::control::{Completed, Opcode, Place, Post, Reply, Service};
use qiao_fabric::wire::Transport;
use qiao_hw::cqe::CqeOpcode;
use qiao_hw::qp::{access, attr, Mtu, Path, QpAttr, QpState};
use qiao_hw::wqe::SendOpcode;
use qiao_model::transport::node::{Node, KEY};
use qiao_model::transport::{Completion, Data, Datagram, ModifyError, Qp, RecvWqe, SendWqe, Sge};
use std::ops::Range;

/// LIDs of the packets that the transport sees; none of them is on the wire.
pub(crate) const OWN_LID: u16 = 2;
/// As above, of the other side.
pub(crate) const OTHER_LID: u16 = 1;

/// Bytes of memory.
const SIZE: u32 = 1 << 17;

/// Q_Key of datagrams.
const QKEY: u32 = 0x1111_1111;

/// The pattern's period: no divisor of a packet or a page, so that what is misplaced shows.
const PERIOD: u32 = 251;

/// Every attribute that any transition to RTS needs.
const ATTRIBUTES: u32 = u32::MAX & !(attr::CUR_STATE | attr::PATH_MTU);

/// A queue pair on memory.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub qp: Qp,
    pub node: Node,
    dest_qpn: u32,
    service: Service,
    sent: u32,
    received: u32,
}

fn pattern(seed: u32, length: usize) -> impl Iterator<Item = u8> {
    // CAST: Smaller than the period.
    (0..)
        .map(move |at| ((seed % PERIOD + at % PERIOD) % PERIOD) as u8)
        .take(length)
}

impl Endpoint {
    /// Makes queue pair `qpn` and connects it to `dest_qpn`; both sides' first PSN is `psn`.
    pub fn open(qpn: u32, service: Service, dest_qpn: u32, psn: u32) -> Result<Self, ModifyError> {
        let transport = match service {
            Service::Rc => Transport::Rc,
            Service::Uc => Transport::Uc,
            Service::Ud => Transport::Ud,
        };
        let mut endpoint = Self {
            qp: Qp::new(transport),
            node: Node::new(qpn, OWN_LID, vec![0; SIZE as usize]),
            dest_qpn,
            service,
            sent: 0,
            received: 0,
        };
        let mut to = QpAttr::zeroed();
        to.port = 1;
        to.access
            .set(access::REMOTE_READ | access::REMOTE_WRITE | access::REMOTE_ATOMIC);
        to.path.dlid.set(OTHER_LID.into());
        to.path_mtu = Mtu::Mtu1024.to_wire();
        to.qkey.set(QKEY);
        to.dest_qpn.set(dest_qpn);
        (to.rq_psn, to.sq_psn) = (psn.into(), psn.into());
        (to.max_rd_atomic, to.max_dest_rd_atomic) = (4, 4);
        // 0.64 ms until an RNR NAK is retried, a second until a packet counts as lost: vCPUs wait for
        // their turn.
        (to.min_rnr_timer, to.timeout) = (12, 18);
        (to.retry_count, to.rnr_retry) = (7, 7);
        let mut mask = ATTRIBUTES;
        if service != Service::Ud {
            mask |= attr::PATH_MTU;
        }
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            to.state = state.to_wire();
            endpoint.qp.modify(mask, &to, &mut endpoint.node)?;
        }
        Ok(endpoint)
    }

    /// Returns what the other side must know.
    pub fn describe(qpn: u32) -> Reply {
        Reply::Opened {
            qpn,
            rkey: KEY,
            size: SIZE,
        }
    }

    fn range(place: Place) -> Option<Range<usize>> {
        let end = place.offset.checked_add(place.length)?;
        (end <= SIZE).then_some(place.offset as usize..end as usize)
    }

    pub fn fill(&mut self, place: Place, seed: u32) -> Option<()> {
        let memory = self.node.memory.get_mut(Self::range(place)?)?;
        let bytes = pattern(seed, memory.len());
        memory
            .iter_mut()
            .zip(bytes)
            .for_each(|(to, byte)| *to = byte);
        Some(())
    }

    /// Returns the first byte that differs from the pattern.
    pub fn compare(&self, place: Place, seed: u32) -> Option<Option<u32>> {
        let memory = self.node.memory.get(Self::range(place)?)?;
        let mut pairs = (0u32..).zip(memory.iter().zip(pattern(seed, memory.len())));
        let differs = pairs.find(|(_, (found, wanted))| **found != *wanted);
        Some(differs.map(|(at, _)| at))
    }

    fn word(&mut self, place: Place) -> Option<&mut [u8; 8]> {
        let range = Self::range(place)?;
        self.node.memory.get_mut(range)?.first_chunk_mut()
    }

    pub fn poke(&mut self, place: Place, value: u64) -> Option<()> {
        *self.word(place)? = value.to_le_bytes();
        Some(())
    }

    pub fn peek(&mut self, place: Place) -> Option<u64> {
        self.word(place).map(|word| u64::from_le_bytes(*word))
    }

    pub fn receive(&mut self, place: Place) -> Option<()> {
        Self::range(place)?;
        self.node.recvs.push_back(RecvWqe {
            index: self.received,
            sges: vec![segment(place)],
            length: place.length.into(),
            error: None,
        });
        self.received += 1;
        Some(())
    }

    pub fn post(&mut self, post: Post) -> Option<()> {
        Self::range(post.place)?;
        let datagram = (self.service == Service::Ud).then(|| self.datagram());
        self.node.sends.push_back(SendWqe {
            index: self.sent,
            opcode: send_opcode(post.opcode, post.imm.is_some()),
            signaled: true,
            solicited: false,
            fence: false,
            imm: post.imm.unwrap_or(0).to_be_bytes(),
            remote: post.remote,
            atomic: post.atomic,
            flush: None,
            datagram,
            data: Data::Sges(vec![segment(post.place)]),
            length: post.place.length,
            error: None,
        });
        self.sent += 1;
        Some(())
    }

    fn datagram(&self) -> Datagram {
        let mut path = Path::zeroed();
        path.port = 1;
        path.dlid.set(OTHER_LID.into());
        Datagram {
            path,
            qpn: self.dest_qpn,
            qkey: QKEY,
            pkey_index: 0,
        }
    }

    pub fn completions(&mut self) -> Vec<Completed> {
        self.node.completions.drain(..).map(completed).collect()
    }
}

fn segment(place: Place) -> Sge {
    Sge {
        addr: place.offset.into(),
        length: place.length,
        lkey: KEY,
    }
}

fn send_opcode(opcode: Opcode, imm: bool) -> SendOpcode {
    match (opcode, imm) {
        (Opcode::Send, false) => SendOpcode::Send,
        (Opcode::Send, true) => SendOpcode::SendImm,
        (Opcode::Write, false) => SendOpcode::RdmaWrite,
        (Opcode::Write, true) => SendOpcode::RdmaWriteImm,
        (Opcode::Read, _) => SendOpcode::RdmaRead,
        (Opcode::CompareSwap, _) => SendOpcode::CompareSwap,
        (Opcode::FetchAdd, _) => SendOpcode::FetchAdd,
        (Opcode::AtomicWrite, _) => SendOpcode::AtomicWrite,
    }
}

fn completed(completion: Completion) -> Completed {
    Completed {
        index: completion.index,
        receive: matches!(
            completion.opcode,
            CqeOpcode::Recv | CqeOpcode::RecvRdmaWithImm
        ),
        status: format!("{:?}", completion.status),
        byte_len: completion.byte_len,
        imm: completion.imm.map(u32::from_be_bytes),
        source: completion.source.map(|source| source.qpn),
    }
}
