// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Management datagrams: the agents of the device, and the special queue pairs of the host.

use super::core::port_number;
use super::Hca;
use qiao_fabric::agent::{self, Outcome};
use qiao_fabric::mad::{Address, LinkState, Mad};
use qiao_fabric::node::Change;
use qiao_fabric::sma::Arrival;
use qiao_fabric::wire::Packet;
use qiao_hw::cmd::{mad_flag, ExecMad, ExecMadReply, Status, MAD_SIZE};
use qiao_hw::event::EventType;

/// Returns whether a packet is for QP 0 or QP 1 of a port.
pub(super) fn is_special(packet: &Packet<'_>) -> bool {
    packet.bth.qpn() <= 1
}

impl Hca {
    /// Takes a packet for QP 0 or QP 1 of a port: an agent answers, or it goes to the host.
    pub(super) fn management(&mut self, port: usize, packet: &Packet<'_>, now: u64) {
        let Some((from, mad)) = agent::parse(packet) else {
            self.core.oddities.stray_packets += 1;
            return;
        };
        let at = arrival(port, false, now);
        let outcome = if from.dest_qp == 0 {
            agent::subnet_management(&mut self.core.node, &at, &from, &mad)
        } else {
            self.update_counters();
            agent::general_services(&mut self.core.node, &at, &from, &mad)
        };
        match outcome {
            Outcome::Out(out, mad) if out == at.port => {
                self.send_mad(port, &Address::DIRECTED, &mad);
            }
            Outcome::Route(to, mad) => self.send_mad(port, &to, &mad),
            Outcome::Host => self.give_to_host(port, packet, now),
            // A return path that does not lead back.
            Outcome::Out(..) | Outcome::Drop => {}
        }
        if from.dest_qp == 0 {
            self.management_changes();
        }
    }

    fn give_to_host(&mut self, port: usize, packet: &Packet<'_>, now: u64) {
        match self.special.get(&(port, packet.bth.qpn())) {
            Some(&qpn) => self.deliver(qpn, packet, now),
            None => self.core.oddities.stray_packets += 1,
        }
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
    pub fn set_link(&mut self, port: usize, up: bool) {
        self.core.node.set_link(port_number(port), up);
        self.management_changes();
    }

    /// Makes a port active that is armed.
    pub(super) fn activate(&mut self, port: usize) {
        self.core
            .node
            .set_state(port_number(port), LinkState::Active);
        self.management_changes();
    }

    /// Tells the driver what management has changed.
    fn management_changes(&mut self) {
        self.ports_changed = true;
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
        Ok(reply)
    }

    /// Has an agent answer a datagram that comes from the node itself; [`None`] if there is no answer.
    pub fn execute_mad(&mut self, port: usize, mad: &Mad, trusted: bool, now: u64) -> Option<Mad> {
        self.update_counters();
        let at = arrival(port, trusted, now);
        let answer = agent::execute(&mut self.core.node, &at, mad);
        self.management_changes();
        answer
    }
}

fn arrival(port: usize, trusted: bool, now: u64) -> Arrival {
    Arrival {
        port: port_number(port),
        trusted,
        now,
    }
}
