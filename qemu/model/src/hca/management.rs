// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Management datagrams: the agents of the device, and the special queue pairs of the host.

use super::core::port_number;
use super::Hca;
use qiao_fabric::mad::{
    self, class, receive, reply, Address, LinkState, Mad, PerfMad, Smp, Step, GSI_QKEY,
};
use qiao_fabric::node::Change;
use qiao_fabric::sma::Arrival;
use qiao_fabric::wire::{Packet, Transport};
use qiao_fabric::{pma, sma};
use qiao_hw::cmd::{mad_flag, ExecMad, ExecMadReply, Status, MAD_SIZE};
use qiao_hw::event::EventType;

/// QP number of subnet management in packets.
const SMI: u32 = 0;

/// QP number of general services in packets.
const GSI: u32 = 1;

/// VL of subnet management.
const VL15: u8 = 15;

/// Returns whether a packet is for QP 0 or QP 1 of a port.
pub(super) fn is_special(packet: &Packet<'_>) -> bool {
    packet.bth.qpn() <= GSI
}

impl Hca {
    /// Takes a packet for QP 0 or QP 1 of a port: an agent answers, or it goes to the host.
    pub(super) fn management(&mut self, port: usize, packet: &Packet<'_>, now: u64) {
        // QP 0 is on VL 15, and nothing else is (IBTA 3.9.1).
        let is_smi = packet.bth.qpn() == SMI;
        let in_place = packet.transport == Transport::Ud && is_smi == (packet.lrh.vl() == VL15);
        let Some((address, mad)) = Address::parse(packet).filter(|_| in_place) else {
            self.core.oddities.stray_packets += 1;
            return;
        };
        let to_host = if is_smi {
            self.subnet_management(port, &address, &mad, now)
        } else {
            self.general_services(port, &address, &mad)
        };
        if !to_host {
            return;
        }
        match self.special.get(&(port, packet.bth.qpn())) {
            Some(&qpn) => self.deliver(qpn, packet, now),
            None => self.core.oddities.stray_packets += 1,
        }
    }

    /// Returns whether a datagram of QP 0 is for the host.
    fn subnet_management(&mut self, port: usize, from: &Address, mad: &Mad, now: u64) -> bool {
        let mut smp = Smp::from_mad(mad);
        let arrival = Arrival {
            port: port_number(port),
            trusted: false,
            now,
        };
        if smp.is_directed() {
            match receive(&mut smp, arrival.port, false) {
                Step::Agent if sma::serves(&smp.head) => {}
                Step::Agent | Step::Manager => return true,
                Step::Out(_) | Step::Lid(_) | Step::Discard => return false,
            }
        } else if !sma::serves(&smp.head) {
            return true;
        }
        if !sma::process(&mut self.core.node, &arrival, &mut smp) {
            return false;
        }
        let answer = if smp.is_directed() {
            match reply(&mut smp, from.slid) {
                Step::Out(out) if out == arrival.port => Address::DIRECTED,
                Step::Lid(_) => from.answer(),
                // A return path that does not lead back.
                _ => return false,
            }
        } else {
            from.answer()
        };
        self.send_mad(port, &answer, &smp.to_mad());
        self.management_changes(now);
        false
    }

    /// Returns whether a datagram of QP 1 is for the host.
    fn general_services(&mut self, port: usize, from: &Address, mad: &Mad) -> bool {
        let own = self.core.link_port(port);
        if own.state() < LinkState::Armed || !own.info.has_lid(from.dlid) {
            return false;
        }
        if own.pkey_index(from.pkey).is_none() {
            self.core.link_port_mut(port).count_pkey_violation();
            return false;
        }
        // The host has its own Q_Key and checks it.
        if from.qkey != GSI_QKEY || !pma::serves(mad::head(mad)) {
            return true;
        }
        let mut perf = PerfMad::from_mad(mad);
        self.update_counters();
        pma::process(&mut self.core.node, &mut perf);
        self.send_mad(port, &from.answer(), &perf.to_mad());
        false
    }

    fn send_mad(&mut self, port: usize, address: &Address, mad: &Mad) {
        let buffer = self.core.spare.pop().unwrap_or_default();
        self.core.outbox.push((port, address.build(buffer, mad)));
    }

    /// Brings the counters that the performance agent reports up to date.
    fn update_counters(&mut self) {
        for index in 0..self.link_counters.len() {
            let mut counters = self.link_counters[index];
            counters.rcv_errors += self.bad_packets[index];
            let port = self.core.link_port_mut(index);
            counters.link_downed = port.counters.link_downed;
            port.counters = counters;
        }
    }

    /// Notes that the link of a port, by its index, has come up or gone down.
    pub fn set_link(&mut self, port: usize, up: bool, now: u64) {
        self.core.node.set_link(port_number(port), up);
        self.management_changes(now);
    }

    /// Configures a port as the fabric's configuration says, where no subnet manager does.
    pub fn configure(&mut self, port: usize, lid: u16, now: u64) {
        self.core.link_port_mut(port).info.lid.set(lid);
        if self.core.link_port(port).state() != LinkState::Down {
            self.core
                .node
                .set_state(port_number(port), LinkState::Active);
        }
        self.management_changes(now);
    }

    /// Tells the driver what management has changed.
    fn management_changes(&mut self, _now: u64) {
        for (port, change) in self.core.node.take_changes() {
            let event = match change {
                Change::State {
                    to: LinkState::Active,
                    ..
                } => EventType::PortActive,
                Change::State {
                    from: LinkState::Active,
                    ..
                } => EventType::PortError,
                Change::State { .. } => continue,
                Change::Lid => EventType::LidChange,
                Change::Pkeys => EventType::PkeyChange,
                Change::Gids => EventType::GidChange,
                Change::Manager => EventType::SmChange,
                Change::Reregister => EventType::ClientReregister,
                Change::Retrain | Change::Enabled(_) => {
                    self.link_orders.push((usize::from(port) - 1, change));
                    continue;
                }
            };
            self.core.port_event(port, event);
        }
    }

    /// Has an agent answer a datagram of the host.
    pub(super) fn exec_mad(&mut self, cmd: &ExecMad, now: u64) -> Result<ExecMadReply, Status> {
        const FLAGS: u8 = mad_flag::IGNORE_MKEY | mad_flag::IGNORE_BKEY;
        let port = self.port_index(cmd.port)?;
        let addresses = [cmd.request.get(), cmd.response.get()];
        let inside = |addr: u64| addr % 4096 <= 4096 - MAD_SIZE as u64;
        if cmd.flags & !FLAGS != 0
            || cmd.slid.get() > u32::from(u16::MAX)
            || !addresses.into_iter().all(inside)
        {
            return Err(Status::BadOperand);
        }
        let dma = &self.core.shared.dma;
        let mut request: Mad = [0; MAD_SIZE];
        dma.read(addresses[0], &mut request)
            .map_err(|_| Status::DmaFault)?;
        let trusted = cmd.flags & mad_flag::IGNORE_MKEY != 0;
        let mut reply = ExecMadReply::zeroed();
        if let Some(response) = self.execute_mad(port, &request, trusted, now) {
            let dma = &self.core.shared.dma;
            dma.write_bytes(addresses[1], &response)
                .map_err(|_| Status::DmaFault)?;
            reply.flags = mad_flag::RESPONSE;
        }
        self.management_changes(now);
        Ok(reply)
    }

    fn execute_mad(&mut self, port: usize, mad: &Mad, trusted: bool, now: u64) -> Option<Mad> {
        let head = mad::head(mad);
        if sma::serves(head) {
            let arrival = Arrival {
                port: port_number(port),
                trusted,
                now,
            };
            let mut smp = Smp::from_mad(mad);
            let answered = sma::process(&mut self.core.node, &arrival, &mut smp);
            return answered.then(|| smp.to_mad());
        }
        if head.class == class::PERFORMANCE && pma::serves(head) {
            self.update_counters();
            let mut perf = PerfMad::from_mad(mad);
            pma::process(&mut self.core.node, &mut perf);
            return Some(perf.to_mad());
        }
        None
    }
}
