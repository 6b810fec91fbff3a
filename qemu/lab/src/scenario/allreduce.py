#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR MIT
"""A ring all-reduce over reliable connections, by message size.

allreduce.py DEVICE RANK ADDRESS...: run it in every guest, with its place in the list of all guests' addresses. The operation is
the exclusive or of the bytes, which Python does at once for a whole chunk. Prints `SIZE MICROSECONDS` for each size, the median of
the rounds, of which each is checked; `done COUNT` when all were done.
"""

import random
import socket
import statistics
import sys
import time

from connection import PORT, Connection, dial
from pyverbs import enums as e
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.wr import SGE, RecvWR, SendWR

SIZES = [1 << n for n in (6, 10, 14, 17, 20)]
ROUNDS = 5


def pattern(rank, size, turn):
    """The data of a rank, which every other rank can compute too."""
    return random.Random(f"{rank} {size} {turn}").randbytes(size)


def xor(one, other):
    """The exclusive or of two strings of bytes of the same length."""
    return (int.from_bytes(one, "little") ^ int.from_bytes(other, "little")).to_bytes(len(one), "little")


class Rank:
    """One member of the ring."""

    def __init__(self, device, rank, addresses):
        self.rank, self.ranks = rank, len(addresses)
        context = Context(name=device)
        pd = PD(context)
        # The data, and behind it a chunk that has come in and is not yet added.
        self.mr = MR(pd, 2 * max(SIZES), e.IBV_ACCESS_LOCAL_WRITE)
        self.after, self.before = Connection(context, pd), Connection(context, pd)
        with socket.create_server((addresses[rank], PORT)) as server:
            to_next = dial(addresses[(rank + 1) % self.ranks])
            from_previous, _ = server.accept()
        # Each connects to the next first, so that of two sides of a connection one begins and one follows.
        with to_next, from_previous:
            if rank == 0:
                self.after.connect(to_next.makefile("rw"))
                self.before.connect(from_previous.makefile("rw"))
            else:
                self.before.connect(from_previous.makefile("rw"))
                self.after.connect(to_next.makefile("rw"))

    def sge(self, offset, length):
        """A part of the memory."""
        return SGE(self.mr.buf + offset, length, self.mr.lkey)

    def exchange(self, out, into, length):
        """Sends a chunk to the next rank while one comes from the previous."""
        self.before.qp.post_recv(RecvWR(num_sge=1, sg=[self.sge(into, length)]))
        self.after.qp.post_send(SendWR(num_sge=1, sg=[self.sge(out, length)], opcode=e.IBV_WR_SEND))
        self.before.wait()
        self.after.wait()

    def reduce(self, size):
        """The data becomes that of all ranks."""
        length, scratch = size // self.ranks, max(SIZES)
        place = lambda index: index % self.ranks * length
        for step in range(self.ranks - 1):
            self.exchange(place(self.rank - step), scratch, length)
            target = place(self.rank - step - 1)
            total = xor(self.mr.read(length, target), self.mr.read(length, scratch))
            self.mr.write(total, length, target)
        for step in range(self.ranks - 1):
            self.exchange(place(self.rank + 1 - step), place(self.rank - step), length)

    def run(self, size):
        """Microseconds of the rounds of one size; each is checked."""
        times = []
        for turn in range(ROUNDS):
            self.mr.write(pattern(self.rank, size, turn), size)
            wanted = pattern(0, size, turn)
            for rank in range(1, self.ranks):
                wanted = xor(wanted, pattern(rank, size, turn))
            start = time.monotonic()
            self.reduce(size)
            times.append((time.monotonic() - start) * 1e6)
            assert self.mr.read(size, 0) == wanted, f"{size} bytes, round {turn}: the result is wrong"
        return statistics.median(times)


def main():
    device, rank, *addresses = sys.argv[1:]
    member = Rank(device, int(rank), addresses)
    for size in SIZES:
        size -= size % (8 * len(addresses))
        print(f"{size} {member.run(size):.1f}", flush=True)
    print(f"done {len(SIZES)}")


main()
