#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR MIT
"""A program that forks while the device uses its memory: children have copies, the device stays with the parent.

forks.py REQUESTER RESPONDER: as posts.py. With RDMAV_FORK_SAFE set the library asks the kernel to spare its memory (ibv_fork_init(3)).
"""

import os
import sys

from posts import LOCAL, OK, SIZE, End, Host, check, finish, named, receive, request, segment
from pyverbs import enums as e

ROUNDS = 3


def busy_child(here, there):
    """A child that writes over all it can reach, and stays until it is told to end by what this returns."""
    reader, writer = os.pipe()
    done, say_done = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        for region in (here, there):
            region.write("x" * SIZE, SIZE)
        os.write(say_done, b"!")
        os.read(reader, 1)
        os._exit(0)
    os.close(reader)
    os.read(done, 1)
    return child, writer


def main():
    """Sends while children are there."""
    requester, responder = Host(sys.argv[1]), Host(sys.argv[2])
    one, other = End(requester), End(responder)
    one.connect(other, LOCAL, 7)
    other.connect(one, LOCAL, 7)
    here, there = requester.mr, responder.mr
    how = "spared" if "RDMAV_FORK_SAFE" in os.environ else "copied"
    for n in range(ROUNDS):
        # Half of it is posted before the child comes.
        other.qp.post_recv(receive([segment(there)]))
        child, end_child = busy_child(here, there) if how == "copied" else (os.fork(), None)
        if child == 0:
            os._exit(0)
        text = f"message {n}, memory {how}"
        here.write(text, len(text))
        one.qp.post_send(request(e.IBV_WR_SEND, [segment(here, len(text))]))
        found = (named(one.completions(1)), named(other.completions(1)), there.read(len(text), 0).decode())
        check(f"fork, memory {how}, round {n}", found, (named([(1, OK)]), named([(11, OK)]), text))
        if end_child:
            os.close(end_child)
        status = os.waitpid(child, 0)[1]
        check(f"fork, memory {how}, end of child {n}", status, 0)
    finish()


main()
