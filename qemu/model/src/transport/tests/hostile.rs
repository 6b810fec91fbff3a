// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Peers and links that do what no good one does, and connections that break.

use super::*;
use qiao_fabric::wire::{
    psn_add, AtomicEth, Bth, Builder, Feth, ImmDt, Lrh, Operation, Reth, Transport, BTH_ACK_REQ,
};

/// First PSN of [`Config::default`].
const PSN: u32 = 0xff_fff0;

/// What [`packet`] puts into the headers that its operation has.
#[derive(Clone, Copy)]
struct Fields {
    psn: u32,
    va: u64,
    rkey: u32,
    length: u32,
}

impl Fields {
    fn new(psn: u32, va: u64, length: u32) -> Self {
        Self {
            psn,
            va,
            rkey: KEY,
            length,
        }
    }
}

/// Makes a request of node 0 to node 1.
fn packet(operation: Operation, fields: Fields, payload: &[u8]) -> Frame {
    let Fields {
        psn,
        va,
        rkey,
        length,
    } = fields;
    let lrh = Lrh {
        vl_lver: 0,
        sl_lnh: 0,
        dlid: 2.into(),
        length: 0.into(),
        slid: 1.into(),
    };
    let bth = Bth {
        opcode: 0,
        flags: 0,
        pkey: 0xffff.into(),
        dest_qp: 7.into(),
        ack_psn: (psn | BTH_ACK_REQ).into(),
    };
    let mut b = Builder::new(Frame::default(), lrh, None, bth, Transport::Rc, operation);
    let ext = operation.ext();
    if ext.feth {
        b = b.header(&Feth::new(FlushLevel::Range.to_wire(), placement::GLOBAL));
    }
    if ext.reth {
        b = b.header(&Reth {
            va: va.into(),
            rkey: rkey.into(),
            length: length.into(),
        });
    }
    if ext.atomic {
        b = b.header(&AtomicEth {
            va: va.into(),
            rkey: rkey.into(),
            swap_or_add: 1.into(),
            compare: 0.into(),
        });
    }
    if ext.imm {
        b = b.header(&ImmDt { data: [1, 2, 3, 4] });
    }
    if ext.ieth {
        b = b.header(&rkey.to_be_bytes());
    }
    b.payload(payload.len()).copy_from_slice(payload);
    b.finish()
}

impl Pair {
    /// Gives a packet to node 1.
    fn feed(&mut self, bytes: &Frame) {
        let packet = bytes.parse().unwrap();
        self.qps[1].packet_in(&packet, self.now, &mut self.nodes[1]);
    }

    /// Lets node 1 answer; returns operation, PSN and syndrome of what it sends.
    fn answers(&mut self) -> Vec<(Operation, u32, Option<u8>)> {
        while self.qps[1].pump(self.now, 64, &mut self.nodes[1]) {}
        let sent = std::mem::take(&mut self.nodes[1].out);
        let describe = |bytes: Frame| {
            let p = bytes.parse().unwrap();
            (p.operation, p.bth.psn(), p.aeth.map(|aeth| aeth.syndrome()))
        };
        sent.into_iter().map(describe).collect()
    }
}

const NAK_SEQUENCE: Option<u8> = Some(0x60);
const NAK_INVALID: Option<u8> = Some(0x61);
const NAK_ACCESS: Option<u8> = Some(0x62);

#[test]
fn a_duplicate_read_of_no_byte_is_answered_whatever_its_key() {
    let mut pair = Pair::new(1, &Config::default());
    let fields = Fields {
        rkey: 0,
        ..Fields::new(PSN, u64::MAX, 0)
    };
    let read = packet(Operation::ReadRequest, fields, &[]);
    for _ in 0..2 {
        pair.feed(&read);
        let answers = pair.answers();
        assert_eq!(answers.len(), 1);
        assert_eq!(
            (answers[0].0, answers[0].1),
            (Operation::ReadResponseOnly, PSN)
        );
    }
}

#[test]
fn a_duplicate_read_does_not_take_the_answers_of_later_ones() {
    use Operation::*;
    let mut pair = Pair::new(1, &Config::default());
    let first = packet(ReadRequest, Fields::new(PSN, 0, 1), &[]);
    let second = packet(ReadRequest, Fields::new(psn_add(PSN, 1), 0, 512), &[]);
    pair.feed(&first);
    pair.answers();
    pair.feed(&second);
    pair.feed(&first);
    let answers: Vec<_> = pair.answers().into_iter().map(|a| (a.0, a.1)).collect();
    let at = |n| psn_add(PSN, n);
    let want = [
        (ReadResponseOnly, PSN),
        (ReadResponseFirst, at(1)),
        (ReadResponseLast, at(2)),
    ];
    assert_eq!(answers, want);
}

#[test]
fn a_duplicate_read_that_asks_for_more_than_the_read_did_gets_nothing() {
    let mut pair = Pair::new(1, &Config::default());
    pair.feed(&packet(Operation::ReadRequest, Fields::new(PSN, 0, 1), &[]));
    pair.answers();
    pair.feed(&packet(
        Operation::ReadRequest,
        Fields::new(PSN, 0, 257),
        &[],
    ));
    assert_eq!(pair.answers(), []);
    assert_eq!(pair.qps[1].state(), QpState::Rts);
}

#[test]
fn duplicate_atomics_get_the_first_result_and_do_nothing() {
    let mut pair = Pair::new(1, &Config::default());
    let add = packet(Operation::FetchAdd, Fields::new(PSN, 0, 0), &[]);
    let before = pair.nodes[1].memory[0];
    pair.feed(&add);
    // One answer is waiting: the duplicate does not ask for a second one.
    pair.feed(&add);
    assert_eq!(pair.answers().len(), 1);
    pair.feed(&add);
    assert_eq!(pair.answers().len(), 1);
    assert_eq!(pair.nodes[1].memory[0], before.wrapping_add(1));
}

#[test]
fn a_duplicate_atomic_write_is_answered_and_stores_nothing() {
    let mut pair = Pair::new(1, &Config::default());
    let write = packet(Operation::AtomicWrite, Fields::new(PSN, 8, 8), &[1; 8]);
    pair.feed(&write);
    pair.answers();
    assert_eq!(pair.nodes[1].memory[8..16], [1; 8]);
    pair.nodes[1].memory[8..16].fill(2);
    pair.feed(&write);
    let answers = pair.answers();
    assert_eq!(answers.len(), 1);
    assert_eq!(
        (answers[0].0, answers[0].1),
        (Operation::ReadResponseOnly, PSN)
    );
    assert_eq!(pair.nodes[1].memory[8..16], [2; 8]);
}

#[test]
fn malformed_atomic_writes_and_flushes_are_refused() {
    use Operation::*;
    let good = Fields::new(PSN, 8, 8);
    let elsewhere = Fields { rkey: 1, ..good };
    for (operation, fields, payload, nak) in [
        (
            AtomicWrite,
            Fields { va: 12, ..good },
            &[0; 8][..],
            NAK_INVALID,
        ),
        (AtomicWrite, good, &[0; 7], NAK_INVALID),
        (AtomicWrite, good, &[0; 12], NAK_INVALID),
        (AtomicWrite, elsewhere, &[0; 8], NAK_ACCESS),
        (Flush, good, &[0; 4], NAK_INVALID),
        (Flush, elsewhere, &[], NAK_ACCESS),
        (
            Flush,
            Fields {
                va: u64::MAX,
                ..good
            },
            &[],
            NAK_ACCESS,
        ),
    ] {
        let mut pair = Pair::new(1, &Config::default());
        pair.feed(&packet(operation, fields, payload));
        assert_eq!(pair.answers(), [(Acknowledge, PSN, nak)], "{operation:?}");
        assert_eq!(pair.qps[1].state(), QpState::Err);
    }
}

#[test]
fn what_the_queue_pair_does_not_grant_is_refused() {
    use Operation::*;
    let config = Config {
        rights: access::REMOTE_READ | access::REMOTE_ATOMIC,
        ..Config::default()
    };
    for (operation, payload) in [(AtomicWrite, &[0; 8][..]), (Flush, &[])] {
        let mut pair = Pair::new(1, &config);
        pair.feed(&packet(operation, Fields::new(PSN, 8, 8), payload));
        assert_eq!(pair.answers(), [(Acknowledge, PSN, NAK_INVALID)]);
    }
}

#[test]
fn a_flush_to_persistence_is_refused() {
    let rights = access::FLUSH_GLOBAL | access::FLUSH_PERSISTENT;
    assert_eq!(flush_to_persistence(rights), CqeStatus::RemoteAccess);
    let rights = access::FLUSH_GLOBAL;
    assert_eq!(
        flush_to_persistence(rights),
        CqeStatus::RemoteInvalidRequest
    );
}

/// Returns what becomes of the request if the peer grants `rights`.
fn flush_to_persistence(rights: u32) -> CqeStatus {
    let config = Config {
        rights,
        ..Config::default()
    };
    let mut pair = Pair::new(1, &config);
    let mut request = wqe(0, SendOpcode::Flush, Vec::new(), 0);
    request.flush = Some(Flush {
        placement: placement::PERSISTENT,
        ..flush(FlushLevel::Region, 0)
    });
    pair.nodes[0].sends.push_back(request);
    pair.run(1000);
    pair.nodes[0].completions[0].status
}

#[test]
fn a_nak_waits_behind_a_long_read_and_for_its_turn() {
    let mut pair = Pair::new(1, &Config::default());
    // CAST: The size of the memory is small.
    let read = packet(
        Operation::ReadRequest,
        Fields::new(PSN, 0, SIZE as u32),
        &[],
    );
    pair.feed(&read);
    pair.feed(&packet(
        Operation::SendOnly,
        Fields::new(psn_add(PSN, 1000), 0, 0),
        &[],
    ));
    assert_eq!(pair.nodes[1].out.len(), 0, "only pump sends");
    assert!(pair.qps[1].pump(0, 5, &mut pair.nodes[1]));
    assert_eq!(pair.nodes[1].out.len(), 5);
    let answers = pair.answers();
    assert_eq!(answers.len(), SIZE / 256 + 1);
    let nak = (
        Operation::Acknowledge,
        psn_add(PSN, SIZE as u32 / 256),
        NAK_SEQUENCE,
    );
    assert_eq!(answers.last(), Some(&nak));
}

#[test]
fn a_connection_ends_when_its_nak_has_been_sent_and_takes_nothing_meanwhile() {
    let mut pair = Pair::new(1, &Config::default());
    pair.nodes[1].recvs.push_back(recv(0, 0, 100));
    pair.feed(&packet(
        Operation::SendMiddle,
        Fields::new(PSN, 0, 0),
        &[0; 256],
    ));
    pair.feed(&packet(Operation::SendOnly, Fields::new(PSN, 0, 0), &[1]));
    assert_eq!(pair.nodes[1].completions, []);
    assert_eq!(pair.answers(), [(Operation::Acknowledge, PSN, NAK_INVALID)]);
    assert_eq!(pair.qps[1].state(), QpState::Err);
    assert_eq!(pair.nodes[1].events, [EventType::QpRequestError]);
    assert_eq!(statuses(&pair.nodes[1]), [(0, CqeStatus::WrFlush)]);
}

#[test]
fn memory_that_goes_away_during_a_read_is_an_access_error_for_the_requester() {
    let mut pair = Pair::new(1, &Config::default());
    pair.nodes[0]
        .sends
        .push_back(wqe(0, SendOpcode::RdmaRead, vec![sge(0, 2048)], 0));
    pair.qps[0].pump(0, 8, &mut pair.nodes[0]);
    let read = pair.nodes[0].out.pop_front().unwrap();
    pair.feed(&read);
    pair.qps[1].pump(0, 3, &mut pair.nodes[1]);
    pair.nodes[1].memory.clear();
    pair.run(1000);
    assert_eq!(statuses(&pair.nodes[0]), [(0, CqeStatus::RemoteAccess)]);
    assert_eq!(pair.nodes[1].events, [EventType::QpAccessError]);
}

#[test]
fn a_key_that_cannot_be_invalidated_is_refused() {
    let mut pair = Pair::new(1, &Config::default());
    pair.nodes[1].recvs.push_back(recv(0, 0, 100));
    pair.feed(&packet(
        Operation::SendOnlyInvalidate,
        Fields::new(PSN, 0, 0),
        &[1],
    ));
    assert_eq!(pair.answers(), [(Operation::Acknowledge, PSN, NAK_ACCESS)]);
    assert_eq!(
        statuses(&pair.nodes[1]),
        [(0, CqeStatus::RemoteInvalidRequest)]
    );
}

#[test]
fn losses_while_the_receiver_is_not_ready_do_not_add_up() {
    let config = Config {
        retries: 1,
        ..Config::default()
    };
    let mut pair = Pair::new(1, &config);
    pair.nodes[0]
        .sends
        .push_back(wqe(0, SendOpcode::Send, vec![sge(0, 3)], 0));
    for round in 0..40 {
        pair.now = pair.now.max(pair.qps[0].deadline().unwrap_or(0));
        pair.qps[0].timer(pair.now, &mut pair.nodes[0]);
        pair.qps[0].pump(pair.now, 9, &mut pair.nodes[0]);
        let Some(request) = pair.nodes[0].out.pop_front() else {
            continue;
        };
        // Every second request is lost.
        if round % 2 == 0 {
            continue;
        }
        pair.feed(&request);
        pair.qps[1].pump(pair.now, 9, &mut pair.nodes[1]);
        let nak = pair.nodes[1].out.pop_front().expect("an RNR NAK");
        let nak = nak.parse().unwrap();
        pair.qps[0].packet_in(&nak, pair.now, &mut pair.nodes[0]);
    }
    assert_eq!(statuses(&pair.nodes[0]), []);
    assert_eq!(pair.qps[0].state(), QpState::Rts);
}

/// Whatever valid packets say, nothing panics, no queue grows without bound, and each receive request
/// completes at most once.
#[test]
fn any_packets_are_survived() {
    for seed in 0..CASES {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut pair = Pair::new(seed, &Config::default());
        for index in 0..4 {
            pair.nodes[1].recvs.push_back(recv(index, 0, 600));
            let opcode = [SendOpcode::Send, SendOpcode::RdmaRead][rng.random_range(0..2)];
            pair.nodes[1]
                .sends
                .push_back(wqe(index, opcode, vec![sge(0, 600)], 0));
        }
        for _ in 0..30 {
            let expected = pair.qps[1].responder.expected_psn();
            let length = [0, 1, 256, 257, 600, u32::MAX][rng.random_range(0..6)];
            let fields = Fields {
                psn: psn_add(
                    expected,
                    [0, 0, 0, 1, u32::MAX, u32::MAX - 2][rng.random_range(0..6)],
                ),
                va: [0, 8, u64::MAX, SIZE as u64 - 8][rng.random_range(0..4)],
                rkey: if rng.random_bool(0.9) {
                    KEY
                } else {
                    rng.random()
                },
                length,
            };
            let size = [0, 1, 255, 256, 257][rng.random_range(0..5)];
            let operation = Operation::ALL[rng.random_range(0..Operation::ALL.len())];
            let bytes = packet(operation, fields, &vec![7; size]);
            // The payload stands for the headers of responses.
            if let Ok(packet) = bytes.parse() {
                pair.qps[1].packet_in(&packet, pair.now, &mut pair.nodes[1]);
            }
            pair.now += 1000;
            if rng.random() {
                pair.qps[1].pump(pair.now, 4, &mut pair.nodes[1]);
            }
            pair.qps[1].timer(pair.now, &mut pair.nodes[1]);
            let queued = pair.qps[1].responder.queued();
            assert!(
                queued <= 30,
                "seed {seed}: {queued} replies after {operation:?}"
            );
        }
        let mut done: Vec<_> = pair.nodes[1]
            .completions
            .iter()
            .map(|c| (c.opcode.to_wire() & qiao_hw::cqe::OPCODE_RECV, c.index))
            .collect();
        let all = done.len();
        done.sort_unstable();
        done.dedup();
        assert_eq!(done.len(), all, "seed {seed}: completed twice");
    }
}

/// On a link too bad for the retries, each request completes once: those before the failure with
/// success, one with the reason, the others flushed.
#[test]
fn connections_that_break_complete_each_request_once() {
    let mut broken = 0;
    for seed in 0..CASES {
        let mut rng = SmallRng::seed_from_u64(seed);
        let faults = Faults {
            drop: 0.3,
            duplicate: 0.1,
            ..Faults::default()
        };
        let config = Config {
            faults,
            retries: 1,
            rnr_retries: 1,
            ..Config::default()
        };
        let mut pair = Pair::new(seed, &config);
        let count = rng.random_range(1..20);
        for index in 0..count {
            let opcode = [
                SendOpcode::Send,
                SendOpcode::RdmaRead,
                SendOpcode::RdmaWriteImm,
            ][rng.random_range(0..3)];
            pair.nodes[0]
                .sends
                .push_back(wqe(index, opcode, vec![sge(0, 600)], 0));
            pair.nodes[1].recvs.push_back(recv(index, 0, 600));
        }
        pair.run(100_000);
        let got = statuses(&pair.nodes[0]);
        let indices: Vec<_> = got.iter().map(|c| c.0).collect();
        assert_eq!(indices, (0..count).collect::<Vec<_>>(), "seed {seed}");
        let good = got.iter().take_while(|c| c.1 == CqeStatus::Success).count();
        broken += usize::from(good < got.len());
        let rest = got[good..].iter().skip(1);
        assert!(
            rest.clone().all(|c| c.1 == CqeStatus::WrFlush),
            "seed {seed}: {got:?}"
        );
        if let Some(reason) = got.get(good) {
            assert_eq!(reason.1, CqeStatus::RetryExceeded, "seed {seed}");
        }
    }
    assert!(broken > 0, "no connection broke");
}
