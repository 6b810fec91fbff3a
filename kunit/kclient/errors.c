// SPDX-License-Identifier: GPL-2.0
/*
 * What must fail, how, and how often: each request that was posted is done
 * once, whatever becomes of its queue pair.
 */

#include <linux/sched.h>

#include "kclient.h"

#define SEED	0xa5

/* Sends from, or writes to, where nobody may. */
static void refused(struct kc_pair *pair, enum ib_wr_opcode opcode,
		    struct ib_sge *sge, u32 rkey, enum ib_wc_status status)
{
	union kc_wr wr;
	int ret;

	kc_send_wr(pair, &wr, 0, sge, 1);
	wr.wr.opcode = opcode;
	if (opcode != IB_WR_SEND) {
		wr.rdma.remote_addr = kc_peer_rx_addr(pair);
		wr.rdma.rkey = rkey;
	}
	ret = kc_post(&pair->a, &wr);
	kc_expect(pair, !ret, "post_send: %d", ret);
	kc_wait(pair, &pair->a, &pair->a.send[0], status);

	/* The queue pair is in error: what comes later is flushed. */
	kc_send_wr(pair, &wr, 1, NULL, 0);
	ret = kc_post(&pair->a, &wr);
	kc_expect(pair, !ret, "post_send in error: %d", ret);
	kc_wait(pair, &pair->a, &pair->a.send[1], IB_WC_WR_FLUSH_ERR);
}

static void test_rkey(struct kc_pair *pair)
{
	struct ib_sge from = kc_tx(&pair->a, 0, 100);

	refused(pair, IB_WR_RDMA_WRITE, &from, pair->peer.rkey ^ 1, IB_WC_REM_ACCESS_ERR);
}

static void test_read_rkey(struct kc_pair *pair)
{
	struct ib_sge to = kc_rx(&pair->a, 0, 100);

	refused(pair, IB_WR_RDMA_READ, &to, pair->peer.rkey + 0x100000, IB_WC_REM_ACCESS_ERR);
}

static void test_lkey(struct kc_pair *pair)
{
	struct ib_sge from = kc_tx(&pair->a, 0, 100);

	from.lkey ^= 1;
	refused(pair, IB_WR_SEND, &from, 0, IB_WC_LOC_PROT_ERR);
}

/* A message that does not fit the request of the receiver. */
static void test_length(struct kc_pair *pair)
{
	struct ib_sge from = kc_tx(&pair->a, 0, 101);
	struct ib_sge to = kc_rx(&pair->b, 0, 100);

	kc_expect_message(pair, 0, &to, 1);
	refused(pair, IB_WR_SEND, &from, 0, IB_WC_REM_INV_REQ_ERR);
	kc_wait(pair, &pair->b, &pair->b.recv[0], IB_WC_LOC_LEN_ERR);
}

/* The first of a list that is wrong, and what comes later, is not posted. */
static void test_bad_wr(struct kc_pair *pair)
{
	struct ib_sge from[KC_SGES + 1], to = kc_rx(&pair->b, 0, 200);
	const struct ib_send_wr *bad = NULL;
	union kc_wr wrs[3];
	unsigned int i;
	int ret;

	for (i = 0; i <= KC_SGES; i++)
		from[i] = kc_tx(&pair->a, 0, 1);
	for (i = 0; i < 3; i++) {
		kc_send_wr(pair, &wrs[i], i, from, 1);
		wrs[i].wr.next = i < 2 ? &wrs[i + 1].wr : NULL;
	}
	wrs[1].wr.num_sge = KC_SGES + 1;
	kc_expect_message(pair, 0, &to, 1);

	ret = ib_post_send(pair->a.qp, &wrs[0].wr, &bad);
	kc_expect(pair, ret == -EINVAL, "post_send: %d", ret);
	kc_expect(pair, bad == &wrs[1].wr, "another request is the bad one");
	kc_wait(pair, &pair->a, &pair->a.send[0], IB_WC_SUCCESS);
	kc_wait(pair, &pair->b, &pair->b.recv[0], IB_WC_SUCCESS);

	wrs[1].wr.num_sge = 1;
	wrs[1].wr.opcode = IB_WR_REG_MR_INTEGRITY;
	ret = ib_post_send(pair->a.qp, &wrs[1].wr, &bad);
	kc_expect(pair, ret == -EINVAL && bad == &wrs[1].wr,
		  "unknown operation: %d", ret);
	wrs[1].wr.opcode = IB_WR_SEND;
	wrs[1].wr.send_flags = IB_SEND_RESERVED_START;
	ret = ib_post_send(pair->a.qp, &wrs[1].wr, &bad);
	kc_expect(pair, ret == -EINVAL && bad == &wrs[1].wr,
		  "unknown flag: %d", ret);
	from[0].length = KC_INLINE + 1;
	from[0].addr = (uintptr_t)kc_tx_bytes(&pair->a);
	wrs[1].wr.send_flags = IB_SEND_INLINE;
	ret = ib_post_send(pair->a.qp, &wrs[1].wr, &bad);
	kc_expect(pair, ret == -EINVAL && bad == &wrs[1].wr,
		  "too much inline data: %d", ret);
}

/* In states that do not allow it, nothing can be posted. */
static void test_state(struct kc_pair *pair)
{
	struct ib_sge from = kc_tx(&pair->a, 0, 1), to = kc_rx(&pair->a, 0, 1);
	union kc_wr wr;
	int ret;

	ret = kc_modify_state(&pair->a, IB_QPS_RESET);
	kc_expect(pair, !ret, "to RESET: %d", ret);
	kc_send_wr(pair, &wr, 0, &from, 1);
	ret = kc_post(&pair->a, &wr);
	kc_expect(pair, ret == -EINVAL, "post_send in RESET: %d", ret);
	ret = kc_recv(&pair->a, 0, &to, 1);
	kc_expect(pair, ret == -EINVAL, "post_recv in RESET: %d", ret);
	ret = kc_modify_state(&pair->a, IB_QPS_RTS);
	kc_expect(pair, ret == -EINVAL, "from RESET to RTS: %d", ret);
}

/* Fills the receive queue; returns how many requests it takes. */
static int fill(struct kc_pair *pair, struct kc_end *end)
{
	struct ib_sge to = kc_rx(end, 0, 1);
	int count, ret = 0;

	for (count = 0; count < KC_REQUESTS; count++) {
		ret = kc_recv(end, count, &to, 1);
		if (ret)
			break;
	}
	kc_expect(pair, ret == -ENOMEM, "post_recv %d: %d", count, ret);
	kc_expect(pair, count >= KC_DEPTH, "only %d fit", count);
	return count;
}

/* Each request of a queue pair in error is flushed once. */
static void test_flush(struct kc_pair *pair)
{
	struct kc_end *end = &pair->a;
	union kc_wr wr;
	int i, count, ret;

	count = fill(pair, end);
	ret = kc_modify_state(end, IB_QPS_ERR);
	kc_expect(pair, !ret, "to ERR: %d", ret);
	for (i = 0; i < KC_DEPTH; i++) {
		kc_send_wr(pair, &wr, i, NULL, 0);
		/* Requests that are flushed complete, signaled or not. */
		wr.wr.send_flags = 0;
		ret = kc_post(end, &wr);
		kc_expect(pair, !ret, "post_send %d in ERR: %d", i, ret);
	}
	for (i = 0; i < count; i++)
		kc_wait(pair, end, &end->recv[i], IB_WC_WR_FLUSH_ERR);
	for (i = 0; i < KC_DEPTH; i++)
		kc_wait(pair, end, &end->send[i], IB_WC_WR_FLUSH_ERR);
	ib_drain_qp(end->qp);
	for (i = 0; i < KC_REQUESTS; i++) {
		kc_expect(pair, end->recv[i].times == (i < count),
			  "receive %d completed %u times", i,
			  end->recv[i].times);
		kc_expect(pair, end->send[i].times == (i < KC_DEPTH),
			  "send %d completed %u times", i, end->send[i].times);
	}
}

/* When a queue pair is drained, all its requests are done. */
static void test_drain(struct kc_pair *pair)
{
	struct ib_sge to = kc_rx(&pair->b, 0, KC_GRH + 8);
	struct ib_sge from = kc_tx(&pair->a, 0, 8);
	union kc_wr wr;
	int i, ret;

	for (i = 0; i < KC_DEPTH / 2; i++) {
		ret = kc_recv(&pair->b, i, &to, 1);
		kc_expect(pair, !ret, "post_recv: %d", ret);
	}
	for (i = 0; i < KC_DEPTH / 4; i++) {
		kc_send_wr(pair, &wr, i, &from, 1);
		ret = kc_post(&pair->a, &wr);
		kc_expect(pair, !ret, "post_send: %d", ret);
	}
	ib_drain_qp(pair->a.qp);
	ib_drain_qp(pair->b.qp);
	for (i = 0; i < KC_DEPTH / 4; i++)
		kc_once(pair, &pair->a.send[i]);
	for (i = 0; i < KC_DEPTH / 2; i++)
		kc_once(pair, &pair->b.recv[i]);
}

/* Completions that were not polled are gone with a reset of their queue pair. */
static void test_reset(struct kc_pair *pair)
{
	int count, ret;

	count = fill(pair, &pair->a);
	ret = kc_modify_state(&pair->a, IB_QPS_RESET);
	kc_expect(pair, !ret, "to RESET: %d", ret);
	ret = kc_connect(pair);
	kc_expect(pair, !ret, "to RTS again: %d", ret);
	kc_expect(pair, fill(pair, &pair->a) == count, "requests are left");
}

struct events {
	struct ib_cq *cq;
	atomic_t count;
	struct completion next;
};

static void count_event(struct ib_cq *cq, void *context)
{
	struct events *events = context;

	atomic_inc(&events->count);
	complete(&events->next);
}

/* Makes a completion: of a receive request that is flushed. */
static void flush_one(struct kc_pair *pair, struct ib_qp *qp, struct ib_cqe *cqe)
{
	struct ib_recv_wr wr = { .wr_cqe = cqe };
	int ret = ib_post_recv(qp, &wr, NULL);

	kc_expect(pair, !ret, "post_recv: %d", ret);
}

static void await_event(struct kc_pair *pair, struct events *events)
{
	kc_expect(pair, wait_for_completion_timeout(&events->next, KC_TIMEOUT),
		  "no event");
}

static void check_events(struct kc_pair *pair, struct events *events,
			 struct ib_qp *qp)
{
	const int flags = IB_CQ_NEXT_COMP | IB_CQ_REPORT_MISSED_EVENTS;
	struct kc_request request;
	struct ib_wc wc[3];
	int ret;

	kc_await_use(&request, qp);
	ret = ib_req_notify_cq(events->cq, flags);
	kc_expect(pair, !ret, "arming an empty queue: %d", ret);
	flush_one(pair, qp, &request.cqe);
	await_event(pair, events);

	/* What is there is reported, and raises no event; what comes does. */
	ret = ib_req_notify_cq(events->cq, flags);
	kc_expect(pair, ret > 0, "a missed event is not reported: %d", ret);
	kc_settle(pair, qp);
	kc_expect(pair, atomic_read(&events->count) == 1,
		  "an event of what was there");
	flush_one(pair, qp, &request.cqe);
	await_event(pair, events);
	ret = ib_poll_cq(events->cq, ARRAY_SIZE(wc), wc);
	kc_expect(pair, ret == 2, "polled %d", ret);
	kc_expect(pair, wc[0].wr_cqe == &request.cqe && wc[0].qp == qp,
		  "another completion");

	/* An error is an event also for who waits for solicited ones only. */
	ret = ib_req_notify_cq(events->cq,
			       IB_CQ_SOLICITED | IB_CQ_REPORT_MISSED_EVENTS);
	kc_expect(pair, !ret, "arming for solicited events: %d", ret);
	flush_one(pair, qp, &request.cqe);
	await_event(pair, events);
	ret = ib_poll_cq(events->cq, ARRAY_SIZE(wc), wc);
	kc_expect(pair, ret == 1, "polled %d", ret);

	/* Each request for an event has led to one. */
	kc_expect(pair, atomic_read(&events->count) == 3, "%d events",
		  atomic_read(&events->count));
}

/* Events of a queue whose handler is the client's own. */
static void test_events(struct kc_pair *pair)
{
	struct ib_cq_init_attr cq_attr = { .cqe = 8 };
	struct ib_qp_init_attr attr = {
		.cap = { .max_send_wr = 1, .max_recv_wr = 4 },
		.qp_type = IB_QPT_RC,
	};
	struct ib_qp_attr state = {
		.qp_state = IB_QPS_INIT,
		.port_num = KC_PORT,
	};
	struct events events = {};
	struct ib_qp *qp;
	int ret;

	atomic_set(&events.count, 0);
	init_completion(&events.next);
	events.cq = ib_create_cq(pair->a.dev, count_event, NULL, &events,
				 &cq_attr);
	if (IS_ERR(events.cq)) {
		kc_fail(pair, "create_cq: %ld", PTR_ERR(events.cq));
		return;
	}
	attr.send_cq = events.cq;
	attr.recv_cq = events.cq;
	qp = ib_create_qp(pair->a.pd, &attr);
	if (IS_ERR(qp)) {
		ib_destroy_cq(events.cq);
		kc_fail(pair, "create_qp: %ld", PTR_ERR(qp));
		return;
	}
	ret = ib_modify_qp(qp, &state,
			   IB_QP_STATE | IB_QP_PORT | IB_QP_PKEY_INDEX |
				   IB_QP_ACCESS_FLAGS);
	state.qp_state = IB_QPS_ERR;
	ret = ret ?: ib_modify_qp(qp, &state, IB_QP_STATE);
	if (ret)
		kc_fail(pair, "to ERR: %d", ret);
	else
		check_events(pair, &events, qp);
	ib_destroy_qp(qp);
	ib_destroy_cq(events.cq);
}

/* More than the device has, or what makes no sense, is refused. */
static void test_create(struct kc_pair *pair)
{
	struct ib_qp_init_attr attr = {
		.send_cq = pair->a.send_cq,
		.recv_cq = pair->a.recv_cq,
		.cap = { .max_send_wr = pair->a.dev->attrs.max_qp_wr + 1 },
		.qp_type = IB_QPT_RC,
	};
	struct ib_cq_init_attr cq_attr = {
		.cqe = pair->a.dev->attrs.max_cqe + 1,
	};
	struct ib_cq *cq;
	struct ib_qp *qp;

	qp = ib_create_qp(pair->a.pd, &attr);
	kc_expect(pair, IS_ERR(qp), "a queue pair with too many requests");
	attr.cap.max_send_wr = U32_MAX;
	qp = ib_create_qp(pair->a.pd, &attr);
	kc_expect(pair, IS_ERR(qp), "a queue pair with 2^32 requests");
	attr.cap.max_send_wr = 1;
	attr.cap.max_send_sge = pair->a.dev->attrs.max_send_sge + 1;
	qp = ib_create_qp(pair->a.pd, &attr);
	kc_expect(pair, IS_ERR(qp), "a queue pair with too many pieces");
	cq = ib_create_cq(pair->a.dev, NULL, NULL, NULL, &cq_attr);
	kc_expect(pair, IS_ERR(cq), "a completion queue that is too long");
	cq_attr.cqe = 1;
	cq_attr.comp_vector = pair->a.dev->num_comp_vectors;
	cq = ib_create_cq(pair->a.dev, NULL, NULL, NULL, &cq_attr);
	kc_expect(pair, IS_ERR(cq), "a vector that there is not");
}

const struct kc_case kc_errors[] = {
	{ "remote key of a write", KC_RC, test_rkey },
	{ "remote key of a read", KC_RC, test_read_rkey },
	{ "local key", KC_RC, test_lkey },
	{ "message too long", KC_RC, test_length },
	{ "bad request in a list", KC_ALL, test_bad_wr },
	{ "state", KC_ALL, test_state },
	{ "flush", KC_ALL, test_flush },
	{ "drain", KC_ALL, test_drain },
	{ "reset", KC_ALL, test_reset },
	{ "events", KC_RC, test_events },
	{ "limits", KC_RC, test_create },
};

const unsigned int kc_error_count = ARRAY_SIZE(kc_errors);
