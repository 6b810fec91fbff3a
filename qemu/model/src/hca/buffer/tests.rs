// SPDX-License-Identifier: GPL-2.0 OR MIT

use super::*;
use crate::mem::{Gate, Rights};
use proptest::prelude::*;
use qiao_hw::pages::levels_for;
use rustix::fs::{ftruncate, memfd_create, MemfdFlags};
use std::fs::File;

const SIZE: u64 = 0x40_0000;
const ALL_SIZES: u64 = 0xffff_f000;

fn host() -> Dma {
    let fd = memfd_create("host", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, SIZE).unwrap();
    let dma = Dma::default();
    dma.map(
        0,
        SIZE,
        Rights {
            read: true,
            write: true,
        },
        Some((File::from(fd), 0)),
    )
    .unwrap();
    dma.set_gate(Gate::BusMaster, true);
    dma
}

/// Writes the tables of a list of `pages` from DMA address `at` on, as a driver does.
fn list(dma: &Dma, at: u64, pages: &[u64], shift: u8, offset: u64) -> PageList {
    let mut list = PageList::zeroed();
    list.count.set(pages.len() as u32);
    list.page_shift = shift;
    list.offset.set(offset);
    list.levels = levels_for(pages.len() as u64).unwrap();
    let (mut level, mut free) = (pages.to_vec(), at);
    for _ in 0..list.levels {
        let mut above = Vec::new();
        for chunk in level.chunks(512) {
            let table: Vec<u8> = chunk.iter().flat_map(|page| page.to_le_bytes()).collect();
            dma.write_bytes(free, &table).unwrap();
            above.push(free);
            free += 4096;
        }
        level = above;
    }
    list.addr.set(level[0]);
    list
}

#[test]
fn three_levels_reach_the_right_pages() {
    let dma = host();
    let pages: Vec<u64> = (0..512 * 512 + 3).map(|n| n * 4096).collect();
    let list = list(&dma, 0x10_0000, &pages, 12, 7);
    assert_eq!(list.levels, 3);
    let length = (pages.len() as u64) * 4096 - 7;
    let buffer = Buffer::walk(&dma, &list, length, ALL_SIZES, usize::MAX).unwrap();
    assert_eq!(buffer.pages, pages);
    assert_eq!(buffer.locate(0), Some((7, 4089)));
    assert_eq!(
        buffer.locate(length - 1),
        Some((pages.len() as u64 * 4096 - 1, 1))
    );
    assert_eq!(buffer.locate(length).map(|(_, left)| left), None);
}

#[test]
fn malformed_lists_are_refused() {
    let dma = host();
    let good = list(&dma, 0x10_0000, &[0x1000, 0x2000], 12, 0);
    let walk =
        |list: &PageList, length| Buffer::walk(&dma, list, length, ALL_SIZES, 1000).map(|_| ());
    assert_eq!(walk(&good, 0x2000), Ok(()));
    assert_eq!(
        walk(&good, 0x2001),
        Err(WalkError::Operand),
        "ring too small"
    );
    assert_eq!(walk(&good, 0), Err(WalkError::Operand));
    assert_eq!(walk(&good, u64::MAX), Err(WalkError::Operand));
    let change = |change: fn(&mut PageList)| {
        let mut list = good;
        change(&mut list);
        walk(&list, 0x1000)
    };
    assert_eq!(change(|l| l.page_shift = 11), Err(WalkError::Operand));
    assert_eq!(change(|l| l.page_shift = 255), Err(WalkError::Operand));
    assert_eq!(change(|l| l.levels = 4), Err(WalkError::Operand));
    assert_eq!(change(|l| l.levels = 0), Err(WalkError::Operand));
    assert_eq!(change(|l| l.count.set(0)), Err(WalkError::Operand));
    assert_eq!(change(|l| l.count.set(513)), Err(WalkError::Operand));
    assert_eq!(change(|l| l.offset.set(0x1000)), Err(WalkError::Operand));
    assert_eq!(change(|l| l.rsvd.set(1)), Err(WalkError::Operand));
    assert_eq!(change(|l| l.addr.set(0x10_0008)), Err(WalkError::Operand));
    assert!(matches!(
        change(|l| l.addr.set(SIZE)),
        Err(WalkError::Dma(_))
    ));
    let unaligned = list(&dma, 0x10_0000, &[0x1000, 0x2008], 12, 0);
    assert_eq!(walk(&unaligned, 0x2000), Err(WalkError::Operand));
    assert!(matches!(
        Buffer::walk(&dma, &good, 0x2000, 1 << 16, 1000),
        Err(WalkError::Operand)
    ));
    assert!(matches!(
        Buffer::walk(&dma, &good, 0x2000, ALL_SIZES, 1),
        Err(WalkError::Resources)
    ));
}

proptest! {
    /// Any list ends in a buffer or an error, and a buffer never leaves its pages.
    #[test]
    fn any_list_is_survived(
        bytes in prop::array::uniform24(any::<u8>()),
        shift in 10u8..20, levels in 0u8..5, count in 0u32..2000, offset in 0u64..0x2_0000,
        addr in 0u64..SIZE / 4096, length in 0u64..0x80_0000, at in any::<u64>(), len in 0usize..10000,
    ) {
        let dma = host();
        let wild = PageList::read_from_bytes(&bytes).unwrap();
        let _ = Buffer::walk(&dma, &wild, length, ALL_SIZES, 1 << 20);
        let mut tame = PageList::zeroed();
        tame.addr.set(addr * 4096);
        tame.page_shift = shift;
        tame.levels = levels;
        tame.count.set(count);
        tame.offset.set(offset);
        if let Ok(buffer) = Buffer::walk(&dma, &tame, length, ALL_SIZES, 1 << 20) {
            let fits = at.checked_add(len as u64).is_some_and(|end| end <= length);
            let mut out = vec![0; len];
            if buffer.read(&dma, at % (1 << 40), &mut out).is_ok() && len > 0 {
                prop_assert!(fits || at >= 1 << 40);
            }
        }
    }

    /// What is written through a list of shuffled pages is where a linear copy would put it.
    #[test]
    fn transfers_follow_the_pages(
        order in Just((0..64u64).collect::<Vec<_>>()).prop_shuffle(), count in 1usize..64,
        offset in 0u64..4096, at in 0u64..0x2_0000, data in prop::collection::vec(any::<u8>(), 1..9000),
    ) {
        let dma = host();
        let pages: Vec<u64> = order[..count].iter().map(|n| 0x20_0000 + n * 4096).collect();
        let list = list(&dma, 0x10_0000, &pages, 12, offset);
        let length = count as u64 * 4096 - offset;
        let buffer = Buffer::walk(&dma, &list, length, ALL_SIZES, 64).unwrap();
        let fits = at + data.len() as u64 <= length;
        prop_assert_eq!(buffer.write(&dma, at, &data).is_ok(), fits);
        if fits {
            for (n, &byte) in data.iter().enumerate() {
                let linear = offset + at + n as u64;
                let mut got = [0];
                dma.read(pages[(linear / 4096) as usize] + linear % 4096, &mut got).unwrap();
                prop_assert_eq!(got[0], byte);
            }
        }
    }
}
