// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The demo: two guests with a Qiao HCA each, joined by an InfiniBand link. And the same with both HCAs in one guest.

use anyhow::Result;

use super::{
    clients::{End, Pair},
    counters, driver, Part, Scenario,
};
use crate::{
    report::Report,
    session::{Guest, Session, SHORT},
    topology::Topology,
};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "demo",
    about: "two guests with a Qiao HCA each on a direct InfiniBand link run the distribution's client programs",
    alarm: None,
    parts: &[Part::Driver, Part::Provider, Part::Model],
    topology: || Topology::default().guest("a", &["a0"]).guest("b", &["b0"]).link("a0", "b0"),
    run,
};

pub(super) const TWINS: Scenario = Scenario {
    name: "twins",
    about: "one guest with two Qiao HCAs on a direct InfiniBand link: the demo's programs from one to the other",
    alarm: None,
    parts: SCENARIO.parts,
    topology: || Topology::default().guest("a", &["a0", "a1"]).link("a0", "a1"),
    run: run_twins,
};

fn run(session: &Session, report: &mut Report) -> Result<()> {
    let guests = [&session.guests[0], &session.guests[1]];
    let devices = driver::load_all(session)?;
    let end = |index: usize| End {
        guest: guests[index],
        device: &devices[index],
    };
    counters::watch(session, report, "the client programs", |report| {
        run_programs(end(0), end(1), report);
    })?;
    unload(&guests, report);
    Ok(())
}

fn run_twins(session: &Session, report: &mut Report) -> Result<()> {
    let guest = &session.guests[0];
    driver::load(guest)?;
    let devices = driver::devices(guest, 2)?;
    let end = |index: usize| End {
        guest,
        device: &devices[index],
    };
    counters::watch(session, report, "the client programs", |report| {
        run_programs(end(0), end(1), report);
    })?;
    unload(&[guest], report);
    Ok(())
}

/// Runs the programs of the demo from one device to another.
pub(super) fn run_programs(server: End, client: End, report: &mut Report) {
    let pair = Pair {
        server,
        client,
        gid_index: None,
    };
    pair.run_all(report);
}

pub(super) fn unload(guests: &[&Guest], report: &mut Report) {
    report.test("rmmod", || {
        for guest in guests {
            guest.run("rmmod qiao", SHORT)?;
        }
        Ok("")
    });
}
