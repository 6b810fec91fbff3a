// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Completion queues.

use rustix::io::Errno;

use super::{lengths, Change, Limits};
use crate::{
    checks::Checks,
    memory::{Arena, KERNEL, NON_CANONICAL, UNMAPPED},
    uverbs::{destroy_cq, Context, CreateCq},
};

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

pub(super) fn queues(user: &mut Context, arena: &Arena, checks: &mut Checks) -> Option<u32> {
    let good = CreateCq::good(arena.writable());
    let limits = Limits::new(user, arena);
    for (name, errno, change) in BAD_CQS {
        let mut bad = good;
        change(&mut bad, &limits);
        checks.refused(&format!("CQ: {name}"), *errno, user.cq(&bad));
    }
    lengths("CQ", &good.call(), destroy_cq, user, checks);
    checks.works("CQ: good", user.cq(&good))
}
