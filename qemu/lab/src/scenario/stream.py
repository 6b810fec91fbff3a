#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Streams of RDMA writes from several senders to one receiver, each message with data of its own.

stream.py serve DEVICE COUNT: awaits so many senders, lets them all begin at once, and goes on until the file STOP exists. Then it
compares what each has written last with what it says that it wrote. Prints `MESSAGES` of each sender that were acknowledged until
the stop, in the order of their names, and `done COUNT`.

stream.py send DEVICE ADDRESS NAME: a sender. It has WINDOW messages under way.
"""

import os
import random
import select
import socket
import sys

from connection import PORT, Connection, dial
from pyverbs import enums as e
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.wr import SGE, SendWR

STOP = "/run/qiao-stop"
SIZE = 1 << 20
WINDOW = 8
# How often the receiver looks for the file, in seconds.
LOOK = 0.1


def pattern(name, number):
    """The data of a message. Each 4 KiB, the largest payload of a packet, has a number of its own."""
    data = bytearray(random.Random(f"{name} {number}").randbytes(4096) * (SIZE // 4096))
    for page in range(SIZE // 4096):
        data[page * 4096 : page * 4096 + 4] = page.to_bytes(4, "big")
    return bytes(data)


class Receiver:
    """The memory and the connection for one sender."""

    def __init__(self, context, pd, stream):
        self.stream, self.lines = stream, stream.makefile("rw")
        self.name = self.lines.readline().strip()
        self.memory = MR(pd, SIZE * WINDOW, e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE)
        self.connection = Connection(context, pd)
        self.connection.connect(self.lines)
        self.say(f"{self.memory.buf} {self.memory.rkey}")
        self.acknowledged = 0

    def say(self, line):
        """Tells the sender something."""
        self.lines.write(f"{line}\n")
        self.lines.flush()

    def hear(self):
        """Counts messages of which the sender tells, a byte for each."""
        data = self.stream.recv(4096)
        assert data, f"sender {self.name} has gone"
        self.acknowledged += len(data)

    def check(self):
        """Lets the sender finish, and compares what it has written."""
        self.say("stop")
        while (data := self.stream.recv(4096)) == b"." * len(data):
            assert data, f"sender {self.name} has gone"
        text = data.lstrip(b".")
        while not text.endswith(b"\n"):
            text += self.stream.recv(4096)
        total = int(text)
        for number in range(max(0, total - WINDOW), total):
            found = self.memory.read(SIZE, number % WINDOW * SIZE)
            assert found == pattern(self.name, number), f"message {number} of {self.name} is wrong"


def serve(device, count):
    """The receiver of all streams."""
    context = Context(name=device)
    pd = PD(context)
    with socket.create_server(("", PORT)) as server:
        senders = [Receiver(context, pd, server.accept()[0]) for _ in range(count)]
    for sender in senders:
        sender.say("go")
    while not os.path.exists(STOP):
        ready, _, _ = select.select([sender.stream for sender in senders], [], [], LOOK)
        for sender in senders:
            if sender.stream in ready:
                sender.hear()
    # Before anything is compared, which takes the processor.
    shares = {sender.name: sender.acknowledged for sender in senders}
    for sender in senders:
        sender.check()
    for _, messages in sorted(shares.items()):
        print(messages)
    print(f"done {len(shares)}")


class Sender:
    """One end of a stream."""

    def __init__(self, device, address, name):
        self.name = name
        context = Context(name=device)
        pd = PD(context)
        self.memory = MR(pd, SIZE * WINDOW, e.IBV_ACCESS_LOCAL_WRITE)
        self.connection = Connection(context, pd)
        self.stream = dial(address)
        self.lines = self.stream.makefile("rw")
        self.lines.write(f"{name}\n")
        self.lines.flush()
        self.connection.connect(self.lines)
        self.target, self.rkey = map(int, self.lines.readline().split())
        assert self.lines.readline() == "go\n"

    def post(self, number):
        """Writes a message to its place."""
        offset = number % WINDOW * SIZE
        self.memory.write(pattern(self.name, number), SIZE, offset)
        sge = SGE(self.memory.buf + offset, SIZE, self.memory.lkey)
        request = SendWR(num_sge=1, sg=[sge], opcode=e.IBV_WR_RDMA_WRITE)
        request.set_wr_rdma(self.rkey, self.target + offset)
        self.connection.qp.post_send(request)

    def run(self):
        """Sends until the receiver says that it is enough."""
        posted = completed = 0
        stopped = False
        while not stopped or completed < posted:
            while not stopped and posted < completed + WINDOW:
                self.post(posted)
                posted += 1
            self.connection.wait()
            completed += 1
            self.stream.sendall(b".")
            stopped = stopped or bool(select.select([self.stream], [], [], 0)[0])
        assert self.lines.readline() == "stop\n"
        self.stream.sendall(f"{completed}\n".encode())
        print(f"done {completed}")


def main():
    role, device, *rest = sys.argv[1:]
    if role == "serve":
        serve(device, int(rest[0]))
    else:
        Sender(device, *rest).run()


main()
