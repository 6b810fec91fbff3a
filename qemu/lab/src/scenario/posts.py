#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Work requests that must fail, each with its completion status on both sides (IBTA vol. 1, 9.7.5.2 and 9.9).

posts.py REQUESTER RESPONDER: the names of two RDMA devices that reach each other, or twice the same one. Prints a line for each
case, `ok NAME: FOUND` or `FAIL NAME: FOUND`, and `done COUNT`.
"""

import errno
import sys
import time

from pyverbs import enums as e
from pyverbs.addr import AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsRDMAError
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

SIZE = 8192
DEPTH = 8
SEGMENTS = 4
INLINE = 64
# Until something counts as lost: a guard against hangs, not a measurement.
PATIENCE = 30

LOCAL = e.IBV_ACCESS_LOCAL_WRITE
REMOTE = e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_ATOMIC
ALL = LOCAL | REMOTE

STATUS = {
    value: name
    for name, value in vars(e).items()
    if name.startswith("IBV_WC_")
    and name[7:]
    in (
        "SUCCESS LOC_LEN_ERR LOC_QP_OP_ERR LOC_PROT_ERR WR_FLUSH_ERR BAD_RESP_ERR LOC_ACCESS_ERR REM_INV_REQ_ERR "
        "REM_ACCESS_ERR REM_OP_ERR RETRY_EXC_ERR RNR_RETRY_EXC_ERR"
    ).split()
}
OK = e.IBV_WC_SUCCESS
FLUSH = e.IBV_WC_WR_FLUSH_ERR

cases = 0


def check(name, found, expected):
    """Prints the line of a case."""
    global cases
    cases += 1
    word = "ok" if found == expected else "FAIL"
    text = f"{found}" if found == expected else f"{found} instead of {expected}"
    print(f"{word} {name}: {text}", flush=True)


def named(completions):
    """Completions as (request, status by name)."""
    return [(wr_id, STATUS.get(status, status)) for wr_id, status in completions]


class Host:
    """A device with memory of several kinds."""

    def __init__(self, name):
        self.context = Context(name=name)
        self.port = self.context.query_port(1)
        self.pd = PD(self.context)
        self.mr = MR(self.pd, SIZE, ALL)
        self.silent = MR(self.pd, SIZE, LOCAL)
        self.constant = MR(self.pd, SIZE, 0)
        self.foreign = MR(PD(self.context), SIZE, ALL)
        gone = MR(self.pd, SIZE, ALL)
        self.stale_key = gone.lkey
        gone.close()

    def address(self):
        """The way to this device's port."""
        if self.port.link_layer == e.IBV_LINK_LAYER_ETHERNET:
            route = GlobalRoute(dgid=self.context.query_gid(1, 1), sgid_index=1)
            return AHAttr(gr=route, is_global=1, port_num=1)
        return AHAttr(dlid=self.port.lid, port_num=1)


class End:
    """One end of a connection."""

    def __init__(self, host, qp_type=e.IBV_QPT_RC, segments=SEGMENTS, inline=INLINE):
        self.host = host
        self.cq = self.make_cq()
        cap = QPCap(DEPTH, DEPTH, segments, segments, inline)
        init = QPInitAttr(qp_type=qp_type, scq=self.cq, rcq=self.cq, cap=cap, sq_sig_all=1)
        self.qp = QP(host.pd, init)

    def make_cq(self):
        """The completion queue of both directions."""
        return CQ(self.host.context, 4 * DEPTH)

    def connect(self, other, access, rnr_retry):
        """Brings the queue pair to RTS."""
        attr = QPAttr(port_num=1)
        attr.qp_access_flags = access
        attr.dest_qp_num = other.qp.qp_num
        attr.path_mtu = e.IBV_MTU_1024
        attr.max_dest_rd_atomic = attr.max_rd_atomic = 1
        attr.min_rnr_timer = 12
        # A second until a packet counts as lost: vCPUs wait for their turn.
        attr.timeout, attr.retry_cnt, attr.rnr_retry = 18, 7, rnr_retry
        attr.ah_attr = other.host.address()
        self.qp.to_rts(attr)

    def state(self):
        """State of the queue pair as the device says it."""
        attr, _ = self.qp.query(e.IBV_QP_STATE)
        return attr.cur_qp_state if attr.cur_qp_state else attr.qp_state

    def completions(self, count):
        """Waits for `count` completions, and for none that is one too many."""
        return [(wc.wr_id, wc.status) for wc in self.poll(count)]

    def poll(self, count):
        """As `completions`, with all that they say."""
        found = []
        deadline = time.monotonic() + PATIENCE
        while len(found) < count and time.monotonic() < deadline:
            found += self.cq.poll(DEPTH)[1]
        return found + self.cq.poll(DEPTH)[1]


class Connection:
    """Two connected queue pairs.

    Doorbells of two devices are not ordered: the device that sends may be faster than the one that gets the receive request.
    So an RNR NAK is retried for ever (7).
    """

    def __init__(self, requester, responder, access=REMOTE, rnr_retry=7):
        self.one, self.other = End(requester), End(responder)
        self.one.connect(self.other, REMOTE, rnr_retry)
        self.other.connect(self.one, access, rnr_retry)


def segment(mr, length=64, offset=0, lkey=None):
    """A data segment."""
    return SGE(mr.buf + offset, length, mr.lkey if lkey is None else lkey)


def request(opcode, segments, remote=None, wr_id=1, flags=e.IBV_SEND_SIGNALED):
    """A send request; `remote` is an address and a key."""
    wr = SendWR(wr_id=wr_id, opcode=opcode, num_sge=len(segments), sg=segments, send_flags=flags)
    if opcode == e.IBV_WR_ATOMIC_FETCH_AND_ADD:
        address, rkey = remote
        wr.set_wr_atomic(rkey, address, 1, 0)
    elif remote:
        address, rkey = remote
        wr.set_wr_rdma(rkey, address)
    return wr


def receive(segments, wr_id=11):
    """A receive request."""
    return RecvWR(wr_id=wr_id, num_sge=len(segments), sg=segments)


class Trial:
    """Tries requests on a fresh connection, beside one that must go on working."""

    def __init__(self, requester, responder):
        self.requester, self.responder = requester, responder
        self.bystander = Connection(requester, responder)
        self.round = 0

    def refused(self, name, wr, status, receives=(), responses=(), **connection):
        """`wr` fails with `status`, and what is posted behind it is flushed; the other side's receives end with `responses`."""
        link = Connection(self.requester, self.responder, **connection)
        for recv in receives:
            link.other.qp.post_recv(recv)
        link.one.qp.post_recv(receive([segment(self.requester.mr)], wr_id=21))
        link.one.qp.post_send(wr)
        link.one.qp.post_send(request(e.IBV_WR_SEND, [segment(self.requester.mr)], wr_id=2))
        found = link.one.completions(3)
        expected = [(1, status), (2, FLUSH), (21, FLUSH)]
        check(name, named(sorted(found)), named(expected))
        check(f"{name}, state", link.one.state(), e.IBV_QPS_ERR)
        remote = status in (e.IBV_WC_REM_ACCESS_ERR, e.IBV_WC_REM_INV_REQ_ERR, e.IBV_WC_REM_OP_ERR)
        found = link.other.completions(len(responses))
        check(f"{name}, other side", named(found), named(responses))
        check(f"{name}, other side's state", link.other.state(), e.IBV_QPS_ERR if remote else e.IBV_QPS_RTS)
        self.goes_on(name)

    def succeeds(self, name, wr, receives=(), responses=()):
        """`wr` succeeds."""
        link = Connection(self.requester, self.responder)
        for recv in receives:
            link.other.qp.post_recv(recv)
        link.one.qp.post_send(wr)
        check(name, named(link.one.completions(1)), named([(1, OK)]))
        check(f"{name}, other side", named(link.other.completions(len(responses))), named(responses))

    def not_posted(self, name, wr, error):
        """`wr` is not even posted; the connection goes on."""
        link = Connection(self.requester, self.responder)
        try:
            link.one.qp.post_send(wr)
            found = None
        except PyverbsRDMAError as caught:
            found = errno.errorcode.get(caught.error_code, caught.error_code)
        check(name, found, error)
        self.exchange(f"{name}, goes on", link)

    def goes_on(self, name):
        """The bystander still sends, and what arrives is what was sent."""
        self.exchange(f"{name}, another connection", self.bystander)

    def exchange(self, name, link):
        """Sends something new and compares it."""
        self.round += 1
        text = f"message {self.round:6}"
        self.requester.mr.write(text, len(text))
        self.responder.mr.write(" " * len(text), len(text))
        link.other.qp.post_recv(receive([segment(self.responder.mr)]))
        link.one.qp.post_send(request(e.IBV_WR_SEND, [segment(self.requester.mr, len(text))]))
        status = (named(link.one.completions(1)), named(link.other.completions(1)))
        arrived = self.responder.mr.read(len(text), 0).decode() == text
        check(name, (status, arrived), ((named([(1, OK)]), named([(11, OK)])), True))


def local_faults(trial):
    """Requests whose own memory is not what it should be."""
    here, status = trial.requester, e.IBV_WC_LOC_PROT_ERR
    cases_ = {
        "key of another PD": [segment(here.foreign)],
        "key that there is not": [segment(here.mr, lkey=0xDEAD00)],
        "key with another variant": [segment(here.mr, lkey=here.mr.lkey ^ 0xFF)],
        "key of memory that is not registered any more": [segment(here.mr, lkey=here.stale_key)],
        "address behind the region": [segment(here.mr, offset=SIZE)],
        "address before the region": [segment(here.mr, offset=-1)],
        "runs out of the region": [segment(here.mr, offset=SIZE - 63)],
        "second segment out of the region": [segment(here.mr), segment(here.mr, offset=SIZE)],
        "far larger than the region": [segment(here.mr, length=1 << 29)],
    }
    waiting = lambda: [receive([segment(trial.responder.mr)])]
    for name, segments in cases_.items():
        trial.refused(f"send: {name}", request(e.IBV_WR_SEND, segments), status, waiting())
    target = (trial.responder.mr.buf, trial.responder.mr.rkey)
    wr = request(e.IBV_WR_RDMA_READ, [segment(here.constant)], target)
    trial.refused("read: into memory that may not be written", wr, status)
    long = [segment(here.mr, length=0x80000000), segment(here.mr, length=0x80000000)]
    trial.refused("send: longer than a message", request(e.IBV_WR_SEND, long), e.IBV_WC_LOC_LEN_ERR, waiting())


def remote_faults(trial):
    """Requests that the other side refuses."""
    here, there = trial.requester, trial.responder
    status = e.IBV_WC_REM_ACCESS_ERR
    flushed = [(11, FLUSH)]

    def refused(name, opcode, remote, length=64, status=status, **more):
        wr = request(opcode, [segment(here.mr, length)], remote)
        trial.refused(name, wr, status, [receive([segment(there.mr)])], flushed, **more)

    write, read, atomic = e.IBV_WR_RDMA_WRITE, e.IBV_WR_RDMA_READ, e.IBV_WR_ATOMIC_FETCH_AND_ADD
    for verb, opcode in (("write", write), ("read", read)):
        refused(f"{verb}: key that there is not", opcode, (there.mr.buf, 0xDEAD00))
        refused(f"{verb}: key of another PD", opcode, (there.mr.buf, there.foreign.rkey))
        refused(f"{verb}: key of memory that is not registered any more", opcode, (there.mr.buf, there.stale_key))
        refused(f"{verb}: region without the right", opcode, (there.silent.buf, there.silent.rkey))
        refused(f"{verb}: address behind the region", opcode, (there.mr.buf + SIZE, there.mr.rkey))
        refused(f"{verb}: runs out of the region", opcode, (there.mr.buf + SIZE - 63, there.mr.rkey))
        refused(f"{verb}: wraps around", opcode, (2**64 - 32, there.mr.rkey))
    refused("write: several packets, the last out of the region", write, (there.mr.buf + 4096, there.mr.rkey), 4097)
    refused("atomic: region without the right", atomic, (there.silent.buf, there.silent.rkey), 8)
    refused("atomic: not aligned", atomic, (there.mr.buf + 4, there.mr.rkey), 8, status=e.IBV_WC_REM_INV_REQ_ERR)
    for verb, opcode, length in (("write", write, 64), ("read", read, 64), ("atomic", atomic, 8)):
        name = f"{verb}: queue pair without the right"
        refused(name, opcode, (there.mr.buf, there.mr.rkey), length, status=e.IBV_WC_REM_INV_REQ_ERR, access=0)


def receive_faults(trial):
    """Receive requests that are not fit for what comes."""
    here, there = trial.requester, trial.responder

    def refused(name, segments, mine, theirs):
        wr = request(e.IBV_WR_SEND, [segment(here.mr)])
        receives = [receive(segments), receive([segment(there.mr)], wr_id=12)]
        trial.refused(name, wr, mine, receives, [(11, theirs), (12, FLUSH)])

    operation, protection = e.IBV_WC_REM_OP_ERR, e.IBV_WC_LOC_PROT_ERR
    refused("receive: too small", [segment(there.mr, 63)], e.IBV_WC_REM_INV_REQ_ERR, e.IBV_WC_LOC_LEN_ERR)
    refused("receive: no room at all", [segment(there.mr, 0)], e.IBV_WC_REM_INV_REQ_ERR, e.IBV_WC_LOC_LEN_ERR)
    refused("receive: key of another PD", [segment(there.foreign)], operation, protection)
    refused("receive: address behind the region", [segment(there.mr, offset=SIZE)], operation, protection)
    refused("receive: memory that may not be written", [segment(there.constant)], operation, protection)
    wr = request(e.IBV_WR_SEND, [segment(here.mr)])
    trial.refused("send: nothing to receive it", wr, e.IBV_WC_RNR_RETRY_EXC_ERR, rnr_retry=0)


def edges(trial):
    """What is odd and allowed."""
    here, there = trial.requester, trial.responder
    received = [(11, OK)]
    waiting = lambda: [receive([segment(there.mr)])]
    trial.succeeds("send: exactly what fits", request(e.IBV_WR_SEND, [segment(here.mr)]), waiting(), received)
    # pyverbs posts nothing without a segment.
    empty = lambda: [segment(here.mr, 0)]
    # IBTA 9.7.4.1.5: no R_Key check for a length of zero.
    trial.succeeds("send: nothing", request(e.IBV_WR_SEND, empty()), waiting(), received)
    trial.succeeds("write: nothing, with no key", request(e.IBV_WR_RDMA_WRITE, empty(), (0, 0xDEAD00)))
    trial.succeeds("read: nothing, with no key", request(e.IBV_WR_RDMA_READ, empty(), (0, 0xDEAD00)))
    end = (there.mr.buf + SIZE - 64, there.mr.rkey)
    trial.succeeds("write: up to the end of the region", request(e.IBV_WR_RDMA_WRITE, [segment(here.mr)], end))


def not_posted(trial):
    """Requests that the library refuses."""
    here = trial.requester
    many = [segment(here.mr, 1)] * (SEGMENTS + 1)
    trial.not_posted("post: too many segments", request(e.IBV_WR_SEND, many), "EINVAL")
    flags = e.IBV_SEND_SIGNALED | e.IBV_SEND_INLINE
    long = [segment(here.mr, 4096)]
    trial.not_posted("post: too much inline data", request(e.IBV_WR_SEND, long, flags=flags), "EINVAL")
    trial.not_posted("post: an operation of other queue pairs", request(e.IBV_WR_TSO, [segment(here.mr)]), "EINVAL")


def finish():
    """Says that all cases were tried."""
    print(f"done {cases}", flush=True)


def main():
    """Tries everything."""
    trial = Trial(Host(sys.argv[1]), Host(sys.argv[2]))
    trial.goes_on("before")
    for part in (edges, not_posted, local_faults, remote_faults, receive_faults):
        part(trial)
    finish()


if __name__ == "__main__":
    main()
