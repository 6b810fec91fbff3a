// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Queue pairs: requests and completions.

use super::{contiguous, Guest};
use qiao_hw::cmd::*;
use qiao_hw::cqe::Cqe;
use qiao_hw::qp::{access, attr, QpAttr, QpState, QpType};
use qiao_hw::ring::{is_written, RingSize};
use qiao_hw::wqe::*;
use zerocopy::{FromBytes, IntoBytes};

/// What a connected queue pair is told on its way to RTS.
const ATTRIBUTES: u32 = attr::STATE
    | attr::ACCESS
    | attr::PKEY_INDEX
    | attr::PORT
    | attr::PATH
    | attr::PATH_MTU
    | attr::TIMEOUT
    | attr::RETRY_COUNT
    | attr::RNR_RETRY
    | attr::RQ_PSN
    | attr::SQ_PSN
    | attr::MAX_RD_ATOMIC
    | attr::MAX_DEST_RD_ATOMIC
    | attr::MIN_RNR_TIMER
    | attr::DEST_QPN;

pub const LOG_CQE: u8 = 6;
pub const LOG_SQ: u8 = 5;
pub const LOG_RQ: u8 = 4;
const LOG_STRIDE: u8 = 6;

/// Log2 of the entries of the rings of queue pairs.
#[derive(Clone, Copy)]
pub struct Depth {
    pub cqe: u8,
    pub sq: u8,
    pub rq: u8,
}

impl Depth {
    /// Offset of the send ring in the buffer.
    fn sq_offset(self) -> u32 {
        1 << (self.rq + LOG_STRIDE)
    }

    /// Pages of the buffer of a queue pair.
    fn qp_pages(self) -> u64 {
        (u64::from(self.sq_offset()) + ((BLOCK_SIZE as u64) << self.sq)).div_ceil(4096)
    }

    /// Pages of the buffer of a CQ: entries and doorbell record.
    fn cq_pages(self) -> u64 {
        (((1 << self.cqe) + 1) * 64_u64).div_ceil(4096)
    }
}

/// A queue pair with a CQ of its own.
pub struct Queue {
    pub qpn: u32,
    pub slot: u32,
    buffer: u64,
    pub cq: u64,
    depth: Depth,
    consumer: u32,
    pub sent: u32,
    pub received: u32,
}

impl Queue {
    /// Returns the free-running consumer index of the CQ.
    pub fn consumer(&self) -> u32 {
        self.consumer
    }
}

impl Guest {
    /// Makes CQ and QP number `n` in PD `pdn`.
    pub fn queue(&mut self, n: u32, pdn: u32) -> Queue {
        self.queue_of(QpType::Rc, n, pdn)
    }

    /// As [`Guest::queue`], of any type.
    pub fn queue_of(&mut self, qp_type: QpType, n: u32, pdn: u32) -> Queue {
        self.try_queue(qp_type, n, pdn, |_| ()).unwrap()
    }

    /// As [`Guest::queue_of`], with the command for the QP changed.
    pub fn try_queue(
        &mut self,
        qp_type: QpType,
        n: u32,
        pdn: u32,
        change: impl FnOnce(&mut CreateQp),
    ) -> Result<Queue, Status> {
        let depth = self.depth;
        let (cq, buffer) = (self.pages(depth.cq_pages()), self.pages(depth.qp_pages()));
        let slot = 512 + 4 * n;
        let mut command = CreateCq::zeroed();
        command.cqn.set(n);
        command.eqn.set(1);
        command.slot.set(slot + 2);
        command.log_entries = depth.cqe;
        command.buffer = contiguous(cq, depth.cq_pages() as u32, self.pages(1), self);
        self.command(&command).unwrap();
        let mut command = CreateQp::zeroed();
        command.qpn.set(n);
        command.pdn.set(pdn);
        command.send_cqn.set(n);
        command.recv_cqn.set(n);
        command.sq_slot.set(slot);
        command.rq_slot.set(slot + 1);
        command.qp_type = qp_type.to_wire();
        if matches!(qp_type, QpType::Smi | QpType::Gsi) {
            command.port = 1;
            command.flags.set(qp_flag::KERNEL);
        }
        command.log_sq_blocks = depth.sq;
        command.log_rq_wqes = depth.rq;
        command.log_rq_stride = LOG_STRIDE;
        command.sq_offset.set(depth.sq_offset());
        command.max_sq_wqe.set(256);
        command.buffer = contiguous(buffer, depth.qp_pages() as u32, self.pages(1), self);
        change(&mut command);
        self.command(&command)?;
        Ok(Queue {
            qpn: n,
            slot,
            buffer,
            cq,
            depth,
            consumer: 0,
            sent: 0,
            received: 0,
        })
    }

    /// Brings a QP of datagrams to RTS.
    pub fn open(&mut self, qpn: u32, qkey: u32) {
        let mut a = QpAttr::zeroed();
        a.port = 1;
        a.qkey.set(qkey);
        for (state, mask) in [
            (QpState::Init, attr::PKEY_INDEX | attr::PORT | attr::QKEY),
            (QpState::Rtr, 0),
            (QpState::Rts, attr::SQ_PSN),
        ] {
            a.state = state.to_wire();
            self.modify(qpn, attr::STATE | mask, &a).unwrap();
        }
    }

    /// Connects a QP on port 1 to another: LID and QP number.
    pub fn connect(&mut self, qpn: u32, lid: u32, peer: u32) {
        self.connect_on(1, qpn, lid, peer);
    }

    /// As [`Guest::connect`], on any port.
    pub fn connect_on(&mut self, port: u8, qpn: u32, lid: u32, peer: u32) {
        let mut a = QpAttr::zeroed();
        a.port = port;
        a.access
            .set(access::REMOTE_READ | access::REMOTE_WRITE | access::REMOTE_ATOMIC);
        a.path.dlid.set(lid);
        a.path.port = port;
        a.path_mtu = self.mtu.to_wire();
        a.dest_qpn.set(peer);
        a.rq_psn.set(0xff_fff0);
        a.sq_psn.set(0xff_fff0);
        a.max_rd_atomic = 4;
        a.max_dest_rd_atomic = 4;
        a.min_rnr_timer = 1;
        a.timeout = self.ack_timeout;
        a.retry_count = 7;
        a.rnr_retry = 7;
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            a.state = state.to_wire();
            self.modify(qpn, ATTRIBUTES, &a).unwrap();
        }
    }

    /// Posts a receive request.
    pub fn post_recv(&mut self, queue: &mut Queue, segment: DataSeg) {
        self.place_recv(queue, segment);
        self.ring(queue.slot + 1, queue.received.into());
    }

    /// Writes a receive request and does not ring.
    pub fn place_recv(&mut self, queue: &mut Queue, segment: DataSeg) {
        let index = queue.received;
        let ctrl = RecvCtrl {
            num_sge: 1.into(),
            index: index.into(),
            rsvd: 0.into(),
        };
        let slot = RingSize::from_log(queue.depth.rq).unwrap().slot(index);
        let at = queue.buffer + (u64::from(slot) << LOG_STRIDE);
        self.put(at, &[ctrl.as_bytes(), segment.as_bytes()].concat());
        queue.received += 1;
    }

    /// Posts a send request.
    pub fn post_send(&mut self, queue: &mut Queue, opcode: SendOpcode, segments: &[&[u8]]) {
        self.place_send(queue, opcode, send_flag::SIGNALED, segments);
        self.ring(queue.slot, queue.sent.into());
    }

    /// Writes a send request and does not ring.
    pub fn place_send(
        &mut self,
        queue: &mut Queue,
        opcode: SendOpcode,
        flags: u8,
        segments: &[&[u8]],
    ) {
        let mut ctrl = SendCtrl::zeroed();
        ctrl.opcode = opcode.to_wire();
        ctrl.flags = flags;
        ctrl.size = 1 + segments.iter().map(|s| s.len() as u8 / 16).sum::<u8>();
        ctrl.num_sge = 1;
        ctrl.index.set(queue.sent);
        self.place_raw(queue, &[&[ctrl.as_bytes()], segments].concat().concat());
    }

    /// Posts whatever is in a request.
    pub fn post_raw(&mut self, queue: &mut Queue, block: &[u8]) {
        self.place_raw(queue, block);
        self.ring(queue.slot, queue.sent.into());
    }

    fn place_raw(&mut self, queue: &mut Queue, block: &[u8]) {
        let ring = queue.buffer + u64::from(queue.depth.sq_offset());
        for part in block.chunks(BLOCK_SIZE) {
            let slot = RingSize::from_log(queue.depth.sq).unwrap().slot(queue.sent);
            self.put(ring + u64::from(slot) * BLOCK_SIZE as u64, part);
            queue.sent += 1;
        }
    }

    /// Waits for the next completion.
    pub fn poll(&mut self, queue: &mut Queue) -> Cqe {
        self.poll_nth(queue, 1)
    }

    /// Waits for the next `count` completions and returns the last of them.
    pub fn poll_nth(&mut self, queue: &mut Queue, count: u32) -> Cqe {
        let size = RingSize::from_log(queue.depth.cqe).unwrap();
        let index = queue.consumer + count - 1;
        let at = queue.cq + u64::from(size.slot(index)) * 64;
        let cqe = self.wait("a completion", |g| {
            let cqe = Cqe::read_from_bytes(&g.get(at, 64)).unwrap();
            is_written(size, index, cqe.owner.get()).then_some(cqe)
        });
        queue.consumer += count;
        let record = queue.cq + u64::from(size.entries()) * 64;
        self.put(record, &queue.consumer.to_le_bytes());
        cqe
    }
}

pub fn segment(addr: u64, length: u32, lkey: u32) -> DataSeg {
    DataSeg {
        addr: addr.into(),
        length: length.into(),
        lkey: lkey.into(),
    }
}

pub fn remote(addr: u64, rkey: u32) -> RemoteSeg {
    RemoteSeg {
        addr: addr.into(),
        rkey: rkey.into(),
        rsvd: 0.into(),
    }
}
