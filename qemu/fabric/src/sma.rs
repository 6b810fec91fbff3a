// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The subnet management agent (IBTA 14.3), the same in HCAs and switches.

mod port;

use crate::mad::{
    attribute, class, method, status, Arbitration, GuidBlock, LinearBlock, MadHeader,
    MulticastBlock, PkeyBlock, SlToVl, Smp, SwitchInfo, BASE_VERSION,
};
use crate::node::{Change, Node, MASK_PORTS};
use zerocopy::FromZeros;

/// Where a request has come from.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// Port on which it came in; 0 on a switch if it came from the node itself.
    pub port: u8,
    /// It comes from the host of the node itself, whom no M_Key keeps out.
    pub trusted: bool,
    /// Now, in nanoseconds.
    pub now: u64,
}

/// Returns whether the agent answers a datagram: requests of its class but those to a subnet manager.
pub fn serves(head: &MadHeader) -> bool {
    matches!(head.class, class::SUBN_LID | class::SUBN_DIRECTED)
        && matches!(head.method, method::GET | method::SET)
        && head.attribute.get() != attribute::SM_INFO
}

/// A value that a field or a modifier cannot have, or an attribute that the node does not have: a status.
struct Refused(u16);

const INVALID: Refused = Refused(status::INVALID_VALUE);
const UNSUPPORTED: Refused = Refused(status::UNSUPPORTED_ATTRIBUTE);

fn require(condition: bool) -> Result<(), Refused> {
    if condition {
        Ok(())
    } else {
        Err(INVALID)
    }
}

/// Executes a request and makes it its response. Returns false if there is none: the M_Key does not allow it.
pub fn process(node: &mut Node, from: &Arrival, smp: &mut Smp) -> bool {
    if smp.head.base_version != BASE_VERSION || smp.head.class_version != Smp::CLASS_VERSION {
        smp.respond(status::BAD_VERSION);
        return true;
    }
    let Some(show_key) = check_mkey(node, from, smp) else {
        return false;
    };
    let is_set = smp.head.method == method::SET;
    let refused = if is_set {
        set(node, from, smp).err()
    } else {
        None
    };
    // A Set answers with what is in force, whether it has changed that or not.
    let read = get(node, from, smp, show_key).err();
    let code = refused.or(read).map_or(0, |Refused(code)| code);
    smp.respond(code);
    true
}

/// Checks the M_Key (IBTA 14.2.4.1). Returns whether the response may show it; [`None`] if there is to be no response.
fn check_mkey(node: &mut Node, from: &Arrival, smp: &Smp) -> Option<bool> {
    let number = node.management_port(from.port);
    let port = node.port_mut(number)?;
    let key = port.info.mkey.get();
    if key == 0 || from.trusted || smp.mkey.get() == key {
        // The manager that has the key is alive.
        port.lease_end = None;
        return Some(true);
    }
    if port.lease_end.is_some_and(|end| end <= from.now) {
        port.info.protect_lmc &= 0x3f;
        port.lease_end = None;
    }
    let is_get = smp.head.method == method::GET;
    match port.info.protection() {
        0 if is_get => Some(true),
        1 if is_get => Some(false),
        _ => {
            let count = port.info.mkey_violations.get().saturating_add(1);
            port.info.mkey_violations.set(count);
            let seconds = u64::from(port.info.mkey_lease.get());
            if seconds != 0 && port.lease_end.is_none() {
                port.lease_end = Some(from.now.saturating_add(seconds * 1_000_000_000));
            }
            None
        }
    }
}

fn get(node: &Node, from: &Arrival, smp: &mut Smp, show_key: bool) -> Result<(), Refused> {
    let modifier = smp.head.modifier.get();
    match smp.head.attribute.get() {
        attribute::NODE_DESCRIPTION => smp.set_attribute(&node.description),
        attribute::NODE_INFO => node_info(node, from, smp)?,
        attribute::SWITCH_INFO => smp.set_attribute(&node.switch.as_ref().ok_or(UNSUPPORTED)?.info),
        attribute::PORT_INFO => {
            let number = port::select(node, from, modifier)?;
            let mut info = node.port(number).ok_or(INVALID)?.info;
            info.local_port = from.port;
            if !show_key {
                info.mkey.set(0);
            }
            smp.set_attribute(&info);
        }
        attribute::GUID_INFO => {
            let number = node.management_port(from.port);
            let guids = &node.port(number).ok_or(INVALID)?.guids;
            let mut block = GuidBlock::new_zeroed();
            for (out, guid) in block.guids.iter_mut().zip(part(guids, modifier, 8)?) {
                out.set(*guid);
            }
            smp.set_attribute(&block);
        }
        attribute::PKEY_TABLE => {
            let number = pkey_port(node, from, modifier);
            let pkeys = &node.port(number).ok_or(INVALID)?.pkeys;
            let mut block = PkeyBlock::new_zeroed();
            for (out, pkey) in block
                .pkeys
                .iter_mut()
                .zip(part(pkeys, modifier & 0xffff, 32)?)
            {
                out.set(*pkey);
            }
            smp.set_attribute(&block);
        }
        attribute::SL_TO_VL => {
            let (output, input) = mapping_ports(node, from, modifier);
            let tables = &node.port(output).ok_or(INVALID)?.sl_to_vl;
            smp.set_attribute(tables.get(input).ok_or(INVALID)?);
        }
        attribute::VL_ARBITRATION => {
            let (number, table) = arbitration(node, from, modifier)?;
            smp.set_attribute(&node.port(number).ok_or(INVALID)?.arbitration[table]);
        }
        attribute::LINEAR_FORWARDING => {
            let linear = &node.switch.as_ref().ok_or(UNSUPPORTED)?.linear;
            let mut block = LinearBlock::new_zeroed();
            block.ports.copy_from_slice(part(linear, modifier, 64)?);
            smp.set_attribute(&block);
        }
        attribute::MULTICAST_FORWARDING => {
            let (first, position) = multicast_block(modifier);
            let table = &node.switch.as_ref().ok_or(UNSUPPORTED)?.multicast;
            let mut block = MulticastBlock::new_zeroed();
            for (out, masks) in block.masks.iter_mut().zip(part(table, first, 32)?) {
                out.set(*masks.get(position).ok_or(INVALID)?);
            }
            smp.set_attribute(&block);
        }
        _ => return Err(UNSUPPORTED),
    }
    Ok(())
}

fn set(node: &mut Node, from: &Arrival, smp: &Smp) -> Result<(), Refused> {
    let modifier = smp.head.modifier.get();
    match smp.head.attribute.get() {
        attribute::SWITCH_INFO => set_switch_info(node, smp.attribute()),
        attribute::PORT_INFO => {
            let number = port::select(node, from, modifier)?;
            port::set(node, number, smp.attribute())
        }
        attribute::GUID_INFO => set_guids(node, from, modifier, smp.attribute()),
        attribute::PKEY_TABLE => set_pkeys(node, from, modifier, smp.attribute()),
        attribute::SL_TO_VL => {
            let (output, input) = mapping_ports(node, from, modifier);
            let tables = &mut node.port_mut(output).ok_or(INVALID)?.sl_to_vl;
            *tables.get_mut(input).ok_or(INVALID)? = *smp.attribute::<SlToVl>();
            Ok(())
        }
        attribute::VL_ARBITRATION => {
            let (number, table) = arbitration(node, from, modifier)?;
            let port = node.port_mut(number).ok_or(INVALID)?;
            port.arbitration[table] = *smp.attribute::<Arbitration>();
            Ok(())
        }
        attribute::LINEAR_FORWARDING => {
            let linear = &mut node.switch.as_mut().ok_or(UNSUPPORTED)?.linear;
            let block = smp.attribute::<LinearBlock>();
            part_mut(linear, modifier, 64)?.copy_from_slice(&block.ports);
            Ok(())
        }
        attribute::MULTICAST_FORWARDING => {
            let (first, position) = multicast_block(modifier);
            let table = &mut node.switch.as_mut().ok_or(UNSUPPORTED)?.multicast;
            let block = smp.attribute::<MulticastBlock>();
            for (masks, new) in part_mut(table, first, 32)?.iter_mut().zip(&block.masks) {
                *masks.get_mut(position).ok_or(INVALID)? = new.get();
            }
            Ok(())
        }
        _ => Err(UNSUPPORTED),
    }
}

fn node_info(node: &Node, from: &Arrival, smp: &mut Smp) -> Result<(), Refused> {
    let number = node.management_port(from.port);
    let mut info = node.info;
    info.port_guid.set(node.port(number).ok_or(INVALID)?.guid());
    let vendor = info.port_vendor.get() & 0xff_ffff;
    info.port_vendor.set((u32::from(from.port) << 24) | vendor);
    smp.set_attribute(&info);
    Ok(())
}

/// Returns block `block` of a table.
fn part<T>(table: &[T], block: u32, size: usize) -> Result<&[T], Refused> {
    table.chunks(size).nth(block as usize).ok_or(INVALID)
}

fn part_mut<T>(table: &mut [T], block: u32, size: usize) -> Result<&mut [T], Refused> {
    table.chunks_mut(size).nth(block as usize).ok_or(INVALID)
}

/// Port of a P_KeyTable: on a switch bits 31:16 of the modifier.
fn pkey_port(node: &Node, from: &Arrival, modifier: u32) -> u8 {
    if node.is_switch() {
        // CAST: A port has 8 bits; others do not exist.
        u8::try_from(modifier >> 16).unwrap_or(u8::MAX)
    } else {
        from.port
    }
}

/// Output port and index of the input port of an SLtoVLMappingTable: on a switch bits 7:0 and 15:8 of the modifier.
fn mapping_ports(node: &Node, from: &Arrival, modifier: u32) -> (u8, usize) {
    if node.is_switch() {
        let [_, _, input, output] = modifier.to_be_bytes();
        (output, input.into())
    } else {
        (from.port, 0)
    }
}

/// Port and index of a VLArbitrationTable. The tables are not longer than their first halves.
fn arbitration(node: &Node, from: &Arrival, modifier: u32) -> Result<(u8, usize), Refused> {
    let table = match modifier >> 16 {
        1 => 0,
        3 => 1,
        _ => return Err(INVALID),
    };
    let number = if node.is_switch() {
        u8::try_from(modifier & 0xffff).map_err(|_| INVALID)?
    } else {
        from.port
    };
    Ok((number, table))
}

/// Block and position of a MulticastForwardingTable.
fn multicast_block(modifier: u32) -> (u32, usize) {
    // CAST: Four bits.
    (modifier & 0x1ff, (modifier >> 28) as usize % MASK_PORTS)
}

fn set_switch_info(node: &mut Node, new: &SwitchInfo) -> Result<(), Refused> {
    let own = &mut node.switch.as_mut().ok_or(UNSUPPORTED)?.info;
    require(new.linear_top.get() < own.linear_cap.get())?;
    own.linear_top = new.linear_top;
    own.default_port = new.default_port;
    own.default_primary = new.default_primary;
    own.default_not_primary = new.default_not_primary;
    own.multicast_top = new.multicast_top;
    // Writing a 1 clears PortStateChange.
    let kept = own.life_time & !new.life_time & SwitchInfo::STATE_CHANGE;
    own.life_time = new.life_time & 0xf8 | kept;
    Ok(())
}

fn set_guids(
    node: &mut Node,
    from: &Arrival,
    modifier: u32,
    block: &GuidBlock,
) -> Result<(), Refused> {
    let number = node.management_port(from.port);
    let port = node.port_mut(number).ok_or(INVALID)?;
    let table = part_mut(&mut port.guids, modifier, 8)?;
    // The first entry of all is the port's own GUID and stays.
    let skip = usize::from(modifier == 0);
    let mut changed = false;
    for (own, new) in table.iter_mut().zip(&block.guids).skip(skip) {
        changed |= *own != new.get();
        *own = new.get();
    }
    if changed {
        node.note(number, Change::Gids);
    }
    Ok(())
}

fn set_pkeys(
    node: &mut Node,
    from: &Arrival,
    modifier: u32,
    block: &PkeyBlock,
) -> Result<(), Refused> {
    let number = pkey_port(node, from, modifier);
    let port = node.port_mut(number).ok_or(INVALID)?;
    let table = part_mut(&mut port.pkeys, modifier & 0xffff, 32)?;
    let mut changed = false;
    for (own, new) in table.iter_mut().zip(&block.pkeys) {
        changed |= *own != new.get();
        *own = new.get();
    }
    if changed {
        node.note(number, Change::Pkeys);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
