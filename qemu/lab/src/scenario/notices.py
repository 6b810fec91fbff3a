#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Completion events: for which completions a program is woken that has asked for one (ibv_req_notify_cq(3)).

notices.py REQUESTER RESPONDER: as posts.py.
"""

import os
import select
import sys

from posts import DEPTH, FLUSH, OK, PATIENCE, REMOTE, End, Host, check, finish, named, receive, request, segment
from pyverbs import enums as e
from pyverbs.cq import CQ, CompChannel

SOLICITED = e.IBV_SEND_SIGNALED | e.IBV_SEND_SOLICITED


def channels():
    """Descriptors of completion channels."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            if "infinibandevent" in os.readlink(f"/proc/self/fd/{name}"):
                found.add(int(name))
        except FileNotFoundError:
            # That of the listing.
            pass
    return found


class Sleeper(End):
    """An end that waits for events."""

    def make_cq(self):
        before = channels()
        self.channel = CompChannel(self.host.context)
        (self.descriptor,) = channels() - before
        return CQ(self.host.context, 4 * DEPTH, channel=self.channel)

    def arm(self, solicited_only):
        """Asks for an event; when this returns, the device has the request."""
        self.cq.req_notify(solicited_only)
        self.state()

    def is_woken(self, seconds=PATIENCE):
        """Waits for one event; whether it came."""
        readable, _, _ = select.select([self.descriptor], [], [], seconds)
        if readable:
            self.channel.get_cq_event(self.cq)
            self.cq.ack_events(1)
        return bool(readable)


class Pair:
    """A requester, and a responder that sleeps."""

    def __init__(self, requester, responder):
        self.one, self.other = End(requester), Sleeper(responder)
        self.one.connect(self.other, REMOTE, 7)
        self.other.connect(self.one, REMOTE, 7)

    def send(self, flags=e.IBV_SEND_SIGNALED, opcode=e.IBV_WR_SEND):
        """Sends a message; it has been received when this returns, by the device at least."""
        mr = self.other.host.mr
        self.other.qp.post_recv(receive([segment(mr)]))
        self.one.qp.post_send(request(opcode, [segment(self.one.host.mr)], (mr.buf, mr.rkey), flags=flags))
        if self.one.completions(1) != [(1, OK)]:
            raise RuntimeError("a message was not sent")
        # An event that the device has raised is there by the time that it executes a command.
        self.other.state()


def solicited(pair):
    """Who waits for solicited completions sleeps on at others."""
    pair.other.arm(True)
    pair.send()
    check("solicited only: woken by a message that is not", pair.other.is_woken(0), False)
    pair.send(SOLICITED)
    check("solicited only: woken by one that is", pair.other.is_woken(), True)
    check("solicited only: completions", len(pair.other.completions(2)), 2)
    pair.other.arm(True)
    pair.send(SOLICITED, e.IBV_WR_RDMA_WRITE_WITH_IMM)
    check("solicited only: woken by a write with immediate data", pair.other.is_woken(), True)
    pair.other.completions(1)
    pair.other.arm(True)
    pair.send()
    pair.other.arm(False)
    check("solicited only, then any: woken by what came between", pair.other.is_woken(0), False)
    pair.send()
    check("solicited only, then any: woken by what came later", pair.other.is_woken(), True)
    pair.other.completions(2)


def existing(pair):
    """Completions that are there when the event is asked for raise none, and those that come do."""
    pair.other.arm(False)
    pair.send()
    check("next: woken", pair.other.is_woken(), True)
    pair.other.arm(False)
    check("next: woken again by what is not read yet", pair.other.is_woken(0), False)
    pair.send()
    check("next: woken by what comes", pair.other.is_woken(), True)
    pair.send()
    check("next: woken without having asked", pair.other.is_woken(0), False)
    check("next: completions", len(pair.other.completions(3)), 3)


def failed(pair):
    """An error wakes whoever waits."""
    pair.other.qp.post_recv(receive([segment(pair.other.host.mr)]))
    pair.other.arm(True)
    pair.one.qp.post_send(request(e.IBV_WR_RDMA_READ, [segment(pair.one.host.mr)], (0, 0)))
    check("solicited only: woken by an error", pair.other.is_woken(), True)
    check("solicited only: the error", named(pair.other.completions(1)), named([(11, FLUSH)]))


def main():
    """Tries everything."""
    requester, responder = Host(sys.argv[1]), Host(sys.argv[2])
    pair = Pair(requester, responder)
    for part in (solicited, existing, failed):
        part(pair)
    finish()


main()
