// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A guest without QEMU: a vfio-user client with memory of its own that drives an HCA as a driver and a
//! program would.

#![allow(dead_code, unused_imports, reason = "each test program uses its part")]

mod client;
mod commands;
mod queue;
mod world;

pub use self::client::{message, pending};
pub use self::commands::dirty;
pub use self::queue::{remote, segment, Depth, Queue, LOG_CQE, LOG_RQ, LOG_SQ};
pub use self::world::{World, ENGINE};

use qiao_hw::pages::PageList;
use qiao_hw::qp::Mtu;
use qiao_model::mem::SlotMemory;
use rustix::fs::{memfd_create, MemfdFlags};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// Bytes of the memory of a guest.
const MEMORY: u64 = 16 << 20;

/// How long anything may take before the test fails: far more than it does.
const PATIENCE: Duration = Duration::from_secs(20);

pub const CONTROL: u32 = 0;
pub const DOORBELLS: u32 = 2;
pub const CONFIG: u32 = 7;

/// Whether this program tests devices that poll their doorbells: `polled` runs all that the others do.
pub const POLLED: bool = matches!(env!("CARGO_CRATE_NAME").as_bytes(), b"polled");

/// The client.
pub struct Guest {
    stream: UnixStream,
    memory: File,
    /// The doorbells, if they are memory.
    slots: Option<SlotMemory>,
    next_page: u64,
    commands: u64,
    completions: u64,
    issued: u32,
    /// Rings of event queues 0 and 1.
    rings: [u64; 2],
    /// Their size.
    pub log_eqe: u8,
    /// Sizes of the queue pairs to come.
    pub depth: Depth,
    /// Path MTU of the connections to come.
    pub mtu: Mtu,
    /// Their local ACK timeout: 4.096 us times two to this power.
    pub ack_timeout: u8,
}

impl Guest {
    fn new(path: &Path) -> Self {
        let memory = File::from(memfd_create("guest", MemfdFlags::CLOEXEC).unwrap());
        memory.set_len(MEMORY).unwrap();
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut guest = Self {
            stream,
            memory,
            slots: None,
            next_page: 1,
            commands: 0,
            completions: 0,
            issued: 0,
            rings: [0; 2],
            log_eqe: 7,
            depth: Depth {
                cqe: LOG_CQE,
                sq: LOG_SQ,
                rq: LOG_RQ,
            },
            mtu: Mtu::Mtu1024,
            ack_timeout: 10,
        };
        let version = [&[0; 4][..], b"{\"capabilities\":{\"max_msg_fds\":16}}\0"].concat();
        guest.call(1, &version, false);
        guest.map(0, 0, MEMORY);
        guest.slots = guest.region_memory(DOORBELLS);
        assert_eq!(guest.slots.is_some(), POLLED);
        guest.switch_on();
        guest
    }

    /// Sets memory space and bus master in the command register.
    pub fn switch_on(&mut self) {
        self.write(CONFIG, 4, &6u16.to_le_bytes());
    }

    pub fn ring(&mut self, slot: u32, value: u64) {
        if let Some(slots) = &self.slots {
            return slots.store(slot, value).unwrap();
        }
        self.write_slot(slot, value);
    }

    /// Returns the value of a slot of memory.
    pub fn slot(&self, slot: u32) -> u64 {
        let slots = self.slots.as_ref().unwrap();
        slots.load(slot).unwrap()
    }

    /// Writes a slot by a message, also if it is memory.
    pub fn write_slot(&mut self, slot: u32, value: u64) {
        self.write(DOORBELLS, u64::from(slot) * 8, &value.to_le_bytes());
    }

    pub fn put(&self, addr: u64, data: &[u8]) {
        self.memory.write_all_at(data, addr).unwrap();
    }

    pub fn get(&self, addr: u64, length: usize) -> Vec<u8> {
        let mut data = vec![0; length];
        self.memory.read_exact_at(&mut data, addr).unwrap();
        data
    }

    /// The memory as a file.
    pub fn file(&self) -> File {
        self.memory.try_clone().unwrap()
    }

    /// Takes pages that nobody has used.
    pub fn pages(&mut self, count: u64) -> u64 {
        let at = self.next_page * 4096;
        self.next_page += count;
        assert!(self.next_page * 4096 <= MEMORY);
        at
    }

    pub fn wait<T>(&mut self, what: &str, mut ready: impl FnMut(&mut Self) -> Option<T>) -> T {
        let start = Instant::now();
        loop {
            if let Some(result) = ready(self) {
                return result;
            }
            assert!(start.elapsed() < PATIENCE, "waited too long for {what}");
            std::thread::yield_now();
        }
    }
}

/// A list of one page.
pub fn page_list(addr: u64, count: u32) -> PageList {
    let mut list = PageList::zeroed();
    list.addr.set(addr);
    list.count.set(count);
    list.page_shift = 12;
    list
}

/// A list of `count` pages from `addr` on, with its table at `table`.
pub fn contiguous(addr: u64, count: u32, table: u64, guest: &Guest) -> PageList {
    for n in 0..u64::from(count) {
        guest.put(table + 8 * n, &(addr + 4096 * n).to_le_bytes());
    }
    let mut list = page_list(table, count);
    list.levels = 1;
    list
}
