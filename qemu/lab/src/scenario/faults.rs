// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What breaks in a cluster while it is used: a cable, and a node. Switches are in [`super::switch`].

use std::{
    collections::BTreeSet,
    thread,
    time::{Duration, Instant},
};

use anyhow::{bail, ensure, Context, Result};
use qiao_agent::Status;
use serde_json::{json, Value};

use super::{
    clients::{End, Pair},
    counters, driver, Part, Scenario,
};
use crate::{
    agent::Running,
    figures,
    report::Report,
    session::{Guest, Session, LONG, SHORT},
    topology::Topology,
};

pub(super) const CABLE: Scenario = Scenario {
    name: "cable",
    about: "a cable is pulled under traffic: a short while is made good, a long one fails with the right status, then all works",
    alarm: None,
    parts: &[Part::Driver, Part::Provider, Part::Model],
    topology: two_guests,
    run: run_cable,
};

pub(super) const NODE: Scenario = Scenario {
    name: "node",
    about: "a guest dies under traffic: its peer gets the right status and goes on working",
    alarm: None,
    parts: CABLE.parts,
    topology: two_guests,
    run: run_node,
};

fn two_guests() -> Topology {
    Topology::default()
        .guest("a", &["a0"])
        .guest("b", &["b0"])
        .link("a0", "b0")
}

/// The first port of a guest's only HCA, as the counters name it.
const PORT: &str = "a0:1";
/// Where perftest's server awaits the client.
const PERFTEST_PORT: u16 = 18515;
/// More than any test here lets pass.
const ENDLESS: u32 = 1_000_000;
/// IBV_WC_RETRY_EXC_ERR: the peer did not answer, however often.
const RETRY_EXCEEDED: &str = "Failed status 12";
const POLL: Duration = Duration::from_millis(50);

/// Two guests with the driver, of which the first sends.
struct Nodes<'a> {
    session: &'a Session,
    devices: Vec<String>,
}

impl<'a> Nodes<'a> {
    fn new(session: &'a Session) -> Result<Self> {
        Ok(Self {
            session,
            devices: driver::load_all(session)?,
        })
    }

    fn sender(&self) -> &'a Guest {
        &self.session.guests[0]
    }

    fn receiver(&self) -> &'a Guest {
        &self.session.guests[1]
    }

    /// A pair of ends for the demo's programs.
    fn pair(&self, server: usize, client: usize) -> Pair<'_> {
        let end = |index: usize| End {
            guest: &self.session.guests[index],
            device: &self.devices[index],
        };
        Pair {
            server: end(server),
            client: end(client),
            gid_index: None,
        }
    }

    /// Starts writes from the first guest to the second and waits until they pass the port; client and server. `timeout` is the
    /// exponent of the time until a packet counts as lost.
    fn traffic(&self, count: u32, timeout: u8) -> Result<(Running<'a>, Running<'a>)> {
        let command =
            |device: &str| format!("ib_write_bw -d {device} -F -s 65536 -n {count} -u {timeout}");
        let server = self.receiver().start(&command(&self.devices[1]), LONG)?;
        self.receiver().wait_listen(PERFTEST_PORT)?;
        let before = self.counter("xmit_pkts")?;
        let client = format!("{} {}", command(&self.devices[0]), self.receiver().address);
        let client = self.sender().start(&client, LONG)?;
        until("packets pass", || {
            Ok(self.counter("xmit_pkts")? > before + 100)
        })?;
        Ok((client, server))
    }

    fn counter(&self, name: &str) -> Result<u64> {
        let counters = counters::read(self.session)?;
        let value = counters.get(&format!("{PORT} {name}"));
        value
            .copied()
            .with_context(|| format!("there is no counter {name}"))
    }

    fn set_link(&self, up: bool) -> Result<()> {
        self.session
            .model()?
            .order(&json!({ "op": "link", "link": 0, "up": up }))
    }

    /// Waits until both guests see their port in a state.
    fn see(&self, state: &str) -> Result<String> {
        for (guest, device) in self.session.guests.iter().zip(&self.devices) {
            until(state, || {
                let output = guest
                    .run(&format!("ibv_devinfo -d {device}"), SHORT)?
                    .stdout;
                Ok(figures::devinfo_value(&output, "state")?.starts_with(state))
            })?;
        }
        Ok(state.into())
    }
}

fn run_cable(session: &Session, report: &mut Report) -> Result<()> {
    let nodes = Nodes::new(session)?;
    counters::watch(
        session,
        report,
        "a cable pulled for a short while",
        |report| {
            report.test("pulled for a short while under traffic", || {
                short_outage(&nodes)
            });
        },
    )?;
    counters::watch(session, report, "a cable pulled for long", |report| {
        report.test("pulled for long under traffic", || long_outage(&nodes));
    })?;
    report.test("both guests see the port down", || nodes.see("PORT_DOWN"));
    report.test("plugged in again", || {
        nodes.set_link(true)?;
        nodes.see("PORT_ACTIVE")
    });
    report.test("ibv_rc_pingpong afterwards", || {
        nodes.pair(0, 1).pingpong("ibv_rc_pingpong -n 50 -c -e")
    });
    report.test("rdma statistic says what the devices counted", || {
        statistics(&nodes)
    });
    Ok(())
}

/// What the kernel calls the counters of the transport, and what the model calls them.
const STATISTICS: [(&str, &str); 8] = [
    ("duplicate_request", "duplicate_requests"),
    ("local_ack_timeout_err", "local_ack_timeouts"),
    ("out_of_sequence", "out_of_sequence"),
    ("packet_seq_err", "sequence_naks"),
    ("rnr_nak_retry_err", "rnr_naks"),
    ("retrans_pkts", "retransmits"),
    ("req_local_errors", "local_errors"),
    ("req_remote_errors", "remote_errors"),
];

/// Guests show each counter of the transport with the value that the model has, by netlink and in sysfs; the outages have moved
/// some of them.
fn statistics(nodes: &Nodes) -> Result<String> {
    let mut moved = BTreeSet::new();
    let counters = counters::read(nodes.session)?;
    for (index, hca) in ["a0", "b0"].into_iter().enumerate() {
        let (guest, device) = (&nodes.session.guests[index], &nodes.devices[index]);
        let said = guest.run(&format!("rdma -j statistic show link {device}/1"), SHORT)?;
        let said: Value = serde_json::from_str(&said.stdout).context("what rdma says")?;
        let folder = format!("/sys/class/infiniband/{device}/ports/1/hw_counters");
        for (name, counter) in STATISTICS {
            let wanted = counters.get(&format!("{hca}:1 {counter}"));
            let &wanted = wanted.with_context(|| format!("the model has no {counter}"))?;
            let by_netlink = said[0][name].as_u64();
            let in_sysfs = guest.run(&format!("cat {folder}/{name}"), SHORT)?.stdout;
            ensure!(
                by_netlink == Some(wanted) && in_sysfs.trim().parse() == Ok(wanted),
                "{name} of {device}: {wanted}, but {by_netlink:?} by netlink and {in_sysfs:?} in sysfs"
            );
            if wanted > 0 {
                moved.insert(name);
            }
        }
    }
    for name in ["local_ack_timeout_err", "retrans_pkts"] {
        ensure!(moved.contains(name), "{name} has not moved");
    }
    Ok(format!(
        "{} of {} have moved",
        moved.len(),
        STATISTICS.len()
    ))
}

/// Nothing is lost that the transport does not send again: the program does not notice.
fn short_outage(nodes: &Nodes) -> Result<String> {
    // A second until a packet counts as lost, eight times: far longer than the outage.
    let (client, server) = nodes.traffic(5000, 18)?;
    let (timeouts, again) = (
        nodes.counter("local_ack_timeouts")?,
        nodes.counter("retransmits")?,
    );
    nodes.set_link(false)?;
    let hit = until("the outage is felt", || {
        Ok(nodes.counter("local_ack_timeouts")? > timeouts)
    });
    nodes.set_link(true)?;
    hit?;
    let rate = figures::bandwidth(&client.wait()?.stdout)?;
    server.wait()?;
    let again = nodes.counter("retransmits")? - again;
    ensure!(again > 0, "nothing was sent again");
    Ok(format!(
        "{again} packets sent again, {rate:.2} MiB/s in all"
    ))
}

/// The program is told that its peer cannot be reached, and not something else.
fn long_outage(nodes: &Nodes) -> Result<String> {
    let (client, server) = nodes.traffic(ENDLESS, 10)?;
    nodes.set_link(false)?;
    unreachable(client)?;
    // It waits for its client by TCP.
    server.kill()?;
    Ok(RETRY_EXCEEDED.into())
}

/// An error unless the client ends since its peer does not answer.
fn unreachable(client: Running) -> Result<()> {
    let (status, output) = client.wait_status()?;
    let said = output.stdout + &output.stderr;
    ensure!(
        matches!(status, Status::Code(code) if code != 0) && said.contains(RETRY_EXCEEDED),
        "the client ended with {status:?} and said:\n{said}"
    );
    Ok(())
}

fn run_node(session: &Session, report: &mut Report) -> Result<()> {
    let nodes = Nodes::new(session)?;
    counters::watch(session, report, "the death of a guest", |report| {
        report.test("killed under traffic", || {
            let (client, _server) = nodes.traffic(ENDLESS, 14)?;
            nodes.receiver().crash()?;
            unreachable(client)?;
            Ok(RETRY_EXCEEDED)
        });
    })?;
    report.test("the peer goes on, with itself", || {
        nodes.pair(0, 0).pingpong("ibv_rc_pingpong -n 50 -c -e")
    });
    report.test("rmmod of the peer", || {
        nodes.sender().run("rmmod qiao", SHORT).map(|_| "")
    });
    Ok(())
}

/// Waits until something holds; a guard against hangs ends it.
pub(super) fn until(what: &str, mut holds: impl FnMut() -> Result<bool>) -> Result<()> {
    let start = Instant::now();
    while !holds()? {
        if start.elapsed() > SHORT {
            bail!("waited too long: {what}");
        }
        thread::sleep(POLL);
    }
    Ok(())
}
