// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The simulated fabric: state, event dispatch and links. Switches and hosts are in their files.

use qiao_cc::{Hop, Params, Port as CcPort, Tuning, MAX_HOPS};
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::collective::Collective;
pub use crate::config::{Config, Red, Slow, RIVAL};
use crate::host::{Flow, Host};
use crate::queue::{EventQueue, Time, NEVER};
use crate::switch::Switch;
use crate::topo::{Routes, Topology};
use crate::workload::{uniform, Message};

/// Index that refers to nothing.
pub const NONE: u32 = u32::MAX;

/// Kinds of packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// Payload.
    #[default]
    Data,
    /// Acknowledgement.
    Ack,
    /// Negative acknowledgement for a gap.
    Nak,
    /// Priority pause.
    Pause,
    /// End of a priority pause.
    Resume,
}

/// A packet on its way.
#[derive(Clone, Copy, Debug, Default)]
pub struct Packet {
    /// When it, or the data that it acknowledges, was sent.
    pub sent: Time,
    /// First payload byte, or next expected one.
    pub seq: u64,
    /// Flow index.
    pub flow: u32,
    /// Incarnation of the flow index.
    pub generation: u32,
    /// Destination host.
    pub dst: u32,
    /// Path selector.
    pub hash: u32,
    /// Port by which it came into the switch.
    pub in_port: u32,
    /// Next packet in the queue.
    pub next: u32,
    /// Wire bytes.
    pub size: u16,
    /// Payload bytes.
    pub payload: u16,
    /// What it is.
    pub kind: Kind,
    /// Congestion was met.
    pub marked: bool,
    /// The sender asks for an acknowledgement.
    pub ask: bool,
    /// In an acknowledgement: the receiver notifies the sender.
    pub notify: bool,
    /// Hops in the telemetry.
    pub hops: u8,
}

/// Telemetry of a packet or of the last acknowledgement of a flow.
pub type Hops = [Hop; MAX_HOPS];

/// A FIFO of packets.
#[derive(Clone, Copy, Debug)]
pub struct Fifo {
    head: u32,
    tail: u32,
}

impl Default for Fifo {
    fn default() -> Self {
        Self {
            head: NONE,
            tail: NONE,
        }
    }
}

impl Fifo {
    /// Whether there is nothing in it.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.head == NONE
    }
}

/// One end of a link: its transmitter, and the ingress accounting of what it receives.
#[derive(Clone, Debug)]
pub struct Port {
    /// The port at the other end.
    pub peer: u32,
    /// Owner.
    pub node: u32,
    /// Picoseconds per byte.
    pub byte_ps: u64,
    /// Propagation.
    pub delay: Time,
    /// The transmitter is busy up to here.
    pub busy: Time,
    /// Bytes that the peer can take in the data class.
    pub credits: u64,
    /// Since when data waits for credits, or [`NEVER`].
    pub starved: Time,
    /// Time that data waited for credits.
    pub waited: Time,
    /// The next data packet has waited for credits: the port is a victim and no root.
    pub victim: bool,
    /// Pending transmit event.
    pub event: Time,
    /// The peer has paused data.
    pub paused: bool,
    /// Since when.
    pub paused_at: Time,
    /// Time in pause up to `paused_at`.
    pub paused_for: Time,
    /// High and data class.
    pub queues: [Fifo; 2],
    /// Bytes in the data class.
    pub data_bytes: u64,
    /// Bytes in both classes.
    pub all_bytes: u64,
    /// Bytes sent.
    pub sent: u64,
    /// Marking in bytes.
    pub red: Option<Red>,
    /// Buffer bytes of what came in here.
    pub ingress: u64,
    /// Of them in headroom.
    pub headroom_used: u64,
    /// Headroom.
    pub headroom: u64,
    /// Right shift of the free buffer that gives the pause threshold.
    pub shift: u32,
    /// We have paused the peer.
    pub pausing: bool,
}

/// What a run counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Data packets that hosts sent.
    pub data: u64,
    /// Data packets sent again.
    pub resent: u64,
    /// Packets dropped for want of buffer.
    pub drops: u64,
    /// Data packets lost on a link.
    pub lost: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Notifications that receivers sent.
    pub notifications: u64,
    /// Hosts whose adapter went on without its driver.
    pub fallbacks: u64,
    /// Longest time that one of them waited for an answer.
    pub slowest_fallback: Time,
    /// Data packets marked.
    pub marks: u64,
    /// Pause frames.
    pub pauses: u64,
    /// Events given to the congestion control.
    pub cc_events: u64,
}

/// A message that is complete.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Done {
    /// The message.
    pub message: Message,
    /// From posting to last acknowledgement.
    pub fct: Time,
    /// The same on an empty fabric.
    pub ideal: Time,
}

/// The whole simulation.
pub struct World {
    /// Constants.
    pub config: Config,
    /// Events.
    pub events: EventQueue,
    /// Packets by index.
    pub packets: Vec<Packet>,
    /// Telemetry of packets, if there is any.
    pub hops: Vec<Hops>,
    free_packets: Vec<u32>,
    /// Ports of all nodes.
    pub ports: Vec<Port>,
    /// Switches, after the hosts in node numbers.
    pub switches: Vec<Switch>,
    /// Hosts.
    pub hosts: Vec<Host>,
    /// Flows by index.
    pub flows: Vec<Flow>,
    /// Telemetry of the last acknowledgement by flow.
    pub flow_hops: Vec<(u8, Hops)>,
    /// Flow indices to use again.
    pub free_flows: Vec<u32>,
    /// Routes.
    pub routes: Routes,
    /// Congestion control parameters of all hosts.
    pub params: Params,
    /// Those of the messages with [`RIVAL`].
    pub rival: Params,
    /// Which messages wait for which, if any do.
    pub collective: Option<Collective>,
    /// Randomness of marking.
    pub rng: Xoshiro256PlusPlus,
    /// Counters.
    pub counters: Counters,
    /// Complete messages.
    pub done: Vec<Done>,
    traffic: Box<dyn Iterator<Item = Message>>,
    upcoming: Option<Message>,
}

/// Event kinds.
pub mod kind {
    /// Packet `b` reaches port `a`.
    pub const ARRIVE: u32 = 0;
    /// Port `a` may send.
    pub const TRANSMIT: u32 = 1;
    /// The next message is posted.
    pub const START: u32 = 2;
    /// The congestion control of flow `a` asked for an event.
    pub const WAKE: u32 = 3;
    /// Port `a` gets `b` bytes of credit.
    pub const CREDIT: u32 = 4;
    /// The host reads the pending event of flow `a`.
    pub const READ: u32 = 5;
    /// Slow host `a` has taken a packet.
    pub const TAKEN: u32 = 6;
    /// The retransmission timer of flow `a`.
    pub const TIMEOUT: u32 = 7;
    /// Message `a` of a collective begins.
    pub const POST: u32 = 8;
}

impl World {
    /// A fabric with traffic whose messages wait for each other.
    pub fn with_collective(
        topology: &Topology,
        config: Config,
        traffic: Box<dyn Iterator<Item = Message>>,
        seed: u64,
        collective: Collective,
    ) -> Self {
        let mut world = Self::new(topology, config, traffic, seed);
        world.collective = Some(collective);
        world
    }

    /// A fabric with traffic, which must be in time order.
    pub fn new(
        topology: &Topology,
        config: Config,
        traffic: Box<dyn Iterator<Item = Message>>,
        seed: u64,
    ) -> Self {
        let (ports, of_node) = build_ports(topology, &config);
        let hosts: Vec<Host> = (0..topology.hosts as usize)
            .map(|h| Host::new(of_node[h][0].0))
            .collect();
        let switches = (topology.hosts as usize..of_node.len())
            .map(|node| Switch::new(node as u32, &of_node[node], &ports, &config))
            .collect();
        let routes = Routes::new(topology, &of_node);
        let mut delays = Vec::new();
        for port in &ports {
            for size in [config.data_size(config.mtu), config.ack_size()] {
                let tx = config.tx_time(port, size);
                delays.extend([tx, tx + port.delay]);
            }
        }
        let params = Params {
            port: CcPort {
                link_mbps: 0,
                base_rtt_ns: 0,
                mtu: config.mtu,
            },
            tuning: Tuning::Auto,
        };
        let mut world = Self {
            config,
            events: EventQueue::new(delays),
            packets: Vec::new(),
            hops: Vec::new(),
            free_packets: Vec::new(),
            ports,
            switches,
            hosts,
            flows: Vec::new(),
            flow_hops: Vec::new(),
            free_flows: Vec::new(),
            routes,
            params,
            rival: params,
            collective: None,
            rng: crate::workload::rng(seed, 3),
            counters: Counters::default(),
            done: Vec::new(),
            traffic,
            upcoming: None,
        };
        world.set_params();
        world.upcoming = world.traffic.next();
        if let Some(first) = world.upcoming {
            world.events.push(first.start, kind::START, 0, 0);
        }
        world
    }

    /// Base round trip of the fabric: the longest between any two hosts.
    fn set_params(&mut self) {
        let port = &self.ports[self.hosts[0].port as usize];
        let link_mbps = (8_000_000 / port.byte_ps) as u32;
        let ends = self.routes.ends();
        let pairs = ends
            .iter()
            .flat_map(|&a| ends.iter().map(move |&b| (a, b)))
            .filter(|(a, b)| a != b);
        let longest = pairs.map(|(a, b)| self.base_rtt(a, b)).max().unwrap_or(0);
        let cc_port = CcPort {
            link_mbps,
            base_rtt_ns: u32::try_from(longest / 1000).unwrap_or(u32::MAX),
            mtu: self.config.mtu,
        };
        self.params = Params {
            port: cc_port,
            tuning: (self.config.tuning)(&cc_port),
        };
        self.rival = Params {
            tuning: self.config.rival.unwrap_or(self.config.tuning)(&cc_port),
            ..self.params
        };
    }

    /// Round trip of an otherwise empty fabric as the reference defines it: propagation both ways
    /// and the serialisation of one payload per hop.
    pub fn base_rtt(&self, src: u32, dst: u32) -> Time {
        let mut rtt = 0;
        let mut port = self.hosts[src as usize].port;
        loop {
            let link = &self.ports[port as usize];
            rtt += 2 * link.delay + u64::from(self.config.mtu) * link.byte_ps;
            let node = self.ports[link.peer as usize].node;
            if node as usize >= self.hosts.len() {
                let next = self.routes.next(node, dst);
                port = match next.first() {
                    Some(&port) => port,
                    None => self.ports[self.hosts[dst as usize].port as usize].peer,
                };
            } else {
                return rtt;
            }
        }
    }

    /// Time that a message would take alone, as the reference defines it.
    pub fn ideal(&self, message: &Message) -> Time {
        let packets = message.bytes.div_ceil(u64::from(self.config.mtu));
        let bytes = message.bytes + packets * u64::from(self.config.header);
        let port = &self.ports[self.hosts[message.src as usize].port as usize];
        self.base_rtt(message.src, message.dst) + bytes * port.byte_ps
    }

    /// Runs up to and including `until`.
    pub fn run(&mut self, until: Time) {
        while let Some(event) = self.events.pop(until) {
            match event.kind {
                kind::ARRIVE => self.arrive(event.a, event.b),
                kind::TRANSMIT => {
                    // A later request may have moved the event forward: then this one is stale.
                    if self.ports[event.a as usize].event == event.time {
                        self.ports[event.a as usize].event = NEVER;
                        self.transmit(event.a);
                    }
                }
                kind::START => self.start_messages(),
                kind::CREDIT => {
                    self.ports[event.a as usize].credits += u64::from(event.b);
                    self.transmit(event.a);
                }
                kind::READ => self.read_event(event.a),
                kind::TAKEN => self.packet_taken(event.a),
                kind::TIMEOUT => self.time_out(event.a),
                kind::POST => self.repost(event.a),
                _ => self.wake(event.a),
            }
        }
    }

    /// Bytes of a flow that are acknowledged.
    pub fn acked(&self, index: u32) -> u64 {
        self.flows[index as usize].acked
    }

    /// Now.
    pub fn now(&self) -> Time {
        self.events.now()
    }

    fn start_messages(&mut self) {
        while let Some(message) = self.upcoming {
            if message.start > self.now() {
                self.events
                    .push(message.start - self.now(), kind::START, 0, 0);
                return;
            }
            self.upcoming = self.traffic.next();
            self.start(message);
        }
    }

    #[inline]
    fn arrive(&mut self, port: u32, packet: u32) {
        let node = self.ports[port as usize].node;
        match self.packets[packet as usize].kind {
            Kind::Pause | Kind::Resume => self.receive_pause(port, packet),
            _ if (node as usize) < self.hosts.len() => {
                if self.is_lost(packet) {
                    let size = u64::from(self.packets[packet as usize].size);
                    self.return_credits(port, size);
                    self.counters.lost += 1;
                    self.free(packet);
                } else {
                    self.receive(node, packet);
                }
            }
            _ => self.forward(port, packet),
        }
    }

    fn is_lost(&mut self, packet: u32) -> bool {
        self.config.loss > 0.0
            && self.packets[packet as usize].kind == Kind::Data
            && uniform(&mut self.rng) < self.config.loss
    }

    fn receive_pause(&mut self, index: u32, packet: u32) {
        let pause = self.packets[packet as usize].kind == Kind::Pause;
        self.free(packet);
        let now = self.now();
        let port = &mut self.ports[index as usize];
        if port.paused && !pause {
            port.paused_for += now - port.paused_at;
        }
        port.paused_at = now;
        port.paused = pause;
        if !pause {
            self.transmit(index);
        }
    }

    /// Sends what port `index` has to send, if it can.
    #[inline]
    pub fn transmit(&mut self, index: u32) {
        let node = self.ports[index as usize].node as usize;
        if node < self.hosts.len() {
            self.transmit_host(node as u32);
        } else {
            self.transmit_switch(index);
        }
    }

    /// Makes sure that port `index` gets a transmit event at `time` or before.
    #[inline]
    pub fn transmit_at(&mut self, index: u32, time: Time) {
        let now = self.now();
        let port = &mut self.ports[index as usize];
        if time < port.event {
            port.event = time;
            self.events.push(time - now, kind::TRANSMIT, index, 0);
        }
    }

    /// Puts a packet on the wire.
    #[inline]
    pub fn put_on_wire(&mut self, index: u32, packet: u32) {
        let size = self.packets[packet as usize].size;
        let now = self.now();
        let port = &mut self.ports[index as usize];
        let tx = self.config.tx_time(port, u32::from(size));
        port.busy = now + tx;
        port.sent += u64::from(size);
        let (peer, delay) = (port.peer, port.delay);
        self.events.push(tx + delay, kind::ARRIVE, peer, packet);
    }

    /// Whether the data class of port `index` may send its first packet, which has `size` bytes.
    ///
    /// Notes since when a port with data lacks credits (PortXmitWait).
    #[inline]
    pub fn may_send(&mut self, index: u32, size: u64) -> bool {
        let now = self.now();
        let port = &mut self.ports[index as usize];
        if port.credits >= size {
            if port.starved != NEVER {
                port.waited += now - port.starved;
                port.starved = NEVER;
                port.victim = true;
            }
            return !port.paused;
        }
        port.starved = port.starved.min(now);
        false
    }

    /// Uses credits for a data packet on port `index`.
    #[inline]
    pub fn take_credits(&mut self, index: u32, size: u64) {
        if self.config.credits.is_some() {
            self.ports[index as usize].credits -= size;
        }
    }

    /// Gives the sender of what came in at port `index` its credits back.
    #[inline]
    pub fn return_credits(&mut self, index: u32, size: u64) {
        if self.config.credits.is_some() {
            let (peer, delay) = (
                self.ports[index as usize].peer,
                self.ports[index as usize].delay,
            );
            self.events.push(delay, kind::CREDIT, peer, size as u32);
        }
    }

    /// Appends to a queue of a port.
    #[inline]
    pub fn enqueue(&mut self, index: u32, class: usize, packet: u32) {
        let size = u64::from(self.packets[packet as usize].size);
        self.packets[packet as usize].next = NONE;
        let port = &mut self.ports[index as usize];
        port.all_bytes += size;
        if class == 1 {
            port.data_bytes += size;
        }
        let queue = &mut port.queues[class];
        if queue.is_empty() {
            queue.head = packet;
        } else {
            self.packets[queue.tail as usize].next = packet;
        }
        queue.tail = packet;
    }

    /// Size of the first packet of the data class.
    #[inline]
    pub fn first_size(&self, index: u32) -> Option<u64> {
        let head = self.ports[index as usize].queues[1].head;
        self.packets
            .get(head as usize)
            .map(|packet| u64::from(packet.size))
    }

    /// Takes the first packet of a queue that is not empty.
    #[inline]
    pub fn dequeue(&mut self, index: u32, class: usize) -> u32 {
        let port = &mut self.ports[index as usize];
        let packet = port.queues[class].head;
        let size = u64::from(self.packets[packet as usize].size);
        port.queues[class].head = self.packets[packet as usize].next;
        port.all_bytes -= size;
        if class == 1 {
            port.data_bytes -= size;
        }
        packet
    }

    /// A new packet.
    #[inline]
    pub fn alloc(&mut self, packet: Packet) -> u32 {
        if let Some(index) = self.free_packets.pop() {
            self.packets[index as usize] = packet;
            return index;
        }
        self.packets.push(packet);
        if self.config.telemetry {
            self.hops.push(Hops::default());
        }
        self.packets.len() as u32 - 1
    }

    /// Gives a packet back.
    #[inline]
    pub fn free(&mut self, packet: u32) {
        self.free_packets.push(packet);
    }

    /// Time up to now for which link flow control held port `index`.
    pub fn held(&self, index: u32) -> Time {
        let port = &self.ports[index as usize];
        let paused = if port.paused {
            self.now() - port.paused_at
        } else {
            0
        };
        let starved = if port.starved == NEVER {
            0
        } else {
            self.now() - port.starved
        };
        port.paused_for + paused + port.waited + starved
    }

    /// Share of all port time up to now for which link flow control held the port.
    pub fn pause_share(&self) -> f64 {
        let total: u64 = (0..self.ports.len()).map(|i| self.held(i as u32)).sum();
        total as f64 / (self.now().max(1) as f64 * self.ports.len() as f64)
    }
}

type NodePorts = Vec<Vec<(u32, u32)>>;

fn build_ports(topology: &Topology, config: &Config) -> (Vec<Port>, NodePorts) {
    let nodes = (topology.hosts + topology.switches) as usize;
    let mut ports = Vec::with_capacity(2 * topology.links.len());
    let mut of_node: NodePorts = vec![Vec::new(); nodes];
    for link in &topology.links {
        let first = ports.len() as u32;
        for (node, peer_node, peer) in [(link.a, link.b, first + 1), (link.b, link.a, first)] {
            let red = config.red.map(|red| Red {
                min: red.min * u64::from(link.gbps) / 25,
                max: red.max * u64::from(link.gbps) / 25,
                ..red
            });
            of_node[node as usize].push((ports.len() as u32, peer_node));
            ports.push(Port {
                peer,
                node,
                byte_ps: u64::from(8000 / link.gbps),
                delay: u64::from(link.delay_ns) * 1000,
                busy: 0,
                credits: config.credits.unwrap_or(u64::MAX),
                starved: NEVER,
                waited: 0,
                victim: false,
                event: NEVER,
                paused: false,
                paused_at: 0,
                paused_for: 0,
                queues: [Fifo::default(); 2],
                data_bytes: 0,
                all_bytes: 0,
                sent: 0,
                red,
                ingress: 0,
                headroom_used: 0,
                headroom: u64::from(link.gbps) * u64::from(link.delay_ns) / 8 * 3,
                shift: 3,
                pausing: false,
            });
        }
    }
    // Ports faster than the hosts get a larger share of the buffer.
    let slowest = ports.iter().map(|port| port.byte_ps).max().unwrap_or(1);
    for port in &mut ports {
        let ratio = slowest / port.byte_ps;
        port.shift = port
            .shift
            .saturating_sub(ratio.next_power_of_two().trailing_zeros());
    }
    (ports, of_node)
}
