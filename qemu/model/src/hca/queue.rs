// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Event queues and completion queues as the device writes them.

use super::buffer::Buffer;
use crate::mem::{Dma, DmaFault};
use qiao_hw::cmd::EqType;
use qiao_hw::cqe::Cqe;
use qiao_hw::doorbell::{Arm, ArmKind};
use qiao_hw::event::{Eqe, EventType};
use qiao_hw::queue::CqLayout;
use qiao_hw::ring::{owner, used, RingSize};
use std::collections::VecDeque;
use zerocopy::IntoBytes;

/// What an arm slot has asked for and the queue has not done yet.
#[derive(Debug, Default)]
pub struct Notify {
    /// Value of the slot; zero when the slot is bound.
    last: u64,
    armed: Option<ArmKind>,
}

/// Why a doorbell was ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadDoorbell;

impl Notify {
    /// Takes the value of the slot; returns the index if the value is a new one and `is_possible`
    /// says that the index can be true.
    fn ring(
        &mut self,
        value: u64,
        is_possible: impl FnOnce(u32) -> bool,
    ) -> Result<Option<u32>, BadDoorbell> {
        if self.last == value {
            return Ok(None);
        }
        let arm = Arm::from_wire(value).ok_or(BadDoorbell)?;
        if !is_possible(arm.index) {
            return Err(BadDoorbell);
        }
        self.last = value;
        // The last value counts, also if it asks for nothing: a device that polls the slot may have
        // missed the one before.
        self.armed = (arm.kind != ArmKind::None).then_some(arm.kind);
        Ok(Some(arm.index))
    }

    /// Ends the request if `event` is what it waits for; returns whether to notify.
    fn take(&mut self, any: bool, solicited: bool) -> bool {
        let hit = match self.armed {
            Some(ArmKind::Any) => any,
            Some(ArmKind::Solicited) => solicited,
            Some(ArmKind::None) | None => false,
        };
        if hit {
            self.armed = None;
        }
        hit
    }
}

/// An event that waits for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// What happened.
    pub event_type: EventType,
    /// Port of a port event, otherwise 0.
    pub port: u8,
    /// Number of the object, otherwise 0.
    pub id: u32,
    /// See `Eqe::data`.
    pub data: u64,
}

/// An event queue.
#[derive(Debug)]
pub struct Eq {
    /// Doorbell slot.
    pub slot: u32,
    /// MSI-X vector.
    pub vector: u16,
    /// What it carries.
    pub eq_type: EqType,
    /// Number of CQs bound to it.
    pub users: u32,
    ring: Buffer,
    size: RingSize,
    producer: u32,
    consumer: u32,
    notify: Notify,
    pending: VecDeque<Event>,
}

impl Eq {
    /// Makes an empty queue.
    pub fn new(slot: u32, vector: u16, eq_type: EqType, ring: Buffer, size: RingSize) -> Self {
        Self {
            slot,
            vector,
            eq_type,
            users: 0,
            ring,
            size,
            producer: 0,
            consumer: 0,
            notify: Notify::default(),
            pending: VecDeque::new(),
        }
    }

    /// Returns producer and consumer index, the number of events that wait, and whether it is armed.
    pub fn state(&self) -> (u32, u32, usize, bool) {
        (
            self.producer,
            self.consumer,
            self.pending.len(),
            self.notify.armed.is_some(),
        )
    }

    /// Returns the pages that the ring keeps.
    pub fn pages(&self) -> usize {
        self.ring.pages()
    }

    /// Takes the value of the arm slot; returns whether to raise the vector.
    ///
    /// # Errors
    ///
    /// [`BadDoorbell`] if it cannot be one; [`DmaFault`] as in [`Eq::push`].
    pub fn ring(&mut self, dma: &Dma, value: u64) -> Result<Result<bool, DmaFault>, BadDoorbell> {
        let is_possible = |consumer| used(self.size, self.producer, consumer).is_some();
        let Some(consumer) = self.notify.ring(value, is_possible)? else {
            return Ok(Ok(false));
        };
        self.consumer = consumer;
        Ok(self.drain(dma))
    }

    /// Writes an event, or keeps it until there is room; returns whether to raise the vector. Equal
    /// events that wait are one.
    ///
    /// # Errors
    ///
    /// If the ring cannot be written.
    pub fn push(&mut self, dma: &Dma, event: Event) -> Result<bool, DmaFault> {
        if !self.pending.contains(&event) {
            self.pending.push_back(event);
        }
        self.drain(dma)
    }

    /// Forgets events of an object that wait.
    pub fn forget(&mut self, is_of: impl Fn(&Event) -> bool) {
        self.pending.retain(|event| !is_of(event));
    }

    fn drain(&mut self, dma: &Dma) -> Result<bool, DmaFault> {
        while self.producer.wrapping_sub(self.consumer) < self.size.entries() {
            let Some(event) = self.pending.pop_front() else {
                break;
            };
            let mut eqe = Eqe::zeroed();
            eqe.event_type = event.event_type.to_wire();
            eqe.port = event.port;
            eqe.id.set(event.id);
            eqe.data.set(event.data);
            put(dma, &self.ring, self.size, self.producer, eqe.as_bytes())?;
            self.producer = self.producer.wrapping_add(1);
        }
        let any = self.producer != self.consumer;
        Ok(self.notify.take(any, any))
    }
}

/// Writes an entry of a ring whose last word is the owner word, that one last.
fn put(dma: &Dma, ring: &Buffer, size: RingSize, index: u32, entry: &[u8]) -> Result<(), DmaFault> {
    let body = entry.len() - 4;
    let at = u64::from(size.slot(index)) * entry.len() as u64;
    ring.write(dma, at, &entry[..body])?;
    ring.store_u32(dma, at + body as u64, owner(size, index))
}

/// Why a completion was not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CqError {
    /// The consumer is a whole ring behind.
    Overflow = 1,
    /// The buffer could not be accessed.
    Dma = 2,
}

/// A completion queue.
#[derive(Debug)]
pub struct Cq {
    /// EQ number.
    pub eqn: u32,
    /// Doorbell slot.
    pub slot: u32,
    /// Number of work queues that use it.
    pub users: u32,
    /// Set once it has failed: nothing is written any more.
    pub error: Option<CqError>,
    buffer: Buffer,
    size: RingSize,
    /// Index of the first entry in the buffer.
    base: u32,
    ignore_overrun: bool,
    producer: u32,
    /// What the device last saw of the consumer.
    consumer: u32,
    notify: Notify,
    /// Index behind the last entry that was solicited or failed.
    solicited: Option<u32>,
    /// Index from which the last event request counts.
    from: u32,
}

impl Cq {
    /// Makes an empty queue.
    pub fn new(eqn: u32, slot: u32, buffer: Buffer, size: RingSize, ignore_overrun: bool) -> Self {
        Self {
            eqn,
            slot,
            users: 0,
            error: None,
            buffer,
            size,
            base: 0,
            ignore_overrun,
            producer: 0,
            consumer: 0,
            notify: Notify::default(),
            solicited: None,
            from: 0,
        }
    }

    /// Returns producer and consumer index and whether it is armed.
    pub fn state(&self) -> (u32, u32, bool) {
        (self.producer, self.consumer, self.notify.armed.is_some())
    }

    /// Returns the pages that the buffer keeps.
    pub fn pages(&self) -> usize {
        self.buffer.pages()
    }

    /// Takes the value of the arm slot; returns whether to raise an event.
    ///
    /// # Errors
    ///
    /// If it cannot be one.
    pub fn ring(&mut self, value: u64) -> Result<bool, BadDoorbell> {
        let is_possible =
            |index| self.ignore_overrun || used(self.size, self.producer, index).is_some();
        let Some(index) = self.notify.ring(value, is_possible)? else {
            return Ok(false);
        };
        self.from = index;
        Ok(self.take_event())
    }

    /// Writes a completion; returns whether to raise an event.
    ///
    /// # Errors
    ///
    /// If there is no room or no memory; the queue has then failed.
    pub fn push(&mut self, dma: &Dma, cqe: &Cqe, solicited: bool) -> Result<bool, CqError> {
        if self.is_full() && !self.ignore_overrun {
            self.consumer = self.read_consumer(dma, &self.buffer, self.size)?;
            if self.is_full() {
                return Err(CqError::Overflow);
            }
        }
        let index = self.producer.wrapping_sub(self.base);
        put(dma, &self.buffer, self.size, index, cqe.as_bytes()).map_err(|_| CqError::Dma)?;
        self.producer = self.producer.wrapping_add(1);
        if solicited {
            self.solicited = Some(self.producer);
        }
        Ok(self.take_event())
    }

    fn is_full(&self) -> bool {
        self.producer.wrapping_sub(self.consumer) >= self.size.entries()
    }

    /// Reads the doorbell record of a buffer. A value that cannot be true counts as a consumer that
    /// has not moved.
    fn read_consumer(&self, dma: &Dma, buffer: &Buffer, size: RingSize) -> Result<u32, CqError> {
        let at = CqLayout::of(size).record_offset() as u64;
        let consumer = buffer.load_u32(dma, at).map_err(|_| CqError::Dma)?;
        let moved = consumer.wrapping_sub(self.consumer);
        let waiting = self.producer.wrapping_sub(self.consumer);
        let valid = moved <= waiting;
        Ok(if valid { consumer } else { self.consumer })
    }

    /// Goes on in another buffer; returns the index of its first entry, or [`None`] if it has fewer
    /// entries than there are completions. The old one is dropped.
    ///
    /// # Errors
    ///
    /// If the new buffer cannot be read.
    pub fn resize(
        &mut self,
        dma: &Dma,
        buffer: Buffer,
        size: RingSize,
    ) -> Result<Option<u32>, CqError> {
        self.consumer = self.read_consumer(dma, &buffer, size)?;
        let waiting = self.producer.wrapping_sub(self.consumer);
        if waiting > size.entries() && !self.ignore_overrun {
            return Ok(None);
        }
        self.buffer = buffer;
        self.size = size;
        self.base = self.producer;
        Ok(Some(self.base))
    }

    fn take_event(&mut self) -> bool {
        // CAST: The sign tells which of two free-running indices is ahead.
        let past = |end: u32| end.wrapping_sub(self.from) as i32 > 0;
        let any = self.producer != self.from;
        let solicited = self.solicited.is_some_and(past);
        self.notify.take(any, solicited)
    }
}
