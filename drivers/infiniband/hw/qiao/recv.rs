// SPDX-License-Identifier: GPL-2.0

//! Receive requests of consumers in the kernel, in a queue pair or in a shared receive queue.

use kernel::{
    prelude::*,
    sync::Arc, //
};
use qiao_hw::{
    queue::RecvRing,
    wqe::{
        BlockWriter,
        DataSeg,
        RecvCtrl,
        MIN_RECV_STRIDE, //
    }, //
};
use rdma::{
    dma::{
        Ring,
        RingMemory, //
    },
    RecvWr,
    Sge, //
};
use zerocopy::IntoBytes;

/// What requests are written in: each has a power of two of them.
type Unit = [u8; MIN_RECV_STRIDE];

/// Log2 of the bytes of a unit.
const LOG_UNIT: u8 = MIN_RECV_STRIDE.trailing_zeros() as u8;

/// What is kept of a request that was posted.
#[derive(Clone, Copy)]
pub(crate) struct Request {
    /// What the consumer knows it by.
    pub(crate) id: u64,
    /// Bytes of its memory.
    pub(crate) room: u64,
}

/// The places that the device reads requests from, at the start of the memory of a queue.
pub(crate) struct Places {
    ring: Ring<Unit>,
    /// Log2 of the units of a request.
    log_units: u8,
    max_sge: usize,
}

impl Places {
    pub(crate) fn new(memory: &Arc<RingMemory>, layout: RecvRing, max_sge: u32) -> Result<Self> {
        let log_units = layout.log_stride().checked_sub(LOG_UNIT).ok_or(EINVAL)?;
        Ok(Self {
            ring: Ring::within(memory.clone(), 0, layout.size().log() + log_units)?,
            log_units,
            max_sge: max_sge as usize,
        })
    }

    /// Returns what is to be kept of a request, and where its data is to go.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it is malformed, or larger than the consumer has said.
    pub(crate) fn check<'a>(&self, wr: &RecvWr<'a>) -> Result<(Request, &'a [Sge])> {
        let sges = wr.sges()?;
        if sges.len() > self.max_sge {
            return Err(EINVAL);
        }
        let request = Request {
            id: wr.id(),
            room: sges.iter().map(|sge| u64::from(sge.length())).sum(),
        };
        Ok((request, sges))
    }

    /// Writes a request, which says `index`, to the place of the number `place`.
    pub(crate) fn write(&self, place: u32, index: u32, sges: &[Sge]) -> Result {
        let ctrl = RecvCtrl {
            num_sge: u32::try_from(sges.len())?.into(),
            index: index.into(),
            rsvd: 0.into(),
        };
        let ring = &self.ring;
        let mut out = BlockWriter::new(place << self.log_units, |at, unit: &Unit| {
            ring.write(at, unit)
        });
        out.push(ctrl.as_bytes());
        sges.iter()
            .for_each(|sge| out.push(segment(sge).as_bytes()));
        out.finish();
        Ok(())
    }
}

/// Returns a piece of memory as the device takes it.
pub(crate) fn segment(sge: &Sge) -> DataSeg {
    DataSeg {
        addr: sge.addr().into(),
        length: sge.length().into(),
        lkey: sge.lkey().into(),
    }
}
