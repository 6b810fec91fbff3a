// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Devices and the driver come and go under load.

use anyhow::{bail, ensure, Context, Result};

use super::{cases, driver, function::Function, Part, Scenario};
use crate::{
    figures,
    report::Report,
    session::{Guest, Session, LONG, SHORT},
    topology::Topology,
};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "unplug",
    about: "devices that go under traffic, with a program that waits for the news: nothing hangs, and traffic flows again",
    alarm: None,
    parts: &[Part::Driver, Part::Provider, Part::Model, Part::Probe],
    topology: || Topology::default().guest("a", &["one", "other"]).link("one", "other"),
    run,
};

/// Default TCP port of `ibv_rc_pingpong`.
const PORT: u16 = 18515;
/// How often the module is loaded.
const LOADS: usize = 5;
/// More iterations than there is time for.
const ENDLESS: &str = "-n 1000000";

fn run(session: &Session, report: &mut Report) -> Result<()> {
    let guest = &session.guests[0];
    driver::load(guest)?;
    let functions = Function::all(guest, 2)?;
    let [one, other] = functions.as_slice() else {
        unreachable!("all functions are there");
    };
    report.test("traffic", || traffic(guest, one, other));
    unbind_under_traffic(report, guest, one, other);
    report.test("traffic after unbind and bind", || {
        one.bind()?;
        traffic(guest, one, other)
    });
    report.test("remove under traffic", || {
        let pair = Endless::start(guest, one, other)?;
        one.remove()?;
        pair.ends()
    });
    report.test("traffic after remove and rescan", || {
        one.rescan()?;
        traffic(guest, one, other)
    });
    report.test("reload", || {
        for _ in 0..LOADS {
            guest.run("rmmod qiao", SHORT)?;
            driver::load(guest)?;
        }
        Ok(format!("{LOADS} times"))
    });
    report.test("traffic after reload", || traffic(guest, one, other));
    report.test("rmmod", || guest.run("rmmod qiao", SHORT).map(|_| ""));
    Ok(())
}

/// Moves data between the devices of two functions, and checks it.
fn traffic(guest: &Guest, one: &Function<'_>, other: &Function<'_>) -> Result<String> {
    let (server, client) = (one.require_rdma_device()?, other.require_rdma_device()?);
    let options = "-n 100 -e -c";
    let program = guest.start(&format!("ibv_rc_pingpong -d {server} {options}"), LONG)?;
    guest.wait_listen(PORT)?;
    let command = format!("ibv_rc_pingpong -d {client} {options} localhost");
    let output = guest.run(&command, LONG)?.stdout;
    program.wait()?;
    let (time, _) = figures::pingpong(&output)?;
    Ok(format!("{time:.0} us/iteration"))
}

/// Two programs that exchange messages until they are disturbed. They wait for completion events: a loss of the device reaches
/// a program that sleeps, and none that polls memory.
struct Endless<'a> {
    programs: [crate::agent::Running<'a>; 2],
}

impl<'a> Endless<'a> {
    fn start(guest: &'a Guest, one: &Function<'_>, other: &Function<'_>) -> Result<Self> {
        let (server, client) = (one.require_rdma_device()?, other.require_rdma_device()?);
        let options = format!("-e {ENDLESS}");
        let server = guest.start(&format!("ibv_rc_pingpong -d {server} {options}"), LONG)?;
        guest.wait_listen(PORT)?;
        let client = guest.start(
            &format!("ibv_rc_pingpong -d {client} {options} localhost"),
            LONG,
        )?;
        // Until each has a queue pair that sends; those of the kernel for management do so, too.
        let both =
            "until [ $(rdma resource show qp | grep -c 'type RC .*state RTS') = 2 ]; do sleep 0.1; done";
        guest.run(both, SHORT)?;
        Ok(Self {
            programs: [server, client],
        })
    }

    /// The server, whose device went, sees an error and exits. The client may wait for ever for a message, as a connection with
    /// nothing in flight has no means to tell.
    fn ends(self) -> Result<&'static str> {
        let [server, client] = self.programs;
        let (status, output) = server.wait_status()?;
        client.kill()?;
        match status {
            qiao_agent::Status::Code(code) if code != 0 => Ok("the program saw an error"),
            status => bail!(
                "the server ended with {status:?}:\n{}{}",
                output.stdout,
                output.stderr
            ),
        }
    }
}

fn unbind_under_traffic(
    report: &mut Report,
    guest: &Guest,
    one: &Function<'_>,
    other: &Function<'_>,
) {
    let log = "/run/outlive.log";
    report.test("unbind under traffic", || {
        let device = one.require_rdma_device()?;
        let command = format!("qiao-probe {device} outlive >{log}");
        let program = guest.start(&command, SHORT)?;
        guest.run(
            &format!("until grep -q open {log}; do sleep 0.1; done"),
            SHORT,
        )?;
        let pair = Endless::start(guest, one, other)?;
        one.unbind()?;
        ensure!(one.rdma_device()?.is_none(), "it still has an RDMA device");
        program.wait().context("the program that holds objects")?;
        pair.ends()
    });
    let mut rows = Report::new();
    let result = guest
        .run(&format!("cat {log}"), SHORT)
        .and_then(|output| cases::add(&mut rows, &output.stdout));
    if let Err(error) = result {
        rows.add("program", false, format!("{error:#}"));
    }
    report.absorb("unbind: ", rows);
}
