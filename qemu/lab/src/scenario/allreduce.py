#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR MIT
"""A ring all-reduce over reliable connections, by message size.

allreduce.py DEVICE RANK ADDRESS...: run it in every guest, with its place in the list of all guests' addresses. The operation is
the exclusive or of the bytes, which Python does at once for a whole chunk. Prints `SIZE MICROSECONDS` for each size, the median of
the rounds, of which each is checked; `done COUNT` when all were done.
"""

import json
import random
import socket
import statistics
import sys
import time

from pyverbs import enums as e
from pyverbs.addr import AHAttr
from pyverbs.cq import CQ, CompChannel
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

PORT = 18600
SIZES = [1 << n for n in (6, 10, 14, 17, 20)]
ROUNDS = 5
# How long a neighbour may take to start: a guard against hangs, not a measurement.
PATIENCE = 120


def pattern(rank, size, turn):
    """The data of a rank, which every other rank can compute too."""
    return random.Random(f"{rank} {size} {turn}").randbytes(size)


def xor(one, other):
    """The exclusive or of two strings of bytes of the same length."""
    return (int.from_bytes(one, "little") ^ int.from_bytes(other, "little")).to_bytes(len(one), "little")


class Neighbour:
    """A queue pair to one of the two neighbours in the ring."""

    def __init__(self, context, pd):
        self.channel = CompChannel(context)
        self.cq = CQ(context, 16, None, self.channel)
        cap = QPCap(max_send_wr=4, max_recv_wr=4, max_send_sge=1, max_recv_sge=1)
        init = QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap, sq_sig_all=1)
        self.qp = QP(pd, init)
        self.lid = context.query_port(1).lid

    def connect(self, stream):
        """Learns of the other side through a TCP connection, and tells it of this one."""
        lines = stream.makefile("rw")
        lines.write(json.dumps([self.lid, self.qp.qp_num]) + "\n")
        lines.flush()
        lid, qpn = json.loads(lines.readline())
        attr = QPAttr(port_num=1)
        attr.qp_access_flags = e.IBV_ACCESS_LOCAL_WRITE
        attr.dest_qp_num = qpn
        attr.path_mtu = e.IBV_MTU_4096
        attr.max_dest_rd_atomic = attr.max_rd_atomic = 1
        attr.min_rnr_timer = 1
        # A second until a packet counts as lost: vCPUs wait for their turn.
        attr.timeout, attr.retry_cnt, attr.rnr_retry = 18, 7, 7
        attr.ah_attr = AHAttr(dlid=lid, port_num=1)
        self.qp.to_rts(attr)
        # Nobody sends before the other side is ready.
        lines.write("ready\n")
        lines.flush()
        assert lines.readline() == "ready\n"

    def wait(self):
        """Waits for one completion."""
        while True:
            for notify in (True, False):
                count, completions = self.cq.poll()
                if count:
                    status = completions[0].status
                    assert status == e.IBV_WC_SUCCESS, f"completion status {status}"
                    return
                if notify:
                    self.cq.req_notify()
            self.channel.get_cq_event(self.cq)
            self.cq.ack_events(1)


class Rank:
    """One member of the ring."""

    def __init__(self, device, rank, addresses):
        self.rank, self.ranks = rank, len(addresses)
        context = Context(name=device)
        pd = PD(context)
        # The data, and behind it a chunk that has come in and is not yet added.
        self.mr = MR(pd, 2 * max(SIZES), e.IBV_ACCESS_LOCAL_WRITE)
        self.after, self.before = Neighbour(context, pd), Neighbour(context, pd)
        with socket.create_server((addresses[rank], PORT)) as server:
            to_next = self.dial(addresses[(rank + 1) % self.ranks])
            from_previous, _ = server.accept()
        # Each connects to the next first, so that of two sides of a connection one begins and one follows.
        with to_next, from_previous:
            if rank == 0:
                self.after.connect(to_next)
                self.before.connect(from_previous)
            else:
                self.before.connect(from_previous)
                self.after.connect(to_next)

    @staticmethod
    def dial(address):
        """Connects as soon as the neighbour listens."""
        end = time.monotonic() + PATIENCE
        while True:
            try:
                return socket.create_connection((address, PORT))
            except ConnectionRefusedError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.1)

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
