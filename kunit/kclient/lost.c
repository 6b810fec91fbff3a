// SPDX-License-Identifier: GPL-2.0
/*
 * A device that fails while a consumer uses it: each request is flushed once,
 * whoever polls, and nobody waits for ever.
 */

#include <linux/list.h>
#include <linux/slab.h>

#include "kclient.h"

static const enum ib_qp_type types[] = { IB_QPT_RC, IB_QPT_UD };

/* A pair that is open when the device fails. */
struct victim {
	struct list_head list;
	const struct kc_context *context;
	struct kc_pair pair;
};

/*
 * Posts receive requests, and on a reliable queue pair send requests that its
 * peer, which has none, keeps from being done.
 */
static void post_all(struct kc_pair *pair)
{
	struct ib_sge to = kc_rx(&pair->a, 0, KC_GRH + 1);
	struct ib_sge from = kc_tx(&pair->a, 0, 1);
	union kc_wr wr;
	int i, ret;

	for (i = 0; i < KC_DEPTH; i++) {
		ret = kc_recv(&pair->a, i, &to, 1);
		kc_expect(pair, !ret, "post_recv %d: %d", i, ret);
		if (pair->type != IB_QPT_RC)
			continue;
		kc_send_wr(pair, &wr, i, &from, 1);
		/* Requests that are flushed complete, signaled or not. */
		wr.wr.send_flags = 0;
		ret = kc_post(&pair->a, &wr);
		kc_expect(pair, !ret, "post_send %d: %d", i, ret);
	}
}

/* Who waits for an event gets it, and finds what was posted before. */
static void test_flush(struct kc_pair *pair)
{
	int i;

	for (i = 0; i < KC_DEPTH; i++) {
		kc_wait(pair, &pair->a, &pair->a.recv[i], IB_WC_WR_FLUSH_ERR);
		if (pair->type == IB_QPT_RC)
			kc_wait(pair, &pair->a, &pair->a.send[i],
				IB_WC_WR_FLUSH_ERR);
	}
}

/* The first end has been polled to its end; the second was never used. */
static void test_drain(struct kc_pair *pair)
{
	ib_drain_qp(pair->a.qp);
	ib_drain_qp(pair->b.qp);
}

/* What is posted later is flushed as well. */
static void test_later(struct kc_pair *pair)
{
	struct ib_sge to = kc_rx(&pair->a, 0, KC_GRH + 1);
	struct ib_sge from = kc_tx(&pair->a, 0, 1);
	union kc_wr wr;
	int ret;

	kc_send_wr(pair, &wr, KC_DEPTH, &from, 1);
	ret = kc_post(&pair->a, &wr);
	kc_expect(pair, !ret, "post_send: %d", ret);
	kc_wait(pair, &pair->a, &pair->a.send[KC_DEPTH], IB_WC_WR_FLUSH_ERR);
	ret = kc_recv(&pair->a, KC_DEPTH, &to, 1);
	kc_expect(pair, !ret, "post_recv: %d", ret);
	kc_wait(pair, &pair->a, &pair->a.recv[KC_DEPTH], IB_WC_WR_FLUSH_ERR);
}

/* A queue pair can be reset, and takes nothing then. */
static void test_reset(struct kc_pair *pair)
{
	struct ib_sge to = kc_rx(&pair->a, 0, KC_GRH + 1);
	int ret;

	ret = kc_modify_state(&pair->a, IB_QPS_RESET);
	kc_expect(pair, !ret, "to RESET: %d", ret);
	ret = kc_recv(&pair->a, KC_DEPTH + 1, &to, 1);
	kc_expect(pair, ret == -EINVAL, "post_recv in RESET: %d", ret);
}

/* Nothing was done twice, and nothing but what was posted. */
static void test_once(struct kc_pair *pair)
{
	int sends = pair->type == IB_QPT_RC ? KC_DEPTH : 0, i;

	for (i = 0; i < KC_REQUESTS; i++) {
		kc_expect(pair, pair->a.recv[i].times == (i <= KC_DEPTH),
			  "receive %d completed %u times", i,
			  pair->a.recv[i].times);
		kc_expect(pair,
			  pair->a.send[i].times == (i < sends || i == KC_DEPTH),
			  "send %d completed %u times", i,
			  pair->a.send[i].times);
		kc_expect(pair,
			  !pair->a.recv[i].strays && !pair->a.send[i].strays,
			  "request %d completed on another queue pair", i);
	}
}

/* In this order, on each pair. */
static const struct kc_case cases[] = {
	{ "flush", KC_ALL, test_flush },
	{ "drain", KC_ALL, test_drain },
	{ "post", KC_ALL, test_later },
	{ "reset", KC_ALL, test_reset },
	{ "each request once", KC_ALL, test_once },
};

struct failure {
	struct ib_event_handler handler;
	struct completion fatal;
};

static void device_event(struct ib_event_handler *handler,
			 struct ib_event *event)
{
	struct failure *failure =
		container_of(handler, struct failure, handler);

	if (event->event == IB_EVENT_DEVICE_FATAL)
		complete(&failure->fatal);
}

static int open_victim(struct list_head *victims, struct ib_device *dev,
		       enum ib_qp_type type, const struct kc_context *context)
{
	struct victim *victim;
	int ret;

	victim = kvzalloc_obj(*victim);
	if (!victim)
		return -ENOMEM;
	victim->context = context;
	ret = kc_pair_open(&victim->pair, dev, dev, type, context->context);
	if (ret) {
		kvfree(victim);
		return ret;
	}
	list_add_tail(&victim->list, victims);
	post_all(&victim->pair);
	return 0;
}

static int open_victims(struct list_head *victims, struct ib_device *dev)
{
	unsigned int t, c;
	int ret;

	for (t = 0; t < ARRAY_SIZE(types); t++) {
		for (c = 0; c < KC_CONTEXTS; c++) {
			ret = open_victim(victims, dev, types[t],
					  &kc_contexts[c]);
			if (ret)
				return ret;
		}
	}
	return 0;
}

static void close_victims(struct list_head *victims)
{
	struct victim *victim, *next;

	list_for_each_entry_safe(victim, next, victims, list) {
		kc_pair_close(&victim->pair);
		kvfree(victim);
	}
}

static void run_cases(struct list_head *victims)
{
	unsigned int number = 0, i;
	struct victim *victim;

	kc_plan(ARRAY_SIZE(types) * KC_CONTEXTS * ARRAY_SIZE(cases));
	list_for_each_entry(victim, victims, list) {
		struct kc_pair *pair = &victim->pair;

		for (i = 0; i < ARRAY_SIZE(cases); i++) {
			cases[i].run(pair);
			kc_result(++number, pair->type, victim->context,
				  &cases[i], pair->why);
			pair->why[0] = 0;
		}
	}
}

/* Uses a device until it fails, and then runs the tests. */
int kc_lose(struct ib_device *dev)
{
	struct failure failure;
	LIST_HEAD(victims);
	int ret;

	init_completion(&failure.fatal);
	INIT_IB_EVENT_HANDLER(&failure.handler, dev, device_event);
	ib_register_event_handler(&failure.handler);
	ret = open_victims(&victims, dev);
	if (ret)
		goto close;
	kc_say("waiting for the end of %s", dev_name(&dev->dev));
	if (wait_for_completion_timeout(&failure.fatal, KC_TIMEOUT))
		run_cases(&victims);
	else
		ret = -ETIMEDOUT;
close:
	close_victims(&victims);
	ib_unregister_event_handler(&failure.handler);
	return ret;
}
