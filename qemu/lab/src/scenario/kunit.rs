// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The KUnit suites that the driver's module brings.

use anyhow::{ensure, Result};

use super::{driver, Part, Scenario};
use crate::{
    ktap,
    report::Report,
    session::{Guest, Session, LONG, SHORT},
    topology::Topology,
};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "kunit",
    about: "the tests inside the kernel, of the RDMA abstractions and of the driver",
    alarm: None,
    parts: &[Part::Driver],
    topology: || Topology::default().guest("a", &[]),
    run,
};

/// Where each suite has a folder, once the module with it is loaded.
const SUITES: &str = "/sys/kernel/debug/kunit";

fn run(session: &Session, report: &mut Report) -> Result<()> {
    let guest = &session.guests[0];
    driver::load(guest)?;
    let listed = guest.run(&format!("ls {SUITES}"), SHORT)?.stdout;
    ensure!(!listed.trim().is_empty(), "the driver has no suites");
    for suite in listed.split_whitespace() {
        if let Err(error) = run_suite(guest, suite, report) {
            report.add(suite, false, format!("{error:#}"));
        }
    }
    report.test("rmmod", || guest.run("rmmod qiao", SHORT).map(|_| ""));
    Ok(())
}

fn run_suite(guest: &Guest, suite: &str, report: &mut Report) -> Result<()> {
    report.doing(suite);
    let command = format!("cd {SUITES}/{suite} && echo now >run && cat results");
    ktap::add(report, &guest.run(&command, LONG)?.stdout)
}
