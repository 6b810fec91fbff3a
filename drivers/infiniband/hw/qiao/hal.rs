// SPDX-License-Identifier: GPL-2.0

//! The one seam for parts whose register map differs.
//!
//! Above it nobody knows a register. What a part of this interface looks like before its register
//! map is known - the magic number and the version - is here.

mod v0;

use kernel::{
    io::Io,
    pci,
    prelude::*, //
};
use qiao_hw::{
    bar,
    caps::Caps, //
};

/// The control registers, of which each part has at least so many bytes.
pub(crate) type Control<'bound> = pci::Bar<'bound, { bar::size::BAR_CONTROL_MIN }>;

/// Where the command rings are.
pub(crate) struct CommandRings {
    /// DMA address of the command ring.
    pub(crate) commands: u64,
    /// DMA address of the completion ring.
    pub(crate) completions: u64,
    /// Log2 of the entries of each.
    pub(crate) log_entries: u8,
    /// MSI-X vector of completions.
    pub(crate) vector: u16,
}

/// The state that a device is in, as far as its registers say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// It is in reset, or in the middle of one.
    Reset,
    /// It has left reset.
    Ready,
    /// It executes commands.
    Enabled,
    /// It has failed, for a reason that its vendor knows.
    Fatal(u32),
    /// It is not on the bus.
    Absent,
}

/// How a part is operated by its registers.
pub(crate) trait Hal: Sync {
    /// Reads the state. Callable from any context.
    fn state(&self, control: &Control<'_>) -> State;

    /// Starts a reset; it is over when the state is [`State::Ready`]. Callable from any context.
    fn reset(&self, control: &Control<'_>);

    /// Copies the capability block of a device that is ready.
    ///
    /// # Errors
    ///
    /// `ERANGE` if it is not in the register space, or shorter than this driver needs.
    fn caps(&self, control: &Control<'_>) -> Result<Caps>;

    /// Starts the command queue.
    ///
    /// # Errors
    ///
    /// `EINVAL` if a register is not in the register space.
    fn enable(&self, control: &Control<'_>, rings: &CommandRings) -> Result;

    /// Tells how far the command ring is filled. What was written to the ring before is visible to
    /// the device then.
    fn ring_commands(&self, control: &Control<'_>, producer: u32);

    /// Tells how far the completion ring is read.
    fn consume_completions(&self, control: &Control<'_>, consumer: u32);
}

/// Why a function is not driven.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// It is not a part of this interface, or not there.
    Foreign,
    /// It is of a version that this driver does not know.
    Version {
        /// The incompatible part of the version.
        major: u16,
        /// The compatible part.
        minor: u16,
    },
}

/// Chooses how to operate a part.
pub(crate) fn select(control: &Control<'_>) -> Result<&'static dyn Hal, Refusal> {
    if control.read32(bar::reg::MAGIC) != bar::MAGIC {
        return Err(Refusal::Foreign);
    }
    match bar::version_parts(control.read32(bar::reg::VERSION)) {
        (bar::VERSION_MAJOR, _) => Ok(v0::V0_HAL),
        // Torn from the bus since the magic number was read.
        (u16::MAX, u16::MAX) => Err(Refusal::Foreign),
        (major, minor) => Err(Refusal::Version { major, minor }),
    }
}
