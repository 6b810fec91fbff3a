// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Buffers of queues: how large they are, and what lies where.
//!
//! The library of user space allocates what the driver pins, so both compute it here. All that
//! comes in may be user input, up to any number that its type holds.

use crate::{
    caps::Caps,
    cmd::CreateQp,
    cqe::Cqe,
    qp::QpType,
    ring::RingSize,
    wqe::{
        self,
        SendOpcode, //
    }, //
};

mod recv;

pub use self::recv::{
    RecvRing,
    SrqLayout,
    LOG_RQ_STRIDE, //
};

/// Bytes of the doorbell record behind the entries of a CQ, on a line of its own.
pub const CQ_RECORD_SIZE: usize = 64;

/// Alignment of the buffer of a queue, in bytes.
pub const BUFFER_ALIGN: u64 = 64;

/// What a part has for queues: the fields of [`Caps`] of these names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the meanings are those of Caps")]
pub struct Limits {
    pub max_sge: u32,
    pub max_inline: u32,
    pub log_max_sq_blocks: u8,
    pub log_max_rq_wqes: u8,
    pub log_max_cqe: u8,
}

impl From<&Caps> for Limits {
    fn from(caps: &Caps) -> Self {
        Self {
            max_sge: caps.max_sge.get().into(),
            max_inline: caps.max_inline.get().into(),
            log_max_sq_blocks: caps.log_max_sq_blocks,
            log_max_rq_wqes: caps.log_max_rq_wqes,
            log_max_cqe: caps.log_max_cqe,
        }
    }
}

/// The buffer of a CQ: the entries, and behind them the doorbell record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CqLayout(RingSize);

impl CqLayout {
    /// Lays out a CQ of that many entries.
    #[inline]
    pub const fn of(entries: RingSize) -> Self {
        Self(entries)
    }

    /// Lays out a CQ of `2^log_entries` entries; [`None`] if the part has none so large, or if that
    /// is less than `needed`.
    pub fn new(limits: &Limits, log_entries: u8, needed: u32) -> Option<Self> {
        if log_entries > limits.log_max_cqe {
            return None;
        }
        let entries = RingSize::from_log(log_entries)?;
        (needed <= entries.entries()).then_some(Self(entries))
    }

    /// Lays out the smallest CQ of at least `needed` entries, which must not be 0; [`None`] if the
    /// part has none so large.
    pub fn for_entries(limits: &Limits, needed: u32) -> Option<Self> {
        let entries = RingSize::for_entries(needed).filter(|_| needed > 0)?;
        Self::new(limits, entries.log(), needed)
    }

    /// Returns the number of entries.
    #[inline]
    pub const fn entries(self) -> RingSize {
        self.0
    }

    /// Returns the offset in bytes of the entry of a free-running index.
    #[inline]
    pub const fn entry_offset(self, index: u32) -> usize {
        // CAST: Widening. A ring has at most 2^23 entries.
        self.0.slot(index) as usize * size_of::<Cqe>()
    }

    /// Returns the offset in bytes of the doorbell record.
    #[inline]
    pub const fn record_offset(self) -> usize {
        // CAST: As above.
        self.0.entries() as usize * size_of::<Cqe>()
    }

    /// Returns the bytes of the buffer.
    #[inline]
    pub const fn size(self) -> usize {
        self.record_offset() + CQ_RECORD_SIZE
    }
}

/// What is asked of a QP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpNeeds {
    /// Send requests.
    pub max_send_wr: u32,
    /// Receive requests.
    pub max_recv_wr: u32,
    /// Data segments of a send request.
    pub max_send_sge: u32,
    /// Data segments of a receive request.
    pub max_recv_sge: u32,
    /// Bytes of inline data of a send request.
    pub max_inline: u32,
    /// Whether receive requests come from an SRQ: then those of the QP itself do not count.
    pub shared: bool,
}

/// Sizes of the rings of a QP; those of the receive ring are zero with an SRQ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpRings {
    /// Log2 of the blocks of the send ring.
    pub log_sq_blocks: u8,
    /// Log2 of the requests of the receive ring.
    pub log_rq_wqes: u8,
    /// Log2 of the bytes of a receive request.
    pub log_rq_stride: u8,
}

/// The buffer of a QP: the receive ring unless it has an SRQ, and behind it the send ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpLayout {
    sq: RingSize,
    rq: Option<RecvRing>,
    sq_offset: u32,
    max_sq_wqe: u32,
    size: usize,
}

impl QpLayout {
    /// Lays out a QP; [`None`] if the part has none so large, or if the rings are too small for it.
    pub fn new(limits: &Limits, ty: QpType, rings: QpRings, needs: &QpNeeds) -> Option<Self> {
        if rings.log_sq_blocks > limits.log_max_sq_blocks
            || needs.max_send_sge > limits.max_sge
            || needs.max_inline > limits.max_inline
        {
            return None;
        }
        let max_sq_wqe = send_request(ty, needs)?;
        let logs = (rings.log_rq_wqes, rings.log_rq_stride);
        let rq = if needs.shared {
            if logs != (0, 0) || !ty.may_share() {
                return None;
            }
            None
        } else {
            Some(RecvRing::new(
                limits,
                logs,
                needs.max_recv_wr,
                needs.max_recv_sge,
            )?)
        };
        // In whole blocks, since the send ring starts behind.
        let rq_bytes = rq
            .map_or(0, RecvRing::bytes)
            .checked_next_multiple_of(wqe::BLOCK_SIZE)?;
        let sq_bytes = sq_bytes(rings, needs, max_sq_wqe)?;
        Some(Self {
            sq: RingSize::from_log(rings.log_sq_blocks)?,
            rq,
            sq_offset: u32::try_from(rq_bytes).ok()?,
            max_sq_wqe: u32::try_from(max_sq_wqe).ok()?,
            size: rq_bytes.checked_add(sq_bytes)?,
        })
    }

    /// Lays out the smallest QP that holds what is needed, with rings for one request at least;
    /// [`None`] if the part has none so large.
    pub fn for_needs(limits: &Limits, ty: QpType, needs: &QpNeeds) -> Option<Self> {
        let blocks = u32::try_from(wqe::blocks(send_request(ty, needs)?)).ok()?;
        let sq = RingSize::for_entries(needs.max_send_wr.max(1).checked_mul(blocks)?)?;
        let mut rings = QpRings {
            log_sq_blocks: sq.log(),
            ..QpRings::default()
        };
        if !needs.shared {
            let rq = RecvRing::for_needs(limits, needs.max_recv_wr, needs.max_recv_sge)?;
            rings.log_rq_wqes = rq.size().log();
            rings.log_rq_stride = rq.log_stride();
        }
        Self::new(limits, ty, rings, needs)
    }

    /// Returns the sizes of the rings.
    #[inline]
    pub const fn rings(&self) -> QpRings {
        let (log_rq_wqes, log_rq_stride) = match self.rq {
            Some(rq) => (rq.size().log(), rq.log_stride()),
            None => (0, 0),
        };
        QpRings {
            log_sq_blocks: self.sq.log(),
            log_rq_wqes,
            log_rq_stride,
        }
    }

    /// Returns the blocks of the send ring.
    #[inline]
    pub const fn sq(&self) -> RingSize {
        self.sq
    }

    /// Returns the receive ring, at the start of the buffer; [`None`] with an SRQ.
    #[inline]
    pub const fn rq(&self) -> Option<RecvRing> {
        self.rq
    }

    /// Returns how many send requests always fit.
    pub fn max_send_wr(&self) -> u32 {
        let blocks = self.max_sq_wqe.div_ceil(wqe::BLOCK_SIZE as u32);
        // It has blocks: a head is never empty.
        self.sq.entries().checked_div(blocks).unwrap_or(0)
    }

    /// Returns the offset in bytes of the block of a free-running index of the send ring.
    #[inline]
    pub const fn send_offset(&self, index: u32) -> usize {
        // CAST: Widening.
        self.sq_offset as usize + self.sq.slot(index) as usize * wqe::BLOCK_SIZE
    }

    /// Returns the bytes of the buffer.
    #[inline]
    pub const fn size(&self) -> usize {
        self.size
    }

    /// Fills in the fields of the command that are about the rings.
    pub fn fill(&self, cmd: &mut CreateQp) {
        let rings = self.rings();
        cmd.log_sq_blocks = rings.log_sq_blocks;
        cmd.log_rq_wqes = rings.log_rq_wqes;
        cmd.log_rq_stride = rings.log_rq_stride;
        cmd.rq_offset.set(0);
        cmd.sq_offset.set(self.sq_offset);
        cmd.max_sq_wqe.set(self.max_sq_wqe);
    }
}

fn power(log: u8) -> Option<usize> {
    1usize.checked_shl(log.into())
}

/// Returns the bytes of the send ring.
fn sq_bytes(rings: QpRings, needs: &QpNeeds, max_sq_wqe: usize) -> Option<usize> {
    let blocks = power(rings.log_sq_blocks)?;
    if usize::try_from(needs.max_send_wr).ok()? > blocks || wqe::blocks(max_sq_wqe) > blocks {
        return None;
    }
    blocks.checked_mul(wqe::BLOCK_SIZE)
}

/// Returns the bytes of the largest send request, be it by its data segments or its inline data,
/// behind the longest head that the transport has; [`None`] if the size field of a request can not
/// say that.
fn send_request(ty: QpType, needs: &QpNeeds) -> Option<usize> {
    /// More than a request can have of either.
    const MANY: u32 = 1 << 16;

    if needs.max_send_sge >= MANY || needs.max_inline >= MANY {
        return None;
    }
    let (with_sges, with_inline) = match ty {
        QpType::Rc | QpType::XrcIni | QpType::XrcTgt => {
            (SendOpcode::CompareSwap, SendOpcode::RdmaWrite)
        }
        QpType::Uc => (SendOpcode::RdmaWrite, SendOpcode::RdmaWrite),
        QpType::Ud | QpType::Gsi | QpType::Smi => (SendOpcode::Send, SendOpcode::Send),
    };
    let datagram = ty.is_datagram();
    // CAST: Widening.
    let sges = wqe::sge_size(with_sges, datagram, needs.max_send_sge as usize);
    let inline = wqe::inline_size(with_inline, datagram, needs.max_inline as usize);
    let bytes = sges.max(inline);
    (bytes <= wqe::SIZE_UNIT * usize::from(u8::MAX)).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        max_sge: 30,
        max_inline: 512,
        log_max_sq_blocks: 20,
        log_max_rq_wqes: 20,
        log_max_cqe: 23,
    };

    const RINGS: QpRings = QpRings {
        log_sq_blocks: 7,
        log_rq_wqes: 3,
        log_rq_stride: 6,
    };

    const NEEDS: QpNeeds = QpNeeds {
        max_send_wr: 128,
        max_recv_wr: 8,
        max_send_sge: 2,
        max_recv_sge: 3,
        max_inline: 100,
        shared: false,
    };

    fn accepts(change: impl FnOnce(&mut QpRings, &mut QpNeeds)) -> bool {
        let (mut rings, mut needs) = (RINGS, NEEDS);
        change(&mut rings, &mut needs);
        QpLayout::new(&LIMITS, QpType::Rc, rings, &needs).is_some()
    }

    #[test]
    fn cq_has_its_record_behind_the_entries() {
        let cq = CqLayout::new(&LIMITS, 4, 16).unwrap();
        assert_eq!((cq.entries().log(), cq.size()), (4, 16 * 64 + 64));
        assert_eq!((cq.entry_offset(18), cq.record_offset()), (128, 1024));
        assert!(CqLayout::new(&LIMITS, 4, 17).is_none());
        assert!(CqLayout::new(&LIMITS, 23, 1 << 23).is_some());
    }

    #[test]
    fn cq_of_any_log_is_refused_or_holds_what_is_needed() {
        for log in 0..=u8::MAX {
            for needed in [0, 1, 1 << 22, u32::MAX] {
                let Some(cq) = CqLayout::new(&LIMITS, log, needed) else {
                    continue;
                };
                assert!(log <= 23 && cq.record_offset() >= needed as usize * size_of::<Cqe>());
            }
        }
    }

    #[test]
    fn cq_for_entries_is_the_smallest() {
        assert_eq!(
            CqLayout::for_entries(&LIMITS, 1).unwrap().entries().log(),
            0
        );
        assert_eq!(
            CqLayout::for_entries(&LIMITS, 9).unwrap().entries().log(),
            4
        );
        for needed in [0, (1 << 23) + 1, u32::MAX] {
            assert_eq!(CqLayout::for_entries(&LIMITS, needed), None);
        }
    }

    #[test]
    fn qp_has_its_send_ring_behind_its_receive_ring() {
        let layout = QpLayout::new(&LIMITS, QpType::Rc, RINGS, &NEEDS).unwrap();
        assert_eq!(layout.size(), 8 * 64 + 128 * 64);
        let rq = layout.rq().unwrap();
        assert_eq!((rq.offset(9), layout.send_offset(130)), (64, 640));
        // A head of 32 bytes, the byte count and the data, in units of 16: three blocks.
        let mut cmd = CreateQp::zeroed();
        layout.fill(&mut cmd);
        assert_eq!((cmd.sq_offset.get(), cmd.max_sq_wqe.get()), (512, 144));
        assert_eq!(layout.max_send_wr(), 128 / 3);
    }

    #[test]
    fn receive_ring_of_half_a_block_is_filled_up() {
        let layout = QpLayout::for_needs(&LIMITS, QpType::Rc, &QpNeeds::default()).unwrap();
        let rings = layout.rings();
        assert_eq!((rings.log_rq_wqes, rings.log_rq_stride), (0, 5));
        assert_eq!(layout.send_offset(0), 64);
    }

    #[test]
    fn with_an_srq_there_is_no_receive_ring() {
        let needs = QpNeeds {
            shared: true,
            max_recv_wr: u32::MAX,
            max_recv_sge: u32::MAX,
            ..NEEDS
        };
        let layout = QpLayout::for_needs(&LIMITS, QpType::Ud, &needs).unwrap();
        assert_eq!((layout.rq(), layout.send_offset(0)), (None, 0));
        let rings = layout.rings();
        assert_eq!((rings.log_rq_wqes, rings.log_rq_stride), (0, 0));
        assert!(QpLayout::for_needs(&LIMITS, QpType::Gsi, &needs).is_none());
        assert!(!accepts(|_, n| n.shared = true));
        assert!(accepts(|r, n| {
            n.shared = true;
            (r.log_rq_wqes, r.log_rq_stride) = (0, 0);
        }));
    }

    #[test]
    fn rings_too_small_for_the_requests_are_refused() {
        assert!(accepts(|_, _| ()));
        assert!(!accepts(|_, n| n.max_recv_wr = 9));
        assert!(!accepts(|_, n| n.max_recv_sge = 4));
        assert!(!accepts(|_, n| n.max_send_wr = 129));
        assert!(!accepts(|r, n| (r.log_sq_blocks, n.max_send_wr) = (0, 1)));
        assert!(!accepts(|r, _| r.log_rq_stride = 4));
    }

    #[test]
    fn more_than_the_part_has_is_refused() {
        assert!(!accepts(|r, _| r.log_sq_blocks = 21));
        assert!(!accepts(|r, _| r.log_rq_wqes = 21));
        assert!(!accepts(|r, _| r.log_rq_stride = 13));
        assert!(!accepts(|_, n| n.max_send_sge = 31));
        assert!(!accepts(|_, n| n.max_recv_sge = 31));
        assert!(!accepts(|_, n| n.max_inline = 513));
    }

    #[test]
    fn what_is_needed_fits_in_what_is_laid_out_for_it() {
        for ty in [QpType::Rc, QpType::Uc, QpType::Ud] {
            for max_send_wr in [0, 1, 100, 5000] {
                for (max_send_sge, max_inline) in [(0, 0), (1, 0), (30, 0), (1, 512)] {
                    let needs = QpNeeds {
                        max_send_wr,
                        max_recv_wr: 17,
                        max_send_sge,
                        max_recv_sge: max_send_sge,
                        max_inline,
                        shared: false,
                    };
                    let layout = QpLayout::for_needs(&LIMITS, ty, &needs).unwrap();
                    assert!(layout.max_send_wr() >= max_send_wr.max(1));
                    assert_eq!(layout.rings().log_rq_wqes, 5);
                    let again = QpLayout::new(&LIMITS, ty, layout.rings(), &needs);
                    assert_eq!(again, Some(layout));
                }
            }
        }
        // Control, address and a segment: two blocks.
        let needs = QpNeeds {
            max_send_wr: 100,
            max_send_sge: 1,
            ..QpNeeds::default()
        };
        let layout = QpLayout::for_needs(&LIMITS, QpType::Ud, &needs).unwrap();
        assert_eq!((layout.sq().entries(), layout.max_send_wr()), (256, 128));
    }

    #[test]
    fn no_number_overflows() {
        let extremes = [0, 1, 30, 512, u32::MAX - 1, u32::MAX];
        for log in 0..=u8::MAX {
            for n in extremes {
                let rings = QpRings {
                    log_sq_blocks: log,
                    log_rq_wqes: log,
                    log_rq_stride: log,
                };
                let needs = QpNeeds {
                    max_send_wr: n,
                    max_recv_wr: n,
                    max_send_sge: n,
                    max_recv_sge: n,
                    max_inline: n,
                    shared: false,
                };
                for ty in [QpType::Rc, QpType::Uc, QpType::Ud] {
                    if let Some(layout) = QpLayout::new(&LIMITS, ty, rings, &needs) {
                        assert!(layout.size() > (64 << log) && LOG_RQ_STRIDE.contains(&log));
                    }
                    assert!(QpLayout::for_needs(&LIMITS, ty, &needs).is_none() || n <= 512);
                }
            }
        }
    }

    #[test]
    fn request_that_its_size_field_can_not_say_is_refused() {
        let limits = Limits {
            max_sge: u32::MAX,
            ..LIMITS
        };
        let needs = |max_send_sge| QpNeeds {
            max_send_sge,
            ..QpNeeds::default()
        };
        assert!(QpLayout::for_needs(&limits, QpType::Rc, &needs(253 - 2)).is_some());
        for n in [254, u32::MAX] {
            assert!(QpLayout::for_needs(&limits, QpType::Rc, &needs(n)).is_none());
        }
    }
}
