// SPDX-License-Identifier: GPL-2.0
/*
 * What must work: each operation, to the last byte.
 */

#include <linux/irqflags.h>
#include <linux/sched.h>

#include "kclient.h"

#define IMM		cpu_to_be32(0x12345678)
#define SEED		0x5a
/* More messages than any queue holds, so that all rings go around. */
#define MANY		(20 * KC_DEPTH)

/* Sends a message of several pieces, received in several pieces. */
static void send_pieces(struct kc_pair *pair, union kc_wr *wr, u32 length)
{
	struct ib_sge to[] = {
		kc_rx(&pair->b, 0, 100),
		kc_rx(&pair->b, 100, 1),
		kc_rx(&pair->b, 101, KC_GRH + length - 101),
	};
	struct ib_sge from[] = {
		kc_tx(&pair->a, 0, 5),
		kc_tx(&pair->a, 5, 0),
		kc_tx(&pair->a, 5, length - 5),
	};
	struct kc_request *sent = &pair->a.send[0], *received = &pair->b.recv[0];
	enum ib_wr_opcode opcode = wr->wr.opcode;
	int flags = wr->wr.send_flags, ret;
	__be32 imm = wr->wr.ex.imm_data;

	kc_fill(&pair->a, SEED);
	kc_fill(&pair->b, 0);
	kc_expect_message(pair, 0, to, ARRAY_SIZE(to));
	kc_send_wr(pair, wr, 0, from, ARRAY_SIZE(from));
	wr->wr.opcode = opcode;
	wr->wr.send_flags |= flags;
	wr->wr.ex.imm_data = imm;
	ret = kc_post(&pair->a, wr);
	kc_expect(pair, !ret, "post_send: %d", ret);
	kc_wait(pair, &pair->a, sent, IB_WC_SUCCESS);
	kc_wait(pair, &pair->b, received, IB_WC_SUCCESS);
	kc_expect(pair, sent->wc.opcode == IB_WC_SEND, "sent as %d",
		  sent->wc.opcode);
	kc_expect(pair, received->wc.opcode == IB_WC_RECV, "received as %d",
		  received->wc.opcode);
	kc_expect(pair,
		  received->wc.byte_len == length + kc_data_offset(pair),
		  "%u bytes were received", received->wc.byte_len);
	if (pair->type == IB_QPT_UD) {
		kc_expect(pair, received->wc.src_qp == pair->a.qp->qp_num,
			  "from queue pair %u", received->wc.src_qp);
		kc_expect(pair, received->wc.slid == pair->a.port.lid,
			  "from LID %u", received->wc.slid);
	}
	kc_check(pair, &pair->b, kc_data_offset(pair), SEED, 0, length);
}

static void test_send(struct kc_pair *pair)
{
	union kc_wr wr = { .wr.opcode = IB_WR_SEND };

	send_pieces(pair, &wr, kc_max_message(pair) - KC_GRH);
	kc_expect(pair, !pair->b.recv[0].wc.wc_flags, "flags %#x",
		  pair->b.recv[0].wc.wc_flags);
}

static void test_send_imm(struct kc_pair *pair)
{
	union kc_wr wr = { .wr.opcode = IB_WR_SEND_WITH_IMM };
	struct ib_wc *wc = &pair->b.recv[0].wc;

	wr.wr.ex.imm_data = IMM;
	wr.wr.send_flags = IB_SEND_SOLICITED | IB_SEND_FENCE;
	send_pieces(pair, &wr, 300);
	kc_expect(pair, wc->wc_flags & IB_WC_WITH_IMM, "no immediate data");
	kc_expect(pair, wc->ex.imm_data == IMM, "immediate data %#x",
		  be32_to_cpu(wc->ex.imm_data));
}

/* Inline data is taken by the time that the call returns. */
static void test_inline(struct kc_pair *pair)
{
	struct ib_sge to = kc_rx(&pair->b, 0, KC_GRH + KC_INLINE);
	struct ib_sge from[] = {
		{ .addr = (uintptr_t)kc_tx_bytes(&pair->a), .length = 13 },
		{ .addr = (uintptr_t)kc_tx_bytes(&pair->a) + 13,
		  .length = KC_INLINE - 13 },
	};
	union kc_wr wr;
	int ret;

	kc_fill(&pair->a, SEED);
	kc_fill(&pair->b, 0);
	kc_expect_message(pair, 0, &to, 1);
	kc_send_wr(pair, &wr, 0, from, ARRAY_SIZE(from));
	wr.wr.send_flags |= IB_SEND_INLINE;
	ret = kc_post(&pair->a, &wr);
	kc_expect(pair, !ret, "post_send: %d", ret);
	memset(kc_tx_bytes(&pair->a), 0, KC_INLINE);
	kc_wait(pair, &pair->a, &pair->a.send[0], IB_WC_SUCCESS);
	kc_wait(pair, &pair->b, &pair->b.recv[0], IB_WC_SUCCESS);
	kc_check(pair, &pair->b, kc_data_offset(pair), SEED, 0, KC_INLINE);
}

/* A message without a byte. */
static void test_empty(struct kc_pair *pair)
{
	struct ib_sge to = kc_rx(&pair->b, 0, KC_GRH);
	union kc_wr wr;
	int ret;

	kc_expect_message(pair, 0, &to, 1);
	kc_send_wr(pair, &wr, 0, NULL, 0);
	ret = kc_post(&pair->a, &wr);
	kc_expect(pair, !ret, "post_send: %d", ret);
	kc_wait(pair, &pair->a, &pair->a.send[0], IB_WC_SUCCESS);
	kc_wait(pair, &pair->b, &pair->b.recv[0], IB_WC_SUCCESS);
	kc_expect(pair,
		  pair->b.recv[0].wc.byte_len == kc_data_offset(pair),
		  "%u bytes were received", pair->b.recv[0].wc.byte_len);
}

static void rdma(struct kc_pair *pair, union kc_wr *wr, struct ib_sge *sge,
		 enum ib_wr_opcode opcode, u64 remote_addr)
{
	int ret;

	kc_send_wr(pair, wr, 0, sge, 1);
	wr->wr.opcode = opcode;
	wr->wr.ex.imm_data = IMM;
	wr->rdma.remote_addr = remote_addr;
	wr->rdma.rkey = pair->peer.rkey;
	ret = kc_post(&pair->a, wr);
	kc_expect(pair, !ret, "post_send: %d", ret);
}

static void test_write(struct kc_pair *pair)
{
	struct ib_sge from = kc_tx(&pair->a, 1, KC_BYTES - 1);
	union kc_wr wr;

	kc_fill(&pair->a, SEED);
	kc_fill(&pair->b, 0);
	rdma(pair, &wr, &from, IB_WR_RDMA_WRITE, kc_peer_rx_addr(pair));
	kc_wait(pair, &pair->a, &pair->a.send[0], IB_WC_SUCCESS);
	kc_expect(pair, pair->a.send[0].wc.opcode == IB_WC_RDMA_WRITE,
		  "done as %d", pair->a.send[0].wc.opcode);
	/* Only an acknowledgment says that the data is there. */
	if (pair->type == IB_QPT_RC)
		kc_check(pair, &pair->b, 0, SEED, 1, KC_BYTES - 1);
}

static void test_write_imm(struct kc_pair *pair)
{
	struct ib_sge from = kc_tx(&pair->a, 0, 5000);
	struct ib_wc *wc = &pair->b.recv[0].wc;
	union kc_wr wr;

	kc_fill(&pair->a, SEED);
	kc_fill(&pair->b, 0);
	kc_expect_message(pair, 0, NULL, 0);
	rdma(pair, &wr, &from, IB_WR_RDMA_WRITE_WITH_IMM, kc_peer_rx_addr(pair) + 3);
	kc_wait(pair, &pair->a, &pair->a.send[0], IB_WC_SUCCESS);
	kc_wait(pair, &pair->b, &pair->b.recv[0], IB_WC_SUCCESS);
	kc_expect(pair, wc->opcode == IB_WC_RECV_RDMA_WITH_IMM, "received as %d",
		  wc->opcode);
	kc_expect(pair, wc->ex.imm_data == IMM, "immediate data %#x",
		  be32_to_cpu(wc->ex.imm_data));
	kc_check(pair, &pair->b, 3, SEED, 0, 5000);
}

static void test_read(struct kc_pair *pair)
{
	struct ib_sge to = kc_rx(&pair->a, 0, KC_BYTES - 7);
	union kc_wr wr;

	kc_fill(&pair->a, 0);
	kc_fill(&pair->b, SEED);
	rdma(pair, &wr, &to, IB_WR_RDMA_READ, pair->b.dma + 7);
	kc_wait(pair, &pair->a, &pair->a.send[0], IB_WC_SUCCESS);
	kc_expect(pair, pair->a.send[0].wc.opcode == IB_WC_RDMA_READ,
		  "done as %d", pair->a.send[0].wc.opcode);
	kc_check(pair, &pair->a, 0, SEED, 7, KC_BYTES - 7);
}

/* Does an atomic operation on the first word of the second end. */
static void atomic(struct kc_pair *pair, enum ib_wr_opcode opcode, u64 first,
		   u64 second, u64 *before, u64 *after)
{
	struct ib_sge to = kc_rx(&pair->a, 0, sizeof(u64));
	union kc_wr wr;
	int ret;

	kc_await_use(&pair->a.send[0], pair->a.qp);
	kc_send_wr(pair, &wr, 0, &to, 1);
	wr.wr.opcode = opcode;
	wr.atomic.remote_addr = kc_peer_rx_addr(pair);
	wr.atomic.rkey = pair->peer.rkey;
	wr.atomic.compare_add = first;
	wr.atomic.swap = second;
	ret = kc_post(&pair->a, &wr);
	kc_expect(pair, !ret, "post_send: %d", ret);
	kc_wait(pair, &pair->a, &pair->a.send[0], IB_WC_SUCCESS);
	kc_for_cpu(&pair->a);
	kc_for_cpu(&pair->b);
	*before = *(u64 *)kc_rx_bytes(&pair->a);
	*after = *(u64 *)kc_rx_bytes(&pair->b);
}

static void test_atomics(struct kc_pair *pair)
{
	const u64 start = 0x1122334455667788, other = 0xfedcba9876543210;
	u64 before, after;

	kc_fill(&pair->a, 0);
	kc_fill(&pair->b, 0);
	*(u64 *)kc_rx_bytes(&pair->b) = start;
	kc_for_device(&pair->b);

	atomic(pair, IB_WR_ATOMIC_CMP_AND_SWP, other, 1, &before, &after);
	kc_expect(pair, before == start && after == start,
		  "a swap that must miss: %#llx, then %#llx", before, after);
	atomic(pair, IB_WR_ATOMIC_CMP_AND_SWP, start, other, &before, &after);
	kc_expect(pair, before == start && after == other,
		  "a swap that must hit: %#llx, then %#llx", before, after);
	atomic(pair, IB_WR_ATOMIC_FETCH_AND_ADD, start, 0, &before, &after);
	kc_expect(pair, before == other && after == other + start,
		  "an addition: %#llx, then %#llx", before, after);
}

/* A list of requests of which only the last is signaled. */
static void test_list(struct kc_pair *pair)
{
	struct ib_sge from[KC_DEPTH / 2], to[KC_DEPTH / 2];
	union kc_wr wrs[KC_DEPTH / 2];
	const unsigned int count = KC_DEPTH / 2;
	unsigned int i;
	int ret;

	kc_fill(&pair->a, SEED);
	kc_fill(&pair->b, 0);
	for (i = 0; i < count; i++) {
		to[i] = kc_rx(&pair->b, i * 200, 200);
		kc_expect_message(pair, i, &to[i], 1);
		from[i] = kc_tx(&pair->a, i * 100, 100);
		kc_send_wr(pair, &wrs[i], i, &from[i], 1);
		if (i + 1 < count) {
			wrs[i].wr.next = &wrs[i + 1].wr;
			wrs[i].wr.send_flags = 0;
		}
	}
	ret = kc_post(&pair->a, &wrs[0]);
	kc_expect(pair, !ret, "post_send: %d", ret);
	kc_wait(pair, &pair->a, &pair->a.send[count - 1], IB_WC_SUCCESS);
	for (i = 0; i < count; i++) {
		kc_wait(pair, &pair->b, &pair->b.recv[i], IB_WC_SUCCESS);
		kc_check(pair, &pair->b, i * 200 + kc_data_offset(pair), SEED,
			 i * 100, 100);
	}
	for (i = 0; i + 1 < count; i++)
		kc_expect(pair, !pair->a.send[i].times,
			  "request %u was not signaled", i);
}

/* Many messages, posted where interrupts are off. */
static void test_many(struct kc_pair *pair)
{
	struct ib_sge from, to = kc_rx(&pair->b, 0, KC_GRH + 64);
	unsigned long flags;
	union kc_wr wr;
	unsigned int i;
	int ret;

	kc_fill(&pair->a, SEED);
	kc_fill(&pair->b, 0);
	for (i = 0; !pair->why[0] && i < MANY; i++) {
		unsigned int n = i % KC_DEPTH;

		kc_await_use(&pair->b.recv[n], pair->b.qp);
		kc_await_use(&pair->a.send[n], pair->a.qp);
		from = kc_tx(&pair->a, i, 64);
		kc_send_wr(pair, &wr, n, &from, 1);
		local_irq_save(flags);
		ret = kc_recv(&pair->b, n, &to, 1);
		local_irq_restore(flags);
		kc_settle(pair, pair->b.qp);
		local_irq_save(flags);
		ret = ret ?: kc_post(&pair->a, &wr);
		local_irq_restore(flags);
		kc_expect(pair, !ret, "message %u: %d", i, ret);
		kc_wait(pair, &pair->a, &pair->a.send[n], IB_WC_SUCCESS);
		kc_wait(pair, &pair->b, &pair->b.recv[n], IB_WC_SUCCESS);
		kc_check(pair, &pair->b, kc_data_offset(pair), SEED, i, 64);
	}
}

static void test_query(struct kc_pair *pair)
{
	struct ib_qp_init_attr init = {};
	struct ib_qp_attr attr = {};
	int ret;

	ret = ib_query_qp(pair->a.qp, &attr, IB_QP_STATE | IB_QP_CAP, &init);
	kc_expect(pair, !ret, "query_qp: %d", ret);
	kc_expect(pair, attr.qp_state == IB_QPS_RTS, "state %d", attr.qp_state);
	kc_expect(pair, init.cap.max_send_wr >= KC_DEPTH, "%u send requests",
		  init.cap.max_send_wr);
	kc_expect(pair, init.send_cq == pair->a.send_cq, "another queue");
}

const struct kc_case kc_cases[] = {
	{ "send", KC_ALL, test_send },
	{ "send with immediate, solicited, fenced", KC_ALL, test_send_imm },
	{ "inline", KC_ALL, test_inline },
	{ "no data", KC_ALL, test_empty },
	{ "write", KC_RC | KC_UC, test_write },
	{ "write with immediate", KC_RC | KC_UC, test_write_imm },
	{ "read", KC_RC, test_read },
	{ "atomics", KC_RC, test_atomics },
	{ "list with one completion", KC_ALL, test_list },
	{ "many, interrupts off", KC_ALL, test_many },
	{ "query", KC_ALL, test_query },
};

const unsigned int kc_case_count = ARRAY_SIZE(kc_cases);
