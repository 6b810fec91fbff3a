// SPDX-License-Identifier: GPL-2.0 OR MIT

use super::*;
use proptest::prelude::*;
use std::collections::HashSet;

fn space() -> ConfigSpace {
    ConfigSpace::new(&Identity {
        vendor: 0x1af4,
        device: 0x10f0,
        class: 0x02_07_51,
        bars: [0x2000, 0x40_0000, 0x1_0000],
        vectors: 32,
        serial: 0x0102_0304_0506_0708,
    })
}

fn get32(space: &ConfigSpace, at: usize) -> u32 {
    let mut bytes = [0; 4];
    space.read(at, &mut bytes);
    u32::from_le_bytes(bytes)
}

#[test]
fn class_and_ids() {
    let space = space();
    assert_eq!(get32(&space, 0), 0x10f0_1af4);
    assert_eq!(get32(&space, 8) >> 8, qiao_hw::bar::pci::CLASS);
}

#[test]
fn bars_size_themselves() {
    let mut space = space();
    for (bar, size) in [(0, 0x2000u64), (2, 0x40_0000), (4, 0x1_0000)] {
        let at = 0x10 + 4 * bar;
        let kind = get32(&space, at) & 0xf;
        assert_eq!(kind & 6, 4, "BAR{bar} is 64 bits wide");
        assert_eq!(
            kind & 8 != 0,
            bar == 2,
            "only the doorbells are prefetchable"
        );
        space.write(at, &[0xff; 8]);
        let low = u64::from(get32(&space, at) & !0xf);
        let high = u64::from(get32(&space, at + 4));
        assert_eq!(((high << 32) | low).wrapping_neg(), size);
    }
}

#[test]
fn capability_chains_end_and_hold_what_the_kernel_looks_for() {
    let space = space();
    let mut seen = HashSet::new();
    let mut at = get32(&space, 0x34) as usize & 0xff;
    while at != 0 {
        let header = get32(&space, at);
        assert!(seen.insert(header & 0xff), "capability twice");
        at = (header >> 8) as usize & 0xff;
    }
    assert_eq!(seen, HashSet::from([0x11, 0x01, 0x10]));
    let mut seen = HashSet::new();
    let mut at = 0x100;
    while at != 0 {
        let header = get32(&space, at);
        assert!(seen.insert(header & 0xffff), "capability twice");
        at = (header >> 20) as usize;
    }
    assert_eq!(seen, HashSet::from([0x03, 0x01]));
}

#[test]
fn flr_resets_all_but_error_records() {
    let mut space = space();
    space.write(0x04, &[0x06, 0]);
    space.write(0x10, &[0, 0, 0, 0xfe]);
    space.write(0x140 + 8, &[0x10, 0, 0, 0]);
    assert!(space.bus_master() && space.memory_enabled());
    let mut control = [0; 2];
    space.read(0x68, &mut control);
    control[1] |= 0x80;
    assert_eq!(space.write(0x68, &control), Effect { reset: true });
    assert!(!space.bus_master() && !space.memory_enabled());
    assert_eq!(get32(&space, 0x10), 4);
    assert_eq!(get32(&space, 0x140 + 8), 0x10);
    assert_eq!(get32(&space, 0x68) & 0x8000, 0);
}

#[test]
fn leaving_d3hot_resets() {
    let mut space = space();
    space.write(0x04, &[0x06, 0]);
    assert_eq!(space.write(0x54, &[3]), Effect::default());
    assert!(!space.memory_enabled());
    assert_eq!(space.write(0x54, &[0]), Effect { reset: true });
    assert!(!space.bus_master());
}

proptest! {
    /// Whatever is written, read-only bits keep their value.
    #[test]
    fn read_only_bits_never_change(
        writes in prop::collection::vec((0..CONFIG_SIZE - 8, prop::collection::vec(any::<u8>(), 1..8)), 1..200)
    ) {
        let mut space = space();
        let fresh = self::space();
        for (at, data) in writes {
            space.write(at, &data);
        }
        for at in 0..CONFIG_SIZE {
            let fixed = !(space.layout.writable[at] | space.layout.clearable[at]);
            prop_assert_eq!(space.bytes[at] & fixed, fresh.bytes[at] & fixed, "byte {:#x}", at);
        }
    }
}
