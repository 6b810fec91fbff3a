#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Asynchronous events, as a program gets them (ibv_get_async_event(3)).

events.py DEVICE: waits on a queue pair and a completion queue for an event of each type that QP_EVENTS, CQ_EVENTS and PORT_EVENTS
name, which the lab raises once the file NUMBERS says which objects there are. Prints a line for each as posts.py does.
"""

import json
import os
import signal
import sys

from posts import DEPTH, PATIENCE, check, finish
from pyverbs import enums as e
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.pd import PD
from pyverbs.pyverbs_error import PyverbsError
from pyverbs.qp import QP, QPCap, QPInitAttr

NUMBERS = "/run/qiao-events"
QP_EVENTS = "COMM_EST SQ_DRAINED PATH_MIG PATH_MIG_ERR QP_LAST_WQE_REACHED QP_FATAL QP_REQ_ERR QP_ACCESS_ERR".split()
CQ_EVENTS = ["CQ_ERR"]
# A change of the GID table is told by the core, which looks what has changed: nothing has.
PORT_EVENTS = "PORT_ACTIVE PORT_ERR LID_CHANGE PKEY_CHANGE SM_CHANGE CLIENT_REREGISTER".split()


def main():
    """Waits for all of them."""
    context = Context(name=sys.argv[1])
    cq = CQ(context, DEPTH)
    cap = QPCap(DEPTH, DEPTH, 1, 1, 0)
    qp = QP(PD(context), QPInitAttr(qp_type=e.IBV_QPT_RC, scq=cq, rcq=cq, cap=cap))
    # The lab finds the number of the CQ by that of the QP.
    with open(f"{NUMBERS}.new", "w", encoding="ascii") as file:
        json.dump({"qp": qp.qp_num}, file)
    os.rename(f"{NUMBERS}.new", NUMBERS)
    names = {getattr(e, f"IBV_EVENT_{name}"): name for name in QP_EVENTS + CQ_EVENTS + PORT_EVENTS}
    found = []
    # An alarm interrupts the call below; what is missing then is seen.
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.alarm(PATIENCE)
    try:
        while len(found) < len(names):
            event = context.get_async_event()
            found.append(names.get(event.event_type, event.event_type))
            event.ack()
    except PyverbsError as error:
        print(error, file=sys.stderr)
    for name in names.values():
        check(f"event {name}", found.count(name), 1)
    # Waits until the kernel says that every event was acknowledged.
    qp.close()
    cq.close()
    finish()


main()
