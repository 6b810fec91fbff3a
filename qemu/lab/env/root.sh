#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Makes the development root: a Debian tree with the tool chain, QEMU and the kernel that is tested. Prints its folder.

. "$(dirname "$0")/lib.sh"

make_root() {
	local dir=$1 avail
	avail=$(df --output=avail -BG "$QIAO_CACHE" | tail -n 1 | tr -dc 0-9)
	((avail >= ROOT_DISK_GB)) || die "$QIAO_CACHE has ${avail} GB free and the development root and what is built with it need $ROOT_DISK_GB"
	say "making the development root (2 to 5 minutes, once)"
	local -a options=(--variant=important --include="$(packages "$ENV_DIR/root.packages")" --skip=cleanup/apt --customize-hook="'$ENV_DIR/kernel.sh' \"\$1\"")
	if [[ $(mmdebstrap_mode) == root ]]; then
		debian_tree "$dir/tree" "${options[@]}"
	else
		# Unpacked in our own namespace, the files belong to the ids that enter.sh maps.
		mkdir "$dir/tree"
		debian_tree - "${options[@]}" | privileged tar --extract --directory "$dir/tree" --numeric-owner --exclude='./dev/*'
	fi
	cp "$dir/tree/etc/qiao-kernel" "$dir/kernel"
}

need_tools
mmdebstrap_mode >/dev/null
dir=$(root_dir)
artefact "$dir" make_root
say "development root $dir (kernel $(kernel_release))"
