// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Messages of the vfio-user protocol.
//!
//! Numbers are in the byte order of the host, which both sides share.

use super::Errno;
use serde::{Deserialize, Serialize};
use vfio_bindings::bindings::vfio;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of a message header.
pub const HEADER_SIZE: usize = 16;

/// Most bytes that one access to a region may move; what the server offers as
/// `max_data_xfer_size`.
pub const MAX_DATA: usize = 1 << 20;

/// Most bytes of a message: the data of a region write and room for everything before it.
pub const MAX_MESSAGE: usize = MAX_DATA + 4096;

/// Most file descriptors of a message; what the server offers as `max_msg_fds`.
pub const MAX_FDS: usize = 16;

/// Most accesses of one REGION_WRITE_MULTI.
pub const MAX_WRITES: usize = 200;

macro_rules! message {
    ($(#[$meta:meta])* $vis:vis struct $name:ident { $($(#[$fmeta:meta])* $field:ident: $ty:ty,)* }) => {
        $(#[$meta])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
        $vis struct $name { $($(#[$fmeta])* pub $field: $ty,)* }
    };
}

message! {
    /// Head of every message.
    pub struct Header {
        /// Ties a reply to its request.
        id: u16,
        /// What the message is.
        command: u16,
        /// Bytes of the message, this header included.
        size: u32,
        /// Bits 3:0 type (0 request, 1 reply), bit 4 no reply wanted, bit 5 error.
        flags: u32,
        /// Error of a reply.
        error: u32,
    }
}

/// Type of a message in [`Header::flags`].
const TYPE_MASK: u32 = 0xf;
const TYPE_REPLY: u32 = 1;
const FLAG_NO_REPLY: u32 = 1 << 4;
const FLAG_ERROR: u32 = 1 << 5;

impl Header {
    /// Reads the header of a message and checks its size.
    ///
    /// # Errors
    ///
    /// EMSGSIZE or EINVAL; the stream cannot be used any more.
    pub fn parse(bytes: &[u8; HEADER_SIZE]) -> Result<Self, Errno> {
        let header = Self::read_from_bytes(bytes).map_err(|_| Errno::INVAL)?;
        let size = header.size as usize;
        if size > MAX_MESSAGE {
            return Err(Errno::MSGSIZE);
        }
        if size < HEADER_SIZE || header.flags & TYPE_MASK != 0 {
            return Err(Errno::INVAL);
        }
        Ok(header)
    }

    /// Returns whether the client waits for a reply.
    pub fn wants_reply(&self) -> bool {
        self.flags & FLAG_NO_REPLY == 0
    }
}

message! {
    struct Version {
        major: u16,
        minor: u16,
    }
}

message! {
    struct DmaMap {
        argsz: u32,
        flags: u32,
        offset: u64,
        addr: u64,
        size: u64,
    }
}

message! {
    struct DmaUnmap {
        argsz: u32,
        flags: u32,
        addr: u64,
        size: u64,
    }
}

message! {
    struct DeviceInfo {
        argsz: u32,
        flags: u32,
        regions: u32,
        irqs: u32,
    }
}

message! {
    struct RegionInfo {
        argsz: u32,
        flags: u32,
        index: u32,
        cap_offset: u32,
        size: u64,
        offset: u64,
    }
}

message! {
    /// Capability of a region: which part of it the client may map.
    struct SparseMmap {
        id: u16,
        version: u16,
        next: u32,
        areas: u32,
        reserved: u32,
        offset: u64,
        size: u64,
    }
}

message! {
    struct IrqInfo {
        argsz: u32,
        flags: u32,
        index: u32,
        count: u32,
    }
}

message! {
    struct IrqSet {
        argsz: u32,
        flags: u32,
        index: u32,
        start: u32,
        count: u32,
    }
}

message! {
    struct Access {
        offset: u64,
        region: u32,
        count: u32,
    }
}

message! {
    struct MultiAccess {
        offset: u64,
        region: u32,
        count: u32,
        data: [u8; 8],
    }
}

mod command {
    pub const VERSION: u16 = 1;
    pub const DMA_MAP: u16 = 2;
    pub const DMA_UNMAP: u16 = 3;
    pub const DEVICE_GET_INFO: u16 = 4;
    pub const DEVICE_GET_REGION_INFO: u16 = 5;
    pub const DEVICE_GET_IRQ_INFO: u16 = 7;
    pub const DEVICE_SET_IRQS: u16 = 8;
    pub const REGION_READ: u16 = 9;
    pub const REGION_WRITE: u16 = 10;
    pub const DEVICE_RESET: u16 = 13;
    pub const REGION_WRITE_MULTI: u16 = 15;
}

/// Rights of DMA_MAP.
const MAP_READ: u32 = 1 << 0;
const MAP_WRITE: u32 = 1 << 1;
/// Flag of DMA_UNMAP.
const UNMAP_ALL: u32 = 1 << 1;

/// What SET_IRQS does with the vectors it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IrqOperation {
    /// Binds event descriptors that come with the message; missing ones unbind.
    Bind,
    /// Raises the vectors; without any, unbinds all.
    Raise,
}

/// One access of REGION_WRITE_MULTI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SmallWrite {
    /// Region.
    pub region: u32,
    /// Offset in it.
    pub offset: u64,
    /// Number of bytes that count in `data`.
    pub count: usize,
    /// The bytes.
    pub data: [u8; 8],
}

/// A request, borrowing its data from the message.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "fields are those of the specification")]
pub enum Request<'a> {
    Version {
        major: u16,
        minor: u16,
        max_fds: usize,
    },
    DmaMap {
        addr: u64,
        size: u64,
        offset: u64,
        read: bool,
        write: bool,
    },
    DmaUnmap {
        addr: u64,
        size: u64,
        all: bool,
    },
    DeviceInfo,
    RegionInfo {
        index: u32,
        /// Bytes that the client has for the answer.
        room: usize,
    },
    IrqInfo {
        index: u32,
    },
    SetIrqs {
        index: u32,
        start: u32,
        count: u32,
        operation: IrqOperation,
    },
    Read {
        region: u32,
        offset: u64,
        count: usize,
    },
    Write {
        region: u32,
        offset: u64,
        data: &'a [u8],
    },
    WriteMulti(Vec<SmallWrite>),
    Reset,
}

/// Takes a structure off the front of a body.
fn take<T: FromBytes>(body: &[u8]) -> Result<(T, &[u8]), Errno> {
    T::read_from_prefix(body).map_err(|_| Errno::INVAL)
}

impl<'a> Request<'a> {
    /// Reads the request of a message from its header and what follows it.
    ///
    /// # Errors
    ///
    /// What the client gets: EINVAL if the message is malformed, E2BIG if it wants too much, ENOTSUP
    /// if the command is not known or not supported.
    pub fn parse(header: &Header, body: &'a [u8]) -> Result<Self, Errno> {
        match header.command {
            command::VERSION => version(body),
            command::DMA_MAP => dma_map(body),
            command::DMA_UNMAP => dma_unmap(body),
            command::DEVICE_GET_INFO => Ok(Self::DeviceInfo),
            command::DEVICE_GET_REGION_INFO => {
                let info = take::<RegionInfo>(body)?.0;
                Ok(Self::RegionInfo {
                    index: info.index,
                    room: info.argsz as usize,
                })
            }
            command::DEVICE_GET_IRQ_INFO => Ok(Self::IrqInfo {
                index: take::<IrqInfo>(body)?.0.index,
            }),
            command::DEVICE_SET_IRQS => set_irqs(body),
            command::REGION_READ => read(body),
            command::REGION_WRITE => write(body),
            command::DEVICE_RESET => Ok(Self::Reset),
            command::REGION_WRITE_MULTI => write_multi(body),
            _ => Err(Errno::NOTSUP),
        }
    }
}

/// The JSON of VERSION. Keys that are not known are left alone, as the specification demands.
#[derive(Debug, Default, Deserialize, Serialize)]
struct VersionData {
    #[serde(default)]
    capabilities: Capabilities,
}

#[derive(Debug, Default, Deserialize, Serialize)]
struct Capabilities {
    #[serde(skip_serializing_if = "Option::is_none")]
    max_msg_fds: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_data_xfer_size: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pgsizes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    write_multiple: Option<bool>,
}

fn version(body: &[u8]) -> Result<Request<'_>, Errno> {
    let (version, json) = take::<Version>(body)?;
    let data: VersionData = match json.split_last() {
        None => VersionData::default(),
        Some((0, json)) => serde_json::from_slice(json).map_err(|_| Errno::INVAL)?,
        Some(_) => return Err(Errno::INVAL),
    };
    Ok(Request::Version {
        major: version.major,
        minor: version.minor,
        // The specification's default.
        max_fds: data.capabilities.max_msg_fds.unwrap_or(1),
    })
}

fn dma_map(body: &[u8]) -> Result<Request<'_>, Errno> {
    let (map, _) = take::<DmaMap>(body)?;
    if map.flags & !(MAP_READ | MAP_WRITE) != 0 {
        return Err(Errno::INVAL);
    }
    Ok(Request::DmaMap {
        addr: map.addr,
        size: map.size,
        offset: map.offset,
        read: map.flags & MAP_READ != 0,
        write: map.flags & MAP_WRITE != 0,
    })
}

fn dma_unmap(body: &[u8]) -> Result<Request<'_>, Errno> {
    let (unmap, _) = take::<DmaUnmap>(body)?;
    // The other flag asks for dirty pages, which the server does not offer.
    if unmap.flags & !UNMAP_ALL != 0 {
        return Err(Errno::NOTSUP);
    }
    let all = unmap.flags & UNMAP_ALL != 0;
    if all && (unmap.addr != 0 || unmap.size != 0) {
        return Err(Errno::INVAL);
    }
    Ok(Request::DmaUnmap {
        addr: unmap.addr,
        size: unmap.size,
        all,
    })
}

fn set_irqs(body: &[u8]) -> Result<Request<'_>, Errno> {
    let (set, _) = take::<IrqSet>(body)?;
    if set.start.checked_add(set.count).is_none() {
        return Err(Errno::INVAL);
    }
    // Masking is the client's own for MSI-X.
    if set.flags & vfio::VFIO_IRQ_SET_ACTION_TYPE_MASK != vfio::VFIO_IRQ_SET_ACTION_TRIGGER {
        return Err(Errno::NOTSUP);
    }
    let operation = match set.flags & vfio::VFIO_IRQ_SET_DATA_TYPE_MASK {
        vfio::VFIO_IRQ_SET_DATA_EVENTFD => IrqOperation::Bind,
        vfio::VFIO_IRQ_SET_DATA_NONE => IrqOperation::Raise,
        vfio::VFIO_IRQ_SET_DATA_BOOL => return Err(Errno::NOTSUP),
        _ => return Err(Errno::INVAL),
    };
    Ok(Request::SetIrqs {
        index: set.index,
        start: set.start,
        count: set.count,
        operation,
    })
}

fn read(body: &[u8]) -> Result<Request<'_>, Errno> {
    let (access, _) = take::<Access>(body)?;
    let count = access.count as usize;
    if count > MAX_DATA {
        return Err(Errno::TOOBIG);
    }
    Ok(Request::Read {
        region: access.region,
        offset: access.offset,
        count,
    })
}

fn write(body: &[u8]) -> Result<Request<'_>, Errno> {
    let (access, data) = take::<Access>(body)?;
    let data = data.get(..access.count as usize).ok_or(Errno::INVAL)?;
    Ok(Request::Write {
        region: access.region,
        offset: access.offset,
        data,
    })
}

fn write_multi(body: &[u8]) -> Result<Request<'_>, Errno> {
    let (count, mut rest) = take::<u64>(body)?;
    if count > MAX_WRITES as u64 {
        return Err(Errno::TOOBIG);
    }
    let mut writes = Vec::with_capacity(count as usize);
    for _ in 0..count {
        let (access, tail) = take::<MultiAccess>(rest)?;
        rest = tail;
        let count = access.count as usize;
        if count > access.data.len() {
            return Err(Errno::INVAL);
        }
        writes.push(SmallWrite {
            region: access.region,
            offset: access.offset,
            count,
            data: access.data,
        });
    }
    Ok(Request::WriteMulti(writes))
}

/// A reply under construction.
#[derive(Debug, Default)]
pub struct Reply {
    bytes: Vec<u8>,
}

impl Reply {
    /// Starts a reply to the message with `header`.
    pub fn start(&mut self, header: &Header) {
        self.bytes.clear();
        let reply = Header {
            flags: TYPE_REPLY,
            error: 0,
            size: 0,
            ..*header
        };
        self.push(&reply);
    }

    /// Fills in the size, and with an error drops everything but the header; returns the message.
    pub fn finish(&mut self, result: Result<(), Errno>) -> &[u8] {
        if let Err(error) = result {
            self.bytes.truncate(HEADER_SIZE);
            self.patch(8, TYPE_REPLY | FLAG_ERROR);
            // CAST: Error numbers are positive.
            self.patch(12, error.raw_os_error() as u32);
        }
        // CAST: No reply is larger than `MAX_MESSAGE`.
        self.patch(4, self.bytes.len() as u32);
        &self.bytes
    }

    fn patch(&mut self, at: usize, value: u32) {
        self.bytes[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    }

    fn push<T: IntoBytes + Immutable>(&mut self, value: &T) {
        self.bytes.extend_from_slice(value.as_bytes());
    }

    /// Appends the version and capabilities of this server.
    pub fn version(&mut self) {
        // The lowest minor version serves every client.
        self.push(&Version { major: 0, minor: 0 });
        let data = VersionData {
            capabilities: Capabilities {
                max_msg_fds: Some(MAX_FDS),
                max_data_xfer_size: Some(MAX_DATA),
                pgsizes: Some(4096),
                write_multiple: Some(true),
            },
        };
        let json = serde_json::to_vec(&data).expect("numbers and flags can be written");
        self.bytes.extend_from_slice(&json);
        self.bytes.push(0);
    }

    /// Appends what DMA_UNMAP answers.
    pub fn dma_unmap(&mut self, addr: u64, size: u64, all: bool) {
        let flags = if all { UNMAP_ALL } else { 0 };
        self.push(&DmaUnmap {
            argsz: size_of::<DmaUnmap>() as u32,
            flags,
            addr,
            size,
        });
    }

    /// Appends the description of a PCI device that can be reset.
    pub fn device_info(&mut self) {
        self.push(&DeviceInfo {
            argsz: size_of::<DeviceInfo>() as u32,
            flags: vfio::VFIO_DEVICE_FLAGS_PCI | vfio::VFIO_DEVICE_FLAGS_RESET,
            regions: vfio::VFIO_PCI_NUM_REGIONS,
            irqs: vfio::VFIO_PCI_NUM_IRQS,
        });
    }

    /// Appends the description of a region, and if all of it can be mapped, a capability that says so.
    /// A client that has not enough `room` for that gets the size that it needs, and asks again. Returns
    /// whether the file of the region goes with the reply.
    pub fn region_info(&mut self, index: u32, size: u64, mappable: bool, room: usize) -> bool {
        let mut flags = vfio::VFIO_REGION_INFO_FLAG_READ | vfio::VFIO_REGION_INFO_FLAG_WRITE;
        let mut argsz = size_of::<RegionInfo>();
        let mut cap_offset = 0;
        if size == 0 {
            flags = 0;
        } else if mappable {
            flags |= vfio::VFIO_REGION_INFO_FLAG_MMAP | vfio::VFIO_REGION_INFO_FLAG_CAPS;
            // Also without room for it: QEMU checks where it lies.
            cap_offset = argsz as u32;
            argsz += size_of::<SparseMmap>();
        }
        let fits = flags & vfio::VFIO_REGION_INFO_FLAG_CAPS != 0 && room >= argsz;
        self.push(&RegionInfo {
            argsz: argsz as u32,
            flags,
            index,
            cap_offset,
            size,
            offset: 0,
        });
        if fits {
            // CAST: The number is 1.
            self.push(&SparseMmap {
                id: vfio::VFIO_REGION_INFO_CAP_SPARSE_MMAP as u16,
                version: 1,
                next: 0,
                areas: 1,
                reserved: 0,
                offset: 0,
                size,
            });
        }
        fits
    }

    /// Appends the description of an interrupt index.
    pub fn irq_info(&mut self, index: u32, count: u32) {
        self.push(&IrqInfo {
            argsz: size_of::<IrqInfo>() as u32,
            flags: if count == 0 {
                0
            } else {
                vfio::VFIO_IRQ_INFO_EVENTFD
            },
            index,
            count,
        });
    }

    /// Appends the head of what an access answers and `count` bytes, which it returns.
    pub fn access(&mut self, region: u32, offset: u64, count: usize) -> &mut [u8] {
        // CAST: `Request::parse` bounds it.
        self.push(&Access {
            offset,
            region,
            count: count as u32,
        });
        let at = self.bytes.len();
        self.bytes.resize(at + count, 0);
        &mut self.bytes[at..]
    }

    /// Appends the head of what a write answers.
    pub fn written(&mut self, region: u32, offset: u64, count: usize) {
        // CAST: A message is shorter than 4 GiB.
        self.push(&Access {
            offset,
            region,
            count: count as u32,
        });
    }

    /// Appends what REGION_WRITE_MULTI answers.
    pub fn written_multi(&mut self, count: usize) {
        self.push(&(count as u64));
    }
}

#[cfg(test)]
mod tests;
