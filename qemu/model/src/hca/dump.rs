// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A picture of an HCA for people and tests.

use super::core::Oddities;
use super::port::TransportCounters;
use super::{Hca, QueuePair};
use crate::mem::Breaches;
use qiao_fabric::counters::Counters;
use qiao_fabric::mad::LinkState;
use qiao_hw::cmd::EqType;
use serde::Serialize;

/// An HCA.
#[derive(Debug, Serialize)]
#[expect(missing_docs, reason = "names are those of the objects")]
pub struct HcaDump {
    pub name: String,
    /// The STATUS register.
    pub status: u32,
    pub pds: usize,
    pub mkeys: usize,
    pub eqs: Vec<EqDump>,
    pub cqs: Vec<CqDump>,
    pub srqs: Vec<SrqDump>,
    pub qps: Vec<QpDump>,
    pub ports: Vec<PortDump>,
    /// Pages that all objects keep.
    pub pages: usize,
    pub dma_breaches: Breaches,
    /// Ranges of client memory and files behind them.
    pub dma_maps: (usize, usize),
    pub oddities: Oddities,
}

/// An event queue.
#[derive(Debug, Serialize)]
#[expect(missing_docs, reason = "names are those of the interface")]
pub struct EqDump {
    pub eqn: u32,
    pub vector: u16,
    pub completion: bool,
    pub producer: u32,
    pub consumer: u32,
    /// Events that wait for room.
    pub pending: usize,
    pub armed: bool,
}

/// A shared receive queue.
#[derive(Debug, Serialize)]
#[expect(missing_docs, reason = "names are those of the interface")]
pub struct SrqDump {
    pub srqn: u32,
    pub users: u32,
    pub producer: u32,
    /// The next request to be taken.
    pub next: u32,
    /// Requests that queue pairs have given back.
    pub returned: usize,
    pub limit: u32,
    pub failed: bool,
}

/// A completion queue.
#[derive(Debug, Serialize)]
#[expect(missing_docs, reason = "names are those of the interface")]
pub struct CqDump {
    pub cqn: u32,
    pub eqn: u32,
    pub users: u32,
    pub producer: u32,
    pub consumer: u32,
    pub armed: bool,
    pub failed: bool,
}

/// A queue pair.
#[derive(Debug, Serialize)]
#[expect(missing_docs, reason = "names are those of the interface")]
pub struct QpDump {
    pub qpn: u32,
    pub pdn: u32,
    pub state: String,
    pub dest_qpn: u32,
    pub sq_psn: u32,
    pub rq_psn: u32,
    /// Producer index and next index of the send ring.
    pub sq: (u32, u32),
    /// Of the receive ring.
    pub rq: Option<(u32, u32)>,
    pub send_cqn: u32,
    pub recv_cqn: u32,
}

/// A port.
#[derive(Debug, Serialize)]
#[expect(missing_docs, reason = "names are those of the interface")]
pub struct PortDump {
    pub guid: String,
    pub lid: u16,
    pub sm_lid: u16,
    pub state: LinkState,
    pub link: Counters,
    pub transport: TransportCounters,
}

impl Hca {
    /// Describes the HCA; objects in the order of their numbers.
    pub fn dump(&self) -> HcaDump {
        let shared = &self.core.shared;
        let mut eqs: Vec<EqDump> = self
            .core
            .eqs
            .iter()
            .map(|(&eqn, eq)| {
                let (producer, consumer, pending, armed) = eq.state();
                let completion = eq.eq_type == EqType::Completion;
                EqDump {
                    eqn,
                    vector: eq.vector,
                    completion,
                    producer,
                    consumer,
                    pending,
                    armed,
                }
            })
            .collect();
        eqs.sort_by_key(|eq| eq.eqn);
        let mut cqs: Vec<CqDump> = self
            .core
            .cqs
            .iter()
            .map(|(&cqn, cq)| {
                let (producer, consumer, armed) = cq.state();
                let failed = cq.error.is_some();
                CqDump {
                    cqn,
                    eqn: cq.eqn,
                    users: cq.users,
                    producer,
                    consumer,
                    armed,
                    failed,
                }
            })
            .collect();
        cqs.sort_by_key(|cq| cq.cqn);
        let mut srqs: Vec<SrqDump> = self
            .core
            .srqs
            .iter()
            .map(|(&srqn, srq)| {
                let (producer, next, returned) = srq.indices();
                SrqDump {
                    srqn,
                    users: srq.users,
                    producer,
                    next,
                    returned,
                    limit: srq.limit,
                    failed: srq.failed,
                }
            })
            .collect();
        srqs.sort_by_key(|srq| srq.srqn);
        let mut qps: Vec<QpDump> = self.qps.values().map(qp).collect();
        qps.sort_by_key(|qp| qp.qpn);
        HcaDump {
            name: self.name.clone(),
            status: shared.status.status(),
            pds: self.core.pds.len(),
            mkeys: self.core.mkeys.count(),
            eqs,
            cqs,
            srqs,
            qps,
            ports: self.ports(),
            pages: self.core.mkeys.pages() + self.core.ring_pages,
            dma_breaches: shared.dma.breaches(),
            dma_maps: shared.dma.counts(),
            oddities: self.core.oddities,
        }
    }

    fn ports(&self) -> Vec<PortDump> {
        let counters = self.link_counters.iter().zip(&self.core.counters);
        let ports = self.core.node.ports().zip(counters);
        ports
            .map(|((_, port), (link, transport))| PortDump {
                guid: format!("{:016x}", port.guid()),
                lid: port.info.lid.get(),
                sm_lid: port.info.sm_lid.get(),
                state: port.state(),
                link: *link,
                transport: *transport,
            })
            .collect()
    }
}

fn qp(qp: &QueuePair) -> QpDump {
    let (attr, _) = qp.transport.query();
    let (sq, rq) = qp.side.rings.indices();
    QpDump {
        qpn: qp.side.qpn,
        pdn: qp.side.pdn,
        state: format!("{:?}", qp.transport.state()),
        dest_qpn: attr.dest_qpn.get(),
        sq_psn: attr.sq_psn.get(),
        rq_psn: attr.rq_psn.get(),
        sq,
        rq,
        send_cqn: qp.side.send_cqn,
        recv_cqn: qp.side.recv_cqn,
    }
}
