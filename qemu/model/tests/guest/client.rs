// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The vfio-user client.

use super::Guest;
use qiao_model::mem::SlotMemory;
use rustix::event::{eventfd, EventfdFlags};
use rustix::io::Errno;
use rustix::net::{
    recvmsg, sendmsg, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use std::fs::File;
use std::io::{IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

impl Guest {
    /// Asks for a region as QEMU does: with room for its description, and again with what that says.
    pub(super) fn region_memory(&mut self, region: u32) -> Option<SlotMemory> {
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
    pub(super) fn call(&mut self, command: u16, body: &[u8], with_memory: bool) -> Vec<u8> {
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

    /// Reads 4 bytes of a region.
    pub fn read(&mut self, region: u32, offset: u64) -> u32 {
        let reply = self.call(9, &Self::access(region, offset, 4), false);
        u32::from_le_bytes(reply[16..20].try_into().unwrap())
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
