// SPDX-License-Identifier: GPL-2.0

//! Parts of the major version 0.

use super::{
    CommandRings,
    Control,
    Hal,
    State, //
};
use kernel::{
    io::Io,
    prelude::*, //
};
use qiao_hw::{
    bar::{
        self,
        control,
        reg,
        status, //
    },
    caps::Caps, //
};
use zerocopy::{
    FromZeros,
    IntoBytes, //
};

struct V0;

pub(super) const V0_HAL: &dyn Hal = &V0;

impl Hal for V0 {
    fn state(&self, control: &Control<'_>) -> State {
        let status = control.read32(reg::STATUS);
        if status == bar::ALL_ONES {
            State::Absent
        } else if status & status::FATAL != 0 {
            State::Fatal(control.read32(reg::FATAL_CAUSE))
        } else if status & status::READY == 0 {
            State::Reset
        } else if status & status::ENABLED == 0 {
            State::Ready
        } else {
            State::Enabled
        }
    }

    fn reset(&self, control: &Control<'_>) {
        control.write32(control::RESET, reg::CONTROL);
    }

    fn caps(&self, control: &Control<'_>) -> Result<Caps> {
        let (offset, length) = bar::caps_parts(control.read32(reg::CAPS));
        if length < size_of::<Caps>() || offset % size_of::<u32>() != 0 {
            return Err(ERANGE);
        }
        let mut caps = Caps::new_zeroed();
        for (at, word) in (offset..)
            .step_by(4)
            .zip(caps.as_mut_bytes().chunks_exact_mut(4))
        {
            let value = control.try_read32(at).map_err(|_| ERANGE)?;
            word.copy_from_slice(&value.to_le_bytes());
        }
        Ok(caps)
    }

    fn enable(&self, control: &Control<'_>, rings: &CommandRings) -> Result {
        control.try_write64(rings.commands, reg::CMDQ_BASE)?;
        control.try_write64(rings.completions, reg::CMDQ_COMPLETION_BASE)?;
        let config = bar::cmdq_config(rings.log_entries, rings.vector);
        control.write32(config, reg::CMDQ_CONFIG);
        control.write32(control::ENABLE, reg::CONTROL);
        Ok(())
    }

    fn ring_commands(&self, control: &Control<'_>, producer: u32) {
        // Orders what was written to memory before, as `writel()` does.
        control.write32(producer, reg::CMDQ_PRODUCER);
    }

    fn consume_completions(&self, control: &Control<'_>, consumer: u32) {
        control.write32(consumer, reg::CMDQ_CONSUMER);
    }
}
