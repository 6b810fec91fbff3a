// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The device model's transport against the kernel's soft-RoCE, an implementation that others wrote. The guest has no part of Qiao
//! but a test program; the model's transport runs in the lab, at the other end of the guest's Ethernet.

use std::{
    net::Ipv4Addr,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use anyhow::{Context, Result};
use qiao_fabric::wire::roce::Address;
use qiao_peer::Peer;

use super::{cases, softroce, Part, Scenario};
use crate::{
    report::Report,
    session::{Session, LONG},
    topology::Topology,
};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "peer",
    about: "the device model's transport and the kernel's soft-RoCE: every operation both ways, on a good link and a bad one",
    alarm: None,
    parts: &[Part::Peer],
    topology: || Topology::default().guest("a", &[]).ethernet_socket(),
    run,
};

/// The address of the second guest, if there were one.
const ADDRESS: Address = Address {
    mac: [0x52, 0x54, 0x00, 0x77, 0x00, 0x02],
    ip: Ipv4Addr::new(10, 77, 0, 2),
};

/// Seed of the link's faults.
const SEED: u64 = 1;

fn run(session: &Session, report: &mut Report) -> Result<()> {
    let guest = &session.guests[0];
    let [remote, local] = session.ethernet_sockets();
    let mut peer = Peer::bind(&local, &remote, ADDRESS, SEED).context("the peer's socket")?;
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let peer = scope.spawn(|| peer.run(&stop));
        let tested = softroce::start(guest).map(|()| {
            let command = format!(
                "python3 /{} {} {}",
                cases::PEER,
                softroce::DEVICE,
                ADDRESS.ip
            );
            cases::run(report, guest, &command, LONG);
        });
        stop.store(true, Ordering::Release);
        let served = peer.join().expect("the peer does not panic");
        tested.and(served.context("the peer's socket"))
    })?;
    report.test("ICRC of every packet", || {
        softroce::check_icrcs(&session.dir.join("a.net.pcap"))
    });
    Ok(())
}
