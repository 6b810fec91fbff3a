// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Registers, commands and event queues.

use super::{page_list, Guest, CONTROL};
use qiao_hw::bar::{control, reg, status};
use qiao_hw::cmd::*;
use qiao_hw::describe::Described;
use qiao_hw::event::{Eqe, EventType};
use qiao_hw::qp::QpAttr;
use qiao_hw::ring::{is_written, RingSize};
use zerocopy::{FromBytes, Immutable, IntoBytes};

const LOG_COMMANDS: u8 = 4;

impl Guest {
    pub fn set_register(&mut self, offset: usize, value: u32) {
        self.write(CONTROL, offset as u64, &value.to_le_bytes());
    }

    /// Reads a register of BAR0.
    pub fn register(&mut self, offset: usize) -> u32 {
        self.read(CONTROL, offset as u64)
    }

    pub fn wait_status(&mut self, bits: u32) {
        self.wait("a state", |g| {
            (g.register(reg::STATUS) == bits).then_some(())
        });
    }

    /// Resets the device and starts the command queue.
    pub fn start(&mut self) {
        self.set_register(reg::CONTROL, control::RESET);
        self.wait_status(status::READY);
        (self.commands, self.completions, self.issued) = (self.pages(1), self.pages(1), 0);
        for (offset, base) in [
            (reg::CMDQ_BASE, self.commands),
            (reg::CMDQ_COMPLETION_BASE, self.completions),
        ] {
            self.write(CONTROL, offset as u64, &base.to_le_bytes());
        }
        self.set_register(reg::CMDQ_CONFIG, LOG_COMMANDS.into());
        self.set_register(reg::CONTROL, control::ENABLE);
        self.wait_status(status::READY | status::ENABLED);
    }

    /// Executes a command.
    pub fn command<C: Command>(&mut self, command: &C) -> Result<C::Reply, Status> {
        self.entry(&Entry::new(self.issued, command))
            .map(|c| c.reply().unwrap())
    }

    /// Posts a command, whose id is its index, and does not wait.
    pub fn issue(&mut self, entry: &Entry) {
        let size = RingSize::from_log(LOG_COMMANDS).unwrap();
        let index = self.issued;
        self.issued += 1;
        let at = u64::from(size.slot(index)) * 128;
        let mut entry = *entry;
        entry.id.set(index);
        self.put(self.commands + at, entry.as_bytes());
        self.set_register(reg::CMDQ_PRODUCER, index + 1);
    }

    /// Returns the completion of `index`, if it is written.
    pub fn completion(&self, index: u32) -> Option<Completion> {
        let size = RingSize::from_log(LOG_COMMANDS).unwrap();
        let place = self.completions + u64::from(size.slot(index)) * 128;
        let completion = Completion::read_from_bytes(&self.get(place, 128)).unwrap();
        is_written(size, index, completion.owner.get()).then_some(completion)
    }

    /// Executes what is in an entry, whose id is set here.
    pub fn entry(&mut self, entry: &Entry) -> Result<Completion, Status> {
        let index = self.issued;
        self.issue(entry);
        let completion = self.wait("a completion of a command", |g| g.completion(index));
        self.set_register(reg::CMDQ_CONSUMER, index + 1);
        assert_eq!(completion.id.get(), index);
        match Status::from_wire(completion.status) {
            Some(Status::Ok) => Ok(completion),
            Some(other) => Err(other),
            None => panic!("status {}", completion.status),
        }
    }

    /// Reads the entry of `index` of event queue `eqn`, if it is written.
    pub fn event(&mut self, eqn: u32, index: u32) -> Option<Eqe> {
        let size = RingSize::from_log(self.log_eqe).unwrap();
        let at = self.rings[eqn as usize] + u64::from(size.slot(index)) * 32;
        let eqe = Eqe::read_from_bytes(&self.get(at, 32)).unwrap();
        is_written(size, index, eqe.owner.get()).then_some(eqe)
    }

    /// Waits for the event of `index`; returns its type and number.
    pub fn wait_event(&mut self, eqn: u32, index: u32) -> (Option<EventType>, u32) {
        let eqe = self.wait("an event", |g| g.event(eqn, index));
        (EventType::from_wire(eqe.event_type), eqe.id.get())
    }

    pub fn alloc_pd(&mut self, pdn: u32) {
        let mut command = AllocPd::zeroed();
        command.pdn.set(pdn);
        self.command(&command).unwrap();
    }

    /// Event queues 0 (async) and 1 (completion), PD 1.
    pub fn basics(&mut self) {
        for (eqn, eq_type) in [(0, EqType::Async), (1, EqType::Completion)] {
            let mut command = CreateEq::zeroed();
            command.eqn.set(eqn);
            command.slot.set(eqn);
            command.vector.set(eqn as u16);
            command.eq_type = eq_type.to_wire();
            command.log_entries = self.log_eqe;
            let ring = self.pages(1);
            self.rings[eqn as usize] = ring;
            command.ring = page_list(ring, 1);
            self.command(&command).unwrap();
        }
        self.alloc_pd(1);
    }

    /// Registers `length` bytes at `addr`, which work requests call by the same address.
    pub fn register_memory(&mut self, key: u32, pdn: u32, addr: u64, length: u64, rights: u32) {
        let mut command = CreateMkey::zeroed();
        command.key.set(key);
        command.pdn.set(pdn);
        command.access.set(rights);
        command.start.set(addr);
        command.length.set(length);
        // A level 0 list has one page: 16 MiB that hold all of the memory.
        command.pages = page_list(0, 1);
        command.pages.page_shift = 24;
        command.pages.offset.set(addr);
        self.command(&command).unwrap();
    }

    pub fn modify(&mut self, qpn: u32, mask: u32, attr: &QpAttr) -> Result<NoReply, Status> {
        let mut command = ModifyQp::zeroed();
        command.qpn.set(qpn);
        command.mask.set(mask);
        command.attr = *attr;
        self.command(&command)
    }
}

/// An entry with a reserved byte of its operands set, if they have one.
pub fn dirty<C: Command + Described + Immutable>(command: &C) -> Option<Entry> {
    let field = C::FIELDS.iter().find(|f| f.is_reserved())?;
    let mut entry = Entry::new(0, command);
    entry.payload[field.offset] = 1;
    Some(entry)
}
