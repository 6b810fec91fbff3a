#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# clean.sh build|all: removes what was built from this work tree, or all that Qiao ever put into the cache.

. "$(dirname "$0")/lib.sh"

case ${1-} in
build) discard "$(build_dir)" ;;
all)
	# By name: the cache may be a folder that the person also uses for something else.
	for path in "$QIAO_CACHE"/{root,overlay,image,debug,build}-* "$QIAO_CACHE"/{cargo,home,kvm-probe}; do
		discard "$path"
	done
	;;
*) die "usage: clean.sh build|all" ;;
esac
