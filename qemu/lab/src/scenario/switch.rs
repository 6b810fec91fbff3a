// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Switches fail while they are used: spines, of which one is enough, and the leaves that guests hang on.

use anyhow::{ensure, Result};
use serde_json::{json, Value};

use super::{
    clients::{End, Pair},
    counters, driver, events,
    faults::until,
    stream::Streams,
    subnet, Part, Scenario,
};
use crate::{
    report::Report,
    session::{Guest, Session, SHORT},
    topology::Topology,
};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "switch",
    about: "switches die under traffic: routes move, connections go on, no data is lost; a leaf goes and returns with its events",
    alarm: None,
    parts: &[Part::Driver, Part::Provider, Part::Model, Part::Programs],
    topology: || {
        Topology::default()
            .guest("a", &["a0"])
            .guest("b", &["b0"])
            .switch("leaf1", 3)
            .switch("leaf2", 3)
            .switch("spine1", 2)
            .switch("spine2", 2)
            .cable("a0:1", "leaf1:1")
            .cable("b0:1", "leaf2:1")
            .cable("leaf1:2", "spine1:1")
            .cable("leaf2:2", "spine1:2")
            .cable("leaf1:3", "spine2:1")
            .cable("leaf2:3", "spine2:2")
    },
    run,
};

/// Two HCAs and four switches.
const NODES: u64 = 6;
/// Ports of switches that have a link.
const PORTS: usize = 10;
const SPINES: [&str; 2] = ["spine1", "spine2"];
/// Packets that show that data passes.
const PACKETS: u64 = 2000;

fn run(session: &Session, report: &mut Report) -> Result<()> {
    let devices = driver::load_all(session)?;
    let ends = [0, 1].map(|n| (&session.guests[n], devices[n].as_str()));
    report.test("topology", || subnet::whole(session, NODES, PORTS));
    counters::watch(session, report, "the deaths of the spines", |report| {
        let streams = Streams::start(ends[1], &ends[..1]);
        let result = streams.and_then(|streams| spines(session, report, streams));
        if let Err(error) = result {
            report.add("stream through the spines", false, format!("{error:#}"));
        }
    })?;
    report.test("topology with all spines again", || {
        subnet::whole(session, NODES, PORTS)
    });
    for ((guest, device), switch) in ends.into_iter().zip(["leaf1", "leaf2"]) {
        leaf(session, report, guest, device, switch)?;
        report.test(
            format!("ibv_rc_pingpong after the return of {switch}"),
            || {
                let end = |(guest, device)| End { guest, device };
                let pair = Pair {
                    server: end(ends[0]),
                    client: end(ends[1]),
                    gid_index: None,
                };
                pair.pingpong("ibv_rc_pingpong -n 100 -c -e")
            },
        );
    }
    report.test("topology at the end", || {
        subnet::whole(session, NODES, PORTS)
    });
    Ok(())
}

/// Takes the spines away while a stream goes through them: the one that it uses, then the other too, and gives them back.
fn spines(session: &Session, report: &mut Report, streams: Streams) -> Result<()> {
    passes(session)?;
    let used = used_spine(session)?;
    let other = 1 - used;
    let [used, other] = [used, other].map(|n| SPINES[n]);
    report.test(format!("{used} dies under traffic that it carries"), || {
        let before = counters::read(session)?;
        subnet::change(session, &power(used, false))?;
        passes(session)?;
        let now = counters::read(session)?;
        let carried = counters::growth(&before, &now, &format!("{other}:2 xmit_pkts"))?;
        ensure!(carried > 0, "{other} has carried nothing");
        let again = counters::growth(&before, &now, "a0:1 retransmits")?;
        Ok(format!("{other} carries it, {again} packets sent again"))
    });
    report.test(format!("{other} dies too: no way is left"), || {
        let before = counters::read(session)?;
        session.model()?.order(&power(other, false))?;
        let timeouts = "a0:1 local_ack_timeouts";
        until("the outage is felt", || {
            Ok(counters::growth(&before, &counters::read(session)?, timeouts)? > 0)
        })?;
        Ok("packets are not acknowledged")
    });
    report.test(format!("{used} returns and carries it again"), || {
        let before = counters::read(session)?;
        subnet::change(session, &power(used, true))?;
        passes(session)?;
        let now = counters::read(session)?;
        let again = counters::growth(&before, &now, "a0:1 retransmits")?;
        ensure!(again > 0, "nothing was sent again");
        Ok(format!("{again} packets sent again"))
    });
    report.test(format!("{other} returns"), || {
        let swept = subnet::change(session, &power(other, true))?;
        subnet::settled(session, NODES)?;
        passes(session)?;
        Ok(swept)
    });
    report.test("the stream ends, its data compared", || {
        Ok(format!("{} messages", streams.stop()?[0]))
    });
    Ok(())
}

/// The order to switch a switch on or off.
fn power(switch: &str, on: bool) -> Value {
    json!({"op": "switch", "switch": switch, "alive": on})
}

/// Waits until packets have come to the second guest.
fn passes(session: &Session) -> Result<()> {
    let before = counters::read(session)?;
    until("packets pass", || {
        let now = counters::read(session)?;
        Ok(counters::growth(&before, &now, "b0:1 rcv_pkts")? > PACKETS)
    })
}

/// The place of the spine through which data goes to the second guest.
fn used_spine(session: &Session) -> Result<usize> {
    let before = counters::read(session)?;
    passes(session)?;
    let now = counters::read(session)?;
    let carried = |spine: &str| counters::growth(&before, &now, &format!("{spine}:2 xmit_data"));
    let carried = [carried(SPINES[0])?, carried(SPINES[1])?];
    Ok(usize::from(carried[1] > carried[0]))
}

/// Takes a guest's own switch away and gives it back: the guest sees its port go and come.
fn leaf(
    session: &Session,
    report: &mut Report,
    guest: &Guest,
    device: &str,
    switch: &str,
) -> Result<()> {
    let program = events::watch(guest, device)?;
    for (on, event, state) in [
        (false, "IBV_EVENT_PORT_ERR", "PORT_DOWN"),
        (true, "IBV_EVENT_PORT_ACTIVE", "PORT_ACTIVE"),
    ] {
        let what = if on { "returns" } else { "dies" };
        report.test(
            format!("{switch} {what}: {event} in guest {}", guest.name),
            || {
                session.model()?.order(&power(switch, on))?;
                events::await_text(guest, &format!("{event} .*port 1"))?;
                let command = format!("ibv_devinfo -d {device}");
                let shown = guest.run(&command, SHORT)?.stdout;
                ensure!(shown.contains(state), "the port is not {state}:\n{shown}");
                Ok(state)
            },
        );
    }
    program.kill()?;
    subnet::settled(session, NODES)
}
