// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The demo: two guests with a Qiao HCA each, joined by an InfiniBand link.

use anyhow::{Context, Result};

use super::{clients::Pair, driver, Part, Scenario};
use crate::{
    figures,
    report::Report,
    session::{Session, SHORT},
    topology::Topology,
};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "demo",
    about: "two guests with a Qiao HCA each on a direct InfiniBand link run the distribution's client programs",
    parts: &[Part::Driver, Part::Provider, Part::Model],
    topology: || Topology::default().guest("a", &["a0"]).guest("b", &["b0"]).link("a0", "b0"),
    run,
};

fn run(session: &Session, report: &mut Report) -> Result<()> {
    let (server, client) = (&session.guests[0], &session.guests[1]);
    for guest in [server, client] {
        driver::load(guest)?;
    }
    let listed = client.run("ibv_devices", SHORT)?.stdout;
    let device = *figures::device_names(&listed)
        .first()
        .with_context(|| format!("no device appeared after the driver was loaded:\n{listed}"))?;
    Pair {
        server,
        client,
        device,
        gid_index: None,
    }
    .run_all(report);
    report.test("rmmod", || {
        for guest in [server, client] {
            guest.run("rmmod qiao", SHORT)?;
        }
        Ok("")
    });
    Ok(())
}
