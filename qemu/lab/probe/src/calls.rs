// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Calls that must be refused, each with its errno, and what must still work afterwards.

use std::path::Path;

use anyhow::{Context as _, Result};
use rustix::io::Errno;

use crate::{
    abi::{qiao_create_cq_resp, qiao_create_qp_req},
    checks::Checks,
    memory::{Arena, KERNEL, LAST_PAGE, NON_CANONICAL, PAGE, PART, UNMAPPED},
    uverbs::{
        access, alloc_pd, command, dealloc_pd, dereg_mr, destroy_cq, destroy_qp, get_context, qp,
        Call, Context, CreateCq, CreateCqResponse, CreateQp, CreateQpCore, ModifyQp, RegMr, Uverbs,
    },
};

/// Tries everything on the device of `path`.
pub fn run(path: &Path) -> Result<()> {
    let mut checks = Checks::new();
    header(path, &mut checks)?;
    context(path, &mut checks)?;
    let arena = Arena::new()?;
    let mut user = Context::open(path)?;
    let pd = user.pd().context("allocating a PD")?;
    regions(&mut user, pd, &arena, &mut checks);
    let cq = queues(&mut user, &arena, &mut checks).context("creating a good CQ")?;
    pairs(&mut user, pd, cq, &arena, &mut checks);
    transitions(&mut user, pd, cq, &arena, &mut checks)?;
    handles(path, &mut user, pd, cq, &arena, &mut checks)?;
    mappings(path, &mut user, &arena, &mut checks)?;
    responses(path, &mut user, pd, cq, &arena, &mut checks)?;
    checks.finish();
    Ok(())
}

/// Lengths of the request and of the response, and the number of the command.
fn header(path: &Path, checks: &mut Checks) -> Result<()> {
    let mut user = Context::open(path)?;
    let good = user.dev.encode(&alloc_pd());
    checks.refused("header: cut off", Errno::INVAL, user.dev.write(&good[..4]));
    checks.refused(
        "header: request cut off",
        Errno::INVAL,
        user.dev.write(&good[..12]),
    );

    let mut short = good.clone();
    short[6..8].fill(0);
    checks.refused(
        "header: no room for the response",
        Errno::NOSPC,
        user.dev.write(&short),
    );
    let mut unknown = alloc_pd();
    unknown.command = 0xff;
    checks.refused(
        "header: unknown command",
        Errno::OPNOTSUPP,
        user.dev.call(&unknown),
    );
    unknown.command = command::EXTENDED | 0xff;
    checks.refused(
        "header: unknown extended command",
        Errno::OPNOTSUPP,
        user.dev.call(&unknown),
    );
    unknown.command = 0x100;
    checks.refused(
        "header: unknown flag",
        Errno::INVAL,
        user.dev.call(&unknown),
    );

    let mut long = alloc_pd();
    long.driver = vec![0; 64];
    checks.works("PD: zeroes behind the request", user.dev.call(&long));
    long.driver[63] = 1;
    checks.refused(
        "PD: more than zeroes behind the request",
        Errno::OPNOTSUPP,
        user.dev.call(&long),
    );
    Ok(())
}

/// Before there is a context, and when there is one.
fn context(path: &Path, checks: &mut Checks) -> Result<()> {
    let mut bare = Uverbs::open(path)?;
    checks.refused("context: none yet", Errno::INVAL, bare.call(&alloc_pd()));
    checks.refused("context: none yet, mapping", Errno::INVAL, bare.map(0, 1));
    let mut tail = get_context();
    tail.driver = vec![1; 8];
    checks.refused(
        "context: unknown request",
        Errno::OPNOTSUPP,
        bare.call(&tail),
    );
    let mut small = get_context();
    small.response = small.response.map(|(core, _)| (core, 0));
    checks.works(
        "context: no room for the driver's response",
        bare.call(&small),
    );
    checks.refused(
        "context: a second one",
        Errno::INVAL,
        bare.call(&get_context()),
    );
    Ok(())
}

fn regions(user: &mut Context, pd: u32, arena: &Arena, checks: &mut Checks) {
    let good = RegMr {
        start: arena.writable(),
        length: 3 * PAGE,
        hca_va: arena.writable(),
        pd_handle: pd,
        access_flags: access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_READ,
    };
    let at = |start| RegMr {
        start,
        hca_va: start,
        ..good
    };
    let with = |access_flags| RegMr {
        access_flags,
        ..good
    };
    let read_only = RegMr {
        access_flags: 0,
        ..at(arena.read_only())
    };
    let cases = [
        ("no bytes", Errno::INVAL, RegMr { length: 0, ..good }),
        (
            "all bytes there can be",
            Errno::INVAL,
            RegMr {
                length: u64::MAX,
                ..good
            },
        ),
        (
            "wraps around",
            Errno::INVAL,
            RegMr {
                length: 2 * PAGE,
                ..at(LAST_PAGE)
            },
        ),
        (
            "its address for peers wraps around",
            Errno::INVAL,
            RegMr {
                hca_va: LAST_PAGE,
                ..good
            },
        ),
        (
            "its address for peers at another place in the page",
            Errno::INVAL,
            RegMr {
                hca_va: good.hca_va + 1,
                ..good
            },
        ),
        ("not mapped", Errno::FAULT, at(UNMAPPED)),
        (
            "not mapped at its end",
            Errno::FAULT,
            RegMr {
                length: 2 * PART + PAGE,
                access_flags: 0,
                ..at(UNMAPPED)
            },
        ),
        ("the kernel's memory", Errno::FAULT, at(KERNEL)),
        ("no memory's address", Errno::FAULT, at(NON_CANONICAL)),
        (
            "read-only memory, to be written",
            Errno::FAULT,
            at(arena.read_only()),
        ),
        (
            "runs into read-only memory",
            Errno::FAULT,
            at(arena.read_only() - PAGE),
        ),
        (
            "rights to write for peers alone",
            Errno::INVAL,
            with(access::REMOTE_WRITE),
        ),
        (
            "rights to change for peers alone",
            Errno::INVAL,
            with(access::REMOTE_ATOMIC),
        ),
        ("an unknown right", Errno::INVAL, with(1 << 31)),
        (
            "memory windows, which there are not",
            Errno::OPNOTSUPP,
            with(access::LOCAL_WRITE | access::MW_BIND),
        ),
        (
            "counted from zero, which there is not",
            Errno::OPNOTSUPP,
            with(access::LOCAL_WRITE | access::ZERO_BASED),
        ),
        (
            "paged on demand, which there is not",
            Errno::OPNOTSUPP,
            with(access::LOCAL_WRITE | access::ON_DEMAND),
        ),
        (
            "flushed by peers, which there is not",
            Errno::OPNOTSUPP,
            with(access::LOCAL_WRITE | access::FLUSH_GLOBAL),
        ),
        (
            "of no PD",
            Errno::NOENT,
            RegMr {
                pd_handle: u32::MAX,
                ..good
            },
        ),
    ];
    for (name, errno, mr) in cases {
        checks.refused(&format!("MR: {name}"), errno, user.mr(&mr));
    }
    let mut tail = good.call();
    tail.driver = vec![1; 8];
    checks.refused(
        "MR: unknown request",
        Errno::OPNOTSUPP,
        user.dev.call(&tail),
    );

    let works = [
        ("good", good),
        ("read-only memory, to be read", read_only),
        ("one byte", RegMr { length: 1, ..good }),
        (
            "odd address",
            RegMr {
                length: PAGE,
                ..at(arena.writable() + 1)
            },
        ),
        (
            "a hint that may be ignored",
            with(access::LOCAL_WRITE | access::RELAXED_ORDERING),
        ),
    ];
    for (name, mr) in works {
        if let Some(handle) = checks.works(&format!("MR: {name}"), user.mr(&mr)) {
            checks.works(
                &format!("MR: {name}, undone"),
                user.dev.call(&dereg_mr(handle)),
            );
        }
    }
}

/// Changes to a good request that make it a bad one.
type Change<T> = (&'static str, Errno, fn(&mut T, &Limits));

/// What changes refer to.
struct Limits {
    log_max_cqe: u8,
    log_max_sq_blocks: u8,
    log_max_rq_wqes: u8,
    max_sge: u32,
    max_inline: u32,
    read_only: u64,
}

impl Limits {
    fn new(user: &Context, arena: &Arena) -> Self {
        let limits = user.limits;
        Self {
            log_max_cqe: limits.log_max_cqe,
            log_max_sq_blocks: limits.log_max_sq_blocks,
            log_max_rq_wqes: limits.log_max_rq_wqes,
            max_sge: limits.max_sge,
            max_inline: limits.max_inline,
            read_only: arena.read_only(),
        }
    }
}

const BAD_CQS: &[Change<CreateCq>] = &[
    ("no entries", Errno::INVAL, |c, _| c.cqe = 0),
    ("more entries than its ring", Errno::INVAL, |c, _| {
        c.cqe = 17
    }),
    ("all entries there can be", Errno::INVAL, |c, _| {
        c.cqe = u32::MAX
    }),
    ("a ring that is too large", Errno::INVAL, |c, l| {
        c.driver.log_entries = l.log_max_cqe + 1
    }),
    ("a ring size that overflows", Errno::INVAL, |c, _| {
        c.driver.log_entries = 64
    }),
    ("a ring size of 2^255", Errno::INVAL, |c, _| {
        c.driver.log_entries = 255
    }),
    ("no such vector", Errno::INVAL, |c, _| c.comp_vector = 4096),
    (
        "a completion channel that is no file",
        Errno::BADF,
        |c, _| c.comp_channel = 999,
    ),
    (
        "a completion channel that is another file",
        Errno::BADF,
        |c, _| c.comp_channel = 0,
    ),
    ("not aligned", Errno::INVAL, |c, _| c.driver.buf_addr += 32),
    ("not mapped", Errno::FAULT, |c, _| {
        c.driver.buf_addr = UNMAPPED
    }),
    ("at no address", Errno::FAULT, |c, _| c.driver.buf_addr = 0),
    ("the kernel's memory", Errno::FAULT, |c, _| {
        c.driver.buf_addr = KERNEL
    }),
    ("no memory's address", Errno::FAULT, |c, _| {
        c.driver.buf_addr = NON_CANONICAL
    }),
    ("read-only memory", Errno::FAULT, |c, l| {
        c.driver.buf_addr = l.read_only
    }),
    ("runs into read-only memory", Errno::FAULT, |c, l| {
        c.driver.buf_addr = l.read_only - 64
    }),
    ("wraps around", Errno::INVAL, |c, _| {
        c.driver.buf_addr = u64::MAX - 63
    }),
    ("unknown fields", Errno::OPNOTSUPP, |c, _| {
        c.driver.comp_mask = 1
    }),
    ("a reserved byte", Errno::OPNOTSUPP, |c, _| {
        c.driver.reserved[6] = 1
    }),
];

fn queues(user: &mut Context, arena: &Arena, checks: &mut Checks) -> Option<u32> {
    let good = CreateCq::good(arena.writable());
    let limits = Limits::new(user, arena);
    for (name, errno, change) in BAD_CQS {
        let mut bad = good;
        change(&mut bad, &limits);
        checks.refused(&format!("CQ: {name}"), *errno, user.cq(&bad));
    }
    lengths("CQ", &good.call(), user, checks);
    checks.works("CQ: good", user.cq(&good))
}

/// The driver's request cut off, missing, and with more behind it. Succeeds for zeroes behind it, as what a later version of the
/// library sends must.
fn lengths(what: &str, good: &Call, user: &mut Context, checks: &mut Checks) {
    let with = |driver: &[u8]| Call {
        driver: driver.to_vec(),
        ..good.clone()
    };
    let cut = &good.driver[..good.driver.len() - 8];
    checks.refused(
        &format!("{what}: request cut off"),
        Errno::INVAL,
        user.dev.call(&with(cut)),
    );
    checks.refused(
        &format!("{what}: no request"),
        Errno::INVAL,
        user.dev.call(&with(&[])),
    );
    let mut longer = [good.driver.as_slice(), &[0; 64]].concat();
    if let Some(response) = checks.works(
        &format!("{what}: zeroes behind the request"),
        user.dev.call(&with(&longer)),
    ) {
        let handle = u32::from_le_bytes(response[..4].try_into().expect("4 bytes"));
        let destroy = if what == "CQ" {
            destroy_cq(handle)
        } else {
            destroy_qp(handle)
        };
        checks.works(
            &format!("{what}: zeroes behind the request, undone"),
            user.dev.call(&destroy),
        );
    }
    longer.pop();
    longer.push(1);
    let result = user.dev.call(&with(&longer));
    checks.refused(
        &format!("{what}: more than zeroes behind the request"),
        Errno::OPNOTSUPP,
        result,
    );
}

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

fn pairs(user: &mut Context, pd: u32, cq: u32, arena: &Arena, checks: &mut Checks) {
    let good = CreateQp::good(pd, cq, arena.writable() + PAGE);
    let limits = Limits::new(user, arena);
    for (name, errno, change) in BAD_QPS {
        let mut bad = good;
        change(&mut bad, &limits);
        checks.refused(&format!("QP: {name}"), *errno, user.qp(&bad));
    }
    lengths("QP", &good.call(), user, checks);
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

fn transitions(
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
    let to_error = ModifyQp {
        qp_handle: handle,
        attr_mask: qp::STATE,
        qp_state: qp::ERR,
        ..ModifyQp::default()
    };
    attempt(to_error, &[], "RTR");
    checks.works("QP in ERR: destroyed", user.dev.call(&destroy_qp(handle)));
    Ok(())
}

/// Objects that are in use, gone, of another kind, or of somebody else.
fn handles(
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
    checks.refused(
        "destroy: a CQ in use",
        Errno::BUSY,
        user.dev.call(&destroy_cq(cq)),
    );
    checks.refused(
        "destroy: a PD in use",
        Errno::BUSY,
        user.dev.call(&dealloc_pd(pd)),
    );
    checks.refused(
        "destroy: a QP as a PD",
        Errno::INVAL,
        user.dev.call(&dealloc_pd(qp)),
    );
    checks.refused(
        "destroy: a PD as an MR",
        Errno::INVAL,
        user.dev.call(&dereg_mr(pd)),
    );
    checks.refused(
        "destroy: no PD",
        Errno::NOENT,
        user.dev.call(&dealloc_pd(u32::MAX)),
    );
    checks.works("destroy: a QP", user.dev.call(&destroy_qp(qp)));
    checks.refused(
        "destroy: a QP again",
        Errno::NOENT,
        user.dev.call(&destroy_qp(qp)),
    );

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
fn mappings(path: &Path, user: &mut Context, arena: &Arena, checks: &mut Checks) -> Result<()> {
    let cq = CreateCq::good(arena.writable() + 4 * PAGE);
    let (core, driver): (CreateCqResponse, qiao_create_cq_resp) =
        user.dev.ask_both(&cq.call()).context("creating a CQ")?;
    let page = driver.db_mmap_offset;
    checks.works(
        "mapping: own doorbell page",
        user.dev.map(page, 1).map(drop),
    );
    checks.refused("mapping: two pages", Errno::INVAL, user.dev.map(page, 2));
    checks.refused(
        "mapping: the next page",
        Errno::INVAL,
        user.dev.map(page + PAGE, 1),
    );
    checks.refused("mapping: far away", Errno::INVAL, user.dev.map(1 << 40, 1));
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
fn responses(
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
