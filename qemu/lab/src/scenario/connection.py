# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Reliable connections between programs that meet by TCP."""

import json
import socket
import time

from pyverbs import enums as e
from pyverbs.addr import AHAttr
from pyverbs.cq import CQ, CompChannel
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr

PORT = 18600
# How long another program may take to start: a guard against hangs, not a measurement.
PATIENCE = 120


def dial(address):
    """Connects as soon as the other program listens."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return socket.create_connection((address, PORT))
        except ConnectionRefusedError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


class Connection:
    """A queue pair of a reliable connection, with a completion queue of its own."""

    def __init__(self, context, pd):
        self.channel = CompChannel(context)
        self.cq = CQ(context, 16, None, self.channel)
        cap = QPCap(max_send_wr=16, max_recv_wr=4, max_send_sge=1, max_recv_sge=1)
        init = QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap, sq_sig_all=1)
        self.qp = QP(pd, init)
        self.lid = context.query_port(1).lid

    def connect(self, lines):
        """Learns of the other side through the lines of a TCP connection, and tells it of this one."""
        lines.write(json.dumps([self.lid, self.qp.qp_num]) + "\n")
        lines.flush()
        lid, qpn = json.loads(lines.readline())
        attr = QPAttr(port_num=1)
        attr.qp_access_flags = e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE
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
