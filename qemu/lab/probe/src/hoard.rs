// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Holds objects of every kind, to see what becomes of them and of their owner.

use std::{
    fs::File,
    io::{Read, Write},
    path::Path,
};

use anyhow::{Context as _, Result};
use rustix::{
    io::Errno,
    process::{getpid, pidfd_getfd, pidfd_open, PidfdFlags, PidfdGetfdFlags},
};

use crate::{
    abi::qiao_create_cq_resp,
    checks::Checks,
    memory::{Arena, PAGE},
    uverbs::{
        access, alloc_pd, destroy_qp, Context, CreateCq, CreateCqResponse, CreateQp, ModifyQp,
        RegMr,
    },
};

/// `IB_EVENT_DEVICE_FATAL`.
const DEVICE_FATAL: u32 = 8;

/// Queue pairs of a hoard.
const PAIRS: u64 = 8;

/// Objects of every kind.
struct Hoard {
    user: Context,
    pairs: Vec<u32>,
    _doorbells: memmap2::MmapRaw,
    _arena: Arena,
}

impl Hoard {
    fn new(path: &Path) -> Result<Self> {
        let arena = Arena::new()?;
        let mut user = Context::open(path)?;
        let pd = user.pd().context("allocating a PD")?;
        let mr = RegMr {
            start: arena.writable(),
            length: 8 * PAGE,
            hca_va: arena.writable(),
            pd_handle: pd,
            access_flags: access::LOCAL_WRITE | access::REMOTE_WRITE,
        };
        user.mr(&mr).context("registering memory")?;
        let cq = CreateCq::good(arena.writable() + 16 * PAGE);
        let (core, driver): (CreateCqResponse, qiao_create_cq_resp) =
            user.dev.ask_both(&cq.call()).context("creating a CQ")?;
        let doorbells = user
            .dev
            .map(driver.db_mmap_offset, 1)
            .context("mapping the doorbells")?;
        let mut pairs = Vec::new();
        for n in 0..PAIRS {
            let buffer = arena.writable() + (17 + n) * PAGE;
            let qp = user
                .qp(&CreateQp::good(pd, core.cq_handle, buffer))
                .context("creating a QP")?;
            user.dev
                .call(&ModifyQp::to_init(qp).call())
                .context("to INIT")?;
            user.dev
                .call(&ModifyQp::to_rtr(qp).call())
                .context("to RTR")?;
            pairs.push(qp);
        }
        Ok(Self {
            user,
            pairs,
            _doorbells: doorbells,
            _arena: arena,
        })
    }
}

/// Makes a hoard and exits without letting go of anything.
pub fn abandon(path: &Path) -> Result<()> {
    let hoard = Hoard::new(path)?;
    println!("open");
    std::mem::forget(hoard);
    Ok(())
}

/// Makes a hoard, says so, and waits for the event that the device is lost; then nothing may hang.
pub fn outlive(path: &Path) -> Result<()> {
    let Hoard {
        mut user,
        pairs,
        _doorbells,
        _arena,
    } = Hoard::new(path)?;
    let mut events = duplicate(user.async_fd)?;
    println!("open");
    std::io::stdout().flush()?;

    let mut checks = Checks::new();
    // `struct ib_uverbs_async_event_desc`.
    let mut event = [0; 16];
    events
        .read_exact(&mut event)
        .context("waiting for an event")?;
    let kind = u32::from_le_bytes(event[8..12].try_into().expect("4 bytes"));
    checks.holds("event that the device is lost", kind == DEVICE_FATAL, kind);

    let new = user.dev.call(&alloc_pd());
    let lost = matches!(new, Err(Errno::IO | Errno::NODEV));
    checks.holds("nothing new from a lost device", lost, &new);
    let result = user.dev.call(&destroy_qp(pairs[0]));
    checks.holds("what it has can be let go", result.is_ok(), &result);
    checks.finish();
    Ok(())
}

/// The file with the number `fd` of this process, owned.
fn duplicate(fd: i32) -> Result<File> {
    let this = pidfd_open(getpid(), PidfdFlags::empty()).context("pidfd_open")?;
    let file = pidfd_getfd(this, fd, PidfdGetfdFlags::empty()).context("pidfd_getfd")?;
    Ok(file.into())
}
