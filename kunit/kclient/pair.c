// SPDX-License-Identifier: GPL-2.0
/*
 * Pairs of queue pairs, and requests that are posted to them.
 */

#include <linux/dma-mapping.h>
#include <linux/sched.h>
#include <linux/slab.h>

#include "kclient.h"

/* The Q_Key of all datagrams here. */
#define QKEY		0x11111111

#define RX_OFFSET	KC_BYTES
#define MEMORY		(KC_BYTES + KC_GRH + KC_BYTES)

static void request_done(struct ib_cq *cq, struct ib_wc *wc)
{
	struct kc_request *request =
		container_of(wc->wr_cqe, struct kc_request, cqe);

	if (wc->qp != request->qp)
		request->strays++;
	request->wc = *wc;
	request->times++;
	complete(&request->done);
}

void kc_await_use(struct kc_request *request, struct ib_qp *qp)
{
	memset(request, 0, sizeof(*request));
	request->cqe.done = request_done;
	request->qp = qp;
	init_completion(&request->done);
}

/* Forgets what was seen of all requests, of which none may be outstanding. */
void kc_prepare(struct kc_end *end)
{
	unsigned int i;

	for (i = 0; i < KC_REQUESTS; i++) {
		kc_await_use(&end->send[i], end->qp);
		kc_await_use(&end->recv[i], end->qp);
	}
}

struct ib_sge kc_tx(struct kc_end *end, u32 offset, u32 length)
{
	return (struct ib_sge) {
		.addr = end->dma + offset,
		.length = length,
		.lkey = end->pd->local_dma_lkey,
	};
}

struct ib_sge kc_rx(struct kc_end *end, u32 offset, u32 length)
{
	return kc_tx(end, RX_OFFSET + offset, length);
}

u8 *kc_tx_bytes(struct kc_end *end)
{
	return end->memory;
}

u8 *kc_rx_bytes(struct kc_end *end)
{
	return end->memory + RX_OFFSET;
}

static u8 pattern(u8 seed, u32 i)
{
	return seed + i * 7 + (i >> 8);
}

/* Puts a pattern where the end sends from, and clears where it receives to. */
void kc_fill(struct kc_end *end, u8 seed)
{
	u32 i;

	for (i = 0; i < KC_BYTES; i++)
		end->memory[i] = pattern(seed, i);
	memset(kc_rx_bytes(end), 0, MEMORY - RX_OFFSET);
	kc_for_device(end);
}

/* Checks that bytes of the pattern, from "from" on, were received at "at". */
void kc_check(struct kc_pair *pair, struct kc_end *end, u32 at, u8 seed,
	      u32 from, u32 length)
{
	u8 *bytes = kc_rx_bytes(end) + at;
	u32 i;

	kc_for_cpu(end);
	for (i = 0; i < length; i++)
		kc_expect(pair, bytes[i] == pattern(seed, from + i),
			  "byte %u is %#x instead of %#x", i, bytes[i],
			  pattern(seed, from + i));
}

/* Makes a test fail; what it says first is kept. */
void kc_fail(struct kc_pair *pair, const char *fmt, ...)
{
	va_list args;

	if (pair->why[0])
		return;
	va_start(args, fmt);
	vsnprintf(pair->why, sizeof(pair->why), fmt, args);
	va_end(args);
}

void kc_for_device(struct kc_end *end)
{
	ib_dma_sync_single_for_device(end->dev, end->dma, MEMORY,
				      DMA_BIDIRECTIONAL);
}

void kc_for_cpu(struct kc_end *end)
{
	ib_dma_sync_single_for_cpu(end->dev, end->dma, MEMORY,
				   DMA_BIDIRECTIONAL);
}

static struct ib_cq *open_cq(struct kc_end *end, int vector)
{
	vector %= end->dev->num_comp_vectors;
	return ib_alloc_cq(end->dev, end, KC_ENTRIES, vector, end->context);
}

static struct ib_qp *open_qp(struct kc_end *end, enum ib_qp_type type)
{
	struct ib_qp_init_attr attr = {
		.send_cq = end->send_cq,
		.recv_cq = end->recv_cq,
		.cap = {
			.max_send_wr = KC_DEPTH,
			.max_recv_wr = KC_DEPTH,
			.max_send_sge = KC_SGES,
			.max_recv_sge = KC_SGES,
			.max_inline_data = KC_INLINE,
		},
		.sq_sig_type = IB_SIGNAL_REQ_WR,
		.qp_type = type,
	};

	return ib_create_qp(end->pd, &attr);
}

/*
 * The core has no call for a region with the right of atomic operations but
 * fast registration, which not every device has.
 */
static struct ib_mr *open_mr(struct kc_end *end)
{
	struct ib_mr *mr;

	mr = end->dev->ops.get_dma_mr(end->pd, IB_ACCESS_LOCAL_WRITE |
						       IB_ACCESS_REMOTE_WRITE |
						       IB_ACCESS_REMOTE_READ |
						       IB_ACCESS_REMOTE_ATOMIC);
	if (!IS_ERR(mr)) {
		mr->device = end->dev;
		mr->pd = end->pd;
	}
	return mr;
}

int kc_end_open(struct kc_end *end, struct ib_device *dev,
		enum ib_qp_type type, enum ib_poll_context context)
{
	int ret;

	end->dev = dev;
	end->context = context;
	ret = ib_query_port(dev, KC_PORT, &end->port);
	if (ret)
		return ret;
	end->memory = kzalloc(MEMORY, GFP_KERNEL);
	if (!end->memory)
		return -ENOMEM;
	end->dma = ib_dma_map_single(dev, end->memory, MEMORY,
				     DMA_BIDIRECTIONAL);
	ret = ib_dma_mapping_error(dev, end->dma);
	if (ret)
		goto free;
	end->pd = ib_alloc_pd(dev, 0);
	if (IS_ERR(end->pd)) {
		ret = PTR_ERR(end->pd);
		goto unmap;
	}
	end->mr = open_mr(end);
	if (IS_ERR(end->mr)) {
		ret = PTR_ERR(end->mr);
		goto dealloc_pd;
	}
	end->send_cq = open_cq(end, 0);
	if (IS_ERR(end->send_cq)) {
		ret = PTR_ERR(end->send_cq);
		goto dereg_mr;
	}
	end->recv_cq = open_cq(end, 1);
	if (IS_ERR(end->recv_cq)) {
		ret = PTR_ERR(end->recv_cq);
		goto free_send_cq;
	}
	end->qp = open_qp(end, type);
	if (IS_ERR(end->qp)) {
		ret = PTR_ERR(end->qp);
		goto free_recv_cq;
	}
	kc_prepare(end);
	return 0;

free_recv_cq:
	ib_free_cq(end->recv_cq);
free_send_cq:
	ib_free_cq(end->send_cq);
dereg_mr:
	dev->ops.dereg_mr(end->mr, NULL);
dealloc_pd:
	ib_dealloc_pd(end->pd);
unmap:
	ib_dma_unmap_single(dev, end->dma, MEMORY, DMA_BIDIRECTIONAL);
free:
	kfree(end->memory);
	return ret;
}

void kc_end_close(struct kc_end *end)
{
	if (end->ah)
		rdma_destroy_ah(end->ah, RDMA_DESTROY_AH_SLEEPABLE);
	ib_destroy_qp(end->qp);
	ib_free_cq(end->recv_cq);
	ib_free_cq(end->send_cq);
	end->dev->ops.dereg_mr(end->mr, NULL);
	ib_dealloc_pd(end->pd);
	ib_dma_unmap_single(end->dev, end->dma, MEMORY, DMA_BIDIRECTIONAL);
	kfree(end->memory);
}

int kc_pair_open(struct kc_pair *pair, struct ib_device *a, struct ib_device *b,
		 enum ib_qp_type type, enum ib_poll_context context)
{
	int ret;

	pair->type = type;
	ret = kc_end_open(&pair->a, a, type, context);
	if (ret)
		return ret;
	ret = kc_end_open(&pair->b, b, type, context);
	if (ret) {
		kc_end_close(&pair->a);
		return ret;
	}
	ret = kc_connect(pair);
	if (ret)
		kc_pair_close(pair);
	return ret;
}

void kc_pair_close(struct kc_pair *pair)
{
	kc_end_close(&pair->b);
	kc_end_close(&pair->a);
}

/* What others must know of an end. */
struct kc_address kc_address_of(struct kc_end *end)
{
	return (struct kc_address) {
		.qpn = end->qp->qp_num,
		.lid = end->port.lid,
		.rkey = end->mr->rkey,
		.addr = end->dma,
	};
}

/* Where the peer of the first end receives to. */
u64 kc_peer_rx_addr(struct kc_pair *pair)
{
	return pair->peer.addr + RX_OFFSET;
}

static void address(struct kc_end *from, const struct kc_address *to,
		    struct rdma_ah_attr *attr)
{
	attr->type = rdma_ah_find_type(from->dev, KC_PORT);
	rdma_ah_set_dlid(attr, to->lid);
	rdma_ah_set_port_num(attr, KC_PORT);
}

/* Address handles can be made where nobody may sleep. */
static int make_ah(struct kc_end *from, const struct kc_address *to)
{
	struct rdma_ah_attr attr = {};

	if (from->ah)
		return 0;
	address(from, to, &attr);
	preempt_disable();
	from->ah = rdma_create_ah(from->pd, &attr, 0);
	preempt_enable();
	if (IS_ERR(from->ah)) {
		int ret = PTR_ERR(from->ah);

		from->ah = NULL;
		return ret;
	}
	return 0;
}

int kc_modify_state(struct kc_end *end, enum ib_qp_state state)
{
	struct ib_qp_attr attr = { .qp_state = state };

	return ib_modify_qp(end->qp, &attr, IB_QP_STATE);
}

static int to_init(struct kc_pair *pair, struct kc_end *end)
{
	struct ib_qp_attr attr = {
		.qp_state = IB_QPS_INIT,
		.port_num = KC_PORT,
		.qkey = QKEY,
	};
	int mask = IB_QP_STATE | IB_QP_PKEY_INDEX | IB_QP_PORT;

	if (pair->type == IB_QPT_UD)
		return ib_modify_qp(end->qp, &attr, mask | IB_QP_QKEY);
	attr.qp_access_flags = IB_ACCESS_REMOTE_WRITE;
	if (pair->type == IB_QPT_RC)
		attr.qp_access_flags |= IB_ACCESS_REMOTE_READ |
					IB_ACCESS_REMOTE_ATOMIC;
	return ib_modify_qp(end->qp, &attr, mask | IB_QP_ACCESS_FLAGS);
}

static int to_rtr(struct kc_pair *pair, struct kc_end *end,
		  const struct kc_address *peer)
{
	struct ib_qp_attr attr = {
		.qp_state = IB_QPS_RTR,
		.path_mtu = IB_MTU_1024,
		.dest_qp_num = peer->qpn,
		.rq_psn = 0xfffffe,
		.max_dest_rd_atomic = 4,
		/* 20 ms: who is not ready in a test may never be. */
		.min_rnr_timer = 22,
	};
	int mask = IB_QP_STATE;

	if (pair->type != IB_QPT_UD)
		mask |= IB_QP_AV | IB_QP_PATH_MTU | IB_QP_DEST_QPN |
			IB_QP_RQ_PSN;
	if (pair->type == IB_QPT_RC)
		mask |= IB_QP_MAX_DEST_RD_ATOMIC | IB_QP_MIN_RNR_TIMER;
	address(end, peer, &attr.ah_attr);
	return ib_modify_qp(end->qp, &attr, mask);
}

static int to_rts(struct kc_pair *pair, struct kc_end *end)
{
	struct ib_qp_attr attr = {
		.qp_state = IB_QPS_RTS,
		.sq_psn = 0xfffffe,
		.timeout = 18,
		.retry_cnt = 7,
		.rnr_retry = 7,
		.max_rd_atomic = 4,
	};
	int mask = IB_QP_STATE | IB_QP_SQ_PSN;

	if (pair->type == IB_QPT_RC)
		mask |= IB_QP_TIMEOUT | IB_QP_RETRY_CNT | IB_QP_RNR_RETRY |
			IB_QP_MAX_QP_RD_ATOMIC;
	return ib_modify_qp(end->qp, &attr, mask);
}

/* Brings a queue pair from INIT to RTS. */
static int join(struct kc_pair *pair, struct kc_end *end,
		const struct kc_address *peer)
{
	int ret;

	ret = to_rtr(pair, end, peer) ?: to_rts(pair, end);
	if (!ret && pair->type == IB_QPT_UD)
		ret = make_ah(end, peer);
	if (!ret)
		kc_prepare(end);
	return ret;
}

/* Brings the queue pair of the first end to RTS, whose peer is not here. */
int kc_join(struct kc_pair *pair)
{
	return to_init(pair, &pair->a) ?: join(pair, &pair->a, &pair->peer);
}

/* Brings both queue pairs from any state to RTS, by way of RESET. */
int kc_connect(struct kc_pair *pair)
{
	struct kc_end *ends[] = { &pair->a, &pair->b };
	struct kc_address first = kc_address_of(&pair->a);
	int i, ret;

	pair->peer = kc_address_of(&pair->b);
	for (i = 0; i < 2; i++) {
		ret = kc_modify_state(ends[i], IB_QPS_RESET) ?:
		      to_init(pair, ends[i]);
		if (ret)
			return ret;
	}
	return join(pair, &pair->a, &pair->peer) ?:
	       join(pair, &pair->b, &first);
}

/* Posts the receive request n. */
int kc_recv(struct kc_end *end, unsigned int n, struct ib_sge *sges, int count)
{
	struct ib_recv_wr wr = {
		.wr_cqe = &end->recv[n].cqe,
		.sg_list = sges,
		.num_sge = count,
	};

	return ib_post_recv(end->qp, &wr, NULL);
}

/*
 * Posts the receive request n of the second end, and waits until its device
 * has seen it: what reaches an unreliable queue pair before is lost.
 */
void kc_expect_message(struct kc_pair *pair, unsigned int n,
		       struct ib_sge *sges, int count)
{
	int ret;

	ret = kc_recv(&pair->b, n, sges, count);
	kc_expect(pair, !ret, "post_recv: %d", ret);
	kc_settle(pair, pair->b.qp);
}

/* Waits until the device of a queue pair has seen all doorbells. */
void kc_settle(struct kc_pair *pair, struct ib_qp *qp)
{
	struct ib_qp_init_attr init;
	struct ib_qp_attr attr;
	int ret;

	ret = ib_query_qp(qp, &attr, IB_QP_STATE, &init);
	kc_expect(pair, !ret, "query_qp: %d", ret);
}

/* Makes the request n of the first end a signaled send to the second. */
void kc_send_wr(struct kc_pair *pair, union kc_wr *wr, unsigned int n,
		struct ib_sge *sges, int count)
{
	memset(wr, 0, sizeof(*wr));
	wr->wr.wr_cqe = &pair->a.send[n].cqe;
	wr->wr.sg_list = sges;
	wr->wr.num_sge = count;
	wr->wr.opcode = IB_WR_SEND;
	wr->wr.send_flags = IB_SEND_SIGNALED;
	if (pair->type == IB_QPT_UD) {
		wr->ud.ah = pair->a.ah;
		wr->ud.remote_qpn = pair->peer.qpn;
		wr->ud.remote_qkey = QKEY;
	}
}

int kc_post(struct kc_end *end, union kc_wr *wr)
{
	return ib_post_send(end->qp, &wr->wr, NULL);
}

/* Takes completions out of queues that nobody else polls. */
int kc_poll(struct kc_end *end)
{
	if (end->context != IB_POLL_DIRECT)
		return 0;
	return ib_process_cq_direct(end->send_cq, -1) +
	       ib_process_cq_direct(end->recv_cq, -1);
}

/* Checks that a request is done once. */
void kc_once(struct kc_pair *pair, struct kc_request *request)
{
	kc_expect(pair, request->times == 1, "it completed %u times",
		  request->times);
	kc_expect(pair, !request->strays, "it completed on another queue pair");
}

static bool await(struct kc_pair *pair, struct kc_end *end,
		  struct kc_request *request)
{
	unsigned long end_time = jiffies + KC_TIMEOUT;

	if (end->context != IB_POLL_DIRECT)
		return wait_for_completion_timeout(&request->done, KC_TIMEOUT);
	while (!try_wait_for_completion(&request->done)) {
		if (time_after(jiffies, end_time))
			return false;
		if (!kc_poll(&pair->a) && !kc_poll(&pair->b))
			cond_resched();
	}
	return true;
}

/* Waits for a request, which must be done once, with this status. */
void kc_wait(struct kc_pair *pair, struct kc_end *end,
	     struct kc_request *request, enum ib_wc_status status)
{
	/* What has failed already may keep it from ever being done. */
	if (pair->why[0])
		return;
	if (!await(pair, end, request)) {
		kc_fail(pair, "no completion");
		return;
	}
	kc_expect(pair, request->wc.status == status, "status %s instead of %s",
		  ib_wc_status_msg(request->wc.status),
		  ib_wc_status_msg(status));
	kc_once(pair, request);
}

/* Bytes of the largest message here, of which a datagram must fit a packet. */
u32 kc_max_message(struct kc_pair *pair)
{
	if (pair->type != IB_QPT_UD)
		return KC_BYTES;
	return min(ib_mtu_enum_to_int(pair->a.port.active_mtu), KC_BYTES);
}

/* Where the data of a message starts in the memory of its receive request. */
u32 kc_data_offset(struct kc_pair *pair)
{
	return pair->type == IB_QPT_UD ? KC_GRH : 0;
}
