// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Topologies by their parameters, printed in the form of `ibnetdiscover`.

use crate::net::Attach;
use crate::node::MAX_SWITCH_PORTS;
use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

/// HCAs of one port, switches and links. HCAs are called `h0`, `h1` and so on, switches `s0` and so on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shape {
    /// Number of HCAs.
    pub hosts: usize,
    /// Ports of each switch.
    pub switches: Vec<u8>,
    /// What each link joins.
    pub links: Vec<[Attach; 2]>,
}

/// What is wrong with a description of a shape.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no topology: single:HOSTS (1 to 254), or fat-tree:PORTS (an even number from 2 to 64)")]
pub struct ShapeError(String);

impl Shape {
    /// Makes one switch with all HCAs; [`None`] if it has no ports for so many, or there is none.
    pub fn single(hosts: u8) -> Option<Self> {
        if !(1..=MAX_SWITCH_PORTS).contains(&hosts) {
            return None;
        }
        let link = |n: u8| [Attach::Host(n.into()), port(0, n + 1)];
        Some(Self {
            hosts: hosts.into(),
            switches: vec![hosts],
            links: (0..hosts).map(link).collect(),
        })
    }

    /// Makes a fat tree of three levels of switches with `ports` ports (k): k pods of k/2 leaves and k/2 aggregation switches, k²/4
    /// core switches, k³/4 HCAs. [`None`] unless `ports` is even and from 2 to 64.
    ///
    /// Al-Fares, Loukissas, Vahdat: A Scalable, Commodity Data Center Network Architecture, SIGCOMM 2008.
    pub fn fat_tree(ports: u8) -> Option<Self> {
        if ports % 2 != 0 || !(2..=64).contains(&ports) {
            return None;
        }
        let (k, half) = (usize::from(ports), usize::from(ports / 2));
        let leaf = |pod: usize, n: usize| pod * half + n;
        let aggregation = |pod: usize, n: usize| k * half + pod * half + n;
        let core = |n: usize| 2 * k * half + n;
        // CAST: Below 64.
        let number = |n: usize| n as u8 + 1;
        let mut links = Vec::new();
        for (pod, low) in (0..k).flat_map(|pod| (0..half).map(move |low| (pod, low))) {
            for n in 0..half {
                let host = leaf(pod, low) * half + n;
                links.push([Attach::Host(host), port(leaf(pod, low), number(n))]);
            }
        }
        for (pod, n) in (0..k).flat_map(|pod| (0..half).map(move |n| (pod, n))) {
            for other in 0..half {
                let up = port(leaf(pod, n), number(half + other));
                links.push([up, port(aggregation(pod, other), number(n))]);
            }
            for other in 0..half {
                let up = port(aggregation(pod, n), number(half + other));
                links.push([up, port(core(n * half + other), number(pod))]);
            }
        }
        Some(Self {
            hosts: k * half * half,
            switches: vec![ports; 2 * k * half + half * half],
            links,
        })
    }
}

impl FromStr for Shape {
    type Err = ShapeError;

    /// Reads `single:8` or `fat-tree:4`.
    fn from_str(text: &str) -> Result<Self, ShapeError> {
        let made = text.split_once(':').and_then(|(kind, count)| {
            let count = count.parse().ok()?;
            match kind {
                "single" => Self::single(count),
                "fat-tree" => Self::fat_tree(count),
                _ => None,
            }
        });
        made.ok_or_else(|| ShapeError(text.into()))
    }
}

fn port(switch: usize, port: u8) -> Attach {
    Attach::Switch { switch, port }
}

/// A node of the file.
struct Place {
    /// With the quotation marks.
    id: String,
    name: String,
    port: u8,
}

impl Place {
    fn new(at: Attach) -> Self {
        match at {
            Attach::Host(n) => Self {
                id: format!("\"H-{:016x}\"", (n as u64 + 1) << 16),
                name: format!("h{n}"),
                port: 1,
            },
            Attach::Switch { switch, port } => Self {
                id: format!("\"S-{:016x}\"", (switch as u64 + 1) << 40),
                name: format!("s{switch}"),
                port,
            },
        }
    }
}

impl Display for Shape {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut peers: BTreeMap<Attach, Attach> = BTreeMap::new();
        for &[a, b] in &self.links {
            peers.insert(a, b);
            peers.insert(b, a);
        }
        let lines = |f: &mut Formatter<'_>, range: std::ops::RangeInclusive<Attach>| {
            for (&own, &peer) in peers.range(range) {
                let (own, peer) = (Place::new(own), Place::new(peer));
                writeln!(
                    f,
                    "[{}]\t{}[{}]\t\t# \"{}\"",
                    own.port, peer.id, peer.port, peer.name
                )?;
            }
            writeln!(f)
        };
        for (switch, ports) in self.switches.iter().enumerate() {
            let Place { id, name, .. } = Place::new(port(switch, 0));
            writeln!(f, "Switch\t{ports} {id}\t\t# \"{name}\"")?;
            lines(f, port(switch, 0)..=port(switch, u8::MAX))?;
        }
        for host in 0..self.hosts {
            let Place { id, name, .. } = Place::new(Attach::Host(host));
            writeln!(f, "Ca\t1 {id}\t\t# \"{name}\"")?;
            lines(f, Attach::Host(host)..=Attach::Host(host))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_fat_tree_uses_each_port_once() {
        for ports in [2, 4, 8] {
            let Shape {
                hosts,
                switches,
                links,
            } = Shape::fat_tree(ports).unwrap();
            let k = usize::from(ports);
            assert_eq!((hosts, switches.len()), (k * k * k / 4, 5 * k * k / 4));
            let used: BTreeSet<Attach> = links.iter().flatten().copied().collect();
            assert_eq!(used.len(), 2 * links.len());
            assert_eq!(used.len(), hosts + switches.len() * k);
        }
    }

    #[test]
    fn shapes_are_read() {
        assert_eq!("single:8".parse(), Ok(Shape::single(8).unwrap()));
        assert_eq!("fat-tree:4".parse(), Ok(Shape::fat_tree(4).unwrap()));
        for bad in [
            "",
            "single",
            "single:0",
            "single:255",
            "fat-tree:3",
            "fat-tree:66",
            "ring:4",
        ] {
            assert_eq!(bad.parse::<Shape>(), Err(ShapeError(bad.into())));
        }
    }
}
