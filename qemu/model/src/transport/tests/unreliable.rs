// SPDX-License-Identifier: GPL-2.0 OR MIT

//! UC and UD: on a clean link all arrives, on a bad one whole messages or nothing.

use super::*;
use qiao_hw::qp::{path_flag, Path};
use std::collections::HashMap;

const SLOT: usize = 1024;

fn datagram(node: u16, qkey: u32) -> Datagram {
    let mut path = Path::zeroed();
    path.dlid.set(3 - u32::from(node));
    path.port = 1;
    path.sl = 3;
    Datagram {
        path,
        qpn: 6 + u32::from(node),
        qkey,
        pkey_index: 0,
    }
}

fn config(service: Transport, loss: f64) -> Config {
    Config {
        service,
        faults: Faults {
            drop: loss,
            corrupt: loss / 2.0,
            reorder: loss,
            reorder_ns: 2000,
            ..Faults::default()
        },
        ..Config::default()
    }
}

/// A request of a random kind, whose message goes to slot `20 + index` if it is a WRITE.
fn random_wqe(rng: &mut SmallRng, service: Transport, index: u32) -> SendWqe {
    let longest = if service == Transport::Ud { 4096 } else { SLOT };
    let length = [1, 255, 256, 257, 600, longest][rng.random_range(0..6)].min(SLOT - 40);
    let opcodes = [
        SendOpcode::Send,
        SendOpcode::SendImm,
        SendOpcode::RdmaWrite,
        SendOpcode::RdmaWriteImm,
    ];
    let kinds = if service == Transport::Ud { 2 } else { 4 };
    let opcode = opcodes[rng.random_range(0..kinds)];
    let here = index as usize * SLOT;
    let mut w = wqe(
        index,
        opcode,
        vec![sge(here, length)],
        ((20 + index as usize) * SLOT) as u64,
    );
    if service == Transport::Ud {
        let mut to = datagram(1, QKEY);
        to.path.flags = if rng.random() { path_flag::GRH } else { 0 };
        w.datagram = Some(to);
    }
    w
}

/// One random run. What node 1 completes must be requests of node 0, in order, each with its own
/// data; without loss all of them.
fn random_run(seed: u64, service: Transport, loss: f64) {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut config = config(service, loss);
    config.psn = rng.random_range(0..1 << 24);
    let mut pair = Pair::new(seed, &config);
    rng.fill(&mut pair.nodes[0].memory[..]);
    let count = rng.random_range(1..12u32);
    let mut sent = Vec::new();
    for index in 0..count {
        let w = random_wqe(&mut rng, service, index);
        sent.push(w.clone());
        pair.nodes[0].sends.push_back(w);
        let r = recv(index, (40 + index as usize) * SLOT, SLOT);
        pair.nodes[1].recvs.push_back(r);
    }
    pair.run(100_000);

    // Nothing that the link does keeps a request from completing.
    let done: Vec<_> = pair.nodes[0]
        .completions
        .iter()
        .map(|c| (c.index, c.status))
        .collect();
    let want: Vec<_> = (0..count).map(|i| (i, CqeStatus::Success)).collect();
    assert_eq!(done, want, "seed {seed}");

    let by_imm: HashMap<[u8; 4], &SendWqe> = sent.iter().map(|w| (w.imm, w)).collect();
    let source = &pair.nodes[0].memory;
    let node = &pair.nodes[1];
    let head = if service == Transport::Ud { 40 } else { 0 };
    for (n, c) in node.completions.iter().enumerate() {
        assert_eq!(
            (c.index, c.status),
            (n as u32, CqeStatus::Success),
            "seed {seed}"
        );
        let there = (40 + n) * SLOT + head;
        let length = c.byte_len as usize - head;
        let matches = |w: &SendWqe| {
            let (from, to) = match c.opcode {
                CqeOpcode::Recv => (w.index as usize * SLOT, there),
                _ => (w.index as usize * SLOT, w.remote.0 as usize),
            };
            w.length as usize == length
                && node.memory[to..to + length] == source[from..from + length]
        };
        let found = match c.imm {
            Some(imm) => by_imm.get(&imm).is_some_and(|w| matches(w)),
            None => sent.iter().any(matches),
        };
        assert!(found, "seed {seed}: completion {n} is of no request");
        assert_eq!(c.source.is_some(), service == Transport::Ud);
    }
    if loss == 0.0 {
        let takes_recv = |w: &&SendWqe| w.opcode != SendOpcode::RdmaWrite;
        assert_eq!(
            node.completions.len(),
            sent.iter().filter(takes_recv).count()
        );
        for w in &sent {
            let write = matches!(w.opcode, SendOpcode::RdmaWrite | SendOpcode::RdmaWriteImm);
            let (from, to) = (w.index as usize * SLOT, w.remote.0 as usize);
            let n = w.length as usize;
            assert!(!write || node.memory[to..to + n] == source[from..from + n]);
        }
    }
}

#[test]
fn all_arrives_on_a_clean_link() {
    for seed in 0..CASES / 4 {
        random_run(seed, Transport::Uc, 0.0);
        random_run(seed, Transport::Ud, 0.0);
    }
}

#[test]
fn whole_messages_or_nothing_on_a_bad_link() {
    for seed in 0..CASES / 4 {
        random_run(seed, Transport::Uc, 0.05);
        random_run(seed, Transport::Ud, 0.05);
    }
}

/// Sends `w` and a good request behind it from node 0, which has a receive request, too.
fn send(service: Transport, w: SendWqe, recvs: Vec<RecvWqe>) -> Pair {
    let mut pair = Pair::new(1, &config(service, 0.0));
    let mut good = wqe(1, SendOpcode::Send, vec![sge(0, 8)], 0);
    good.datagram = w.datagram;
    pair.nodes[0].sends.extend([w, good]);
    pair.nodes[0].recvs.push_back(recv(0, 0, SLOT));
    pair.nodes[1].recvs.extend(recvs);
    pair.run(100_000);
    pair
}

#[test]
fn a_local_error_stops_the_send_queue_only() {
    use CqeStatus::*;
    let bad = |opcode, length: usize, key| {
        let mut s = sge(0, length);
        s.lkey = key;
        wqe(0, opcode, vec![s], 0)
    };
    let cases = [
        (Transport::Uc, bad(SendOpcode::Send, 8, 9), LocalProtection),
        (
            Transport::Uc,
            bad(SendOpcode::RdmaRead, 8, KEY),
            LocalQpOperation,
        ),
        (Transport::Ud, bad(SendOpcode::Send, 8, 9), LocalProtection),
        (Transport::Ud, bad(SendOpcode::Send, 4097, KEY), LocalLength),
        (
            Transport::Ud,
            bad(SendOpcode::RdmaWrite, 8, KEY),
            LocalQpOperation,
        ),
    ];
    for (service, mut w, status) in cases {
        w.datagram = (service == Transport::Ud).then(|| datagram(1, QKEY));
        let mut pair = send(service, w, vec![recv(0, 0, SLOT)]);
        assert_eq!(statuses(&pair.nodes[0]), [(0, status), (1, WrFlush)]);
        assert_eq!(pair.qps[0].state(), QpState::Sqe);
        assert!(pair.nodes[1].completions.is_empty());
        // It still receives, and sends again after a way back to RTS.
        let mut back = wqe(7, SendOpcode::Send, vec![sge(0, 8)], 0);
        back.datagram = (service == Transport::Ud).then(|| datagram(2, QKEY));
        pair.nodes[1].sends.push_back(back);
        pair.run(1000);
        assert_eq!(pair.nodes[0].completions.len(), 3);
        assert_eq!(pair.nodes[0].completions[2].status, Success);
        let mut a = QpAttr::zeroed();
        a.state = QpState::Rts.to_wire();
        let node = &mut pair.nodes[0];
        pair.qps[0].modify(attr::STATE, &a, node).unwrap();
        let mut again = wqe(2, SendOpcode::Send, vec![sge(0, 8)], 0);
        again.datagram = (service == Transport::Ud).then(|| datagram(1, QKEY));
        pair.nodes[0].sends.push_back(again);
        pair.run(1000);
        assert_eq!(statuses(&pair.nodes[1])[1..], [(0, Success)]);
    }
}

#[test]
fn datagrams_with_another_key_or_without_room_are_dropped() {
    let mut w = wqe(0, SendOpcode::Send, vec![sge(0, 100)], 0);
    w.datagram = Some(datagram(1, QKEY + 1));
    let pair = send(Transport::Ud, w.clone(), vec![recv(0, 0, SLOT)]);
    assert!(pair.nodes[1].completions.is_empty());
    // Bit 31 stands for the key of the sender.
    w.datagram = Some(datagram(1, 1 << 31));
    let pair = send(Transport::Ud, w.clone(), vec![recv(0, 0, SLOT)]);
    assert_eq!(pair.nodes[1].completions.len(), 1);
    // The first does not fit; the second takes the same receive request.
    w.datagram = Some(datagram(1, QKEY));
    let pair = send(Transport::Ud, w, vec![recv(0, 0, 48)]);
    assert_eq!(pair.nodes[1].completions.len(), 1);
    let c = pair.nodes[1].completions[0];
    assert_eq!((c.index, c.byte_len), (0, 48));
    let source = c.source.unwrap();
    assert_eq!(
        (source.qpn, source.lid, source.sl, source.grh),
        (8, 1, 3, false)
    );
    assert_eq!(pair.qps[1].state(), QpState::Rts);
}

#[test]
fn a_message_too_long_for_its_receive_leaves_it_to_the_next() {
    let w = wqe(0, SendOpcode::Send, vec![sge(0, 600)], 0);
    let pair = send(Transport::Uc, w, vec![recv(0, 0, 300)]);
    let c = pair.nodes[1].completions[0];
    assert_eq!((c.index, c.byte_len, c.status), (0, 8, CqeStatus::Success));
    assert_eq!(pair.nodes[1].completions.len(), 1);
}

#[test]
fn a_receive_request_that_was_dropped_is_flushed_once() {
    let w = wqe(0, SendOpcode::Send, vec![sge(0, 600)], 0);
    let mut pair = Pair::new(1, &config(Transport::Uc, 0.0));
    pair.nodes[0].sends.push_back(w);
    pair.nodes[1].recvs.push_back(recv(0, 0, 300));
    pair.run(1000);
    let mut a = QpAttr::zeroed();
    a.state = QpState::Err.to_wire();
    let node = &mut pair.nodes[1];
    pair.qps[1].modify(attr::STATE, &a, node).unwrap();
    pair.qps[1].pump(0, 9, node);
    assert_eq!(statuses(node), [(0, CqeStatus::WrFlush)]);
}

#[test]
fn attributes_that_a_transition_needs_are_those_of_the_service() {
    use QpState::*;
    let path = attr::PATH | attr::PATH_MTU | attr::DEST_QPN | attr::RQ_PSN;
    let cases = [
        (
            Transport::Uc,
            Reset,
            Init,
            attr::PKEY_INDEX | attr::PORT | attr::ACCESS,
        ),
        (Transport::Uc, Init, Rtr, path),
        (Transport::Uc, Rtr, Rts, attr::SQ_PSN),
        (
            Transport::Ud,
            Reset,
            Init,
            attr::PKEY_INDEX | attr::PORT | attr::QKEY,
        ),
        (Transport::Ud, Init, Rtr, 0),
        (Transport::Ud, Rtr, Rts, attr::SQ_PSN),
    ];
    for (service, from, to, needed) in cases {
        let mut settings = Settings::new(service);
        settings.state = from;
        let mut a = QpAttr::zeroed();
        a.state = to.to_wire();
        a.path_mtu = 1;
        let mask = attr::STATE | needed;
        assert!(settings.modify(mask, &a).is_ok(), "{service:?} {from:?}");
        for bit in (0..32).map(|n| 1 << n).filter(|bit| needed & bit != 0) {
            assert!(settings.modify(mask & !bit, &a).is_err());
        }
    }
}
