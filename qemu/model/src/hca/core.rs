// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What all queue pairs of an HCA use: keys, queues, ports and the way out.

use super::id_map::IdMap;
use super::mkey::Mkeys;
use super::port::{TransportCounters, HOST_CAPABILITIES};
use super::queue::{Cq, Eq, Event};
use super::srq::Srq;
use crate::mem::Gate;
use crate::shared::{FatalCause, Generation, Shared};
use crate::transport::{Counter, RecvWqe};
use qiao_fabric::node::{Node, Port};
use qiao_fabric::wire::Frame;
use qiao_hw::caps::Caps;
use qiao_hw::cmd::EqType;
use qiao_hw::cqe::{Cqe, CqeStatus};
use qiao_hw::event::EventType;
use std::sync::Arc;

/// Pages that all objects of an HCA may keep: 64 GiB in 4 KiB pages, 128 MiB of the model's memory.
pub const MAX_PAGES: usize = 1 << 24;

/// A protection domain.
#[derive(Debug, Default)]
pub struct Pd {
    /// Number of objects that use it.
    pub users: u32,
}

/// Things that went wrong and that only a person who looks for them needs to know.
#[derive(Clone, Copy, Debug, Default, serde::Serialize)]
pub struct Oddities {
    /// Doorbells whose value cannot be true or whose slot belongs to no queue.
    pub bad_doorbells: u64,
    /// Interrupts that could not be delivered.
    pub lost_interrupts: u64,
    /// Packets for a QP that does not exist or does not take them.
    pub stray_packets: u64,
}

/// Returns the number of the port with an index.
pub fn port_number(index: usize) -> u8 {
    // CAST: A device has at most 255 ports.
    index as u8 + 1
}

/// A queue that has failed, and whose queue pairs fail with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailedQueue {
    /// A CQ.
    Cq(u32),
    /// An SRQ.
    Srq(u32),
}

/// The objects that queue pairs refer to.
#[derive(Debug)]
pub struct Core {
    /// What the function shares.
    pub shared: Arc<Shared>,
    /// The last reset that has been done.
    pub generation: Generation,
    /// Capability block.
    pub caps: Caps,
    /// Protection domains.
    pub pds: IdMap<Pd>,
    /// Protection entries.
    pub mkeys: Mkeys,
    /// Event queues.
    pub eqs: IdMap<Eq>,
    /// Completion queues.
    pub cqs: IdMap<Cq>,
    /// Shared receive queues.
    pub srqs: IdMap<Srq>,
    /// What subnet management knows of the HCA and its ports.
    pub node: Node,
    /// What the transport has counted, by port.
    pub counters: Vec<TransportCounters>,
    /// Packets to be sent, each with the index of its port.
    pub outbox: Vec<(usize, Frame)>,
    /// Frames for packets to come, which the engine lends while queue pairs send.
    pub spare: Vec<Frame>,
    /// Queues that have failed and whose queue pairs have not been told.
    pub failed_queues: Vec<FailedQueue>,
    /// Pages that the rings of all queues keep.
    pub ring_pages: usize,
    /// Oddities.
    pub oddities: Oddities,
    /// Whether `status.FATAL` is set: nothing works until the next reset.
    pub failed: bool,
}

impl Core {
    /// Makes the objects of a device that has none.
    pub fn new(shared: Arc<Shared>, caps: Caps, node: Node) -> Self {
        Self {
            shared,
            generation: Generation::default(),
            caps,
            pds: IdMap::default(),
            mkeys: Mkeys::default(),
            eqs: IdMap::default(),
            cqs: IdMap::default(),
            srqs: IdMap::default(),
            counters: vec![TransportCounters::default(); node.info.num_ports.into()],
            node,
            outbox: Vec::new(),
            spare: Vec::new(),
            failed_queues: Vec::new(),
            ring_pages: 0,
            oddities: Oddities::default(),
            failed: false,
        }
    }

    /// Drops all objects.
    pub fn reset(&mut self, generation: Generation) {
        self.generation = generation;
        self.pds.clear();
        self.mkeys = Mkeys::default();
        self.eqs.clear();
        self.cqs.clear();
        self.srqs.clear();
        self.outbox.clear();
        self.failed_queues.clear();
        self.ring_pages = 0;
        self.failed = false;
        self.counters.fill(TransportCounters::default());
        for index in 0..self.counters.len() {
            let info = &mut self.link_port_mut(index).info;
            let mask = info.capability_mask.get() & !HOST_CAPABILITIES;
            info.capability_mask.set(mask);
        }
    }

    /// Returns a port, by its index from 0, as subnet management knows it.
    pub fn link_port(&self, index: usize) -> &Port {
        let port = self.node.port(port_number(index));
        port.unwrap_or_else(|| unreachable!("port {index} is not one of the HCA's"))
    }

    /// As [`Core::link_port`].
    pub fn link_port_mut(&mut self, index: usize) -> &mut Port {
        let port = self.node.port_mut(port_number(index));
        port.unwrap_or_else(|| unreachable!("port {index} is not one of the HCA's"))
    }

    /// Counts something on a port.
    pub fn count(&mut self, port: usize, counter: Counter) {
        if counter == Counter::QkeyViolations {
            let count = &mut self.link_port_mut(port).info.qkey_violations;
            count.set(count.get().saturating_add(1));
        }
        self.counters[port].count(counter);
    }

    /// Raises an event of a port.
    pub fn port_event(&mut self, port: u8, event_type: EventType) {
        self.async_event(Event {
            event_type,
            port,
            id: 0,
            data: 0,
        });
    }

    /// Returns how many more pages objects may keep.
    pub fn pages_left(&self) -> usize {
        MAX_PAGES.saturating_sub(self.mkeys.pages() + self.ring_pages)
    }

    /// Raises an MSI-X vector.
    pub fn raise(&mut self, vector: u16) {
        if let Err(error) = self.shared.vectors.raise(vector) {
            log::debug!("vector {vector}: {error}");
            self.oddities.lost_interrupts += 1;
        }
    }

    /// Fails the device: only a reset helps.
    pub fn fatal(&mut self, cause: FatalCause) {
        if self.failed {
            return;
        }
        self.failed = true;
        // Without a bus master, or in a reset that has not come here yet, queues cannot be written:
        // that ends with the reset and nobody needs to know.
        if self.shared.status.set_fatal(self.generation, cause) {
            log::warn!("device failed: {cause:?}");
        }
        if cause != FatalCause::EventWrite {
            let data = cause as u64;
            self.async_event(Event {
                event_type: EventType::DeviceFatal,
                port: 0,
                id: 0,
                data,
            });
        }
        self.shared.dma.set_gate(Gate::Reset, false);
    }

    /// Writes an event of the asynchronous queue, if there is one.
    pub fn async_event(&mut self, event: Event) {
        let found = self.eqs.iter().find(|(_, eq)| eq.eq_type == EqType::Async);
        if let Some((&eqn, _)) = found {
            self.event(eqn, event);
        }
    }

    fn event(&mut self, eqn: u32, event: Event) {
        let Some(eq) = self.eqs.get_mut(&eqn) else {
            return;
        };
        let vector = eq.vector;
        self.shared.coverage.event(event.event_type);
        match eq.push(&self.shared.dma, event) {
            Ok(true) => self.raise(vector),
            Ok(false) => {}
            Err(_) => self.fatal(FatalCause::EventWrite),
        }
    }

    fn completion_event(&mut self, cqn: u32) {
        let Some(eqn) = self.cqs.get(&cqn).map(|cq| cq.eqn) else {
            return;
        };
        self.event(
            eqn,
            Event {
                event_type: EventType::Completion,
                port: 0,
                id: cqn,
                data: 0,
            },
        );
    }

    /// Forgets events of a CQ that wait in its EQ.
    pub fn forget_cq_events(&mut self, eqn: u32, cqn: u32) {
        if let Some(eq) = self.eqs.get_mut(&eqn) {
            eq.users -= 1;
            eq.forget(|event| event.event_type == EventType::Completion && event.id == cqn);
        }
        self.forget_async(|event| event.event_type == EventType::CqError && event.id == cqn);
    }

    /// Forgets events of a QP that wait.
    pub fn forget_qp_events(&mut self, qpn: u32) {
        let of_qps = EventType::CommEstablished..=EventType::PathMigrationError;
        self.forget_async(|event| of_qps.contains(&event.event_type) && event.id == qpn);
    }

    /// Forgets events of an SRQ that wait.
    pub fn forget_srq_events(&mut self, srqn: u32) {
        let of_srqs = EventType::SrqLimit..=EventType::SrqError;
        self.forget_async(|event| of_srqs.contains(&event.event_type) && event.id == srqn);
    }

    fn forget_async(&mut self, is_of: impl Fn(&Event) -> bool) {
        if let Some(eq) = self.eqs.values_mut().find(|eq| eq.eq_type == EqType::Async) {
            eq.forget(is_of);
        }
    }

    /// Takes the value of an EQ's slot.
    pub fn ring_eq(&mut self, eqn: u32, value: u64) {
        let Some(eq) = self.eqs.get_mut(&eqn) else {
            return;
        };
        let vector = eq.vector;
        match eq.ring(&self.shared.dma, value) {
            Ok(Ok(true)) => self.raise(vector),
            Ok(Ok(false)) => {}
            Ok(Err(_)) => self.fatal(FatalCause::EventWrite),
            Err(_) => self.oddities.bad_doorbells += 1,
        }
    }

    /// Takes the value of a CQ's slot.
    pub fn ring_cq(&mut self, cqn: u32, value: u64) {
        let Some(cq) = self.cqs.get_mut(&cqn) else {
            return;
        };
        match cq.ring(value) {
            Ok(true) => self.completion_event(cqn),
            Ok(false) => {}
            Err(_) => self.oddities.bad_doorbells += 1,
        }
    }

    /// Takes the value of an SRQ's slot. One that cannot be true fails the queue.
    pub fn ring_srq(&mut self, srqn: u32, value: u64) {
        let found = self.srqs.get_mut(&srqn).filter(|srq| !srq.failed);
        if found.is_some_and(|srq| !srq.ring(value)) {
            self.oddities.bad_doorbells += 1;
            self.fail_srq(srqn);
        }
    }

    /// Asks for an event of an SRQ, which may be due at once.
    pub fn set_srq_limit(&mut self, srqn: u32, limit: u32) {
        if let Some(srq) = self.srqs.get_mut(&srqn) {
            srq.limit = limit;
        }
        self.note_srq_limit(srqn);
    }

    fn note_srq_limit(&mut self, srqn: u32) {
        if self.srqs.get_mut(&srqn).is_some_and(Srq::take_event) {
            self.srq_event(srqn, EventType::SrqLimit);
        }
    }

    /// Takes the next request of an SRQ.
    pub fn next_shared(&mut self, srqn: u32) -> Option<RecvWqe> {
        let srq = self.srqs.get_mut(&srqn).filter(|srq| !srq.failed)?;
        let Ok(next) = srq.next(&self.shared.dma) else {
            self.fail_srq(srqn);
            return None;
        };
        self.note_srq_limit(srqn);
        next
    }

    /// Gives a request back to an SRQ.
    pub fn put_back(&mut self, srqn: u32, wqe: RecvWqe) {
        if let Some(srq) = self.srqs.get_mut(&srqn) {
            srq.put_back(wqe);
        }
    }

    fn fail_srq(&mut self, srqn: u32) {
        if let Some(srq) = self.srqs.get_mut(&srqn) {
            srq.failed = true;
            self.failed_queues.push(FailedQueue::Srq(srqn));
            self.srq_event(srqn, EventType::SrqError);
        }
    }

    fn srq_event(&mut self, srqn: u32, event_type: EventType) {
        self.async_event(Event {
            event_type,
            port: 0,
            id: srqn,
            data: 0,
        });
    }

    /// Writes a completion. A queue that cannot take it fails, with an event, and its queue pairs are
    /// told later.
    pub fn complete(&mut self, cqn: u32, cqe: &Cqe, solicited: bool) {
        let Some(cq) = self.cqs.get_mut(&cqn).filter(|cq| cq.error.is_none()) else {
            return;
        };
        let counts = solicited || cqe.status != CqeStatus::Success.to_wire();
        match cq.push(&self.shared.dma, cqe, counts) {
            Ok(true) => self.completion_event(cqn),
            Ok(false) => {}
            Err(error) => {
                cq.error = Some(error);
                self.failed_queues.push(FailedQueue::Cq(cqn));
                let data = error as u64;
                self.async_event(Event {
                    event_type: EventType::CqError,
                    port: 0,
                    id: cqn,
                    data,
                });
            }
        }
    }
}
