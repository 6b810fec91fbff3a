// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A queue pair of the device: the transport's state machine, its rings, and what it uses.

use super::core::Core;
use super::mkey::Use;
use super::port::port_info;
use super::queue::Event;
use super::rings::Rings;
use crate::transport::{
    self, Atomic, Completion, Counter, Fault, Host, PortInfo, RecvWqe, SendWqe, Sge,
};
use qiao_fabric::wire::Frame;
use qiao_hw::cqe::{cqe_flag, Cqe, OPCODE_RECV};
use qiao_hw::event::EventType;
use qiao_hw::qp::{access, QpState};
use std::sync::atomic::{fence, Ordering};

/// A queue pair.
#[derive(Debug)]
pub struct QueuePair {
    /// The state machine.
    pub transport: transport::Qp,
    /// What it refers to.
    pub side: Side,
}

/// What the transport sees of the device through [`Host`].
#[derive(Debug)]
pub struct Side {
    /// QP number.
    pub qpn: u32,
    /// Its number in packets: 0 or 1 of a special one.
    pub wire_qpn: u32,
    /// PD number.
    pub pdn: u32,
    /// CQ of send completions.
    pub send_cqn: u32,
    /// CQ of receive completions.
    pub recv_cqn: u32,
    /// SRQ, if receive requests come from one.
    pub srqn: Option<u32>,
    /// PD of the keys of receive requests, and whether these belong to the kernel.
    pub recv_owner: (u32, bool),
    /// Doorbell slots.
    pub slots: Vec<u32>,
    /// Whether it belongs to the kernel.
    pub kernel: bool,
    /// Work queues.
    pub rings: Rings,
    /// Index of the port.
    pub port: usize,
    /// State that the coverage knows of.
    pub state: QpState,
    /// When the timer that is set for it goes off.
    pub timer: Option<u64>,
}

/// The device as one queue pair sees it.
#[derive(Debug)]
pub struct View<'a> {
    /// What belongs to the queue pair.
    pub side: &'a mut Side,
    /// What it shares.
    pub core: &'a mut Core,
}

impl View<'_> {
    fn by(&self, access: u32) -> Use {
        Use {
            pdn: self.side.pdn,
            kernel: self.side.kernel,
            access,
        }
    }

    fn write_local(&self, by: Use, sges: &[Sge], offset: u32, data: &[u8]) -> Result<(), Fault> {
        let core = &*self.core;
        pieces(sges, offset, data.len(), |sge, skip, range| {
            let memory = core
                .mkeys
                .check(sge.lkey, by, sge.addr, sge.length.into())?;
            Ok(memory.at(skip).write(&core.shared.dma, &data[range])?)
        })
    }
}

/// Calls `each` with every piece of `len` bytes from byte `offset` of `sges` on: the segment, the
/// offset in it and the range of the transfer.
fn pieces(
    sges: &[Sge],
    offset: u32,
    len: usize,
    mut each: impl FnMut(&Sge, u64, std::ops::Range<usize>) -> Result<(), Fault>,
) -> Result<(), Fault> {
    let (mut skip, mut done) = (u64::from(offset), 0);
    for sge in sges {
        let length = u64::from(sge.length);
        if skip >= length {
            skip -= length;
            continue;
        }
        if done == len {
            break;
        }
        // CAST: At most the rest of the transfer.
        let n = (length - skip).min((len - done) as u64) as usize;
        each(sge, skip, done..done + n)?;
        done += n;
        skip = 0;
    }
    if done < len {
        return Err(Fault);
    }
    Ok(())
}

impl Host for View<'_> {
    fn next_send(&mut self) -> Option<SendWqe> {
        let wqe = self.side.rings.next_send(&self.core.shared.dma)?;
        self.core.shared.coverage.request(wqe.opcode);
        Some(wqe)
    }

    fn next_recv(&mut self) -> Option<RecvWqe> {
        match self.side.srqn {
            Some(srqn) => self.core.next_shared(srqn),
            None => self.side.rings.next_recv(&self.core.shared.dma),
        }
    }

    fn put_back(&mut self, wqe: RecvWqe) {
        if let Some(srqn) = self.side.srqn {
            self.core.put_back(srqn, wqe);
        }
    }

    fn gather(&mut self, sges: &[Sge], offset: u32, out: &mut [u8]) -> Result<(), Fault> {
        let by = self.by(0);
        let core = &*self.core;
        pieces(sges, offset, out.len(), |sge, skip, range| {
            let memory = core
                .mkeys
                .check(sge.lkey, by, sge.addr, sge.length.into())?;
            Ok(memory.at(skip).read(&core.shared.dma, &mut out[range])?)
        })
    }

    fn scatter(&mut self, sges: &[Sge], offset: u32, data: &[u8]) -> Result<(), Fault> {
        let by = self.by(access::LOCAL_WRITE);
        self.write_local(by, sges, offset, data)
    }

    fn receive(&mut self, wqe: &RecvWqe, offset: u32, data: &[u8]) -> Result<(), Fault> {
        let (pdn, kernel) = self.side.recv_owner;
        let by = Use {
            pdn,
            kernel,
            access: access::LOCAL_WRITE,
        };
        self.write_local(by, &wqe.sges, offset, data)
    }

    fn check_remote(&mut self, rkey: u32, va: u64, length: u32, access: u32) -> Result<(), Fault> {
        // An access to no byte is always allowed.
        if length > 0 {
            self.core
                .mkeys
                .check(rkey, self.by(access), va, length.into())?;
        }
        Ok(())
    }

    fn read_remote(&mut self, rkey: u32, va: u64, out: &mut [u8]) -> Result<(), Fault> {
        if out.is_empty() {
            return Ok(());
        }
        let by = self.by(access::REMOTE_READ);
        let memory = self.core.mkeys.check(rkey, by, va, out.len() as u64)?;
        Ok(memory.read(&self.core.shared.dma, out)?)
    }

    fn write_remote(&mut self, rkey: u32, va: u64, data: &[u8]) -> Result<(), Fault> {
        if data.is_empty() {
            return Ok(());
        }
        let by = self.by(access::REMOTE_WRITE);
        let memory = self.core.mkeys.check(rkey, by, va, data.len() as u64)?;
        Ok(memory.write(&self.core.shared.dma, data)?)
    }

    fn atomic_remote(&mut self, rkey: u32, va: u64, operation: Atomic) -> Result<u64, Fault> {
        let by = self.by(operation.right());
        let memory = self.core.mkeys.check(rkey, by, va, 8)?;
        Ok(memory.update_u64(&self.core.shared.dma, |old| operation.apply(old))?)
    }

    fn flush_remote(
        &mut self,
        rkey: u32,
        range: Option<(u64, u32)>,
        access: u32,
    ) -> Result<(), Fault> {
        let by = self.by(access);
        match range {
            Some((va, length)) => self
                .core
                .mkeys
                .check(rkey, by, va, length.into())
                .map(drop)?,
            None => self.core.mkeys.check_key(rkey, by).map(drop)?,
        }
        // All was written by this thread, to memory that the guest's processors see as it is: what is
        // left is the order.
        fence(Ordering::SeqCst);
        Ok(())
    }

    fn complete(&mut self, completion: Completion) {
        let opcode = completion.opcode.to_wire();
        let coverage = &self.core.shared.coverage;
        coverage.completion(completion.opcode, completion.status);
        let mut cqe = Cqe::zeroed();
        cqe.qpn.set(self.side.qpn);
        cqe.wqe_index.set(completion.index);
        cqe.byte_len.set(completion.byte_len);
        cqe.opcode = opcode;
        cqe.status = completion.status.to_wire();
        if let Some(imm) = completion.imm {
            cqe.imm_or_rkey = imm;
            cqe.flags |= cqe_flag::IMM;
        }
        if let Some(rkey) = completion.invalidated {
            cqe.imm_or_rkey = rkey.to_le_bytes();
            cqe.flags |= cqe_flag::INVALIDATED;
        }
        if completion.solicited {
            cqe.flags |= cqe_flag::SOLICITED;
        }
        if let Some(source) = completion.source {
            cqe.src_qpn.set(source.qpn);
            cqe.slid.set(source.lid.into());
            cqe.sl = source.sl;
            cqe.pkey_index.set(source.pkey_index);
            if source.grh {
                cqe.flags |= cqe_flag::GRH;
            }
        }
        let receive = opcode & OPCODE_RECV != 0;
        let cqn = if receive {
            cqe.srqn.set(self.side.srqn.unwrap_or_default());
            self.side.recv_cqn
        } else {
            self.side.send_cqn
        };
        self.core.complete(cqn, &cqe, completion.solicited);
    }

    fn event(&mut self, event_type: EventType) {
        let id = self.side.qpn;
        self.core.async_event(Event {
            event_type,
            port: 0,
            id,
            data: 0,
        });
    }

    fn count(&mut self, counter: Counter) {
        self.core.count(self.side.port, counter);
    }

    fn wire_qpn(&self) -> u32 {
        self.side.wire_qpn
    }

    fn port(&self, sgid_index: u16, pkey_index: u16) -> PortInfo {
        port_info(self.core.link_port(self.side.port), sgid_index, pkey_index)
    }

    fn pkey_index(&self, pkey: u16) -> u16 {
        let port = self.core.link_port(self.side.port);
        port.pkey_index(pkey).unwrap_or_default()
    }

    fn frame(&mut self) -> Frame {
        self.core.spare.pop().unwrap_or_default()
    }

    fn transmit(&mut self, packet: Frame) {
        self.core.outbox.push((self.side.port, packet));
    }
}
