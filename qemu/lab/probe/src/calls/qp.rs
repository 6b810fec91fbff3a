// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Queue pairs and their states.

use anyhow::{Context as _, Result};
use rustix::io::Errno;

use super::{lengths, Change, Limits};
use crate::{
    abi::qiao_create_qp_req,
    checks::Checks,
    memory::{Arena, KERNEL, PAGE, UNMAPPED},
    uverbs::{destroy_qp, qp, Context, CreateQp, CreateQpCore, ModifyQp},
};

const BAD_QPS: &[Change<CreateQp>] = &[
    ("more send requests than its ring", Errno::INVAL, |q, _| {
        q.core.max_send_wr = 17
    }),
    (
        "more receive requests than its ring",
        Errno::INVAL,
        |q, _| q.core.max_recv_wr = 17,
    ),
    ("all send requests there can be", Errno::INVAL, |q, _| {
        q.core.max_send_wr = u32::MAX
    }),
    ("all receive requests there can be", Errno::INVAL, |q, _| {
        q.core.max_recv_wr = u32::MAX
    }),
    ("too many data segments to send", Errno::INVAL, |q, l| {
        q.core.max_send_sge = l.max_sge + 1
    }),
    ("too many data segments to receive", Errno::INVAL, |q, l| {
        q.core.max_recv_sge = l.max_sge + 1
    }),
    ("all data segments there can be", Errno::INVAL, |q, _| {
        q.core.max_send_sge = u32::MAX
    }),
    ("too much inline data", Errno::INVAL, |q, l| {
        q.core.max_inline_data = l.max_inline + 1
    }),
    ("all inline data there can be", Errno::INVAL, |q, _| {
        q.core.max_inline_data = u32::MAX
    }),
    (
        "more data segments than a receive request holds",
        Errno::INVAL,
        |q, _| q.core.max_recv_sge = 2,
    ),
    (
        "a send request larger than the ring",
        Errno::INVAL,
        |q, l| {
            (q.core.max_send_wr, q.core.max_send_sge) = (1, l.max_sge);
            q.driver.log_sq_blocks = 0;
        },
    ),
    ("a send ring that is too large", Errno::INVAL, |q, l| {
        q.driver.log_sq_blocks = l.log_max_sq_blocks + 1
    }),
    ("a receive ring that is too large", Errno::INVAL, |q, l| {
        q.driver.log_rq_wqes = l.log_max_rq_wqes + 1
    }),
    ("a send ring size that overflows", Errno::INVAL, |q, _| {
        q.driver.log_sq_blocks = 64
    }),
    (
        "a receive ring size that overflows",
        Errno::INVAL,
        |q, _| q.driver.log_rq_wqes = 255,
    ),
    (
        "receive requests that are too small",
        Errno::INVAL,
        |q, _| q.driver.log_rq_stride = 4,
    ),
    (
        "receive requests that are too large",
        Errno::INVAL,
        |q, _| q.driver.log_rq_stride = 13,
    ),
    ("receive requests of 2^255 bytes", Errno::INVAL, |q, _| {
        q.driver.log_rq_stride = 255
    }),
    ("not aligned", Errno::INVAL, |q, _| q.driver.buf_addr += 16),
    ("not mapped", Errno::FAULT, |q, _| {
        q.driver.buf_addr = UNMAPPED
    }),
    ("the kernel's memory", Errno::FAULT, |q, _| {
        q.driver.buf_addr = KERNEL
    }),
    ("read-only memory", Errno::FAULT, |q, l| {
        q.driver.buf_addr = l.read_only
    }),
    ("runs into read-only memory", Errno::FAULT, |q, l| {
        q.driver.buf_addr = l.read_only - 64
    }),
    ("wraps around", Errno::INVAL, |q, _| {
        q.driver.buf_addr = u64::MAX - 63
    }),
    ("unknown fields", Errno::OPNOTSUPP, |q, _| {
        q.driver.comp_mask = 1 << 63
    }),
    ("a reserved byte", Errno::OPNOTSUPP, |q, _| {
        q.driver.reserved[0] = 1
    }),
    ("an SRQ that there is not", Errno::INVAL, |q, _| {
        q.core.is_srq = 1
    }),
    ("an unknown type", Errno::INVAL, |q, _| q.core.qp_type = 77),
    (
        "a type that the core keeps for drivers",
        Errno::OPNOTSUPP,
        |q, _| q.core.qp_type = 0xff,
    ),
    (
        "a type that the device does not have",
        Errno::OPNOTSUPP,
        |q, _| q.core.qp_type = 8,
    ),
    ("of no PD", Errno::NOENT, |q, _| q.core.pd_handle = 4242),
    ("of no CQ", Errno::NOENT, |q, _| {
        q.core.send_cq_handle = 4242
    }),
    ("of no CQ to receive", Errno::NOENT, |q, _| {
        q.core.recv_cq_handle = 4242
    }),
    ("of a PD that is a CQ", Errno::INVAL, |q, _| {
        q.core.pd_handle = q.core.send_cq_handle
    }),
];

pub(super) fn pairs(user: &mut Context, pd: u32, cq: u32, arena: &Arena, checks: &mut Checks) {
    let good = CreateQp::good(pd, cq, arena.writable() + PAGE);
    let limits = Limits::new(user, arena);
    for (name, errno, change) in BAD_QPS {
        let mut bad = good;
        change(&mut bad, &limits);
        checks.refused(&format!("QP: {name}"), *errno, user.qp(&bad));
    }
    lengths("QP", &good.call(), destroy_qp, user, checks);
    let tiny = CreateQp {
        core: CreateQpCore {
            max_send_wr: 0,
            max_recv_wr: 0,
            max_send_sge: 0,
            max_recv_sge: 0,
            ..good.core
        },
        driver: qiao_create_qp_req {
            log_sq_blocks: 0,
            log_rq_wqes: 1,
            ..good.driver
        },
    };
    if let Some(handle) = checks.works("QP: with nothing to post", user.qp(&tiny)) {
        checks.works(
            "QP: with nothing to post, undone",
            user.dev.call(&destroy_qp(handle)),
        );
    }
}

const BAD_INIT: &[Change<ModifyQp>] = &[
    ("to RTR at once", Errno::INVAL, |m, _| {
        *m = ModifyQp::to_rtr(m.qp_handle)
    }),
    ("to RTS at once", Errno::INVAL, |m, _| m.qp_state = qp::RTS),
    ("to an unknown state", Errno::INVAL, |m, _| m.qp_state = 99),
    ("without a port", Errno::INVAL, |m, _| {
        m.attr_mask &= !qp::PORT
    }),
    ("to port 0", Errno::INVAL, |m, _| m.port_num = 0),
    ("to a port that there is not", Errno::INVAL, |m, _| {
        m.port_num = 200
    }),
    (
        "with a P_Key index that there is not",
        Errno::INVAL,
        |m, _| m.pkey_index = u16::MAX,
    ),
    ("with an unknown right", Errno::OPNOTSUPP, |m, _| {
        m.qp_access_flags = 1 << 30
    }),
    ("with an unknown attribute", Errno::OPNOTSUPP, |m, _| {
        m.attr_mask |= qp::UNKNOWN
    }),
    ("of no QP", Errno::NOENT, |m, _| m.qp_handle = 4242),
];

const BAD_RTR: &[Change<ModifyQp>] = &[
    ("with an unknown MTU", Errno::INVAL, |m, _| m.path_mtu = 9),
    ("with MTU 0", Errno::INVAL, |m, _| m.path_mtu = 0),
    ("to a QP number of 32 bits", Errno::INVAL, |m, _| {
        m.dest_qp_num = 1 << 24
    }),
    ("with an RNR timer of 8 bits", Errno::INVAL, |m, _| {
        m.min_rnr_timer = 32
    }),
    (
        "with more reads than the device serves",
        Errno::INVAL,
        |m, _| m.max_dest_rd_atomic = 255,
    ),
    ("by another port", Errno::INVAL, |m, _| m.dest.port_num = 7),
    ("without a path", Errno::INVAL, |m, _| {
        m.attr_mask &= !qp::AV
    }),
];

pub(super) fn transitions(
    user: &mut Context,
    pd: u32,
    cq: u32,
    arena: &Arena,
    checks: &mut Checks,
) -> Result<()> {
    let limits = Limits::new(user, arena);
    let handle = user
        .qp(&CreateQp::good(pd, cq, arena.writable() + PAGE))
        .context("creating a QP")?;
    let mut attempt = |good: ModifyQp, bad: &[Change<ModifyQp>], state: &str| {
        for (name, errno, change) in bad {
            let mut modify = good;
            change(&mut modify, &limits);
            let name = format!("QP in {state}: {name}");
            checks.refused(&name, *errno, user.dev.call(&modify.call()));
        }
        checks.works(
            &format!("QP in {state}: goes on"),
            user.dev.call(&good.call()),
        );
    };
    attempt(ModifyQp::to_init(handle), BAD_INIT, "RESET");
    attempt(ModifyQp::to_rtr(handle), BAD_RTR, "INIT");
    attempt(ModifyQp::to_err(handle), &[], "RTR");
    checks.works("QP in ERR: destroyed", user.dev.call(&destroy_qp(handle)));
    Ok(())
}
