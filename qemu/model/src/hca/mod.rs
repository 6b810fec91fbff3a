// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The HCA as the engine runs it: commands, objects, doorbells and packets.

pub mod buffer;
mod cmdq;
pub mod core;
pub mod dump;
mod execute;
pub mod id_map;
mod management;
pub mod mkey;
pub mod port;
mod qp;
pub mod queue;
mod ready;
mod rings;
mod slots;
pub mod srq;

pub use qp::QueuePair;

use self::core::{Core, FailedQueue};
use crate::shared::{Bell, CommandQueueSetup, FatalCause, Generation, Mail};
use crate::transport::Special;
use cmdq::CommandQueue;
use id_map::IdMap;
use qiao_fabric::counters::Counters;
use qiao_fabric::mad::LinkState;
use qiao_fabric::node::{pkeys_match, Change};
use qiao_fabric::wire::{Frame, Packet, Transport};
use qiao_hw::bar::status;
use qiao_hw::cmd::{Completion, Opcode};
use qiao_hw::event::EventType;
use qiao_hw::qp::{attr, QpAttr, QpState};
use queue::Event;
use ready::Ready;
use slots::{SlotOwner, Slots};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;

/// Packets that one queue pair sends before the next has its turn. So few stay in the processor's first cache from their sending to
/// their delivery.
const PUMP_BUDGET: usize = 8;

/// How the device answers a command wrongly, for tests of drivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CommandFaultKind {
    /// Executes it and does not answer.
    Drop,
    /// Answers twice.
    Duplicate,
    /// Answers with an id that nobody has used.
    WrongId,
    /// Neither executes it nor answers.
    Ignore,
    /// Executes nothing any more, as firmware that hangs.
    Hang,
    /// The device fails.
    Fatal,
}

/// When to answer wrongly.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CommandFault {
    /// Name of the opcode; any if it is missing.
    pub opcode: Option<String>,
    /// What to do.
    pub kind: CommandFaultKind,
    /// How often.
    #[serde(default = "once")]
    pub count: u32,
}

fn once() -> u32 {
    1
}

impl CommandFault {
    fn matches(&self, opcode: u16) -> bool {
        let known = Opcode::from_wire(opcode);
        let name = known
            .map(|opcode| format!("{opcode:?}"))
            .unwrap_or_default();
        self.count > 0 && self.opcode.as_ref().is_none_or(|wanted| *wanted == name)
    }
}

/// An HCA.
#[derive(Debug)]
pub struct Hca {
    /// Name of the configuration.
    pub name: String,
    /// Objects that queue pairs refer to.
    pub core: Core,
    /// Queue pairs.
    pub qps: IdMap<QueuePair>,
    /// Special queue pairs by index of the port and number in packets.
    special: HashMap<(usize, u32), u32>,
    /// Counters of the links of the ports, which the engine keeps up to date.
    pub link_counters: Vec<Counters>,
    /// What they were at the last reset.
    link_base: Vec<Counters>,
    /// Packets with a bad ICRC or header, by port; a reset does not clear them.
    bad_packets: Vec<u64>,
    /// Wrong answers to come.
    pub command_faults: Vec<CommandFault>,
    cmdq: Option<CommandQueue>,
    slots: Slots,
    ready: Ready,
    /// When to look at a queue pair: not later than its deadline, which most often has moved by then.
    timers: BinaryHeap<Reverse<(u64, u32)>>,
    hung: bool,
    /// What management wants of the links: index of the port and what.
    pub link_orders: Vec<(usize, Change)>,
    /// Whether subnet management may have changed ports since this was cleared.
    pub ports_changed: bool,
}

impl Hca {
    /// Makes an HCA without objects and with `slot_count` doorbell slots.
    pub fn new(name: String, core: Core, slot_count: u32) -> Self {
        let ports = core.counters.len();
        Self {
            name,
            link_counters: vec![Counters::default(); ports],
            bad_packets: vec![0; ports],
            link_base: vec![Counters::default(); ports],
            slots: Slots::new(Arc::clone(&core.shared), slot_count),
            core,
            qps: IdMap::default(),
            special: HashMap::new(),
            command_faults: Vec::new(),
            cmdq: None,
            ready: Ready::new(ports),
            timers: BinaryHeap::new(),
            hung: false,
            link_orders: Vec::new(),
            ports_changed: true,
        }
    }

    /// Does what the function has posted, and what polled doorbells say. Returns whether there was a
    /// doorbell.
    pub fn mail(&mut self, mail: Mail, now: u64) -> bool {
        if let Some(generation) = mail.reset {
            self.reset(generation);
        }
        if let Some(setup) = mail.enable {
            self.enable(setup);
        }
        // Commands come after the doorbells that were rung before them: see `slots`.
        let polled = self.slots.poll();
        let rung = !polled.is_empty() || !mail.bells.is_empty();
        for (slot, value) in polled {
            self.bell(Bell::Slot(slot), value, now);
        }
        for (bell, value) in mail.bells {
            self.bell(bell, value, now);
        }
        rung
    }

    /// Returns whether doorbells may be rung without a message.
    pub fn polls(&self) -> bool {
        self.slots.is_polled() && !self.core.failed
    }

    /// Pulls the function: it touches nothing until it is powered again.
    pub fn pull(&mut self) {
        self.slots.pull();
        self.core
            .shared
            .dma
            .set_gate(crate::mem::Gate::Present, false);
    }

    fn reset(&mut self, generation: Generation) {
        self.core.reset(generation);
        self.link_base.clone_from(&self.link_counters);
        self.qps.clear();
        self.special.clear();
        self.cmdq = None;
        self.slots.clear();
        self.ready.clear();
        self.timers.clear();
        self.hung = false;
        self.core.shared.dma.set_gate(crate::mem::Gate::Reset, true);
        self.set_status(status::READY);
    }

    /// Sets bits of STATUS; when a newer reset has begun they are not those that count any more.
    fn set_status(&self, bits: u32) {
        let current = self.core.shared.status.set(self.core.generation, bits);
        if !current {
            log::debug!("{}: reset again", self.name);
        }
    }

    fn enable(&mut self, setup: CommandQueueSetup) {
        match CommandQueue::new(setup, &self.core.caps) {
            Ok(cmdq) => {
                self.cmdq = Some(cmdq);
                self.set_status(status::ENABLED);
            }
            Err(cause) => self.core.fatal(cause),
        }
    }

    fn bell(&mut self, bell: Bell, value: u64, now: u64) {
        if self.core.failed {
            return;
        }
        match bell {
            // CAST: The registers are 32 bits wide.
            Bell::CommandProducer => self.commands(|queue| queue.set_producer(value as u32), now),
            Bell::CommandConsumer => self.commands(|queue| queue.set_consumer(value as u32), now),
            Bell::Slot(slot) => self.slot(slot, value, now),
        }
    }

    fn commands(
        &mut self,
        change: impl FnOnce(&mut CommandQueue) -> Result<(), FatalCause>,
        now: u64,
    ) {
        // Without a queue, or after a failure, the registers have no effect.
        let Some(mut queue) = self.cmdq.take() else {
            return;
        };
        let result = change(&mut queue).and_then(|()| self.run_commands(&mut queue, now));
        match result {
            Ok(true) => self.core.raise(queue.vector),
            Ok(false) => {}
            Err(cause) => {
                self.core.fatal(cause);
                return;
            }
        }
        self.cmdq = Some(queue);
    }

    /// Executes what waits in the command ring; returns whether a completion was written.
    fn run_commands(&mut self, queue: &mut CommandQueue, now: u64) -> Result<bool, FatalCause> {
        let mut completed = false;
        while !self.hung {
            let Some(entry) = queue.next(&self.core.shared.dma)? else {
                break;
            };
            let fault = self.command_fault(entry.opcode.get());
            let mut answers = 1;
            let mut id = entry.id.get();
            match fault {
                None => {}
                Some(CommandFaultKind::Drop) => answers = 0,
                Some(CommandFaultKind::Duplicate) => answers = 2,
                Some(CommandFaultKind::WrongId) => id = !id,
                Some(CommandFaultKind::Ignore) => continue,
                Some(CommandFaultKind::Hang) => {
                    self.hung = true;
                    break;
                }
                Some(CommandFaultKind::Fatal) => return Err(FatalCause::Injected),
            }
            let mut completion: Completion = self.execute(&entry, now);
            let coverage = &self.core.shared.coverage;
            coverage.command(entry.opcode.get(), completion.status);
            completion.id.set(id);
            for _ in 0..answers {
                queue.complete(&self.core.shared.dma, &completion)?;
                completed = true;
            }
        }
        Ok(completed)
    }

    fn command_fault(&mut self, opcode: u16) -> Option<CommandFaultKind> {
        let fault = self
            .command_faults
            .iter_mut()
            .find(|fault| fault.matches(opcode))?;
        fault.count -= 1;
        Some(fault.kind)
    }

    fn slot(&mut self, slot: u32, value: u64, now: u64) {
        match self.slots.owner(slot) {
            Some(SlotOwner::Eq(eqn)) => self.core.ring_eq(eqn, value),
            Some(SlotOwner::Cq(cqn)) => self.core.ring_cq(cqn, value),
            Some(SlotOwner::Srq(srqn)) => {
                self.core.ring_srq(srqn, value);
                self.spread_errors(now);
            }
            Some(SlotOwner::Send(qpn)) => {
                self.ring_qp(qpn, |qp| qp.side.rings.ring_send(value), now)
            }
            Some(SlotOwner::Recv(qpn)) => {
                self.ring_qp(qpn, |qp| qp.side.rings.ring_recv(value), now)
            }
            None => self.core.oddities.bad_doorbells += 1,
        }
    }

    /// Takes the producer index of a work queue. In RESET nothing can be posted; an index that cannot
    /// be true fails the queue pair.
    fn ring_qp(&mut self, qpn: u32, ring: impl FnOnce(&mut QueuePair) -> bool, now: u64) {
        let Some(qp) = self.qps.get_mut(&qpn) else {
            return;
        };
        if qp.transport.state() == QpState::Reset {
            self.core.oddities.bad_doorbells += 1;
            return;
        }
        if !ring(qp) {
            self.core.oddities.bad_doorbells += 1;
            self.fail_qp(qpn);
        }
        self.touch(qpn, now);
    }

    /// Puts a queue pair into error for a reason that no completion can tell.
    fn fail_qp(&mut self, qpn: u32) {
        let in_error =
            |qp: &QueuePair| matches!(qp.transport.state(), QpState::Err | QpState::Reset);
        if self.qps.get(&qpn).is_none_or(in_error) {
            return;
        }
        let mut to_error = QpAttr::zeroed();
        to_error.state = QpState::Err.to_wire();
        // Every state has a transition to ERR.
        let moved = self.modify(qpn, attr::STATE, &to_error);
        debug_assert!(moved.is_ok());
        let event = Event {
            event_type: EventType::QpFatal,
            port: 0,
            id: qpn,
            data: 0,
        };
        self.core.async_event(event);
    }

    /// Fails the queue pairs of CQs and SRQs that have failed (IBTA 11.6.3.2).
    fn spread_errors(&mut self, now: u64) {
        while let Some(failed) = self.core.failed_queues.pop() {
            let uses = |qp: &QueuePair| match failed {
                FailedQueue::Cq(cqn) => qp.side.send_cqn == cqn || qp.side.recv_cqn == cqn,
                FailedQueue::Srq(srqn) => qp.side.srqn == Some(srqn),
            };
            let users: Vec<u32> = self
                .qps
                .iter()
                .filter(|(_, qp)| uses(qp))
                .map(|(&qpn, _)| qpn)
                .collect();
            for qpn in users {
                self.fail_qp(qpn);
                self.touch(qpn, now);
            }
        }
    }

    /// Counts a change of state that nobody has asked for.
    fn note_state(&mut self, qpn: u32) {
        let Some(QueuePair { transport, side }) = self.qps.get_mut(&qpn) else {
            return;
        };
        let state = transport.state();
        if state != side.state {
            let service = transport.settings().service;
            self.core
                .shared
                .coverage
                .transition(service, side.state, state);
            side.state = state;
        }
    }

    /// Notes that a queue pair may have something to send, and its deadline.
    fn touch(&mut self, qpn: u32, now: u64) {
        if !self.qps.contains_key(&qpn) {
            return;
        }
        self.note_state(qpn);
        self.note_ready(qpn);
        self.note_deadline(qpn);
        self.spread_errors(now);
    }

    fn note_ready(&mut self, qpn: u32) {
        let Some(qp) = self.qps.get(&qpn) else {
            return;
        };
        self.ready.push(qpn, qp.side.port);
    }

    fn note_deadline(&mut self, qpn: u32) {
        let Some(qp) = self.qps.get_mut(&qpn) else {
            return;
        };
        // Every acknowledge moves the deadline away; the timer that is set already comes before it.
        let Some(deadline) = qp.transport.deadline() else {
            return;
        };
        if qp.side.timer.is_some_and(|at| at <= deadline) {
            return;
        }
        qp.side.timer = Some(deadline);
        self.timers.push(Reverse((deadline, qpn)));
    }

    /// Takes a packet that has come in on a port. The link has checked the VCRC.
    pub fn packet_in(&mut self, port: usize, frame: &Frame, now: u64) {
        match frame.parse() {
            Err(_) => {
                self.core.counters[port].rcv_errors += 1;
                self.bad_packets[port] += 1;
            }
            Ok(packet) if management::is_special(&packet) => self.management(port, &packet, now),
            Ok(packet) => self.data_in(port, &packet, now),
        }
    }

    /// Takes a packet that is not of management: only a port that is configured takes it in (IBTA 7.2.7).
    fn data_in(&mut self, port: usize, packet: &Packet<'_>, now: u64) {
        let own = self.core.link_port(port);
        if own.state() < LinkState::Armed || !own.info.has_lid(packet.lrh.dlid.get()) {
            self.core.oddities.stray_packets += 1;
            return;
        }
        let qpn = packet.bth.qpn();
        let found = self.qps.get(&qpn).filter(|qp| {
            let settings = qp.transport.settings();
            let from_peer = settings.service == Transport::Ud
                || u32::from(packet.lrh.slid.get()) == settings.path.dlid.get();
            // A queue pair takes packets of its transport on its port, and a connection those of its
            // peer (IBTA 9.6.1.1 and 9.6.1.5).
            packet.transport == settings.service
                && settings.special == Special::None
                && usize::from(settings.port) == port + 1
                && from_peer
        });
        let Some(qp) = found else {
            self.core.oddities.stray_packets += 1;
            return;
        };
        let index = usize::from(qp.transport.settings().pkey_index);
        let pkey = own.pkeys.get(index).copied().unwrap_or_default();
        if !pkeys_match(pkey, packet.bth.pkey.get()) {
            self.core.link_port_mut(port).count_pkey_violation();
            return;
        }
        if own.state() == LinkState::Armed {
            // The neighbour is active already (IBTA 7.2.7).
            self.activate(port);
        }
        self.deliver(qpn, packet, now);
    }

    /// Gives a packet to a queue pair.
    fn deliver(&mut self, qpn: u32, packet: &Packet<'_>, now: u64) {
        if self.core.failed {
            return;
        }
        let Some(QueuePair { transport, side }) = self.qps.get_mut(&qpn) else {
            return;
        };
        let mut view = qp::View {
            side,
            core: &mut self.core,
        };
        transport.packet_in(packet, now, &mut view);
        self.touch(qpn, now);
    }

    /// Does what is due at `now`.
    pub fn run_timers(&mut self, now: u64) {
        while let Some(&Reverse((at, qpn))) = self.timers.peek() {
            if at > now || self.core.failed {
                break;
            }
            self.timers.pop();
            let Some(QueuePair { transport, side }) = self.qps.get_mut(&qpn) else {
                continue;
            };
            // An earlier one was set since, or this one belonged to a queue pair that has gone.
            if side.timer != Some(at) {
                continue;
            }
            side.timer = None;
            if transport.deadline().is_some_and(|deadline| deadline <= now) {
                let mut view = qp::View {
                    side,
                    core: &mut self.core,
                };
                transport.timer(now, &mut view);
                self.touch(qpn, now);
            } else {
                self.note_deadline(qpn);
            }
        }
    }

    /// Returns the earliest deadline.
    pub fn next_deadline(&self) -> Option<u64> {
        let next = self.timers.peek().filter(|_| !self.core.failed);
        next.map(|Reverse((at, _))| *at)
    }

    /// Lets the next queue pair of a port, by its index, send. Returns false if none has anything to send.
    pub fn pump(&mut self, port: usize, now: u64) -> bool {
        if self.core.failed {
            return false;
        }
        let Some(qpn) = self.ready.pop(port) else {
            return false;
        };
        let Some(QueuePair { transport, side }) = self.qps.get_mut(&qpn) else {
            return true;
        };
        let mut view = qp::View {
            side,
            core: &mut self.core,
        };
        if transport.pump(now, PUMP_BUDGET, &mut view) {
            self.note_ready(qpn);
        }
        self.note_state(qpn);
        self.note_deadline(qpn);
        self.spread_errors(now);
        true
    }
}
