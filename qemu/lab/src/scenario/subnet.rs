// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The fabric as the device model and its subnet manager see it.

use anyhow::{ensure, Context, Result};
use serde_json::{json, Value};

use super::faults::until;
use crate::session::Session;

/// Switches, links and subnet managers.
pub(super) fn view(session: &Session) -> Result<Value> {
    let answer = session.model()?.ask(&json!({"op": "topology"}))?;
    Ok(answer["topology"].clone())
}

fn manager(view: &Value, field: &str) -> Result<u64> {
    view["managers"][0][field]
        .as_u64()
        .with_context(|| format!("no subnet manager says its {field}: {view}"))
}

/// Checks that the subnet manager has found so many nodes and that so many ports of switches are active.
pub(super) fn whole(session: &Session, nodes: u64, ports: usize) -> Result<String> {
    let view = view(session)?;
    let found = manager(&view, "nodes")?;
    ensure!(found == nodes, "{found} nodes");
    let switches = view["switches"].as_array().context("no switches")?;
    let all = switches
        .iter()
        .filter_map(|s| s["ports"].as_array())
        .flatten();
    let active = all.filter(|port| port["state"] == "active").count();
    ensure!(
        active == ports,
        "{active} ports of switches are active: {view}"
    );
    Ok(format!("{nodes} nodes, {active} ports of switches active"))
}

/// Waits until the subnet manager has found so many nodes and is at rest.
pub(super) fn settled(session: &Session, nodes: u64) -> Result<()> {
    until("the subnet manager finds all nodes", || {
        let view = view(session)?;
        Ok(manager(&view, "nodes")? == nodes && view["managers"][0]["idle"] == true)
    })
}

/// Gives an order that changes the fabric and waits until the subnet manager has swept.
pub(super) fn change(session: &Session, order: &Value) -> Result<String> {
    let before = manager(&view(session)?, "sweeps")?;
    session.model()?.order(order)?;
    until("a sweep", || {
        let view = view(session)?;
        Ok(manager(&view, "sweeps")? > before && view["managers"][0]["idle"] == true)
    })?;
    Ok(format!("sweep {}", manager(&view(session)?, "sweeps")?))
}
