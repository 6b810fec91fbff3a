// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Protection entries: what a key allows and where its bytes are.

use super::buffer::Buffer;
use super::id_map::IdMap;
use crate::mem::{Dma, DmaFault};
use crate::transport::Fault;
use qiao_hw::qp::access;

/// Where the bytes of a region are.
#[derive(Debug)]
pub enum Memory {
    /// In the pages of a list.
    Pages(Buffer),
    /// At the DMA addresses that requests give.
    Physical,
}

/// A protection entry.
#[derive(Debug)]
pub struct Mkey {
    /// Low 8 bits of the key.
    pub variant: u8,
    /// PD number.
    pub pdn: u32,
    /// Rights; bits of `qiao_hw::qp::access`.
    pub access: u32,
    /// First address.
    pub start: u64,
    /// Bytes.
    pub length: u64,
    /// The memory.
    pub memory: Memory,
}

/// Who uses a key, and for what.
#[derive(Clone, Copy, Debug)]
pub struct Use {
    /// PD of the queue pair.
    pub pdn: u32,
    /// Whether the queue pair belongs to the kernel and may use physical keys.
    pub kernel: bool,
    /// Rights that the entry must give; 0 for a local read.
    pub access: u32,
}

/// A use of a key that it does not allow, or memory that cannot be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyFault;

impl From<KeyFault> for Fault {
    fn from(_: KeyFault) -> Self {
        Self
    }
}

impl From<DmaFault> for KeyFault {
    fn from(_: DmaFault) -> Self {
        Self
    }
}

/// Memory behind a key that was checked.
#[derive(Clone, Copy, Debug)]
pub struct Checked<'a> {
    memory: &'a Memory,
    /// Offset in the buffer, or DMA address.
    at: u64,
}

impl<'a> Checked<'a> {
    /// Returns the memory from byte `offset` of what was checked on.
    pub fn at(self, offset: u64) -> Checked<'a> {
        // What was checked does not wrap.
        Checked {
            at: self.at + offset,
            ..self
        }
    }

    /// Copies the memory into `out`.
    ///
    /// # Errors
    ///
    /// If it cannot be reached.
    pub fn read(&self, dma: &Dma, out: &mut [u8]) -> Result<(), KeyFault> {
        match self.memory {
            Memory::Pages(buffer) => buffer.read(dma, self.at, out)?,
            Memory::Physical => dma.read(self.at, out)?,
        }
        Ok(())
    }

    /// Copies `data` to the memory.
    ///
    /// # Errors
    ///
    /// If it cannot be reached; part may have been written.
    pub fn write(&self, dma: &Dma, data: &[u8]) -> Result<(), KeyFault> {
        match self.memory {
            Memory::Pages(buffer) => buffer.write(dma, self.at, data)?,
            Memory::Physical => dma.write_bytes(self.at, data)?,
        }
        Ok(())
    }

    /// Does an atomic operation on 8 bytes and returns what they were.
    ///
    /// # Errors
    ///
    /// If they cannot be reached.
    pub fn update_u64(&self, dma: &Dma, change: impl Fn(u64) -> u64) -> Result<u64, KeyFault> {
        Ok(match self.memory {
            Memory::Pages(buffer) => buffer.update_u64(dma, self.at, change)?,
            Memory::Physical => dma.update_u64(self.at, change)?,
        })
    }
}

/// The protection entries of a device, by index.
#[derive(Debug, Default)]
pub struct Mkeys {
    entries: IdMap<Mkey>,
    pages: usize,
}

/// Splits a key into index and variant.
pub fn key_parts(key: u32) -> (u32, u8) {
    // CAST: The variant is the low 8 bits.
    (key >> 8, key as u8)
}

/// Returns whether rights make sense on a region: known, and remote changes only where local ones
/// are allowed (IBTA 10.6.3.1).
pub fn rights_are_valid(rights: u32) -> bool {
    const KNOWN: u32 = access::LOCAL_WRITE
        | access::REMOTE_WRITE
        | access::REMOTE_READ
        | access::REMOTE_ATOMIC
        | access::MW_BIND
        | access::ZERO_BASED
        | access::RELAXED_ORDERING
        | access::FLUSH_GLOBAL;
    let changes = rights & (access::REMOTE_WRITE | access::REMOTE_ATOMIC) != 0;
    rights & !KNOWN == 0 && (!changes || rights & access::LOCAL_WRITE != 0)
}

impl Mkeys {
    /// Returns the entry of a key, whatever its variant.
    pub fn get(&self, index: u32) -> Option<&Mkey> {
        self.entries.get(&index)
    }

    /// Returns the pages that all entries keep.
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// Adds an entry at an index that is free.
    pub fn insert(&mut self, index: u32, mkey: Mkey) {
        self.pages += mkey.pages();
        let old = self.entries.insert(index, mkey);
        debug_assert!(old.is_none());
    }

    /// Removes an entry.
    pub fn remove(&mut self, index: u32) {
        if let Some(mkey) = self.entries.remove(&index) {
            self.pages -= mkey.pages();
        }
    }

    /// Returns the number of entries.
    pub fn count(&self) -> usize {
        self.entries.len()
    }

    /// Checks a use of a key, of whatever bytes.
    ///
    /// # Errors
    ///
    /// If the key is not one, or its PD or rights differ.
    pub fn check_key(&self, key: u32, by: Use) -> Result<&Mkey, KeyFault> {
        let (index, variant) = key_parts(key);
        let mkey = self.entries.get(&index).ok_or(KeyFault)?;
        if mkey.variant != variant || mkey.pdn != by.pdn || mkey.access & by.access != by.access {
            return Err(KeyFault);
        }
        Ok(mkey)
    }

    /// Checks a use of `length` bytes at `va`.
    ///
    /// # Errors
    ///
    /// If the key is not one, its PD or rights differ, or the bytes are not within the region.
    pub fn check(&self, key: u32, by: Use, va: u64, length: u64) -> Result<Checked<'_>, KeyFault> {
        let mkey = self.check_key(key, by)?;
        let at = match &mkey.memory {
            Memory::Physical if by.kernel => {
                va.checked_add(length).ok_or(KeyFault)?;
                va
            }
            Memory::Physical => return Err(KeyFault),
            Memory::Pages(_) => {
                let start = if mkey.access & access::ZERO_BASED == 0 {
                    mkey.start
                } else {
                    0
                };
                let offset = va.checked_sub(start).ok_or(KeyFault)?;
                let end = offset.checked_add(length).ok_or(KeyFault)?;
                if end > mkey.length {
                    return Err(KeyFault);
                }
                offset
            }
        };
        Ok(Checked {
            memory: &mkey.memory,
            at,
        })
    }
}

impl Mkey {
    fn pages(&self) -> usize {
        match &self.memory {
            Memory::Pages(buffer) => buffer.pages(),
            Memory::Physical => 0,
        }
    }
}
