// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The tool chain makes modules that the distribution's kernel loads.

use anyhow::{ensure, Result};

use super::{Part, Scenario};
use crate::{
    kernel::guest_module_dir,
    report::Report,
    session::{Session, SHORT},
    topology::Topology,
};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "hello",
    about: "a Rust module built against the overlay loads into the stock kernel and unloads",
    alarm: None,
    parts: &[Part::Hello],
    topology: || Topology::default().guest("a", &[]),
    run,
};

/// What the lab must find in the log of [`ALARM`].
const ALARM_TEXT: &str = "WARNING: the lab tests whether it sees this";

pub(super) const ALARM: Scenario = Scenario {
    name: "alarm",
    about: "a warning in a guest's kernel log is found: without this no run could be trusted",
    alarm: Some(ALARM_TEXT),
    parts: &[],
    topology: || Topology::default().guest("a", &[]),
    run: |session, _| {
        let command = format!("echo '<4>{ALARM_TEXT}' >/dev/kmsg");
        session.guests[0].run(&command, SHORT).map(drop)
    },
};

fn run(session: &Session, report: &mut Report) -> Result<()> {
    let guest = &session.guests[0];
    let release = guest.run("uname -r", SHORT)?.stdout.trim().to_owned();
    report.test("load a Rust module", || {
        let module = guest_module_dir(&release).join("qiao_hello.ko");
        guest.run(&format!("insmod /{}", module.display()), SHORT)?;
        let log = guest.run("dmesg | grep qiao_hello:", SHORT)?.stdout;
        ensure!(
            log.contains("loaded with [1, 2, 3]"),
            "the kernel log says:\n{log}"
        );
        Ok(format!("kernel {release}"))
    });
    report.test("unload it", || {
        guest.run("rmmod qiao_hello", SHORT)?;
        let log = guest.run("dmesg | grep qiao_hello:", SHORT)?.stdout;
        ensure!(
            log.contains("unloaded with [1, 4, 9]"),
            "the kernel log says:\n{log}"
        );
        Ok("")
    });
    Ok(())
}
