// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The command queue: the rings, not what the commands do.

use crate::mem::Dma;
use crate::shared::{CommandQueueSetup, FatalCause};
use qiao_hw::bar::cmdq_config_parts;
use qiao_hw::caps::Caps;
use qiao_hw::cmd::{Completion, Entry};
use qiao_hw::ring::{owner, used, RingSize};
use zerocopy::{FromZeros, IntoBytes};

const ENTRY_SIZE: u64 = size_of::<Entry>() as u64;

/// A command queue that runs.
#[derive(Debug)]
pub struct CommandQueue {
    setup: CommandQueueSetup,
    size: RingSize,
    /// MSI-X vector of completions.
    pub vector: u16,
    producer: u32,
    next: u32,
    completion_producer: u32,
    completion_consumer: u32,
}

impl CommandQueue {
    /// Makes an empty queue.
    ///
    /// # Errors
    ///
    /// If the registers do not describe one that `caps` allows.
    pub fn new(setup: CommandQueueSetup, caps: &Caps) -> Result<Self, FatalCause> {
        const BAD: FatalCause = FatalCause::CommandQueueConfig;
        let (log, vector) = cmdq_config_parts(setup.config).ok_or(BAD)?;
        let bases_aligned = (setup.base | setup.completion_base) % 4096 == 0;
        if !bases_aligned || log > caps.log_max_cmds || vector >= caps.num_vectors.get() {
            return Err(BAD);
        }
        Ok(Self {
            setup,
            size: RingSize::from_log(log).ok_or(BAD)?,
            vector,
            producer: 0,
            next: 0,
            completion_producer: 0,
            completion_consumer: 0,
        })
    }

    /// Takes the value of CMDQ_PRODUCER.
    ///
    /// # Errors
    ///
    /// If it cannot be true.
    pub fn set_producer(&mut self, value: u32) -> Result<(), FatalCause> {
        used(self.size, value, self.next).ok_or(FatalCause::CommandQueueIndex)?;
        self.producer = value;
        Ok(())
    }

    /// Takes the value of CMDQ_CONSUMER.
    ///
    /// # Errors
    ///
    /// If it cannot be true.
    pub fn set_consumer(&mut self, value: u32) -> Result<(), FatalCause> {
        let valid = used(self.size, self.completion_producer, value);
        valid.ok_or(FatalCause::CommandQueueIndex)?;
        self.completion_consumer = value;
        Ok(())
    }

    /// Takes the next command, if there is one and room for its completion.
    ///
    /// # Errors
    ///
    /// If the ring cannot be read.
    pub fn next(&mut self, dma: &Dma) -> Result<Option<Entry>, FatalCause> {
        if self.next == self.producer || self.room() == 0 {
            return Ok(None);
        }
        let mut entry = Entry::new_zeroed();
        let slot = u64::from(self.size.slot(self.next));
        let addr = self.setup.base.checked_add(slot * ENTRY_SIZE);
        let read = addr.map(|addr| dma.read(addr, entry.as_mut_bytes()));
        read.and_then(Result::ok).ok_or(FatalCause::CommandRead)?;
        self.next = self.next.wrapping_add(1);
        Ok(Some(entry))
    }

    /// Writes a completion, its owner word last; without room it is lost, which only an injected
    /// duplicate can meet.
    ///
    /// # Errors
    ///
    /// If the ring cannot be written.
    pub fn complete(&mut self, dma: &Dma, completion: &Completion) -> Result<(), FatalCause> {
        if self.room() == 0 {
            return Ok(());
        }
        let index = self.completion_producer;
        let slot = u64::from(self.size.slot(index));
        let bytes = completion.as_bytes();
        let body = bytes.len() - 4;
        let addr = self.setup.completion_base.checked_add(slot * ENTRY_SIZE);
        let write = |addr: u64| {
            dma.write_bytes(addr, &bytes[..body])?;
            dma.store_u32(addr + body as u64, owner(self.size, index))
        };
        addr.and_then(|addr| write(addr).ok())
            .ok_or(FatalCause::CommandWrite)?;
        self.completion_producer = index.wrapping_add(1);
        Ok(())
    }

    fn room(&self) -> u32 {
        let filled = self
            .completion_producer
            .wrapping_sub(self.completion_consumer);
        self.size.entries().saturating_sub(filled)
    }
}
