// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The engine: one thread that runs all HCAs and the links between them.

use crate::backoff::Backoff;
use crate::control::{Answer, Command, Order};
use crate::fabric::{Fabric, Receiver as Arrived};
use crate::function::Gone;
use crate::hca::queue::Event;
use crate::hca::Hca;
use crate::shared::{FatalCause, Mailbox};
use qiao_fabric::wire::Frame;
use qiao_hw::event::EventType;
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::mpsc::Receiver;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Packets that one turn delivers at most, so that doorbells are seen in time.
const DELIVER_BUDGET: usize = 256;

/// How often one turn sends and delivers.
const EXCHANGES: usize = 8;

/// Frames that are kept for packets to come.
const SPARE_FRAMES: usize = 1024;

/// How long the subnet managers may take before guests can connect; they go on after that.
const SETTLE: Duration = Duration::from_secs(5);

/// What a turn has found.
#[derive(Clone, Copy, Debug)]
struct Turn {
    /// There may be more to do.
    busy: bool,
    /// There was a doorbell.
    rung: bool,
}

/// All HCAs and the fabric between them.
#[derive(Debug)]
pub struct Engine {
    hcas: Vec<Hca>,
    fabric: Fabric,
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
    /// Makes the engine, brings the links up and lets the subnet managers configure the ports. `gone` has one switch per HCA.
    pub fn new(
        hcas: Vec<Hca>,
        fabric: Fabric,
        gone: Vec<Gone>,
        mailbox: Arc<Mailbox>,
        orders: Receiver<Order>,
    ) -> Self {
        let mut engine = Self {
            hcas,
            fabric,
            spare: Vec::new(),
            gone,
            mailbox,
            orders,
            start: Instant::now(),
            backoff: Backoff::default(),
        };
        engine.fabric.power_on(0);
        engine.settle();
        engine
    }

    /// Waits until the subnets are configured.
    fn settle(&mut self) {
        loop {
            let now = self.now();
            let mut busy = self.fabric_turn(now);
            for n in 0..self.hcas.len() {
                self.fabric.send(n, &mut self.hcas[n], now);
            }
            busy |= !self.fabric.is_settled();
            if !busy || self.start.elapsed() > SETTLE {
                return;
            }
            if self.fabric.is_waiting(now) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
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
        let due = timers.chain(self.fabric.next_due()).min()?;
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
            self.fabric.refresh_counters(n, &mut self.hcas[n]);
            let mail = self.mailbox.take(n);
            rung |= self.hcas[n].mail(mail, now);
            self.fabric.sync(n, &mut self.hcas[n], now);
        }
        // What has come in time is seen before the timers, however long this thread had to wait for its turn.
        self.fabric_turn(now);
        for hca in &mut self.hcas {
            hca.run_timers(now);
        }
        let busy = (0..EXCHANGES).all(|_| self.exchange(now));
        Turn { busy, rung }
    }

    /// Lets one queue pair of each port send, and moves packets; returns whether there may be more.
    fn exchange(&mut self, now: u64) -> bool {
        let mut busy = false;
        for n in 0..self.hcas.len() {
            std::mem::swap(&mut self.spare, &mut self.hcas[n].core.spare);
            for port in 0..self.hcas[n].link_counters.len() {
                // What the fabric cannot take yet waits in the work queues.
                if self.fabric.has_room(n, port) {
                    busy |= self.hcas[n].pump(port, now);
                }
            }
            std::mem::swap(&mut self.spare, &mut self.hcas[n].core.spare);
            // A function that is being reset, or whose host has died, says nothing any more. What it would say now may be wrong: its
            // memory is gone.
            if self.hcas[n].core.shared.dma.is_resetting() {
                self.hcas[n].core.outbox.clear();
            }
            self.fabric.send(n, &mut self.hcas[n], now);
        }
        self.fabric_turn(now) || busy
    }

    /// Moves packets and gives those that have arrived to the HCAs. Returns whether there may be more.
    fn fabric_turn(&mut self, now: u64) -> bool {
        let mut busy = self.fabric.run(&mut self.hcas, now);
        for _ in 0..DELIVER_BUDGET {
            let Some(Arrived { hca, port, frame }) = self.fabric.receive(now) else {
                break;
            };
            self.hcas[hca].packet_in(port, &frame, now);
            self.fabric.sync(hca, &mut self.hcas[hca], now);
            self.keep(frame);
            busy = true;
        }
        busy
    }

    fn keep(&mut self, frame: Frame) {
        if self.spare.len() < SPARE_FRAMES {
            self.spare.push(frame);
        }
    }

    fn obey(&mut self, command: Command, now: u64) -> Answer {
        match command {
            Command::Dump => Answer::Dump(self.hcas.iter().map(Hca::dump).collect()),
            Command::Topology => Answer::Topology(self.fabric.topology()),
            Command::Link { link, up } => self.with_link(link, |fabric| {
                fabric.net.set_plugged(link, up, now);
            }),
            Command::Flap { link } => self.with_link(link, |fabric| {
                fabric.net.set_plugged(link, false, now);
                fabric.net.set_plugged(link, true, now);
            }),
            Command::Faults { link, faults } => {
                self.with_link(link, |fabric| fabric.net.set_faults(link, faults))
            }
            Command::Switch { switch, alive } => match self.fabric.switch(&switch) {
                Some(n) => {
                    self.fabric.net.set_alive(n, alive, now);
                    Answer::Done
                }
                None => Answer::Error(format!("there is no switch `{switch}`")),
            },
            Command::Gone { hca, gone } => self.with_hca(&hca, |engine, n| {
                // Once it is put back, the first access finds it without its state.
                engine.gone[n].set(gone);
                if gone {
                    engine.hcas[n].pull();
                }
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

    fn with_link(&mut self, link: usize, act: impl FnOnce(&mut Fabric)) -> Answer {
        if link >= self.fabric.net.links() {
            return Answer::Error(format!("there is no link {link}"));
        }
        act(&mut self.fabric);
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
