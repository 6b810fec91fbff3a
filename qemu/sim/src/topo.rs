// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Topologies and their routes.

use std::collections::VecDeque;

use anyhow::{ensure, Context, Result};
use serde::Deserialize;

/// Bounds of what a file may ask for.
const MOST_NODES: u32 = 1 << 16;
const MOST_DELAY_NS: u32 = 10_000_000;

/// Distance of what can not be reached.
const APART: u32 = u32::MAX / 2;

/// A cable.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Node at one end.
    pub a: u32,
    /// Node at the other end.
    pub b: u32,
    /// Rate in Gb/s.
    pub gbps: u32,
    /// Propagation delay in nanoseconds.
    pub delay_ns: u32,
}

/// Hosts are the nodes `0..hosts`, switches the rest. Each host has one link.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Topology {
    /// Number of hosts.
    pub hosts: u32,
    /// Number of switches.
    pub switches: u32,
    /// All cables.
    pub links: Vec<Link>,
}

impl Topology {
    /// `hosts` hosts on one switch.
    pub fn single(hosts: u32, gbps: u32, delay_ns: u32) -> Self {
        let links = (0..hosts)
            .map(|a| Link {
                a,
                b: hosts,
                gbps,
                delay_ns,
            })
            .collect();
        Self {
            hosts,
            switches: 1,
            links,
        }
    }

    /// Two switches with `left` and `right` hosts and one trunk.
    pub fn dumbbell(left: u32, right: u32, gbps: u32, trunk_gbps: u32, delay_ns: u32) -> Self {
        let hosts = left + right;
        let mut links: Vec<Link> = (0..hosts)
            .map(|a| Link {
                a,
                b: hosts + u32::from(a >= left),
                gbps,
                delay_ns,
            })
            .collect();
        links.push(Link {
            a: hosts,
            b: hosts + 1,
            gbps: trunk_gbps,
            delay_ns,
        });
        Self {
            hosts,
            switches: 2,
            links,
        }
    }

    /// A fat-tree of pods as the HPCC paper has it: every pod has `width` leaves and `width`
    /// aggregation switches in a full mesh, `hosts_per_leaf` hosts per leaf, and aggregation switch
    /// `i` of each pod goes to core group `i` of `width` cores.
    pub fn fat_tree(pods: u32, width: u32, hosts_per_leaf: u32, gbps: u32, up_gbps: u32) -> Self {
        const DELAY_NS: u32 = 1000;
        let leaves = pods * width;
        let hosts = leaves * hosts_per_leaf;
        let first_agg = hosts + leaves;
        let first_core = first_agg + leaves;
        let mut links = Vec::new();
        for host in 0..hosts {
            links.push(Link {
                a: host,
                b: hosts + host / hosts_per_leaf,
                gbps,
                delay_ns: DELAY_NS,
            });
        }
        for leaf in 0..leaves {
            for i in 0..width {
                let agg = first_agg + leaf / width * width + i;
                links.push(Link {
                    a: hosts + leaf,
                    b: agg,
                    gbps: up_gbps,
                    delay_ns: DELAY_NS,
                });
            }
        }
        for agg in 0..leaves {
            for i in 0..width {
                let core = first_core + agg % width * width + i;
                links.push(Link {
                    a: first_agg + agg,
                    b: core,
                    gbps: up_gbps,
                    delay_ns: DELAY_NS,
                });
            }
        }
        Self {
            hosts,
            switches: 2 * leaves + width * width,
            links,
        }
    }

    /// A dragonfly: `groups` groups of `routers` routers in a full mesh, `hosts_per_router` hosts
    /// each, and one cable between any two groups, spread over the routers of a group.
    pub fn dragonfly(groups: u32, routers: u32, hosts_per_router: u32, gbps: u32) -> Self {
        const NEAR_NS: u32 = 500;
        const FAR_NS: u32 = 2000;
        let switches = groups * routers;
        let hosts = switches * hosts_per_router;
        let link = |a, b, delay_ns| Link {
            a,
            b,
            gbps,
            delay_ns,
        };
        let router = |group: u32, index: u32| hosts + group * routers + index % routers;
        let mut links: Vec<Link> = (0..hosts)
            .map(|host| link(host, hosts + host / hosts_per_router, NEAR_NS))
            .collect();
        for group in 0..groups {
            for a in 0..routers {
                links.extend(
                    (a + 1..routers).map(|b| link(router(group, a), router(group, b), NEAR_NS)),
                );
            }
            // The i-th other group hangs on router i of a group.
            for other in group + 1..groups {
                let (a, b) = (router(group, other - 1), router(other, group));
                links.push(link(a, b, FAR_NS));
            }
        }
        Self {
            hosts,
            switches,
            links,
        }
    }

    /// A topology from a TOML file with `hosts`, `switches` and `[[links]]`.
    pub fn from_file(path: &std::path::Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| format!("{}", path.display()))?;
        Self::from_text(&text).with_context(|| format!("{}", path.display()))
    }

    fn from_text(text: &str) -> Result<Self> {
        let topology: Self = toml::from_str(text)?;
        topology.check()?;
        Ok(topology)
    }

    fn check(&self) -> Result<()> {
        ensure!(
            (2..=MOST_NODES).contains(&self.hosts) && (1..=MOST_NODES).contains(&self.switches),
            "a fabric has 2 to {MOST_NODES} hosts and 1 to {MOST_NODES} switches"
        );
        let nodes = self.hosts + self.switches;
        let mut attached = vec![0u32; self.hosts as usize];
        let mut rates = std::collections::BTreeSet::new();
        for link in &self.links {
            ensure!(
                link.delay_ns <= MOST_DELAY_NS,
                "more than {MOST_DELAY_NS} ns: {link:?}"
            );
            ensure!(
                link.a < nodes && link.b < nodes && link.a != link.b,
                "bad link {link:?}"
            );
            ensure!(
                link.gbps > 0 && 8000 % link.gbps == 0,
                "rate must divide 8000 Gb/s: {link:?}"
            );
            for end in [link.a, link.b] {
                if let Some(count) = attached.get_mut(end as usize) {
                    *count += 1;
                    rates.insert(link.gbps);
                }
            }
            ensure!(
                link.a >= self.hosts || link.b >= self.hosts,
                "host to host: {link:?}"
            );
        }
        ensure!(
            attached.iter().all(|&count| count == 1),
            "each host needs exactly one link"
        );
        // Rates of flows are parts of the rate of one kind of adapter.
        ensure!(rates.len() == 1, "hosts with links of one rate: {rates:?}");
        let distance = distances(self.hosts, &self.neighbours(), self.hosts);
        let apart = self
            .links
            .iter()
            .flat_map(|link| [link.a, link.b])
            .filter(|&node| node >= self.hosts)
            .find(|&switch| distance[switch as usize] == APART);
        ensure!(
            apart.is_none(),
            "no path to switch {apart:?} from the first one"
        );
        Ok(())
    }

    /// Peers of each node, as (link, node).
    fn neighbours(&self) -> Vec<Vec<(u32, u32)>> {
        let mut of_node = vec![Vec::new(); (self.hosts + self.switches) as usize];
        for (index, link) in (0..).zip(&self.links) {
            of_node[link.a as usize].push((index, link.b));
            of_node[link.b as usize].push((index, link.a));
        }
        of_node
    }
}

/// Shortest-path next hops: for each switch and each leaf switch, the set of ports to take.
pub struct Routes {
    hosts: u32,
    leaves: u32,
    leaf_of: Vec<u32>,
    set_of: Vec<u32>,
    sets: Vec<Vec<u32>>,
}

impl Routes {
    /// `ports[n]` lists (port, peer node) of node `n`; `leaf[h]` is the switch of host `h`.
    pub fn new(topology: &Topology, ports: &[Vec<(u32, u32)>]) -> Self {
        let hosts = topology.hosts;
        let host_switch: Vec<u32> = (0..hosts as usize)
            .map(|host| ports[host][0].1 - hosts)
            .collect();
        let mut leaves: Vec<u32> = host_switch.clone();
        leaves.sort_unstable();
        leaves.dedup();
        let mut index = vec![u32::MAX; topology.switches as usize];
        for (i, &leaf) in leaves.iter().enumerate() {
            index[leaf as usize] = i as u32;
        }
        let mut routes = Self {
            hosts,
            leaves: leaves.len() as u32,
            leaf_of: host_switch.iter().map(|&s| index[s as usize]).collect(),
            set_of: vec![0; leaves.len() * topology.switches as usize],
            sets: vec![Vec::new()],
        };
        let mut known = std::collections::HashMap::new();
        for (i, &leaf) in leaves.iter().enumerate() {
            let distance = distances(hosts, ports, leaf + hosts);
            for switch in 0..topology.switches {
                let here = distance[(switch + hosts) as usize];
                let set: Vec<u32> = ports[(switch + hosts) as usize]
                    .iter()
                    .filter(|&&(_, peer)| peer >= hosts && distance[peer as usize] + 1 == here)
                    .map(|&(port, _)| port)
                    .collect();
                let id = *known.entry(set.clone()).or_insert_with(|| {
                    routes.sets.push(set);
                    routes.sets.len() - 1
                });
                routes.set_of[switch as usize * leaves.len() + i] = id as u32;
            }
        }
        routes
    }

    /// Two hosts of each leaf switch, as far as it has them.
    pub fn ends(&self) -> Vec<u32> {
        let mut taken = vec![0; self.leaves as usize];
        let hosts = (0..self.hosts).filter(|&host| {
            let count = &mut taken[self.leaf_of[host as usize] as usize];
            *count += 1;
            *count <= 2
        });
        hosts.collect()
    }

    /// The ports of `switch` on a shortest path to `host`; empty if the host is on this switch.
    #[inline]
    pub fn next(&self, switch: u32, host: u32) -> &[u32] {
        let leaf = self.leaf_of[host as usize];
        let slot = (switch - self.hosts) * self.leaves + leaf;
        &self.sets[self.set_of[slot as usize] as usize]
    }
}

/// Hops from every node to `target` through switches.
fn distances(hosts: u32, ports: &[Vec<(u32, u32)>], target: u32) -> Vec<u32> {
    let mut distance = vec![APART; ports.len()];
    distance[target as usize] = 0;
    let mut queue = VecDeque::from([target]);
    while let Some(node) = queue.pop_front() {
        for &(_, peer) in &ports[node as usize] {
            if peer >= hosts && distance[peer as usize] > distance[node as usize] + 1 {
                distance[peer as usize] = distance[node as usize] + 1;
                queue.push_back(peer);
            }
        }
    }
    distance
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_paper_fat_tree_has_its_numbers() {
        let topology = Topology::fat_tree(5, 4, 16, 100, 400);
        assert_eq!((topology.hosts, topology.switches), (320, 56));
        assert_eq!(topology.links.len(), 480);
        topology.check().unwrap();
    }

    #[test]
    fn a_dragonfly_joins_all_groups() {
        let topology = Topology::dragonfly(9, 4, 2, 100);
        assert_eq!((topology.hosts, topology.switches), (72, 36));
        // 72 hosts, 6 cables in each of 9 groups, 36 between groups.
        assert_eq!(topology.links.len(), 72 + 54 + 36);
        topology.check().unwrap();
    }

    #[test]
    fn bad_files_are_refused() {
        type Harm = fn(&mut Topology);
        const HARMS: [(&str, Harm); 10] = [
            ("host to host", |t| t.links[1].b = 0),
            ("no link", |t| t.links.truncate(1)),
            ("two links", |t| t.links.push(t.links[0])),
            ("loop", |t| t.links[1].b = 1),
            ("no such node", |t| t.links[1].b = u32::MAX),
            ("no rate", |t| t.links[0].gbps = 0),
            ("other rate", |t| t.links[0].gbps = 400),
            ("far away", |t| t.links[0].delay_ns = u32::MAX),
            ("huge", |t| t.switches = u32::MAX),
            ("in two parts", |t| {
                t.switches = 2;
                t.links[1].b = 3;
            }),
        ];
        for (what, harm) in HARMS {
            let mut topology = Topology::single(2, 100, 1000);
            topology.check().unwrap();
            harm(&mut topology);
            assert!(topology.check().is_err(), "{what}");
        }
    }

    #[test]
    fn files_that_are_no_topology_are_refused() {
        for text in [
            "",
            "hosts = -1",
            "hosts = 2\nswitches = 1\nlinks = 3",
            "hosts = 2\nswitches = 1\nlinks = []\nmore = 1",
            "\0",
        ] {
            assert!(Topology::from_text(text).is_err(), "{text}");
        }
    }
}
