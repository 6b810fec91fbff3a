// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The tests of rdma-core, which its authors wrote for any device.

use anyhow::Result;

use super::{cases, driver, Part, Scenario};
use crate::{
    report::Report,
    session::{Session, LONG},
    topology::Topology,
};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "pyverbs",
    about: "the tests of rdma-core that are for any device, from its port to itself",
    alarm: None,
    parts: &[Part::Driver, Part::Provider, Part::Model, Part::Probe],
    topology: || {
        Topology::default()
            .guest("a", &["a0", "a1"])
            .link("a0", "a1")
    },
    run,
};

/// Modules of the tests whose subject the device has.
const MODULES: &str = "test_addr test_atomic test_cq test_cq_events test_cqex test_device test_fork test_mr test_odp test_parent_domain test_pd \
     test_qp test_qpex test_relaxed_ordering test_shared_pd test_srq";

fn run(session: &Session, report: &mut Report) -> Result<()> {
    let guest = &session.guests[0];
    driver::load(guest)?;
    let device = driver::devices(guest, 2)?.remove(0);
    let command = format!("python3 /{} {device} {MODULES}", cases::SUITE);
    cases::run(report, guest, &command, LONG);
    Ok(())
}
