// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The fabric as the engine sees it: the network, who is attached to it, and the subnet managers.

use crate::config::PortId;
use crate::hca::core::port_number;
use crate::hca::Hca;
use qiao_fabric::agent::{self, VL15};
use qiao_fabric::counters::Counters;
use qiao_fabric::mad::{head, Address, LinkState, Mad};
use qiao_fabric::net::{Attach, Net};
use qiao_fabric::sm::Manager;
use qiao_fabric::wire::Frame;
use serde::Serialize;
use std::collections::VecDeque;

/// A packet that has arrived at a port of an HCA.
#[derive(Debug)]
pub struct Receiver {
    /// Index of the HCA.
    pub hca: usize,
    /// Index of the port.
    pub port: usize,
    /// The packet.
    pub frame: Frame,
}

/// A port of the fabric, for people.
#[derive(Debug, Serialize)]
#[expect(missing_docs, reason = "names are those of PortInfo")]
pub struct PortView {
    pub port: u8,
    pub state: LinkState,
    pub counters: Counters,
}

/// A switch, for people.
#[derive(Debug, Serialize)]
#[expect(missing_docs, reason = "names are those of NodeInfo")]
pub struct SwitchView {
    pub name: String,
    pub guid: String,
    pub lid: u16,
    pub alive: bool,
    pub ports: Vec<PortView>,
}

/// A link, for people.
#[derive(Debug, Serialize)]
pub struct LinkView {
    /// What it ends at, as `name:port`.
    pub ends: [String; 2],
    /// Whether it is up.
    pub up: bool,
}

/// A subnet manager, for people.
#[derive(Debug, Serialize)]
pub struct ManagerView {
    /// Port from which it works, as `hca:port`.
    pub port: String,
    /// Sweeps done.
    pub sweeps: u64,
    /// Nodes found by the last one.
    pub nodes: usize,
    /// Whether no sweep is under way.
    pub idle: bool,
}

/// Everything.
#[derive(Debug, Serialize)]
#[expect(missing_docs, reason = "lists of the types above")]
pub struct Topology {
    pub switches: Vec<SwitchView>,
    pub links: Vec<LinkView>,
    pub managers: Vec<ManagerView>,
}

/// The fabric.
#[derive(Debug)]
pub struct Fabric {
    /// The network.
    pub net: Net,
    /// The port of each host of the network, and its name.
    hosts: Vec<(PortId, String)>,
    /// Host of the first port of each HCA.
    first: Vec<usize>,
    managers: Vec<(usize, Manager)>,
    /// Packets that ports send to themselves.
    loopback: VecDeque<(usize, Frame)>,
}

impl Fabric {
    /// Makes the fabric of a network whose hosts are `hosts`, with names, and whose managers work from these hosts.
    pub fn new(net: Net, hosts: Vec<(PortId, String)>, managers: Vec<(usize, Manager)>) -> Self {
        let first = hosts
            .iter()
            .enumerate()
            .filter(|(_, (id, _))| id.port == 0)
            .map(|(host, _)| host)
            .collect();
        Self {
            net,
            hosts,
            first,
            managers,
            loopback: VecDeque::new(),
        }
    }

    /// Brings the links up.
    pub fn power_on(&mut self, now: u64) {
        self.net.power_on(now);
    }

    fn host(&self, hca: usize, port: usize) -> usize {
        self.first[hca] + port
    }

    /// Returns the index of a switch.
    pub fn switch(&self, name: &str) -> Option<usize> {
        self.net.switches().iter().position(|s| s.name == name)
    }

    /// Returns whether every subnet has been swept and no sweep is due.
    pub fn is_settled(&self) -> bool {
        self.managers.iter().all(|(_, manager)| manager.is_idle())
    }

    /// Returns whether nothing is to be done before some time after `now`.
    pub fn is_waiting(&self, now: u64) -> bool {
        self.loopback.is_empty() && self.next_due().is_none_or(|due| due > now)
    }

    /// Returns when something is due, in nanoseconds.
    pub fn next_due(&self) -> Option<u64> {
        let managers = self.managers.iter().filter_map(|(_, m)| m.deadline());
        managers.chain(self.net.next_due()).min()
    }

    /// Gives an HCA the counters of its ports.
    pub fn refresh_counters(&self, n: usize, hca: &mut Hca) {
        for (port, counters) in hca.link_counters.iter_mut().enumerate() {
            *counters = self.net.counters(Attach::Host(self.host(n, port)));
        }
    }

    /// Takes over what subnet management has changed on the ports of an HCA.
    pub fn sync(&mut self, n: usize, hca: &mut Hca, now: u64) {
        if !std::mem::take(&mut hca.ports_changed) {
            return;
        }
        for port in 0..hca.link_counters.len() {
            let host = self.host(n, port);
            self.net.configure(host, hca.core.link_port(port));
        }
        for (port, change) in std::mem::take(&mut hca.link_orders) {
            self.net
                .order(Attach::Host(self.host(n, port)), change, now);
        }
    }

    /// Returns whether a port of an HCA, by its index, takes more packets.
    pub fn has_room(&self, n: usize, port: usize) -> bool {
        self.net.has_room(self.host(n, port))
    }

    /// Sends what an HCA has put into its outbox.
    pub fn send(&mut self, n: usize, hca: &mut Hca, now: u64) {
        let mut outbox = std::mem::take(&mut hca.core.outbox);
        for (port, frame) in outbox.drain(..) {
            let host = self.host(n, port);
            self.send_from(host, hca, port, frame, now);
        }
        // The allocation is used again.
        hca.core.outbox = outbox;
    }

    /// Sends a packet of a port. One to the port itself does not leave it.
    fn send_from(&mut self, host: usize, hca: &Hca, port: usize, mut frame: Frame, now: u64) {
        let own = hca.core.link_port(port);
        let may_loop = |vl| vl == VL15 || own.state() == LinkState::Active;
        let to_itself = frame
            .lrh()
            .is_some_and(|lrh| own.info.has_lid(lrh.dlid.get()) && may_loop(lrh.vl()));
        if to_itself {
            self.net.record(host, now, &mut frame);
            self.loopback.push_back((host, frame));
        } else {
            self.net.send(host, now, frame);
        }
    }

    /// Moves packets, tells HCAs of their links, and lets the managers work. Returns whether there may be more to do.
    pub fn run(&mut self, hcas: &mut [Hca], now: u64) -> bool {
        let mut busy = self.net.run(now);
        for (host, up) in self.net.take_link_events() {
            let (id, _) = self.hosts[host];
            hcas[id.hca].set_link(id.port, up);
            self.sync(id.hca, &mut hcas[id.hca], now);
            for (at, manager) in &mut self.managers {
                if *at == host && up {
                    manager.sweep();
                }
            }
            busy = true;
        }
        for n in 0..self.managers.len() {
            busy |= self.run_manager(n, hcas, now);
        }
        busy
    }

    fn run_manager(&mut self, n: usize, hcas: &mut [Hca], now: u64) -> bool {
        let (host, manager) = &mut self.managers[n];
        let host = *host;
        manager.run(now);
        let outbox = manager.take_outbox();
        let sent = !outbox.is_empty();
        let (id, _) = self.hosts[host];
        for (to, mad) in outbox {
            if to == Address::DIRECTED && head(&mad).hops[1] == 0 {
                let hca = &mut hcas[id.hca];
                let answer = hca.execute_mad(id.port, &mad, false, now);
                self.sync(id.hca, hca, now);
                if let Some(answer) = answer {
                    self.managers[n].1.input(&to, &answer, now);
                }
                continue;
            }
            let frame = to.build(Frame::default(), &mad);
            self.send_from(host, &hcas[id.hca], id.port, frame, now);
        }
        sent
    }

    /// Takes the next packet that has arrived and is not for a subnet manager.
    pub fn receive(&mut self, now: u64) -> Option<Receiver> {
        loop {
            let (host, mut frame) = match self.loopback.pop_front() {
                Some((host, mut frame)) => {
                    self.net.record(host, now, &mut frame);
                    (host, frame)
                }
                None => self.net.receive()?,
            };
            if self.manager_takes(host, &mut frame, now) {
                continue;
            }
            let (id, _) = self.hosts[host];
            return Some(Receiver {
                hca: id.hca,
                port: id.port,
                frame,
            });
        }
    }

    fn manager_takes(&mut self, host: usize, frame: &mut Frame, now: u64) -> bool {
        let manager = self.managers.iter_mut().find(|(at, _)| *at == host);
        let is_special = frame.bth().is_some_and(|bth| bth.qpn() <= 1);
        let Some((_, manager)) = manager.filter(|_| is_special) else {
            return false;
        };
        let parsed: Option<(Address, Mad)> = frame.parse().ok().as_ref().and_then(agent::parse);
        match parsed {
            Some((from, mad)) if manager.wants(&mad) => {
                manager.input(&from, &mad, now);
                true
            }
            _ => false,
        }
    }

    /// Describes the fabric.
    pub fn topology(&self) -> Topology {
        Topology {
            switches: self.switches(),
            links: (0..self.net.links()).map(|n| self.link(n)).collect(),
            managers: self
                .managers
                .iter()
                .map(|(host, manager)| ManagerView {
                    port: self.hosts[*host].1.clone(),
                    sweeps: manager.sweeps(),
                    nodes: manager.subnet().nodes.len(),
                    idle: manager.is_idle(),
                })
                .collect(),
        }
    }

    fn switches(&self) -> Vec<SwitchView> {
        let view = |(switch, of): (usize, &qiao_fabric::net::Switch)| SwitchView {
            name: of.name.clone(),
            guid: format!("{:016x}", of.node().info.node_guid.get()),
            lid: of.node().port(0).map_or(0, |port| port.info.lid.get()),
            alive: of.is_alive(),
            ports: of
                .node()
                .ports()
                .filter(|(port, _)| *port > 0)
                .map(|(port, own)| PortView {
                    port,
                    state: own.state(),
                    counters: self.net.counters(Attach::Switch { switch, port }),
                })
                .collect(),
        };
        self.net.switches().iter().enumerate().map(view).collect()
    }

    fn link(&self, n: usize) -> LinkView {
        let (ends, up) = self.net.link(n);
        let name = |end: Attach| match end {
            Attach::Host(host) => self.hosts[host].1.clone(),
            Attach::Switch { switch, port } => {
                format!("{}:{port}", self.net.switches()[switch].name)
            }
        };
        LinkView {
            ends: ends.map(name),
            up,
        }
    }
}

/// Returns the name of a port of an HCA.
pub fn port_name(hca: &str, port: usize) -> String {
    format!("{hca}:{}", port_number(port))
}
