// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Many to one: two guests send to a third, whose link is too narrow for both. Credits hold the senders back; nothing is dropped.

use anyhow::{ensure, Context, Result};
use serde_json::json;

use super::{
    counters::{self, Counters},
    driver,
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
    name: "incast",
    about: "many to one through a switch: two guests send to a third at once; nothing is dropped, both have a fair share",
    alarm: None,
    parts: &[Part::Driver, Part::Provider, Part::Model, Part::Programs],
    topology: || {
        Topology::default()
            .guest("a", &["a0"])
            .guest("b", &["b0"])
            .guest("c", &["c0"])
            // With three of them a small machine has no room for more.
            .memory(512)
            .switch("s", 3)
            .cable("a0:1", "s:1")
            .cable("b0:1", "s:2")
            .cable("c0:1", "s:3")
    },
    run,
};

/// The link to the receiver, by its index in the topology.
const NARROW: usize = 2;
/// Delay of that link. Credits for 64 KiB come back after two of these, so that it carries 65 MB/s at most.
const DELAY_NS: u64 = 500_000;
/// Units of PortXmitData, 4 bytes, that come before the streams end: 128 MiB.
const WORDS: u64 = 32 << 20;
/// The share of a sender is at least that of the other divided by this. With the switch alone the two are equal; the guests that
/// post the requests have their turns when the host has time.
const UNFAIR: u64 = 4;
/// Counters of a port that say of a packet that it was dropped.
const DROPS: [&str; 4] = [
    "xmit_discards",
    "rcv_errors",
    "rcv_switch_relay_errors",
    "vl15_dropped",
];

fn run(session: &Session, report: &mut Report) -> Result<()> {
    let devices = driver::load_all(session)?;
    report.test("topology", || subnet::whole(session, 4, 3));
    session.model()?.order(&json!({
        "op": "faults", "link": NARROW, "faults": { "delay_ns": DELAY_NS }
    }))?;
    let ends: Vec<(&Guest, &str)> = session
        .guests
        .iter()
        .zip(devices.iter().map(String::as_str))
        .collect();
    let waits = |end: &(&Guest, &str)| xmit_wait(end.0, end.1);
    let waits_before = ends[..2].iter().map(waits).collect::<Result<Vec<u64>>>()?;
    let before = counters::read(session)?;
    let mut shares = Vec::new();
    counters::watch(session, report, "two streams to one port", |report| {
        report.test("streams from a and b to c", || {
            let streams = Streams::start(ends[2], &ends[..2])?;
            until("the data passes", || {
                let now = counters::read(session)?;
                Ok(counters::growth(&before, &now, "c0:1 rcv_data")? >= WORDS)
            })?;
            shares = streams.stop()?;
            Ok(format!("{shares:?} messages, all data right"))
        });
    })?;
    report.test("share of each sender", || {
        let (least, most) = (shares.iter().min(), shares.iter().max());
        let (least, most) = least.zip(most).context("the streams did not end")?;
        ensure!(
            least * UNFAIR >= *most,
            "{least} messages of one, {most} of the other"
        );
        Ok(format!(
            "{:.2} of the other's",
            *least as f64 / *most as f64
        ))
    });
    let after = counters::read(session)?;
    report.test("no packet lost", || lost(&before, &after));
    report.test("PortXmitWait of the senders", || {
        let mut grown = Vec::new();
        for (end, before) in ends[..2].iter().zip(&waits_before) {
            let after = waits(end)?;
            ensure!(
                after > *before,
                "it stays at {after} in guest {}",
                end.0.name
            );
            grown.push(after - before);
        }
        Ok(format!("{grown:?} more"))
    });
    Ok(())
}

/// An error if a port has dropped a packet.
fn lost(before: &Counters, after: &Counters) -> Result<String> {
    let mut unchanged = 0;
    for name in after.keys() {
        let Some((port, counter)) = name.split_once(' ') else {
            continue;
        };
        if DROPS.contains(&counter) {
            let grown = counters::growth(before, after, name)?;
            ensure!(grown == 0, "{port} has dropped {grown}: {counter}");
            unchanged += 1;
        }
    }
    let passed = counters::growth(before, after, "s:3 xmit_pkts")?;
    Ok(format!(
        "{passed} to c, {unchanged} counters of drops unchanged"
    ))
}

/// What a guest's kernel shows of the time that its port had data and no credits.
fn xmit_wait(guest: &Guest, device: &str) -> Result<u64> {
    let file = format!("/sys/class/infiniband/{device}/ports/1/counters/port_xmit_wait");
    let text = guest.run(&format!("cat {file}"), SHORT)?.stdout;
    text.trim().parse().with_context(|| format!("{text:?}"))
}
