#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Makes the guest image: the guest's root as one read-only EROFS file, the distribution's kernel, and the modules it needs to
# mount that root. What a build changes (modules, provider, agent) is not in here: the lab adds it at each boot.
# Inside the root: image.sh --inside FOLDER, with the tree as a tar stream on standard input.

. "$(dirname "$0")/lib.sh"

# Loaded by the agent before it can read the image, in this order.
BOOT_MODULES="virtio_blk erofs overlay virtio_net"

make_image() {
	say "making the guest image (1 to 3 minutes, once)"
	# The Python tests of rdma-core live among its documentation.
	debian_tree - --variant=minbase --include="$(packages "$ENV_DIR/image.packages") linux-modules-$(kernel_release)" \
		--dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
		--dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/rdma-core/*' |
		"$ENV_DIR/enter.sh" "$ENV_DIR/image.sh" --inside "$1"
}

pack_image() {
	local dir=$1 module path index=10
	mkfs.erofs --quiet --tar=f "$dir/root.erofs" >"$dir/log" 2>&1 || {
		tail -n 5 "$dir/log" >&2
		die "packing the guest image failed"
	}
	cp "/usr/lib/modules/$QIAO_KERNEL/vmlinuz" "$dir/vmlinuz"
	mkdir "$dir/modules"
	for module in $BOOT_MODULES; do
		modprobe --show-depends --set-version "$QIAO_KERNEL" "$module"
	done | sed -n 's/^insmod \([^ ]*\).*/\1/p' | awk '!seen[$0]++' | while read -r path; do
		# The first digits are the order of loading.
		module=$(basename "$path")
		case $path in
		*.xz) xz --decompress --stdout "$path" ;;
		*.zst) zstd --quiet --decompress --stdout "$path" ;;
		*) cat "$path" ;;
		esac >"$dir/modules/$index-${module%%.ko*}.ko"
		index=$((index + 1))
	done
}

if [[ ${1-} == --inside ]]; then
	pack_image "$2"
	exit
fi
need_tools
dir=$(image_dir)
artefact "$dir" make_image
say "guest image $dir"
