// SPDX-License-Identifier: GPL-2.0

#include <linux/pgtable.h>
#include <rdma/ib_mad.h>
#include <rdma/ib_umem.h>
#include <rdma/ib_verbs.h>
#include <rdma/iter.h>
#include <rdma/uverbs_ioctl.h>

int rust_ext_ib_is_udata_in_empty(struct ib_udata *udata)
{
	return ib_is_udata_in_empty(udata);
}

int rust_ext_ib_no_udata_io(struct ib_udata *udata)
{
	return ib_no_udata_io(udata);
}

size_t rust_ext_ib_umem_num_dma_blocks(struct ib_umem *umem, unsigned long pgsz)
{
	return ib_umem_num_dma_blocks(umem, pgsz);
}

unsigned long rust_ext_ib_umem_dma_offset(struct ib_umem *umem,
					  unsigned long pgsz)
{
	return ib_umem_dma_offset(umem, pgsz);
}

void rust_ext_rdma_umem_block_iter_start(struct ib_block_iter *biter,
					 struct ib_umem *umem,
					 unsigned long pgsz)
{
	__rdma_umem_block_iter_start(biter, umem, pgsz);
}

bool rust_ext_rdma_umem_block_iter_next(struct ib_block_iter *biter)
{
	return __rdma_umem_block_iter_next(biter);
}

dma_addr_t rust_ext_rdma_block_iter_dma_address(struct ib_block_iter *biter)
{
	return rdma_block_iter_dma_address(biter);
}

u64 rust_ext_rdma_user_mmap_get_offset(const struct rdma_user_mmap_entry *entry)
{
	return rdma_user_mmap_get_offset(entry);
}

pgprot_t rust_ext_pgprot_noncached(pgprot_t prot)
{
	return pgprot_noncached(prot);
}
