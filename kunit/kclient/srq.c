// SPDX-License-Identifier: GPL-2.0
/*
 * Shared receive queues.
 */

#include <linux/atomic.h>

#include "kclient.h"

#define SEED	0x3c

/* A shared queue, and what its events and those of its user have said. */
struct shared {
	struct ib_srq *srq;
	/* The queue pair that the second end has without it. */
	struct ib_qp *own;
	atomic_t limits;
	atomic_t lasts;
	struct completion limit;
	struct completion last;
};

static void srq_event(struct ib_event *event, void *context)
{
	struct shared *shared = context;

	if (event->event != IB_EVENT_SRQ_LIMIT_REACHED)
		return;
	atomic_inc(&shared->limits);
	complete(&shared->limit);
}

static void qp_event(struct ib_event *event, void *context)
{
	struct shared *shared = context;

	if (event->event != IB_EVENT_QP_LAST_WQE_REACHED)
		return;
	atomic_inc(&shared->lasts);
	complete(&shared->last);
}

/* Has the second end receive by a shared queue. */
static int open_shared(struct kc_pair *pair, struct shared *shared)
{
	struct ib_srq_init_attr init = {
		.event_handler = srq_event,
		.srq_context = shared,
		.attr = { .max_wr = KC_DEPTH, .max_sge = KC_SGES },
		.srq_type = IB_SRQT_BASIC,
	};
	struct ib_qp_init_attr attr = {
		.event_handler = qp_event,
		.qp_context = shared,
		.send_cq = pair->b.send_cq,
		.recv_cq = pair->b.recv_cq,
		.cap = { .max_send_wr = KC_DEPTH, .max_send_sge = KC_SGES },
		.sq_sig_type = IB_SIGNAL_REQ_WR,
		.qp_type = pair->type,
	};
	int ret;

	init_completion(&shared->limit);
	init_completion(&shared->last);
	shared->own = pair->b.qp;
	shared->srq = ib_create_srq(pair->b.pd, &init);
	if (IS_ERR(shared->srq))
		return PTR_ERR(shared->srq);
	attr.srq = shared->srq;
	pair->b.qp = ib_create_qp(pair->b.pd, &attr);
	if (IS_ERR(pair->b.qp)) {
		ret = PTR_ERR(pair->b.qp);
		goto destroy;
	}
	ret = kc_connect(pair);
	if (!ret)
		return 0;
	ib_destroy_qp(pair->b.qp);
destroy:
	pair->b.qp = shared->own;
	ib_destroy_srq(shared->srq);
	return ret;
}

static void close_shared(struct kc_pair *pair, struct shared *shared)
{
	int ret = ib_destroy_srq_user(shared->srq, NULL);

	kc_expect(pair, ret == -EBUSY, "destroyed while in use: %d", ret);
	ib_destroy_qp(pair->b.qp);
	pair->b.qp = shared->own;
	ib_destroy_srq(shared->srq);
}

/* Runs a test with a shared queue. */
static void run(struct kc_pair *pair,
		void (*test)(struct kc_pair *pair, struct shared *shared))
{
	struct shared shared = {};
	int ret;

	ret = open_shared(pair, &shared);
	if (ret) {
		kc_fail(pair, "set-up of a shared queue: %d", ret);
		return;
	}
	test(pair, &shared);
	close_shared(pair, &shared);
}

static int post(struct kc_pair *pair, struct shared *shared, unsigned int n,
		struct ib_sge *sges, int count)
{
	struct ib_recv_wr wr = {
		.wr_cqe = &pair->b.recv[n].cqe,
		.sg_list = sges,
		.num_sge = count,
	};
	const struct ib_recv_wr *bad = NULL;
	int ret;

	ret = ib_post_srq_recv(shared->srq, &wr, &bad);
	kc_expect(pair, bad == (ret ? &wr : NULL), "another request is bad");
	return ret;
}

static void post_good(struct kc_pair *pair, struct shared *shared,
		      unsigned int n, struct ib_sge *sge)
{
	int ret;

	*sge = kc_rx(&pair->b, n * 200, 200);
	kc_await_use(&pair->b.recv[n], pair->b.qp);
	ret = post(pair, shared, n, sge, 1);
	kc_expect(pair, !ret, "post_srq_recv %u: %d", n, ret);
}

/* Sends 100 bytes of the pattern, from the request's number on. */
static void send(struct kc_pair *pair, unsigned int n)
{
	struct ib_sge from = kc_tx(&pair->a, n, 100);
	union kc_wr wr;
	int ret;

	kc_await_use(&pair->a.send[n], pair->a.qp);
	kc_send_wr(pair, &wr, n, &from, 1);
	ret = kc_post(&pair->a, &wr);
	kc_expect(pair, !ret, "post_send %u: %d", n, ret);
}

static void arrived(struct kc_pair *pair, unsigned int n)
{
	u32 offset = kc_data_offset(pair);

	kc_wait(pair, &pair->a, &pair->a.send[n], IB_WC_SUCCESS);
	kc_wait(pair, &pair->b, &pair->b.recv[n], IB_WC_SUCCESS);
	kc_check(pair, &pair->b, n * 200 + offset, SEED, n, 100);
	kc_expect(pair, pair->b.recv[n].wc.byte_len == 100 + offset,
		  "%u bytes were received", pair->b.recv[n].wc.byte_len);
}

static void expect_event(struct kc_pair *pair, struct completion *done,
			 const char *name)
{
	if (!pair->why[0] && !wait_for_completion_timeout(done, KC_TIMEOUT))
		kc_fail(pair, "no event: %s", name);
}

static void expect_limit(struct kc_pair *pair, struct shared *shared, u32 limit)
{
	struct ib_srq_attr attr;
	int ret;

	ret = ib_query_srq(shared->srq, &attr);
	kc_expect(pair, !ret, "query_srq: %d", ret);
	kc_expect(pair, attr.srq_limit == limit, "the limit is %u",
		  attr.srq_limit);
	kc_expect(pair, attr.max_wr >= KC_DEPTH && attr.max_sge >= KC_SGES,
		  "%u requests of %u pieces", attr.max_wr, attr.max_sge);
}

/* Goes around several times, with the queue full at first. */
static void traffic(struct kc_pair *pair, struct shared *shared)
{
	struct ib_srq_attr attr = { .srq_limit = KC_DEPTH - 1 };
	struct ib_sge sges[KC_DEPTH];
	unsigned int i;
	int ret;

	kc_fill(&pair->a, SEED);
	kc_fill(&pair->b, 0);
	for (i = 0; i < KC_DEPTH; i++)
		post_good(pair, shared, i, &sges[i]);
	ret = post(pair, shared, KC_DEPTH, sges, 1);
	kc_expect(pair, ret == -ENOMEM, "post_srq_recv, full: %d", ret);
	ret = ib_modify_srq(shared->srq, &attr, IB_SRQ_LIMIT);
	kc_expect(pair, !ret, "modify_srq: %d", ret);
	expect_limit(pair, shared, KC_DEPTH - 1);

	for (i = 0; !pair->why[0] && i < KC_DEPTH; i++) {
		send(pair, i);
		arrived(pair, i);
		if (i == 0)
			expect_limit(pair, shared, KC_DEPTH - 1);
		if (i == 1)
			expect_event(pair, &shared->limit, "limit");
	}
	expect_limit(pair, shared, 0);
	for (i = 0; !pair->why[0] && i < 4 * KC_DEPTH; i++) {
		post_good(pair, shared, i % KC_DEPTH, sges);
		kc_settle(pair, pair->b.qp);
		send(pair, i % KC_DEPTH);
		arrived(pair, i % KC_DEPTH);
	}
	kc_expect(pair, atomic_read(&shared->limits) == 1, "%d events",
		  atomic_read(&shared->limits));
}

/* A queue pair in error leaves requests to others, and says so once. */
static void error(struct kc_pair *pair, struct shared *shared)
{
	struct ib_sge sges[2];
	int ret;

	kc_fill(&pair->a, SEED);
	kc_fill(&pair->b, 0);
	post_good(pair, shared, 0, &sges[0]);
	post_good(pair, shared, 1, &sges[1]);
	kc_settle(pair, pair->b.qp);
	ret = kc_modify_state(&pair->b, IB_QPS_ERR) ?:
	      kc_modify_state(&pair->b, IB_QPS_ERR);
	kc_expect(pair, !ret, "modify_qp: %d", ret);
	expect_event(pair, &shared->last, "last request");
	kc_expect(pair, atomic_read(&shared->lasts) == 1, "%d events",
		  atomic_read(&shared->lasts));
	kc_poll(&pair->b);
	kc_expect(pair, !pair->b.recv[0].times && !pair->b.recv[1].times,
		  "requests were flushed");

	/* It is the queue pair that was reset, not the queue. */
	ret = kc_connect(pair);
	kc_expect(pair, !ret, "connect: %d", ret);
	send(pair, 0);
	arrived(pair, 0);
	send(pair, 1);
	arrived(pair, 1);
}

static void bad_requests(struct kc_pair *pair, struct shared *shared)
{
	struct ib_srq_attr attr = { .max_wr = 2 * KC_DEPTH, .srq_limit = ~0 };
	struct ib_sge sges[KC_SGES + 1];
	unsigned int i;
	int ret;

	for (i = 0; i <= KC_SGES; i++)
		sges[i] = kc_rx(&pair->b, 200 * i, 200);
	ret = post(pair, shared, 0, sges, KC_SGES + 1);
	kc_expect(pair, ret == -EINVAL, "too many pieces: %d", ret);
	ret = kc_recv(&pair->b, 0, sges, 1);
	kc_expect(pair, ret == -EINVAL, "post_recv: %d", ret);
	ret = ib_modify_srq(shared->srq, &attr, IB_SRQ_LIMIT);
	kc_expect(pair, ret == -EINVAL, "a limit that is too large: %d", ret);
	ret = ib_modify_srq(shared->srq, &attr, IB_SRQ_MAX_WR);
	kc_expect(pair, ret == -EOPNOTSUPP, "resize: %d", ret);

	/* Whoever takes a request with a wrong key fails. */
	sges[0].lkey ^= 1;
	ret = post(pair, shared, 0, sges, 1);
	kc_expect(pair, !ret, "post_srq_recv: %d", ret);
	kc_settle(pair, pair->b.qp);
	send(pair, 0);
	kc_wait(pair, &pair->b, &pair->b.recv[0], IB_WC_LOC_PROT_ERR);
	expect_event(pair, &shared->last, "last request");
	kc_wait(pair, &pair->a, &pair->a.send[0],
		pair->type == IB_QPT_RC ? IB_WC_REM_OP_ERR : IB_WC_SUCCESS);
}

/* What finds no request is sent again until there is one. */
static void not_ready(struct kc_pair *pair, struct shared *shared)
{
	struct ib_sge sge;

	kc_fill(&pair->a, SEED);
	kc_fill(&pair->b, 0);
	send(pair, 0);
	kc_settle(pair, pair->a.qp);
	post_good(pair, shared, 0, &sge);
	arrived(pair, 0);
}

static void test_traffic(struct kc_pair *pair)
{
	run(pair, traffic);
}

static void test_error(struct kc_pair *pair)
{
	run(pair, error);
}

static void test_bad_requests(struct kc_pair *pair)
{
	run(pair, bad_requests);
}

static void test_not_ready(struct kc_pair *pair)
{
	run(pair, not_ready);
}

const struct kc_case kc_shared[] = {
	{ "SRQ: full, its limit, around", KC_ALL, test_traffic },
	{ "SRQ: a queue pair in error", KC_ALL, test_error },
	{ "SRQ: bad requests", KC_ALL, test_bad_requests },
	{ "SRQ: no request yet", KC_RC, test_not_ready },
};

const unsigned int kc_shared_count = ARRAY_SIZE(kc_shared);
