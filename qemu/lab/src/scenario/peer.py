#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR MIT
"""The kernel's soft-RoCE against the device model's transport: every operation in both directions, every byte compared.

peer.py DEVICE ADDRESS: the RDMA device, and the address of the peer, which runs outside of the guest and does what it is told by
UDP. Prints a line for each case, `ok NAME: FOUND` or `FAIL NAME: FOUND`, and `done COUNT`.
"""

import json
import random
import socket
import sys
import time
from contextlib import contextmanager, nullcontext

from pyverbs import enums as e
from pyverbs.addr import AH, GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPEx, QPInitAttr, QPInitAttrEx
from pyverbs.wr import SGE, RecvWR, SendWR

CONTROL_PORT = 18515
SIZE = 1 << 17
HALF = SIZE // 2
DEPTH = 64
MTU = 1024
QKEY = 0x11111111
# Bytes in front of a datagram.
GRH = 40
PERIOD = 251
# A GID from the IPv4 address; GID 0 is from the link-local one.
GID_INDEX = 1
# Until something counts as lost: a guard against hangs, not a measurement.
PATIENCE = 60
LENGTHS = (1, MTU - 1, MTU, MTU + 1, 3 * MTU + 5, HALF)
MASK = (1 << 64) - 1
# Where soft-RoCE's ATOMIC WRITE goes on a link that loses. req_retry() in rxe_req.c finds the address of a request again for
# READ, WRITE and atomics, and takes 0 for all else: what is repeated is right but for the address, if that is not 0 anyway.
ZERO = 0

OPCODES = {
    "send": (e.IBV_WR_SEND, e.IBV_WR_SEND_WITH_IMM),
    "write": (e.IBV_WR_RDMA_WRITE, e.IBV_WR_RDMA_WRITE_WITH_IMM),
    "read": (e.IBV_WR_RDMA_READ, None),
    "compare-swap": (e.IBV_WR_ATOMIC_CMP_AND_SWP, None),
    "fetch-add": (e.IBV_WR_ATOMIC_FETCH_AND_ADD, None),
}
STATUS = {
    e.IBV_WC_SUCCESS: "Success",
    e.IBV_WC_REM_ACCESS_ERR: "RemoteAccess",
    e.IBV_WC_WR_FLUSH_ERR: "WrFlush",
}

cases = 0
seeds = iter(range(1, 1 << 30))


def check(name, found, expected):
    """Prints the line of a case."""
    global cases
    cases += 1
    word = "ok" if found == expected else "FAIL"
    text = f"{found}" if found == expected else f"{found} instead of {expected}"
    print(f"{word} {name}: {text}", flush=True)


def pattern(seed, length):
    """The bytes that a seed stands for, as the peer makes them."""
    period = bytes((seed + at) % PERIOD for at in range(PERIOD))
    return (period * (length // PERIOD + 1))[:length]


class Remote:
    """The control port of the peer."""

    def __init__(self, address):
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.connect((address, CONTROL_PORT))
        self.socket.settimeout(2)
        self.serial = 0

    def ask(self, op, **arguments):
        """Asks for something; what is answered, by its name."""
        self.serial += 1
        request = json.dumps({"serial": self.serial, "op": op, **arguments}).encode()
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            self.socket.send(request)
            try:
                reply = json.loads(self.socket.recv(1 << 16))
            except TimeoutError:
                continue
            if isinstance(reply, dict) and "error" in reply:
                raise RuntimeError(f"{op}: {reply['error']}")
            return reply[next(iter(reply))] if isinstance(reply, dict) else reply
        raise RuntimeError(f"{op}: no answer")


class Host:
    """The device, and the peer."""

    def __init__(self, name, address):
        self.context = Context(name=name)
        self.pd = PD(self.context)
        self.remote = Remote(address)
        self.route = GlobalRoute(dgid=self.gid(f"::ffff:{address}"), sgid_index=GID_INDEX)

    @staticmethod
    def gid(text):
        """A GID from the text of an IPv6 address."""
        raw = socket.inet_pton(socket.AF_INET6, text).hex()
        return GID(":".join(raw[at : at + 4] for at in range(0, 32, 4)))

    def address(self):
        """The peer's address vector."""
        return AHAttr(gr=self.route, is_global=1, port_num=1)


def gather(poll, enough, before=()):
    """Polls until what was found, with what was found before, is enough, or takes too long."""
    deadline = time.monotonic() + PATIENCE
    found = list(before)
    while not enough(found) and time.monotonic() < deadline:
        found += poll()
    return found


class Link:
    """A queue pair here and one at the peer, connected."""

    SERVICES = {"rc": e.IBV_QPT_RC, "uc": e.IBV_QPT_UC, "ud": e.IBV_QPT_UD}

    def __init__(self, host, service):
        self.host, self.service = host, service
        access = e.IBV_ACCESS_LOCAL_WRITE
        if service != "ud":
            access |= e.IBV_ACCESS_REMOTE_WRITE
        if service == "rc":
            access |= e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_ATOMIC
        self.mr = MR(host.pd, SIZE, access)
        self.cq = CQ(host.context, 4 * DEPTH)
        cap = QPCap(DEPTH, DEPTH, 1, 1, 0)
        init = {"qp_type": self.SERVICES[service], "scq": self.cq, "rcq": self.cq, "cap": cap, "sq_sig_all": 1}
        self.qp = self.extended(init) if service == "rc" else QP(host.pd, QPInitAttr(**init))
        # The sequence numbers wrap soon.
        psn = 0xFFFFFF - random.randrange(64)
        opened = host.remote.ask("open", service=service, qpn=self.qp.qp_num, psn=psn)
        self.peer, self.rkey = opened["qpn"], opened["rkey"]
        self.connect(psn, access)
        self.ah = AH(host.pd, attr=host.address()) if service == "ud" else None

    def extended(self, init):
        """A queue pair that has a call for ATOMIC WRITE."""
        mask = e.IBV_QP_INIT_ATTR_PD | e.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS
        operations = e.IBV_QP_EX_WITH_ATOMIC_WRITE
        attr = QPInitAttrEx(**init, pd=self.host.pd, comp_mask=mask, send_ops_flags=operations)
        return QPEx(self.host.context, attr)

    def connect(self, psn, access):
        """Brings the queue pair to RTS."""
        attr = QPAttr(port_num=1)
        attr.qp_access_flags = access
        attr.qkey = QKEY
        attr.dest_qp_num = self.peer
        attr.path_mtu = e.IBV_MTU_1024
        attr.max_dest_rd_atomic = attr.max_rd_atomic = 4
        attr.min_rnr_timer = 12
        # A second until a packet counts as lost: vCPUs wait for their turn.
        attr.timeout, attr.retry_cnt, attr.rnr_retry = 18, 7, 7
        attr.sq_psn = attr.rq_psn = psn
        attr.ah_attr = self.host.address()
        self.qp.to_rts(attr)

    def ask(self, op, offset=0, length=8, **arguments):
        """Asks the peer about memory of its queue pair."""
        return self.host.remote.ask(op, qpn=self.peer, offset=offset, length=length, **arguments)

    def segment(self, offset, length):
        """A segment of the memory here."""
        return [SGE(self.mr.buf + offset, length, self.mr.lkey)]

    def post(self, verb, offset, length, target=None, atomic=(0, 0), imm=None):
        """Posts a send request here."""
        opcode = OPCODES[verb][imm is not None]
        wr = SendWR(opcode=opcode, num_sge=1, sg=self.segment(offset, length), send_flags=e.IBV_SEND_SIGNALED)
        if imm is not None:
            wr.imm_data = socket.htonl(imm)
        if verb in ("compare-swap", "fetch-add"):
            # The interface has what is compared or added first.
            first, second = atomic if verb == "fetch-add" else atomic[::-1]
            wr.set_wr_atomic(target[1], target[0], first, second)
        elif target:
            wr.set_wr_rdma(target[1], target[0])
        if self.ah:
            wr.set_wr_ud(self.ah, self.peer, QKEY)
        self.qp.post_send(wr)

    def post_extended(self, call, *arguments):
        """Posts a request here by a call of its own."""
        self.qp.wr_start()
        self.qp.wr_id, self.qp.wr_flags = 0, e.IBV_SEND_SIGNALED
        call(*arguments)
        self.qp.wr_complete()

    def post_there(self, verb, offset, length, target=(0, 0), atomic=(0, 0), imm=None):
        """Posts a send request at the peer."""
        self.ask("post", offset, length, opcode=verb, remote=target, atomic=atomic, imm=imm)

    def receive(self, offset, length):
        """Posts a receive request here."""
        self.qp.post_recv(RecvWR(num_sge=1, sg=self.segment(offset, length)))

    def poll(self):
        """Completions here that have come: (status, bytes if it is a receive request, immediate data)."""
        return [self.completion(wc) for wc in self.cq.poll(DEPTH)[1]]

    @staticmethod
    def completion(wc):
        """What a completion says."""
        status = STATUS.get(wc.status, wc.status)
        if not wc.opcode & e.IBV_WC_RECV:
            return status, None, None
        imm = socket.ntohl(wc.imm_data) if wc.wc_flags & e.IBV_WC_WITH_IMM else None
        return status, wc.byte_len, imm

    def poll_there(self):
        """Completions at the peer, as those here."""
        found = self.host.remote.ask("completions", qpn=self.peer)
        return [(c["status"], c["byte_len"] if c["receive"] else None, c["imm"]) for c in found]

    def here(self, count):
        """Waits for `count` completions here."""
        return gather(self.poll, lambda found: len(found) >= count)

    def there(self, count):
        """Waits for `count` completions at the peer."""
        return gather(self.poll_there, lambda found: len(found) >= count)

    def fill(self, offset, length):
        """Writes a new pattern here; its seed."""
        seed = next(seeds)
        self.mr.write(pattern(seed, length), length, offset)
        return seed

    def fill_there(self, offset, length):
        """Writes a new pattern at the peer; its seed."""
        seed = next(seeds)
        self.ask("fill", offset, length, seed=seed)
        return seed

    def differs(self, seed, offset, length):
        """The first byte here that is not as it should be."""
        found, wanted = self.mr.read(length, offset), pattern(seed, length)
        if found == wanted:
            return None
        return next(at for at, (one, other) in enumerate(zip(found, wanted)) if one != other)

    def differs_there(self, seed, offset, length):
        """The first byte at the peer that is not as it should be."""
        return self.ask("compare", offset, length, seed=seed)


def arrived(link, differs):
    """What differs at last: nothing acknowledges a WRITE of an unreliable connection, so that it may still be under way."""
    deadline = time.monotonic() + PATIENCE
    found = differs()
    while found is not None and link.service == "uc" and time.monotonic() < deadline:
        found = differs()
    return found


def transfer(link, name, verb, length, imm=None):
    """One SEND or WRITE from here to the peer, and one back."""
    source, sink = 0, HALF
    head = GRH if link.service == "ud" else 0
    receives = verb == "send" or imm is not None
    expected = ([("Success", None, None)], [("Success", length + head, imm)] if receives else [], None)
    if receives:
        link.ask("receive", sink, length + head)
        link.receive(sink, length + head)
    seed = link.fill(source, length)
    link.post(verb, source, length, (sink, link.rkey) if verb == "write" else None, imm=imm)
    completions = link.here(1), link.there(len(expected[1]))
    differs = arrived(link, lambda: link.differs_there(seed, sink + head, length))
    check(f"{name}, from here", (*completions, differs), expected)
    seed = link.fill_there(source, length)
    target = (link.mr.buf + sink, link.mr.rkey) if verb == "write" else (0, 0)
    link.post_there(verb, source, length, target, imm=imm)
    completions = link.there(1), link.here(len(expected[1]))
    differs = arrived(link, lambda: link.differs(seed, sink + head, length))
    check(f"{name}, from the peer", (*completions, differs), expected)


def read(link, name, length):
    """One READ in each direction."""
    source, sink = HALF, 0
    expected = ([("Success", None, None)], None)
    seed = link.fill_there(source, length)
    link.post("read", sink, length, (source, link.rkey))
    check(f"{name}, from here", (link.here(1), link.differs(seed, sink, length)), expected)
    seed = link.fill(source, length)
    link.post_there("read", sink, length, (link.mr.buf + source, link.mr.rkey))
    check(f"{name}, from the peer", (link.there(1), link.differs_there(seed, sink, length)), expected)


def atomics(link, name):
    """Compare-and-swap that hits, and that misses, and fetch-and-add that wraps."""
    word, result = HALF, 8
    start = random.getrandbits(64)
    cases_ = (
        ("compare-swap", "hit", (0x0123456789ABCDEF, start), 0x0123456789ABCDEF),
        ("compare-swap", "miss", (0, start ^ 1), start),
        ("fetch-add", "wrap", (MASK - 4, 0), (start + MASK - 4) & MASK),
    )
    done = [("Success", None, None)]
    for verb, what, operands, after in cases_:
        link.ask("poke", word, value=start)
        link.post(verb, result, 8, (word, link.rkey), operands)
        found = (link.here(1), int.from_bytes(link.mr.read(8, result), "little"), link.ask("peek", word))
        check(f"{name} {verb}, {what}, from here", found, (done, start, after))
        link.mr.write(start.to_bytes(8, "little"), 8, word)
        link.post_there(verb, result, 8, (link.mr.buf + word, link.mr.rkey), operands)
        found = (link.there(1), link.ask("peek", result), int.from_bytes(link.mr.read(8, word), "little"))
        check(f"{name} {verb}, {what}, from the peer", found, (done, start, after))


def atomic_writes(link, name, target, trouble=nullcontext):
    """ATOMIC WRITE, which stores eight bytes at once: at `target` of the peer, and here.

    Its sibling FLUSH is not tried: soft-RoCE's table of opcodes says of FLUSH that the payload begins at the BTH, so that it
    counts the headers twice into the ICRC. It understands itself, and nobody else.
    """
    word, source = HALF, 8
    done = [("Success", None, None)]
    for value in (0x0123456789ABCDEF, 0):
        link.ask("poke", target, value=MASK)
        data = value.to_bytes(8, "little")
        with trouble(link.host):
            link.post_extended(link.qp.wr_atomic_write, link.rkey, target, data)
        check(f"{name} atomic write, from here", (link.here(1), link.ask("peek", target)), (done, value))
        link.mr.write(MASK.to_bytes(8, "little"), 8, word)
        link.ask("poke", source, value=value)
        with trouble(link.host):
            link.post_there("atomic-write", source, 8, (link.mr.buf + word, link.mr.rkey))
        found = (link.there(1), int.from_bytes(link.mr.read(8, word), "little"))
        check(f"{name} atomic write, from the peer", found, (done, value))


def queued(link, name, verb):
    """Many messages at once in both directions."""
    count, length = 16, 3 * MTU + 5
    at = [index * 4 * MTU for index in range(count)]
    for offset in at:
        if verb == "send":
            link.receive(HALF + offset, length)
            link.ask("receive", HALF + offset, length)
    sent = [link.fill(offset, length) for offset in at]
    sent_there = [link.fill_there(offset, length) for offset in at]
    for offset in at:
        link.post(verb, offset, length, (HALF + offset, link.rkey) if verb == "write" else None)
        target = (link.mr.buf + HALF + offset, link.mr.rkey) if verb == "write" else (0, 0)
        link.post_there(verb, offset, length, target)
    sides = 2 if verb == "send" else 1
    statuses = {status for status, _, _ in link.here(sides * count) + link.there(sides * count)}
    wrong = [n for n in range(count) if link.differs_there(sent[n], HALF + at[n], length) is not None]
    wrong += [n for n in range(count) if link.differs(sent_there[n], HALF + at[n], length) is not None]
    check(f"{name} {count} {verb}s at once, both ways", (statuses, wrong), ({"Success"}, []))


def not_ready(host, name):
    """Sends that find no receive request at first."""
    link = Link(host, "rc")
    length = 100
    seed = link.fill(0, length)
    link.post("send", 0, length)
    # A few RNR NAKs.
    time.sleep(0.05)
    link.ask("receive", HALF, length)
    found = (link.here(1), link.there(1), link.differs_there(seed, HALF, length))
    done, received = [("Success", None, None)], [("Success", length, None)]
    check(f"{name} send, receiver not ready, from here", found, (done, received, None))
    seed = link.fill_there(0, length)
    link.post_there("send", 0, length)
    time.sleep(0.05)
    link.receive(HALF, length)
    found = (link.there(1), link.here(1), link.differs(seed, HALF, length))
    check(f"{name} send, receiver not ready, from the peer", found, (done, received, None))


def refused(host, name):
    """Keys that the other side does not know.

    Only on a link that loses nothing: a responder sends its NAK once and is in error then (IBTA 9.9.3), so that a requester
    whose NAK is lost hears nothing any more; soft-RoCE takes 7 retries for no limit and would ask for ever.
    """
    for verb in ("write", "read"):
        link = Link(host, "rc")
        link.post(verb, 0, 8, (0, link.rkey ^ 0x100))
        check(f"{name} {verb}, bad key, from here", [c[0] for c in link.here(1)], ["RemoteAccess"])
        link = Link(host, "rc")
        link.post_there(verb, 0, 8, (link.mr.buf, link.mr.rkey ^ 0x100))
        check(f"{name} {verb}, bad key, from the peer", [c[0] for c in link.there(1)], ["RemoteAccess"])


@contextmanager
def lost_at_first(host):
    """What is posted meanwhile, the link loses until one packet is lost."""
    hits = lambda: host.remote.ask("statistics")["faults"]
    before = hits()
    host.remote.ask("faults", faults={"drop": 1.0})
    yield
    gather(lambda: [hits()], lambda found: found and found[-1] > before)
    host.remote.ask("faults", faults={})


def reliable(host, name, rounds, target):
    """All of RC, with ATOMIC WRITE at `target` of the peer."""
    link = Link(host, "rc")
    for length in LENGTHS:
        read(link, f"{name} read, {length} bytes", length)
    for verb in ("send", "write"):
        for length in LENGTHS:
            transfer(link, f"{name} {verb}, {length} bytes", verb, length)
        transfer(link, f"{name} {verb} with immediate", verb, MTU + 1, imm=0x01020304)
    for number in range(rounds):
        atomics(link, f"{name} round {number},")
        atomic_writes(link, f"{name} round {number},", target)
        for verb in ("send", "write"):
            queued(link, f"{name} round {number},", verb)
    not_ready(host, name)


def unreliable(host):
    """All of UC and UD, on a link that loses nothing."""
    link = Link(host, "uc")
    for verb in ("send", "write"):
        for length in LENGTHS:
            transfer(link, f"UC {verb}, {length} bytes", verb, length)
        transfer(link, f"UC {verb} with immediate", verb, MTU + 1, imm=0x01020304)
    link = Link(host, "ud")
    for length in (1, MTU - 1, MTU):
        transfer(link, f"UD send, {length} bytes", "send", length)
    transfer(link, "UD send with immediate", "send", 100, imm=0x01020304)


def survivors(seeds_, slots, differs):
    """Which messages are in the slots, in their order; None for what is none of them or out of order."""
    left = iter(enumerate(seeds_))
    return [next((n for n, seed in left if differs(seed, slot) is None), None) for slot in slots]


def lossy(host, service, length):
    """Messages of which some are lost: what arrives is whole, in order, and comes once."""
    link = Link(host, service)
    head = GRH if service == "ud" else 0
    count, slot = 32, 2 * MTU
    at = [index * slot for index in range(count)]
    for offset in at:
        link.receive(HALF + offset, slot)
        link.ask("receive", HALF + offset, slot)
    sent = [link.fill(offset, length) for offset in at]
    sent_there = [link.fill_there(offset, length) for offset in at]
    host.remote.ask("faults", faults={"drop": 0.2})
    for offset in at[:-1]:
        link.post("send", offset, length)
        link.post_there("send", offset, length)
    # What is unreliable completes when it was sent.
    before = gather(link.poll, lambda found: sum(c[1] is None for c in found) == count - 1)
    # The last one arrives, and with it is known which others have not.
    host.remote.ask("faults", faults={})
    link.post("send", at[-1], length)
    link.post_there("send", at[-1], length)
    total = 0
    for side, poll, differs, seeds_, before_ in (
        ("at the peer", link.poll_there, link.differs_there, sent, ()),
        ("here", link.poll, link.differs, sent_there, before),
    ):
        receives = lambda found: [c for c in found if c[1] is not None]
        place = lambda n: HALF + at[n] + head
        is_last = lambda n: n >= 0 and differs(seeds_[-1], place(n), length) is None
        found = gather(poll, lambda found: is_last(len(receives(found)) - 1), before_)
        got = receives(found)
        whole = survivors(seeds_, map(place, range(len(got))), lambda seed, offset: differs(seed, offset, length))
        total += len(got)
        name = f"{service.upper()} with loss, {len(got)} of {count} sends"
        check(f"{name} arrived {side}, whole", (None in whole, set(got)), (False, {("Success", length + head, None)}))
    check(f"{service.upper()} with loss, some sends are lost", 2 < total < 2 * count, True)


def main():
    """Tries everything."""
    random.seed(1)
    host = Host(sys.argv[1], sys.argv[2])
    reliable(host, "RC", 1, HALF)
    refused(host, "RC")
    atomic_writes(Link(host, "rc"), "RC, lost at first,", ZERO, lost_at_first)
    unreliable(host)
    loss = {"drop": 0.01, "duplicate": 0.01, "reorder": 0.01, "reorder_ns": 2000000}
    host.remote.ask("faults", faults=loss)
    reliable(host, "RC with loss", 6, ZERO)
    lossy(host, "uc", MTU + 100)
    lossy(host, "ud", MTU - 100)
    host.remote.ask("faults", faults={})
    found = host.remote.ask("statistics")
    print(json.dumps(found))
    check("packets whose ICRC is wrong", found["bad_icrc"], 0)
    check("packets that were hit and sent again", found["faults"] > 50 and found["retransmits"] > 0, True)
    print(f"done {cases}", flush=True)


main()
