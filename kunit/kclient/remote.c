// SPDX-License-Identifier: GPL-2.0
/*
 * An end whose peer is in another kernel, where the same happens. Whoever
 * tests gives these commands in turn to both:
 *
 *	open DEVICE TYPE CONTEXT	then a read gives the address
 *	join QPN LID RKEY ADDR		the peer's address, as it was read
 *	send				runs the tests of the operations
 *	check				of what the peer's have left here
 *	close
 *
 * Each end sends a pattern that begins with the low byte of its number.
 */

#include <linux/slab.h>
#include <linux/string.h>
#include <linux/sysfs.h>

#include "kclient.h"

/* Messages, and where in the memory that is received to they go. */
#define MESSAGES	8
#define MESSAGE_STEP	1024
/* Where the peer writes to. */
#define WRITE_OFFSET	(MESSAGES * MESSAGE_STEP)
#define WRITE_LENGTH	4001
/* The word that the peer changes. */
#define WORD_OFFSET	(WRITE_OFFSET + 4096)
/* Where this end reads to, and where the word that was changed goes. */
#define READ_OFFSET	(WORD_OFFSET + 64)
#define READ_LENGTH	2001
#define OLD_OFFSET	(READ_OFFSET + 2048)

#define START		0x0123456789abcdefULL
#define SWAPPED		0xfedcba9876543210ULL
#define ADDED		0x1000000000000001ULL

static struct {
	struct kc_pair *pair;
	const struct kc_context *context;
} remote;

static u32 length_of(unsigned int message)
{
	return 1 + message * 131;
}

static u8 own_seed(struct kc_pair *pair)
{
	return pair->a.qp->qp_num;
}

static u8 peer_seed(struct kc_pair *pair)
{
	return pair->peer.qpn;
}

static void post(struct kc_pair *pair, union kc_wr *wr, unsigned int n)
{
	int ret = kc_post(&pair->a, wr);

	kc_expect(pair, !ret, "post_send %u: %d", n, ret);
	kc_wait(pair, &pair->a, &pair->a.send[n], IB_WC_SUCCESS);
}

static void test_write(struct kc_pair *pair)
{
	struct ib_sge from = kc_tx(&pair->a, 3, WRITE_LENGTH);
	union kc_wr wr;

	kc_send_wr(pair, &wr, 0, &from, 1);
	wr.wr.opcode = IB_WR_RDMA_WRITE;
	wr.rdma.remote_addr = kc_peer_rx_addr(pair) + WRITE_OFFSET;
	wr.rdma.rkey = pair->peer.rkey;
	post(pair, &wr, 0);
}

static void test_read(struct kc_pair *pair)
{
	struct ib_sge to = kc_rx(&pair->a, READ_OFFSET, READ_LENGTH);
	union kc_wr wr;

	kc_send_wr(pair, &wr, 1, &to, 1);
	wr.wr.opcode = IB_WR_RDMA_READ;
	wr.rdma.remote_addr = pair->peer.addr + 5;
	wr.rdma.rkey = pair->peer.rkey;
	post(pair, &wr, 1);
	kc_check(pair, &pair->a, READ_OFFSET, peer_seed(pair), 5, READ_LENGTH);
}

/* Changes the peer's word; returns what it was. */
static u64 atomic(struct kc_pair *pair, unsigned int n,
		  enum ib_wr_opcode opcode, u64 first, u64 second)
{
	struct ib_sge to = kc_rx(&pair->a, OLD_OFFSET, sizeof(u64));
	union kc_wr wr;

	kc_send_wr(pair, &wr, n, &to, 1);
	wr.wr.opcode = opcode;
	wr.atomic.remote_addr = kc_peer_rx_addr(pair) + WORD_OFFSET;
	wr.atomic.rkey = pair->peer.rkey;
	wr.atomic.compare_add = first;
	wr.atomic.swap = second;
	post(pair, &wr, n);
	kc_for_cpu(&pair->a);
	return *(u64 *)(kc_rx_bytes(&pair->a) + OLD_OFFSET);
}

static void test_atomics(struct kc_pair *pair)
{
	u64 old;

	old = atomic(pair, 2, IB_WR_ATOMIC_CMP_AND_SWP, START, SWAPPED);
	kc_expect(pair, old == START, "the swap returns %#llx", old);
	old = atomic(pair, 3, IB_WR_ATOMIC_CMP_AND_SWP, START, 0);
	kc_expect(pair, old == SWAPPED, "the swap that misses returns %#llx",
		  old);
	old = atomic(pair, 4, IB_WR_ATOMIC_FETCH_AND_ADD, ADDED, 0);
	kc_expect(pair, old == SWAPPED, "the addition returns %#llx", old);
}

/* The last, so that the peer has all when it has received them. */
static void test_send(struct kc_pair *pair)
{
	union kc_wr wr;
	unsigned int i;

	for (i = 0; i < MESSAGES; i++) {
		struct ib_sge from = kc_tx(&pair->a, i, length_of(i));

		kc_send_wr(pair, &wr, KC_DEPTH + i, &from, 1);
		wr.wr.opcode = IB_WR_SEND_WITH_IMM;
		wr.wr.ex.imm_data = cpu_to_be32(i);
		post(pair, &wr, KC_DEPTH + i);
	}
}

static void check_messages(struct kc_pair *pair)
{
	const u32 offset = kc_data_offset(pair);
	unsigned int i;

	for (i = 0; i < MESSAGES; i++) {
		struct ib_wc *wc = &pair->a.recv[i].wc;
		u32 length = length_of(i);

		kc_wait(pair, &pair->a, &pair->a.recv[i], IB_WC_SUCCESS);
		kc_expect(pair, wc->byte_len == length + offset,
			  "message %u has %u bytes", i, wc->byte_len);
		kc_expect(pair, wc->ex.imm_data == cpu_to_be32(i),
			  "message %u has the immediate data %#x", i,
			  be32_to_cpu(wc->ex.imm_data));
		if (pair->type == IB_QPT_UD)
			kc_expect(pair,
				  wc->src_qp == pair->peer.qpn &&
					  wc->slid == pair->peer.lid,
				  "message %u is from queue pair %u of LID %u",
				  i, wc->src_qp, wc->slid);
		kc_check(pair, &pair->a, i * MESSAGE_STEP + offset,
			 peer_seed(pair), i, length);
	}
}

static void check_write(struct kc_pair *pair)
{
	kc_check(pair, &pair->a, WRITE_OFFSET, peer_seed(pair), 3,
		 WRITE_LENGTH);
}

static void check_word(struct kc_pair *pair)
{
	u64 word;

	kc_for_cpu(&pair->a);
	word = *(u64 *)(kc_rx_bytes(&pair->a) + WORD_OFFSET);
	kc_expect(pair, word == SWAPPED + ADDED, "the word is %#llx", word);
}

static const struct kc_case sends[] = {
	{ "write", KC_RC | KC_UC, test_write },
	{ "read", KC_RC, test_read },
	{ "atomics", KC_RC, test_atomics },
	{ "send", KC_ALL, test_send },
};

static const struct kc_case checks[] = {
	{ "messages received", KC_ALL, check_messages },
	{ "bytes written", KC_RC | KC_UC, check_write },
	{ "word changed", KC_RC, check_word },
};

static int run(const struct kc_case *cases, unsigned int count)
{
	struct kc_pair *pair = remote.pair;
	unsigned int i, number = 0, plan = 0;

	if (!pair || !pair->peer.qpn)
		return -ENOTCONN;
	for (i = 0; i < count; i++)
		plan += !!(cases[i].types & BIT(pair->type));
	kc_plan(plan);
	for (i = 0; i < count; i++) {
		if (!(cases[i].types & BIT(pair->type)))
			continue;
		pair->why[0] = 0;
		cases[i].run(pair);
		kc_result(++number, pair->type, remote.context, &cases[i],
			  pair->why);
	}
	return 0;
}

static int open_end(const char *command, kc_find find)
{
	char name[IB_DEVICE_NAME_MAX], type[8], context[16];
	const struct kc_context *found;
	struct ib_device *dev;
	struct kc_pair *pair;
	int ret;

	if (sscanf(command, "%63s %7s %15s", name, type, context) != 3)
		return -EINVAL;
	dev = find(name);
	found = kc_context_named(context);
	if (!dev || !found || kc_type_named(type) == IB_QPT_MAX)
		return -ENODEV;
	if (remote.pair)
		return -EBUSY;
	pair = kvzalloc_obj(*pair);
	if (!pair)
		return -ENOMEM;
	pair->type = kc_type_named(type);
	ret = kc_end_open(&pair->a, dev, pair->type, found->context);
	if (ret) {
		kvfree(pair);
		return ret;
	}
	remote.pair = pair;
	remote.context = found;
	return 0;
}

/* Lets the peer send, write and read. */
static int prepare(struct kc_pair *pair)
{
	unsigned int i;
	int ret;

	kc_fill(&pair->a, own_seed(pair));
	*(u64 *)(kc_rx_bytes(&pair->a) + WORD_OFFSET) = START;
	kc_for_device(&pair->a);
	ret = kc_join(pair);
	for (i = 0; !ret && i < MESSAGES; i++) {
		struct ib_sge to = kc_rx(&pair->a, i * MESSAGE_STEP,
					 MESSAGE_STEP);

		ret = kc_recv(&pair->a, i, &to, 1);
	}
	if (!ret)
		kc_settle(pair, pair->a.qp);
	return ret ?: pair->why[0] ? -EIO : 0;
}

static int join_peer(const char *command)
{
	struct kc_pair *pair = remote.pair;
	struct kc_address peer;

	if (!pair)
		return -ENOTCONN;
	if (sscanf(command, "%u %u %x %llx", &peer.qpn, &peer.lid, &peer.rkey,
		   &peer.addr) != 4)
		return -EINVAL;
	pair->peer = peer;
	return prepare(pair);
}

static void close_end(void)
{
	if (!remote.pair)
		return;
	kc_end_close(&remote.pair->a);
	kvfree(remote.pair);
	remote.pair = NULL;
}

/* Obeys a command; what "find" finds stays meanwhile. */
int kc_remote_set(const char *command, kc_find find)
{
	size_t prefix;

	prefix = str_has_prefix(command, "open ");
	if (prefix)
		return open_end(command + prefix, find);
	prefix = str_has_prefix(command, "join ");
	if (prefix)
		return join_peer(command + prefix);
	if (sysfs_streq(command, "send"))
		return run(sends, ARRAY_SIZE(sends));
	if (sysfs_streq(command, "check"))
		return run(checks, ARRAY_SIZE(checks));
	if (!sysfs_streq(command, "close"))
		return -EINVAL;
	close_end();
	return 0;
}

/* Says the address of the end. */
int kc_remote_get(char *buffer)
{
	struct kc_address own;

	if (!remote.pair)
		return -ENOTCONN;
	own = kc_address_of(&remote.pair->a);
	return sysfs_emit(buffer, "%u %u %#x %#llx\n", own.qpn, own.lid,
			  own.rkey, own.addr);
}

/* Closes the end if it is on a device that goes. */
void kc_remote_gone(struct ib_device *dev)
{
	if (remote.pair && remote.pair->a.dev == dev)
		close_end();
}
