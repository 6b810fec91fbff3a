// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A subnet manager (IBTA 14.4): finds all nodes by directed routes, gives LIDs, computes routes, and brings ports to Active.
//!
//! It is a state machine without I/O: datagrams go in by [`Manager::input`] and come out of [`Manager::take_outbox`], time is
//! passed in. A sweep has four phases, each of which begins when every request of the one before has been answered or given
//! up. A trap, a change of its own port, or a node that does not answer starts another sweep; so does, in case a trap was
//! lost, a switch that says so when it is asked now and then.

mod administration;
mod plan;
pub mod route;
mod subnet;

#[cfg(test)]
pub(crate) mod tests;

pub use subnet::{FoundNode, FoundPort, Subnet};

use crate::mad::{
    attribute, class, head, method, Address, LinkState, Mad, NodeDescription, NodeInfo, PortInfo,
    SmInfo, Smp, SwitchInfo,
};
use administration::Groups;
use std::collections::{BTreeMap, VecDeque};
use zerocopy::FromZeros;

/// Upper half of the transactions of the manager: the host's own programs on the same port have others.
const TAG: u64 = 0x8071_616f << 32;

/// Requests that are under way at a time; VL 15 has no flow control.
const WINDOW: usize = 32;

/// How long an answer may take, in nanoseconds.
const TIMEOUT: u64 = 200_000_000;

/// How often a request is sent.
const TRIES: u8 = 4;

/// Time between two looks at the switches, in nanoseconds.
const POLL: u64 = 10_000_000_000;

/// Time until the next sweep after one in which something did not answer, in nanoseconds.
const AGAIN: u64 = 1_000_000_000;

/// State of a master in SMInfo (IBTA 14.4.1).
const MASTER: u8 = 3;

/// A partition beside the default one.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Partition {
    /// Number of the partition, 1 to 0x7ffe.
    pub pkey: u16,
    /// GUIDs of the ports that are full members.
    #[serde(default)]
    pub full: Vec<u64>,
    /// GUIDs of the ports that are limited members.
    #[serde(default)]
    pub limited: Vec<u64>,
}

/// What a manager is told.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// GUID of the port that it works from.
    pub guid: u64,
    /// Number of that port.
    pub port: u8,
    /// LIDs that ports are to have, by GUID.
    pub lids: BTreeMap<u64, u16>,
    /// Partitions.
    pub partitions: Vec<Partition>,
}

/// What an answer is for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Ask {
    /// The node behind a port of another; none is the manager's own.
    Node(Option<(u64, u8)>),
    Description(u64),
    Switch(u64),
    Port(u64, u8),
    /// Whether a switch has seen a port change.
    Poll(u64),
    Set,
}

#[derive(Clone, Debug)]
struct Request {
    ask: Ask,
    path: Vec<u8>,
    smp: Smp,
    tries: u8,
    deadline: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Idle,
    Discover,
    Configure,
    Arm,
    Activate,
    Poll,
}

/// A subnet manager.
#[derive(Debug)]
pub struct Manager {
    settings: Settings,
    phase: Phase,
    /// What the last whole sweep has found.
    subnet: Subnet,
    /// What this sweep finds.
    finding: Subnet,
    lids: BTreeMap<u64, u16>,
    groups: Groups,
    queue: VecDeque<Request>,
    under_way: BTreeMap<u64, Request>,
    next_transaction: u64,
    /// Another sweep is to follow.
    again: bool,
    /// Something did not answer in this sweep.
    unanswered: bool,
    next_poll: Option<u64>,
    activity: u32,
    sweeps: u64,
    outbox: Vec<(Address, Mad)>,
}

impl Manager {
    /// Makes a manager that does nothing before [`Manager::sweep`].
    pub fn new(settings: Settings) -> Self {
        Self {
            lids: settings.lids.clone(),
            groups: Groups::default(),
            settings,
            phase: Phase::Idle,
            subnet: Subnet::default(),
            finding: Subnet::default(),
            queue: VecDeque::new(),
            under_way: BTreeMap::new(),
            next_transaction: 1,
            again: false,
            unanswered: false,
            next_poll: None,
            activity: 0,
            sweeps: 0,
            outbox: Vec::new(),
        }
    }

    /// Returns what the last whole sweep has found.
    pub fn subnet(&self) -> &Subnet {
        &self.subnet
    }

    /// Returns how many sweeps have been done.
    pub fn sweeps(&self) -> u64 {
        self.sweeps
    }

    /// Returns whether no sweep is under way or due.
    pub fn is_idle(&self) -> bool {
        self.phase == Phase::Idle && !self.again
    }

    /// Sweeps the subnet, now or after the sweep that is under way.
    pub fn sweep(&mut self) {
        self.again = true;
    }

    /// Returns whether a datagram that has come in on the manager's port is for it.
    pub fn wants(&self, mad: &Mad) -> bool {
        let head = head(mad);
        match (head.class, head.method) {
            (class::SUBN_LID | class::SUBN_DIRECTED, method::GET_RESP) => {
                head.transaction.get() & !u64::from(u32::MAX) == TAG
            }
            (class::SUBN_LID, method::TRAP) => true,
            (class::SUBN_LID | class::SUBN_DIRECTED, method::GET | method::SET) => {
                head.attribute.get() == attribute::SM_INFO
            }
            (class::SUBN_ADM, method) => method & method::RESPONSE == 0,
            _ => false,
        }
    }

    /// Takes a datagram that [`Manager::wants`].
    pub fn input(&mut self, from: &Address, mad: &Mad, now: u64) {
        let head = head(mad);
        match (head.class, head.method) {
            (class::SUBN_ADM, _) => self.administration_in(from, mad),
            (_, method::GET_RESP) => self.answer_in(Smp::from_mad(mad)),
            (_, method::TRAP) => self.trap_in(from, Smp::from_mad(mad)),
            _ => self.manager_info(from, Smp::from_mad(mad)),
        }
        self.run(now);
    }

    /// Takes what is to be sent: addresses and datagrams. A datagram on a directed route without a hop is for the manager's
    /// own node.
    pub fn take_outbox(&mut self) -> Vec<(Address, Mad)> {
        std::mem::take(&mut self.outbox)
    }

    /// Returns when [`Manager::run`] has something to do or [`Manager::take_outbox`] something to take, in nanoseconds.
    pub fn deadline(&self) -> Option<u64> {
        if !self.outbox.is_empty() || self.again && self.phase == Phase::Idle {
            return Some(0);
        }
        let requests = self.under_way.values().map(|request| request.deadline);
        let poll = self.next_poll.filter(|_| self.phase == Phase::Idle);
        requests.chain(poll).min()
    }

    /// Does what is due at `now`.
    pub fn run(&mut self, now: u64) {
        self.time_out(now);
        loop {
            while self.under_way.len() < WINDOW {
                let Some(request) = self.queue.pop_front() else {
                    break;
                };
                self.send(request, now);
            }
            if !self.under_way.is_empty() || !self.queue.is_empty() {
                return;
            }
            self.next_phase(now);
            if self.queue.is_empty() && self.phase == Phase::Idle && !self.again {
                return;
            }
        }
    }

    fn next_phase(&mut self, now: u64) {
        self.phase = match self.phase {
            Phase::Idle if self.again => self.begin(),
            Phase::Idle if self.next_poll.is_some_and(|at| at <= now) => self.poll(now),
            Phase::Idle => Phase::Idle,
            Phase::Discover => self.configure(),
            Phase::Configure => self.arm(),
            Phase::Arm => self.activate(),
            Phase::Activate => self.end(now),
            Phase::Poll => Phase::Idle,
        };
    }

    fn begin(&mut self) -> Phase {
        (self.again, self.unanswered) = (false, false);
        self.finding = Subnet::default();
        self.ask(Ask::Node(None), &[], attribute::NODE_INFO, 0);
        Phase::Discover
    }

    fn poll(&mut self, now: u64) -> Phase {
        self.next_poll = Some(now.saturating_add(POLL));
        if self.unanswered {
            self.again = true;
            return Phase::Idle;
        }
        let switches: Vec<(u64, Vec<u8>)> = self
            .subnet
            .nodes
            .iter()
            .filter(|(_, node)| node.switch.is_some())
            .map(|(&guid, node)| (guid, node.path.clone()))
            .collect();
        for (guid, path) in switches {
            self.ask(Ask::Poll(guid), &path, attribute::SWITCH_INFO, 0);
        }
        Phase::Poll
    }

    fn end(&mut self, now: u64) -> Phase {
        self.subnet = std::mem::take(&mut self.finding);
        self.sweeps += 1;
        self.activity = self.activity.wrapping_add(1);
        let wait = if self.unanswered { AGAIN } else { POLL };
        self.next_poll = Some(now.saturating_add(wait));
        Phase::Idle
    }

    fn ask(&mut self, ask: Ask, path: &[u8], attribute: u16, modifier: u32) {
        let smp = Smp::directed(path, method::GET, attribute, modifier);
        self.request(ask, path, smp);
    }

    fn request(&mut self, ask: Ask, path: &[u8], smp: Smp) {
        self.queue.push_back(Request {
            ask,
            path: path.to_vec(),
            smp,
            tries: 0,
            deadline: 0,
        });
    }

    fn send(&mut self, mut request: Request, now: u64) {
        let transaction = TAG | self.next_transaction;
        self.next_transaction = (self.next_transaction + 1) & u64::from(u32::MAX);
        request.smp.head.transaction.set(transaction);
        request.tries += 1;
        request.deadline = now.saturating_add(TIMEOUT);
        let mut smp = request.smp;
        // C14-9, first case: the sender does the first step.
        smp.head.hops[0] = u8::from(!request.path.is_empty());
        self.outbox.push((Address::DIRECTED, smp.to_mad()));
        self.under_way.insert(transaction, request);
    }

    fn time_out(&mut self, now: u64) {
        let late = |(&transaction, request): (&u64, &Request)| {
            (request.deadline <= now).then_some(transaction)
        };
        let late: Vec<u64> = self.under_way.iter().filter_map(late).collect();
        for transaction in late {
            let Some(request) = self.under_way.remove(&transaction) else {
                continue;
            };
            if request.tries < TRIES {
                self.send(request, now);
                continue;
            }
            log::info!("subnet manager: no answer from {:?}", request.path);
            if matches!(request.ask, Ask::Poll(_)) {
                self.again = true;
            }
            self.unanswered = true;
        }
    }

    fn answer_in(&mut self, smp: Smp) {
        let Some(request) = self.under_way.remove(&smp.head.transaction.get()) else {
            return;
        };
        if smp.status() != 0 {
            log::warn!(
                "subnet manager: {:?} on {:?}: status {:#x}",
                request.ask,
                request.path,
                smp.status()
            );
            self.unanswered = true;
            return;
        }
        match request.ask {
            Ask::Node(from) => self.node_found(from, &request.path, smp.attribute()),
            Ask::Description(guid) => {
                if let Some(node) = self.finding.nodes.get_mut(&guid) {
                    node.description = *smp.attribute::<NodeDescription>();
                }
            }
            Ask::Switch(guid) => self.switch_found(guid, smp.attribute()),
            Ask::Port(guid, number) => {
                self.port_found(guid, number, &request.path, smp.attribute())
            }
            Ask::Poll(_) => {
                let info: &SwitchInfo = smp.attribute();
                self.again |= info.life_time & SwitchInfo::STATE_CHANGE != 0;
            }
            Ask::Set => {}
        }
    }

    fn node_found(&mut self, from: Option<(u64, u8)>, path: &[u8], info: &NodeInfo) {
        let guid = info.node_guid.get();
        let arrived = info.local_port();
        if let Some(from) = from {
            self.finding.join(from, (guid, arrived));
        }
        let known = self.finding.nodes.contains_key(&guid);
        if !known {
            self.finding.order.push(guid);
            self.finding
                .nodes
                .insert(guid, FoundNode::new(info, path.to_vec()));
            let about = attribute::NODE_DESCRIPTION;
            self.ask(Ask::Description(guid), path, about, 0);
        }
        if !info.is_switch() {
            if let Some(node) = self.finding.nodes.get_mut(&guid) {
                node.guids.insert(arrived, info.port_guid.get());
            }
            // Each port of an HCA is reached through itself.
            let modifier = u32::from(arrived);
            let ask = Ask::Port(guid, arrived);
            self.ask(ask, path, attribute::PORT_INFO, modifier);
        } else if !known {
            self.ask(Ask::Switch(guid), path, attribute::SWITCH_INFO, 0);
        }
    }

    fn switch_found(&mut self, guid: u64, info: &SwitchInfo) {
        let Some(node) = self.finding.nodes.get_mut(&guid) else {
            return;
        };
        node.switch = Some(*info);
        let (path, ports) = (node.path.clone(), node.info.num_ports);
        if info.life_time & SwitchInfo::STATE_CHANGE != 0 {
            // Cleared before the ports are looked at: what changes later sets it again.
            let mut smp = Smp::directed(&path, method::SET, attribute::SWITCH_INFO, 0);
            smp.set_attribute(info);
            self.request(Ask::Set, &path, smp);
        }
        for number in 0..=ports {
            let ask = Ask::Port(guid, number);
            self.ask(ask, &path, attribute::PORT_INFO, number.into());
        }
    }

    fn port_found(&mut self, guid: u64, number: u8, path: &[u8], info: &PortInfo) {
        let Some(node) = self.finding.nodes.get_mut(&guid) else {
            return;
        };
        node.add_port(number, path, info);
        let has_link = info.state().is_some_and(|state| state != LinkState::Down);
        let is_switch = node.switch.is_some();
        // From an HCA only the manager itself goes on, by its own port.
        let goes_on = if is_switch {
            number != 0
        } else {
            path.is_empty() && number == self.settings.port
        };
        if has_link && goes_on && path.len() < usize::from(Smp::MAX_HOPS) {
            let further = [path, &[number]].concat();
            let ask = Ask::Node(Some((guid, number)));
            self.ask(ask, &further, attribute::NODE_INFO, 0);
        }
    }

    fn trap_in(&mut self, from: &Address, mut smp: Smp) {
        smp.respond(0);
        self.outbox.push((from.answer(), smp.to_mad()));
        self.again = true;
    }

    /// Answers who asks who manages the subnet.
    fn manager_info(&mut self, from: &Address, mut smp: Smp) {
        if smp.head.method != method::GET || smp.is_directed() {
            return;
        }
        let mut info = SmInfo::new_zeroed();
        info.guid.set(self.settings.guid);
        info.activity.set(self.activity);
        info.priority_state = MASTER;
        smp.set_attribute(&info);
        smp.respond(0);
        self.outbox.push((from.answer(), smp.to_mad()));
    }
}
