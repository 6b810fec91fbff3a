// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Failure and success over and over: nothing may be left behind.

use std::{fs, path::Path};

use anyhow::{ensure, Context as _, Result};
use rustix::io::Errno;

use crate::{
    abi::{qiao_create_cq_resp, qiao_create_qp_resp},
    checks::Checks,
    memory::{Arena, PAGE},
    uverbs::{
        access, alloc_pd, dealloc_pd, dereg_mr, destroy_cq, destroy_qp,
        srq::{destroy_srq, CreateSrq},
        Call, Context, CreateCq, CreateCqResponse, CreateQp, CreateQpResponse, RegMr,
    },
};

/// Makes each kind of object `count` times with a response that cannot be written, and opens the device file as often; what can
/// be made before must be possible afterwards, with the same doorbell slots and the same amount of pinned memory.
///
/// This shows a leak if the device has fewer objects of a kind, and fewer doorbell pages, than `count`.
pub fn run(path: &Path, count: u32) -> Result<()> {
    let mut checks = Checks::new();
    let arena = Arena::new()?;
    let mut user = Context::open(path)?;
    let pd = user.pd().context("allocating a PD")?;
    let cq = user
        .cq(&CreateCq::good(arena.writable()))
        .context("creating a CQ")?;
    let kinds = kinds(pd, cq, &arena);

    let slots = slots(&mut user, &kinds)?;
    let pinned = pinned()?;
    let full = fill(&mut user, &kinds)?;
    for kind in &kinds {
        let mut others = 0;
        for _ in 0..count {
            let result = user.dev.call(&kind.good.to(arena.read_only()));
            others += u32::from(result != Err(Errno::FAULT));
        }
        let name = format!("{}: {count} responses that cannot be written", kind.name);
        checks.holds(
            &name,
            others == 0,
            format!("{others} of them gave no EFAULT"),
        );
    }
    for n in 0..count {
        let mut other = Context::open(path)
            .with_context(|| format!("opening the device file for the {n}th time"))?;
        let pd = other
            .pd()
            .with_context(|| format!("using the {n}th context"))?;
        other
            .cq(&CreateCq::good(arena.writable_again()))
            .with_context(|| format!("using the {n}th context"))?;
        ensure!(pd != u32::MAX, "the core gave the handle that means none");
    }
    checks.holds("contexts left with a PD and a CQ open", true, count);

    let full_again = fill(&mut user, &kinds)?;
    checks.holds("as many objects as before", full == full_again, &full_again);
    let enough = full.iter().all(|&objects| objects < count as usize);
    checks.holds("fewer objects than attempts", enough, &full);
    let slots_again = self::slots(&mut user, &kinds)?;
    checks.holds("the same doorbell slots", slots == slots_again, slots_again);
    let pinned_again = self::pinned()?;
    checks.holds(
        "the same pinned memory",
        pinned == pinned_again,
        &pinned_again,
    );
    checks.finish();
    Ok(())
}

/// A kind of object.
struct Kind {
    name: &'static str,
    good: Call,
    destroy: fn(u32) -> Call,
}

fn kinds(pd: u32, cq: u32, arena: &Arena) -> [Kind; 5] {
    let mr = RegMr {
        start: arena.writable(),
        length: PAGE,
        hca_va: arena.writable(),
        pd_handle: pd,
        access_flags: access::LOCAL_WRITE,
    };
    let kind = |name, good, destroy| Kind {
        name,
        good,
        destroy,
    };
    [
        kind("PD", alloc_pd(), dealloc_pd),
        kind("MR", mr.call(), dereg_mr),
        kind(
            "CQ",
            CreateCq::good(arena.writable_again()).call(),
            destroy_cq,
        ),
        kind(
            "QP",
            CreateQp::good(pd, cq, arena.writable_again() + PAGE).call(),
            destroy_qp,
        ),
        kind(
            "SRQ",
            CreateSrq::good(pd, arena.writable_again() + PAGE).call(),
            destroy_srq,
        ),
    ]
}

/// Makes each kind of object until the device has no more, and destroys all; how many there were of each kind.
fn fill(user: &mut Context, kinds: &[Kind]) -> Result<Vec<usize>> {
    kinds
        .iter()
        .map(|kind| fill_one(user, kind).with_context(|| format!("filling up with {}s", kind.name)))
        .collect()
}

fn fill_one(user: &mut Context, kind: &Kind) -> Result<usize> {
    let mut made = Vec::new();
    let error = loop {
        match user.dev.ask::<u32>(&kind.good) {
            Ok(handle) => made.push(handle),
            Err(error) => break error,
        }
    };
    for handle in &made {
        user.dev
            .call(&(kind.destroy)(*handle))
            .context("destroying")?;
    }
    ensure!(
        error == Errno::NOSPC,
        "it ended with {error} instead of ENOSPC"
    );
    Ok(made.len())
}

/// Page and offset of the slots that a new CQ and a new QP get.
fn slots(user: &mut Context, kinds: &[Kind; 5]) -> Result<[(u64, u32); 2]> {
    let [_, _, cq, qp, _] = kinds;
    let (core, driver): (CreateCqResponse, qiao_create_cq_resp) =
        user.dev.ask_both(&cq.good).context("creating a CQ")?;
    user.dev
        .call(&destroy_cq(core.cq_handle))
        .context("destroying a CQ")?;
    let cq_slot = (driver.db_mmap_offset, driver.db_offset);
    let (core, driver): (CreateQpResponse, qiao_create_qp_resp) =
        user.dev.ask_both(&qp.good).context("creating a QP")?;
    user.dev
        .call(&destroy_qp(core.qp_handle))
        .context("destroying a QP")?;
    Ok([cq_slot, (driver.db_mmap_offset, driver.db_offset)])
}

/// The line of `/proc/self/status` that says how much of this process is pinned.
fn pinned() -> Result<String> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with("VmPin:"));
    Ok(line.context("/proc/self/status has no VmPin")?.into())
}
