// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Collectives: messages whose bytes wait for bytes of others.

use crate::workload::Message;
use crate::world::World;

/// Which messages of a run, by index, wait for which.
///
/// All messages must start at once, and no others may be in the run.
#[derive(Clone, Debug)]
pub struct Collective {
    /// Granularity at which a host passes on what it has received, in bytes.
    slice: u64,
    nodes: Vec<Node>,
}

#[derive(Clone, Debug, Default)]
struct Node {
    /// Bytes that may go at once.
    head: u64,
    /// Messages that this one passes on, or adds up.
    fed_by: Vec<u32>,
    feeds: Vec<u32>,
}

impl Collective {
    fn new(slice: u64, nodes: impl Iterator<Item = (u64, Vec<u32>)>) -> Self {
        let mut nodes: Vec<Node> = nodes
            .map(|(head, fed_by)| Node {
                head,
                fed_by,
                feeds: Vec::new(),
            })
            .collect();
        for index in 0..nodes.len() {
            for from in nodes[index].fed_by.clone() {
                nodes[from as usize].feeds.push(index as u32);
            }
        }
        Self { slice, nodes }
    }
}

fn message(src: u32, dst: u32, bytes: u64) -> Message {
    Message {
        start: 0,
        src,
        dst,
        bytes,
        tag: 0,
    }
}

/// Ring all-reduce: every host sends `steps` chunks to the next one in `order`, its own first and
/// then what came from the host before it. A full all-reduce has twice the number of hosts less
/// two steps.
pub fn ring(order: &[u32], chunk: u64, slice: u64, steps: u64) -> (Vec<Message>, Collective) {
    let hosts = order.len();
    let messages = (0..hosts)
        .map(|i| message(order[i], order[(i + 1) % hosts], steps * chunk))
        .collect();
    let nodes = (0..hosts).map(|i| (chunk, vec![((i + hosts - 1) % hosts) as u32]));
    (messages, Collective::new(slice, nodes))
}

/// Tree all-reduce of `bytes`: sums go up a binary tree of `hosts` hosts, and the result comes
/// down again, in slices.
pub fn tree(hosts: u32, bytes: u64, slice: u64) -> (Vec<Message>, Collective) {
    let parent = |host: u32| (host - 1) / 2;
    let children = |host: u32| {
        [2 * host + 1, 2 * host + 2]
            .into_iter()
            .filter(move |&c| c < hosts)
    };
    let up = |host: u32| host - 1;
    let down = |host: u32| hosts - 1 + host - 1;
    let inner = 1..hosts;
    let messages = inner
        .clone()
        .map(|host| message(host, parent(host), bytes))
        .chain(inner.clone().map(|host| message(parent(host), host, bytes)))
        .collect();
    let ups = inner.clone().map(|host| {
        let sums: Vec<u32> = children(host).map(up).collect();
        (if sums.is_empty() { bytes } else { 0 }, sums)
    });
    let downs = inner.map(|host| match parent(host) {
        0 => (0, children(0).map(up).collect()),
        other => (0, vec![down(other)]),
    });
    (messages, Collective::new(slice, ups.chain(downs)))
}

impl World {
    /// Bytes that message `index` may send.
    pub fn posted(&self, index: u32) -> u64 {
        let bytes = self.flows[index as usize].message.bytes;
        let Some(collective) = &self.collective else {
            return bytes;
        };
        let node = &collective.nodes[index as usize];
        let received = node
            .fed_by
            .iter()
            .map(|&from| match self.received(from) {
                all if all == self.flows[from as usize].message.bytes => all,
                part => part / collective.slice * collective.slice,
            })
            .min();
        bytes.min(node.head + received.unwrap_or(0))
    }

    /// Lets the messages go on that wait for message `index`, which has grown from `before` bytes.
    pub fn feed(&mut self, index: u32, before: u64) {
        let Some(collective) = &self.collective else {
            return;
        };
        let slice = collective.slice;
        let received = self.received(index);
        let whole = received == self.flows[index as usize].message.bytes;
        if before / slice == received / slice && !whole {
            return;
        }
        for i in 0..self.feeds(index).len() {
            let next = self.feeds(index)[i];
            if self.is_running(next) {
                self.repost(next);
            }
        }
    }

    fn feeds(&self, index: u32) -> &[u32] {
        match &self.collective {
            Some(collective) => &collective.nodes[index as usize].feeds,
            None => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::NEVER;
    use crate::scheme::Scheme;
    use crate::topo::Topology;

    fn run(hosts: u32, messages: Vec<Message>, collective: Option<Collective>) -> World {
        let topology = Topology::single(hosts, 100, 1000);
        let traffic = Box::new(messages.into_iter());
        let mut world = World::new(&topology, Scheme::Auto.reference(), traffic, 1);
        world.collective = collective;
        world.run(NEVER - 1);
        world
    }

    /// Slices hide the latency of waiting: it is as fast as if nobody waited.
    #[test]
    fn a_ring_uses_every_link_all_the_time() {
        let order: Vec<u32> = (0..8).collect();
        let (messages, collective) = ring(&order, 500_000, 62_500, 14);
        let [waiting, free] = [Some(collective), None].map(|collective| {
            let world = run(8, messages.clone(), collective);
            assert_eq!(world.done.len(), 8);
            let all = world.done.iter().map(|done| done.fct);
            all.max().unwrap_or(NEVER)
        });
        assert!(waiting as f64 <= 1.01 * free as f64, "{waiting} {free}");
    }

    #[test]
    fn a_tree_ends_and_nothing_overtakes_its_source() {
        let (messages, collective) = tree(7, 1_000_000, 100_000);
        let world = run(7, messages, Some(collective));
        assert_eq!(world.done.len(), 12);
        let fct = |src, dst| {
            let of = |d: &&crate::world::Done| (d.message.src, d.message.dst) == (src, dst);
            world.done.iter().find(of).map_or(0, |done| done.fct)
        };
        assert!(fct(3, 1) < fct(1, 0) && fct(1, 0) < fct(0, 2) && fct(0, 2) < fct(2, 6));
    }
}
