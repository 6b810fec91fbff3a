// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Allocations and copies from and to user space that fail, in every call of a user program, one after the other.

use anyhow::{ensure, Context, Result};
use serde_json::Value;

use super::{cases, driver, function::Function, Part, Scenario};
use crate::{
    report::Report,
    session::{Session, SHORT, SWEEP},
    topology::Topology,
};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "failures",
    about: "each allocation and each copy in each call of a user program fails in turn: the right error, nothing left, then it works",
    alarm: None,
    parts: &[Part::Driver, Part::Model, Part::Probe],
    topology: || Topology::default().guest("a", &["a0"]),
    run,
};

fn run(session: &Session, report: &mut Report) -> Result<()> {
    let guest = &session.guests[0];
    driver::load(guest)?;
    let device = Function::all(guest, 1)?[0].require_rdma_device()?;
    let before = device_objects(session)?;
    // Each context that it gets leaves a file open.
    let command = format!("ulimit -n 10000 && qiao-probe {device} sweep");
    cases::run(report, guest, &command, SWEEP);
    report.test("objects of the device", || {
        let after = device_objects(session)?;
        ensure!(
            before == after,
            "there were {before:?} and now are {after:?}"
        );
        Ok(format!("{after:?}"))
    });
    report.test("rmmod", || guest.run("rmmod qiao", SHORT).map(|_| ""));
    Ok(())
}

/// How many objects of each kind the device of the topology has, by its own account.
fn device_objects(session: &Session) -> Result<Vec<(&'static str, u64)>> {
    let dump = session.model()?.dump()?;
    let hca = dump.get(0).context("the device model has no HCA")?;
    let count = |value: &Value| {
        value
            .as_u64()
            .or_else(|| Some(value.as_array()?.len() as u64))
    };
    ["pds", "mkeys", "eqs", "cqs", "qps", "pages"]
        .into_iter()
        .map(|kind| {
            let count = count(&hca[kind]).with_context(|| format!("no {kind} in {hca}"))?;
            Ok((kind, count))
        })
        .collect()
}
