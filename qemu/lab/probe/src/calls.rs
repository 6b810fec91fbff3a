// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Calls that must be refused, each with its errno, and what must still work afterwards.

mod cq;
mod mr;
mod objects;
mod qp;
mod srq;

use std::path::Path;

use anyhow::{Context as _, Result};
use rustix::io::Errno;

use crate::{
    checks::Checks,
    memory::Arena,
    uverbs::{alloc_pd, command, get_context, Call, Context, Uverbs},
};

/// Tries everything on the device of `path`.
pub fn run(path: &Path) -> Result<()> {
    let mut checks = Checks::new();
    header(path, &mut checks)?;
    context(path, &mut checks)?;
    let arena = Arena::new()?;
    let mut user = Context::open(path)?;
    let pd = user.pd().context("allocating a PD")?;
    mr::regions(&mut user, pd, &arena, &mut checks);
    let cq = cq::queues(&mut user, &arena, &mut checks).context("creating a good CQ")?;
    qp::pairs(&mut user, pd, cq, &arena, &mut checks);
    qp::transitions(&mut user, pd, cq, &arena, &mut checks)?;
    srq::queues(&mut user, pd, cq, &arena, &mut checks)?;
    objects::handles(path, &mut user, pd, cq, &arena, &mut checks)?;
    objects::mappings(path, &mut user, &arena, &mut checks)?;
    objects::responses(path, &mut user, pd, cq, &arena, &mut checks)?;
    checks.finish();
    Ok(())
}

/// Lengths of the request and of the response, and the number of the command.
fn header(path: &Path, checks: &mut Checks) -> Result<()> {
    let mut user = Context::open(path)?;
    let good = user.dev.encode(&alloc_pd());
    let mut short = good.clone();
    short[6..8].fill(0);
    for (name, errno, bytes) in [
        ("cut off", Errno::INVAL, &good[..4]),
        ("request cut off", Errno::INVAL, &good[..12]),
        ("no room for the response", Errno::NOSPC, &short),
    ] {
        let result = user.dev.write(bytes);
        checks.refused(&format!("header: {name}"), errno, result);
    }
    for (name, errno, number) in [
        ("unknown command", Errno::OPNOTSUPP, 0xff),
        (
            "unknown extended command",
            Errno::OPNOTSUPP,
            command::EXTENDED | 0xff,
        ),
        ("unknown flag", Errno::INVAL, 0x100),
    ] {
        let unknown = Call {
            command: number,
            ..alloc_pd()
        };
        let result = user.dev.call(&unknown);
        checks.refused(&format!("header: {name}"), errno, result);
    }

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

/// The driver's request cut off, missing, and with more behind it. Succeeds for zeroes behind it, as what a later version of the
/// library sends must.
fn lengths(
    what: &str,
    good: &Call,
    destroy: fn(u32) -> Call,
    user: &mut Context,
    checks: &mut Checks,
) {
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
        checks.works(
            &format!("{what}: zeroes behind the request, undone"),
            user.dev.call(&destroy(handle)),
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
