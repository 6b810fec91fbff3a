// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Shared receive queues.

use anyhow::{Context as _, Result};
use rustix::io::Errno;

use super::{lengths, Change, Limits};
use crate::{
    checks::Checks,
    memory::{Arena, KERNEL, PAGE, UNMAPPED},
    uverbs::{
        destroy_qp,
        srq::{attr, destroy_srq, CreateSrq, ModifySrq},
        Context, CreateQp,
    },
};

const BAD_SRQS: &[Change<CreateSrq>] = &[
    ("no requests", Errno::INVAL, |s, _| s.core.max_wr = 0),
    ("more requests than places", Errno::INVAL, |s, _| {
        s.core.max_wr = 17
    }),
    ("all requests there can be", Errno::INVAL, |s, _| {
        s.core.max_wr = u32::MAX
    }),
    (
        "more data segments than a request holds",
        Errno::INVAL,
        |s, _| s.core.max_sge = 2,
    ),
    ("too many data segments", Errno::INVAL, |s, l| {
        (s.core.max_sge, s.driver.log_stride) = (l.max_sge + 1, 12)
    }),
    ("all data segments there can be", Errno::INVAL, |s, _| {
        s.core.max_sge = u32::MAX
    }),
    ("too many places", Errno::INVAL, |s, l| {
        s.driver.log_wqes = l.log_max_rq_wqes + 1
    }),
    ("2^255 places", Errno::INVAL, |s, _| s.driver.log_wqes = 255),
    ("places that are too small", Errno::INVAL, |s, _| {
        s.driver.log_stride = 4
    }),
    ("places that are too large", Errno::INVAL, |s, _| {
        s.driver.log_stride = 13
    }),
    ("places of 2^255 bytes", Errno::INVAL, |s, _| {
        s.driver.log_stride = 255
    }),
    ("not aligned", Errno::INVAL, |s, _| s.driver.buf_addr += 32),
    ("not mapped", Errno::FAULT, |s, _| {
        s.driver.buf_addr = UNMAPPED
    }),
    ("the kernel's memory", Errno::FAULT, |s, _| {
        s.driver.buf_addr = KERNEL
    }),
    ("runs into read-only memory", Errno::FAULT, |s, l| {
        s.driver.buf_addr = l.read_only - 64
    }),
    ("wraps around", Errno::INVAL, |s, _| {
        s.driver.buf_addr = u64::MAX - 63
    }),
    ("unknown fields", Errno::OPNOTSUPP, |s, _| {
        s.driver.comp_mask = 1
    }),
    ("a reserved byte", Errno::OPNOTSUPP, |s, _| {
        s.driver.reserved[5] = 1
    }),
    ("of no PD", Errno::NOENT, |s, _| s.core.pd_handle = 4242),
];

pub(super) fn queues(
    user: &mut Context,
    pd: u32,
    cq: u32,
    arena: &Arena,
    checks: &mut Checks,
) -> Result<()> {
    let good = CreateSrq::good(pd, arena.writable());
    let limits = Limits::new(user, arena);
    for (name, errno, change) in BAD_SRQS {
        let mut bad = good;
        change(&mut bad, &limits);
        checks.refused(&format!("SRQ: {name}"), *errno, user.srq(&bad));
    }
    lengths("SRQ", &good.call(), destroy_srq, user, checks);
    let srq = user.srq(&good).context("creating a good SRQ")?;
    modifications(user, srq, checks);
    attached(user, (pd, cq, srq), arena, checks)
}

fn modifications(user: &mut Context, srq: u32, checks: &mut Checks) {
    let good = ModifySrq {
        srq_handle: srq,
        attr_mask: attr::LIMIT,
        max_wr: 0,
        srq_limit: 0,
    };
    for (name, errno, call) in [
        (
            "a limit above its requests",
            Errno::INVAL,
            ModifySrq {
                srq_limit: 17,
                ..good
            },
        ),
        (
            "another size",
            Errno::OPNOTSUPP,
            ModifySrq {
                attr_mask: attr::MAX_WR,
                max_wr: 8,
                ..good
            },
        ),
        (
            "an unknown attribute",
            Errno::OPNOTSUPP,
            ModifySrq {
                attr_mask: attr::LIMIT | (1 << 31),
                ..good
            },
        ),
        (
            "no SRQ",
            Errno::NOENT,
            ModifySrq {
                srq_handle: u32::MAX,
                ..good
            },
        ),
    ] {
        let result = user.dev.call(&call.call());
        checks.refused(&format!("SRQ, changed: {name}"), errno, result);
    }
    checks.works("SRQ, changed: good", user.dev.call(&good.call()));
}

/// A QP with the SRQ, and without a ring of its own.
fn attached(
    user: &mut Context,
    (pd, cq, srq): (u32, u32, u32),
    arena: &Arena,
    checks: &mut Checks,
) -> Result<()> {
    let mut qp = CreateQp::good(pd, cq, arena.writable() + PAGE);
    (qp.core.is_srq, qp.core.srq_handle) = (1, srq);
    checks.refused("QP with SRQ: a receive ring", Errno::INVAL, user.qp(&qp));
    (qp.driver.log_rq_wqes, qp.driver.log_rq_stride) = (0, 0);
    qp.core.srq_handle = u32::MAX;
    checks.refused(
        "QP with SRQ: one that there is not",
        Errno::NOENT,
        user.qp(&qp),
    );
    (qp.core.srq_handle, qp.core.max_recv_wr) = (srq, u32::MAX);
    let handle = user.qp(&qp).context("creating a QP with an SRQ")?;
    let result = user.dev.call(&destroy_srq(srq));
    checks.refused("SRQ: destroyed while in use", Errno::BUSY, result);
    checks.works("QP with SRQ: good", user.dev.call(&destroy_qp(handle)));
    checks.works("SRQ: good", user.dev.call(&destroy_srq(srq)));
    Ok(())
}
