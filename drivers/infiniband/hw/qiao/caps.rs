// SPDX-License-Identifier: GPL-2.0

//! What a part has, checked.

use core::ops::{
    Deref,
    RangeInclusive, //
};
use qiao_hw::{
    caps::{
        self,
        feature, //
    },
    pages,
    ring::MAX_LOG_ENTRIES,
    wqe, //
};

/// Longest command timeout that is believed, in milliseconds: below the 120 seconds after which
/// the kernel takes a waiting task for hung.
const MAX_TIMEOUT_MS: u32 = 100_000;

/// Most data segments of a request: the size of a send request is an 8-bit number of units, the
/// control segment takes one, each data segment one.
const MAX_SGE: u16 = u8::MAX as u16 - 1;

/// Most inline data: what the same size leaves behind the control segment and the byte count.
const MAX_INLINE: u16 = MAX_SGE * wqe::SIZE_UNIT as u16 - 4;

/// Most bits of the number of an object.
const MAX_LOG_OBJECTS: u8 = 24;

/// A capability block whose fields are all in the ranges that the interface gives them.
#[derive(Clone, Copy)]
pub(crate) struct Caps(caps::Caps);

/// A field of a capability block that is out of its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Nonsense {
    /// Name of the field.
    pub(crate) field: &'static str,
    /// What it says.
    pub(crate) value: u64,
}

/// Checks that a field is in a range.
macro_rules! check {
    ($caps:ident.$field:ident, $range:expr) => {
        within(stringify!($field), $caps.$field.into(), $range)?
    };
}

impl Caps {
    /// Checks a capability block. Features that it does not have leave their fields unchecked.
    pub(crate) fn new(caps: caps::Caps) -> Result<Self, Nonsense> {
        let page_shifts = pages::limit::MIN_PAGE_SHIFT..=pages::limit::MAX_PAGE_SHIFT;
        let page_sizes = page_shifts.fold(0u64, |sizes, shift| sizes | 1 << shift);
        let smallest = 1u64 << pages::limit::MIN_PAGE_SHIFT;

        let features = caps.features.get();
        within(
            "features (RC)",
            features & feature::RC,
            feature::RC..=feature::RC,
        )?;
        within("page_sizes", caps.page_sizes.get() & !page_sizes, 0..=0)?;
        within(
            "page_sizes",
            caps.page_sizes.get() & smallest,
            smallest..=smallest,
        )?;
        within(
            "cmd_timeout_ms",
            caps.cmd_timeout_ms.get().into(),
            1..=MAX_TIMEOUT_MS.into(),
        )?;
        within("max_mr_size", caps.max_mr_size.get(), smallest..=u64::MAX)?;
        within("num_vectors", caps.num_vectors.get().into(), 2..=2048)?;
        within("max_sge", caps.max_sge.get().into(), 1..=MAX_SGE.into())?;
        within(
            "max_inline",
            caps.max_inline.get().into(),
            0..=MAX_INLINE.into(),
        )?;
        check!(caps.num_ports, 1..=u8::MAX.into());
        check!(caps.log_max_cmds, 1..=12);
        // QPs 0 and 1 are those of the ports.
        check!(caps.log_max_qp, 2..=MAX_LOG_OBJECTS.into());
        check!(caps.log_max_sq_blocks, 0..=MAX_LOG_ENTRIES.into());
        check!(caps.log_max_rq_wqes, 0..=MAX_LOG_ENTRIES.into());
        check!(caps.log_max_cq, 0..=MAX_LOG_OBJECTS.into());
        check!(caps.log_max_cqe, 0..=MAX_LOG_ENTRIES.into());
        check!(caps.log_max_key, 0..=MAX_LOG_OBJECTS.into());
        check!(caps.log_max_pd, 0..=MAX_LOG_OBJECTS.into());
        // One for events and one for completions.
        check!(caps.log_max_eq, 1..=12);
        check!(caps.log_max_eqe, 0..=MAX_LOG_ENTRIES.into());
        if features & feature::SRQ != 0 {
            check!(caps.log_max_srq, 0..=MAX_LOG_OBJECTS.into());
        }
        if features & feature::XRC != 0 {
            check!(caps.log_max_xrcd, 0..=MAX_LOG_OBJECTS.into());
        }
        // IBTA 9.9.2.1.2: a 5-bit code.
        check!(caps.local_ack_delay, 0..=31);
        Ok(Self(caps))
    }
}

impl Deref for Caps {
    type Target = caps::Caps;

    fn deref(&self) -> &caps::Caps {
        &self.0
    }
}

fn within(field: &'static str, value: u64, range: RangeInclusive<u64>) -> Result<(), Nonsense> {
    if range.contains(&value) {
        Ok(())
    } else {
        Err(Nonsense { field, value })
    }
}
