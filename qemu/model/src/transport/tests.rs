// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Two queue pairs over a link with faults, against a reference of what must come out.

use super::node::{Node, KEY};
use super::*;
use qiao_fabric::link::{Arrival, End, Faults, Link};
use qiao_fabric::wire::Transport;
use qiao_hw::qp::{access, attr, Mtu, QpAttr, QpState};
use qiao_hw::wqe::placement;
use rand::{rngs::SmallRng, Rng, SeedableRng};
use std::collections::VecDeque;

mod hostile;
mod lost;
mod unreliable;

const QKEY: u32 = 0x1111_1111;
const SIZE: usize = 1 << 16;

struct Config {
    service: Transport,
    mtu: Mtu,
    psn: u32,
    faults: Faults,
    reads: u8,
    retries: u8,
    rnr_retries: u8,
    rights: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            service: Transport::Rc,
            mtu: Mtu::Mtu256,
            psn: 0xff_fff0,
            faults: Faults::default(),
            reads: 4,
            retries: 7,
            rnr_retries: 7,
            rights: access::REMOTE_READ
                | access::REMOTE_WRITE
                | access::REMOTE_ATOMIC
                | access::FLUSH_GLOBAL
                | access::FLUSH_PERSISTENT,
        }
    }
}

/// A device whose memory looks like no other's with another `fill`.
fn node(lid: u16, fill: u8) -> Node {
    let memory = (0..SIZE)
        .map(|i| (i as u8).wrapping_mul(31) ^ fill)
        .collect();
    Node::new(9 - u32::from(lid), lid, memory)
}

struct Pair {
    qps: [Qp; 2],
    nodes: [Node; 2],
    link: Link,
    now: u64,
}

impl Pair {
    fn new(seed: u64, config: &Config) -> Self {
        let mut pair = Self {
            qps: [Qp::new(config.service), Qp::new(config.service)],
            nodes: [node(1, 0), node(2, 0x5a)],
            link: Link::new(seed, config.faults),
            now: 0,
        };
        for i in 0..2 {
            let mut a = QpAttr::zeroed();
            a.port = 1;
            a.access.set(config.rights);
            a.path.dlid.set(2 - i as u32);
            a.qkey.set(QKEY);
            a.path_mtu = config.mtu.to_wire();
            a.dest_qpn.set(7 + i as u32);
            a.rq_psn.set(config.psn);
            a.sq_psn.set(config.psn);
            a.max_rd_atomic = config.reads;
            a.max_dest_rd_atomic = config.reads;
            a.min_rnr_timer = 1;
            a.timeout = 8;
            a.retry_count = config.retries;
            a.rnr_retry = config.rnr_retries;
            let mut mask = u32::MAX & !attr::CUR_STATE;
            if config.service == Transport::Ud {
                mask &= !attr::PATH_MTU;
            }
            for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
                a.state = state.to_wire();
                pair.qps[i].modify(mask, &a, &mut pair.nodes[i]).unwrap();
            }
        }
        pair
    }

    /// Runs until nothing is in flight and no timer waits, or `rounds` have passed.
    fn run(&mut self, rounds: usize) {
        for _ in 0..rounds {
            let mut busy = false;
            for (i, end) in [End::A, End::B].into_iter().enumerate() {
                busy |= self.qps[i].pump(self.now, 8, &mut self.nodes[i]);
                while let Some(p) = self.nodes[i].out.pop_front() {
                    self.link.send(end, self.now, p);
                    busy = true;
                }
            }
            for _ in 0..6 {
                let Some((end, Arrival::Packet(bytes))) = self.link.receive(self.now) else {
                    break;
                };
                busy = true;
                let i = usize::from(end == End::B);
                if let Ok(packet) = bytes.parse() {
                    self.qps[i].packet_in(&packet, self.now, &mut self.nodes[i]);
                }
            }
            if busy {
                self.now += 100;
                continue;
            }
            let wake = [
                self.qps[0].deadline(),
                self.qps[1].deadline(),
                self.link.next_due(),
            ];
            let Some(wake) = wake.into_iter().flatten().min() else {
                return;
            };
            self.now = self.now.max(wake);
            for i in 0..2 {
                if self.qps[i].deadline().is_some_and(|t| t <= self.now) {
                    self.qps[i].timer(self.now, &mut self.nodes[i]);
                }
            }
        }
        panic!("still busy after {rounds} rounds");
    }
}

fn wqe(index: u32, opcode: SendOpcode, sges: Vec<Sge>, remote: u64) -> SendWqe {
    SendWqe {
        index,
        opcode,
        signaled: true,
        solicited: false,
        fence: false,
        imm: index.to_be_bytes(),
        remote: (remote, KEY),
        atomic: (3, 5),
        flush: None,
        datagram: None,
        length: sges.iter().map(|s| s.length).sum(),
        data: Data::Sges(sges),
        error: None,
    }
}

fn flush(level: FlushLevel, length: u32) -> Flush {
    Flush {
        length,
        placement: placement::GLOBAL,
        level,
    }
}

fn sge(addr: usize, length: usize) -> Sge {
    Sge {
        addr: addr as u64,
        length: length as u32,
        lkey: KEY,
    }
}

fn recv(index: u32, addr: usize, length: usize) -> RecvWqe {
    RecvWqe {
        index,
        sges: vec![sge(addr, length)],
        length: length as u64,
        error: None,
    }
}

/// One random run: node 0 sends a mix of requests, each into places of its own, and the outcome is
/// compared with the requests executed in order on copies of the memories.
fn random_run(seed: u64, loss: f64) {
    const SLOT: usize = 1024;
    let mut rng = SmallRng::seed_from_u64(seed);
    let config = Config {
        mtu: if rng.random() {
            Mtu::Mtu256
        } else {
            Mtu::Mtu512
        },
        psn: if rng.random() {
            0xff_fffd
        } else {
            rng.random_range(0..1 << 24)
        },
        reads: rng.random_range(1..5),
        faults: Faults {
            drop: loss,
            corrupt: loss / 2.0,
            duplicate: loss,
            reorder: loss,
            reorder_ns: 2000,
            delay_ns: rng.random_range(0..3) * 100,
            ..Faults::default()
        },
        ..Config::default()
    };
    let mut pair = Pair::new(seed, &config);
    let mut want = [pair.nodes[0].memory.clone(), pair.nodes[1].memory.clone()];
    let (mut want_send, mut want_recv) = (Vec::new(), Vec::new());
    let count = rng.random_range(1..12u32);
    let mut late = VecDeque::new();
    for index in 0..count {
        let length = [0, 1, 255, 256, 257, SLOT][rng.random_range(0..6)];
        let (here, there) = (index as usize * SLOT, (20 + index as usize) * SLOT);
        let cut = rng.random_range(0..=length);
        let sges = vec![sge(here, cut), sge(here + cut, length - cut)];
        let opcode = [
            SendOpcode::Send,
            SendOpcode::SendImm,
            SendOpcode::RdmaWrite,
            SendOpcode::RdmaWriteImm,
            SendOpcode::RdmaRead,
            SendOpcode::FetchAdd,
            SendOpcode::CompareSwap,
            SendOpcode::AtomicWrite,
            SendOpcode::Flush,
        ][rng.random_range(0..9)];
        let mut w = wqe(index, opcode, sges, there as u64);
        w.fence = rng.random();
        w.signaled = rng.random_bool(0.8);
        let [a, b] = &mut want;
        let mut byte_len = 0;
        match opcode {
            SendOpcode::RdmaRead => {
                a[here..here + length].copy_from_slice(&b[there..there + length]);
                byte_len = length;
            }
            SendOpcode::FetchAdd | SendOpcode::CompareSwap => {
                w.data = Data::Sges(vec![sge(here, 8)]);
                w.length = 8;
                byte_len = 8;
                let old = u64::from_le_bytes(b[there..there + 8].try_into().unwrap());
                if rng.random() {
                    w.atomic.1 = old;
                }
                let operation = if opcode == SendOpcode::FetchAdd {
                    Atomic::FetchAdd(w.atomic.0)
                } else {
                    Atomic::CompareSwap {
                        compare: w.atomic.1,
                        swap: w.atomic.0,
                    }
                };
                a[here..here + 8].copy_from_slice(&old.to_le_bytes());
                b[there..there + 8].copy_from_slice(&operation.apply(old).to_le_bytes());
            }
            SendOpcode::AtomicWrite => {
                w.data = if rng.random() {
                    Data::Inline(a[here..here + 8].to_vec())
                } else {
                    Data::Sges(vec![sge(here, 8)])
                };
                w.length = 8;
                b[there..there + 8].copy_from_slice(&a[here..here + 8]);
            }
            SendOpcode::Flush => {
                w.data = Data::Sges(Vec::new());
                w.length = 0;
                w.flush = Some(flush(FlushLevel::Range, length as u32));
            }
            _ => b[there..there + length].copy_from_slice(&a[here..here + length]),
        }
        let takes_recv = matches!(
            opcode,
            SendOpcode::Send | SendOpcode::SendImm | SendOpcode::RdmaWriteImm
        );
        if takes_recv {
            let r = recv(index, there, SLOT);
            if late.is_empty() && rng.random_bool(0.7) {
                pair.nodes[1].recvs.push_back(r);
            } else {
                late.push_back(r);
            }
            let imm = matches!(opcode, SendOpcode::SendImm | SendOpcode::RdmaWriteImm);
            want_recv.push((index, length as u32, imm.then_some(index.to_be_bytes())));
        }
        if w.signaled {
            want_send.push((index, byte_len as u32));
        }
        pair.nodes[0].sends.push_back(w);
    }
    if !late.is_empty() {
        // The receiver is not ready at first.
        for _ in 0..20 {
            pair.qps[0].pump(pair.now, 4, &mut pair.nodes[0]);
            while let Some(p) = pair.nodes[0].out.pop_front() {
                pair.link.send(End::A, pair.now, p);
            }
            while let Some((end, Arrival::Packet(bytes))) = pair.link.receive(pair.now) {
                let i = usize::from(end == End::B);
                let packet = bytes.parse().unwrap();
                pair.qps[i].packet_in(&packet, pair.now, &mut pair.nodes[i]);
            }
            pair.now += 500;
        }
        pair.nodes[1].recvs.extend(late);
    }
    pair.run(100_000);

    let got: Vec<_> = pair.nodes[0]
        .completions
        .iter()
        .map(|c| (c.index, c.byte_len))
        .collect();
    assert!(
        pair.nodes
            .iter()
            .flat_map(|n| &n.completions)
            .all(|c| c.status == CqeStatus::Success),
        "seed {seed}: {:?} {:?}",
        pair.nodes[0].completions,
        pair.nodes[1].completions
    );
    assert_eq!(got, want_send, "seed {seed}: send completions");
    let got: Vec<_> = pair.nodes[1]
        .completions
        .iter()
        .map(|c| (c.index, c.byte_len, c.imm))
        .collect();
    assert_eq!(got, want_recv, "seed {seed}: receive completions");
    for (i, (node, want)) in pair.nodes.iter().zip(&want).enumerate() {
        assert!(node.memory == *want, "seed {seed}: memory of node {i}");
    }
}

/// Cases per test: enough to mean something in a debug build, many in a release build.
const CASES: u64 = if cfg!(debug_assertions) {
    2_000
} else {
    100_000
};

#[test]
fn everything_arrives_once_and_in_order_on_a_clean_link() {
    for seed in 0..CASES {
        random_run(seed, 0.0);
    }
}

#[test]
fn everything_arrives_once_and_in_order_on_a_bad_link() {
    for seed in 0..CASES {
        random_run(seed, 0.03);
    }
}

fn one(config: &Config, w: SendWqe, recvs: Vec<RecvWqe>) -> Pair {
    let mut pair = Pair::new(1, config);
    pair.nodes[0].sends.push_back(w);
    pair.nodes[0]
        .sends
        .push_back(wqe(1, SendOpcode::Send, vec![sge(0, 1)], 0));
    pair.nodes[1].recvs.extend(recvs);
    pair.run(100_000);
    pair
}

fn statuses(node: &Node) -> Vec<(u32, CqeStatus)> {
    node.completions
        .iter()
        .map(|c| (c.index, c.status))
        .collect()
}

#[test]
fn a_message_longer_than_the_receive_fails_on_both_sides_and_flushes() {
    let w = wqe(0, SendOpcode::Send, vec![sge(0, 600)], 0);
    let pair = one(&Config::default(), w, vec![recv(0, 0, 599), recv(1, 0, 10)]);
    use CqeStatus::*;
    assert_eq!(
        statuses(&pair.nodes[0]),
        [(0, RemoteInvalidRequest), (1, WrFlush)]
    );
    assert_eq!(statuses(&pair.nodes[1]), [(0, LocalLength), (1, WrFlush)]);
    assert_eq!(pair.nodes[1].events, [], "the completion tells it");
}

#[test]
fn bad_remote_keys_bounds_and_rights_are_refused() {
    use CqeStatus::*;
    for opcode in [
        SendOpcode::RdmaWrite,
        SendOpcode::RdmaRead,
        SendOpcode::FetchAdd,
    ] {
        let mut bad_key = wqe(0, opcode, vec![sge(0, 8)], 0);
        bad_key.remote.1 = KEY ^ 0x100;
        let bounds = wqe(0, opcode, vec![sge(0, 8)], SIZE as u64);
        for w in [bad_key, bounds] {
            let pair = one(&Config::default(), w, vec![]);
            assert_eq!(
                statuses(&pair.nodes[0]),
                [(0, RemoteAccess), (1, WrFlush)],
                "{opcode:?}"
            );
            assert_eq!(pair.nodes[1].events, [EventType::QpAccessError]);
        }
        let config = Config {
            rights: 0,
            ..Config::default()
        };
        let pair = one(&config, wqe(0, opcode, vec![sge(0, 8)], 0), vec![]);
        assert_eq!(
            statuses(&pair.nodes[0]),
            [(0, RemoteInvalidRequest), (1, WrFlush)]
        );
    }
}

#[test]
fn bad_local_keys_fail_with_a_protection_error() {
    use CqeStatus::*;
    let mut bad = sge(0, 300);
    bad.lkey = 9;
    for opcode in [
        SendOpcode::Send,
        SendOpcode::RdmaWrite,
        SendOpcode::RdmaRead,
    ] {
        let w = wqe(0, opcode, vec![bad], 0);
        let pair = one(&Config::default(), w, vec![recv(0, 0, 1000)]);
        assert_eq!(
            statuses(&pair.nodes[0]),
            [(0, LocalProtection), (1, WrFlush)],
            "{opcode:?}"
        );
    }
    let mut r = recv(0, 0, 300);
    r.sges[0].lkey = 9;
    let pair = one(
        &Config::default(),
        wqe(0, SendOpcode::Send, vec![sge(0, 3)], 0),
        vec![r],
    );
    assert_eq!(
        statuses(&pair.nodes[0]),
        [(0, RemoteOperation), (1, WrFlush)]
    );
    assert_eq!(statuses(&pair.nodes[1]), [(0, LocalProtection)]);
}

#[test]
fn retries_run_out_on_a_dead_link() {
    let faults = Faults {
        drop: 1.0,
        ..Faults::default()
    };
    let w = wqe(0, SendOpcode::Send, vec![sge(0, 3)], 0);
    let pair = one(
        &Config {
            faults,
            retries: 3,
            ..Config::default()
        },
        w,
        vec![],
    );
    use CqeStatus::*;
    assert_eq!(statuses(&pair.nodes[0]), [(0, RetryExceeded), (1, WrFlush)]);
    assert_eq!(pair.link.counters(End::A).xmit_pkts, (1 + 3) * 2);
}

#[test]
fn rnr_retries_run_out_and_seven_is_for_ever() {
    let w = || wqe(0, SendOpcode::Send, vec![sge(0, 3)], 0);
    let pair = one(
        &Config {
            rnr_retries: 2,
            ..Config::default()
        },
        w(),
        vec![],
    );
    use CqeStatus::*;
    assert_eq!(
        statuses(&pair.nodes[0]),
        [(0, RnrRetryExceeded), (1, WrFlush)]
    );
    let mut pair = Pair::new(1, &Config::default());
    pair.nodes[0].sends.push_back(w());
    for _ in 0..100 {
        pair.now = pair.now.max(pair.qps[0].deadline().unwrap_or(0));
        pair.qps[0].timer(pair.now, &mut pair.nodes[0]);
        pair.qps[0].pump(pair.now, 9, &mut pair.nodes[0]);
        let p = pair.nodes[0].out.pop_front().expect("sent again");
        pair.qps[1].packet_in(&p.parse().unwrap(), pair.now, &mut pair.nodes[1]);
        pair.qps[1].pump(pair.now, 9, &mut pair.nodes[1]);
        let nak = pair.nodes[1].out.pop_front().expect("an RNR NAK");
        pair.qps[0].packet_in(&nak.parse().unwrap(), pair.now, &mut pair.nodes[0]);
    }
    assert_eq!(pair.qps[0].state(), QpState::Rts);
}

#[test]
fn requests_in_flight_and_posted_later_are_flushed_once() {
    let mut pair = Pair::new(1, &Config::default());
    for i in 0..5 {
        pair.nodes[0]
            .sends
            .push_back(wqe(i, SendOpcode::Send, vec![sge(0, 3)], 0));
        pair.nodes[0].recvs.push_back(recv(i, 0, 3));
    }
    pair.qps[0].pump(0, 2, &mut pair.nodes[0]);
    let mut a = QpAttr::zeroed();
    a.state = QpState::Err.to_wire();
    pair.qps[0]
        .modify(attr::STATE, &a, &mut pair.nodes[0])
        .unwrap();
    pair.nodes[0]
        .sends
        .push_back(wqe(5, SendOpcode::Send, vec![sge(0, 3)], 0));
    pair.qps[0].pump(0, 2, &mut pair.nodes[0]);
    let mut got = statuses(&pair.nodes[0]);
    got.sort_unstable_by_key(|c| c.0);
    assert_eq!(got.len(), 11);
    assert!(got.iter().all(|c| c.1 == CqeStatus::WrFlush));
}

#[test]
fn transitions_follow_the_specification() {
    use QpState::*;
    let states = [Reset, Init, Rtr, Rts, Sqd, Sqe, Err];
    let allowed = [
        (Reset, Init),
        (Init, Init),
        (Init, Rtr),
        (Rtr, Rts),
        (Rts, Rts),
        (Rts, Sqd),
        (Sqd, Sqd),
        (Sqd, Rts),
        (Sqe, Rts),
    ];
    for from in states {
        for to in states {
            let mut settings = Settings::new(Transport::Rc);
            settings.state = from;
            let mut a = QpAttr::zeroed();
            a.state = to.to_wire();
            a.path_mtu = 1;
            let got = settings.modify(u32::MAX & !attr::CUR_STATE, &a).is_ok();
            let want = to == Reset || to == Err || allowed.contains(&(from, to));
            assert_eq!(got, want, "{from:?} to {to:?}");
        }
    }
}

#[test]
fn sqd_drains_and_says_so_once() {
    let mut pair = Pair::new(1, &Config::default());
    pair.nodes[0]
        .sends
        .push_back(wqe(0, SendOpcode::RdmaWrite, vec![sge(0, 3)], 0));
    pair.qps[0].pump(0, 9, &mut pair.nodes[0]);
    pair.nodes[0]
        .sends
        .push_back(wqe(1, SendOpcode::RdmaWrite, vec![sge(0, 3)], 0));
    let mut a = QpAttr::zeroed();
    a.state = QpState::Sqd.to_wire();
    a.notify_drained = 1;
    pair.qps[0]
        .modify(attr::STATE | attr::NOTIFY_DRAINED, &a, &mut pair.nodes[0])
        .unwrap();
    assert!(pair.qps[0].query().1);
    pair.run(1000);
    assert_eq!(statuses(&pair.nodes[0]), [(0, CqeStatus::Success)]);
    assert_eq!(pair.nodes[0].events, [EventType::SqDrained]);
    a.state = QpState::Rts.to_wire();
    pair.qps[0]
        .modify(attr::STATE, &a, &mut pair.nodes[0])
        .unwrap();
    pair.run(1000);
    assert_eq!(pair.nodes[0].completions.len(), 2);
}
