// SPDX-License-Identifier: GPL-2.0 OR MIT

//! How fast the model alone moves data: two HCAs in this process on a clean link without captures, and beside each transfer a
//! `memcpy` of the same bytes between the same memories. Prints one JSON object a line.
//!
//! Times are those that the thread which moves the bytes has run, not those that passed: the machine may have other work.

#[path = "../tests/guest/mod.rs"]
mod guest;

use guest::*;
use qiao_fabric::link::Faults;
use qiao_hw::qp::{access, Mtu};
use qiao_hw::wqe::{send_flag, SendOpcode};
use rustix::time::{clock_gettime, ClockId};
use serde_json::json;
use std::fs;
use std::time::Duration;
use vm_memory::{FileOffset, MmapRegion, VolatileMemory};
use zerocopy::IntoBytes;

const KEY: u32 = 0x101;
const RIGHTS: u32 = access::LOCAL_WRITE | access::REMOTE_READ | access::REMOTE_WRITE;
/// The upper half of the memory of a guest.
const DATA: u64 = 8 << 20;
const LENGTH: u64 = 8 << 20;

/// Others use the machine too and only make things slower: the best of so many rounds counts. The caches are others' too.
const ROUNDS: usize = 15;

/// What moves in one round.
#[derive(Clone, Copy)]
struct Load {
    opcode: SendOpcode,
    size: u32,
    /// Messages of one doorbell; two such batches are in flight.
    batch: u32,
    batches: u32,
}

impl Load {
    /// The same for all sizes: a round moves 64 MiB in batches of 1 MiB.
    fn stream(opcode: SendOpcode, size: u32) -> Self {
        Self {
            opcode,
            size,
            batch: (1 << 20) / size,
            batches: 64,
        }
    }

    fn bytes(self) -> u64 {
        u64::from(self.size) * self.messages()
    }

    fn messages(self) -> u64 {
        u64::from(self.batch) * u64::from(self.batches)
    }

    /// Where message `n` lies: they follow each other through the region, over and over.
    fn place(self, n: u64) -> u64 {
        DATA + n * u64::from(self.size) % LENGTH
    }
}

/// Two connected queue pairs.
struct Pair {
    a: (Guest, Queue),
    b: (Guest, Queue),
    /// The memories of both, as this process maps them.
    maps: [MmapRegion; 2],
}

impl Pair {
    fn new(world: &World) -> Self {
        let side = |name, peer_lid| {
            let mut g = world.guest(name);
            g.depth = Depth {
                cqe: 11,
                sq: 10,
                rq: 10,
            };
            g.mtu = Mtu::Mtu4096;
            g.start();
            g.basics();
            g.register_memory(KEY, 1, DATA, LENGTH, RIGHTS);
            let q = g.queue(5, 1);
            (g, q, peer_lid)
        };
        let [(mut a, qa, a_peer), (mut b, qb, b_peer)] = [side("a", 2), side("b", 1)];
        a.connect(5, a_peer, 5);
        b.connect(5, b_peer, 5);
        let map = |g: &Guest| {
            let file = g.file();
            let size = file.metadata().unwrap().len() as usize;
            MmapRegion::from_file(FileOffset::new(file, 0), size).unwrap()
        };
        let maps = [map(&a), map(&b)];
        Self {
            a: (a, qa),
            b: (b, qb),
            maps,
        }
    }

    /// Moves everything of `load` and waits for the last completion.
    fn transfer(&mut self, load: Load) -> Duration {
        let receives = load.opcode == SendOpcode::Send;
        let start = engine_time();
        for batch in 0..load.batches {
            if receives {
                self.receive(load, batch);
            }
            self.send(load, batch);
            if batch > 0 {
                self.wait(load, receives);
            }
        }
        self.wait(load, receives);
        engine_time() - start
    }

    fn receive(&mut self, load: Load, batch: u32) {
        let (g, q) = &mut self.b;
        for n in 0..load.batch {
            let at = load.place(u64::from(batch * load.batch + n));
            g.place_recv(q, segment(at, load.size, KEY));
        }
        g.ring(q.slot + 1, q.received.into());
    }

    /// Only the last request of a batch is signaled.
    fn send(&mut self, load: Load, batch: u32) {
        let (g, q) = &mut self.a;
        for n in 0..load.batch {
            let at = load.place(u64::from(batch * load.batch + n));
            let (far, local) = (remote(at, KEY), segment(at, load.size, KEY));
            let segments = [far.as_bytes(), local.as_bytes()];
            let segments = match load.opcode {
                SendOpcode::Send => &segments[1..],
                _ => &segments[..],
            };
            let last = n + 1 == load.batch;
            let flags = if last { send_flag::SIGNALED } else { 0 };
            g.place_send(q, load.opcode, flags, segments);
        }
        g.ring(q.slot, q.sent.into());
    }

    /// Waits for one batch on both sides.
    fn wait(&mut self, load: Load, receives: bool) {
        let (g, q) = &mut self.a;
        assert_eq!(g.poll(q).status, 0);
        if receives {
            let (g, q) = &mut self.b;
            assert_eq!(g.poll_nth(q, load.batch).status, 0);
        }
    }

    /// Copies what [`Pair::transfer`] moves, from the memory that it comes from to the one that it goes to.
    fn memcpy(&self, load: Load) -> Duration {
        let [from, to] = self.ends(load);
        let start = own_time();
        for n in 0..load.messages() {
            let (at, size) = (load.place(n) as usize, load.size as usize);
            let target = to.get_slice(at, size).unwrap();
            from.get_slice(at, size)
                .unwrap()
                .copy_to_volatile_slice(target);
        }
        own_time() - start
    }

    /// Source and target: a READ comes from the peer.
    fn ends(&self, load: Load) -> [&MmapRegion; 2] {
        let [a, b] = &self.maps;
        match load.opcode {
            SendOpcode::RdmaRead => [b, a],
            _ => [a, b],
        }
    }

    /// Fills the source anew and empties the target.
    fn prepare(&self, load: Load, seed: u64) {
        let (mut from, mut to) = (&self.a.0, &self.b.0);
        if load.opcode == SendOpcode::RdmaRead {
            std::mem::swap(&mut from, &mut to);
        }
        let word = |n: u64| (n ^ (seed << 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let data: Vec<u8> = (0..LENGTH / 8)
            .flat_map(|n| word(n).to_le_bytes())
            .collect();
        from.put(DATA, &data);
        to.put(DATA, &vec![0; LENGTH as usize]);
    }

    /// What moved is right, or the speed is worth nothing.
    fn check(&self, load: Load) {
        let length = LENGTH.min(load.bytes()) as usize;
        let (a, b) = (self.a.0.get(DATA, length), self.b.0.get(DATA, length));
        assert!(a == b, "the data differs");
    }
}

/// How long the engine's thread has run.
fn engine_time() -> Duration {
    for task in fs::read_dir("/proc/self/task").unwrap() {
        let task = task.unwrap().path();
        if fs::read_to_string(task.join("comm")).unwrap().trim() == ENGINE {
            let stat = fs::read_to_string(task.join("schedstat")).unwrap();
            let nanoseconds = stat.split(' ').next().unwrap();
            return Duration::from_nanos(nanoseconds.parse().unwrap());
        }
    }
    panic!("no thread is called {ENGINE}");
}

/// How long this thread has run.
fn own_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn main() {
    let world = World::new(Faults::default(), "");
    let mut pair = Pair::new(&world);
    for (name, opcode) in [
        ("write", SendOpcode::RdmaWrite),
        ("read", SendOpcode::RdmaRead),
        ("send", SendOpcode::Send),
    ] {
        for size in [64 << 10, 1 << 20] {
            let load = Load::stream(opcode, size);
            let (best, memcpy) = best(&mut pair, load);
            let speed = |time: Duration| load.bytes() as f64 / time.as_secs_f64() / 1e9;
            let line = json!({ "what": name, "bytes": size, "gb_per_s": speed(best), "memcpy_gb_per_s": speed(memcpy) });
            println!("{line}");
        }
    }
    let load = Load {
        opcode: SendOpcode::Send,
        size: 8,
        batch: 256,
        batches: 200,
    };
    let (best, _) = best(&mut pair, load);
    let rate = load.messages() as f64 / best.as_secs_f64();
    println!(
        "{}",
        json!({ "what": "send", "bytes": load.size, "messages_per_s": rate })
    );
}

/// The shortest times of a transfer and of the copy beside it.
fn best(pair: &mut Pair, load: Load) -> (Duration, Duration) {
    let mut shortest = (Duration::MAX, Duration::MAX);
    for round in 0..ROUNDS {
        pair.prepare(load, round as u64 + 1);
        let transfer = pair.transfer(load);
        pair.check(load);
        shortest.0 = shortest.0.min(transfer);
        shortest.1 = shortest.1.min(pair.memcpy(load));
    }
    shortest
}
