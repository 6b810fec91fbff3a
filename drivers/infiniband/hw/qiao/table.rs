// SPDX-License-Identifier: GPL-2.0

//! Numbers of objects.

use crate::caps::Caps;
use core::convert::Infallible;
use kernel::{
    prelude::*,
    sync::Arc, //
};
use qiao_hw::caps::feature;
use rdma::{
    sync::IdTable,
    CqHandle,
    QpHandle,
    SrqHandle, //
};

/// The first QP number that may be dealt out: 0 and 1 name the special QPs of each port
/// (IBTA vol. 1, 3.9).
pub(crate) const FIRST_QPN: u32 = 2;

/// The first key index that may be dealt out: the key 0 is never valid.
pub(crate) const FIRST_KEY: u32 = 1;

/// The first SRQ number that may be dealt out: 0 is none.
pub(crate) const FIRST_SRQN: u32 = 1;

/// The tables of a device.
pub(crate) struct Tables {
    /// QPs, for their events.
    pub(crate) qps: Arc<IdTable<QpHandle>>,
    /// CQs, for their events.
    pub(crate) cqs: Arc<IdTable<CqHandle>>,
    /// SRQs, for their events.
    pub(crate) srqs: Arc<IdTable<SrqHandle>>,
    /// Protection domains.
    pub(crate) pds: Arc<IdTable<Infallible>>,
    /// Keys, by index.
    pub(crate) keys: Arc<IdTable<Infallible>>,
}

impl Tables {
    pub(crate) fn new(caps: &Caps) -> Result<Self> {
        Ok(Self {
            qps: IdTable::new(FIRST_QPN..=last(caps.log_max_qp))?,
            cqs: IdTable::new(0..=last(caps.log_max_cq))?,
            srqs: IdTable::new(FIRST_SRQN..=last(log_max_srq(caps)))?,
            pds: IdTable::new(0..=last(caps.log_max_pd))?,
            keys: IdTable::new(FIRST_KEY..=last(caps.log_max_key))?,
        })
    }
}

/// Returns log2 of the number of SRQ numbers; a part without SRQs has the fewest that make a table.
fn log_max_srq(caps: &Caps) -> u8 {
    if caps.features.get() & feature::SRQ == 0 {
        return 1;
    }
    caps.log_max_srq
}

/// Returns the last of `2^log` numbers; `Caps` has limited `log` to 24.
fn last(log: u8) -> u32 {
    (1 << log) - 1
}
