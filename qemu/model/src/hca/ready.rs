// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Queue pairs that may have something to send. Each port has a queue of its own, so that one that is held back holds back no
//! other.

use super::id_map::IdMap;
use std::collections::VecDeque;

/// Each queue pair once.
#[derive(Debug)]
pub struct Ready {
    queues: Vec<VecDeque<u32>>,
    /// The port in whose queue a queue pair waits. One that has moved is left behind in the old queue and skipped there.
    at: IdMap<usize>,
}

impl Ready {
    /// Makes the queues of so many ports.
    pub fn new(ports: usize) -> Self {
        Self {
            queues: vec![VecDeque::new(); ports],
            at: IdMap::default(),
        }
    }

    /// Adds a queue pair, by the index of its port, unless it is there.
    pub fn push(&mut self, qpn: u32, port: usize) {
        if self.at.insert(qpn, port) != Some(port) {
            self.queues[port].push_back(qpn);
        }
    }

    /// Takes the next queue pair of a port.
    pub fn pop(&mut self, port: usize) -> Option<u32> {
        while let Some(qpn) = self.queues[port].pop_front() {
            if self.at.get(&qpn) == Some(&port) {
                self.at.remove(&qpn);
                return Some(qpn);
            }
        }
        None
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.queues.iter_mut().for_each(VecDeque::clear);
        self.at.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_taken_once_and_from_the_port_where_it_is() {
        let mut ready = Ready::new(2);
        for (qpn, port) in [(7, 0), (8, 0), (7, 0), (7, 1), (9, 1)] {
            ready.push(qpn, port);
        }
        assert_eq!(ready.pop(0), Some(8));
        assert_eq!(ready.pop(0), None);
        assert_eq!([(); 3].map(|()| ready.pop(1)), [Some(7), Some(9), None]);
        // Away and back again.
        for port in [0, 1, 0] {
            ready.push(7, port);
        }
        assert_eq!(ready.pop(0), Some(7));
        assert_eq!((ready.pop(0), ready.pop(1)), (None, None));
    }
}
