// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Counters of all ports before and after something, as the device model keeps them.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde_json::{json, Value};

use super::subnet;
use crate::{
    report::{Changes, Report},
    session::Session,
};

/// By a name that says HCA or switch, port, and counter.
pub(super) type Counters = BTreeMap<String, u64>;

/// Runs something and adds what it changed to the report.
pub(super) fn watch(
    session: &Session,
    report: &mut Report,
    during: &str,
    run: impl FnOnce(&mut Report),
) -> Result<()> {
    let before = read(session)?;
    run(report);
    let after = read(session)?;
    let changed = after.into_iter().filter_map(|(name, after)| {
        let before = before.get(&name).copied().unwrap_or_default();
        (before != after).then_some((name, before, after))
    });
    report.changes(Changes {
        during: during.into(),
        counters: changed.collect(),
    });
    Ok(())
}

/// How much a counter has grown.
pub(super) fn growth(before: &Counters, after: &Counters, name: &str) -> Result<u64> {
    let of = |counters: &Counters| {
        let value = counters.get(name);
        value
            .copied()
            .with_context(|| format!("there is no counter {name}"))
    };
    Ok(of(after)? - of(before)?)
}

/// All counters now.
pub(super) fn read(session: &Session) -> Result<Counters> {
    let answer = session.model()?.ask(&json!({ "op": "dump" }))?;
    let mut counters = from_dump(&answer)?;
    counters.extend(of_switches(&subnet::view(session)?)?);
    Ok(counters)
}

fn of_switches(view: &Value) -> Result<Counters> {
    let mut counters = Counters::new();
    let switches = view["switches"].as_array();
    for switch in switches.with_context(|| format!("no switches in {view}"))? {
        let name = switch["name"].as_str().context("a switch without a name")?;
        let ports = switch["ports"].as_array();
        for port in ports.context("a switch without ports")? {
            let name = format!("{name}:{}", port["port"]);
            insert(&mut counters, &name, &port["counters"])?;
        }
    }
    Ok(counters)
}

fn insert(counters: &mut Counters, port: &str, group: &Value) -> Result<()> {
    for (counter, value) in group.as_object().context("a port without counters")? {
        let value = value.as_u64().context("a counter that is no number")?;
        counters.insert(format!("{port} {counter}"), value);
    }
    Ok(())
}

fn from_dump(answer: &Value) -> Result<Counters> {
    let mut counters = Counters::new();
    let hcas = answer["dump"].as_array();
    for hca in hcas.with_context(|| format!("no dump in {answer}"))? {
        let name = hca["name"].as_str().context("an HCA without a name")?;
        let ports = hca["ports"].as_array().context("an HCA without ports")?;
        for (number, port) in (1..).zip(ports) {
            for group in ["link", "transport"] {
                insert(&mut counters, &format!("{name}:{number}"), &port[group])?;
            }
        }
    }
    Ok(counters)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_port_has_its_counters() {
        let port =
            json!({ "link": { "xmit_pkts": 7 }, "transport": { "retransmits": 1 }, "lid": 2 });
        let answer = json!({ "dump": [{ "name": "a0", "ports": [port, port] }] });
        let counters = from_dump(&answer).unwrap();
        assert_eq!(counters.len(), 4);
        assert_eq!(counters["a0:2 xmit_pkts"], 7);
        assert!(from_dump(&json!({ "error": "x" })).is_err());
        let port = json!({ "port": 3, "state": "active", "counters": { "xmit_wait": 5 } });
        let view = json!({ "switches": [{ "name": "s", "ports": [port] }] });
        assert_eq!(of_switches(&view).unwrap()["s:3 xmit_wait"], 5);
        assert!(of_switches(&json!({})).is_err());
    }
}
