// SPDX-License-Identifier: GPL-2.0 OR MIT

use super::*;
use rustix::fs::{ftruncate, memfd_create, MemfdFlags};

const RW: Rights = Rights {
    read: true,
    write: true,
};
const RO: Rights = Rights {
    read: true,
    write: false,
};

fn memory(size: u64) -> File {
    let fd = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, size).unwrap();
    File::from(fd)
}

fn open() -> Dma {
    let dma = Dma::default();
    dma.set_gate(Gate::BusMaster, true);
    dma
}

#[test]
fn scattered_pages_of_one_file_are_one_mapping_and_one_transfer() {
    let dma = open();
    let file = memory(0x4000);
    // Neighbours in I/O virtual addresses that are reversed in the file, as behind an IOMMU.
    for page in 0..4u64 {
        let at = (file.try_clone().unwrap(), (3 - page) * 0x1000);
        dma.map(0x10_0000 + page * 0x1000, 0x1000, RW, Some(at))
            .unwrap();
    }
    assert_eq!(dma.counts(), (4, 1));
    let data: Vec<u8> = (0..0x3000u32).map(|i| (i * 7) as u8).collect();
    dma.write_bytes(0x10_0800, &data).unwrap();
    let mut back = vec![0; data.len()];
    dma.read(0x10_0800, &mut back).unwrap();
    assert_eq!(back, data);
    let mut first = [0; 4];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut first, 0x3800).unwrap();
    assert_eq!(first, data[..4]);
}

#[test]
fn a_transfer_that_is_not_wholly_mapped_writes_nothing() {
    let dma = open();
    let file = memory(0x2000);
    dma.map(0x1000, 0x1000, RW, Some((file.try_clone().unwrap(), 0)))
        .unwrap();
    assert_eq!(
        dma.write_bytes(0x1ff0, &[1; 32]),
        Err(DmaFault { addr: 0x2000 })
    );
    let mut tail = [9; 16];
    dma.read(0x1ff0, &mut tail).unwrap();
    assert_eq!(tail, [0; 16]);
    dma.map(0x2000, 0x1000, RO, Some((file, 0x1000))).unwrap();
    assert_eq!(
        dma.write_bytes(0x1ff0, &[1; 32]),
        Err(DmaFault { addr: 0x2000 })
    );
    dma.read(0x1ff0, &mut [0; 32]).unwrap();
    let breaches = dma.breaches();
    assert_eq!((breaches.unmapped, breaches.rights), (1, 1));
}

#[test]
fn use_after_unmap_and_closed_gates_fault() {
    let dma = open();
    dma.map(0, 0x1000, RW, Some((memory(0x1000), 0))).unwrap();
    dma.store_u32(0x10, 7).unwrap();
    for gate in [Gate::BusMaster, Gate::Reset, Gate::Present] {
        dma.set_gate(gate, false);
        assert!(dma.load_u32(0x10).is_err());
        dma.set_gate(gate, true);
        assert_eq!(dma.load_u32(0x10), Ok(7));
    }
    assert!(dma.load_u32(0x1000).is_err());
    dma.unmap(0, 0x1000).unwrap();
    assert!(dma.load_u32(0x10).is_err());
    assert_eq!(dma.counts(), (0, 0));
    let want = Breaches {
        bus_master: 1,
        unmapped: 1,
        unmapping: 1,
        ..Breaches::default()
    };
    assert_eq!(dma.breaches(), want);
    // Mapped again, it is as good as new.
    dma.map(0, 0x1000, RW, Some((memory(0x1000), 0))).unwrap();
    assert_eq!(dma.load_u32(0x10), Ok(0));
}

#[test]
fn memory_without_a_file_is_accepted_and_faults() {
    let dma = open();
    dma.map(0xf000, 0x1000, RW, None).unwrap();
    assert_eq!(dma.read(0xf000, &mut [0]), Err(DmaFault { addr: 0xf000 }));
    dma.unmap(0xf000, 0x1000).unwrap();
    assert_eq!(dma.breaches().no_memory, 1);
}

#[test]
fn bad_ranges_are_refused() {
    let dma = open();
    let file = memory(0x2000);
    let at = |offset| Some((file.try_clone().unwrap(), offset));
    assert!(matches!(dma.map(0, 0, RW, at(0)), Err(MapError::Range)));
    assert!(matches!(
        dma.map(u64::MAX, 2, RW, at(0)),
        Err(MapError::Range)
    ));
    assert!(matches!(
        dma.map(0, 0x1000, RW, at(0x1001)),
        Err(MapError::Range)
    ));
    assert!(matches!(
        dma.map(0, 0x1000, RW, at(u64::MAX)),
        Err(MapError::Range)
    ));
    dma.map(0x1000, 0x1000, RW, at(0)).unwrap();
    assert!(matches!(
        dma.map(0x1fff, 1, RW, at(0)),
        Err(MapError::Overlap)
    ));
    assert!(matches!(
        dma.map(0xfff, 2, RW, at(0)),
        Err(MapError::Overlap)
    ));
    assert!(matches!(dma.unmap(0x1800, 0x1000), Err(MapError::Range)));
    assert!(matches!(dma.unmap(0x800, 0x1000), Err(MapError::Range)));
    assert!(matches!(dma.unmap(0x4000, 0), Err(MapError::Range)));
    dma.unmap(0x4000, 0x1000).unwrap();
    assert_eq!(dma.counts(), (1, 1));
    // The upper half of the address space, whose end is not a number.
    dma.unmap(1 << 63, 1 << 63).unwrap();
    dma.unmap(0, 0x10000).unwrap();
}

#[test]
fn atomics_need_alignment_and_both_rights() {
    let dma = open();
    dma.map(0, 0x1000, RW, Some((memory(0x1000), 0))).unwrap();
    dma.map(0x1000, 0x1000, RO, Some((memory(0x1000), 0)))
        .unwrap();
    assert_eq!(dma.update_u64(8, |v| v + 5), Ok(0));
    assert_eq!(dma.update_u64(8, |v| v + 5), Ok(5));
    assert!(dma.update_u64(12, |v| v).is_err());
    assert!(dma.update_u64(0x1000, |v| v).is_err());
    assert!(dma.store_u32(0xffe, 1).is_err());
    let breaches = dma.breaches();
    assert_eq!((breaches.alignment, breaches.rights), (2, 1));
}
