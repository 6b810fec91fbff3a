// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A network with HCAs of one port that only answer management, for tests.

use crate::agent::{self, Outcome};
use crate::link::{Faults, Link};
use crate::mad::{head, method, Address, LinkState, Mad};
use crate::net::{Attach, Net, Switch};
use crate::node::{Maker, Node};
use crate::sm::{Manager, Settings};
use crate::sma::Arrival;
use crate::wire::{Bth, Builder, Deth, Frame, Lrh, Operation, Transport};
use zerocopy::FromZeros;

pub const MAKER: Maker = Maker {
    vendor: 0x52_5400,
    device: 1,
    revision: 1,
};

/// The network, its HCAs and its manager.
pub struct World {
    pub net: Net,
    pub nodes: Vec<Node>,
    pub manager: Option<(usize, Manager)>,
    pub now: u64,
    /// Packets of data that each HCA has taken.
    pub inbox: Vec<Vec<Frame>>,
    /// Datagrams that no agent of an HCA has answered.
    pub to_host: Vec<Vec<Mad>>,
}

pub fn host(n: usize) -> Attach {
    Attach::Host(n)
}

pub fn port(switch: usize, port: u8) -> Attach {
    Attach::Switch { switch, port }
}

pub fn host_guid(n: usize) -> u64 {
    0x1000 * (n as u64 + 1)
}

pub fn switch_guid(n: usize) -> u64 {
    0xff00_0000 + n as u64
}

impl World {
    /// Makes HCAs, switches of so many ports, and links; the manager works from HCA 0.
    pub fn new(hosts: usize, switches: &[u8], links: &[[Attach; 2]], faults: Faults) -> Self {
        let mut net = Net::default();
        let node = |n| Node::adapter(host_guid(n), 1, MAKER, &format!("h{n}"));
        let nodes: Vec<Node> = (0..hosts).map(node).collect();
        for _ in 0..hosts {
            net.add_host();
        }
        for (n, &ports) in switches.iter().enumerate() {
            let name = format!("s{n}");
            let node = Node::switch(switch_guid(n), ports, MAKER, &name);
            net.add_switch(Switch::new(name, node));
        }
        for (n, ends) in links.iter().enumerate() {
            net.connect(*ends, Link::new(n as u64, faults));
        }
        let settings = Settings {
            guid: nodes[0].port(1).unwrap().guid(),
            port: 1,
            ..Settings::default()
        };
        let mut world = Self {
            net,
            nodes,
            manager: Some((0, Manager::new(settings))),
            now: 0,
            inbox: vec![Vec::new(); hosts],
            to_host: vec![Vec::new(); hosts],
        };
        world.net.power_on(0);
        world.settle();
        world
    }

    pub fn manager(&self) -> &Manager {
        &self.manager.as_ref().unwrap().1
    }

    pub fn state(&self, n: usize) -> LinkState {
        self.nodes[n].port(1).unwrap().state()
    }

    pub fn lid(&self, n: usize) -> u16 {
        self.nodes[n].port(1).unwrap().info.lid.get()
    }

    /// Lets time pass until nothing is under way; what comes only later than `limit` nanoseconds does not count.
    pub fn settle_for(&mut self, limit: u64) {
        let end = self.now + limit;
        loop {
            while self.step() {}
            let manager = self.manager.as_ref().and_then(|(_, m)| m.deadline());
            let due = self.net.next_due().into_iter().chain(manager).min();
            match due {
                Some(due) if due <= end => self.now = self.now.max(due),
                _ => return,
            }
        }
    }

    /// As long as a sweep and its repetitions can take, and shorter than the time between two polls.
    pub fn settle(&mut self) {
        self.settle_for(5_000_000_000);
    }

    /// Does what is due now; returns whether there may be more.
    pub fn step(&mut self) -> bool {
        let mut more = self.net.run(self.now);
        for (n, up) in self.net.take_link_events() {
            self.nodes[n].set_link(1, up);
            self.configure(n);
            if let Some((at, manager)) = &mut self.manager {
                if *at == n && up {
                    manager.sweep();
                }
            }
            more = true;
        }
        while let Some((n, packet)) = self.net.receive() {
            more = true;
            self.packet_in(n, packet);
        }
        more | self.run_manager()
    }

    fn configure(&mut self, n: usize) {
        self.nodes[n].take_changes();
        self.net.configure(n, self.nodes[n].port(1).unwrap());
    }

    fn packet_in(&mut self, n: usize, frame: Frame) {
        let packet = frame.parse().expect("the fabric delivers what was sent");
        let Some((from, mad)) = agent::parse(&packet) else {
            self.inbox[n].push(frame);
            return;
        };
        if let Some((at, manager)) = &mut self.manager {
            if *at == n && manager.wants(&mad) {
                manager.input(&from, &mad, self.now);
                return;
            }
        }
        let at = self.arrival();
        let node = &mut self.nodes[n];
        let outcome = if from.dest_qp == 0 {
            agent::subnet_management(node, &at, &from, &mad)
        } else {
            agent::general_services(node, &at, &from, &mad)
        };
        if head(&mad).method == method::SET {
            self.configure(n);
        }
        match outcome {
            Outcome::Out(_, mad) => self.send(n, &Address::DIRECTED, &mad),
            Outcome::Route(to, mad) => self.send(n, &to, &mad),
            Outcome::Host => self.to_host[n].push(mad),
            Outcome::Drop => {}
        }
    }

    fn arrival(&self) -> Arrival {
        Arrival {
            port: 1,
            trusted: false,
            now: self.now,
        }
    }

    /// Sends a datagram from an HCA.
    pub fn send(&mut self, n: usize, to: &Address, mad: &Mad) {
        let packet = to.build(Frame::default(), mad);
        let loops = to.dlid == self.lid(n);
        if loops {
            self.packet_in(n, packet);
        } else {
            self.net.send(n, self.now, packet);
        }
    }

    fn run_manager(&mut self) -> bool {
        let Some((n, mut manager)) = self.manager.take() else {
            return false;
        };
        manager.run(self.now);
        let outbox = manager.take_outbox();
        let more = !outbox.is_empty();
        for (to, mad) in outbox {
            if to == Address::DIRECTED && head(&mad).hops[1] == 0 {
                let at = self.arrival();
                if let Some(answer) = agent::execute(&mut self.nodes[n], &at, &mad) {
                    manager.input(&to, &answer, self.now);
                }
                self.configure(n);
            } else {
                self.send(n, &to, &mad);
            }
        }
        self.manager = Some((n, manager));
        more
    }

    /// Sends a datagram of data that carries `tag`, if the port has room.
    pub fn send_data(&mut self, from: usize, dlid: u16, sl: u8, tag: u32, length: usize) -> bool {
        if !self.net.has_room(from) {
            return false;
        }
        let lrh = Lrh {
            vl_lver: 0,
            sl_lnh: sl << 4,
            dlid: dlid.into(),
            length: 0.into(),
            slid: self.lid(from).into(),
        };
        let mut bth = Bth::new_zeroed();
        bth.pkey.set(0xffff);
        bth.dest_qp.set(0x55);
        bth.ack_psn.set(tag);
        let kind = (Transport::Ud, Operation::SendOnly);
        let mut builder = Builder::new(Frame::default(), lrh, None, bth, kind.0, kind.1)
            .header(&Deth::new_zeroed());
        builder.payload(length).fill(0);
        self.net.send(from, self.now, builder.finish());
        true
    }
}

/// A fat tree: each leaf has two HCAs, and is joined with each spine.
pub fn fat_tree(leaves: usize, spines: usize) -> (usize, Vec<u8>, Vec<[Attach; 2]>) {
    let hosts = leaves * 2;
    let mut switches = vec![2 + spines as u8; leaves];
    switches.extend(vec![leaves as u8; spines]);
    let mut links = Vec::new();
    for n in 0..hosts {
        links.push([host(n), port(n / 2, (n % 2) as u8 + 1)]);
    }
    for leaf in 0..leaves {
        for spine in 0..spines {
            let up = port(leaf, 3 + spine as u8);
            links.push([up, port(leaves + spine, leaf as u8 + 1)]);
        }
    }
    (hosts, switches, links)
}
