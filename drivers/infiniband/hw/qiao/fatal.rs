// SPDX-License-Identifier: GPL-2.0

//! A part, and how it comes to its end.
//!
//! A device that has failed is fenced before anybody is told: once bus mastering is off, it neither
//! writes memory nor raises interrupts, so that what was mapped for it can be taken back although
//! it does not answer. Only a reset of the function, or binding it anew, brings it back to life,
//! with new objects.

use crate::{
    cq::KernelCqs,
    hal::{
        CommandRings,
        Control,
        Hal,
        State, //
    }, //
};
use kernel::{
    fmt,
    prelude::*,
    static_lock_class,
    sync::atomic::{
        Acquire,
        Atomic,
        AtomicFlag,
        Full,
        Relaxed, //
    },
    workqueue, //
};
use rdma::{
    pci::{
        Binding,
        BusMaster, //
    },
    sync::Work,
    DeviceEvent,
    DeviceHandle, //
};

/// Why a device is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// It has left the bus.
    Removed,
    /// It has not answered a command in time.
    Timeout,
    /// Its interrupts do not arrive.
    Mute,
    /// It says that it has failed, with a number of its vendor.
    Reported(u64),
    /// It has been reset, or has reset itself.
    Stopped,
    /// It sends events faster than they can be used.
    Flood,
    /// The bus has failed.
    Bus,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Removed => f.write_str("it is gone"),
            Self::Timeout => f.write_str("a command was not answered in time"),
            Self::Mute => f.write_str("its interrupts do not arrive"),
            Self::Reported(cause) => write!(f, "it reports a failure, cause {cause:#x}"),
            Self::Stopped => f.write_str("it has stopped"),
            Self::Flood => f.write_str("it floods the system with events"),
            Self::Bus => f.write_str("the bus has failed"),
        }
    }
}

/// Life of a device: values of [`Part::life`].
mod life {
    pub(super) const ALIVE: u32 = 0;
    /// Fenced after a failure.
    pub(super) const FAILED: u32 = 1;
    /// Fenced since it has left the bus, or since the driver leaves it.
    pub(super) const GONE: u32 = 2;
}

/// Something wrong that a device does, and that costs nobody but itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Oddity {
    /// It has completed a command that was not outstanding.
    Completion,
    /// It has sent an event of a type that the queue does not carry.
    Event,
    /// It has sent an event of a port that it does not have.
    Port,
    /// It has completed a work request that was not posted.
    WorkCompletion,
}

impl Oddity {
    const COUNT: usize = 4;

    fn text(self) -> &'static str {
        match self {
            Self::Completion => "completes a command that is not outstanding",
            Self::Event => "sends an event of an unknown type",
            Self::Port => "sends an event of a port that it does not have",
            Self::WorkCompletion => "completes a work request that is not outstanding",
        }
    }
}

/// The registers of a part, and whether it still works.
#[pin_data]
pub(crate) struct Part<'bound> {
    binding: Binding<'bound>,
    control: Control<'bound>,
    hal: &'static dyn Hal,
    master: BusMaster<'bound>,
    events: DeviceHandle,
    life: Atomic<u32>,
    /// What is done for consumers in the kernel when the device is lost.
    #[pin]
    loss: Work<KernelCqs>,
    noted: [AtomicFlag; Oddity::COUNT],
}

impl<'bound> Part<'bound> {
    /// Takes over a part that is reset, with bus mastering on. `events` is told when it fails.
    pub(crate) fn new(
        binding: Binding<'bound>,
        control: Control<'bound>,
        hal: &'static dyn Hal,
        master: BusMaster<'bound>,
        events: DeviceHandle,
    ) -> impl PinInit<Self, Error> + 'bound {
        try_pin_init!(Self {
            binding,
            control,
            hal,
            master,
            events,
            life: Atomic::new(life::ALIVE),
            loss <- Work::new(KernelCqs::new(), c"qiao_loss", static_lock_class!()),
            noted: [const { AtomicFlag::new(false) }; Oddity::COUNT],
        }? Error)
    }

    pub(crate) fn binding(&self) -> Binding<'bound> {
        self.binding
    }

    pub(crate) fn events(&self) -> &DeviceHandle {
        &self.events
    }

    pub(crate) fn kernel_cqs(&self) -> &KernelCqs {
        self.loss.job()
    }

    /// Checks that the device is alive.
    ///
    /// # Errors
    ///
    /// `EIO` if it has failed, `ENODEV` if it is gone.
    #[inline]
    pub(crate) fn check(&self) -> Result {
        match self.life.load(Acquire) {
            life::ALIVE => Ok(()),
            life::FAILED => Err(EIO),
            _ => Err(ENODEV),
        }
    }

    /// Gives the device up; true for the first to do so. Callable from any context.
    pub(crate) fn fail(&self, cause: Cause) -> bool {
        let life = if cause == Cause::Removed {
            life::GONE
        } else {
            life::FAILED
        };
        if !self.fence(life) {
            return false;
        }
        dev_err!(self.binding.device(), "device is lost: {cause}\n");
        self.events.dispatch(DeviceEvent::Fatal);
        true
    }

    /// Ends all activity of the device, since the driver leaves it; true for the first to do so.
    pub(crate) fn retire(&self) -> bool {
        let first = self.fence(life::GONE);
        self.hal.reset(&self.control);
        first
    }

    /// Everybody fences, and then says so: who sees that the device is not alive knows that it is
    /// fenced.
    fn fence(&self, life: u32) -> bool {
        self.master.stop();
        let first = self.life.cmpxchg(life::ALIVE, life, Full).is_ok();
        if first {
            self.loss.queue(workqueue::system_long());
        }
        first
    }

    /// Reads the state of the device.
    pub(crate) fn state(&self) -> State {
        self.hal.state(&self.control)
    }

    /// Looks whether the device is still there and well, and gives it up if not; true if this did.
    pub(crate) fn examine(&self) -> bool {
        match self.state() {
            State::Absent => self.fail(Cause::Removed),
            State::Fatal(cause) => self.fail(Cause::Reported(cause.into())),
            State::Reset | State::Ready => self.fail(Cause::Stopped),
            State::Enabled => false,
        }
    }

    /// Notes something wrong, in the log if it is the first time.
    pub(crate) fn note(&self, oddity: Oddity) {
        // CAST: The discriminants count from 0.
        if let Some(noted) = self.noted.get(oddity as usize) {
            if !noted.load(Relaxed) && !noted.xchg(true, Relaxed) {
                dev_warn!(self.binding.device(), "device {}\n", oddity.text());
            }
        }
    }

    pub(crate) fn enable(&self, rings: &CommandRings) -> Result {
        self.hal.enable(&self.control, rings)
    }

    pub(crate) fn ring_commands(&self, producer: u32) {
        self.hal.ring_commands(&self.control, producer);
    }

    pub(crate) fn consume_completions(&self, consumer: u32) {
        self.hal.consume_completions(&self.control, consumer);
    }
}
