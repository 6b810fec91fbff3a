// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A user who makes the device raise events as fast as it can, and reads none.

use std::path::Path;

use anyhow::{Context as _, Result};

use crate::{
    memory::Arena,
    uverbs::{
        srq::{attr, destroy_srq, CreateSrq, ModifySrq},
        Context,
    },
};

/// Raises `count` events of an empty shared receive queue, which is always below its limit.
pub fn run(path: &Path, count: u32) -> Result<()> {
    let arena = Arena::new()?;
    let mut user = Context::open(path)?;
    let pd = user.pd().context("allocating a PD")?;
    let srq = user
        .srq(&CreateSrq::good(pd, arena.writable()))
        .context("creating an SRQ")?;
    let limit = ModifySrq {
        srq_handle: srq,
        attr_mask: attr::LIMIT,
        max_wr: 0,
        srq_limit: 1,
    };
    for n in 0..count {
        let asked = user.dev.call(&limit.call());
        asked.with_context(|| format!("asking for event {n}"))?;
    }
    let destroyed = user.dev.call(&destroy_srq(srq));
    destroyed.context("destroying the SRQ").map(drop)
}
