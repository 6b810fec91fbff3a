// SPDX-License-Identifier: GPL-2.0
/*
 * The module: a client of all RDMA devices, and what starts the tests.
 *
 *	echo "DEVICE PEER" >/sys/module/qiao_kclient/parameters/run
 *
 * runs all tests between two devices, or within one if both are the same, and
 * writes the results to the kernel log as KTAP lines.
 *
 *	echo DEVICE >/sys/module/qiao_kclient/parameters/lose
 *
 * says so when it uses the device, waits until that fails, and then runs the
 * tests of that.
 *
 *	echo COMMAND >/sys/module/qiao_kclient/parameters/remote
 *
 * is for tests between two kernels, see remote.c. Besides, the client has on
 * each device a queue pair with receive requests that nothing will ever use,
 * for as long as the device is there.
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

const struct kc_context kc_contexts[KC_CONTEXTS] = {
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

void kc_say(const char *fmt, ...)
{
	struct va_format vaf = { .fmt = fmt };
	va_list args;

	va_start(args, fmt);
	vaf.va = &args;
	pr_info("%pV\n", &vaf);
	va_end(args);
}

/* Begins results in the form of KTAP. */
void kc_plan(unsigned int count)
{
	pr_info("KTAP version 1\n");
	pr_info("1..%u\n", count);
}

static const char *type_name(enum ib_qp_type type)
{
	unsigned int t;

	for (t = 0; t < ARRAY_SIZE(types); t++)
		if (types[t].type == type)
			return types[t].name;
	return "?";
}

enum ib_qp_type kc_type_named(const char *name)
{
	unsigned int t;

	for (t = 0; t < ARRAY_SIZE(types); t++)
		if (!strcmp(types[t].name, name))
			return types[t].type;
	return IB_QPT_MAX;
}

const struct kc_context *kc_context_named(const char *name)
{
	unsigned int c;

	for (c = 0; c < KC_CONTEXTS; c++)
		if (!strcmp(kc_contexts[c].name, name))
			return &kc_contexts[c];
	return NULL;
}

/* One result, which is good if there is no reason why not. */
void kc_result(unsigned int number, enum ib_qp_type type,
	       const struct kc_context *context, const struct kc_case *test,
	       const char *why)
{
	pr_info("%sok %u %s %s: %s%s%s\n", why[0] ? "not " : "", number,
		type_name(type), context->name, test->name,
		why[0] ? " # " : "", why);
}

/* All tests for one type of queue pair and one context of completions. */
struct suite {
	enum ib_qp_type type;
	const struct kc_context *context;
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
			   suite->context->context);
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
	kc_result(++*suite->number, suite->type, suite->context, test, why);
	kvfree(pair);
}

static unsigned int count_cases(enum ib_qp_type type)
{
	unsigned int i, count = 0;

	for (i = 0; i < kc_case_count; i++)
		count += !!(kc_cases[i].types & BIT(type));
	for (i = 0; i < kc_error_count; i++)
		count += !!(kc_errors[i].types & BIT(type));
	for (i = 0; i < kc_shared_count; i++)
		count += !!(kc_shared[i].types & BIT(type));
	return count;
}

static void run_suite(const struct suite *suite)
{
	unsigned int i;

	for (i = 0; i < kc_case_count; i++)
		run_case(suite, &kc_cases[i]);
	for (i = 0; i < kc_error_count; i++)
		run_case(suite, &kc_errors[i]);
	for (i = 0; i < kc_shared_count; i++)
		run_case(suite, &kc_shared[i]);
}

static void run_all(struct ib_device *a, struct ib_device *b)
{
	unsigned int t, c, number = 0, count = 0;

	for (t = 0; t < ARRAY_SIZE(types); t++)
		count += KC_CONTEXTS * count_cases(types[t].type);
	kc_plan(count);
	for (t = 0; t < ARRAY_SIZE(types); t++) {
		for (c = 0; c < KC_CONTEXTS; c++) {
			struct suite suite = {
				.type = types[t].type,
				.context = &kc_contexts[c],
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

static int set_lose(const char *value, const struct kernel_param *param)
{
	char name[IB_DEVICE_NAME_MAX];
	struct ib_device *dev;

	if (sscanf(value, "%63s", name) != 1)
		return -EINVAL;
	guard(mutex)(&devices_lock);
	dev = find_device(name);
	return dev ? kc_lose(dev) : -ENODEV;
}

static const struct kernel_param_ops lose_ops = {
	.set = set_lose,
};

module_param_cb(lose, &lose_ops, NULL, 0200);
MODULE_PARM_DESC(lose, "name of a device that is about to fail");

static int set_remote(const char *value, const struct kernel_param *param)
{
	guard(mutex)(&devices_lock);
	return kc_remote_set(value, find_device);
}

static int get_remote(char *buffer, const struct kernel_param *param)
{
	guard(mutex)(&devices_lock);
	return kc_remote_get(buffer);
}

static const struct kernel_param_ops remote_ops = {
	.set = set_remote,
	.get = get_remote,
};

module_param_cb(remote, &remote_ops, NULL, 0600);
MODULE_PARM_DESC(remote, "an end whose peer is in another kernel");

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

	scoped_guard(mutex, &devices_lock) {
		list_del(&entry->list);
		kc_remote_gone(dev);
	}
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
