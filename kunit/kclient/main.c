// SPDX-License-Identifier: GPL-2.0
/*
 * The module: a client of all RDMA devices, and what starts the tests.
 *
 *	echo "DEVICE PEER" >/sys/module/qiao_kclient/parameters/run
 *
 * runs all tests between two devices, or within one if both are the same, and
 * writes the results to the kernel log as KTAP lines. Besides, the client has
 * on each device a queue pair with receive requests that nothing will ever
 * use, for as long as the device is there.
 */

#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/list.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/slab.h>
#include <linux/string.h>

#include "kclient.h"

struct device_entry {
	struct list_head list;
	struct ib_device *dev;
	/* Both ends are queue pairs of this device. */
	struct kc_pair pair;
};

static LIST_HEAD(devices);
/* Held while tests run, so that their devices stay. */
static DEFINE_MUTEX(devices_lock);

static const struct {
	const char *name;
	enum ib_poll_context context;
} contexts[] = {
	{ "direct", IB_POLL_DIRECT },
	{ "softirq", IB_POLL_SOFTIRQ },
	{ "workqueue", IB_POLL_WORKQUEUE },
};

static const struct {
	const char *name;
	enum ib_qp_type type;
} types[] = {
	{ "RC", IB_QPT_RC },
	{ "UC", IB_QPT_UC },
	{ "UD", IB_QPT_UD },
};

/* All tests for one type of queue pair and one context of completions. */
struct suite {
	const char *type_name;
	const char *context_name;
	enum ib_qp_type type;
	enum ib_poll_context context;
	struct ib_device *a;
	struct ib_device *b;
	/* Number of the last result. */
	unsigned int *number;
};

static void run_on(const struct suite *suite, const struct kc_case *test,
		   struct kc_pair *pair)
{
	int ret;

	ret = kc_pair_open(pair, suite->a, suite->b, suite->type,
			   suite->context);
	if (ret) {
		kc_fail(pair, "set-up: %d", ret);
		return;
	}
	test->run(pair);
	kc_pair_close(pair);
}

static void run_case(const struct suite *suite, const struct kc_case *test)
{
	struct kc_pair *pair;
	const char *why = "no memory";

	if (!(test->types & BIT(suite->type)))
		return;
	pair = kvzalloc_obj(*pair);
	if (pair) {
		run_on(suite, test, pair);
		why = pair->why;
	}
	pr_info("%sok %u %s %s: %s%s%s\n", why[0] ? "not " : "",
		++*suite->number, suite->type_name, suite->context_name,
		test->name, why[0] ? " # " : "", why);
	kvfree(pair);
}

static unsigned int count_cases(enum ib_qp_type type)
{
	unsigned int i, count = 0;

	for (i = 0; i < kc_case_count; i++)
		count += !!(kc_cases[i].types & BIT(type));
	for (i = 0; i < kc_error_count; i++)
		count += !!(kc_errors[i].types & BIT(type));
	return count;
}

static void run_suite(const struct suite *suite)
{
	unsigned int i;

	for (i = 0; i < kc_case_count; i++)
		run_case(suite, &kc_cases[i]);
	for (i = 0; i < kc_error_count; i++)
		run_case(suite, &kc_errors[i]);
}

static void run_all(struct ib_device *a, struct ib_device *b)
{
	unsigned int t, c, number = 0, count = 0;

	for (t = 0; t < ARRAY_SIZE(types); t++)
		count += ARRAY_SIZE(contexts) * count_cases(types[t].type);
	pr_info("KTAP version 1\n");
	pr_info("1..%u\n", count);
	for (t = 0; t < ARRAY_SIZE(types); t++) {
		for (c = 0; c < ARRAY_SIZE(contexts); c++) {
			struct suite suite = {
				.type_name = types[t].name,
				.context_name = contexts[c].name,
				.type = types[t].type,
				.context = contexts[c].context,
				.a = a,
				.b = b,
				.number = &number,
			};

			run_suite(&suite);
		}
	}
}

static struct ib_device *find_device(const char *name)
{
	struct device_entry *entry;

	lockdep_assert_held(&devices_lock);
	list_for_each_entry(entry, &devices, list)
		if (!strcmp(dev_name(&entry->dev->dev), name))
			return entry->dev;
	return NULL;
}

static int set_run(const char *value, const struct kernel_param *param)
{
	char names[2][IB_DEVICE_NAME_MAX];
	struct ib_device *a, *b;

	if (sscanf(value, "%63s %63s", names[0], names[1]) != 2)
		return -EINVAL;
	guard(mutex)(&devices_lock);
	a = find_device(names[0]);
	b = find_device(names[1]);
	if (!a || !b)
		return -ENODEV;
	run_all(a, b);
	return 0;
}

static const struct kernel_param_ops run_ops = {
	.set = set_run,
};

module_param_cb(run, &run_ops, NULL, 0200);
MODULE_PARM_DESC(run, "names of two devices to run the tests between");

/* Posts receive requests that stay until the device goes. */
static int hold(struct kc_end *end)
{
	struct ib_sge to = kc_rx(end, 0, 1);
	int i, ret = 0;

	for (i = 0; !ret && i < KC_DEPTH; i++)
		ret = kc_recv(end, i, &to, 1);
	return ret;
}

static struct ib_client client;

static int add_device(struct ib_device *dev)
{
	struct device_entry *entry;
	int ret;

	entry = kvzalloc_obj(*entry);
	if (!entry)
		return -ENOMEM;
	entry->dev = dev;
	ret = kc_pair_open(&entry->pair, dev, dev, IB_QPT_RC, IB_POLL_SOFTIRQ);
	if (ret)
		goto free;
	ret = hold(&entry->pair.a) ?: hold(&entry->pair.b);
	if (ret)
		goto close;
	ib_set_client_data(dev, &client, entry);
	scoped_guard(mutex, &devices_lock)
		list_add(&entry->list, &devices);
	return 0;

close:
	kc_pair_close(&entry->pair);
free:
	kvfree(entry);
	pr_err("%s: %d\n", dev_name(&dev->dev), ret);
	return ret;
}

/* Counts requests that were not flushed once. */
static unsigned int count_wrong(struct kc_end *end)
{
	unsigned int i, wrong = 0;

	ib_drain_qp(end->qp);
	for (i = 0; i < KC_DEPTH; i++)
		wrong += end->recv[i].times != 1 || end->recv[i].strays ||
			 end->recv[i].wc.status != IB_WC_WR_FLUSH_ERR;
	return wrong;
}

static void remove_device(struct ib_device *dev, void *data)
{
	struct device_entry *entry = data;
	unsigned int wrong;

	scoped_guard(mutex, &devices_lock)
		list_del(&entry->list);
	wrong = count_wrong(&entry->pair.a) + count_wrong(&entry->pair.b);
	pr_info("removed %s, %u of %u requests were not flushed once\n",
		dev_name(&dev->dev), wrong, 2 * KC_DEPTH);
	kc_pair_close(&entry->pair);
	kvfree(entry);
}

static struct ib_client client = {
	.name = "qiao_kclient",
	.add = add_device,
	.remove = remove_device,
};

static int __init kclient_init(void)
{
	return ib_register_client(&client);
}
module_init(kclient_init);

static void __exit kclient_exit(void)
{
	ib_unregister_client(&client);
}
module_exit(kclient_exit);

MODULE_DESCRIPTION("Tests of RDMA devices by a consumer in the kernel");
MODULE_AUTHOR("The Qiao maintainers");
MODULE_LICENSE("GPL");
