// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The client programs over the kernel's soft-RoCE. Shows that guests, network, agent and parsers work, with no part of Qiao in
//! the path; when the demo fails and this passes, the fault is Qiao's.

use anyhow::Result;

use super::{clients::Pair, Scenario};
use crate::{
    report::Report,
    session::{Session, SHORT},
    topology::Topology,
};

/// GID 1 of a soft-RoCE device is the one made from the interface's IPv4 address; GID 0 is from its link-local one.
const IPV4_GID: u8 = 1;

pub(super) const SCENARIO: Scenario = Scenario {
    name: "softroce",
    about: "the demo's client programs over the kernel's own soft-RoCE: checks the lab, not Qiao",
    parts: &[],
    topology: || Topology::default().guest("a", &[]).guest("b", &[]),
    run,
};

fn run(session: &Session, report: &mut Report) -> Result<()> {
    for guest in &session.guests {
        guest.run(
            "modprobe -a rdma_rxe ib_uverbs && rdma link add rxe0 type rxe netdev eth0",
            SHORT,
        )?;
    }
    let pair = Pair {
        server: &session.guests[0],
        client: &session.guests[1],
        device: "rxe0",
        gid_index: Some(IPV4_GID),
    };
    report.test("ping", || {
        pair.client
            .run(&format!("ping -c 3 {}", pair.server.address), SHORT)
            .map(|_| "")
    });
    pair.run_all(report);
    Ok(())
}
