// SPDX-License-Identifier: GPL-2.0

//! DMA: what [`kernel::dma`] lacks.

mod ring;

pub use self::ring::{
    Ring,
    RingMemory, //
};
