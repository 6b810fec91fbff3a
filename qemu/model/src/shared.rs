// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What the vfio-user thread of an HCA and the engine share.
//!
//! Requests go to the engine through a [`Mailbox`], in which a later value of a doorbell replaces an
//! earlier one: however fast a guest writes, the mailbox does not grow. Answers come back as the
//! status word, DMA and interrupts.

use crate::coverage::Coverage;
use crate::mem::{Dma, SlotMemory};
use rustix::event::{eventfd, EventfdFlags};
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The STATUS and FATAL_CAUSE registers, bound to the resets: what belongs to a time before the
/// last reset is dropped.
#[derive(Debug, Default)]
pub struct Status(AtomicU64);

/// Counts resets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Generation(u32);

impl Status {
    const CAUSE_SHIFT: u32 = 8;

    fn pack(generation: Generation, bits: u32) -> u64 {
        (u64::from(generation.0) << 32) | u64::from(bits)
    }

    /// Clears everything and starts a new generation, which it returns.
    pub fn begin_reset(&self) -> Generation {
        let next = |word: u64| Generation((word >> 32) as u32).next();
        let update = |word| Some(Self::pack(next(word), 0));
        match self
            .0
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, update)
        {
            Ok(word) | Err(word) => next(word),
        }
    }

    /// Sets bits of STATUS unless a reset has begun since `generation`; returns whether it has set
    /// them.
    pub fn set(&self, generation: Generation, bits: u32) -> bool {
        let update =
            |word: u64| ((word >> 32) as u32 == generation.0).then_some(word | u64::from(bits));
        self.0
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, update)
            .is_ok()
    }

    /// Sets `status.FATAL` with a cause as [`Status::set`] does.
    pub fn set_fatal(&self, generation: Generation, cause: FatalCause) -> bool {
        let cause = u32::from(cause as u8) << Self::CAUSE_SHIFT;
        self.set(generation, qiao_hw::bar::status::FATAL | cause)
    }

    /// Returns the STATUS register.
    pub fn status(&self) -> u32 {
        self.word() & ((1 << Self::CAUSE_SHIFT) - 1)
    }

    /// Returns the FATAL_CAUSE register.
    pub fn cause(&self) -> u32 {
        (self.word() >> Self::CAUSE_SHIFT) & 0xff
    }

    fn word(&self) -> u32 {
        // CAST: The upper half is the generation.
        self.0.load(Ordering::Acquire) as u32
    }
}

impl Generation {
    fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }
}

/// Values of FATAL_CAUSE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FatalCause {
    /// CMDQ_BASE, CMDQ_COMPLETION_BASE or CMDQ_CONFIG is out of range.
    CommandQueueConfig = 1,
    /// CMDQ_PRODUCER or CMDQ_CONSUMER cannot be true.
    CommandQueueIndex = 2,
    /// The command ring could not be read.
    CommandRead = 3,
    /// The completion ring could not be written.
    CommandWrite = 4,
    /// A test asked for it.
    Injected = 5,
    /// An event ring could not be written.
    EventWrite = 6,
}

/// The MSI-X vectors of a function: event descriptors of the client.
#[derive(Debug)]
pub struct Vectors(Mutex<Vec<Option<File>>>);

impl Vectors {
    /// Makes `count` vectors that are not bound.
    pub fn new(count: u16) -> Self {
        Self(Mutex::new((0..count).map(|_| None).collect()))
    }

    /// Binds vectors from `start` on; vectors that do not exist are left out.
    pub fn bind(&self, start: u32, fds: Vec<Option<File>>) {
        let mut vectors = self.lock();
        for (vector, fd) in vectors.iter_mut().skip(start as usize).zip(fds) {
            *vector = fd;
        }
    }

    /// Unbinds all vectors.
    pub fn unbind_all(&self) {
        self.lock().iter_mut().for_each(|vector| *vector = None);
    }

    /// Raises a vector. Without a descriptor the interrupt is lost, as it is when MSI-X is disabled.
    ///
    /// # Errors
    ///
    /// If the descriptor cannot be written.
    pub fn raise(&self, vector: u16) -> io::Result<()> {
        if let Some(Some(fd)) = self.lock().get(usize::from(vector)) {
            rustix::io::write(fd, &1u64.to_ne_bytes())?;
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Option<File>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What both sides of an HCA hold.
#[derive(Debug)]
pub struct Shared {
    /// DMA address space.
    pub dma: Dma,
    /// MSI-X vectors.
    pub vectors: Vectors,
    /// Status registers.
    pub status: Status,
    /// The doorbell slots of a device that polls them.
    pub slots: Option<SlotMemory>,
    /// What of the interface has been used.
    pub coverage: Arc<Coverage>,
}

/// A doorbell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bell {
    /// CMDQ_PRODUCER.
    CommandProducer,
    /// CMDQ_CONSUMER.
    CommandConsumer,
    /// A slot of BAR2.
    Slot(u32),
}

/// The registers that describe the command queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommandQueueSetup {
    /// CMDQ_BASE.
    pub base: u64,
    /// CMDQ_COMPLETION_BASE.
    pub completion_base: u64,
    /// CMDQ_CONFIG.
    pub config: u32,
}

/// What has come for one HCA. A reset is done before an enable, an enable before doorbells.
#[derive(Debug, Default)]
pub struct Mail {
    /// Reset everything.
    pub reset: Option<Generation>,
    /// Start the command queue.
    pub enable: Option<CommandQueueSetup>,
    /// Doorbells in the order of their first ring, with the last value of each.
    pub bells: Vec<(Bell, u64)>,
}

#[derive(Debug, Default)]
struct Inbox {
    reset: Option<Generation>,
    enable: Option<CommandQueueSetup>,
    order: Vec<Bell>,
    values: HashMap<Bell, u64>,
}

impl Inbox {
    fn is_empty(&self) -> bool {
        self.reset.is_none() && self.enable.is_none() && self.order.is_empty()
    }
}

/// Requests of all HCAs to the engine.
#[derive(Debug)]
pub struct Mailbox {
    boxes: Mutex<Vec<Inbox>>,
    wake: OwnedFd,
}

impl Mailbox {
    /// Makes a mailbox for `hcas` HCAs.
    ///
    /// # Errors
    ///
    /// If there is no event descriptor left.
    pub fn new(hcas: usize) -> io::Result<Self> {
        Ok(Self {
            boxes: Mutex::new((0..hcas).map(|_| Inbox::default()).collect()),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    /// Posts a reset, which makes everything posted before void.
    pub fn post_reset(&self, hca: usize, generation: Generation) {
        self.post(hca, |b| {
            *b = Inbox {
                reset: Some(generation),
                ..Inbox::default()
            }
        });
    }

    /// Posts the start of the command queue.
    pub fn post_enable(&self, hca: usize, setup: CommandQueueSetup) {
        self.post(hca, |b| b.enable = Some(setup));
    }

    /// Posts the value of a doorbell.
    pub fn post_bell(&self, hca: usize, bell: Bell, value: u64) {
        self.post(hca, |b| {
            if b.values.insert(bell, value).is_none() {
                b.order.push(bell);
            }
        });
    }

    /// Takes what has come for `hca`.
    pub fn take(&self, hca: usize) -> Mail {
        let taken = std::mem::take(&mut self.lock()[hca]);
        let Inbox {
            reset,
            enable,
            order,
            values,
        } = taken;
        let bells = order
            .into_iter()
            .map(|bell| (bell, values[&bell]))
            .collect();
        Mail {
            reset,
            enable,
            bells,
        }
    }

    /// Wakes the engine.
    pub fn wake(&self) {
        // A full counter means that the engine has been woken.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Forgets that the engine has been woken; to be called before [`Mailbox::take`].
    pub fn clear_wake(&self) {
        // An empty counter means that nobody has woken the engine.
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
    }

    /// Returns the descriptor that is readable when the engine has been woken.
    pub fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    fn post(&self, hca: usize, change: impl FnOnce(&mut Inbox)) {
        let first = {
            let mut boxes = self.lock();
            let first = boxes[hca].is_empty();
            change(&mut boxes[hca]);
            first
        };
        if first {
            self.wake();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Inbox>> {
        self.boxes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use qiao_hw::bar::status;

    #[test]
    fn status_of_an_older_generation_is_dropped() {
        let word = Status::default();
        let first = word.begin_reset();
        word.set(first, status::READY);
        assert_eq!(word.status(), status::READY);
        let second = word.begin_reset();
        word.set_fatal(first, FatalCause::CommandRead);
        assert_eq!((word.status(), word.cause()), (0, 0));
        word.set_fatal(second, FatalCause::CommandRead);
        assert_eq!((word.status(), word.cause()), (status::FATAL, 3));
    }

    #[test]
    fn the_last_value_of_a_doorbell_wins_and_a_reset_voids_all() {
        let mailbox = Mailbox::new(1).unwrap();
        mailbox.post_bell(0, Bell::Slot(3), 1);
        mailbox.post_bell(0, Bell::Slot(2), 7);
        mailbox.post_bell(0, Bell::Slot(3), 2);
        assert_eq!(
            mailbox.take(0).bells,
            [(Bell::Slot(3), 2), (Bell::Slot(2), 7)]
        );
        assert!(mailbox.take(0).bells.is_empty());
        mailbox.post_bell(0, Bell::Slot(3), 1);
        mailbox.post_enable(0, CommandQueueSetup::default());
        mailbox.post_reset(0, Generation(1));
        mailbox.post_bell(0, Bell::Slot(3), 9);
        let mail = mailbox.take(0);
        assert_eq!(mail.reset, Some(Generation(1)));
        assert_eq!(mail.enable, None);
        assert_eq!(mail.bells, [(Bell::Slot(3), 9)]);
    }
}
