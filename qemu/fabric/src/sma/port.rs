// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Set(PortInfo) (IBTA 14.2.5.6).

use super::{require, Arrival, Refused, INVALID};
use crate::mad::{LinkState, PhysicalState, PortInfo, MULTICAST_BASE, PERMISSIVE_LID};
use crate::node::{Change, Node};

/// Returns the port that a modifier names: 0 is on an HCA the port of arrival and on a switch port 0.
pub(super) fn select(node: &Node, from: &Arrival, modifier: u32) -> Result<u8, Refused> {
    // CAST: Bits 7:0 are the port; bit 31 says that the sender knows extended speeds.
    let number = (modifier & 0xff) as u8;
    let number = if number == 0 && !node.is_switch() {
        from.port
    } else {
        number
    };
    node.port(number).ok_or(INVALID)?;
    Ok(number)
}

fn is_unicast_or_none(lid: u16) -> bool {
    lid < MULTICAST_BASE
}

/// What the state fields ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Nothing,
    Retrain,
    Move(LinkState),
    Disable,
    Enable,
}

/// Returns what a Set asks of the state of a port; refused if there is no such transition (IBTA 7.2.7).
fn order(own: &PortInfo, new: &PortInfo) -> Result<Order, Refused> {
    const SLEEP: u8 = PhysicalState::Sleep as u8;
    const POLLING: u8 = PhysicalState::Polling as u8;
    const DISABLED: u8 = PhysicalState::Disabled as u8;
    let logical = new.speed_state & 0xf;
    match (logical, new.physical()) {
        (0, 0) => {}
        // The physical state is changed on a port that is down or goes down with it.
        (0 | 1, SLEEP | DISABLED) => return Ok(Order::Disable),
        (0 | 1, POLLING) if own.physical() == DISABLED => return Ok(Order::Enable),
        (0 | 1, POLLING) => return Ok(Order::Retrain),
        (_, 0) => {}
        _ => return Err(INVALID),
    }
    let from = own.state().unwrap_or(LinkState::Down);
    match (from, logical) {
        (_, 0) => Ok(Order::Nothing),
        (LinkState::Down, 1) => Ok(Order::Nothing),
        (_, 1) => Ok(Order::Retrain),
        (LinkState::Initialize | LinkState::Armed, 3) => Ok(Order::Move(LinkState::Armed)),
        (LinkState::Armed | LinkState::Active, 4) => Ok(Order::Move(LinkState::Active)),
        _ => Err(INVALID),
    }
}

/// Applies a Set to a port; one that is refused has no effect.
pub(super) fn set(node: &mut Node, number: u8, new: &PortInfo) -> Result<(), Refused> {
    let is_end = !node.is_switch() || number == 0;
    let is_base_zero = node.is_switch() && number == 0;
    let own = node.port(number).ok_or(INVALID)?.info;
    let todo = if is_base_zero {
        Order::Nothing
    } else {
        order(&own, new)?
    };
    let vls = new.vls_enforcement >> 4;
    require(vls <= own.vl_cap >> 4)?;
    require(new.neighbor_mtu() <= own.max_mtu())?;
    if is_end {
        require(is_unicast_or_none(new.lid.get()))?;
        let sm_lid = new.sm_lid.get();
        require(is_unicast_or_none(sm_lid) && sm_lid != PERMISSIVE_LID)?;
    }
    apply(node, number, new, is_end)?;
    match todo {
        Order::Nothing => {}
        Order::Move(state) => node.set_state(number, state),
        Order::Retrain => node.note(number, Change::Retrain),
        Order::Disable => {
            let port = node.port_mut(number).ok_or(INVALID)?;
            port.info.set_physical(PhysicalState::Disabled);
            node.note(number, Change::Enabled(false));
        }
        Order::Enable => {
            let port = node.port_mut(number).ok_or(INVALID)?;
            port.info.set_physical(PhysicalState::Polling);
            node.note(number, Change::Enabled(true));
        }
    }
    Ok(())
}

fn apply(node: &mut Node, number: u8, new: &PortInfo, is_end: bool) -> Result<(), Refused> {
    let port = node.port_mut(number).ok_or(INVALID)?;
    let own = &mut port.info;
    let before = *own;
    // A count can be set to zero and nothing else.
    for (count, new) in [
        (&mut own.mkey_violations, new.mkey_violations),
        (&mut own.pkey_violations, new.pkey_violations),
        (&mut own.qkey_violations, new.qkey_violations),
    ] {
        if new.get() == 0 {
            count.set(0);
        }
    }
    if new.width_enabled != 0 {
        own.width_enabled = match new.width_enabled {
            0xff => own.width_supported,
            width => width & own.width_supported,
        };
    }
    if new.phys_down & 0xf != 0 {
        own.phys_down = own.phys_down & 0xf0 | new.phys_down & 0xf;
    }
    if new.neighbor_mtu() != 0 {
        own.mtu_sm_sl = (new.neighbor_mtu() << 4) | own.sm_sl();
    }
    own.vl_high_limit = new.vl_high_limit;
    own.stall_hoq = new.stall_hoq;
    let vls = match new.vls_enforcement >> 4 {
        0 => own.vls_enforcement >> 4,
        vls => vls,
    };
    own.vls_enforcement = (vls << 4) | new.vls_enforcement & 0xf;
    own.errors = new.errors;
    if is_end {
        own.mkey = new.mkey;
        own.gid_prefix = new.gid_prefix;
        own.lid = new.lid;
        own.sm_lid = new.sm_lid;
        own.mkey_lease = new.mkey_lease;
        own.protect_lmc = new.protect_lmc & 0xc7;
        own.mtu_sm_sl = own.mtu_sm_sl & 0xf0 | new.sm_sl();
        own.reregister_timeout = new.subnet_timeout();
    }
    let after = *own;
    let checks = [
        (
            before.lid != after.lid || before.lmc() != after.lmc(),
            Change::Lid,
        ),
        (before.gid_prefix != after.gid_prefix, Change::Gids),
        (
            before.sm_lid != after.sm_lid || before.sm_sl() != after.sm_sl(),
            Change::Manager,
        ),
        (
            is_end && new.reregister_timeout & PortInfo::REREGISTER != 0,
            Change::Reregister,
        ),
    ];
    for (changed, change) in checks {
        if changed {
            node.note(number, change);
        }
    }
    Ok(())
}
