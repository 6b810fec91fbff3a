// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The server loop: one receive and at most one send per message.

use super::proto::{Header, IrqOperation, Reply, Request, HEADER_SIZE, MAX_FDS};
use super::{Device, DmaRange, Errno, IrqAction, Region};
use rustix::net::{
    recvmsg, sendmsg, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown,
};
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes that a receive offers at least: any message but a bulk write comes in one piece.
const CHUNK: usize = 8192;

#[derive(Debug, Default)]
struct StopState {
    stopped: bool,
    client: Option<UnixStream>,
}

/// Ends a server from another thread.
#[derive(Clone, Debug)]
pub struct Stop {
    listener: Arc<UnixListener>,
    state: Arc<Mutex<StopState>>,
}

impl Stop {
    /// Makes [`Server::run`] return: no client is accepted any more and the connection of the one
    /// that is served is closed.
    ///
    /// # Errors
    ///
    /// If a socket cannot be shut down.
    pub fn stop(&self) -> io::Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.stopped = true;
        rustix::net::shutdown(&self.listener, Shutdown::Both)?;
        match state.client.take() {
            None => Ok(()),
            Some(client) => match client.shutdown(std::net::Shutdown::Both) {
                // The client was faster.
                Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
                other => other,
            },
        }
    }
}

/// A listening socket and the clients that come, one at a time. The socket's file is removed when
/// the server is dropped.
#[derive(Debug)]
pub struct Server {
    path: PathBuf,
    listener: Arc<UnixListener>,
    state: Arc<Mutex<StopState>>,
}

impl Server {
    /// Listens at `path`, which must not exist.
    ///
    /// # Errors
    ///
    /// If the socket cannot be made.
    pub fn bind(path: &Path) -> io::Result<Self> {
        Ok(Self {
            path: path.to_owned(),
            listener: Arc::new(UnixListener::bind(path)?),
            state: Arc::default(),
        })
    }

    /// Returns what ends the server.
    pub fn stopper(&self) -> Stop {
        Stop {
            listener: Arc::clone(&self.listener),
            state: Arc::clone(&self.state),
        }
    }

    /// Serves one client after the other until [`Stop::stop`].
    ///
    /// # Errors
    ///
    /// If no client can be accepted. Errors of a client end only its connection.
    pub fn run(&self, device: &mut dyn Device) -> io::Result<()> {
        while let Some(client) = self.accept()? {
            if let Err(error) = Connection::new(client).serve(device) {
                log::warn!("{}: connection closed: {error}", self.path.display());
            }
            device.disconnected();
            self.state
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .client = None;
        }
        Ok(())
    }

    fn accept(&self) -> io::Result<Option<UnixStream>> {
        let accepted = self.listener.accept();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.stopped {
            return Ok(None);
        }
        let (client, _) = accepted?;
        state.client = Some(client.try_clone()?);
        Ok(Some(client))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            log::warn!("{}: {error}", self.path.display());
        }
    }
}

/// The bytes and descriptors that have come but are not used up.
struct Connection {
    stream: UnixStream,
    buffer: Vec<u8>,
    /// Where the unused bytes begin.
    start: usize,
    /// Descriptors of the message that the last received byte belongs to: the kernel ends a receive
    /// behind data that carries descriptors.
    fds: Vec<File>,
    reply: Reply,
}

impl Connection {
    fn new(stream: UnixStream) -> Self {
        Self {
            stream,
            buffer: Vec::new(),
            start: 0,
            fds: Vec::new(),
            reply: Reply::default(),
        }
    }

    fn serve(&mut self, device: &mut dyn Device) -> io::Result<()> {
        while self.fill(HEADER_SIZE)? {
            let head = self.buffer[self.start..]
                .first_chunk()
                .expect("`fill` got a header");
            let header = Header::parse(head)?;
            let size = header.size as usize;
            if !self.fill(size)? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let end = self.start + size;
            let mut fds = if end == self.buffer.len() {
                std::mem::take(&mut self.fds)
            } else {
                Vec::new()
            };
            self.reply.start(&header);
            let body = &self.buffer[self.start + HEADER_SIZE..end];
            let result = answer(device, &header, body, &mut fds, &mut self.reply);
            self.start = end;
            if header.wants_reply() {
                let (result, file) = match result {
                    Ok(file) => (Ok(()), file),
                    Err(error) => (Err(error), None),
                };
                send(&self.stream, self.reply.finish(result), file)?;
            }
        }
        Ok(())
    }

    /// Receives until there are `want` unused bytes; returns false if the client has closed before
    /// the first of them.
    fn fill(&mut self, want: usize) -> io::Result<bool> {
        if self.start == self.buffer.len() {
            self.buffer.clear();
            self.start = 0;
        }
        while self.buffer.len() - self.start < want {
            if self.receive(want)? == 0 {
                if self.buffer.len() == self.start {
                    return Ok(false);
                }
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(true)
    }

    fn receive(&mut self, want: usize) -> io::Result<usize> {
        self.buffer.drain(..self.start);
        self.start = 0;
        let old = self.buffer.len();
        self.buffer.resize(old + CHUNK.max(want - old), 0);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received = loop {
            let mut iov = [IoSliceMut::new(&mut self.buffer[old..])];
            match recvmsg(
                &self.stream,
                &mut iov,
                &mut ancillary,
                RecvFlags::CMSG_CLOEXEC,
            ) {
                Err(Errno::INTR) => {}
                other => break other,
            }
        };
        let received = match received {
            Ok(received) => received,
            Err(error) => {
                self.buffer.truncate(old);
                return Err(error.into());
            }
        };
        self.buffer.truncate(old + received.bytes);
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                self.fds.extend(fds.map(File::from));
            }
        }
        if received.flags.contains(ReturnFlags::CTRUNC) || self.fds.len() > MAX_FDS {
            return Err(io::Error::other("too many file descriptors"));
        }
        Ok(received.bytes)
    }
}

/// Sends a message, and with it a descriptor if there is one.
fn send(mut stream: &UnixStream, message: &[u8], file: Option<OwnedFd>) -> io::Result<()> {
    let Some(file) = file else {
        return stream.write_all(message);
    };
    let fds = [file.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let fits = ancillary.push(SendAncillaryMessage::ScmRights(&fds));
    debug_assert!(fits);
    let iov = [IoSlice::new(message)];
    let sent = sendmsg(stream, &iov, &mut ancillary, SendFlags::NOSIGNAL)?;
    // The descriptor went with the first part.
    stream.write_all(&message[sent..])
}

/// Answers a request; returns the descriptor that goes with the reply.
fn answer(
    device: &mut dyn Device,
    header: &Header,
    body: &[u8],
    fds: &mut Vec<File>,
    reply: &mut Reply,
) -> Result<Option<OwnedFd>, Errno> {
    match Request::parse(header, body)? {
        Request::Version { major: 0, .. } => reply.version(),
        Request::Version { .. } => return Err(Errno::INVAL),
        Request::DmaMap {
            addr,
            size,
            offset,
            read,
            write,
        } => {
            let file = fds.pop().map(|file| (file, offset));
            device.dma_map(DmaRange {
                addr,
                size,
                read,
                write,
                file,
            })?;
        }
        Request::DmaUnmap { addr, size, all } => {
            device.dma_unmap((!all).then_some((addr, size)))?;
            reply.dma_unmap(addr, size, all);
        }
        Request::DeviceInfo => reply.device_info(),
        Request::RegionInfo { index, room } => {
            let Region { size, memory } = device.region(index).ok_or(Errno::INVAL)?;
            let with_file = reply.region_info(index, size, memory.is_some(), room);
            if let Some(memory) = memory.filter(|_| with_file) {
                return Ok(Some(rustix::io::fcntl_dupfd_cloexec(memory, 0)?));
            }
        }
        Request::IrqInfo { index } => {
            let count = device.irqs(index).ok_or(Errno::INVAL)?;
            reply.irq_info(index, count);
        }
        Request::SetIrqs {
            index,
            start,
            count,
            operation,
        } => {
            let action = irq_action(device, index, start, count, operation, fds)?;
            device.set_irqs(index, action)?;
        }
        Request::Read {
            region,
            offset,
            count,
        } => {
            check(device, region, offset, count)?;
            device.read(region, offset, reply.access(region, offset, count))?;
        }
        Request::Write {
            region,
            offset,
            data,
        } => {
            write(device, region, offset, data)?;
            reply.written(region, offset, data.len());
        }
        Request::WriteMulti(writes) => {
            for one in &writes {
                write(device, one.region, one.offset, &one.data[..one.count])?;
            }
            reply.written_multi(writes.len());
        }
        Request::Reset => device.reset(),
    }
    Ok(None)
}

fn irq_action(
    device: &dyn Device,
    index: u32,
    start: u32,
    count: u32,
    operation: IrqOperation,
    fds: &mut Vec<File>,
) -> Result<IrqAction, Errno> {
    let vectors = device.irqs(index).ok_or(Errno::INVAL)?;
    if start + count > vectors {
        return Err(Errno::INVAL);
    }
    match operation {
        IrqOperation::Raise if count == 0 => Ok(IrqAction::UnbindAll),
        IrqOperation::Raise => Ok(IrqAction::Raise { start, count }),
        IrqOperation::Bind => {
            let mut given = fds.drain(..);
            let fds = (0..count).map(|_| given.next()).collect();
            Ok(IrqAction::Bind { start, fds })
        }
    }
}

fn check(device: &dyn Device, region: u32, offset: u64, count: usize) -> Result<(), Errno> {
    let size = device.region(region).ok_or(Errno::INVAL)?.size;
    let end = offset.checked_add(count as u64).ok_or(Errno::INVAL)?;
    if end > size {
        return Err(Errno::INVAL);
    }
    Ok(())
}

fn write(device: &mut dyn Device, region: u32, offset: u64, data: &[u8]) -> Result<(), Errno> {
    check(device, region, offset, data.len())?;
    device.write(region, offset, data)
}
