#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR MIT
"""What unreliable connections and datagrams do with good and bad requests, on both sides (IBTA vol. 1, 9.8 and 10.3.1).

unreliable.py REQUESTER RESPONDER: as posts.py. What a responder drops it drops without a word: that nothing came is shown by what
is sent afterwards, and is the next to arrive.
"""

import errno
import sys

from posts import FLUSH, LOCAL, OK, SIZE, End, Host, check, finish, named, receive, request, segment
from pyverbs import enums as e
from pyverbs.addr import AH, AHAttr, GlobalRoute
from pyverbs.pyverbs_error import PyverbsRDMAError
from pyverbs.qp import QPAttr
from pyverbs.wr import SGE

QKEY = 0x1234
# What is in front of a datagram in its buffer.
GRH = 40
# Bit of a Q_Key: that of the sender's queue pair is meant.
OWN_QKEY = 1 << 31


def error_of(call):
    """The name of the error that a call ends with, or what it returned."""
    try:
        return call()
    except PyverbsRDMAError as caught:
        return errno.errorcode.get(caught.error_code, caught.error_code)


class Link:
    """Two queue pairs of an unreliable service."""

    def __init__(self, requester, responder, qp_type):
        self.datagrams = qp_type == e.IBV_QPT_UD
        self.one, self.other = End(requester, qp_type), End(responder, qp_type)
        if not self.datagrams:
            self.one.connect(self.other, e.IBV_ACCESS_REMOTE_WRITE, 0)
            self.other.connect(self.one, e.IBV_ACCESS_REMOTE_WRITE, 0)
            return
        self.ah = AH(requester.pd, attr=responder.address())
        for end in (self.one, self.other):
            attr = QPAttr(port_num=1)
            attr.qkey = QKEY
            end.qp.to_rts(attr)

    def wr(self, opcode=e.IBV_WR_SEND, segments=None, remote=None, wr_id=1, qkey=QKEY, ah=None):
        """A request of the first queue pair to the second."""
        wr = request(opcode, segments or [segment(self.one.host.mr)], remote, wr_id)
        if self.datagrams:
            wr.set_wr_ud(ah or self.ah, self.other.qp.qp_num, qkey)
        return wr

    def room(self, length=64, wr_id=11, mr=None):
        """A receive request for a message of `length` bytes."""
        head = GRH if self.datagrams else 0
        return receive([segment(mr or self.other.host.mr, head + length)], wr_id)

    def expect(self, wr):
        """Posts a receive request to the other side. Doorbells of two devices have no order, and what finds no receive request is
        dropped; a device answers a command when it has seen the doorbells before it."""
        self.other.qp.post_recv(wr)
        self.other.state()

    def goes_on(self, name, wr_id=11):
        """What is sent now is the next to arrive, into the receive request `wr_id`."""
        text = f"after {name}"
        here, there = self.one.host.mr, self.other.host.mr
        here.write(text, len(text))
        self.one.qp.post_send(self.wr(segments=[segment(here, len(text))], wr_id=3))
        found = (named(self.one.completions(1)), named(self.other.completions(1)))
        check(f"{name}, what comes after", found, (named([(3, OK)]), named([(wr_id, OK)])))
        head = GRH if self.datagrams else 0
        check(f"{name}, its data", there.read(len(text), head).decode(), text)

    def dropped(self, name, wr):
        """`wr` succeeds here, and the other side does not notice it."""
        self.expect(self.room())
        self.one.qp.post_send(wr)
        check(name, named(self.one.completions(1)), named([(1, OK)]))
        self.goes_on(name)
        check(f"{name}, other side's state", self.other.state(), e.IBV_QPS_RTS)

    def fails_here(self, name, wr, status):
        """`wr` fails here with `status` and stops the send queue alone, which can be started again."""
        self.one.qp.post_recv(receive([segment(self.one.host.mr)], wr_id=21))
        self.one.qp.post_send(wr)
        self.one.qp.post_send(self.wr(wr_id=2))
        check(name, named(self.one.completions(2)), named([(1, status), (2, FLUSH)]))
        check(f"{name}, state", self.one.state(), e.IBV_QPS_SQE)
        attr = QPAttr(qp_state=e.IBV_QPS_RTS, cur_qp_state=e.IBV_QPS_SQE)
        self.one.qp.modify(attr, e.IBV_QP_STATE | e.IBV_QP_CUR_STATE)
        self.expect(self.room())
        self.goes_on(name)


def both(requester, responder, qp_type, name):
    """What both services do."""
    fresh = lambda: Link(requester, responder, qp_type)
    here, there = requester, responder

    link = fresh()
    for n in range(3):
        link.expect(link.room())
        link.goes_on(f"{name}: good {n}")

    link = fresh()
    link.expect(link.room(63))
    link.one.qp.post_send(link.wr())
    check(f"{name}: longer than the receive request", named(link.one.completions(1)), named([(1, OK)]))
    link.goes_on(f"{name}: longer than the receive request")

    link = fresh()
    link.one.qp.post_send(link.wr())
    check(f"{name}: nothing to receive it", named(link.one.completions(1)), named([(1, OK)]))

    link = fresh()
    link.expect(link.room(mr=there.foreign))
    link.expect(link.room(wr_id=12))
    link.one.qp.post_send(link.wr())
    check(f"{name}: received with a key of another PD", named(link.one.completions(1)), named([(1, OK)]))
    expected = [(11, e.IBV_WC_LOC_PROT_ERR), (12, FLUSH)]
    check(f"{name}: received with a key of another PD, other side", named(link.other.completions(2)), named(expected))
    state = link.other.state()
    check(f"{name}: received with a key of another PD, other side's state", state, e.IBV_QPS_ERR)

    protection = e.IBV_WC_LOC_PROT_ERR
    wr = lambda link, segments: link.wr(segments=segments)
    for text, segments in (
        ("key of another PD", [segment(here.foreign)]),
        ("key of memory that is not registered any more", [segment(here.mr, lkey=here.stale_key)]),
        ("runs out of the region", [segment(here.mr, offset=SIZE - 63)]),
    ):
        link = fresh()
        link.fails_here(f"{name}: {text}", wr(link, segments), protection)

    remote = (there.mr.buf, there.mr.rkey)
    forbidden = [e.IBV_WR_RDMA_READ, e.IBV_WR_ATOMIC_FETCH_AND_ADD]
    if link.datagrams:
        forbidden.append(e.IBV_WR_RDMA_WRITE)
    for opcode in forbidden:
        wr = request(opcode, [segment(here.mr, 8)], remote)
        check(f"{name}: operation {opcode} of reliable connections", error_of(lambda: link.one.qp.post_send(wr)), "EINVAL")


def connections(requester, responder):
    """Writes of unreliable connections, which the responder drops if it must not do them."""
    fresh = lambda: Link(requester, responder, e.IBV_QPT_UC)
    there = responder
    write, write_imm = e.IBV_WR_RDMA_WRITE, e.IBV_WR_RDMA_WRITE_WITH_IMM

    link = fresh()
    link.dropped("UC: write, key that there is not", link.wr(write, remote=(there.mr.buf, 0xDEAD00)))
    link = fresh()
    link.dropped("UC: write, region without the right", link.wr(write, remote=(there.silent.buf, there.silent.rkey)))
    link = fresh()
    behind = (there.mr.buf + SIZE - 63, there.mr.rkey)
    link.dropped("UC: write, runs out of the region", link.wr(write, remote=behind))

    link = fresh()
    link.expect(link.room())
    wr = link.wr(write_imm, remote=(there.mr.buf, there.mr.rkey))
    wr.imm_data = 0x01020304
    link.one.qp.post_send(wr)
    check("UC: write with immediate", named(link.one.completions(1)), named([(1, OK)]))
    found = [(wc.wr_id, int(wc.opcode), wc.imm_data, wc.byte_len) for wc in link.other.poll(1)]
    expected = [(11, int(e.IBV_WC_RECV_RDMA_WITH_IMM), 0x01020304, 64)]
    check("UC: write with immediate, other side", found, expected)

    link = fresh()
    long = [segment(requester.mr, SIZE)]
    link.expect(receive([segment(there.mr, SIZE)]))
    link.one.qp.post_send(link.wr(segments=long))
    found = (named(link.one.completions(1)), named(link.other.completions(1)))
    check("UC: several packets", found, (named([(1, OK)]), named([(11, OK)])))


def datagrams(requester, responder):
    """Keys, addresses and lengths of datagrams."""
    fresh = lambda: Link(requester, responder, e.IBV_QPT_UD)

    link = fresh()
    link.dropped("UD: wrong Q_Key", link.wr(qkey=QKEY + 1))
    link = fresh()
    link.expect(link.room())
    link.one.qp.post_send(link.wr(qkey=OWN_QKEY))
    check("UD: Q_Key of the queue pair", named(link.other.completions(1)), named([(11, OK)]))
    link = fresh()
    link.fails_here("UD: longer than the MTU", link.wr(segments=[segment(requester.mr, 4097)]), e.IBV_WC_LOC_LEN_ERR)

    route = GlobalRoute(dgid=responder.context.query_gid(1, 0), sgid_index=0, hop_limit=9, traffic_class=7, flow_label=0xABCDE)
    globally = AHAttr(gr=route, is_global=1, port_num=1, dlid=responder.port.lid, sl=3)
    link = fresh()
    for text, ah, flags in (
        ("without GRH", link.ah, 0),
        ("with GRH", AH(requester.pd, attr=globally), e.IBV_WC_GRH),
    ):
        link.expect(link.room(4096))
        wr = link.wr(e.IBV_WR_SEND_WITH_IMM, [segment(requester.mr, 4096)], ah=ah)
        wr.imm_data = 0x0A0B0C0D
        link.one.qp.post_send(wr)
        check(f"UD: {text}", named(link.one.completions(1)), named([(1, OK)]))
        found = [
            (wc.byte_len, wc.src_qp, wc.slid, wc.sl, wc.wc_flags, wc.imm_data, wc.qp_num) for wc in link.other.poll(1)
        ]
        sl = 3 if flags else 0
        flags |= e.IBV_WC_WITH_IMM
        source = (link.one.qp.qp_num, requester.port.lid)
        expected = [(GRH + 4096, *source, sl, flags, 0x0A0B0C0D, link.other.qp.qp_num)]
        check(f"UD: {text}, other side", found, expected)
    header = responder.mr.read(GRH, 0)
    fields = (header[0] >> 4, header[7], bytes(header[8:24]).hex(), bytes(header[24:40]).hex())
    gid = lambda host: str(host.context.query_gid(1, 0)).replace(":", "")
    check("UD: GRH", fields, (6, 9, gid(requester), gid(responder)))

    bad = {
        "port that there is not": (AHAttr(dlid=1, port_num=2), "EINVAL"),
        "port 0": (AHAttr(dlid=1, port_num=0), "EINVAL"),
        "service level that there is not": (AHAttr(dlid=1, port_num=1, sl=16), "EINVAL"),
    }
    for name, (attr, expected) in bad.items():
        check(f"AH: {name}", error_of(lambda: AH(requester.pd, attr=attr) and None), expected)
    route = GlobalRoute(dgid=responder.context.query_gid(1, 0), sgid_index=9)
    attr = AHAttr(gr=route, is_global=1, port_num=1, dlid=1)
    check("AH: source GID that there is not", error_of(lambda: AH(requester.pd, attr=attr) and None), "EINVAL")


def sizes(requester, responder):
    """The largest requests that the device takes, over a reliable connection."""
    device = requester.context.query_device()
    segments, inline = device.max_sge, 512
    one, other = End(requester, segments=segments, inline=inline), End(responder, segments=segments)
    one.connect(other, LOCAL, 7)
    other.connect(one, LOCAL, 7)
    here, there = requester.mr, responder.mr
    text = "".join(chr(ord("a") + n % 26) for n in range(7 * segments))
    here.write(text, len(text))
    there.write(" " * SIZE, SIZE)
    # Scattered backwards, piece by piece.
    pieces = [SGE(here.buf + 7 * n, 7, here.lkey) for n in range(segments)]
    places = [SGE(there.buf + 7 * (segments - 1 - n), 7, there.lkey) for n in range(segments)]
    other.qp.post_recv(receive(places))
    one.qp.post_send(request(e.IBV_WR_SEND, pieces))
    found = (named(one.completions(1)), named(other.completions(1)))
    check(f"send: {segments} segments", found, (named([(1, OK)]), named([(11, OK)])))
    arrived = there.read(len(text), 0).decode()
    restored = "".join(arrived[7 * n : 7 * n + 7] for n in reversed(range(segments)))
    check(f"send: {segments} segments, all data arrived", restored == text, True)

    text = "0123456789abcdef" * (inline // 16)
    here.write(text, len(text))
    other.qp.post_recv(receive([segment(there, inline)]))
    flags = e.IBV_SEND_SIGNALED | e.IBV_SEND_INLINE
    one.qp.post_send(request(e.IBV_WR_SEND, [segment(here, inline)], flags=flags))
    # It is in the request: what becomes of the memory does not matter.
    here.write("x" * inline, inline)
    found = (named(one.completions(1)), named(other.completions(1)))
    check(f"send: {inline} bytes inline", found, (named([(1, OK)]), named([(11, OK)])))
    check(f"send: {inline} bytes inline, all data arrived", there.read(inline, 0).decode() == text, True)


def main():
    """Tries everything."""
    requester, responder = Host(sys.argv[1]), Host(sys.argv[2])
    both(requester, responder, e.IBV_QPT_UC, "UC")
    both(requester, responder, e.IBV_QPT_UD, "UD")
    connections(requester, responder)
    datagrams(requester, responder)
    sizes(requester, responder)
    finish()


main()
