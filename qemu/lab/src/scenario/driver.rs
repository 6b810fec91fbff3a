// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The driver in the stock kernel of a guest that has no HCA.

use anyhow::{ensure, Result};

use super::{Part, Scenario};
use crate::{
    figures,
    kernel::guest_module_dir,
    report::Report,
    session::{Guest, Session, SHORT},
    topology::Topology,
};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "driver",
    about: "the driver loads into the stock kernel and unloads, again and again, with no HCA there",
    alarm: None,
    parts: &[Part::Driver],
    topology: || Topology::default().guest("a", &[]),
    run,
};

/// More than one load finds what an unload leaves behind.
const LOADS: usize = 3;

fn run(session: &Session, report: &mut Report) -> Result<()> {
    let guest = &session.guests[0];
    report.test("insmod and rmmod", || {
        for _ in 0..LOADS {
            load(guest)?;
            guest.run("rmmod qiao", SHORT)?;
        }
        Ok(format!("{LOADS} times"))
    });
    Ok(())
}

/// Loads the driver and what it needs of the distribution's modules.
pub(super) fn load(guest: &Guest) -> Result<()> {
    let release = guest.run("uname -r", SHORT)?.stdout;
    let module = guest_module_dir(release.trim()).join("qiao.ko");
    let command = format!("modprobe ib_uverbs && insmod /{}", module.display());
    guest.run(&command, SHORT).map(drop)
}

/// Loads the driver into each guest, which has one RDMA device; returns the names of these.
pub(super) fn load_all(session: &Session) -> Result<Vec<String>> {
    let one = |guest| {
        load(guest)?;
        Ok(devices(guest, 1)?.remove(0))
    };
    session.guests.iter().map(one).collect()
}

/// The names of the RDMA devices of a guest; an error unless there are as many as wanted.
pub(super) fn devices(guest: &Guest, count: usize) -> Result<Vec<String>> {
    let listed = guest.run("ibv_devices", SHORT)?.stdout;
    let names = figures::device_names(&listed);
    ensure!(
        names.len() == count,
        "{count} RDMA devices were expected:\n{listed}"
    );
    Ok(names.into_iter().map(Into::into).collect())
}
