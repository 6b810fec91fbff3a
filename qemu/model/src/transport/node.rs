// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A device of nothing but memory: what the transport runs on in its tests, and as a peer of other
//! implementations.

use super::{Atomic, Completion, Counter, Fault, Host, PortInfo, RecvWqe, SendWqe, Sge};
use qiao_fabric::wire::Frame;
use qiao_hw::event::EventType;
use qiao_hw::qp::access;
use std::collections::VecDeque;

/// Key of the memory, local and remote.
pub const KEY: u32 = 0x1234_5601;

/// A device with one queue pair and unlimited rings. Addresses count from the start of its memory.
#[derive(Debug)]
pub struct Node {
    /// The one region.
    pub memory: Vec<u8>,
    /// Send requests to come.
    pub sends: VecDeque<SendWqe>,
    /// Receive requests to come.
    pub recvs: VecDeque<RecvWqe>,
    /// What has completed.
    pub completions: Vec<Completion>,
    /// Asynchronous events.
    pub events: Vec<EventType>,
    /// What the transport has counted.
    pub counted: Vec<Counter>,
    /// Packets to be sent.
    pub out: VecDeque<Frame>,
    qpn: u32,
    lid: u16,
}

impl Node {
    /// Makes a device with the number of its queue pair, its LID and its memory.
    pub fn new(qpn: u32, lid: u16, memory: Vec<u8>) -> Self {
        Self {
            memory,
            sends: VecDeque::new(),
            recvs: VecDeque::new(),
            completions: Vec::new(),
            events: Vec::new(),
            counted: Vec::new(),
            out: VecDeque::new(),
            qpn,
            lid,
        }
    }

    fn range(&self, key: u32, va: u64, length: usize) -> Result<std::ops::Range<usize>, Fault> {
        let from = usize::try_from(va).map_err(|_| Fault)?;
        let to = from.checked_add(length).ok_or(Fault)?;
        if key != KEY || to > self.memory.len() {
            return Err(Fault);
        }
        Ok(from..to)
    }

    /// The bytes of the pieces from `offset` on, as (position in memory, length).
    fn pieces(
        &self,
        sges: &[Sge],
        offset: u32,
        length: usize,
    ) -> Result<Vec<(usize, usize)>, Fault> {
        let (mut skip, mut left, mut out) = (offset as usize, length, Vec::new());
        for sge in sges {
            let range = self.range(sge.lkey, sge.addr, sge.length as usize)?;
            let n = range.len().saturating_sub(skip).min(left);
            if n > 0 {
                out.push((range.start + skip, n));
            }
            skip = skip.saturating_sub(range.len());
            left -= n;
        }
        if left > 0 {
            return Err(Fault);
        }
        Ok(out)
    }
}

impl Host for Node {
    fn next_send(&mut self) -> Option<SendWqe> {
        self.sends.pop_front()
    }
    fn next_recv(&mut self) -> Option<RecvWqe> {
        self.recvs.pop_front()
    }
    fn put_back(&mut self, wqe: RecvWqe) {
        self.recvs.push_front(wqe);
    }
    fn receive(&mut self, wqe: &RecvWqe, offset: u32, data: &[u8]) -> Result<(), Fault> {
        self.scatter(&wqe.sges, offset, data)
    }
    fn gather(&mut self, sges: &[Sge], offset: u32, out: &mut [u8]) -> Result<(), Fault> {
        let mut at = 0;
        for (from, n) in self.pieces(sges, offset, out.len())? {
            out[at..at + n].copy_from_slice(&self.memory[from..from + n]);
            at += n;
        }
        Ok(())
    }
    fn scatter(&mut self, sges: &[Sge], offset: u32, data: &[u8]) -> Result<(), Fault> {
        let mut at = 0;
        for (to, n) in self.pieces(sges, offset, data.len())? {
            self.memory[to..to + n].copy_from_slice(&data[at..at + n]);
            at += n;
        }
        Ok(())
    }
    fn check_remote(&mut self, rkey: u32, va: u64, length: u32, _access: u32) -> Result<(), Fault> {
        self.range(rkey, va, length as usize).map(|_| ())
    }
    fn read_remote(&mut self, rkey: u32, va: u64, out: &mut [u8]) -> Result<(), Fault> {
        let range = self.range(rkey, va, out.len())?;
        out.copy_from_slice(&self.memory[range]);
        Ok(())
    }
    fn write_remote(&mut self, rkey: u32, va: u64, data: &[u8]) -> Result<(), Fault> {
        let range = self.range(rkey, va, data.len())?;
        self.memory[range].copy_from_slice(data);
        Ok(())
    }
    fn atomic_remote(&mut self, rkey: u32, va: u64, operation: Atomic) -> Result<u64, Fault> {
        let range = self.range(rkey, va, 8)?;
        let old = u64::from_le_bytes(self.memory[range.clone()].try_into().map_err(|_| Fault)?);
        self.memory[range].copy_from_slice(&operation.apply(old).to_le_bytes());
        Ok(old)
    }
    fn flush_remote(
        &mut self,
        rkey: u32,
        range: Option<(u64, u32)>,
        access: u32,
    ) -> Result<(), Fault> {
        if access & access::FLUSH_PERSISTENT != 0 {
            return Err(Fault);
        }
        let (va, length) = range.unwrap_or_default();
        self.range(rkey, va, length as usize).map(|_| ())
    }
    fn complete(&mut self, completion: Completion) {
        self.completions.push(completion);
    }
    fn event(&mut self, event: EventType) {
        self.events.push(event);
    }
    fn count(&mut self, counter: Counter) {
        self.counted.push(counter);
    }
    fn wire_qpn(&self) -> u32 {
        self.qpn
    }
    fn port(&self, _sgid_index: u16, _pkey_index: u16) -> PortInfo {
        PortInfo {
            lid: self.lid,
            gid: [0; 16],
            pkey: 0xffff,
            path_mask: 0,
        }
    }
    fn pkey_index(&self, _pkey: u16) -> u16 {
        0
    }
    fn frame(&mut self) -> Frame {
        Frame::default()
    }
    fn transmit(&mut self, packet: Frame) {
        self.out.push_back(packet);
    }
}
