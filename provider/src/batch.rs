// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Send requests that are built call by call (ibv_wr_start(3)).
//!
//! The caller holds the send ring from the start to the end. The first error makes the whole batch
//! fail; nothing of it is posted then, since the doorbell is rung at the end.

use crate::qp::{Qp, SendRing};
use crate::wr::{Payload, SendWr};
use crate::Errno;
use qiao_hw::wqe::{send_flag, DataSeg, DatagramSeg};

/// What was built since the start.
#[derive(Default)]
pub(crate) struct Batch {
    /// Free-running index behind the requests that are complete.
    end: u32,
    /// The request whose setters are being called.
    request: Option<SendWr>,
    data: Gathered,
    error: Option<Errno>,
}

/// The data of a request: pieces of memory, or the inline data itself as one piece.
#[derive(Default)]
struct Gathered {
    segments: Vec<DataSeg>,
    inline: Vec<u8>,
}

impl Payload for Gathered {
    fn segments(&self) -> impl ExactSizeIterator<Item = DataSeg> {
        self.segments.iter().copied()
    }

    fn copy(&self, _segment: &DataSeg, offset: usize, out: &mut [u8]) {
        out.copy_from_slice(&self.inline[offset..offset + out.len()]);
    }
}

impl Batch {
    fn fail(&mut self, errno: Errno) {
        self.error.get_or_insert(errno);
    }
}

impl Qp {
    /// Starts a batch, and holds the send ring until it ends.
    pub(crate) fn start(&self) {
        let mut ring = self.send_ring().lock();
        ring.batch.end = ring.head;
        ring.batch.request = None;
        ring.batch.error = None;
        ring.keep();
    }

    /// Begins the next request, without data.
    pub(crate) fn build(&self, wr: SendWr) {
        let mut ring = self.send_ring().resume();
        self.finish_request(&mut ring);
        ring.batch.request = Some(wr);
        ring.batch.data.segments.clear();
    }

    /// Says where the request goes, or why that can not be said.
    pub(crate) fn set_datagram(&self, datagram: Result<DatagramSeg, Errno>) {
        let mut ring = self.send_ring().resume();
        match (datagram, &mut ring.batch.request) {
            (Ok(datagram), Some(wr)) => wr.head.datagram = Some(datagram),
            (Ok(_), None) => ring.batch.fail(libc::EINVAL),
            (Err(errno), _) => ring.batch.fail(errno),
        }
    }

    /// Sets the data of the request.
    pub(crate) fn set_segments(&self, segments: impl Iterator<Item = DataSeg>) {
        let mut ring = self.send_ring().resume();
        ring.batch.data.segments.clear();
        ring.batch.data.segments.extend(segments);
        match &mut ring.batch.request {
            Some(wr) => wr.head.flags &= !send_flag::INLINE,
            None => ring.batch.fail(libc::EINVAL),
        }
    }

    /// Sets the data of the request to a copy of pieces of these lengths; `copy` fills each in turn.
    pub(crate) fn set_inline(
        &self,
        lengths: impl Iterator<Item = usize>,
        mut copy: impl FnMut(usize, &mut [u8]),
    ) {
        let most = self.shape().needs.max_inline as usize;
        let mut ring = self.send_ring().resume();
        let batch = &mut ring.batch;
        batch.data.inline.clear();
        for (n, length) in lengths.enumerate() {
            let start = batch.data.inline.len();
            if length > most - start {
                return batch.fail(libc::EINVAL);
            }
            batch.data.inline.resize(start + length, 0);
            copy(n, &mut batch.data.inline[start..]);
        }
        // CAST: At most `most`, which is 32 bits wide.
        let whole = DataSeg {
            addr: 0.into(),
            length: (batch.data.inline.len() as u32).into(),
            lkey: 0.into(),
        };
        batch.data.segments.clear();
        batch.data.segments.push(whole);
        match &mut batch.request {
            Some(wr) => wr.head.flags |= send_flag::INLINE,
            None => batch.fail(libc::EINVAL),
        }
    }

    /// Posts the batch and gives the ring back.
    ///
    /// # Errors
    ///
    /// The first of those of the requests, as [`Qp::post_send`].
    pub(crate) fn complete(&self) -> Result<(), Errno> {
        let mut ring = self.send_ring().resume();
        self.finish_request(&mut ring);
        let result = match ring.batch.error {
            Some(errno) => Err(errno),
            None => {
                let end = ring.batch.end;
                ring.advance(end);
                Ok(())
            }
        };
        drop(ring);
        self.send_ring().release();
        result
    }

    /// Drops the batch and gives the ring back.
    pub(crate) fn abort(&self) {
        self.send_ring().release();
    }

    /// Writes the request whose setters were called, if there is one.
    fn finish_request(&self, ring: &mut SendRing) {
        let batch = &mut ring.batch;
        let Some(wr) = batch.request.take() else {
            return;
        };
        if batch.error.is_some() {
            return;
        }
        match self.write_send(batch.end, &wr, &batch.data) {
            Ok(end) => batch.end = end,
            Err(errno) => batch.fail(errno),
        }
    }
}
