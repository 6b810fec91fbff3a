// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Guests behind two switches. The subnet manager of the fabric brings every port up; a link between the switches is cut and
//! data goes by the other.

use anyhow::{ensure, Result};
use serde_json::json;

use super::{
    clients::{End, Pair},
    driver, subnet, Part, Scenario,
};
use crate::{
    report::Report,
    session::{Guest, Session, SHORT},
    topology::Topology,
};

/// The links between the switches, by their index in the topology.
const BETWEEN: [usize; 2] = [2, 3];

/// Nodes of the fabric: two HCAs and two switches.
const NODES: u64 = 4;

pub(super) const SCENARIO: Scenario = Scenario {
    name: "fabric",
    about: "two guests behind two switches: the subnet manager sets everything up, and routes around a link that is cut",
    alarm: None,
    parts: &[Part::Driver, Part::Provider, Part::Model],
    topology: || {
        Topology::default()
            .guest("a", &["a0"])
            .guest("b", &["b0"])
            .switch("s1", 4)
            .switch("s2", 4)
            .cable("a0:1", "s1:1")
            .cable("b0:1", "s2:1")
            .cable("s1:3", "s2:3")
            .cable("s1:4", "s2:4")
    },
    run,
};

fn run(session: &Session, report: &mut Report) -> Result<()> {
    let guests = [&session.guests[0], &session.guests[1]];
    let devices = driver::load_all(session)?;
    let end = |index: usize| End {
        guest: guests[index],
        device: &devices[index],
    };
    let pair = Pair {
        server: end(0),
        client: end(1),
        gid_index: None,
    };
    report.test("topology", || whole(session));
    diagnose(guests[0], report);
    report.test("ibv_rc_pingpong", || {
        pair.pingpong("ibv_rc_pingpong -n 100 -c")
    });
    for link in BETWEEN {
        report.test(format!("link {link} is cut"), || set(session, link, false));
        report.test(format!("ibv_rc_pingpong without link {link}"), || {
            pair.pingpong("ibv_rc_pingpong -n 100 -c")
        });
        report.test(format!("link {link} is back"), || set(session, link, true));
    }
    report.test("topology at the end", || whole(session));
    report.test("rmmod", || {
        for guest in guests {
            guest.run("rmmod qiao", SHORT)?;
        }
        Ok("")
    });
    Ok(())
}

/// What the distribution's programs for subnets see of the fabric from a guest.
fn diagnose(guest: &Guest, report: &mut Report) {
    for (command, wanted) in [
        ("ibnetdiscover", &["s1", "s2", "a0", "b0"][..]),
        ("iblinkinfo", &["s1", "s2", "LinkUp"]),
        ("smpquery -D nodeinfo 0,1", &["Switch"]),
        ("perfquery", &["PortRcvPkts"]),
    ] {
        report.test(command, || {
            let modules = "modprobe -a ib_umad";
            let output = guest.run(&format!("{modules} && {command}"), SHORT)?.stdout;
            for word in wanted {
                ensure!(output.contains(word), "{word} is missing:\n{output}");
            }
            Ok(format!("{} lines", output.lines().count()))
        });
    }
}

/// Cuts or joins a link and waits until the subnet manager has swept.
fn set(session: &Session, link: usize, up: bool) -> Result<String> {
    subnet::change(session, &json!({"op": "link", "link": link, "up": up}))
}

/// The subnet manager has found every node, and every port with a link is active.
fn whole(session: &Session) -> Result<String> {
    subnet::whole(session, NODES, 6)
}
