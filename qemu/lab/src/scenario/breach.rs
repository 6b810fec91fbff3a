// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A device that is let use memory no more while it works: the device model notices, and so does the lab.

use anyhow::{ensure, Result};

use super::{driver, function::Function, Part, Scenario};
use crate::{
    report::Report,
    session::{Session, SHORT},
    topology::Topology,
};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "breach",
    about: "somebody clears the bus-master bit under the driver: the model counts the DMA, the driver gives the device up",
    alarm: None,
    parts: &[Part::Driver, Part::Model, Part::Probe],
    topology: || {
        Topology::default()
            .guest("a", &["a0"])
            .hca_settings("a0", "overrides = { cmd_timeout_ms = 200 }")
    },
    run,
};

fn run(session: &Session, report: &mut Report) -> Result<()> {
    session.expect_dma_breaches();
    let guest = &session.guests[0];
    driver::load(guest)?;
    let functions = Function::all(guest, 1)?;
    let function = &functions[0];
    let device = function.require_rdma_device()?;
    report.test("no bus master", || {
        // Bit 2 of the command register.
        let command = format!("setpci -s {} COMMAND=0:4", function.address);
        guest.run(&command, SHORT)?;
        // Somebody must use the device to find out; whether that fails is the matter of the program.
        guest.run(&format!("qiao-probe {device} abandon || true"), SHORT)?;
        let lines = function.kernel_lines()?;
        ensure!(
            lines.iter().any(|line| line.contains("device is lost")),
            "the driver has not given it up:\n{}",
            lines.join("\n")
        );
        Ok(lines.join("; "))
    });
    report.test("rmmod", || guest.run("rmmod qiao", SHORT).map(|_| ""));
    Ok(())
}
