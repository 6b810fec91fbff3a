// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Memory regions.

use rustix::io::Errno;

use crate::{
    checks::Checks,
    memory::{Arena, KERNEL, LAST_PAGE, NON_CANONICAL, PAGE, PART, UNMAPPED},
    uverbs::{access, dereg_mr, Context, RegMr},
};

pub(super) fn regions(user: &mut Context, pd: u32, arena: &Arena, checks: &mut Checks) {
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
            "flushed by peers to persistence, which there is not",
            Errno::OPNOTSUPP,
            with(access::LOCAL_WRITE | access::FLUSH_PERSISTENT),
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
        (
            "flushed by peers to visibility",
            with(access::LOCAL_WRITE | access::FLUSH_GLOBAL),
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
