// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The performance management agent (IBTA 16.1), the same in HCAs and switches.

use crate::counters::Counters;
use crate::mad::{
    attribute, class, counter_select as select, method, status, ClassPortInfo, MadHeader, PerfMad,
    PortCounters, PortCountersExtended, ALL_PORTS, BASE_VERSION,
};
use crate::node::{Node, Port};
use zerocopy::FromZeros;

/// Counters that PortCounters and PortCountersExtended are cleared apart from each other.
const SHORT: usize = 0;
const EXTENDED: usize = 1;

/// Returns whether the agent answers a datagram.
pub fn serves(head: &MadHeader) -> bool {
    head.class == class::PERFORMANCE && matches!(head.method, method::GET | method::SET)
}

/// Executes a request and makes it its response.
pub fn process(node: &mut Node, mad: &mut PerfMad) {
    let code = execute(node, mad);
    mad.head.status.set(code);
    mad.head.method = method::GET_RESP;
}

fn execute(node: &mut Node, mad: &mut PerfMad) -> u16 {
    if mad.head.base_version != BASE_VERSION || mad.head.class_version != PerfMad::CLASS_VERSION {
        return status::BAD_VERSION;
    }
    let is_set = mad.head.method == method::SET;
    match mad.head.attribute.get() {
        attribute::CLASS_PORT_INFO if !is_set => mad.set_attribute(&class_port_info()),
        attribute::PORT_COUNTERS => {
            let request: PortCounters = *mad.attribute();
            let Some(numbers) = ports(node, request.port) else {
                return status::INVALID_VALUE;
            };
            if is_set {
                set(node, &numbers, SHORT, |_| 0, &short_mask(&request));
            }
            let mut answer = short(sum(node, &numbers, SHORT));
            (answer.port, answer.select) = (request.port, request.select);
            answer.select2 = request.select2;
            mad.set_attribute(&answer);
        }
        attribute::PORT_COUNTERS_EXTENDED => {
            let request: PortCountersExtended = *mad.attribute();
            let Some(numbers) = ports(node, request.port) else {
                return status::INVALID_VALUE;
            };
            if is_set {
                set(node, &numbers, EXTENDED, |_| 0, &extended_mask(&request));
            }
            let mut answer = extended(sum(node, &numbers, EXTENDED));
            (answer.port, answer.select) = (request.port, request.select);
            mad.set_attribute(&answer);
        }
        _ => return status::UNSUPPORTED_ATTRIBUTE,
    }
    0
}

fn class_port_info() -> ClassPortInfo {
    let mut info = ClassPortInfo::new_zeroed();
    info.base_version = BASE_VERSION;
    info.class_version = PerfMad::CLASS_VERSION;
    info.capability_mask.set(
        ClassPortInfo::ALL_PORT_SELECT | ClassPortInfo::EXTENDED_WIDTH | ClassPortInfo::XMIT_WAIT,
    );
    info.response_time.set(16);
    info
}

/// Returns the numbers of the ports that are meant; [`None`] if there is none.
fn ports(node: &Node, select: u8) -> Option<Vec<u8>> {
    if select == ALL_PORTS {
        return Some(node.ports().map(|(number, _)| number).collect());
    }
    node.port(select).map(|_| vec![select])
}

fn shown(port: &Port, table: usize) -> Counters {
    port.counters
        .zip(port.counter_base[table], u64::wrapping_sub)
}

fn sum(node: &Node, numbers: &[u8], table: usize) -> Counters {
    let ports = numbers.iter().filter_map(|&number| node.port(number));
    ports.fold(Counters::default(), |sum, port| {
        sum.zip(shown(port, table), u64::saturating_add)
    })
}

/// Makes the counters that `mask` selects zero.
fn set(node: &mut Node, numbers: &[u8], table: usize, value: impl Fn(u64) -> u64, mask: &Counters) {
    for &number in numbers {
        let Some(port) = node.port_mut(number) else {
            continue;
        };
        let now = port
            .counters
            .zip(Counters::default(), |now, _| now.wrapping_sub(value(now)));
        let base = &mut port.counter_base[table];
        let keep = base.zip(*mask, |base, mask| base & !mask);
        *base = keep.zip(now.zip(*mask, |now, mask| now & mask), |a, b| a | b);
    }
}

/// All ones for each counter that a Set of PortCounters writes. What a counter is set to is not taken over but for zero,
/// which is what the specification demands of a Set at least (IBTA 16.1.3.5).
fn short_mask(request: &PortCounters) -> Counters {
    let bits = request.select.get();
    let mask = |bit: u16| if bits & bit != 0 { u64::MAX } else { 0 };
    Counters {
        xmit_data: mask(select::XMIT_DATA),
        rcv_data: mask(select::RCV_DATA),
        xmit_pkts: mask(select::XMIT_PKTS),
        rcv_pkts: mask(select::RCV_PKTS),
        rcv_errors: mask(select::RCV_ERRORS),
        rcv_switch_relay_errors: mask(select::RCV_SWITCH_RELAY_ERRORS),
        rcv_constraint_errors: mask(select::RCV_CONSTRAINT_ERRORS),
        xmit_discards: mask(select::XMIT_DISCARDS),
        xmit_constraint_errors: mask(select::XMIT_CONSTRAINT_ERRORS),
        xmit_wait: if request.select2 & 1 != 0 {
            u64::MAX
        } else {
            0
        },
        vl15_dropped: mask(select::VL15_DROPPED),
        link_downed: mask(select::LINK_DOWNED),
        ..Counters::default()
    }
}

fn extended_mask(request: &PortCountersExtended) -> Counters {
    let bits = request.select.get();
    let mask = |bit: u16| if bits & (1 << bit) != 0 { u64::MAX } else { 0 };
    Counters {
        xmit_data: mask(0),
        rcv_data: mask(1),
        xmit_pkts: mask(2),
        rcv_pkts: mask(3),
        multicast_xmit_pkts: mask(6),
        multicast_rcv_pkts: mask(7),
        ..Counters::default()
    }
}

fn short(counters: Counters) -> PortCounters {
    let byte = |value: u64| u8::try_from(value).unwrap_or(u8::MAX);
    let half = |value: u64| u16::try_from(value).unwrap_or(u16::MAX);
    let word = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
    let mut out = PortCounters::new_zeroed();
    out.link_downed = byte(counters.link_downed);
    out.rcv_errors.set(half(counters.rcv_errors));
    out.rcv_relay_errors
        .set(half(counters.rcv_switch_relay_errors));
    out.xmit_discards.set(half(counters.xmit_discards));
    out.xmit_constraint_errors = byte(counters.xmit_constraint_errors);
    out.rcv_constraint_errors = byte(counters.rcv_constraint_errors);
    out.vl15_dropped.set(half(counters.vl15_dropped));
    out.xmit_data.set(word(counters.xmit_data));
    out.rcv_data.set(word(counters.rcv_data));
    out.xmit_pkts.set(word(counters.xmit_pkts));
    out.rcv_pkts.set(word(counters.rcv_pkts));
    out.xmit_wait.set(word(counters.xmit_wait));
    out
}

fn extended(counters: Counters) -> PortCountersExtended {
    let mut out = PortCountersExtended::new_zeroed();
    out.xmit_data.set(counters.xmit_data);
    out.rcv_data.set(counters.rcv_data);
    out.xmit_pkts.set(counters.xmit_pkts);
    out.rcv_pkts.set(counters.rcv_pkts);
    let unicast = |all: u64, multicast: u64| all.saturating_sub(multicast);
    out.unicast_xmit_pkts
        .set(unicast(counters.xmit_pkts, counters.multicast_xmit_pkts));
    out.unicast_rcv_pkts
        .set(unicast(counters.rcv_pkts, counters.multicast_rcv_pkts));
    out.multicast_xmit_pkts.set(counters.multicast_xmit_pkts);
    out.multicast_rcv_pkts.set(counters.multicast_rcv_pkts);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::Maker;

    const MAKER: Maker = Maker {
        vendor: 1,
        device: 2,
        revision: 3,
    };

    fn request(method: u8, attribute: u16) -> PerfMad {
        let mut mad = PerfMad::get(attribute);
        mad.head.method = method;
        mad
    }

    fn counters(node: &mut Node, method: u8, port: u8, bits: u16) -> (u16, PortCounters) {
        let mut mad = request(method, attribute::PORT_COUNTERS);
        let mut ask = PortCounters::new_zeroed();
        ask.port = port;
        ask.select.set(bits);
        mad.set_attribute(&ask);
        process(node, &mut mad);
        assert_eq!(mad.head.method, method::GET_RESP);
        (mad.head.status.get(), *mad.attribute())
    }

    #[test]
    fn counters_saturate_and_a_set_clears_what_it_selects() {
        let mut node = Node::adapter(0x10, 2, MAKER, "two ports");
        node.port_mut(1).unwrap().counters.xmit_pkts = 1 << 33;
        node.port_mut(1).unwrap().counters.rcv_errors = 7;
        node.port_mut(2).unwrap().counters.rcv_errors = 5;
        let (_, all) = counters(&mut node, method::GET, ALL_PORTS, 0);
        assert_eq!((all.xmit_pkts.get(), all.rcv_errors.get()), (u32::MAX, 12));
        let (_, after) = counters(&mut node, method::SET, 1, select::RCV_ERRORS);
        assert_eq!(
            (after.xmit_pkts.get(), after.rcv_errors.get()),
            (u32::MAX, 0)
        );
        node.port_mut(1).unwrap().counters.rcv_errors += 2;
        let (_, later) = counters(&mut node, method::GET, 1, 0);
        assert_eq!((later.port, later.rcv_errors.get()), (1, 2));
    }

    #[test]
    fn the_wide_counters_are_cleared_apart() {
        let mut node = Node::switch(0x10, 3, MAKER, "switch");
        let port = node.port_mut(3).unwrap();
        (port.counters.rcv_pkts, port.counters.multicast_rcv_pkts) = (1 << 33, 3);
        counters(&mut node, method::SET, 3, select::RCV_PKTS);
        let mut mad = request(method::GET, attribute::PORT_COUNTERS_EXTENDED);
        let mut ask = PortCountersExtended::new_zeroed();
        ask.port = 3;
        mad.set_attribute(&ask);
        process(&mut node, &mut mad);
        let got: PortCountersExtended = *mad.attribute();
        assert_eq!(got.rcv_pkts.get(), 1 << 33);
        assert_eq!(got.unicast_rcv_pkts.get(), (1 << 33) - 3);
    }

    #[test]
    fn what_is_not_there_is_refused() {
        let mut node = Node::adapter(0x10, 1, MAKER, "one port");
        assert_eq!(
            counters(&mut node, method::GET, 2, 0).0,
            status::INVALID_VALUE
        );
        let mut mad = request(method::GET, 0x77);
        process(&mut node, &mut mad);
        assert_eq!(mad.head.status.get(), status::UNSUPPORTED_ATTRIBUTE);
        let mut mad = request(method::GET, attribute::CLASS_PORT_INFO);
        mad.head.class_version = 9;
        process(&mut node, &mut mad);
        assert_eq!(mad.head.status.get(), status::BAD_VERSION);
    }
}
