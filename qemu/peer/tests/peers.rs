// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Two peers on a cable that this test holds: frames, the control protocol, and transport between them.

use qiao_fabric::wire::roce::{check_icrc, udp_frame, Address};
use qiao_peer::{Peer, Statistics, CONTROL_PORT};
use serde_json::{json, Value};
use std::net::Ipv4Addr;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long anything may take before the test fails: far more than it does.
const PATIENCE: Duration = Duration::from_secs(60);

const HALF: u64 = 1 << 16;

fn address(n: u8) -> Address {
    Address {
        mac: [2, 0, 0, 0, 0, n],
        ip: Ipv4Addr::new(10, 0, 0, n),
    }
}

/// A peer and this test's end of its cable.
struct End {
    socket: UnixDatagram,
    path: PathBuf,
    own: Address,
    other: Address,
    serial: u64,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Statistics>>,
}

impl End {
    fn new(dir: &Path, n: u8) -> Self {
        let (path, cable) = (dir.join(format!("peer{n}")), dir.join(format!("cable{n}")));
        let socket = UnixDatagram::bind(&cable).unwrap();
        socket
            .set_read_timeout(Some(Duration::from_millis(1)))
            .unwrap();
        let mut peer = Peer::bind(&path, &cable, address(n), n.into()).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let thread = std::thread::spawn({
            let stop = Arc::clone(&stop);
            move || {
                peer.run(&stop).unwrap();
                peer.statistics()
            }
        });
        Self {
            socket,
            path,
            own: address(n),
            other: address(3 - n),
            serial: 0,
            stop,
            thread: Some(thread),
        }
    }

    fn receive(&self) -> Option<Vec<u8>> {
        let mut frame = vec![0; 4096];
        let length = self.socket.recv(&mut frame).ok()?;
        frame.truncate(length);
        Some(frame)
    }

    fn finish(mut self) -> Statistics {
        self.stop.store(true, Ordering::Release);
        self.thread.take().unwrap().join().unwrap()
    }
}

struct Cable([End; 2]);

impl Cable {
    /// Carries frames of RoCE from one peer to the other; the first control answer that comes ends it.
    fn carry(&self) -> Option<Value> {
        for (from, to) in [(0, 1), (1, 0)] {
            let Some(frame) = self.0[from].receive() else {
                continue;
            };
            match check_icrc(&frame) {
                Some(right) => {
                    assert!(right, "a packet with a wrong ICRC is sent");
                    self.0[to].socket.send_to(&frame, &self.0[to].path).unwrap();
                }
                None => return Some(serde_json::from_slice(&frame[42..]).unwrap()),
            }
        }
        None
    }

    /// Asks a peer as if the other one did.
    fn ask(&mut self, n: usize, mut request: Value) -> Value {
        let end = &mut self.0[n];
        end.serial += 1;
        request["serial"] = end.serial.into();
        let ports = [9, CONTROL_PORT];
        let frame = udp_frame(end.other, end.own, ports, request.to_string().as_bytes());
        end.socket.send_to(&frame, &end.path).unwrap();
        let start = Instant::now();
        loop {
            if let Some(answer) = self.carry() {
                return answer;
            }
            assert!(start.elapsed() < PATIENCE, "no answer to {request}");
        }
    }

    /// Waits for a completion.
    fn completion(&mut self, n: usize, qpn: u64) -> Value {
        let start = Instant::now();
        loop {
            let answer = self.ask(n, json!({"op": "completions", "qpn": qpn}));
            match answer["completions"].as_array().unwrap().as_slice() {
                [] => assert!(start.elapsed() < PATIENCE, "nothing completes"),
                [one] => return one.clone(),
                more => panic!("{more:?}"),
            }
        }
    }
}

/// Numbers of the queue pairs that two peers open first.
const QPN: u64 = 0x100;

fn connected(service: &str, dir: &Path) -> Cable {
    let mut cable = Cable([End::new(dir, 1), End::new(dir, 2)]);
    for n in [0, 1] {
        let open = json!({"op": "open", "service": service, "qpn": QPN, "psn": 0xff_fff8});
        assert_eq!(cable.ask(n, open)["opened"]["qpn"], QPN);
    }
    cable
}

fn place(op: &str, offset: u64, length: u64) -> Value {
    json!({"op": op, "qpn": QPN, "offset": offset, "length": length})
}

fn with(mut request: Value, key: &str, value: Value) -> Value {
    request[key] = value;
    request
}

#[test]
fn messages_arrive_whole_on_a_link_with_faults() {
    let dir = tempfile::tempdir().unwrap();
    let mut cable = connected("rc", dir.path());
    let faults = json!({"drop": 0.05, "duplicate": 0.05});
    for n in [0, 1] {
        cable.ask(n, json!({"op": "faults", "faults": faults}));
    }
    cable.ask(0, with(place("fill", 0, HALF), "seed", 77.into()));
    cable.ask(1, place("receive", HALF, HALF));
    let send = with(place("post", 0, HALF), "opcode", "send".into());
    cable.ask(0, with(send, "imm", 0x0102_0304.into()));
    let done = cable.completion(0, QPN);
    assert_eq!(
        (&done["status"], &done["receive"]),
        (&"Success".into(), &false.into())
    );
    let received = cable.completion(1, QPN);
    assert_eq!(received["byte_len"], HALF);
    assert_eq!(received["imm"], 0x0102_0304);
    let compare = |seed: u32| with(place("compare", HALF, HALF), "seed", seed.into());
    assert_eq!(cable.ask(1, compare(77))["compared"], Value::Null);
    assert_eq!(cable.ask(1, compare(78))["compared"], 0);
    let [one, other] = cable.0.map(End::finish);
    assert_eq!((one.bad_icrc, other.bad_icrc), (0, 0));
    assert!(one.faults > 0 && one.retransmits > 0);
}

#[test]
fn datagrams_name_their_source() {
    let dir = tempfile::tempdir().unwrap();
    let mut cable = connected("ud", dir.path());
    cable.ask(1, place("receive", 0, 1064));
    cable.ask(0, with(place("post", 0, 1024), "opcode", "send".into()));
    let received = cable.completion(1, QPN);
    assert_eq!(
        (&received["byte_len"], &received["source"]),
        (&1064.into(), &QPN.into())
    );
}

#[test]
fn nonsense_is_answered() {
    let dir = tempfile::tempdir().unwrap();
    let mut cable = connected("uc", dir.path());
    for request in [
        json!({"op": "sing"}),
        with(place("fill", HALF, HALF + 1), "seed", 1.into()),
        place("peek", 0, 7),
        with(place("peek", 0, 8), "qpn", 1.into()),
        json!({"op": "completions", "qpn": 1}),
    ] {
        let answer = cable.ask(0, request.clone());
        assert!(answer["error"].is_string(), "{request}: {answer}");
    }
    // The same number is the same request.
    cable.0[0].serial -= 1;
    let again = cable.ask(0, place("poke", 0, 8));
    assert!(again["error"].is_string());
}
