// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A guest without QEMU: a vfio-user client with memory of its own that drives an HCA as a driver and a
//! program would.

#![allow(dead_code, reason = "each test program uses its part")]

use qiao_fabric::link::Faults;
use qiao_hw::bar::{control, reg, status};
use qiao_hw::cmd::*;
use qiao_hw::cqe::Cqe;
use qiao_hw::describe::Described;
use qiao_hw::event::{Eqe, EventType};
use qiao_hw::pages::PageList;
use qiao_hw::qp::{access, attr, Mtu, QpAttr, QpState, QpType};
use qiao_hw::ring::{is_written, RingSize};
use qiao_hw::wqe::*;
use qiao_model::config::Config;
use qiao_model::mem::SlotMemory;
use qiao_model::model::Model;
use rustix::event::{eventfd, EventfdFlags};
use rustix::fs::{memfd_create, MemfdFlags};
use rustix::io::Errno;
use rustix::net::{
    recvmsg, sendmsg, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use std::fs::File;
use std::io::{BufRead, BufReader, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Bytes of the memory of a guest.
const MEMORY: u64 = 16 << 20;

/// How long anything may take before the test fails: far more than it does.
const PATIENCE: Duration = Duration::from_secs(20);

pub const CONTROL: u32 = 0;
pub const DOORBELLS: u32 = 2;
pub const CONFIG: u32 = 7;

/// What a connected queue pair is told on its way to RTS.
const ATTRIBUTES: u32 = attr::STATE
    | attr::ACCESS
    | attr::PKEY_INDEX
    | attr::PORT
    | attr::PATH
    | attr::PATH_MTU
    | attr::TIMEOUT
    | attr::RETRY_COUNT
    | attr::RNR_RETRY
    | attr::RQ_PSN
    | attr::SQ_PSN
    | attr::MAX_RD_ATOMIC
    | attr::MAX_DEST_RD_ATOMIC
    | attr::MIN_RNR_TIMER
    | attr::DEST_QPN;

/// Whether this program tests devices that poll their doorbells: `polled` runs all that the others do.
pub const POLLED: bool = matches!(env!("CARGO_CRATE_NAME").as_bytes(), b"polled");

const LOG_COMMANDS: u8 = 4;
pub const LOG_CQE: u8 = 6;
pub const LOG_SQ: u8 = 5;
pub const LOG_RQ: u8 = 4;
const LOG_STRIDE: u8 = 6;

/// Log2 of the entries of the rings of queue pairs.
#[derive(Clone, Copy)]
pub struct Depth {
    pub cqe: u8,
    pub sq: u8,
    pub rq: u8,
}

impl Depth {
    /// Offset of the send ring in the buffer.
    fn sq_offset(self) -> u32 {
        1 << (self.rq + LOG_STRIDE)
    }

    /// Pages of the buffer of a queue pair.
    fn qp_pages(self) -> u64 {
        (u64::from(self.sq_offset()) + ((BLOCK_SIZE as u64) << self.sq)).div_ceil(4096)
    }

    /// Pages of the buffer of a CQ: entries and doorbell record.
    fn cq_pages(self) -> u64 {
        (((1 << self.cqe) + 1) * 64_u64).div_ceil(4096)
    }
}

/// Name of the thread that runs the engine.
pub const ENGINE: &str = "engine";

/// A model in this process.
pub struct World {
    pub dir: tempfile::TempDir,
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

impl World {
    /// Two HCAs `a` and `b` on a link with faults; `extra` is appended to the configuration of `a`.
    pub fn new(faults: Faults, extra: &str) -> Self {
        Self::with_topology("[[link]]\nends = [\"a:1\", \"b:1\"]\n", faults, extra)
    }

    /// As [`World::new`] with switches and links of their own, and captures in the folder `pcap`.
    pub fn with_topology(topology: &str, faults: Faults, extra: &str) -> Self {
        let dir = tempfile::Builder::new().prefix("q").tempdir().unwrap();
        let mut text = format!("seed = 7\ncontrol = {:?}\n", dir.path().join("control"));
        if topology.contains("switch") {
            text += &format!("pcap_dir = {:?}\n", dir.path().join("pcap"));
        }
        for name in ["a", "b"] {
            let socket = dir.path().join(name);
            text += &format!("[[hca]]\nname = \"{name}\"\nsocket = {socket:?}\n");
            if POLLED {
                text += "doorbells = \"polled\"\n";
            }
            if name == "a" {
                text += extra;
            }
        }
        text += topology;
        let mut config: Config = toml::from_str(&text).unwrap();
        config.faults = faults;
        let model = Model::new(&config).unwrap();
        let (reader, writer) = UnixStream::pair().unwrap();
        let thread = std::thread::Builder::new()
            .name(ENGINE.into())
            .spawn(move || model.run(reader.as_fd()).unwrap())
            .unwrap();
        let stop = Some(writer);
        Self {
            dir,
            stop,
            thread: Some(thread),
        }
    }

    /// Sends a line to the control socket and returns the answer.
    pub fn control(&self, line: &str) -> serde_json::Value {
        let mut stream = UnixStream::connect(self.dir.path().join("control")).unwrap();
        writeln!(stream, "{line}").unwrap();
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).unwrap();
        serde_json::from_str(&answer).unwrap()
    }

    pub fn guest(&self, name: &str) -> Guest {
        Guest::new(&self.dir.path().join(name))
    }

    /// Ends the model, which completes the captures.
    pub fn stop(&mut self) {
        // The other end of a closed pair is readable.
        self.stop = None;
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(matches!(ended, Some(Ok(()))), "the model ends cleanly");
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.stop();
        }
    }
}

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

/// A queue pair with a CQ of its own.
pub struct Queue {
    pub qpn: u32,
    pub slot: u32,
    buffer: u64,
    pub cq: u64,
    depth: Depth,
    consumer: u32,
    pub sent: u32,
    pub received: u32,
}

impl Queue {
    /// Returns the free-running consumer index of the CQ.
    pub fn consumer(&self) -> u32 {
        self.consumer
    }
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

    /// Asks for a region as QEMU does: with room for its description, and again with what that says.
    fn region_memory(&mut self, region: u32) -> Option<SlotMemory> {
        let ask = |room: u32| {
            let words = [room, 0, region, 0, 0, 0, 0, 0];
            words.map(u32::to_ne_bytes).concat()
        };
        let first = self.call(5, &ask(32), false);
        let word =
            |reply: &[u8], at: usize| u32::from_ne_bytes(reply[at..at + 4].try_into().unwrap());
        let room = word(&first, 0);
        if room == 32 {
            return None;
        }
        // QEMU takes no other place of a capability, although it is not there yet.
        assert_eq!((first.len(), word(&first, 12)), (32, 32));
        self.send(&message(5, 0, &ask(room)), &[]);
        let (head, file) = self.head_with_file();
        assert_eq!(word(&head, 4) as usize, 16 + room as usize);
        let mut reply = vec![0; room as usize];
        self.stream.read_exact(&mut reply).unwrap();
        // All of the region, from its start.
        assert_eq!((word(&reply, 12), word(&reply, 40)), (32, 1));
        assert_eq!(reply[16..24], reply[56..64]);
        Some(SlotMemory::open(file).unwrap())
    }

    /// Receives the head of a reply and the descriptor that comes with it.
    fn head_with_file(&mut self) -> ([u8; 16], File) {
        let mut head = [0; 16];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut iov = [IoSliceMut::new(&mut head)];
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::WAITALL;
        let received = recvmsg(&self.stream, &mut iov, &mut ancillary, flags).unwrap();
        assert_eq!(received.bytes, 16);
        let file = ancillary.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        });
        (head, file.expect("a descriptor").into())
    }

    /// Maps `size` bytes of the memory from `offset` on at `addr`.
    pub fn map(&mut self, addr: u64, offset: u64, size: u64) {
        let mut body = 32u32.to_ne_bytes().to_vec();
        body.extend_from_slice(&3u32.to_ne_bytes());
        for word in [offset, addr, size] {
            body.extend_from_slice(&word.to_ne_bytes());
        }
        self.call(2, &body, true);
    }

    /// Unmaps `size` bytes at `addr`.
    pub fn unmap(&mut self, addr: u64, size: u64) {
        let mut body = 24u32.to_ne_bytes().to_vec();
        body.extend_from_slice(&0u32.to_ne_bytes());
        for word in [addr, size] {
            body.extend_from_slice(&word.to_ne_bytes());
        }
        self.call(3, &body, false);
    }

    /// Sends a request and returns the body of the reply.
    fn call(&mut self, command: u16, body: &[u8], with_memory: bool) -> Vec<u8> {
        let memory = self.memory.try_clone().unwrap();
        let fds = [memory.as_fd()];
        let fds = if with_memory { &fds[..] } else { &[] };
        let reply = self.try_call(command, body, fds);
        reply.unwrap_or_else(|error| panic!("command {command}: {error}"))
    }

    /// Sends a request; returns the body of the reply or its error.
    pub fn try_call(
        &mut self,
        command: u16,
        body: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<Vec<u8>, Errno> {
        self.send(&message(command, 0, body), fds);
        self.reply(command)
    }

    /// Sends bytes and descriptors.
    pub fn send(&mut self, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(ancillary.push(SendAncillaryMessage::ScmRights(fds)));
        }
        let sent = sendmsg(
            &self.stream,
            &[IoSlice::new(bytes)],
            &mut ancillary,
            SendFlags::NOSIGNAL,
        );
        assert_eq!(sent, Ok(bytes.len()));
    }

    /// Receives the reply to `command`.
    pub fn reply(&mut self, command: u16) -> Result<Vec<u8>, Errno> {
        let mut head = [0; 16];
        self.stream.read_exact(&mut head).unwrap();
        let word = |at: usize| u32::from_ne_bytes(head[at..at + 4].try_into().unwrap());
        let mut reply = vec![0; word(4) as usize - 16];
        self.stream.read_exact(&mut reply).unwrap();
        assert_eq!(u16::from_ne_bytes([head[2], head[3]]), command);
        match word(12) {
            0 => Ok(reply),
            error => Err(Errno::from_raw_os_error(error as i32)),
        }
    }

    /// Sends nothing any more.
    pub fn close_half(&mut self) {
        self.stream.shutdown(Shutdown::Write).unwrap();
    }

    /// Returns whether the server has closed the connection.
    pub fn is_closed(&mut self) -> bool {
        matches!(self.stream.read(&mut [0]), Ok(0))
    }

    /// Binds the first vectors to event descriptors, which it returns.
    pub fn vectors(&mut self, count: u32) -> Vec<OwnedFd> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let fds: Vec<OwnedFd> = (0..count).map(|_| eventfd(0, flags).unwrap()).collect();
        // Action trigger, data eventfd; MSI-X.
        let words = [20u32, 0x24, 2, 0, count];
        let body: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(|fd| fd.as_fd()).collect();
        self.try_call(8, &body, &borrowed).unwrap();
        fds
    }

    /// Waits for interrupts of a vector and returns how many there were.
    pub fn interrupts(&mut self, vector: &OwnedFd) -> u64 {
        self.wait("an interrupt", |_| pending(vector))
    }

    pub fn access(region: u32, offset: u64, count: usize) -> Vec<u8> {
        let mut body = offset.to_ne_bytes().to_vec();
        body.extend_from_slice(&region.to_ne_bytes());
        body.extend_from_slice(&(count as u32).to_ne_bytes());
        body
    }

    pub fn write(&mut self, region: u32, offset: u64, data: &[u8]) {
        let mut body = Self::access(region, offset, data.len());
        body.extend_from_slice(data);
        self.call(10, &body, false);
    }

    /// Reads a register of BAR0.
    pub fn register(&mut self, offset: usize) -> u32 {
        self.read(CONTROL, offset as u64)
    }

    /// Reads 4 bytes of a region.
    pub fn read(&mut self, region: u32, offset: u64) -> u32 {
        let reply = self.call(9, &Self::access(region, offset, 4), false);
        u32::from_le_bytes(reply[16..20].try_into().unwrap())
    }

    /// Reads the entry of `index` of event queue `eqn`, if it is written.
    pub fn event(&mut self, eqn: u32, index: u32) -> Option<Eqe> {
        let size = RingSize::from_log(self.log_eqe).unwrap();
        let at = self.rings[eqn as usize] + u64::from(size.slot(index)) * 32;
        let eqe = Eqe::read_from_bytes(&self.get(at, 32)).unwrap();
        is_written(size, index, eqe.owner.get()).then_some(eqe)
    }

    /// Waits for the event of `index`; returns its type and number.
    pub fn wait_event(&mut self, eqn: u32, index: u32) -> (Option<EventType>, u32) {
        let eqe = self.wait("an event", |g| g.event(eqn, index));
        (EventType::from_wire(eqe.event_type), eqe.id.get())
    }

    pub fn set_register(&mut self, offset: usize, value: u32) {
        self.write(CONTROL, offset as u64, &value.to_le_bytes());
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

    pub fn wait_status(&mut self, bits: u32) {
        self.wait("a state", |g| {
            (g.register(reg::STATUS) == bits).then_some(())
        });
    }

    /// Resets the device and starts the command queue.
    pub fn start(&mut self) {
        self.set_register(reg::CONTROL, control::RESET);
        self.wait_status(status::READY);
        (self.commands, self.completions, self.issued) = (self.pages(1), self.pages(1), 0);
        for (offset, base) in [
            (reg::CMDQ_BASE, self.commands),
            (reg::CMDQ_COMPLETION_BASE, self.completions),
        ] {
            self.write(CONTROL, offset as u64, &base.to_le_bytes());
        }
        self.set_register(reg::CMDQ_CONFIG, LOG_COMMANDS.into());
        self.set_register(reg::CONTROL, control::ENABLE);
        self.wait_status(status::READY | status::ENABLED);
    }

    /// Executes a command.
    pub fn command<C: Command>(&mut self, command: &C) -> Result<C::Reply, Status> {
        self.entry(&Entry::new(self.issued, command))
            .map(|c| c.reply().unwrap())
    }

    /// Posts a command, whose id is its index, and does not wait.
    pub fn issue(&mut self, entry: &Entry) {
        let size = RingSize::from_log(LOG_COMMANDS).unwrap();
        let index = self.issued;
        self.issued += 1;
        let at = u64::from(size.slot(index)) * 128;
        let mut entry = *entry;
        entry.id.set(index);
        self.put(self.commands + at, entry.as_bytes());
        self.set_register(reg::CMDQ_PRODUCER, index + 1);
    }

    /// Returns the completion of `index`, if it is written.
    pub fn completion(&self, index: u32) -> Option<Completion> {
        let size = RingSize::from_log(LOG_COMMANDS).unwrap();
        let place = self.completions + u64::from(size.slot(index)) * 128;
        let completion = Completion::read_from_bytes(&self.get(place, 128)).unwrap();
        is_written(size, index, completion.owner.get()).then_some(completion)
    }

    /// Executes what is in an entry, whose id is set here.
    pub fn entry(&mut self, entry: &Entry) -> Result<Completion, Status> {
        let index = self.issued;
        self.issue(entry);
        let completion = self.wait("a completion of a command", |g| g.completion(index));
        self.set_register(reg::CMDQ_CONSUMER, index + 1);
        assert_eq!(completion.id.get(), index);
        match Status::from_wire(completion.status) {
            Some(Status::Ok) => Ok(completion),
            Some(other) => Err(other),
            None => panic!("status {}", completion.status),
        }
    }

    pub fn alloc_pd(&mut self, pdn: u32) {
        let mut command = AllocPd::zeroed();
        command.pdn.set(pdn);
        self.command(&command).unwrap();
    }

    /// Event queues 0 (async) and 1 (completion), PD 1.
    pub fn basics(&mut self) {
        for (eqn, eq_type) in [(0, EqType::Async), (1, EqType::Completion)] {
            let mut command = CreateEq::zeroed();
            command.eqn.set(eqn);
            command.slot.set(eqn);
            command.vector.set(eqn as u16);
            command.eq_type = eq_type.to_wire();
            command.log_entries = self.log_eqe;
            let ring = self.pages(1);
            self.rings[eqn as usize] = ring;
            command.ring = page_list(ring, 1);
            self.command(&command).unwrap();
        }
        self.alloc_pd(1);
    }

    /// Registers `length` bytes at `addr`, which work requests call by the same address.
    pub fn register_memory(&mut self, key: u32, pdn: u32, addr: u64, length: u64, rights: u32) {
        let mut command = CreateMkey::zeroed();
        command.key.set(key);
        command.pdn.set(pdn);
        command.access.set(rights);
        command.start.set(addr);
        command.length.set(length);
        // A level 0 list has one page: 16 MiB that hold all of the memory.
        command.pages = page_list(0, 1);
        command.pages.page_shift = 24;
        command.pages.offset.set(addr);
        self.command(&command).unwrap();
    }

    /// Makes CQ and QP number `n` in PD `pdn`.
    pub fn queue(&mut self, n: u32, pdn: u32) -> Queue {
        self.queue_of(QpType::Rc, n, pdn)
    }

    /// As [`Guest::queue`], of any type.
    pub fn queue_of(&mut self, qp_type: QpType, n: u32, pdn: u32) -> Queue {
        let depth = self.depth;
        let (cq, buffer) = (self.pages(depth.cq_pages()), self.pages(depth.qp_pages()));
        let slot = 512 + 4 * n;
        let mut command = CreateCq::zeroed();
        command.cqn.set(n);
        command.eqn.set(1);
        command.slot.set(slot + 2);
        command.log_entries = depth.cqe;
        command.buffer = contiguous(cq, depth.cq_pages() as u32, self.pages(1), self);
        self.command(&command).unwrap();
        let mut command = CreateQp::zeroed();
        command.qpn.set(n);
        command.pdn.set(pdn);
        command.send_cqn.set(n);
        command.recv_cqn.set(n);
        command.sq_slot.set(slot);
        command.rq_slot.set(slot + 1);
        command.qp_type = qp_type.to_wire();
        if matches!(qp_type, QpType::Smi | QpType::Gsi) {
            command.port = 1;
            command.flags.set(qp_flag::KERNEL);
        }
        command.log_sq_blocks = depth.sq;
        command.log_rq_wqes = depth.rq;
        command.log_rq_stride = LOG_STRIDE;
        command.sq_offset.set(depth.sq_offset());
        command.max_sq_wqe.set(256);
        command.buffer = contiguous(buffer, depth.qp_pages() as u32, self.pages(1), self);
        self.command(&command).unwrap();
        Queue {
            qpn: n,
            slot,
            buffer,
            cq,
            depth,
            consumer: 0,
            sent: 0,
            received: 0,
        }
    }

    /// Brings a QP of datagrams to RTS.
    pub fn open(&mut self, qpn: u32, qkey: u32) {
        let mut a = QpAttr::zeroed();
        a.port = 1;
        a.qkey.set(qkey);
        for (state, mask) in [
            (QpState::Init, attr::PKEY_INDEX | attr::PORT | attr::QKEY),
            (QpState::Rtr, 0),
            (QpState::Rts, attr::SQ_PSN),
        ] {
            a.state = state.to_wire();
            self.modify(qpn, attr::STATE | mask, &a).unwrap();
        }
    }

    /// Connects a QP to another: LID and QP number.
    pub fn connect(&mut self, qpn: u32, lid: u32, peer: u32) {
        let mut a = QpAttr::zeroed();
        a.port = 1;
        a.access
            .set(access::REMOTE_READ | access::REMOTE_WRITE | access::REMOTE_ATOMIC);
        a.path.dlid.set(lid);
        a.path.port = 1;
        a.path_mtu = self.mtu.to_wire();
        a.dest_qpn.set(peer);
        a.rq_psn.set(0xff_fff0);
        a.sq_psn.set(0xff_fff0);
        a.max_rd_atomic = 4;
        a.max_dest_rd_atomic = 4;
        a.min_rnr_timer = 1;
        a.timeout = self.ack_timeout;
        a.retry_count = 7;
        a.rnr_retry = 7;
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            a.state = state.to_wire();
            self.modify(qpn, ATTRIBUTES, &a).unwrap();
        }
    }

    pub fn modify(&mut self, qpn: u32, mask: u32, attr: &QpAttr) -> Result<NoReply, Status> {
        let mut command = ModifyQp::zeroed();
        command.qpn.set(qpn);
        command.mask.set(mask);
        command.attr = *attr;
        self.command(&command)
    }

    /// Posts a receive request.
    pub fn post_recv(&mut self, queue: &mut Queue, segment: DataSeg) {
        self.place_recv(queue, segment);
        self.ring(queue.slot + 1, queue.received.into());
    }

    /// Writes a receive request and does not ring.
    pub fn place_recv(&mut self, queue: &mut Queue, segment: DataSeg) {
        let index = queue.received;
        let ctrl = RecvCtrl {
            num_sge: 1.into(),
            index: index.into(),
            rsvd: 0.into(),
        };
        let slot = RingSize::from_log(queue.depth.rq).unwrap().slot(index);
        let at = queue.buffer + (u64::from(slot) << LOG_STRIDE);
        self.put(at, &[ctrl.as_bytes(), segment.as_bytes()].concat());
        queue.received += 1;
    }

    /// Posts a send request.
    pub fn post_send(&mut self, queue: &mut Queue, opcode: SendOpcode, segments: &[&[u8]]) {
        self.place_send(queue, opcode, send_flag::SIGNALED, segments);
        self.ring(queue.slot, queue.sent.into());
    }

    /// Writes a send request and does not ring.
    pub fn place_send(
        &mut self,
        queue: &mut Queue,
        opcode: SendOpcode,
        flags: u8,
        segments: &[&[u8]],
    ) {
        let mut ctrl = SendCtrl::zeroed();
        ctrl.opcode = opcode.to_wire();
        ctrl.flags = flags;
        ctrl.size = 1 + segments.iter().map(|s| s.len() as u8 / 16).sum::<u8>();
        ctrl.num_sge = 1;
        ctrl.index.set(queue.sent);
        self.place_raw(queue, &[&[ctrl.as_bytes()], segments].concat().concat());
    }

    /// Posts whatever is in a request.
    pub fn post_raw(&mut self, queue: &mut Queue, block: &[u8]) {
        self.place_raw(queue, block);
        self.ring(queue.slot, queue.sent.into());
    }

    fn place_raw(&mut self, queue: &mut Queue, block: &[u8]) {
        let ring = queue.buffer + u64::from(queue.depth.sq_offset());
        for part in block.chunks(BLOCK_SIZE) {
            let slot = RingSize::from_log(queue.depth.sq).unwrap().slot(queue.sent);
            self.put(ring + u64::from(slot) * BLOCK_SIZE as u64, part);
            queue.sent += 1;
        }
    }

    /// Waits for the next completion.
    pub fn poll(&mut self, queue: &mut Queue) -> Cqe {
        self.poll_nth(queue, 1)
    }

    /// Waits for the next `count` completions and returns the last of them.
    pub fn poll_nth(&mut self, queue: &mut Queue, count: u32) -> Cqe {
        let size = RingSize::from_log(queue.depth.cqe).unwrap();
        let index = queue.consumer + count - 1;
        let at = queue.cq + u64::from(size.slot(index)) * 64;
        let cqe = self.wait("a completion", |g| {
            let cqe = Cqe::read_from_bytes(&g.get(at, 64)).unwrap();
            is_written(size, index, cqe.owner.get()).then_some(cqe)
        });
        queue.consumer += count;
        let record = queue.cq + u64::from(size.entries()) * 64;
        self.put(record, &queue.consumer.to_le_bytes());
        cqe
    }
}

/// Makes a message of the protocol.
pub fn message(command: u16, flags: u32, body: &[u8]) -> Vec<u8> {
    let mut message = 7u16.to_ne_bytes().to_vec();
    message.extend_from_slice(&command.to_ne_bytes());
    message.extend_from_slice(&(16 + body.len() as u32).to_ne_bytes());
    message.extend_from_slice(&flags.to_ne_bytes());
    message.extend_from_slice(&[0; 4]);
    message.extend_from_slice(body);
    message
}

/// Takes the interrupts of a vector, if there are any.
pub fn pending(vector: &OwnedFd) -> Option<u64> {
    let mut count = [0; 8];
    let read = rustix::io::read(vector, &mut count);
    read.is_ok().then(|| u64::from_ne_bytes(count))
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

pub fn segment(addr: u64, length: u32, lkey: u32) -> DataSeg {
    DataSeg {
        addr: addr.into(),
        length: length.into(),
        lkey: lkey.into(),
    }
}

pub fn remote(addr: u64, rkey: u32) -> RemoteSeg {
    RemoteSeg {
        addr: addr.into(),
        rkey: rkey.into(),
        rsvd: 0.into(),
    }
}

/// An entry with a reserved byte of its operands set, if they have one.
pub fn dirty<C: Command + Described + Immutable>(command: &C) -> Option<Entry> {
    let field = C::FIELDS.iter().find(|f| f.is_reserved())?;
    let mut entry = Entry::new(0, command);
    entry.payload[field.offset] = 1;
    Some(entry)
}
