// SPDX-License-Identifier: GPL-2.0

//! What a part has, checked.
//!
//! No kernel in here: the tests are those of `qemu/driver`.

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
        let page_sizes = page_shifts.fold(0u64, |sizes, shift| sizes | (1 << shift));
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
        // Index 0 is not used.
        check!(caps.log_max_key, 1..=MAX_LOG_OBJECTS.into());
        check!(caps.log_max_pd, 0..=MAX_LOG_OBJECTS.into());
        // One for events and one for completions.
        check!(caps.log_max_eq, 1..=12);
        check!(caps.log_max_eqe, 0..=MAX_LOG_ENTRIES.into());
        if features & feature::SRQ != 0 {
            // Number 0 is not used.
            check!(caps.log_max_srq, 1..=MAX_LOG_OBJECTS.into());
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

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> caps::Caps {
        let mut caps = caps::Caps::zeroed();
        caps.features.set(feature::RC);
        caps.page_sizes.set((1 << 12) | (1 << 21));
        caps.max_mr_size.set(1 << 40);
        caps.cmd_timeout_ms.set(60_000);
        caps.num_vectors.set(2);
        caps.max_sge.set(16);
        caps.max_inline.set(256);
        caps.num_ports = 1;
        caps.log_max_cmds = 6;
        caps.log_max_qp = 14;
        caps.log_max_sq_blocks = 15;
        caps.log_max_rq_wqes = 14;
        caps.log_max_cq = 14;
        caps.log_max_cqe = 20;
        caps.log_max_key = 20;
        caps.log_max_pd = 14;
        caps.log_max_eq = 6;
        caps.log_max_eqe = 12;
        caps.local_ack_delay = 14;
        caps
    }

    /// Returns the field that is refused after `spoil`.
    fn refused(spoil: impl FnOnce(&mut caps::Caps)) -> &'static str {
        let mut caps = good();
        spoil(&mut caps);
        Caps::new(caps).err().expect("accepted").field
    }

    #[test]
    fn a_plausible_block_is_taken_as_it_is() {
        let caps = Caps::new(good()).expect("refused");
        assert_eq!(*caps, good());
    }

    #[test]
    fn blocks_of_one_byte_repeated_are_refused() {
        for byte in [0u8, 0xff, 0x55, 0xaa] {
            let caps = zerocopy::transmute!([byte; size_of::<caps::Caps>()]);
            assert!(Caps::new(caps).is_err(), "{byte:#x}");
        }
    }

    #[test]
    fn each_field_has_its_limits() {
        assert_eq!(refused(|c| c.features.set(0)), "features (RC)");
        assert_eq!(refused(|c| c.page_sizes.set(1 << 21)), "page_sizes");
        assert_eq!(
            refused(|c| c.page_sizes.set((1 << 12) | (1 << 11))),
            "page_sizes"
        );
        assert_eq!(
            refused(|c| c.page_sizes.set((1 << 12) | (1 << 32))),
            "page_sizes"
        );
        assert_eq!(refused(|c| c.max_mr_size.set(0)), "max_mr_size");
        assert_eq!(refused(|c| c.cmd_timeout_ms.set(0)), "cmd_timeout_ms");
        assert_eq!(
            refused(|c| c.cmd_timeout_ms.set(u32::MAX)),
            "cmd_timeout_ms"
        );
        assert_eq!(refused(|c| c.num_vectors.set(1)), "num_vectors");
        assert_eq!(refused(|c| c.max_sge.set(0)), "max_sge");
        assert_eq!(refused(|c| c.max_sge.set(255)), "max_sge");
        assert_eq!(refused(|c| c.max_inline.set(4061)), "max_inline");
        assert_eq!(refused(|c| c.num_ports = 0), "num_ports");
        assert_eq!(refused(|c| c.log_max_cmds = 0), "log_max_cmds");
        assert_eq!(refused(|c| c.log_max_cmds = 13), "log_max_cmds");
        assert_eq!(refused(|c| c.log_max_qp = 1), "log_max_qp");
        assert_eq!(refused(|c| c.log_max_qp = 25), "log_max_qp");
        assert_eq!(refused(|c| c.log_max_sq_blocks = 24), "log_max_sq_blocks");
        assert_eq!(refused(|c| c.log_max_rq_wqes = 64), "log_max_rq_wqes");
        assert_eq!(refused(|c| c.log_max_cq = 32), "log_max_cq");
        assert_eq!(refused(|c| c.log_max_cqe = 255), "log_max_cqe");
        assert_eq!(refused(|c| c.log_max_key = 0), "log_max_key");
        assert_eq!(refused(|c| c.log_max_key = 25), "log_max_key");
        assert_eq!(refused(|c| c.log_max_pd = 25), "log_max_pd");
        assert_eq!(refused(|c| c.log_max_eq = 0), "log_max_eq");
        assert_eq!(refused(|c| c.log_max_eqe = 24), "log_max_eqe");
        assert_eq!(refused(|c| c.local_ack_delay = 32), "local_ack_delay");
    }

    #[test]
    fn fields_of_features_that_are_absent_do_not_count() {
        let spoil = |caps: &mut caps::Caps| {
            caps.log_max_srq = 200;
            caps.log_max_xrcd = 200;
        };
        let mut caps = good();
        spoil(&mut caps);
        assert!(Caps::new(caps).is_ok());
        caps.features.set(feature::RC | feature::SRQ);
        assert_eq!(
            Caps::new(caps).err().expect("accepted").field,
            "log_max_srq"
        );
        caps.log_max_srq = 0;
        assert_eq!(
            Caps::new(caps).err().expect("accepted").field,
            "log_max_srq"
        );
        caps.features.set(feature::RC | feature::XRC);
        assert_eq!(
            Caps::new(caps).err().expect("accepted").field,
            "log_max_xrcd"
        );
    }
}
