/* SPDX-License-Identifier: ((GPL-2.0 WITH Linux-syscall-note) OR MIT) */
#ifndef QIAO_ABI_USER_H
#define QIAO_ABI_USER_H

#include <linux/types.h>

/*
 * Increment when the ABI changes in a way that an older library or driver
 * cannot cope with. Fields are only ever appended, and comp_mask says which
 * of the appended ones count.
 */
#define QIAO_ABI_VERSION 1

/*
 * Bytes of a doorbell slot; a queue pair has two, its receive queue second,
 * and with an SRQ only the first.
 */
#define QIAO_DOORBELL_SLOT_SIZE 8

/* Bytes behind the entries of a CQ: the doorbell record on its own line. */
#define QIAO_CQ_RECORD_SIZE 64

struct qiao_alloc_ucontext_resp {
	__aligned_u64 comp_mask;
	/* Features of the part, as the interface numbers them. */
	__aligned_u64 features;
	/* Largest inline data of a send request in bytes. */
	__u32 max_inline;
	/* Largest number of data segments of a request. */
	__u32 max_sge;
	/* Log2 of the largest send queue in 64-byte blocks. */
	__u8 log_max_sq_blocks;
	/* Log2 of the largest receive queue or SRQ in requests. */
	__u8 log_max_rq_wqes;
	/* Log2 of the largest CQ in entries. */
	__u8 log_max_cqe;
	__u8 reserved[5];
};

struct qiao_alloc_pd_resp {
	__u32 pdn;
	__u32 reserved;
};

/*
 * The buffer holds 2^log_entries entries and the doorbell record behind
 * them, and starts at a multiple of 64 bytes.
 */
struct qiao_create_cq_req {
	__aligned_u64 comp_mask;
	__aligned_u64 buf_addr;
	__u8 log_entries;
	__u8 reserved[7];
};

struct qiao_create_cq_resp {
	__aligned_u64 comp_mask;
	/* Offset for mmap() of the page that holds the doorbell slot. */
	__aligned_u64 db_mmap_offset;
	/* Offset of the slot in that page in bytes. */
	__u32 db_offset;
	__u32 cqn;
};

/* The new buffer is as that of a new CQ, with the consumer index in its record. */
struct qiao_resize_cq_req {
	__aligned_u64 comp_mask;
	__aligned_u64 buf_addr;
	__u8 log_entries;
	__u8 reserved[7];
};

struct qiao_resize_cq_resp {
	/* Index of the first completion in the new buffer. */
	__u32 base;
	__u32 reserved;
};

/*
 * The buffer holds the receive ring, 2^(log_rq_wqes + log_rq_stride) bytes,
 * and behind it the send ring, 2^log_sq_blocks blocks of 64 bytes. Both start
 * at a multiple of 64 bytes. With an SRQ there is no receive ring and both
 * log_rq values are zero.
 */
struct qiao_create_qp_req {
	__aligned_u64 comp_mask;
	__aligned_u64 buf_addr;
	__u8 log_sq_blocks;
	__u8 log_rq_wqes;
	__u8 log_rq_stride;
	__u8 reserved[5];
};

struct qiao_create_qp_resp {
	__aligned_u64 comp_mask;
	/* Offset for mmap() of the page that holds the doorbell slots. */
	__aligned_u64 db_mmap_offset;
	/* Offset of the send queue's slot in that page in bytes. */
	__u32 db_offset;
	__u32 qpn;
};

/*
 * The buffer holds 2^log_wqes requests of 2^log_stride bytes and, at the next
 * multiple of 64 bytes, the order ring: 2^log_wqes words. It starts at a
 * multiple of 64 bytes.
 */
struct qiao_create_srq_req {
	__aligned_u64 comp_mask;
	__aligned_u64 buf_addr;
	__u8 log_wqes;
	__u8 log_stride;
	__u8 reserved[6];
};

struct qiao_create_srq_resp {
	__aligned_u64 comp_mask;
	/* Offset for mmap() of the page that holds the doorbell slot. */
	__aligned_u64 db_mmap_offset;
	/* Offset of the slot in that page in bytes. */
	__u32 db_offset;
	__u32 srqn;
};

#endif /* QIAO_ABI_USER_H */
