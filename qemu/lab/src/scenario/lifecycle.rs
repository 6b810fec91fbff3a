// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The device goes while programs use it, and comes back.

use anyhow::{Context, Result};

use super::{
    clients::{End, Pair},
    driver, Part, Scenario,
};
use crate::{
    report::Report,
    session::{Guest, Session, LONG, SHORT},
    topology::Topology,
};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "lifecycle",
    about: "unbind, bind, remove, rescan and rmmod while programs have the device open; afterwards it works",
    alarm: None,
    parts: &[Part::Driver, Part::Provider, Part::Model],
    topology: || Topology::default().guest("a", &["a0", "a1"]).link("a0", "a1"),
    run,
};

/// Where the server of `ibv_rc_pingpong` waits for a client, with all its verbs objects made.
const PINGPONG_PORT: u16 = 18515;

fn run(session: &Session, report: &mut Report) -> Result<()> {
    let guest = &session.guests[0];
    driver::load(guest)?;
    let device = driver::devices(guest, 2)?.remove(0);
    let path = format!("/sys/class/infiniband/{device}/device");
    let function = guest
        .run(&format!("basename $(readlink -f {path})"), SHORT)?
        .stdout
        .trim()
        .to_owned();

    report.test("unbind and bind under an open context", || {
        let driver = "/sys/bus/pci/drivers/qiao";
        gone_and_back(
            guest,
            &format!("echo {function} >{driver}/unbind"),
            &format!("echo {function} >{driver}/bind"),
        )
    });
    report.test("remove and rescan under an open context", || {
        let remove = format!("echo 1 >/sys/bus/pci/devices/{function}/remove");
        gone_and_back(guest, &remove, "echo 1 >/sys/bus/pci/rescan")
    });
    report.test("function-level reset", || {
        // The driver is told, not asked: its users lose their objects, and the device comes back.
        guest.run(
            &format!("echo 1 >/sys/bus/pci/devices/{function}/reset"),
            SHORT,
        )?;
        settled(guest)
    });
    report.test("ibv_rc_pingpong afterwards", || {
        let devices = driver::devices(guest, 2)?;
        let end = |index: usize| End {
            guest,
            device: &devices[index],
        };
        let pair = Pair {
            server: end(0),
            client: end(1),
            gid_index: None,
        };
        pair.pingpong("ibv_rc_pingpong -n 50 -c -e")
    });
    report.test("rmmod and insmod", || {
        guest.run("rmmod qiao", SHORT)?;
        driver::devices(guest, 0)?;
        driver::load(guest)?;
        settled(guest)
    });
    Ok(())
}

/// Takes a device away while a program has it open, and brings it back. Neither may wait for the program.
fn gone_and_back(guest: &Guest, take: &str, bring: &str) -> Result<String> {
    let device = driver::devices(guest, 2)?.remove(0);
    let program = guest.start(&format!("ibv_rc_pingpong -d {device}"), LONG)?;
    guest.wait_listen(PINGPONG_PORT)?;
    guest.run(take, SHORT).context("taking the device away")?;
    driver::devices(guest, 1).context("once it is gone")?;
    guest
        .run(bring, SHORT)
        .context("bringing the device back")?;
    let result = settled(guest);
    // Its context is dead and only waits to be closed, which must not hang either.
    program.kill()?;
    result
}

/// Both devices are there and can be opened.
fn settled(guest: &Guest) -> Result<String> {
    let devices = driver::devices(guest, 2)?;
    for device in &devices {
        guest.run(&format!("ibv_devinfo -d {device}"), SHORT)?;
    }
    Ok(devices.join(" "))
}
