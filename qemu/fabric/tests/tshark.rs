// SPDX-License-Identifier: GPL-2.0 OR MIT

//! An independent dissector reads the packets.

use qiao_fabric::capture::{Capture, Limits};
use qiao_fabric::wire::*;
use std::process::Command;
use zerocopy::FromZeros;

fn packet(operation: Operation, global: bool, payload: &[u8]) -> Vec<u8> {
    let mut lrh = Lrh::new_zeroed();
    lrh.dlid = 2.into();
    lrh.slid = 1.into();
    let mut grh = Grh::new_zeroed();
    grh.version_class_flow = (6 << 28).into();
    grh.next_header = Grh::NEXT_HEADER;
    let mut bth = Bth::new_zeroed();
    bth.pkey = 0xffff.into();
    bth.dest_qp = 0x1234.into();
    bth.ack_psn = 0xabcdef.into();
    let grh = global.then_some(grh);
    let mut b = Builder::new(Frame::default(), lrh, grh, bth, Transport::Rc, operation);
    let ext = operation.ext();
    if ext.reth {
        b = b.header(&Reth {
            va: 0x1122_3344_5566_7788.into(),
            rkey: 0x99aa_bbcc.into(),
            length: 4096.into(),
        });
    }
    if ext.atomic {
        b = b.header(&AtomicEth::new_zeroed());
    }
    if ext.aeth {
        b = b.header(&Aeth::new(0x1f, 5));
    }
    if ext.atomic_ack {
        b = b.header(&AtomicAckEth::new_zeroed());
    }
    if ext.imm {
        b = b.header(&ImmDt { data: [1, 2, 3, 4] });
    }
    if ext.ieth {
        b = b.header(&Ieth { rkey: 7.into() });
    }
    b.payload(payload.len()).copy_from_slice(payload);
    b.finish().into_wire()
}

const OPERATIONS: [(Operation, &str); 10] = [
    (Operation::SendOnly, "RC Send Only "),
    (Operation::SendOnlyImm, "RC Send Only Immediate"),
    (Operation::WriteFirst, "RC RDMA Write First"),
    (Operation::WriteLastImm, "RC RDMA Write Last Immediate"),
    (Operation::ReadRequest, "RC RDMA Read Request"),
    (Operation::ReadResponseOnly, "RC RDMA Read Response Only"),
    (Operation::Acknowledge, "RC Acknowledge"),
    (Operation::AtomicAcknowledge, "RC Atomic Acknowledge"),
    (Operation::CompareSwap, "RC Compare Swap"),
    (Operation::SendOnlyInvalidate, "RC Send Only Invalidate"),
];

/// Runs tshark on a capture of all operations.
fn tshark(args: &[&str]) -> String {
    tshark_within(Limits::default(), args)
}

/// As [`tshark`], of what is kept of the packets.
fn tshark_within(limits: Limits, args: &[&str]) -> String {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("all.pcap");
    let mut capture = Capture::create(&path, limits).expect("a capture");
    for (i, (operation, _)) in OPERATIONS.iter().enumerate() {
        let bytes = packet(*operation, i % 2 == 1, &[0x5a; 16]);
        capture.write(i as u64 * 1000, &bytes).expect("written");
    }
    drop(capture);
    let output = Command::new("tshark")
        .arg("-r")
        .arg(&path)
        .args(args)
        .output()
        .expect("tshark runs (it is in the development root: use make test)");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn every_operation_is_named_and_none_is_malformed() {
    let text = tshark(&[]);
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), OPERATIONS.len(), "{text}");
    for (line, (_, name)) in lines.iter().zip(OPERATIONS) {
        assert!(line.contains(name.trim_end()), "{line} is not {name}");
        assert!(!line.to_lowercase().contains("malformed"), "{line}");
    }
}

#[test]
fn fields_are_where_the_dissector_expects_them() {
    let text = tshark(&[
        "-T",
        "fields",
        "-e",
        "infiniband.lrh.dlid",
        "-e",
        "infiniband.bth.destqp",
        "-e",
        "infiniband.bth.psn",
        "-e",
        "infiniband.reth.r_key",
        "-e",
        "infiniband.bth.p_key",
    ]);
    let first = text.lines().next().expect("a line");
    assert_eq!(
        first.split('\t').take(3).collect::<Vec<_>>(),
        ["2", "0x001234", "11259375"]
    );
    let write = text.lines().nth(2).expect("a line");
    assert_eq!(write.split('\t').nth(3), Some("0x99aabbcc"));
    for line in text.lines() {
        assert_eq!(line.split('\t').nth(4), Some("65535"), "{line}");
    }
}

#[test]
fn packets_that_are_cut_off_are_no_malformed_ones() {
    // The headers of most operations, no payload, and no CRC.
    for snap in [8, 20, 36, 64] {
        let limits = Limits {
            snap,
            ..Limits::default()
        };
        let text = tshark_within(limits, &["-V"]);
        assert!(!text.to_lowercase().contains("malformed"), "{snap}: {text}");
        let text = tshark_within(
            limits,
            &["-T", "fields", "-e", "frame.len", "-e", "frame.cap_len"],
        );
        assert_eq!(text.lines().count(), OPERATIONS.len(), "{text}");
        for line in text.lines() {
            let (whole, kept) = line.split_once('\t').expect("two fields");
            let [whole, kept]: [u16; 2] = [whole, kept].map(|n| n.parse().expect("a length"));
            assert_eq!(kept, whole.min(snap), "{line}");
        }
    }
}
