// SPDX-License-Identifier: GPL-2.0

//! The command queue.
//!
//! Any number of tasks execute commands at a time. Each command takes the next entry of the ring,
//! whose place it has until it is complete, and waits there for its completion, which comes in any
//! order. See `qiao_hw::cmd` for the rules.

mod ledger;

use crate::{
    eq::Flow,
    fatal::{
        Cause,
        Oddity,
        Part, //
    },
    hal::CommandRings, //
};
use kernel::{
    new_spinlock_irq,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        barrier::{
            dma_mb,
            Read, //
        },
        Arc,
        SpinLockIrq, //
    },
    time::{
        msecs_to_jiffies,
        Jiffies, //
    }, //
};
use ledger::Place;
use qiao_hw::{
    cmd::{
        Command,
        Completion,
        Entry,
        Status, //
    },
    ring::{
        self,
        RingSize, //
    }, //
};
use rdma::{
    dma::Ring,
    sync, //
};

/// Log2 of the most commands that are in flight.
const MAX_LOG_ENTRIES: u8 = 6;

/// The MSI-X vector of completions.
pub(crate) const VECTOR: u16 = 0;

/// Most commands in a row of whose completion no interrupt tells, before the device is given up.
const MAX_UNHEARD: u32 = 3;

/// A place in the ring.
#[pin_data]
struct Slot {
    #[pin]
    state: SpinLockIrq<SlotState>,
    /// Happens when the place has become free.
    #[pin]
    free: sync::Completion,
    /// Happens when the command in the place has been completed.
    #[pin]
    completed: sync::Completion,
}

struct SlotState {
    place: Place,
    /// Of the command that was completed last.
    completion: Completion,
}

impl Slot {
    fn new() -> Result<Pin<KBox<Self>>> {
        let slot = KBox::pin_init(
            pin_init!(Self {
                state <- new_spinlock_irq!(SlotState {
                    place: Place::Free,
                    completion: Completion::zeroed(),
                }),
                free <- sync::Completion::new(),
                completed <- sync::Completion::new(),
            }),
            GFP_KERNEL,
        )?;
        slot.free.complete();
        Ok(slot)
    }

    /// Puts the command `id` here, whose place must be free.
    fn start(&self, id: u32) -> bool {
        // The command before, if it was completed just after its task had stopped waiting.
        let _ = self.completed.try_wait();
        self.state.lock().place.start(id)
    }

    /// Hands the completion to the task that waits; false if none waits for it.
    fn deliver(&self, id: u32, completion: &Completion) -> bool {
        let mut state = self.state.lock();
        if !state.place.complete(id) {
            return false;
        }
        state.completion = *completion;
        self.completed.complete();
        true
    }

    /// Takes the completion, or gives the command up.
    fn take(&self) -> Option<Completion> {
        let mut state = self.state.lock();
        let completed = state.place.finish();
        completed.then_some(state.completion)
    }

    /// Lets all who wait here go on, for ever.
    fn abort(&self) {
        self.free.complete_all();
        self.completed.complete_all();
    }
}

/// The command queue of a device.
#[pin_data]
pub(crate) struct CommandQueue<'bound> {
    part: Arc<Part<'bound>>,
    timeout: Jiffies,
    size: RingSize,
    commands: Ring<Entry>,
    completions: Ring<Completion>,
    slots: KVec<Pin<KBox<Slot>>>,
    /// Happens for the task that may put the next command into the ring: a mutex with a limit.
    #[pin]
    turn: sync::Completion,
    /// Index of the next command; changed by the task whose turn it is.
    producer: Atomic<u32>,
    /// Index of the next completion.
    #[pin]
    consumer: SpinLockIrq<u32>,
    /// Commands in a row of whose completion no interrupt told.
    unheard: Atomic<u32>,
    #[pin]
    flow: Flow,
}

impl<'bound> CommandQueue<'bound> {
    /// Makes the queue of a part that has rings of up to `2^log_max` entries, and completes
    /// commands in `timeout_ms` milliseconds.
    pub(crate) fn new(
        part: Arc<Part<'bound>>,
        log_max: u8,
        timeout_ms: u32,
    ) -> impl PinInit<Self, Error> + 'bound {
        pin_init::pin_init_scope(move || {
            let size = RingSize::from_log(log_max.min(MAX_LOG_ENTRIES)).ok_or(EINVAL)?;
            let dev = part.binding().device();
            let mut slots = KVec::with_capacity(size.entries() as usize, GFP_KERNEL)?;
            for _ in 0..size.entries() {
                slots.push(Slot::new()?, GFP_KERNEL)?;
            }
            Ok(try_pin_init!(Self {
                timeout: msecs_to_jiffies(timeout_ms),
                size,
                commands: Ring::new(dev.as_ref(), size.log())?,
                completions: Ring::new(dev.as_ref(), size.log())?,
                slots,
                turn <- sync::Completion::new(),
                producer: Atomic::new(0),
                consumer <- new_spinlock_irq!(0),
                unheard: Atomic::new(0),
                flow <- Flow::new(),
                part,
                _: {
                    turn.complete();
                },
            }? Error))
        })
    }

    /// Starts the queue; its interrupt must have its handler.
    pub(crate) fn start(&self) -> Result {
        self.part.enable(&CommandRings {
            commands: self.commands.dma_address(),
            completions: self.completions.dma_address(),
            log_entries: self.size.log(),
            vector: VECTOR,
        })
    }

    /// Executes a command. May sleep, and does so uninterruptibly: the device has the command.
    ///
    /// # Errors
    ///
    /// What the device says, see [`check_status`]; `EIO` or `ENODEV` if it has failed or is gone,
    /// at once or meanwhile. Not answering in time is a failure.
    pub(crate) fn exec<C: Command>(&self, command: &C) -> Result<C::Reply> {
        let completion = self.run(Entry::new(0, command))?;
        check_status(completion.status)?;
        completion.reply().ok_or(EIO)
    }

    /// Returns how many events come of what commands did.
    pub(crate) fn flow(&self) -> &Flow {
        &self.flow
    }

    fn run(&self, entry: Entry) -> Result<Completion> {
        self.flow.pause();
        // No wait is longer than the limit, whatever the device does, and however many tasks wait.
        self.wait(&self.turn)?;
        let slot = self.submit(entry);
        self.turn.complete();
        let slot = slot?;
        let completion = self.collect(slot);
        slot.free.complete();
        completion
    }

    /// Puts a command into the ring, when the next place is free.
    fn submit(&self, mut entry: Entry) -> Result<&Slot> {
        let id = self.producer.load(Relaxed);
        let slot = self.slot(id).ok_or(EIO)?;
        self.wait(&slot.free)?;
        if !slot.start(id) {
            return Err(EIO);
        }
        entry.id.set(id);
        self.commands.write(id, &entry);
        self.producer.store(id.wrapping_add(1), Relaxed);
        self.part.ring_commands(id.wrapping_add(1));
        Ok(slot)
    }

    /// Waits for what other commands hold. Each must be done in the limit; if not all are, the
    /// device has failed.
    fn wait(&self, turn: &sync::Completion) -> Result {
        self.part.check()?;
        if turn.wait_timeout(self.timeout).is_err() {
            self.fail(Cause::Timeout);
        }
        self.part.check()
    }

    /// Waits for the completion of a command, or for the end of the device.
    fn collect(&self, slot: &Slot) -> Result<Completion> {
        let heard = slot.completed.wait_timeout(self.timeout).is_ok();
        if !heard {
            self.handle();
        }
        if let Some(completion) = slot.take() {
            self.judge(heard);
            return Ok(completion);
        }
        // If the device was not given up by another, it is now, for the right reason.
        if !self.examine() {
            self.fail(Cause::Timeout);
        }
        self.part.check()?;
        Err(EIO)
    }

    /// Takes note of whether an interrupt told of a completion. One may get lost, but without any
    /// each command would take as long as it may.
    fn judge(&self, heard: bool) {
        if heard {
            self.unheard.store(0, Relaxed);
        } else if self.unheard.fetch_add(1, Relaxed) + 1 >= MAX_UNHEARD {
            self.fail(Cause::Mute);
        }
    }

    /// Handles the interrupt. Each call does as much as can be outstanding.
    pub(crate) fn handle(&self) {
        const OWNER: usize = core::mem::offset_of!(Completion, owner);

        let mut consumer = self.consumer.lock();
        let first = *consumer;
        for _ in 0..self.size.entries() {
            let index = *consumer;
            let owner = self.completions.read_word::<OWNER>(index);
            if !ring::is_written(self.size, index, owner) {
                break;
            }
            // The device writes the owner word last.
            dma_mb(Read);
            self.deliver(&self.completions.read(index));
            *consumer = index.wrapping_add(1);
        }
        if *consumer != first {
            self.part.consume_completions(*consumer);
        }
    }

    fn deliver(&self, completion: &Completion) {
        let id = completion.id.get();
        let delivered = self
            .slot(id)
            .is_some_and(|slot| slot.deliver(id, completion));
        if !delivered {
            self.part.note(Oddity::Completion);
        }
    }

    fn slot(&self, id: u32) -> Option<&Slot> {
        Some(self.slots.get(self.size.slot(id) as usize)?)
    }

    /// Looks whether the device is still there and well, and gives it up if not; true if this did.
    pub(crate) fn examine(&self) -> bool {
        self.aborting(self.part.examine())
    }

    /// Gives the device up: outstanding and later commands fail at once. Callable from any context.
    pub(crate) fn fail(&self, cause: Cause) -> bool {
        self.aborting(self.part.fail(cause))
    }

    /// Ends all activity of the device, since the driver leaves it.
    pub(crate) fn retire(&self) {
        self.aborting(self.part.retire());
    }

    fn aborting(&self, first: bool) -> bool {
        if first {
            self.turn.complete_all();
            self.slots.iter().for_each(|slot| slot.abort());
        }
        first
    }
}

/// Translates how a command ended.
///
/// # Errors
///
/// `EOPNOTSUPP`: the part does not have this. `EINVAL`: an operand, an object, or its state is
/// wrong. `EEXIST`, `EBUSY`: of objects. `ENOMEM`: the part has run out of something. `EFAULT`:
/// memory could not be accessed. `EIO`: the device failed, or says what does not make sense.
fn check_status(status: u8) -> Result {
    match Status::from_wire(status) {
        Some(Status::Ok) => Ok(()),
        Some(Status::BadOpcode) => Err(EOPNOTSUPP),
        Some(Status::BadOperand | Status::NoSuchObject | Status::BadState) => Err(EINVAL),
        Some(Status::Exists) => Err(EEXIST),
        Some(Status::Busy) => Err(EBUSY),
        Some(Status::NoResources) => Err(ENOMEM),
        Some(Status::DmaFault) => Err(EFAULT),
        Some(Status::Internal) | None => Err(EIO),
    }
}

#[kunit_tests(qiao_cmdq)]
mod tests {
    use super::*;

    /// The completion of the command `id`.
    fn completion(id: u32, status: u8) -> Completion {
        let mut completion = Completion::zeroed();
        completion.id.set(id);
        completion.status = status;
        completion
    }

    #[test]
    fn a_completion_reaches_its_command() -> Result {
        let slot = Slot::new()?;
        assert!(slot.free.try_wait());
        assert!(slot.start(64));
        assert!(slot.deliver(64, &completion(64, 3)));
        assert!(slot.completed.try_wait());
        assert!(slot
            .take()
            .is_some_and(|c| c.id.get() == 64 && c.status == 3));
        Ok(())
    }

    #[test]
    fn nobody_else_gets_it() -> Result {
        let slot = Slot::new()?;
        assert!(!slot.deliver(0, &completion(0, 0)));
        assert!(slot.start(64));
        // That of the command which had the place before, or of one that is yet to come.
        assert!(!slot.deliver(0, &completion(0, 0)));
        assert!(!slot.deliver(128, &completion(128, 0)));
        assert!(!slot.completed.try_wait());
        // No command is started in a place that is taken, and none is completed twice.
        assert!(!slot.start(128));
        assert!(slot.deliver(64, &completion(64, 0)));
        assert!(!slot.deliver(64, &completion(64, 0)));
        Ok(())
    }

    #[test]
    fn a_late_completion_does_not_wake_the_next_command() -> Result {
        let slot = Slot::new()?;
        assert!(slot.start(1));
        // It comes between the end of the wait and the look at it.
        assert!(slot.deliver(1, &completion(1, 0)));
        assert!(slot.take().is_some());
        assert!(slot.start(65));
        assert!(!slot.completed.try_wait());
        Ok(())
    }

    #[test]
    fn all_who_wait_go_on_when_the_device_is_lost() -> Result {
        let slot = Slot::new()?;
        assert!(slot.start(1));
        slot.abort();
        for _ in 0..3 {
            assert!(slot.free.try_wait() && slot.completed.try_wait());
        }
        assert!(slot.take().is_none());
        Ok(())
    }

    #[test]
    fn every_status_has_its_errno() {
        assert!(check_status(Status::Ok.to_wire()).is_ok());
        let mut unknown = 0;
        for status in 0..=u8::MAX {
            match (Status::from_wire(status), check_status(status)) {
                (Some(Status::Ok), result) => assert!(result.is_ok()),
                (Some(_), result) => assert!(result.is_err()),
                (None, result) => {
                    unknown += 1;
                    assert!(result.is_err_and(|e| e == EIO));
                }
            }
        }
        assert!(unknown > 0);
    }
}
