// SPDX-License-Identifier: GPL-2.0 OR MIT

use super::*;
use crate::mad::{LinkState, NodeInfo, PhysicalState, PortInfo};
use crate::node::Maker;

const MAKER: Maker = Maker {
    vendor: 0x52_5400,
    device: 2,
    revision: 3,
};

const FROM: Arrival = Arrival {
    port: 1,
    trusted: false,
    now: 0,
};

fn hca() -> Node {
    let mut node = Node::adapter(0x1000, 2, MAKER, "hca");
    node.set_link(1, true);
    node.take_changes();
    node
}

fn ask(node: &mut Node, from: &Arrival, mut smp: Smp) -> Option<Smp> {
    process(node, from, &mut smp).then_some(smp)
}

fn get_info(node: &mut Node, from: &Arrival, modifier: u32) -> Option<PortInfo> {
    let smp = Smp::directed(&[], method::GET, attribute::PORT_INFO, modifier);
    ask(node, from, smp).map(|smp| *smp.attribute())
}

/// Changes PortInfo; returns the status, if there is an answer.
fn set_info(
    node: &mut Node,
    from: &Arrival,
    key: u64,
    modifier: u32,
    change: impl FnOnce(&mut PortInfo),
) -> Option<u16> {
    let number = port::select(node, from, modifier).ok()?;
    let mut info = node.port(number)?.info;
    // No change of state.
    info.speed_state &= 0xf0;
    info.phys_down &= 0xf;
    change(&mut info);
    let mut smp = Smp::directed(&[], method::SET, attribute::PORT_INFO, modifier);
    smp.mkey.set(key);
    smp.set_attribute(&info);
    ask(node, from, smp).map(|smp| smp.status())
}

fn set_state(node: &mut Node, modifier: u32, state: u8) -> Option<u16> {
    set_info(node, &FROM, 0, modifier, |info| info.speed_state |= state)
}

#[test]
fn node_info_names_the_port_of_arrival() {
    let mut node = hca();
    for port in [1, 2] {
        let from = Arrival { port, ..FROM };
        let smp = Smp::directed(&[], method::GET, attribute::NODE_INFO, 0);
        let smp = ask(&mut node, &from, smp).unwrap();
        assert!(smp.is_returning());
        let info: &NodeInfo = smp.attribute();
        assert_eq!(info.local_port(), port);
        assert_eq!(info.port_guid.get(), 0x1000 + u64::from(port));
        assert_eq!(info.port_vendor.get() & 0xff_ffff, MAKER.vendor);
    }
}

#[test]
fn a_port_becomes_active_by_way_of_armed_only() {
    let mut node = hca();
    assert_eq!(set_state(&mut node, 1, 4), Some(status::INVALID_VALUE));
    assert_eq!(set_state(&mut node, 1, 2), Some(status::INVALID_VALUE));
    assert_eq!(set_state(&mut node, 1, 3), Some(0));
    assert_eq!(set_state(&mut node, 1, 4), Some(0));
    assert_eq!(set_state(&mut node, 1, 3), Some(status::INVALID_VALUE));
    let (from, to) = (LinkState::Armed, LinkState::Active);
    assert_eq!(
        node.take_changes().last(),
        Some(&(1, Change::State { from, to }))
    );
    assert_eq!(set_state(&mut node, 1, 1), Some(0));
    assert_eq!(node.take_changes(), [(1, Change::Retrain)]);
    // A port without a link has no other state.
    assert_eq!(set_state(&mut node, 2, 3), Some(status::INVALID_VALUE));
    assert_eq!(set_state(&mut node, 9, 3), None);
}

#[test]
fn a_port_can_be_switched_off_and_on() {
    let mut node = hca();
    let physical = |state: PhysicalState| move |info: &mut PortInfo| info.set_physical(state);
    let off = set_info(&mut node, &FROM, 0, 1, physical(PhysicalState::Disabled));
    assert_eq!(off, Some(0));
    assert_eq!(node.take_changes(), [(1, Change::Enabled(false))]);
    node.set_link(1, false);
    let on = set_info(&mut node, &FROM, 0, 1, physical(PhysicalState::Polling));
    assert_eq!(on, Some(0));
    assert_eq!(
        node.take_changes().last(),
        Some(&(1, Change::Enabled(true)))
    );
}

#[test]
fn what_a_set_changes_is_noted_once() {
    let mut node = hca();
    let change = |info: &mut PortInfo| {
        info.lid.set(7);
        info.sm_lid.set(1);
        info.gid_prefix.set(5);
        info.reregister_timeout |= PortInfo::REREGISTER;
    };
    assert_eq!(set_info(&mut node, &FROM, 0, 0, change), Some(0));
    assert_eq!(
        node.take_changes(),
        [
            (1, Change::Lid),
            (1, Change::Gids),
            (1, Change::Manager),
            (1, Change::Reregister)
        ]
    );
    assert_eq!(set_info(&mut node, &FROM, 0, 0, |_| ()), Some(0));
    assert_eq!(node.take_changes(), []);
    // The bit is a request and no state.
    let info = get_info(&mut node, &FROM, 1).unwrap();
    assert_eq!(info.reregister_timeout & PortInfo::REREGISTER, 0);
    let multicast = |info: &mut PortInfo| info.lid.set(0xc000);
    let refused = set_info(&mut node, &FROM, 0, 0, multicast);
    assert_eq!(refused, Some(status::INVALID_VALUE));
    assert_eq!(get_info(&mut node, &FROM, 1).unwrap().lid.get(), 7);
}

#[test]
fn the_mkey_protects_as_its_bits_say() {
    const KEY: u64 = 0x1234;
    for (bits, shown) in [(0, Some(KEY)), (1, Some(0)), (2, None), (3, None)] {
        let mut node = hca();
        let protect = |info: &mut PortInfo| {
            info.mkey.set(KEY);
            info.protect_lmc = bits << 6;
            info.mkey_lease.set(2);
        };
        assert_eq!(set_info(&mut node, &FROM, 0, 0, protect), Some(0));
        let got = get_info(&mut node, &FROM, 0);
        assert_eq!(got.map(|info| info.mkey.get()), shown, "bits {bits}");
        let violations = node.port(1).unwrap().info.mkey_violations.get();
        assert_eq!(violations, u16::from(bits > 1));
        assert_eq!(set_info(&mut node, &FROM, 0, 0, |_| ()), None);
        assert_eq!(set_info(&mut node, &FROM, KEY, 0, |_| ()), Some(0));
        let host = Arrival {
            trusted: true,
            ..FROM
        };
        assert_eq!(set_info(&mut node, &host, 0, 0, |_| ()), Some(0));
        // Two seconds after the first violation nothing protects any more.
        assert_eq!(set_info(&mut node, &FROM, 0, 0, |_| ()), None);
        let later = Arrival {
            now: 2_000_000_000,
            ..FROM
        };
        assert_eq!(
            get_info(&mut node, &later, 0).map(|info| info.mkey.get()),
            Some(KEY)
        );
    }
}

#[test]
fn tables_are_read_as_they_were_written() {
    let mut node = Node::switch(0x2000, 20, MAKER, "switch");
    let write = |node: &mut Node, attribute, modifier, data: [u8; 64]| {
        let mut smp = Smp::directed(&[], method::SET, attribute, modifier);
        smp.data = data;
        let set = ask(node, &FROM, smp).unwrap();
        let get = Smp::directed(&[], method::GET, attribute, modifier);
        let got = ask(node, &FROM, get).unwrap();
        assert!(set.status() != 0 || set.data == got.data);
        (set.status(), got.data)
    };
    let data: [u8; 64] = std::array::from_fn(|n| n as u8 * 3 + 1);
    for (attribute, modifier) in [
        (attribute::LINEAR_FORWARDING, 5),
        (attribute::MULTICAST_FORWARDING, 3),
        (attribute::MULTICAST_FORWARDING, (1 << 28) | 3),
        (attribute::PKEY_TABLE, 7 << 16),
        (attribute::VL_ARBITRATION, (3 << 16) | 20),
    ] {
        assert_eq!(write(&mut node, attribute, modifier, data), (0, data));
    }
    let switch = node.switch.as_ref().unwrap();
    assert_eq!(switch.linear[5 * 64 + 2], 7);
    let ports: Vec<u8> = switch.ports(0xc000 + 3 * 32).collect();
    // 0x0104 in both positions.
    assert_eq!(ports, [2, 8, 18, 24]);
    assert_eq!(switch.port(322), None);
    let mut mapping = [0; 64];
    mapping[..8].copy_from_slice(&data[..8]);
    let got = write(&mut node, attribute::SL_TO_VL, (4 << 8) | 9, mapping);
    assert_eq!(got, (0, mapping));
    for (attribute, modifier) in [
        (attribute::LINEAR_FORWARDING, 768),
        (attribute::MULTICAST_FORWARDING, 2 << 28),
        (attribute::PKEY_TABLE, 21 << 16),
        (attribute::PKEY_TABLE, 1),
        (attribute::VL_ARBITRATION, (2 << 16) | 20),
        (attribute::SL_TO_VL, (21 << 8) | 9),
        (attribute::GUID_INFO, 1),
    ] {
        let (code, _) = write(&mut node, attribute, modifier, data);
        assert_eq!(code, status::INVALID_VALUE, "{attribute:#x} {modifier:#x}");
    }
    for attribute in [attribute::LINEAR_FORWARDING, attribute::SWITCH_INFO] {
        let smp = Smp::directed(&[], method::GET, attribute, 0);
        let answer = ask(&mut hca(), &FROM, smp).unwrap();
        assert_eq!(answer.status(), status::UNSUPPORTED_ATTRIBUTE);
    }
}

#[test]
fn writing_a_one_clears_the_state_change_of_a_switch() {
    let mut node = Node::switch(0x2000, 2, MAKER, "switch");
    node.set_link(2, true);
    let read = |node: &mut Node| -> SwitchInfo {
        let smp = Smp::directed(&[], method::GET, attribute::SWITCH_INFO, 0);
        *ask(node, &FROM, smp).unwrap().attribute()
    };
    let mut info = read(&mut node);
    assert_ne!(info.life_time & SwitchInfo::STATE_CHANGE, 0);
    for (bit, want) in [(0, SwitchInfo::STATE_CHANGE), (SwitchInfo::STATE_CHANGE, 0)] {
        info.life_time = (18 << 3) | bit;
        let mut smp = Smp::directed(&[], method::SET, attribute::SWITCH_INFO, 0);
        smp.set_attribute(&info);
        assert_eq!(ask(&mut node, &FROM, smp).unwrap().status(), 0);
        let got = read(&mut node);
        assert_eq!(got.life_time & SwitchInfo::STATE_CHANGE, want);
        assert_eq!(got.life_time_value(), 18);
    }
}

#[test]
fn the_first_guid_is_the_ports_own() {
    let mut node = hca();
    let mut smp = Smp::directed(&[], method::SET, attribute::GUID_INFO, 0);
    smp.set_attribute(&GuidBlock {
        guids: std::array::from_fn(|n| (n as u64 + 9).into()),
    });
    let answer = ask(&mut node, &FROM, smp).unwrap();
    let block: &GuidBlock = answer.attribute();
    assert_eq!(block.guids.map(|g| g.get())[..3], [0x1001, 10, 11]);
    assert_eq!(node.take_changes(), [(1, Change::Gids)]);
}
