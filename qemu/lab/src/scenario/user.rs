// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Hostile user programs: calls that the kernel must refuse, and work requests that the device must.

use std::mem::offset_of;

use anyhow::{ensure, Context, Result};
use qiao_hw::{bar, caps::Caps};

use super::{cases, clients::End, demo, driver, function::Function, Part, Scenario};
use crate::{
    report::Report,
    session::{Guest, Session, LONG, SHORT},
    topology::Topology,
};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "user",
    about: "user programs that call the kernel, and post work requests, in every wrong way",
    alarm: None,
    parts: &[Part::Driver, Part::Provider, Part::Model, Part::Probe],
    topology,
    run,
};

/// The same, and the demo's programs, with doorbells that are memory.
pub(super) const POLLED: Scenario = Scenario {
    name: "polled",
    about: "the programs of demo and user with doorbells that are memory, which the device polls",
    topology: || topology().polled_doorbells(),
    run: run_all,
    ..SCENARIO
};

/// Log2 of the objects of each kind of the HCA that shows leaks: fewer than [`ATTEMPTS`].
const LOG_OBJECTS: u8 = 6;
/// How often something fails that may leave something behind; more than there are doorbell pages, too.
const ATTEMPTS: u32 = 1000;

/// Settings of an HCA that says it has few objects of each kind, and the fewest doorbell pages.
fn few_objects() -> String {
    let patches = [
        offset_of!(Caps, log_max_pd),
        offset_of!(Caps, log_max_key),
        offset_of!(Caps, log_max_cq),
        offset_of!(Caps, log_max_qp),
        offset_of!(Caps, log_max_srq),
    ]
    .map(|offset| format!("{{ offset = {offset}, bytes = [{LOG_OBJECTS}] }}"))
    .join(", ");
    let doorbells = bar::size::BAR_DOORBELL_MIN;
    format!("overrides = {{ caps = [{patches}], bar_doorbell = {doorbells} }}")
}

/// The same behind an IOMMU.
pub(super) const IOMMU: Scenario = Scenario {
    name: "iommu",
    about: "the programs of demo and user behind a strict IOMMU: every DMA is to memory that is mapped at that moment",
    topology: || topology().strict_iommu(),
    run: run_translated,
    ..SCENARIO
};

/// How the kernel calls a group of devices whose buffers are unmapped at once, and not in batches later.
const STRICT: &str = "DMA";

fn topology() -> Topology {
    Topology::default()
        .guest("a", &["few", "one", "other"])
        .link("one", "other")
        .hca_settings("few", &few_objects())
}

fn run_all(session: &Session, report: &mut Report) -> Result<()> {
    let guest = &session.guests[0];
    driver::load(guest)?;
    let functions = Function::all(guest, 3)?;
    let (one, other) = (
        functions[1].require_rdma_device()?,
        functions[2].require_rdma_device()?,
    );
    let end = |device| End { guest, device };
    demo::run_programs(end(&one), end(&other), report);
    guest.run("rmmod qiao", SHORT)?;
    run(session, report)
}

fn run_translated(session: &Session, report: &mut Report) -> Result<()> {
    let guest = &session.guests[0];
    report.test("the IOMMU translates, strictly", || {
        for function in Function::all(guest, 3)? {
            let found = function.iommu_group_type()?;
            ensure!(found == STRICT, "{} is {found}", function.address);
        }
        Ok("")
    });
    run_all(session, report)
}

fn run(session: &Session, report: &mut Report) -> Result<()> {
    let guest = &session.guests[0];
    driver::load(guest)?;
    let functions = Function::all(guest, 3)?;
    let [few, one, other] = functions.as_slice() else {
        unreachable!("all functions are there");
    };
    let device = few.require_rdma_device()?;
    let before = count_objects(guest)?;
    cases::run(report, guest, &format!("qiao-probe {device} calls"), LONG);
    let churn = format!("qiao-probe {device} churn {ATTEMPTS}");
    cases::run(report, guest, &churn, LONG);
    report.test("exit with everything open", || {
        abandon(guest, &device, &before)
    });
    report.test("what users did is not in the log", || {
        let lines = few.kernel_lines()?;
        ensure!(lines.is_empty(), "{}", lines.join("\n"));
        Ok("")
    });

    let (one, other) = (one.require_rdma_device()?, other.require_rdma_device()?);
    for (environment, script) in [
        ("", cases::POSTS),
        ("", cases::UNRELIABLE),
        ("", cases::RESIZES),
        ("", cases::FORKS),
        ("RDMAV_FORK_SAFE=1 ", cases::FORKS),
    ] {
        let command = format!("{environment}python3 /{script} {one} {other}");
        cases::run(report, guest, &command, LONG);
    }
    report.test("no object is left", || no_objects(guest, &before));
    report.test("rmmod", || guest.run("rmmod qiao", SHORT).map(|_| ""));
    Ok(())
}

fn abandon(guest: &Guest, device: &str, before: &[u32]) -> Result<&'static str> {
    guest.run(&format!("qiao-probe {device} abandon"), SHORT)?;
    no_objects(guest, before)
}

/// The counts of objects of each kind of each RDMA device, as restrack has them; those of the kernel are among them.
fn count_objects(guest: &Guest) -> Result<Vec<u32>> {
    let listed = guest.run("rdma resource show", SHORT)?.stdout;
    let mut words = listed.split_whitespace();
    let mut counts = Vec::new();
    while let Some(word) = words.next() {
        let ["pd" | "cq" | "qp" | "srq" | "mr" | "ctx"] = [word] else {
            continue;
        };
        counts.push(words.next().context("a kind without a count")?.parse()?);
    }
    ensure!(!counts.is_empty(), "no counts are shown:\n{listed}");
    Ok(counts)
}

/// An error if there are other objects than `before`.
fn no_objects(guest: &Guest, before: &[u32]) -> Result<&'static str> {
    let after = count_objects(guest)?;
    ensure!(after == before, "{before:?} objects became {after:?}");
    Ok("")
}
