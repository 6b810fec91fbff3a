// SPDX-License-Identifier: GPL-2.0 OR MIT

//! VL arbitration of an output port (IBTA 7.6.9).

use crate::mad::{Arbitration, VlWeight};

/// Bytes of a unit of `VLHighLimit`.
const LIMIT_UNIT: u32 = 4096;

/// Value of `VLHighLimit` without a limit.
const NO_LIMIT: u8 = 255;

/// Bytes of a unit of a weight.
const WEIGHT_UNIT: i32 = 64;

/// One table: weighted round robin.
#[derive(Clone, Debug, Default)]
struct Table {
    entries: Vec<VlWeight>,
    at: usize,
    /// Bytes that the entry `at` may still send. It may send a whole packet as long as anything is left.
    left: i32,
}

impl Table {
    fn new(table: &Arbitration) -> Self {
        let is_used = |entry: &&VlWeight| entry.weight > 0;
        let entries: Vec<VlWeight> = table.entries.iter().filter(is_used).copied().collect();
        let left = entries.first().map_or(0, budget);
        Self {
            entries,
            at: 0,
            left,
        }
    }

    /// Returns the VL whose turn it is among those that are ready, and moves to its entry.
    fn next(&mut self, ready: impl Fn(u8) -> bool) -> Option<u8> {
        // The entry that has the turn, each other one, and it again with a new budget.
        for _ in 0..=self.entries.len() {
            let entry = *self.entries.get(self.at)?;
            if self.left > 0 && ready(entry.vl & 0xf) {
                return Some(entry.vl & 0xf);
            }
            self.at = (self.at + 1) % self.entries.len();
            self.left = budget(&self.entries[self.at]);
        }
        None
    }

    fn sent(&mut self, bytes: usize) {
        // CAST: A packet is shorter than 8 KiB.
        self.left -= bytes as i32;
    }
}

fn budget(entry: &VlWeight) -> i32 {
    i32::from(entry.weight) * WEIGHT_UNIT
}

/// The arbiter of a port.
#[derive(Clone, Debug, Default)]
pub struct Arbiter {
    low: Table,
    high: Table,
    limit: u8,
    /// Bytes of high priority since the last packet of low priority.
    high_sent: u32,
    from_high: bool,
}

impl Arbiter {
    /// Makes an arbiter of the tables of low and high priority and `VLHighLimit`.
    pub fn new(tables: &[Arbitration; 2], limit: u8) -> Self {
        Self {
            low: Table::new(&tables[0]),
            high: Table::new(&tables[1]),
            limit,
            high_sent: 0,
            from_high: false,
        }
    }

    /// Returns the data VL that sends next, among those that are ready; [`None`] if no table names one that is.
    pub fn next(&mut self, ready: impl Fn(u8) -> bool) -> Option<u8> {
        let may_go_on =
            self.limit == NO_LIMIT || self.high_sent <= u32::from(self.limit) * LIMIT_UNIT;
        let high = self.high.next(&ready);
        if let (Some(vl), true) = (high, may_go_on) {
            self.from_high = true;
            return Some(vl);
        }
        let low = self.low.next(&ready);
        self.from_high = low.is_none();
        // What the limit holds back goes on if nothing of low priority waits.
        low.or(high)
    }

    /// Notes the size of the packet that the VL of the last [`Arbiter::next`] has sent.
    pub fn sent(&mut self, bytes: usize) {
        if self.from_high {
            self.high.sent(bytes);
            // CAST: A packet is shorter than 8 KiB.
            self.high_sent = self.high_sent.saturating_add(bytes as u32);
        } else {
            self.low.sent(bytes);
            self.high_sent = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromZeros;

    fn table(entries: &[(u8, u8)]) -> Arbitration {
        let mut table = Arbitration::new_zeroed();
        for (out, &(vl, weight)) in table.entries.iter_mut().zip(entries) {
            (out.vl, out.weight) = (vl, weight);
        }
        table
    }

    /// Sends `count` packets of `bytes` with everything ready; how many of each VL.
    fn shares(arbiter: &mut Arbiter, count: usize, bytes: usize) -> [usize; 16] {
        let mut sent = [0; 16];
        for _ in 0..count {
            let vl = arbiter.next(|_| true).unwrap();
            arbiter.sent(bytes);
            sent[usize::from(vl)] += 1;
        }
        sent
    }

    #[test]
    fn weights_are_shares_of_bytes() {
        let tables = [table(&[(0, 64), (1, 128), (2, 0), (3, 64)]), table(&[])];
        let mut arbiter = Arbiter::new(&tables, 0);
        let sent = shares(&mut arbiter, 400, 1024);
        assert_eq!(sent[..4], [100, 200, 0, 100]);
    }

    #[test]
    fn high_priority_goes_first_up_to_its_limit() {
        let tables = [table(&[(0, 255)]), table(&[(1, 255)])];
        let mut arbiter = Arbiter::new(&tables, NO_LIMIT);
        assert_eq!(shares(&mut arbiter, 100, 4096)[..2], [0, 100]);
        // One block of 4096 bytes: two packets of high priority, then one of low.
        let mut arbiter = Arbiter::new(&tables, 1);
        assert_eq!(shares(&mut arbiter, 99, 4096)[..2], [33, 66]);
        // None: they take turns, but what is alone goes on.
        let mut arbiter = Arbiter::new(&tables, 0);
        assert_eq!(shares(&mut arbiter, 100, 4096)[..2], [50, 50]);
        for _ in 0..5 {
            assert_eq!(arbiter.next(|vl| vl == 1), Some(1));
            arbiter.sent(4096);
        }
    }

    #[test]
    fn what_no_table_names_is_not_sent() {
        let mut arbiter = Arbiter::new(&[table(&[(0, 9)]), table(&[])], 0);
        assert_eq!(arbiter.next(|vl| vl == 1), None);
        assert_eq!(arbiter.next(|_| false), None);
        assert_eq!(arbiter.next(|_| true), Some(0));
    }
}
