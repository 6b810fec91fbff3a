// SPDX-License-Identifier: GPL-2.0

//! Event queues.
//!
//! One for events of objects, ports and the device, which shares its vector with the command queue,
//! and one for completions on each other vector. The number of a queue is that of its vector.

mod pace;

use crate::{
    doorbell::{
        Slot,
        Take, //
    },
    fatal::{
        Cause,
        Oddity, //
    },
    hca::Hca,
    page_list::PageTables, //
};
use kernel::{
    irq::{
        Handler,
        IrqReturn, //
    },
    new_mutex,
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
        Mutex,
        SpinLockIrq, //
    },
    time::{
        delay::fsleep,
        Delta,
        Instant,
        Monotonic, //
    }, //
};
use pace::{
    Pace,
    PAUSE_MS, //
};
use qiao_hw::{
    cmd::{
        CreateEq,
        EqType, //
    },
    doorbell::{
        Arm,
        ArmKind, //
    },
    event::{
        Eqe,
        EventType, //
    },
    ring::{
        self,
        RingSize, //
    }, //
};
use rdma::{
    dma::Ring,
    CqEvent,
    DeviceEvent,
    EventCx,
    PortEvent,
    QpEvent,
    SrqEvent, //
};

/// Number and vector of the queue of asynchronous events.
const ASYNC: u16 = crate::cmdq::VECTOR;

/// Number and vector of the first queue of completions.
pub(crate) const FIRST_COMPLETION: u16 = 1;

/// Log2 of the entries of a queue. Events that find no room stay with their object, so that more
/// would only save interrupts.
const MAX_LOG_ENTRIES: u8 = 10;

/// Most events that one interrupt handles. With more, arming the queue raises the next.
const BUDGET: u32 = 128;

/// The ring of an event queue, and how far it is read.
///
/// Only one handler reads it.
struct EventRing {
    number: u16,
    size: RingSize,
    ring: Ring<Eqe>,
    slot: Slot<()>,
    consumer: Atomic<u32>,
}

impl EventRing {
    fn new(hca: &Hca<'_>, number: u16) -> Result<Self> {
        let log = hca.caps().log_max_eqe.min(MAX_LOG_ENTRIES);
        let size = RingSize::from_log(log).ok_or(EINVAL)?;
        Ok(Self {
            number,
            size,
            ring: Ring::new(hca.pdev().as_ref(), log)?,
            slot: hca.kernel_slots(Take::One)?,
            consumer: Atomic::new(0),
        })
    }

    /// Makes the queue known to the device, and arms it.
    fn create(&self, hca: &Hca<'_>, eq_type: EqType) -> Result {
        let tables = PageTables::of_memory(hca.pdev().as_ref(), self.ring.memory())?;
        let mut command = CreateEq::zeroed();
        command.eqn.set(self.number.into());
        command.slot.set(self.slot.number());
        command.vector.set(self.number);
        command.eq_type = eq_type.to_wire();
        command.log_entries = self.size.log();
        command.ring = tables.list();
        let created = hca.cmd().exec(&command);
        // The device does not read them any more, unless it is alive and has not answered; and then
        // it is not alive any more.
        drop(tables);
        created?;
        self.arm(hca, 0);
        Ok(())
    }

    /// Asks for an interrupt at the entry `consumer`, or now if that is written.
    fn arm(&self, hca: &Hca<'_>, consumer: u32) {
        let arm = Arm {
            index: consumer,
            kind: ArmKind::Any,
            // CAST: Truncation is meant. From one request to the next the index has moved, by at
            // most `BUDGET`, so that no two in a row are equal.
            sequence: consumer as u8,
        };
        hca.ring_doorbell(self.slot.number(), arm.to_wire());
    }

    /// Handles what is there, up to the budget.
    fn drain(&self, hca: &Hca<'_>, mut handle: impl FnMut(&Eqe)) {
        const OWNER: usize = core::mem::offset_of!(Eqe, owner);

        let first = self.consumer.load(Relaxed);
        let mut index = first;
        for _ in 0..BUDGET {
            if !ring::is_written(self.size, index, self.ring.read_word::<OWNER>(index)) {
                break;
            }
            // The device writes the owner word last.
            dma_mb(Read);
            let eqe = self.ring.read(index);
            index = index.wrapping_add(1);
            handle(&eqe);
        }
        if index != first {
            self.consumer.store(index, Relaxed);
            self.arm(hca, index);
        }
    }
}

/// How many asynchronous events come.
#[pin_data]
pub(crate) struct Flow {
    start: Instant<Monotonic>,
    #[pin]
    pace: SpinLockIrq<Pace>,
    /// Held by who waits, so that one does after the other.
    #[pin]
    queue: Mutex<()>,
}

impl Flow {
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            start: Instant::now(),
            pace <- new_spinlock_irq!(Pace::new()),
            queue <- new_mutex!(()),
        })
    }

    /// Counts an event; false if it is one too many. Callable from any context.
    fn count(&self) -> bool {
        self.pace.lock().count(self.start.elapsed().as_millis())
    }

    /// Waits if many events have come, before something that may cause another.
    pub(crate) fn pause(&self) {
        if self.pace.lock().is_many(self.start.elapsed().as_millis()) {
            let _turn = self.queue.lock();
            fsleep(Delta::from_millis(PAUSE_MS.into()));
        }
    }
}

/// Handles the vector of the command queue and of asynchronous events.
#[pin_data]
pub(crate) struct AsyncHandler<'bound> {
    hca: Arc<Hca<'bound>>,
    events: EventRing,
}

impl<'bound> AsyncHandler<'bound> {
    pub(crate) fn new(hca: Arc<Hca<'bound>>) -> impl PinInit<Self, Error> + 'bound {
        try_pin_init!(Self {
            events: EventRing::new(&hca, ASYNC)?,
            hca,
        }? Error)
    }

    /// Starts the queue, when commands can be executed.
    pub(crate) fn start(&self) -> Result {
        self.events.create(&self.hca, EqType::Async)
    }

    fn event(&self, eqe: &Eqe) {
        if !self.hca.cmd().flow().count() {
            self.hca.cmd().fail(Cause::Flood);
            return;
        }
        match EventType::from_wire(eqe.event_type) {
            Some(EventType::CommEstablished) => self.qp(eqe, QpEvent::CommunicationEstablished),
            Some(EventType::SqDrained) => self.qp(eqe, QpEvent::SqDrained),
            Some(EventType::PathMigrated) => self.qp(eqe, QpEvent::PathMigrated),
            Some(EventType::PathMigrationError) => self.qp(eqe, QpEvent::PathMigrationError),
            Some(EventType::LastWqeReached) => self.qp(eqe, QpEvent::LastWqeReached),
            Some(EventType::QpFatal) => self.qp(eqe, QpEvent::Fatal),
            Some(EventType::QpRequestError) => self.qp(eqe, QpEvent::RequestError),
            Some(EventType::QpAccessError) => self.qp(eqe, QpEvent::AccessError),
            Some(EventType::SrqLimit) => self.srq(eqe, SrqEvent::LimitReached),
            Some(EventType::SrqError) => self.srq(eqe, SrqEvent::Error),
            Some(EventType::CqError) => self.cq_error(eqe),
            Some(EventType::PortActive) => self.port(eqe, PortEvent::Active),
            Some(EventType::PortError) => self.port(eqe, PortEvent::Error),
            Some(EventType::LidChange) => self.port(eqe, PortEvent::LidChange),
            Some(EventType::PkeyChange) => self.port(eqe, PortEvent::PkeyChange),
            Some(EventType::GidChange) => self.port(eqe, PortEvent::GidChange),
            Some(EventType::SmChange) => self.port(eqe, PortEvent::SmChange),
            Some(EventType::ClientReregister) => self.port(eqe, PortEvent::ClientReregister),
            Some(EventType::DeviceFatal) => {
                self.hca.cmd().fail(Cause::Reported(eqe.data.get()));
            }
            // Completions have queues of their own.
            Some(EventType::Completion) | None => self.hca.note(Oddity::Event),
        }
    }

    /// A number that is not found is that of an object that is being destroyed.
    fn qp(&self, eqe: &Eqe, event: QpEvent) {
        if let Some(qp) = self.hca.qps().get(eqe.id.get()) {
            qp.event(event);
        }
    }

    fn srq(&self, eqe: &Eqe, event: SrqEvent) {
        if let Some(srq) = self.hca.srqs().get(eqe.id.get()) {
            srq.event(event);
        }
    }

    fn cq_error(&self, eqe: &Eqe) {
        if let Some(cq) = self.hca.cqs().get(eqe.id.get()) {
            cq.event(CqEvent::Error);
        }
    }

    fn port(&self, eqe: &Eqe, event: PortEvent) {
        if !(1..=self.hca.caps().num_ports).contains(&eqe.port) {
            self.hca.note(Oddity::Port);
            return;
        }
        self.hca
            .events()
            .dispatch(DeviceEvent::Port(eqe.port.into(), event));
    }
}

impl Handler for AsyncHandler<'_> {
    fn handle(&self) -> IrqReturn {
        self.hca.cmd().handle();
        self.events.drain(&self.hca, |eqe| self.event(eqe));
        // The vector is nobody else's, and what it was raised for may have been found before.
        IrqReturn::Handled
    }
}

/// Handles a vector of completions.
pub(crate) struct CompletionHandler<'bound> {
    hca: Arc<Hca<'bound>>,
    events: EventRing,
}

impl<'bound> CompletionHandler<'bound> {
    pub(crate) fn new(hca: Arc<Hca<'bound>>, number: u16) -> Result<Self> {
        Ok(Self {
            events: EventRing::new(&hca, number)?,
            hca,
        })
    }

    /// Starts the queue, when commands can be executed.
    pub(crate) fn start(&self) -> Result {
        self.events.create(&self.hca, EqType::Completion)
    }

    fn event(&self, eqe: &Eqe, cx: &EventCx<'_>) {
        if EventType::from_wire(eqe.event_type) != Some(EventType::Completion) {
            self.hca.note(Oddity::Event);
            return;
        }
        if let Some(cq) = self.hca.cqs().get(eqe.id.get()) {
            cq.complete(cx);
        }
    }
}

impl Handler for CompletionHandler<'_> {
    fn handle(&self) -> IrqReturn {
        EventCx::enter(|cx| self.events.drain(&self.hca, |eqe| self.event(eqe, cx)));
        IrqReturn::Handled
    }
}
