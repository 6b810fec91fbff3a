// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Events on their way from the device to a program.

use std::time::Duration;

use anyhow::{ensure, Context, Result};
use qiao_hw::event::EventType;
use serde_json::{json, Value};

use super::{cases, driver, Part, Scenario};
use crate::{
    agent::Running,
    model::Model,
    report::Report,
    session::{Guest, Session, LONG, SHORT},
    topology::Topology,
};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "events",
    about: "completion events, solicited and not; asynchronous events of the device, those of a link by ibv_asyncwatch",
    alarm: None,
    parts: &[Part::Driver, Part::Provider, Part::Model, Part::Probe],
    topology: || Topology::default().guest("a", &["a0", "a1"]).link("a0", "a1"),
    run,
};

/// Where the script says which objects it has.
const NUMBERS: &str = "/run/qiao-events";
/// What ibv_asyncwatch prints.
const WATCH: &str = "/run/asyncwatch";

/// What the script waits for, by what each event is about.
const OF_QPS: [EventType; 8] = [
    EventType::CommEstablished,
    EventType::SqDrained,
    EventType::PathMigrated,
    EventType::PathMigrationError,
    EventType::LastWqeReached,
    EventType::QpFatal,
    EventType::QpRequestError,
    EventType::QpAccessError,
];
const OF_CQS: [EventType; 1] = [EventType::CqError];
/// All but a change of the GID table, which the core tells when it finds one.
const OF_PORTS: [EventType; 6] = [
    EventType::PortActive,
    EventType::PortError,
    EventType::LidChange,
    EventType::PkeyChange,
    EventType::SmChange,
    EventType::ClientReregister,
];

fn run(session: &Session, report: &mut Report) -> Result<()> {
    let (guest, model) = (&session.guests[0], session.model()?);
    driver::load(guest)?;
    let devices = driver::devices(guest, 2)?;
    let device = &devices[0];
    let notices = format!("python3 /{} {device} {}", cases::NOTICES, devices[1]);
    cases::run(report, guest, &notices, LONG);
    link(report, guest, model, device)?;
    all(report, guest, model, device).context("raising all events")?;
    report.test("rmmod", || guest.run("rmmod qiao", SHORT).map(|_| ""));
    Ok(())
}

/// Takes the link down and up, and looks at what ibv_asyncwatch and ibv_devinfo say of it.
fn link(report: &mut Report, guest: &Guest, model: &Model, device: &str) -> Result<()> {
    let program = watch(guest, device)?;
    for (up, event, state) in [
        (false, "IBV_EVENT_PORT_ERR", "PORT_DOWN"),
        (true, "IBV_EVENT_PORT_ACTIVE", "PORT_ACTIVE"),
    ] {
        report.test(format!("ibv_asyncwatch, {event}"), || {
            model.order(&json!({"op": "link", "link": 0, "up": up}))?;
            await_text(guest, &format!("{event} .*port 1"))?;
            let shown = guest
                .run(&format!("ibv_devinfo -d {device}"), SHORT)?
                .stdout;
            ensure!(shown.contains(state), "the port is not {state}:\n{shown}");
            Ok(state)
        });
    }
    program.kill()?;
    Ok(())
}

/// Starts ibv_asyncwatch.
pub(super) fn watch<'a>(guest: &'a Guest, device: &str) -> Result<Running<'a>> {
    let command = format!("ibv_asyncwatch -d {device} >{WATCH} 2>&1");
    let program = guest.start(&command, LONG)?;
    await_text(guest, "async event FD")?;
    Ok(program)
}

/// Waits until ibv_asyncwatch has printed a line.
pub(super) fn await_text(guest: &Guest, pattern: &str) -> Result<()> {
    let command = format!("until grep -q '{pattern}' {WATCH}; do sleep 0.1; done");
    guest
        .run(&command, SHORT)
        .map(drop)
        .with_context(|| format!("ibv_asyncwatch does not print {pattern}"))
}

/// Raises an event of each type while a program waits for them.
fn all(report: &mut Report, guest: &Guest, model: &Model, device: &str) -> Result<()> {
    const UNTIL_READY: Duration = Duration::from_secs(60);

    let command = format!("python3 /{} {device}", cases::EVENTS);
    report.doing(&command);
    let program = guest.start(&command, LONG)?;
    let ready = format!("until [ -e {NUMBERS} ]; do sleep 0.1; done; cat {NUMBERS}");
    let numbers: Value = serde_json::from_str(&guest.run(&ready, UNTIL_READY)?.stdout)?;
    let (hca, cqn) = owner(model, &numbers["qp"])?;
    for (types, port, id) in [
        (OF_QPS.as_slice(), 0, &numbers["qp"]),
        (OF_CQS.as_slice(), 0, &cqn),
        (OF_PORTS.as_slice(), 1, &json!(0)),
    ] {
        for event in types {
            let name = format!("{event:?}");
            model.order(
                &json!({"op": "event", "hca": hca, "event": name, "port": port, "id": id}),
            )?;
        }
    }
    let (status, output) = program.wait_status()?;
    cases::add(report, &output.stdout)
        .with_context(|| format!("it ended with {status:?} and said:\n{}", output.stderr))
}

/// The name of the HCA that has a queue pair of a program, and the number of the pair's completion queue.
fn owner(model: &Model, qpn: &Value) -> Result<(Value, Value)> {
    let answer = model.ask(&json!({"op": "dump"}))?;
    let hcas = answer["dump"].as_array().context("a dump without HCAs")?;
    hcas.iter()
        .find_map(|hca| {
            let qps = hca["qps"].as_array()?;
            let qp = qps.iter().find(|qp| qp["qpn"] == *qpn)?;
            Some((hca["name"].clone(), qp["send_cqn"].clone()))
        })
        .with_context(|| format!("no HCA has QP {qpn}:\n{answer}"))
}
