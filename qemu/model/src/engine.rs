// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The engine: one thread that runs all HCAs and the links between them.

use crate::backoff::Backoff;
use crate::config::PortId;
use crate::control::{Answer, Command, Order};
use crate::function::Gone;
use crate::hca::queue::Event;
use crate::hca::Hca;
use crate::shared::{FatalCause, Mailbox};
use qiao_fabric::capture::Capture;
use qiao_fabric::link::{End, Link};
use qiao_fabric::mad::LinkState;
use qiao_fabric::wire::Frame;
use qiao_hw::event::EventType;
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::mpsc::Receiver;
use std::sync::Arc;
use std::time::Instant;

/// VL of subnet management.
const VL15: u8 = 15;

/// Packets of one link that one turn delivers at most, so that doorbells are seen in time.
const DELIVER_BUDGET: usize = 64;

/// Frames that are kept for packets to come.
const SPARE_FRAMES: usize = 1024;

/// A link and what it joins.
#[derive(Debug)]
pub struct Wire {
    /// The link.
    pub link: Link,
    /// The port at each end.
    pub ends: [PortId; 2],
}

/// A port's way out and its capture.
#[derive(Debug, Default)]
pub struct Socket {
    /// Wire and end.
    wire: Option<(usize, End)>,
    capture: Option<Capture>,
}

/// What a turn has found.
#[derive(Clone, Copy, Debug)]
struct Turn {
    /// There may be more to do.
    busy: bool,
    /// There was a doorbell.
    rung: bool,
}

/// All HCAs and links.
#[derive(Debug)]
pub struct Engine {
    hcas: Vec<Hca>,
    wires: Vec<Wire>,
    /// By HCA and port.
    sockets: Vec<Vec<Socket>>,
    /// Packets that ports send to themselves.
    loopback: VecDeque<(PortId, Frame)>,
    /// Frames of packets that have been dealt with.
    spare: Vec<Frame>,
    gone: Vec<Gone>,
    mailbox: Arc<Mailbox>,
    orders: Receiver<Order>,
    start: Instant,
    /// How long the doorbells of devices that poll them are let alone.
    backoff: Backoff,
}

impl Engine {
    /// Makes the engine, configures the ports and brings the links up. `lids` has the LID of each port by HCA, `gone` one
    /// switch per HCA.
    pub fn new(
        hcas: Vec<Hca>,
        wires: Vec<Wire>,
        lids: &[Vec<u16>],
        gone: Vec<Gone>,
        mailbox: Arc<Mailbox>,
        orders: Receiver<Order>,
    ) -> Self {
        let ports = |hca: &Hca| {
            hca.core
                .counters
                .iter()
                .map(|_| Socket::default())
                .collect()
        };
        let mut sockets: Vec<Vec<Socket>> = hcas.iter().map(ports).collect();
        for (n, wire) in wires.iter().enumerate() {
            for (id, end) in wire.ends.into_iter().zip([End::A, End::B]) {
                sockets[id.hca][id.port].wire = Some((n, end));
            }
        }
        let loopback = VecDeque::new();
        let start = Instant::now();
        let mut engine = Self {
            hcas,
            wires,
            sockets,
            loopback,
            spare: Vec::new(),
            gone,
            mailbox,
            orders,
            start,
            backoff: Backoff::default(),
        };
        for wire in 0..engine.wires.len() {
            engine.set_link(wire, true, 0);
        }
        for (hca, lids) in engine.hcas.iter_mut().zip(lids) {
            for (port, &lid) in lids.iter().enumerate() {
                hca.configure(port, lid, 0);
            }
        }
        engine
    }

    /// Captures what passes a port.
    pub fn capture(&mut self, id: PortId, capture: Capture) {
        self.sockets[id.hca][id.port].capture = Some(capture);
    }

    /// Runs until `stop` is readable.
    ///
    /// # Errors
    ///
    /// If waiting fails.
    pub fn run(&mut self, stop: BorrowedFd<'_>) -> io::Result<()> {
        loop {
            let Turn { busy, rung } = self.turn();
            let look = self.next_look(busy || rung);
            let timeout = if busy { Some(0) } else { self.timeout() };
            let timeout = timeout.into_iter().chain(look).min();
            let timeout = timeout.map(|ns| Timespec {
                tv_sec: (ns / 1_000_000_000) as i64,
                tv_nsec: (ns % 1_000_000_000) as i64,
            });
            let mailbox = Arc::clone(&self.mailbox);
            let mut fds = [
                PollFd::from_borrowed_fd(stop, PollFlags::IN),
                PollFd::from_borrowed_fd(mailbox.wake_fd(), PollFlags::IN),
            ];
            match poll(&mut fds, timeout.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let [stopped, woken] = fds.map(|fd| !fd.revents().is_empty());
            if stopped {
                return Ok(());
            }
            if woken {
                self.mailbox.clear_wake();
            }
        }
    }

    fn now(&self) -> u64 {
        // CAST: Enough for five hundred years.
        self.start.elapsed().as_nanos() as u64
    }

    /// Returns how long to wait, in nanoseconds; [`None`] if nothing is due.
    fn timeout(&self) -> Option<u64> {
        let timers = self.hcas.iter().filter_map(Hca::next_deadline);
        let links = self.wires.iter().filter_map(|wire| wire.link.next_due());
        let due = timers.chain(links).min()?;
        Some(due.saturating_sub(self.now()))
    }

    /// Returns when to look at polled doorbells again, in nanoseconds from now; [`None`] if no device
    /// polls. `active` says that the last turn had something to do.
    fn next_look(&mut self, active: bool) -> Option<u64> {
        if !self.hcas.iter().any(Hca::polls) {
            self.backoff = Backoff::default();
            return None;
        }
        // CAST: A short time.
        Some(self.backoff.after(active).as_nanos() as u64)
    }

    /// Does a bounded part of what there is to do.
    fn turn(&mut self) -> Turn {
        let now = self.now();
        while let Ok(order) = self.orders.try_recv() {
            let answer = self.obey(order.command, now);
            // The client may have gone.
            let _ = order.answer.send(answer);
        }
        let mut rung = false;
        for n in 0..self.hcas.len() {
            self.refresh_counters(n);
            let mail = self.mailbox.take(n);
            rung |= self.hcas[n].mail(mail, now);
        }
        // What has come in time is seen before the timers, however long this thread had to wait for its turn.
        let mut busy = self.deliver(now);
        for n in 0..self.hcas.len() {
            self.hcas[n].run_timers(now);
            std::mem::swap(&mut self.spare, &mut self.hcas[n].core.spare);
            busy |= self.hcas[n].pump(now);
            std::mem::swap(&mut self.spare, &mut self.hcas[n].core.spare);
            self.send(n, now);
        }
        Turn { busy, rung }
    }

    fn refresh_counters(&mut self, n: usize) {
        for (socket, counters) in self.sockets[n].iter().zip(&mut self.hcas[n].link_counters) {
            if let Some((wire, end)) = socket.wire {
                *counters = self.wires[wire].link.counters(end);
            }
        }
    }

    /// Sends what an HCA has put into its outbox.
    fn send(&mut self, n: usize, now: u64) {
        let mut outbox = std::mem::take(&mut self.hcas[n].core.outbox);
        for (port, mut packet) in outbox.drain(..) {
            let Some(socket) = self.sockets[n].get_mut(port) else {
                continue;
            };
            let own = self.hcas[n].core.link_port(port);
            let Some(lrh) = packet.lrh() else { continue };
            // Before a port is active only subnet management leaves it (IBTA 7.2.7).
            if lrh.vl() != VL15 && own.state() != LinkState::Active {
                self.hcas[n].link_counters[port].xmit_discards += 1;
                continue;
            }
            record(&mut socket.capture, now, &mut packet);
            let to_itself = own.info.has_lid(lrh.dlid.get());
            match socket.wire {
                _ if to_itself => self.loopback.push_back((PortId { hca: n, port }, packet)),
                Some((wire, end)) => self.wires[wire].link.send(end, now, packet),
                None => self.hcas[n].link_counters[port].xmit_discards += 1,
            }
        }
        // The allocation is used again.
        self.hcas[n].core.outbox = outbox;
    }

    fn deliver(&mut self, now: u64) -> bool {
        let mut delivered = false;
        for _ in 0..DELIVER_BUDGET {
            let Some((id, packet)) = self.loopback.pop_front() else {
                break;
            };
            self.receive(id, packet, now);
            delivered = true;
        }
        for n in 0..self.wires.len() {
            for _ in 0..DELIVER_BUDGET {
                let Some((end, packet)) = self.wires[n].link.receive(now) else {
                    break;
                };
                let [a, b] = self.wires[n].ends;
                self.receive(if end == End::A { a } else { b }, packet, now);
                delivered = true;
            }
        }
        delivered
    }

    fn receive(&mut self, id: PortId, mut packet: Frame, now: u64) {
        record(&mut self.sockets[id.hca][id.port].capture, now, &mut packet);
        self.hcas[id.hca].packet_in(id.port, &packet, now);
        if self.spare.len() < SPARE_FRAMES {
            self.spare.push(packet);
        }
    }

    fn set_link(&mut self, wire: usize, up: bool, now: u64) {
        self.wires[wire].link.set_up(up);
        for id in self.wires[wire].ends {
            let hca = &mut self.hcas[id.hca];
            hca.set_link(id.port, up, now);
            if up {
                let lid = hca.core.link_port(id.port).info.lid.get();
                hca.configure(id.port, lid, now);
            }
        }
    }

    fn obey(&mut self, command: Command, now: u64) -> Answer {
        match command {
            Command::Dump => Answer::Dump(self.hcas.iter().map(Hca::dump).collect()),
            Command::Link { link, up } => {
                self.with_wire(link, |engine| engine.set_link(link, up, now))
            }
            Command::Faults { link, faults } => {
                self.with_wire(link, |engine| engine.wires[link].link.set_faults(faults))
            }
            Command::Gone { hca, gone } => self.with_hca(&hca, |engine, n| {
                engine.gone[n].set(gone);
                engine.hcas[n].set_gone(gone);
            }),
            Command::CommandFault { hca, fault } => {
                self.with_hca(&hca, |engine, n| engine.hcas[n].command_faults.push(fault))
            }
            Command::Event {
                hca,
                event,
                port,
                id,
            } => {
                let types = EventType::NUMBERS.numbers.iter();
                // A completion event goes to another queue.
                let found = types
                    .filter(|known| known.name == event)
                    .find_map(|known| EventType::from_wire(known.value as u8))
                    .filter(|known| *known != EventType::Completion);
                let Some(event_type) = found else {
                    return Answer::Error(format!("there is no event `{event}`"));
                };
                let event = Event {
                    event_type,
                    port,
                    id,
                    data: 0,
                };
                self.with_hca(&hca, |engine, n| engine.hcas[n].core.async_event(event))
            }
            Command::Fatal { hca } => self.with_hca(&hca, |engine, n| {
                engine.hcas[n].core.fatal(FatalCause::Injected)
            }),
        }
    }

    fn with_wire(&mut self, wire: usize, act: impl FnOnce(&mut Self)) -> Answer {
        if wire >= self.wires.len() {
            return Answer::Error(format!("there is no link {wire}"));
        }
        act(self);
        Answer::Done
    }

    fn with_hca(&mut self, name: &str, act: impl FnOnce(&mut Self, usize)) -> Answer {
        let Some(n) = self.hcas.iter().position(|hca| hca.name == name) else {
            return Answer::Error(format!("there is no HCA `{name}`"));
        };
        act(self, n);
        Answer::Done
    }
}

/// Records a packet; a capture that cannot be written ends.
fn record(capture: &mut Option<Capture>, now: u64, packet: &mut Frame) {
    let Some(open) = capture else {
        return;
    };
    if let Err(error) = open.write(now, packet.wire()) {
        log::error!("a capture ends: {error}");
        *capture = None;
    }
}
