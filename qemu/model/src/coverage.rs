// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What of the interface has been used, so that tests show what they leave out.

use crate::transport::transitions;
use qiao_fabric::wire::Transport;
use qiao_hw::bar::REGISTERS;
use qiao_hw::cmd::{Opcode, Status};
use qiao_hw::cqe::{CqeOpcode, CqeStatus};
use qiao_hw::describe::Numbers;
use qiao_hw::event::EventType;
use qiao_hw::qp::QpState;
use qiao_hw::wqe::SendOpcode;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// Most numbers of a set, each smaller than this.
const NUMBERS: usize = 256;

/// States of a queue pair, each smaller than this.
const STATES: usize = 16;

type Counts = [AtomicU64; NUMBERS];

/// How often each part of the interface was used. All HCAs of a model share one.
#[derive(Debug)]
pub struct Coverage {
    reads: Counts,
    writes: Counts,
    commands: Counts,
    statuses: Counts,
    requests: Counts,
    completions: Counts,
    completion_statuses: Counts,
    events: Counts,
    rc: Counts,
    uc: Counts,
    ud: Counts,
}

/// The result: for each table, how often each of its entries was used.
pub type Tables = BTreeMap<String, BTreeMap<String, u64>>;

fn counts() -> Counts {
    [const { AtomicU64::new(0) }; NUMBERS]
}

fn count(counts: &Counts, number: usize) {
    if let Some(count) = counts.get(number) {
        count.fetch_add(1, Ordering::Relaxed);
    }
}

fn register_at(offset: usize) -> Option<usize> {
    let has = |offset| {
        move |r: &qiao_hw::describe::Register| (r.offset..r.offset + r.size).contains(&offset)
    };
    REGISTERS.iter().position(has(offset))
}

impl Default for Coverage {
    fn default() -> Self {
        Self {
            reads: counts(),
            writes: counts(),
            commands: counts(),
            statuses: counts(),
            requests: counts(),
            completions: counts(),
            completion_statuses: counts(),
            events: counts(),
            rc: counts(),
            uc: counts(),
            ud: counts(),
        }
    }
}

impl Coverage {
    /// Counts a read of the register at `offset`.
    pub fn read(&self, offset: usize) {
        if let Some(register) = register_at(offset) {
            count(&self.reads, register);
        }
    }

    /// Counts a write to the register at `offset`.
    pub fn written(&self, offset: usize) {
        if let Some(register) = register_at(offset) {
            count(&self.writes, register);
        }
    }

    /// Counts a command and how it ended.
    pub fn command(&self, opcode: u16, status: u8) {
        count(&self.commands, opcode.into());
        count(&self.statuses, status.into());
    }

    /// Counts a send request.
    pub fn request(&self, opcode: SendOpcode) {
        count(&self.requests, opcode.to_wire().into());
    }

    /// Counts a completion.
    pub fn completion(&self, opcode: CqeOpcode, status: CqeStatus) {
        count(&self.completions, opcode.to_wire().into());
        count(&self.completion_statuses, status.to_wire().into());
    }

    /// Counts an event.
    pub fn event(&self, event: EventType) {
        count(&self.events, event.to_wire().into());
    }

    /// Counts a change of state of a queue pair.
    pub fn transition(&self, service: Transport, from: QpState, to: QpState) {
        count(self.transitions(service), transition(from, to));
    }

    fn transitions(&self, service: Transport) -> &Counts {
        match service {
            Transport::Rc => &self.rc,
            Transport::Uc => &self.uc,
            Transport::Ud => &self.ud,
        }
    }

    /// Returns how often everything that the interface has was used.
    pub fn tables(&self) -> Tables {
        let mut tables = Tables::new();
        let mut add = |name: &str, entries| tables.insert(name.into(), entries);
        add("registers read", registers(&self.reads, "wo"));
        add("registers written", registers(&self.writes, "ro"));
        add("commands", named(&self.commands, Opcode::NUMBERS));
        add("command statuses", named(&self.statuses, Status::NUMBERS));
        add("send requests", named(&self.requests, SendOpcode::NUMBERS));
        add("completions", named(&self.completions, CqeOpcode::NUMBERS));
        let statuses = named(&self.completion_statuses, CqeStatus::NUMBERS);
        add("completion statuses", statuses);
        add("events", named(&self.events, EventType::NUMBERS));
        for (name, service) in [
            ("RC", Transport::Rc),
            ("UC", Transport::Uc),
            ("UD", Transport::Ud),
        ] {
            let used = self.transitions(service);
            let entry = |(from, to)| {
                let count = used[transition(from, to)].load(Ordering::Relaxed);
                (format!("{from:?} to {to:?}"), count)
            };
            let entries = transitions(service).map(entry).collect();
            add(&format!("state transitions of {name}"), entries);
        }
        tables
    }
}

/// Returns the place of a transition in its table.
fn transition(from: QpState, to: QpState) -> usize {
    usize::from(from.to_wire()) * STATES + usize::from(to.to_wire())
}

/// Returns the counts of registers but those with the given access.
fn registers(counts: &Counts, without: &str) -> BTreeMap<String, u64> {
    let used = REGISTERS
        .iter()
        .zip(counts)
        .filter(|(r, _)| r.access != without);
    used.map(|(r, count)| (r.name.into(), count.load(Ordering::Relaxed)))
        .collect()
}

fn named(counts: &Counts, set: Numbers) -> BTreeMap<String, u64> {
    let entry = |number: &qiao_hw::describe::Number| {
        // CAST: The test below has them in range.
        let count = &counts[number.value as usize];
        (number.name.into(), count.load(Ordering::Relaxed))
    };
    set.numbers.iter().map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use qiao_hw::bar::reg;

    #[test]
    fn everything_has_a_place_of_its_own() {
        let coverage = Coverage::default();
        assert!(REGISTERS.len() <= NUMBERS);
        let unused = coverage.tables();
        assert!(unused.values().flat_map(BTreeMap::values).all(|&n| n == 0));
        let alone =
            |service| unused[&format!("state transitions of {service}")].contains_key("Rts to Sqe");
        assert_eq!(["RC", "UC", "UD"].map(alone), [false, true, true]);

        coverage.read(reg::STATUS);
        coverage.read(reg::CMDQ_BASE + 4);
        coverage.read(0x3fc);
        coverage.written(reg::CMDQ_PRODUCER);
        coverage.command(Opcode::CreateQp.to_wire(), Status::Busy.to_wire());
        coverage.command(0x7777, Status::BadOpcode.to_wire());
        coverage.request(SendOpcode::FetchAdd);
        coverage.completion(CqeOpcode::Recv, CqeStatus::WrFlush);
        coverage.event(EventType::DeviceFatal);
        coverage.transition(Transport::Uc, QpState::Init, QpState::Rtr);
        let used = coverage.tables();
        let mut names: Vec<String> = Vec::new();
        for (table, entries) in &used {
            for (name, _) in entries.iter().filter(|(_, &n)| n == 1) {
                names.push(format!("{table}: {name}"));
            }
        }
        let want = [
            "command statuses: BadOpcode",
            "command statuses: Busy",
            "commands: CreateQp",
            "completion statuses: WrFlush",
            "completions: Recv",
            "events: DeviceFatal",
            "registers read: CMDQ_BASE",
            "registers read: STATUS",
            "registers written: CMDQ_PRODUCER",
            "send requests: FetchAdd",
            "state transitions of UC: Init to Rtr",
        ];
        assert_eq!(names, want);
    }
}
