// SPDX-License-Identifier: GPL-2.0
/*
 * C macros and inline functions that Rust can not call, as functions: what
 * rust/helpers/ has for the kernel crate, here for what this folder binds.
 * The prefix is not that of the kernel's helpers since those are exported.
 *
 * Sorted alphabetically.
 */

#include "irq.c"
#include "rdma.c"
#include "refcount.c"
#include "xarray.c"
