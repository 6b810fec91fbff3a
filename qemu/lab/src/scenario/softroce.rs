// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The client programs over the kernel's soft-RoCE. Shows that guests, network, agent and parsers work, with no part of Qiao in
//! the path; when the demo fails and this passes, the fault is Qiao's.

use std::path::Path;

use anyhow::{ensure, Result};
use qiao_fabric::{capture, wire::roce};

use super::{
    clients::{End, Pair},
    Scenario,
};
use crate::{
    report::Report,
    session::{Guest, Session, SHORT},
    topology::Topology,
};

/// GID 1 of a soft-RoCE device is the one made from the interface's IPv4 address; GID 0 is from its link-local one.
pub(super) const IPV4_GID: u8 = 1;

/// The soft-RoCE device of a guest.
pub(super) const DEVICE: &str = "rxe0";

pub(super) const SCENARIO: Scenario = Scenario {
    name: "softroce",
    about: "the demo's client programs over the kernel's own soft-RoCE: checks the lab, not Qiao",
    alarm: None,
    parts: &[],
    topology: || Topology::default().guest("a", &[]).guest("b", &[]),
    run,
};

fn run(session: &Session, report: &mut Report) -> Result<()> {
    for guest in &session.guests {
        start(guest)?;
    }
    let end = |guest| End {
        guest,
        device: DEVICE,
    };
    let (server, client) = (&session.guests[0], &session.guests[1]);
    report.test("ping", || {
        client
            .run(&format!("ping -c 3 {}", server.address), SHORT)
            .map(|_| "")
    });
    let pair = Pair {
        server: end(server),
        client: end(client),
        gid_index: Some(IPV4_GID),
    };
    pair.run_all(report);
    report.test("ICRC of soft-RoCE's packets", || {
        check_icrcs(&session.dir.join("a.net.pcap"))
    });
    Ok(())
}

/// Makes a soft-RoCE device on the guest's Ethernet.
pub(super) fn start(guest: &Guest) -> Result<()> {
    let command =
        format!("modprobe -a rdma_rxe ib_uverbs && rdma link add {DEVICE} type rxe netdev eth0");
    guest.run(&command, SHORT).map(drop)
}

/// Computes the ICRC of every RoCE packet in a capture. The kernel made them: an independent judge of the code that makes and
/// checks Qiao's.
pub(super) fn check_icrcs(path: &Path) -> Result<String> {
    let (mut right, mut wrong) = (0, 0);
    capture::for_each(path, |frame| match roce::check_icrc(frame) {
        Some(true) => right += 1,
        Some(false) => wrong += 1,
        None => {}
    })?;
    ensure!(wrong == 0, "{wrong} of {} packets differ", right + wrong);
    ensure!(right > 100, "only {right} packets were captured");
    Ok(format!("{right} packets, all right"))
}
