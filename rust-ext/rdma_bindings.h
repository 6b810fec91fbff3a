/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the crate `rdma_bindings` is generated from: the RDMA headers, and the
 * helpers for what they have only as macros and inline functions.
 *
 * Sorted alphabetically.
 */

#include <rdma/ib_cache.h>
#include <rdma/ib_mad.h>
#include <rdma/ib_umem.h>
#include <rdma/ib_verbs.h>
#include <rdma/iter.h>
#include <rdma/restrack.h>
#include <rdma/uverbs_ioctl.h>

#include "helpers/helpers.c"
