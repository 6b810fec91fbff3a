// SPDX-License-Identifier: GPL-2.0

//! Sizes of the queues that users ask for.
//!
//! All that comes in is user input, up to any number that its type holds.
//!
//! No kernel in here: the tests are those of `qemu/driver`.

use core::ops::RangeInclusive;
use qiao_hw::{
    caps::Caps,
    cmd::CreateQp,
    cqe::Cqe,
    qp::QpType,
    ring::RingSize,
    wqe::{
        self,
        DataSeg,
        RecvCtrl,
        SendOpcode, //
    }, //
};

/// Bytes of the doorbell record behind the entries of a CQ.
pub(crate) const CQ_RECORD: usize = 64;

/// Log2 of the bytes that a receive request may have.
const LOG_RQ_STRIDE: RangeInclusive<u8> = 5..=12;

/// Alignment of the buffer of a queue, in bytes.
const BUFFER_ALIGN: u64 = 64;

/// Returns whether a buffer of queues may be at `addr`.
pub(crate) fn is_aligned(addr: u64) -> bool {
    addr % BUFFER_ALIGN == 0
}

/// The buffer of a CQ: the entries, and behind them the doorbell record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CqLayout {
    /// Number of entries.
    pub(crate) entries: RingSize,
    /// Bytes of the buffer.
    pub(crate) size: usize,
}

impl CqLayout {
    /// Lays out a CQ of `2^log_entries` entries; [`None`] if the part has none so large, or if that
    /// is less than `needed`.
    pub(crate) fn new(caps: &Caps, log_entries: u8, needed: u32) -> Option<Self> {
        if log_entries > caps.log_max_cqe {
            return None;
        }
        let entries = RingSize::from_log(log_entries)?;
        if needed > entries.entries() {
            return None;
        }
        let size = usize::try_from(entries.entries())
            .ok()?
            .checked_mul(size_of::<Cqe>())?
            .checked_add(CQ_RECORD)?;
        Some(Self { entries, size })
    }
}

/// What a user asks of a QP.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QpRequest {
    /// Log2 of the blocks of the send ring.
    pub(crate) log_sq_blocks: u8,
    /// Log2 of the requests of the receive ring.
    pub(crate) log_rq_wqes: u8,
    /// Log2 of the bytes of a receive request.
    pub(crate) log_rq_stride: u8,
    /// Send requests.
    pub(crate) max_send_wr: u32,
    /// Receive requests.
    pub(crate) max_recv_wr: u32,
    /// Data segments of a send request.
    pub(crate) max_send_sge: u32,
    /// Data segments of a receive request.
    pub(crate) max_recv_sge: u32,
    /// Bytes of inline data of a send request.
    pub(crate) max_inline: u32,
}

/// The buffer of a QP: the receive ring, and behind it the send ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QpLayout {
    log_sq_blocks: u8,
    log_rq_wqes: u8,
    log_rq_stride: u8,
    sq_offset: u32,
    max_sq_wqe: u32,
    /// Bytes of the buffer.
    pub(crate) size: usize,
}

impl QpLayout {
    /// Lays out a QP; [`None`] if the part has none so large, or if the rings are too small for the
    /// requests.
    pub(crate) fn new(caps: &Caps, ty: QpType, req: &QpRequest) -> Option<Self> {
        let max_sge = u32::from(caps.max_sge.get());
        if req.log_sq_blocks > caps.log_max_sq_blocks
            || req.log_rq_wqes > caps.log_max_rq_wqes
            || !LOG_RQ_STRIDE.contains(&req.log_rq_stride)
            || req.max_send_sge > max_sge
            || req.max_recv_sge > max_sge
            || req.max_inline > u32::from(caps.max_inline.get())
        {
            return None;
        }
        let rq_bytes = rq_bytes(req)?;
        let max_sq_wqe = max_send_request(ty, req)?;
        let sq_bytes = sq_bytes(req, max_sq_wqe)?;
        Some(Self {
            log_sq_blocks: req.log_sq_blocks,
            log_rq_wqes: req.log_rq_wqes,
            log_rq_stride: req.log_rq_stride,
            sq_offset: u32::try_from(rq_bytes).ok()?,
            max_sq_wqe: u32::try_from(max_sq_wqe).ok()?,
            size: rq_bytes.checked_add(sq_bytes)?,
        })
    }

    /// Fills in the fields of the command that are about the rings.
    pub(crate) fn fill(&self, cmd: &mut CreateQp) {
        cmd.log_sq_blocks = self.log_sq_blocks;
        cmd.log_rq_wqes = self.log_rq_wqes;
        cmd.log_rq_stride = self.log_rq_stride;
        cmd.rq_offset.set(0);
        cmd.sq_offset.set(self.sq_offset);
        cmd.max_sq_wqe.set(self.max_sq_wqe);
    }
}

fn power(log: u8) -> Option<usize> {
    1usize.checked_shl(u32::from(log))
}

/// Returns the bytes of the receive ring, in whole blocks, since the send ring starts behind.
fn rq_bytes(req: &QpRequest) -> Option<usize> {
    let requests = power(req.log_rq_wqes)?;
    let stride = power(req.log_rq_stride)?;
    let needed = size_of::<DataSeg>()
        .checked_mul(usize::try_from(req.max_recv_sge).ok()?)?
        .checked_add(size_of::<RecvCtrl>())?;
    if usize::try_from(req.max_recv_wr).ok()? > requests || needed > stride {
        return None;
    }
    requests
        .checked_mul(stride)?
        .checked_next_multiple_of(wqe::BLOCK_SIZE)
}

/// Returns the bytes of the send ring.
fn sq_bytes(req: &QpRequest, max_sq_wqe: usize) -> Option<usize> {
    let blocks = power(req.log_sq_blocks)?;
    if usize::try_from(req.max_send_wr).ok()? > blocks || wqe::blocks(max_sq_wqe) > blocks {
        return None;
    }
    blocks.checked_mul(wqe::BLOCK_SIZE)
}

/// Returns the bytes of the largest send request, be it by its data segments or its inline data,
/// behind the longest head that the transport has; [`None`] if the size field of a request can not
/// say that.
fn max_send_request(ty: QpType, req: &QpRequest) -> Option<usize> {
    let sges = usize::try_from(req.max_send_sge).ok()?;
    let inline = usize::try_from(req.max_inline).ok()?;
    let (with_sges, with_inline) = match ty {
        QpType::Rc | QpType::XrcIni | QpType::XrcTgt => {
            (SendOpcode::CompareSwap, SendOpcode::RdmaWrite)
        }
        QpType::Uc => (SendOpcode::RdmaWrite, SendOpcode::RdmaWrite),
        QpType::Ud | QpType::Gsi | QpType::Smi => (SendOpcode::Send, SendOpcode::Send),
    };
    let datagram = matches!(ty, QpType::Ud | QpType::Gsi | QpType::Smi);
    // The caller has limited both to 16 bits.
    let bytes = wqe::sge_size(with_sges, datagram, sges).max(wqe::inline_size(
        with_inline,
        datagram,
        inline,
    ));
    (bytes <= wqe::SIZE_UNIT * usize::from(u8::MAX)).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caps() -> Caps {
        let mut caps = Caps::zeroed();
        caps.log_max_cqe = 23;
        caps.log_max_sq_blocks = 20;
        caps.log_max_rq_wqes = 20;
        caps.max_sge.set(30);
        caps.max_inline.set(512);
        caps
    }

    const REQUEST: QpRequest = QpRequest {
        log_sq_blocks: 7,
        log_rq_wqes: 3,
        log_rq_stride: 6,
        max_send_wr: 128,
        max_recv_wr: 8,
        max_send_sge: 2,
        max_recv_sge: 3,
        max_inline: 100,
    };

    fn accepts(change: impl FnOnce(&mut QpRequest)) -> bool {
        let mut req = REQUEST;
        change(&mut req);
        QpLayout::new(&caps(), QpType::Rc, &req).is_some()
    }

    #[test]
    fn buffers_start_at_whole_lines() {
        assert!(is_aligned(0x7f00_0000_1040));
        assert!(!is_aligned(0x7f00_0000_1020));
        assert!(!is_aligned(u64::MAX));
    }

    #[test]
    fn cq_has_its_record_behind_the_entries() {
        let cq = CqLayout::new(&caps(), 4, 16).unwrap();
        assert_eq!((cq.entries.log(), cq.size), (4, 16 * 64 + 64));
        assert!(CqLayout::new(&caps(), 4, 17).is_none());
        assert!(CqLayout::new(&caps(), 23, 1 << 23).is_some());
    }

    #[test]
    fn cq_of_any_log_is_refused_or_holds_what_is_needed() {
        for log in 0..=u8::MAX {
            for needed in [0, 1, 1 << 22, u32::MAX] {
                let Some(cq) = CqLayout::new(&caps(), log, needed) else {
                    continue;
                };
                assert!(log <= 23 && cq.size >= needed as usize * size_of::<Cqe>() + CQ_RECORD);
            }
        }
    }

    #[test]
    fn qp_has_its_send_ring_behind_its_receive_ring() {
        let layout = QpLayout::new(&caps(), QpType::Rc, &REQUEST).unwrap();
        assert_eq!(layout.sq_offset, 8 * 64);
        assert_eq!(layout.size, 8 * 64 + 128 * 64);
        // A head of 32 bytes, the byte count and the data, in units of 16.
        assert_eq!(layout.max_sq_wqe, 32 + 112);
        let mut cmd = CreateQp::zeroed();
        layout.fill(&mut cmd);
        assert_eq!((cmd.sq_offset.get(), cmd.log_rq_stride), (8 * 64, 6));
    }

    #[test]
    fn receive_ring_of_half_a_block_is_filled_up() {
        let mut req = REQUEST;
        (req.log_rq_wqes, req.log_rq_stride) = (0, 5);
        (req.max_recv_wr, req.max_recv_sge) = (1, 1);
        let layout = QpLayout::new(&caps(), QpType::Rc, &req).unwrap();
        assert_eq!(layout.sq_offset, 64);
    }

    #[test]
    fn rings_too_small_for_the_requests_are_refused() {
        assert!(accepts(|_| ()));
        assert!(!accepts(|r| r.max_recv_wr = 9));
        assert!(!accepts(|r| r.max_recv_sge = 4));
        assert!(!accepts(|r| r.max_send_wr = 129));
        assert!(!accepts(|r| (r.log_sq_blocks, r.max_send_wr) = (0, 1)));
        assert!(!accepts(|r| r.log_rq_stride = 4));
    }

    #[test]
    fn more_than_the_part_has_is_refused() {
        assert!(!accepts(|r| r.log_sq_blocks = 21));
        assert!(!accepts(|r| r.log_rq_wqes = 21));
        assert!(!accepts(|r| r.log_rq_stride = 13));
        assert!(!accepts(|r| r.max_send_sge = 31));
        assert!(!accepts(|r| r.max_recv_sge = 31));
        assert!(!accepts(|r| r.max_inline = 513));
    }

    #[test]
    fn no_number_overflows() {
        let extremes = [0, 1, 30, 512, u32::MAX - 1, u32::MAX];
        for log in 0..=u8::MAX {
            for n in extremes {
                let req = QpRequest {
                    log_sq_blocks: log,
                    log_rq_wqes: log,
                    log_rq_stride: log,
                    max_send_wr: n,
                    max_recv_wr: n,
                    max_send_sge: n,
                    max_recv_sge: n,
                    max_inline: n,
                };
                for ty in [QpType::Rc, QpType::Uc, QpType::Ud] {
                    if let Some(layout) = QpLayout::new(&caps(), ty, &req) {
                        assert!(layout.size > (64 << log) && LOG_RQ_STRIDE.contains(&log));
                    }
                }
            }
        }
    }

    #[test]
    fn request_that_its_size_field_can_not_say_is_refused() {
        let mut caps = caps();
        caps.max_sge.set(u16::MAX);
        let mut req = REQUEST;
        req.log_sq_blocks = 10;
        req.max_send_sge = 252;
        assert!(QpLayout::new(&caps, QpType::Rc, &req).is_some());
        req.max_send_sge = 253;
        assert!(QpLayout::new(&caps, QpType::Rc, &req).is_none());
    }
}
