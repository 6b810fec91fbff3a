/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A consumer of RDMA devices in the kernel that tests them.
 *
 * It knows nothing of any driver: all goes through the verbs of ib_core.
 */

#ifndef QIAO_KCLIENT_H
#define QIAO_KCLIENT_H

#include <linux/completion.h>
#include <linux/types.h>
#include <rdma/ib_verbs.h>

/* Requests that each queue of a test holds. */
#define KC_DEPTH	16
/* Entries of each completion queue: all requests of a pair, and some. */
#define KC_ENTRIES	(4 * KC_DEPTH + 8)
/* Pieces of memory of each request. */
#define KC_SGES		3
/* Bytes of inline data of each request. */
#define KC_INLINE	64
/* Bytes that each end sends from, and receives to. */
#define KC_BYTES	16384
/* Bytes that a datagram has before its data. */
#define KC_GRH		40
/* Requests that a test has at a time. */
#define KC_REQUESTS	(2 * KC_DEPTH)

/*
 * One request: what was seen of it. A request that is done twice, or by a
 * completion that belongs to another queue pair, is counted as such.
 */
struct kc_request {
	struct ib_cqe cqe;
	struct ib_qp *qp;
	struct ib_wc wc;
	unsigned int times;
	unsigned int strays;
	struct completion done;
};

/* One side of a pair of queue pairs. */
struct kc_end {
	struct ib_device *dev;
	struct ib_pd *pd;
	struct ib_mr *mr;
	struct ib_cq *send_cq;
	struct ib_cq *recv_cq;
	struct ib_qp *qp;
	struct ib_ah *ah;
	struct ib_port_attr port;
	enum ib_poll_context context;
	/* KC_BYTES to send from, then KC_GRH + KC_BYTES to receive to. */
	u8 *memory;
	u64 dma;
	struct kc_request send[KC_REQUESTS];
	struct kc_request recv[KC_REQUESTS];
};

/* Where an end is, and its memory, to others. */
struct kc_address {
	u32 qpn;
	u32 lid;
	u32 rkey;
	u64 addr;
};

/*
 * Two ends, whose first is the one that starts. The second may be in another
 * kernel; then there is only what the first knows of it.
 */
struct kc_pair {
	enum ib_qp_type type;
	struct kc_end a;
	struct kc_end b;
	/* The second end as the first sees it. */
	struct kc_address peer;
	/* Why a test failed; empty if it did not. */
	char why[160];
};

/* A test; types has a bit for each type of queue pair that it is for. */
struct kc_case {
	const char *name;
	unsigned int types;
	void (*run)(struct kc_pair *pair);
};

/* Who polls the completion queues of a pair. */
struct kc_context {
	const char *name;
	enum ib_poll_context context;
};

#define KC_CONTEXTS	3

extern const struct kc_context kc_contexts[KC_CONTEXTS];

enum ib_qp_type kc_type_named(const char *name);
const struct kc_context *kc_context_named(const char *name);

#define KC_RC	BIT(IB_QPT_RC)
#define KC_UC	BIT(IB_QPT_UC)
#define KC_UD	BIT(IB_QPT_UD)
#define KC_ALL	(KC_RC | KC_UC | KC_UD)

extern const struct kc_case kc_cases[];
extern const unsigned int kc_case_count;
extern const struct kc_case kc_errors[];
extern const unsigned int kc_error_count;
extern const struct kc_case kc_shared[];
extern const unsigned int kc_shared_count;

#define KC_PORT	1
/* A guard against hangs, not a measurement. */
#define KC_TIMEOUT	(120 * HZ)

/* Makes a test fail unless something holds; the test goes on. */
#define kc_expect(pair, condition, fmt, ...)				\
	do {								\
		if (!(condition))					\
			kc_fail(pair, fmt, ##__VA_ARGS__);		\
	} while (0)

__printf(2, 3) void kc_fail(struct kc_pair *pair, const char *fmt, ...);

__printf(1, 2) void kc_say(const char *fmt, ...);
void kc_plan(unsigned int count);
void kc_result(unsigned int number, enum ib_qp_type type,
	       const struct kc_context *context, const struct kc_case *test,
	       const char *why);
int kc_lose(struct ib_device *dev);

typedef struct ib_device *(*kc_find)(const char *name);

int kc_remote_set(const char *command, kc_find find);
int kc_remote_get(char *buffer);
void kc_remote_gone(struct ib_device *dev);

int kc_end_open(struct kc_end *end, struct ib_device *dev,
		enum ib_qp_type type, enum ib_poll_context context);
void kc_end_close(struct kc_end *end);
struct kc_address kc_address_of(struct kc_end *end);
int kc_join(struct kc_pair *pair);
int kc_pair_open(struct kc_pair *pair, struct ib_device *a, struct ib_device *b,
		 enum ib_qp_type type, enum ib_poll_context context);
void kc_pair_close(struct kc_pair *pair);
int kc_connect(struct kc_pair *pair);
int kc_modify_state(struct kc_end *end, enum ib_qp_state state);

struct ib_sge kc_tx(struct kc_end *end, u32 offset, u32 length);
struct ib_sge kc_rx(struct kc_end *end, u32 offset, u32 length);
u8 *kc_tx_bytes(struct kc_end *end);
u8 *kc_rx_bytes(struct kc_end *end);
u64 kc_peer_rx_addr(struct kc_pair *pair);
void kc_fill(struct kc_end *end, u8 seed);
void kc_check(struct kc_pair *pair, struct kc_end *end, u32 at, u8 seed,
	      u32 from, u32 length);
void kc_for_device(struct kc_end *end);
void kc_for_cpu(struct kc_end *end);

void kc_prepare(struct kc_end *end);
void kc_await_use(struct kc_request *request, struct ib_qp *qp);
int kc_recv(struct kc_end *end, unsigned int n, struct ib_sge *sges, int count);
void kc_expect_message(struct kc_pair *pair, unsigned int n,
		       struct ib_sge *sges, int count);
void kc_settle(struct kc_pair *pair, struct ib_qp *qp);
void kc_wait(struct kc_pair *pair, struct kc_end *end,
	     struct kc_request *request, enum ib_wc_status status);
int kc_poll(struct kc_end *end);
void kc_once(struct kc_pair *pair, struct kc_request *request);

/* Any send request; ud counts for datagrams. */
union kc_wr {
	struct ib_send_wr wr;
	struct ib_rdma_wr rdma;
	struct ib_atomic_wr atomic;
	struct ib_ud_wr ud;
};

void kc_send_wr(struct kc_pair *pair, union kc_wr *wr, unsigned int n,
		struct ib_sge *sges, int count);
int kc_post(struct kc_end *end, union kc_wr *wr);
u32 kc_max_message(struct kc_pair *pair);
u32 kc_data_offset(struct kc_pair *pair);

#endif
