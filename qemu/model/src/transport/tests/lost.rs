// SPDX-License-Identifier: GPL-2.0 OR MIT

//! One packet that is lost, of requests that are answered by themselves: the request, or its answer.

use super::*;

/// Requests that are answered by themselves.
const ANSWERED: [SendOpcode; 5] = [
    SendOpcode::RdmaRead,
    SendOpcode::FetchAdd,
    SendOpcode::CompareSwap,
    SendOpcode::AtomicWrite,
    SendOpcode::Flush,
];

/// Where the data is at the requester.
const HERE: usize = 8;
/// What the request is about; not at address 0, so that an address that got lost shows.
const THERE: usize = 1024;

impl Pair {
    /// Lets a node send all that it can; returns that.
    fn sent_by(&mut self, node: usize) -> Vec<Frame> {
        while self.qps[node].pump(self.now, 64, &mut self.nodes[node]) {}
        std::mem::take(&mut self.nodes[node].out).into()
    }

    fn deliver(&mut self, node: usize, packets: &[Frame]) {
        for packet in packets {
            let packet = packet.parse().unwrap();
            self.qps[node].packet_in(&packet, self.now, &mut self.nodes[node]);
        }
    }

    /// Lets the requester find that nothing has come.
    fn time_out(&mut self) {
        self.now = self.qps[0].deadline().expect("a timer runs");
        self.qps[0].timer(self.now, &mut self.nodes[0]);
    }

    fn word(&self, node: usize, at: usize) -> u64 {
        u64::from_le_bytes(self.nodes[node].memory[at..at + 8].try_into().unwrap())
    }
}

/// Returns a connection whose requester has a request.
fn with_request(opcode: SendOpcode) -> Pair {
    let mut pair = Pair::new(1, &Config::default());
    let mut request = wqe(0, opcode, vec![sge(HERE, 8)], THERE as u64);
    if opcode == SendOpcode::CompareSwap {
        // It hits.
        request.atomic.1 = pair.word(1, THERE);
    }
    if opcode == SendOpcode::Flush {
        request.data = Data::Sges(Vec::new());
        request.length = 0;
        request.flush = Some(flush(FlushLevel::Range, 8));
    }
    pair.nodes[0].sends.push_back(request);
    pair
}

/// Returns what both words are when the request has been executed once.
fn executed(opcode: SendOpcode, [here, there]: [u64; 2]) -> [u64; 2] {
    match opcode {
        SendOpcode::RdmaRead => [there, there],
        SendOpcode::FetchAdd => [there, there.wrapping_add(3)],
        SendOpcode::CompareSwap => [there, 3],
        SendOpcode::AtomicWrite => [here, here],
        _ => [here, there],
    }
}

#[test]
fn a_request_that_was_lost_is_repeated_bit_by_bit() {
    for opcode in ANSWERED {
        let mut pair = with_request(opcode);
        let before = [pair.word(0, HERE), pair.word(1, THERE)];
        let lost = pair.sent_by(0);
        assert_eq!(lost.len(), 1, "{opcode:?}");
        pair.time_out();
        let repeated = pair.sent_by(0);
        assert_eq!(repeated, lost, "{opcode:?}");
        pair.deliver(1, &repeated);
        let answers = pair.sent_by(1);
        pair.deliver(0, &answers);
        assert_eq!(statuses(&pair.nodes[0]), [(0, CqeStatus::Success)]);
        let after = [pair.word(0, HERE), pair.word(1, THERE)];
        assert_eq!(after, executed(opcode, before), "{opcode:?}");
    }
}

#[test]
fn an_answer_that_was_lost_is_repeated_and_nothing_is_executed_twice() {
    for opcode in ANSWERED {
        let mut pair = with_request(opcode);
        let before = [pair.word(0, HERE), pair.word(1, THERE)];
        let request = pair.sent_by(0);
        pair.deliver(1, &request);
        let lost = pair.sent_by(1);
        assert_eq!(lost.len(), 1, "{opcode:?}");
        assert_eq!(pair.word(1, THERE), executed(opcode, before)[1]);
        // The peer's owner goes on with the word.
        let later = if opcode == SendOpcode::RdmaRead {
            before[1]
        } else {
            77
        };
        pair.nodes[1].memory[THERE..THERE + 8].copy_from_slice(&later.to_le_bytes());
        pair.time_out();
        let repeated = pair.sent_by(0);
        pair.deliver(1, &repeated);
        let answers = pair.sent_by(1);
        assert_eq!(answers, lost, "{opcode:?}");
        pair.deliver(0, &answers);
        assert_eq!(statuses(&pair.nodes[0]), [(0, CqeStatus::Success)]);
        let after = [pair.word(0, HERE), pair.word(1, THERE)];
        assert_eq!(after, [executed(opcode, before)[0], later], "{opcode:?}");
    }
}

#[test]
fn an_acknowledge_of_what_follows_completes_nothing_that_waits_for_its_answer() {
    for opcode in ANSWERED {
        let mut pair = with_request(opcode);
        pair.nodes[0]
            .sends
            .push_back(wqe(1, SendOpcode::RdmaWrite, vec![sge(0, 1)], 0));
        let requests = pair.sent_by(0);
        assert_eq!(requests.len(), 2, "{opcode:?}");
        pair.deliver(1, &requests);
        let answers = pair.sent_by(1);
        assert_eq!(answers.len(), 2, "{opcode:?}");
        // The answer is lost, the acknowledge of the WRITE is not.
        pair.deliver(0, &answers[1..]);
        assert_eq!(statuses(&pair.nodes[0]), [], "{opcode:?}");
        pair.run(1000);
        let done = CqeStatus::Success;
        assert_eq!(statuses(&pair.nodes[0]), [(0, done), (1, done)]);
    }
}
