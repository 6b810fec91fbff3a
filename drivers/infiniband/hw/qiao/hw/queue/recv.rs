// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Receive requests, of a QP or of an SRQ.

use super::Limits;
use crate::{
    cmd::CreateSrq,
    ring::RingSize,
    wqe::{
        DataSeg,
        RecvCtrl,
        MIN_RECV_STRIDE, //
    },
    U32, //
};
use core::ops::RangeInclusive;

/// Log2 of the bytes that a receive request may have.
pub const LOG_RQ_STRIDE: RangeInclusive<u8> = 5..=12;

/// Alignment of the order ring of an SRQ in its buffer, in bytes.
const ORDER_ALIGN: usize = 64;

/// Places for receive requests: a power of two of them, of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvRing {
    size: RingSize,
    log_stride: u8,
}

impl RecvRing {
    /// Lays out `2^log_wqes` requests of `2^log_stride` bytes; [`None`] if the part has none such,
    /// or if they are too few for `max_wr` or too small for `max_sge` data segments.
    pub fn new(
        limits: &Limits,
        (log_wqes, log_stride): (u8, u8),
        max_wr: u32,
        max_sge: u32,
    ) -> Option<Self> {
        if log_wqes > limits.log_max_rq_wqes
            || !LOG_RQ_STRIDE.contains(&log_stride)
            || max_sge > limits.max_sge
        {
            return None;
        }
        let size = RingSize::from_log(log_wqes)?;
        let stride = 1usize.checked_shl(log_stride.into())?;
        let fits = max_wr <= size.entries() && request(max_sge)? <= stride;
        // So that no offset overflows.
        1usize.checked_shl(u32::from(log_wqes) + u32::from(log_stride))?;
        fits.then_some(Self { size, log_stride })
    }

    /// Lays out the smallest that holds what is needed, with one request at least; [`None`] if the
    /// part has none so large.
    pub fn for_needs(limits: &Limits, max_wr: u32, max_sge: u32) -> Option<Self> {
        let size = RingSize::for_entries(max_wr.max(1))?;
        let stride = request(max_sge)?
            .max(MIN_RECV_STRIDE)
            .checked_next_power_of_two()?;
        let log_stride = u8::try_from(stride.trailing_zeros()).ok()?;
        Self::new(limits, (size.log(), log_stride), max_wr, max_sge)
    }

    /// Returns how many requests there are.
    #[inline]
    pub const fn size(self) -> RingSize {
        self.size
    }

    /// Returns log2 of the bytes of a request.
    #[inline]
    pub const fn log_stride(self) -> u8 {
        self.log_stride
    }

    /// Returns the offset in bytes of the request of a free-running index, or of a number below
    /// that of the requests.
    #[inline]
    pub const fn offset(self, index: u32) -> usize {
        // CAST: Widening.
        (self.size.slot(index) as usize) << self.log_stride
    }

    /// Returns the bytes of all requests.
    #[inline]
    pub const fn bytes(self) -> usize {
        // CAST: Widening.
        (self.size.entries() as usize) << self.log_stride
    }
}

/// Returns the bytes of a receive request.
fn request(max_sge: u32) -> Option<usize> {
    size_of::<DataSeg>()
        .checked_mul(usize::try_from(max_sge).ok()?)?
        .checked_add(size_of::<RecvCtrl>())
}

/// The buffer of an SRQ: the requests, and behind them the order ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqLayout {
    requests: RecvRing,
    order_offset: u32,
    size: usize,
}

impl SrqLayout {
    /// Lays out an SRQ with these requests; [`None`] if it is too large for the command.
    pub fn of(requests: RecvRing) -> Option<Self> {
        let offset = requests.bytes().checked_next_multiple_of(ORDER_ALIGN)?;
        // CAST: Widening.
        let words = requests.size().entries() as usize;
        Some(Self {
            requests,
            order_offset: u32::try_from(offset).ok()?,
            size: offset.checked_add(words.checked_mul(size_of::<U32>())?)?,
        })
    }

    /// Returns the requests.
    #[inline]
    pub const fn requests(&self) -> RecvRing {
        self.requests
    }

    /// Returns the offset in bytes of the word of a free-running index of the order ring.
    #[inline]
    pub const fn order_offset(&self, index: u32) -> usize {
        // CAST: Widening.
        self.order_offset as usize + self.requests.size.slot(index) as usize * size_of::<U32>()
    }

    /// Returns the bytes of the buffer.
    #[inline]
    pub const fn size(&self) -> usize {
        self.size
    }

    /// Fills in the fields of the command that are about the buffer.
    pub fn fill(&self, cmd: &mut CreateSrq) {
        cmd.log_wqes = self.requests.size.log();
        cmd.log_stride = self.requests.log_stride;
        cmd.order_offset.set(self.order_offset);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        max_sge: 30,
        max_inline: 0,
        log_max_sq_blocks: 0,
        log_max_rq_wqes: 20,
        log_max_cqe: 0,
    };

    #[test]
    fn order_ring_lies_behind_the_requests() {
        let requests = RecvRing::for_needs(&LIMITS, 1, 1).unwrap();
        let layout = SrqLayout::of(requests).unwrap();
        assert_eq!((requests.bytes(), layout.order_offset(0)), (32, 64));
        assert_eq!(layout.size(), 68);

        let requests = RecvRing::for_needs(&LIMITS, 100, 4).unwrap();
        let layout = SrqLayout::of(requests).unwrap();
        assert_eq!((requests.size().log(), requests.log_stride()), (7, 7));
        assert_eq!(requests.offset(129), 128);
        assert_eq!(layout.order_offset(129), requests.bytes() + 4);
        assert_eq!(layout.size(), requests.bytes() + 512);
        let mut cmd = CreateSrq::zeroed();
        layout.fill(&mut cmd);
        let logs = (cmd.log_wqes, cmd.log_stride);
        assert_eq!(RecvRing::new(&LIMITS, logs, 128, 4), Some(requests));
    }

    #[test]
    fn no_number_overflows() {
        for n in [0, 1, 30, u32::MAX - 1, u32::MAX] {
            for log in 0..=u8::MAX {
                for stride in [0, 5, 12, 13, 64, u8::MAX] {
                    let ring = RecvRing::new(&LIMITS, (log, stride), n, n);
                    if let Some(ring) = ring {
                        assert!(n <= 30 && log <= 20 && ring.bytes() >= 32);
                        let layout = SrqLayout::of(ring);
                        assert_eq!(layout.is_some(), log + stride < 32);
                    }
                }
            }
            assert!(RecvRing::for_needs(&LIMITS, n, n).is_none() || n <= 30);
        }
    }
}
