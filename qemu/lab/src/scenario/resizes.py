#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Completion queues that grow and shrink while completions come (ibv_resize_cq(3)).

resizes.py REQUESTER RESPONDER: as posts.py.
"""

import errno
import sys

from posts import DEPTH, LOCAL, OK, End, Host, check, finish, receive, request, segment
from pyverbs import enums as e
from pyverbs.pyverbs_error import PyverbsRDMAError

ROUNDS = 300
SIZES = [8, 64, 16, 1024, 8, 4096, 32]


def resize(end, entries):
    """Resizes a queue; the name of the error if it fails."""
    try:
        end.cq.resize(entries)
        return None
    except PyverbsRDMAError as caught:
        return errno.errorcode.get(caught.error_code, caught.error_code)


def main():
    """Resizes between all that a program does."""
    requester, responder = Host(sys.argv[1]), Host(sys.argv[2])
    one, other = End(requester), End(responder)
    one.connect(other, LOCAL, 7)
    other.connect(one, LOCAL, 7)
    found, errors = {one: [], other: []}, set()
    for n in range(ROUNDS):
        other.qp.post_recv(receive([segment(responder.mr)], wr_id=n))
        one.qp.post_send(request(e.IBV_WR_SEND, [segment(requester.mr)], wr_id=n))
        # Never more than half of the queues are outstanding, which each size holds.
        waiting = n + 1 - min(len(ids) for ids in found.values())
        for end, ids in found.items():
            errors.add(resize(end, SIZES[n % len(SIZES)]))
            if waiting >= DEPTH // 2 or n % 5 == 0:
                ids += end.completions(1)
    for end, ids in found.items():
        ids += end.completions(ROUNDS - len(ids))
    check("CQ: resized under traffic, errors", errors, {None})
    expected = [(n, OK) for n in range(ROUNDS)]
    for end, side in ((one, "requester"), (other, "responder")):
        check(f"CQ: resized under traffic, {side} sees each completion once, in order", found[end] == expected, True)

    reads = DEPTH // 2
    one.qp.post_recv(receive([segment(requester.mr)]))
    other.qp.post_recv(receive([segment(responder.mr)]))
    for n in range(reads):
        one.qp.post_send(request(e.IBV_WR_RDMA_READ, [segment(requester.mr, 0)], (0, 0), wr_id=n))
    one.qp.post_send(request(e.IBV_WR_SEND, [segment(requester.mr)]))
    other.completions(1)
    # What comes back on a connection comes after the acknowledges, so that all have come when this is acknowledged.
    other.qp.post_send(request(e.IBV_WR_SEND, [segment(responder.mr)]))
    other.completions(1)
    check("CQ: smaller than what it holds", resize(one, 1), "EINVAL")
    check("CQ: no entries", resize(one, 0), "EINVAL")
    check("CQ: more than the device has", resize(one, requester.context.query_device().max_cqe + 1), "EINVAL")
    check("CQ: what it holds after that", len(one.completions(reads + 2)), reads + 2)
    finish()


main()
