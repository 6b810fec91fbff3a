// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Handles, doorbell pages and responses of objects of every kind.

use std::path::Path;

use anyhow::{Context as _, Result};
use rustix::io::Errno;

use crate::{
    abi::qiao_create_cq_resp,
    checks::Checks,
    memory::{Arena, KERNEL, PAGE, UNMAPPED},
    uverbs::{
        access, alloc_pd, dealloc_pd, dereg_mr, destroy_cq, destroy_qp, get_context, Call, Context,
        CreateCq, CreateCqResponse, CreateQp, RegMr, Uverbs,
    },
};

/// Objects that are in use, gone, of another kind, or of somebody else.
pub(super) fn handles(
    path: &Path,
    user: &mut Context,
    pd: u32,
    cq: u32,
    arena: &Arena,
    checks: &mut Checks,
) -> Result<()> {
    let qp = user
        .qp(&CreateQp::good(pd, cq, arena.writable() + PAGE))
        .context("creating a QP")?;
    let steps = [
        ("a CQ in use", Some(Errno::BUSY), destroy_cq(cq)),
        ("a PD in use", Some(Errno::BUSY), dealloc_pd(pd)),
        ("a QP as a PD", Some(Errno::INVAL), dealloc_pd(qp)),
        ("a PD as an MR", Some(Errno::INVAL), dereg_mr(pd)),
        ("no PD", Some(Errno::NOENT), dealloc_pd(u32::MAX)),
        ("a QP", None, destroy_qp(qp)),
        ("a QP again", Some(Errno::NOENT), destroy_qp(qp)),
    ];
    for (name, errno, call) in steps {
        let (name, result) = (format!("destroy: {name}"), user.dev.call(&call));
        match errno {
            Some(errno) => checks.refused(&name, errno, result),
            None => drop(checks.works(&name, result)),
        }
    }

    let mut other = Context::open(path)?;
    checks.refused(
        "destroy: a PD of another",
        Errno::NOENT,
        other.dev.call(&dealloc_pd(pd)),
    );
    let result = other.qp(&CreateQp::good(pd, cq, arena.writable() + PAGE));
    checks.refused("QP: PD and CQ of another", Errno::NOENT, result);
    Ok(())
}

/// Doorbell pages.
pub(super) fn mappings(
    path: &Path,
    user: &mut Context,
    arena: &Arena,
    checks: &mut Checks,
) -> Result<()> {
    let cq = CreateCq::good(arena.writable() + 4 * PAGE);
    let (core, driver): (CreateCqResponse, qiao_create_cq_resp) =
        user.dev.ask_both(&cq.call()).context("creating a CQ")?;
    let page = driver.db_mmap_offset;
    checks.works(
        "mapping: own doorbell page",
        user.dev.map(page, 1).map(drop),
    );
    for (name, offset, pages) in [
        ("two pages", page, 2),
        ("the next page", page + PAGE, 1),
        ("far away", 1 << 40, 1),
    ] {
        let result = user.dev.map(offset, pages);
        checks.refused(&format!("mapping: {name}"), Errno::INVAL, result);
    }
    let other = Context::open(path)?;
    checks.refused(
        "mapping: the page of another",
        Errno::INVAL,
        other.dev.map(page, 1),
    );
    checks.works(
        "mapping: the CQ destroyed",
        user.dev.call(&destroy_cq(core.cq_handle)),
    );
    Ok(())
}

/// Responses that cannot be written; then the same call must work.
pub(super) fn responses(
    path: &Path,
    user: &mut Context,
    pd: u32,
    cq: u32,
    arena: &Arena,
    checks: &mut Checks,
) -> Result<()> {
    let mr = RegMr {
        start: arena.writable(),
        length: PAGE,
        hca_va: arena.writable(),
        pd_handle: pd,
        access_flags: access::LOCAL_WRITE,
    };
    let calls = [
        ("PD", alloc_pd(), dealloc_pd as fn(u32) -> Call),
        ("MR", mr.call(), dereg_mr),
        (
            "CQ",
            CreateCq::good(arena.writable() + 4 * PAGE).call(),
            destroy_cq,
        ),
        (
            "QP",
            CreateQp::good(pd, cq, arena.writable() + PAGE).call(),
            destroy_qp,
        ),
    ];
    for (what, good, destroy) in calls {
        for (where_, bad) in unwritable(&good, arena) {
            checks.refused(
                &format!("{what}: response {where_}"),
                Errno::FAULT,
                user.dev.call(&bad),
            );
        }
        if let Some(response) = checks.works(
            &format!("{what}: the same with a good response"),
            user.dev.call(&good),
        ) {
            let handle = u32::from_le_bytes(response[..4].try_into().expect("4 bytes"));
            checks.works(&format!("{what}: undone"), user.dev.call(&destroy(handle)));
        }
    }
    for (where_, bad) in unwritable(&get_context(), arena) {
        let mut bare = Uverbs::open(path)?;
        checks.refused(
            &format!("context: response {where_}"),
            Errno::FAULT,
            bare.call(&bad),
        );
        checks.works(
            &format!("context: good response after one {where_}"),
            bare.call(&get_context()),
        );
    }
    Ok(())
}

/// The call with responses of which some part cannot be written.
fn unwritable(good: &Call, arena: &Arena) -> Vec<(&'static str, Call)> {
    let (core, driver) = good.response.unwrap_or_default();
    let mut calls = vec![
        ("not mapped", good.to(UNMAPPED)),
        ("in the kernel", good.to(KERNEL)),
        ("read-only", good.to(arena.read_only())),
    ];
    if driver > 0 {
        calls.push((
            "read-only in the driver's part",
            good.to(arena.read_only() - core as u64),
        ));
        calls.push((
            "read-only in the core's part",
            good.to(arena.writable_again() - core as u64),
        ));
    }
    calls
}
