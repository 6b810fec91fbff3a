// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The Qiao device interface: registers, commands, queue entries and events.
//!
//! This crate is the one definition of what a driver and a device of the Qiao interface exchange.
//! It has no code of its own beyond layout, index arithmetic and conversion; Kbuild compiles it
//! for the driver and Cargo for the provider, the device model and the tests.
//! `docs/interface.md` is the normative text.
//!
//! Conventions, which hold everywhere unless a field says otherwise:
//!
//! - Little-endian, naturally aligned, no padding. Reserved fields and bits are zero; the reader
//!   of a command or work request refuses it when they are not.
//! - Ids (QPN, CQN, PDN, ...) are chosen by the driver; a host pointer never reaches the device
//!   and the device never writes one.
//! - Ring indices are free-running 32-bit counters; the slot is the index modulo the ring size,
//!   which is a power of two.

#![no_std]

pub mod bar;
pub mod caps;
pub mod catalogue;
pub mod cmd;
pub mod cqe;
pub mod describe;
pub mod doorbell;
pub mod event;
pub mod pages;
pub mod qp;
pub mod queue;
pub mod ring;
pub mod slots;
pub mod wqe;

pub use describe::Described;
pub use zerocopy::little_endian::{U16, U32, U64};
