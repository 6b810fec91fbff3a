// SPDX-License-Identifier: GPL-2.0

//! The send queue of a queue pair of the kernel.

use super::kernel::{
    Done,
    Posting, //
};
use crate::{
    device::Qiao,
    recv::segment, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use qiao_hw::{
    qp::QpType,
    queue::QpLayout,
    ring::Window,
    wqe::{
        self,
        send_flag,
        AtomicSeg,
        BlockWriter,
        DatagramSeg,
        InlineSeg,
        RemoteSeg,
        SendHead,
        SendOpcode,
        BLOCK_SIZE,
        SIZE_UNIT, //
    }, //
};
use rdma::{
    dma::{
        Ring,
        RingMemory, //
    },
    Destination,
    QpCap,
    Remote,
    SendFlags,
    SendOp,
    SendWr,
    Sge,
    WcOpcode, //
};
use zerocopy::IntoBytes;

/// A block of the ring.
type Block = [u8; BLOCK_SIZE];

/// A request that was posted, at the slot of its first block.
#[derive(Clone, Copy)]
struct Request {
    id: u64,
    opcode: WcOpcode,
    first: u32,
    end: u32,
}

/// The send queue of a queue pair of the kernel.
pub(super) struct SendQueue {
    ring: Ring<Block>,
    window: Window,
    requests: KVVec<Request>,
    posting: Posting,
    transport: QpType,
    max_sge: usize,
    max_inline: usize,
}

/// Flags as the device names them.
const FLAGS: [(SendFlags, u8); 4] = [
    (SendFlags::SIGNALED, send_flag::SIGNALED),
    (SendFlags::SOLICITED, send_flag::SOLICITED),
    (SendFlags::FENCE, send_flag::FENCE),
    (SendFlags::INLINE, send_flag::INLINE),
];

impl SendQueue {
    pub(super) fn new(
        memory: &Arc<RingMemory>,
        transport: QpType,
        cap: &QpCap,
        layout: &QpLayout,
    ) -> Result<Self> {
        let size = layout.sq();
        let none = Request {
            id: 0,
            opcode: WcOpcode::Send,
            first: 0,
            end: 0,
        };
        Ok(Self {
            ring: Ring::within(memory.clone(), layout.send_offset(0), size.log())?,
            window: Window::new(size),
            requests: KVVec::from_elem(none, size.entries() as usize, GFP_KERNEL)?,
            posting: Posting::Refused,
            transport,
            max_sge: cap.max_send_sge as usize,
            max_inline: cap.max_inline_data as usize,
        })
    }

    /// Returns the free-running index behind the last request.
    pub(super) fn producer(&self) -> u32 {
        self.window.head()
    }

    pub(super) fn set_posting(&mut self, posting: Posting) {
        self.posting = posting;
    }

    /// Empties the queue, whose indices start at zero again.
    pub(super) fn reset(&mut self) {
        self.window = Window::new(self.window.size());
    }

    /// Returns whether a request is not done.
    pub(super) fn is_used(&self) -> bool {
        self.window.head() != self.window.tail()
    }

    /// Puts a request into the ring.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the request is malformed, larger than the consumer has said, or not allowed in
    /// this state; `ENOMEM` if there is no room.
    pub(super) fn post(&mut self, wr: &SendWr<'_, Qiao>) -> Result {
        if self.posting == Posting::Refused {
            return Err(EINVAL);
        }
        let (head, opcode) = self.head(wr)?;
        let sges = wr.sges()?;
        let inline = if head.flags & send_flag::INLINE != 0 {
            Some(self.inline_length(opcode, sges)?)
        } else if sges.len() > self.max_sge {
            return Err(EINVAL);
        } else {
            None
        };
        let data = match inline {
            Some(length) => (size_of::<InlineSeg>() + length).next_multiple_of(SIZE_UNIT),
            None => size_of_val(sges),
        };
        let bytes = head.size() + data;
        let size = u8::try_from(bytes / SIZE_UNIT)?;
        let blocks = u32::try_from(wqe::blocks(bytes))?;
        if blocks > self.window.free() {
            return Err(ENOMEM);
        }

        let (ring, first) = (&self.ring, self.window.head());
        let mut out = BlockWriter::new(first, |index, block: &Block| ring.write(index, block));
        match inline {
            Some(length) => {
                head.write(&mut out, first, size, 0);
                write_inline(&mut out, wr, length)?;
            }
            None => {
                head.write(&mut out, first, size, u8::try_from(sges.len())?);
                sges.iter()
                    .for_each(|sge| out.push(segment(sge).as_bytes()));
            }
        }
        out.finish();
        self.record(wr.id(), opcode, blocks)
    }

    /// Takes what was written into account.
    fn record(&mut self, id: u64, opcode: WcOpcode, blocks: u32) -> Result {
        let first = self.window.head();
        let slot = self.window.size().slot(first) as usize;
        *self.requests.get_mut(slot).ok_or(EINVAL)? = Request {
            id,
            opcode,
            first,
            end: first.wrapping_add(blocks),
        };
        self.window.take(blocks).map(drop).ok_or(ENOMEM)
    }

    fn head(&self, wr: &SendWr<'_, Qiao>) -> Result<(SendHead, WcOpcode)> {
        let flags = wr.flags()?;
        let flags = FLAGS
            .iter()
            .filter(|(flag, _)| flags.contains(*flag))
            .fold(0, |bits, (_, bit)| bits | bit);
        let mut head = SendHead::new(SendOpcode::Send, flags);
        let opcode = match wr.op()? {
            SendOp::Send { to, imm } => {
                head.opcode = imm.map_or(SendOpcode::Send, |_| SendOpcode::SendImm);
                head.imm_or_rkey = imm.unwrap_or_default();
                head.datagram = to.map(|to| self.datagram(&to));
                return Ok((head, WcOpcode::Send));
            }
            SendOp::Write { to, imm } => {
                head.opcode = imm.map_or(SendOpcode::RdmaWrite, |_| SendOpcode::RdmaWriteImm);
                head.imm_or_rkey = imm.unwrap_or_default();
                head.remote = Some(remote(to));
                WcOpcode::RdmaWrite
            }
            SendOp::Read { from } => {
                head.opcode = SendOpcode::RdmaRead;
                head.remote = Some(remote(from));
                WcOpcode::RdmaRead
            }
            SendOp::CompareSwap { at, compare, swap } => {
                head.opcode = SendOpcode::CompareSwap;
                head.remote = Some(remote(at));
                head.atomic = Some(AtomicSeg::new(swap, compare));
                WcOpcode::CompareSwap
            }
            SendOp::FetchAdd { at, add } => {
                head.opcode = SendOpcode::FetchAdd;
                head.remote = Some(remote(at));
                head.atomic = Some(AtomicSeg::new(add, 0));
                WcOpcode::FetchAdd
            }
        };
        if self.transport.is_datagram() {
            head = self.flushed_datagram(head)?;
        }
        if !head.opcode.is_for(self.transport) {
            return Err(EINVAL);
        }
        Ok((head, opcode))
    }

    /// Makes what is not a datagram a request that can only be flushed: the core marks the end of a
    /// queue of any type by an RDMA write.
    fn flushed_datagram(&self, head: SendHead) -> Result<SendHead> {
        if self.posting != Posting::Flushed {
            return Err(EINVAL);
        }
        Ok(SendHead {
            opcode: SendOpcode::Send,
            remote: None,
            atomic: None,
            datagram: Some(DatagramSeg::zeroed()),
            ..head
        })
    }

    fn datagram(&self, to: &Destination<'_, Qiao>) -> DatagramSeg {
        let mut segment = DatagramSeg::zeroed();
        segment.path = *to.ah.path();
        segment.qpn.set(to.qpn);
        segment.qkey.set(to.qkey);
        if self.transport == QpType::Gsi {
            segment.pkey_index.set(to.pkey_index);
        }
        segment
    }

    fn inline_length(&self, opcode: WcOpcode, sges: &[Sge]) -> Result<usize> {
        // What comes back needs memory to go to.
        if !matches!(opcode, WcOpcode::Send | WcOpcode::RdmaWrite) {
            return Err(EINVAL);
        }
        let length = sges.iter().map(|sge| u64::from(sge.length())).sum::<u64>();
        let length = usize::try_from(length)?;
        if length > self.max_inline {
            return Err(EINVAL);
        }
        Ok(length)
    }

    /// Frees the request at `index` and all before it; [`None`] if there is none.
    pub(super) fn complete(&mut self, index: u32) -> Option<Done> {
        let slot = self.window.size().slot(index) as usize;
        let request = *self.requests.get(slot)?;
        if !self.window.holds(index) || request.first != index {
            return None;
        }
        self.window.release(request.end).then_some(Done {
            id: request.id,
            opcode: request.opcode,
        })
    }

    /// Frees the oldest request.
    pub(super) fn complete_next(&mut self) -> Option<Done> {
        self.complete(self.window.tail())
    }
}

fn remote(to: Remote) -> RemoteSeg {
    RemoteSeg::new(to.addr, to.rkey)
}

/// Writes the byte count and the data, filled up.
fn write_inline<F: FnMut(u32, &Block)>(
    out: &mut BlockWriter<BLOCK_SIZE, F>,
    wr: &SendWr<'_, Qiao>,
    length: usize,
) -> Result {
    let head = InlineSeg {
        length: u32::try_from(length)?.into(),
    };
    out.push(head.as_bytes());
    wr.copy_inline(|piece| out.push(piece))?;
    out.pad();
    Ok(())
}
