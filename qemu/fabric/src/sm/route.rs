// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Routes through switches that cannot deadlock: up, then down (up*/down*).
//!
//! The switches are put into an order. A packet goes up in the order and then down, and never up again: the links, taken with
//! their directions, are so used in an order too, and no cycle of full buffers can wait for itself. A switch from which a way
//! leads down to the destination takes the shortest such way, all others go up by the shortest way; each hop is so the
//! beginning of what the next switch does.

use std::cmp::Reverse;
use std::collections::VecDeque;

/// Switches and the links between them.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    /// For each switch its neighbours: own port and neighbour.
    pub neighbours: Vec<Vec<(u8, usize)>>,
    /// Switches to which an HCA is attached.
    pub leaves: Vec<usize>,
}

/// Routes between switches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Routes {
    /// By switch and destination: the ports on shortest ways; none to itself and to what is out of reach.
    pub ports: Vec<Vec<Vec<u8>>>,
    /// For each switch the port to its parent and the parent in the tree of multicast; none at the root.
    pub parents: Vec<Option<(u8, usize)>>,
}

impl Graph {
    /// Computes the routes. In a tree of levels as a fat tree is, every switch of the highest level is a root; if that
    /// reaches not everything, there is one root.
    pub fn routes(&self) -> Routes {
        let levels = self.distances(&self.leaves);
        let by_level: Vec<_> = levels
            .iter()
            .enumerate()
            .map(|(n, level)| (level.unwrap_or(usize::MAX), n))
            .collect();
        if let Some(ports) = self.up_down(&by_level) {
            return self.with_tree(ports, &by_level);
        }
        let root = (0..self.neighbours.len()).max_by_key(|&n| (levels[n], Reverse(n)));
        let from_root = self.distances(root.as_slice());
        let by_root: Vec<_> = from_root
            .iter()
            .enumerate()
            .map(|(n, distance)| (usize::MAX - distance.unwrap_or(usize::MAX), n))
            .collect();
        // What is in reach of the root is in reach of everything; the rest is another subnet.
        let ports = self.up_down(&by_root).unwrap_or_default();
        self.with_tree(ports, &by_root)
    }

    /// Returns the hops from the nearest of `sources`.
    fn distances(&self, sources: &[usize]) -> Vec<Option<usize>> {
        let mut distance = vec![None; self.neighbours.len()];
        let mut queue: VecDeque<usize> = sources.iter().copied().collect();
        for &source in sources {
            distance[source] = Some(0);
        }
        while let Some(at) = queue.pop_front() {
            for &(_, next) in &self.neighbours[at] {
                if distance[next].is_none() {
                    distance[next] = distance[at].map(|d: usize| d + 1);
                    queue.push_back(next);
                }
            }
        }
        distance
    }

    /// Computes the ports in an order of the switches; [`None`] if a switch with an HCA reaches another switch not by up and
    /// down. Of the others, two roots need no way to each other.
    fn up_down(&self, order: &[(usize, usize)]) -> Option<Vec<Vec<Vec<u8>>>> {
        let count = self.neighbours.len();
        let mut descending: Vec<usize> = (0..count).collect();
        descending.sort_by_key(|&n| Reverse(order[n]));
        let mut ports = vec![vec![Vec::new(); count]; count];
        for destination in 0..count {
            let down = self.down_to(destination, order);
            let mut cost = down.clone();
            for &at in &descending {
                if cost[at].is_none() {
                    let up = self.neighbours[at]
                        .iter()
                        .filter(|(_, n)| order[*n] > order[at]);
                    let best = up.filter_map(|&(_, next)| cost[next]).min();
                    if best.is_none() && self.leaves.contains(&at) {
                        return None;
                    }
                    cost[at] = best.map(|best| best + 1);
                }
            }
            for at in (0..count).filter(|&at| at != destination) {
                let goes_down = down[at].is_some();
                let leads = |&&(_, next): &&(u8, usize)| {
                    let (right_way, rest) = if goes_down {
                        (order[next] < order[at], down[next])
                    } else {
                        (order[next] > order[at], cost[next])
                    };
                    right_way && rest.map(|rest| rest + 1) == cost[at]
                };
                let found = self.neighbours[at].iter().filter(leads);
                ports[at][destination] = found.map(|&(port, _)| port).collect();
            }
        }
        Some(ports)
    }

    /// Returns the length of the shortest way down from each switch to one.
    fn down_to(&self, destination: usize, order: &[(usize, usize)]) -> Vec<Option<usize>> {
        let mut length = vec![None; self.neighbours.len()];
        length[destination] = Some(0);
        let mut queue = VecDeque::from([destination]);
        while let Some(at) = queue.pop_front() {
            for &(_, above) in &self.neighbours[at] {
                if order[above] > order[at] && length[above].is_none() {
                    length[above] = length[at].map(|l: usize| l + 1);
                    queue.push_back(above);
                }
            }
        }
        length
    }

    fn with_tree(&self, ports: Vec<Vec<Vec<u8>>>, order: &[(usize, usize)]) -> Routes {
        let count = self.neighbours.len();
        let mut parents = vec![None; count];
        let root = (0..count).max_by_key(|&n| order[n]);
        let mut queue: VecDeque<usize> = root.into_iter().collect();
        let mut seen = vec![false; count];
        for &root in &queue {
            seen[root] = true;
        }
        while let Some(at) = queue.pop_front() {
            for &(_, next) in &self.neighbours[at] {
                if seen[next] {
                    continue;
                }
                seen[next] = true;
                let back = self.neighbours[next].iter().find(|(_, n)| *n == at);
                parents[next] = back.map(|&(port, _)| (port, at));
                queue.push_back(next);
            }
        }
        Routes { ports, parents }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{HashMap, HashSet};

    /// Makes a graph of pairs of switches.
    fn graph(count: usize, pairs: &[(usize, usize)], leaves: Vec<usize>) -> Graph {
        let mut neighbours = vec![Vec::new(); count];
        for &(a, b) in pairs {
            for (from, to) in [(a, b), (b, a)] {
                let port = neighbours[from].len() as u8 + 1;
                neighbours[from].push((port, to));
            }
        }
        Graph { neighbours, leaves }
    }

    /// Follows every choice from `at` to `to`; calls `each` with the consecutive channels of each way.
    fn follow(
        graph: &Graph,
        routes: &Routes,
        at: usize,
        to: usize,
        last: Option<(usize, u8)>,
        hops: usize,
        each: &mut impl FnMut(Option<(usize, u8)>, (usize, u8)),
    ) {
        assert!(hops <= graph.neighbours.len(), "a loop on the way to {to}");
        if at == to {
            return;
        }
        let ports = &routes.ports[at][to];
        assert!(!ports.is_empty(), "{at} has no way to {to}");
        for &port in ports {
            let (_, next) = *graph.neighbours[at]
                .iter()
                .find(|(p, _)| *p == port)
                .unwrap();
            each(last, (at, port));
            follow(graph, routes, next, to, Some((at, port)), hops + 1, each);
        }
    }

    /// Checks that each switch with an HCA reaches every switch and that no cycle of channels waits for itself.
    fn check(graph: &Graph) {
        let routes = graph.routes();
        let count = graph.neighbours.len();
        let mut waits: HashMap<(usize, u8), HashSet<(usize, u8)>> = HashMap::new();
        for &from in &graph.leaves {
            for to in 0..count {
                follow(graph, &routes, from, to, None, 0, &mut |last, next| {
                    if let Some(last) = last {
                        waits.entry(last).or_default().insert(next);
                    }
                });
            }
        }
        // Take away channels that wait for nothing until none is left.
        while !waits.is_empty() {
            let before = waits.len();
            let keys: HashSet<_> = waits.keys().copied().collect();
            waits.retain(|_, on| on.iter().any(|channel| keys.contains(channel)));
            assert!(waits.len() < before, "a cycle: {waits:?}");
        }
    }

    #[test]
    fn a_fat_tree_uses_every_spine() {
        // Leaves 0 to 3, spines 4 and 5.
        let pairs: Vec<_> = (0..4).flat_map(|leaf| [(leaf, 4), (leaf, 5)]).collect();
        let graph = graph(6, &pairs, vec![0, 1, 2, 3]);
        check(&graph);
        let routes = graph.routes();
        for from in 0..4 {
            for to in (0..4).filter(|&to| to != from) {
                assert_eq!(routes.ports[from][to], [1, 2]);
            }
        }
    }

    #[test]
    fn two_links_between_switches_are_both_used() {
        let graph = graph(2, &[(0, 1), (0, 1)], vec![0, 1]);
        check(&graph);
        assert_eq!(graph.routes().ports[0][1], [1, 2]);
    }

    #[test]
    fn a_ring_has_no_cycle_of_waiting_channels() {
        for count in 3..9 {
            let pairs: Vec<_> = (0..count).map(|n| (n, (n + 1) % count)).collect();
            check(&graph(count, &pairs, (0..count).collect()));
            check(&graph(count, &pairs, vec![0]));
        }
    }

    #[test]
    fn nothing_to_route_is_no_error() {
        assert_eq!(graph(0, &[], vec![]).routes(), Routes::default());
        check(&graph(1, &[], vec![0]));
    }

    proptest! {
        #[test]
        fn every_connected_network_is_routed_without_a_cycle(
            count in 2usize..9,
            tree in prop::collection::vec(any::<prop::sample::Index>(), 8),
            extra in prop::collection::vec((0usize..9, 0usize..9), 0..12),
            leaves in prop::collection::vec(any::<bool>(), 9),
        ) {
            let mut pairs: Vec<_> = (1..count).map(|n| (n, tree[n - 1].index(n))).collect();
            pairs.extend(extra.into_iter().filter(|&(a, b)| a != b && a < count && b < count));
            let leaves = (0..count).filter(|&n| leaves[n]).collect();
            check(&graph(count, &pairs, leaves));
        }
    }
}
