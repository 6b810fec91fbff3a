// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The peer: a datagram socket that carries Ethernet frames, a link with faults, and queue pairs.

use crate::control::{Envelope, Place, Reply, Request};
use crate::endpoint::{Endpoint, OTHER_LID, OWN_LID};
use crate::frame::{answer_arp, Datagram};
use qiao_fabric::link::{Arrival, End, Faults, Link};
use qiao_fabric::wire::roce::{self, Address, UDP_PORT};
use qiao_fabric::wire::{Frame, WireError};
use qiao_model::transport::Counter;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// UDP port of the control protocol.
pub const CONTROL_PORT: u16 = 18515;

/// Source port of RoCE packets: the first that IBTA A17.3.2 allows.
const SOURCE_PORT: u16 = 0xc000;

/// Number of the first queue pair; 0 and 1 are for management.
const FIRST_QPN: u32 = 0x100;

/// Queue pairs at a time: a test closes none.
const MAX_ENDPOINTS: u32 = 64;

/// Packets that a queue pair sends before the next has its turn.
const PUMP_BUDGET: usize = 32;

/// Longest time without a look at whether to stop.
const PATIENCE: Duration = Duration::from_millis(100);

/// A frame of any Ethernet.
const MAX_FRAME: usize = 1 << 16;

/// What has happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Statistics {
    /// RoCE packets that the other side sent.
    pub received: u64,
    /// RoCE packets that were sent.
    pub sent: u64,
    /// Received packets whose ICRC was wrong.
    pub bad_icrc: u64,
    /// Received packets that are malformed or belong to no queue pair.
    pub stray: u64,
    /// Packets that the link's faults have hit, both ways.
    pub faults: u64,
    /// Packets that the transport sent again.
    pub retransmits: u64,
    /// Requests that came again.
    pub duplicates: u64,
}

/// A peer on an Ethernet cable.
#[derive(Debug)]
pub struct Peer {
    socket: UnixDatagram,
    /// Socket of the other end of the cable.
    remote: PathBuf,
    own: Address,
    /// The other side, as its last control request says.
    other: Option<Address>,
    /// End A is this side.
    link: Link,
    endpoints: BTreeMap<u32, Endpoint>,
    statistics: Statistics,
    /// The last request's number and its reply.
    answered: Option<(u64, Vec<u8>)>,
    start: Instant,
}

impl Peer {
    /// Makes a peer with an address and the seed of its faults. `local` must not exist.
    ///
    /// # Errors
    ///
    /// If the socket cannot be made.
    pub fn bind(local: &Path, remote: &Path, own: Address, seed: u64) -> io::Result<Self> {
        Ok(Self {
            socket: UnixDatagram::bind(local)?,
            remote: remote.into(),
            own,
            other: None,
            link: Link::new(seed, Faults::default()),
            endpoints: BTreeMap::new(),
            statistics: Statistics::default(),
            answered: None,
            start: Instant::now(),
        })
    }

    /// Serves until `stop` is set.
    ///
    /// # Errors
    ///
    /// If the socket fails.
    pub fn run(&mut self, stop: &AtomicBool) -> io::Result<()> {
        let mut frame = vec![0; MAX_FRAME];
        while !stop.load(Ordering::Acquire) {
            self.socket.set_read_timeout(Some(self.timeout()))?;
            match self.socket.recv(&mut frame) {
                Ok(length) => self.frame_in(&frame[..length])?,
                Err(error) if is_timeout(&error) => {}
                Err(error) => return Err(error),
            }
            while self.turn()? {}
        }
        Ok(())
    }

    fn now(&self) -> u64 {
        // CAST: Enough for five hundred years.
        self.start.elapsed().as_nanos() as u64
    }

    fn timeout(&self) -> Duration {
        let timers = self.endpoints.values().filter_map(|e| e.qp.deadline());
        let due = timers.chain(self.link.next_due()).min();
        let wait = due.map_or(PATIENCE, |at| {
            Duration::from_nanos(at.saturating_sub(self.now()))
        });
        // A timeout of zero would be none.
        wait.clamp(Duration::from_micros(1), PATIENCE)
    }

    /// Does a bounded part of what there is to do; returns whether there may be more.
    fn turn(&mut self) -> io::Result<bool> {
        let now = self.now();
        let mut busy = false;
        for endpoint in self.endpoints.values_mut() {
            let Endpoint { qp, node, .. } = endpoint;
            if qp.deadline().is_some_and(|at| at <= now) {
                qp.timer(now, node);
            }
            busy |= qp.pump(now, PUMP_BUDGET, node);
            for packet in node.out.drain(..) {
                self.link.send(End::A, now, packet);
            }
            for counter in node.counted.drain(..) {
                match counter {
                    Counter::Retransmits => self.statistics.retransmits += 1,
                    Counter::DuplicateRequests => self.statistics.duplicates += 1,
                    _ => {}
                }
            }
        }
        while let Some((to, Arrival::Packet(packet))) = self.link.receive(now) {
            busy = true;
            match to {
                End::A => self.packet_in(&packet, now),
                End::B => self.packet_out(packet)?,
            }
        }
        Ok(busy)
    }

    fn frame_in(&mut self, frame: &[u8]) -> io::Result<()> {
        if let Some(answer) = answer_arp(frame, self.own) {
            return self.transmit(&answer);
        }
        let Some(datagram) = Datagram::parse(frame, self.own) else {
            return Ok(());
        };
        match datagram.ports[1] {
            CONTROL_PORT => self.control(&datagram),
            UDP_PORT => {
                self.roce_in(frame);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn roce_in(&mut self, frame: &[u8]) {
        self.statistics.received += 1;
        match roce::to_local(frame, OTHER_LID, OWN_LID) {
            Some(Ok(packet)) => self.link.send(End::B, self.now(), packet),
            Some(Err(WireError::Icrc)) => self.statistics.bad_icrc += 1,
            Some(Err(_)) | None => self.statistics.stray += 1,
        }
    }

    fn packet_in(&mut self, packet: &Frame, now: u64) {
        let parsed = packet.parse().ok();
        let found = parsed.and_then(|packet| {
            let endpoint = self.endpoints.get_mut(&packet.bth.qpn())?;
            Some((packet, endpoint))
        });
        match found {
            Some((packet, endpoint)) => endpoint.qp.packet_in(&packet, now, &mut endpoint.node),
            None => self.statistics.stray += 1,
        }
    }

    fn packet_out(&mut self, mut packet: Frame) -> io::Result<()> {
        let Some(other) = self.other else {
            return Ok(());
        };
        let frame = roce::from_local(packet.wire(), self.own, other, SOURCE_PORT);
        let frame = frame.map_err(io::Error::other)?;
        self.statistics.sent += 1;
        self.transmit(&frame)
    }

    fn transmit(&self, frame: &[u8]) -> io::Result<()> {
        self.socket.send_to(frame, &self.remote).map(drop)
    }

    fn control(&mut self, datagram: &Datagram<'_>) -> io::Result<()> {
        self.other = Some(datagram.from);
        let reply = match serde_json::from_slice(datagram.payload) {
            Ok(Envelope { serial, request }) => self.answer(serial, request)?,
            Err(error) => serde_json::to_vec(&Reply::Error(error.to_string()))?,
        };
        let [from, to] = datagram.ports;
        let frame = roce::udp_frame(self.own, datagram.from, [to, from], &reply);
        self.transmit(&frame)
    }

    fn answer(&mut self, serial: u64, request: Request) -> io::Result<Vec<u8>> {
        if let Some((last, reply)) = &self.answered {
            if *last == serial {
                return Ok(reply.clone());
            }
        }
        let reply = serde_json::to_vec(&self.obey(request))?;
        self.answered = Some((serial, reply.clone()));
        Ok(reply)
    }

    fn obey(&mut self, request: Request) -> Reply {
        match request {
            Request::Open { service, qpn, psn } => {
                let own = FIRST_QPN + self.endpoints.len() as u32;
                if own == FIRST_QPN + MAX_ENDPOINTS {
                    return Reply::Error("too many queue pairs".into());
                }
                match Endpoint::open(own, service, qpn, psn) {
                    Ok(endpoint) => {
                        self.endpoints.insert(own, endpoint);
                        Endpoint::describe(own)
                    }
                    Err(error) => Reply::Error(format!("{error:?}")),
                }
            }
            Request::Fill { place, seed } => self.with(place, |e| e.fill(place, seed).map(done)),
            Request::Compare { place, seed } => {
                self.with(place, |e| e.compare(place, seed).map(Reply::Compared))
            }
            Request::Poke { place, value } => self.with(place, |e| e.poke(place, value).map(done)),
            Request::Peek { place } => self.with(place, |e| e.peek(place).map(Reply::Word)),
            Request::Receive { place } => self.with(place, |e| e.receive(place).map(done)),
            Request::Post(post) => self.with(post.place, |e| e.post(post).map(done)),
            Request::Completions { qpn } => match self.endpoints.get_mut(&qpn) {
                Some(endpoint) => Reply::Completions(endpoint.completions()),
                None => no_such(qpn),
            },
            Request::Faults { faults } => {
                self.link.set_faults(faults);
                Reply::Done
            }
            Request::Statistics => Reply::Statistics(self.statistics()),
        }
    }

    fn with(&mut self, place: Place, act: impl FnOnce(&mut Endpoint) -> Option<Reply>) -> Reply {
        let Some(endpoint) = self.endpoints.get_mut(&place.qpn) else {
            return no_such(place.qpn);
        };
        act(endpoint).unwrap_or_else(|| Reply::Error(format!("{place:?} is not in the memory")))
    }

    /// Returns what has happened.
    pub fn statistics(&self) -> Statistics {
        Statistics {
            faults: self.link.injected(),
            ..self.statistics
        }
    }
}

fn done((): ()) -> Reply {
    Reply::Done
}

fn no_such(qpn: u32) -> Reply {
    Reply::Error(format!("there is no queue pair {qpn:#x}"))
}

fn is_timeout(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), Interrupted | TimedOut | WouldBlock)
}
