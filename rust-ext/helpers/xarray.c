// SPDX-License-Identifier: GPL-2.0

#include <linux/xarray.h>

void rust_ext_xa_init_alloc_irq(struct xarray *xa)
{
	xa_init_flags(xa, XA_FLAGS_ALLOC | XA_FLAGS_LOCK_IRQ);
}

int rust_ext_xa_alloc_cyclic_irq(struct xarray *xa, u32 *id, void *entry,
				 struct xa_limit limit, u32 *next, gfp_t gfp)
{
	return xa_alloc_cyclic_irq(xa, id, entry, limit, next, gfp);
}

unsigned long rust_ext_xa_lock_irqsave(struct xarray *xa)
{
	unsigned long flags;

	xa_lock_irqsave(xa, flags);
	return flags;
}

void rust_ext_xa_unlock_irqrestore(struct xarray *xa, unsigned long flags)
{
	xa_unlock_irqrestore(xa, flags);
}
