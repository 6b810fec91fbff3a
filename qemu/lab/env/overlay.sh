#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Makes the overlay: an object tree that Rust modules for the distribution's own kernel are built against. The headers package has
# no rust/ folder; the same sources and the same compilers give the same metadata, and so the same symbol names.
# Inside the root: overlay.sh --inside, with the folder to fill at /kernel.

. "$(dirname "$0")/lib.sh"

make_overlay() {
	say "making the kernel overlay for $(kernel_release) (2 to 5 minutes, once)"
	QIAO_OVERLAY=$1 "$ENV_DIR/enter.sh" "$ENV_DIR/overlay.sh" --inside
}

build_overlay() {
	local dir=/kernel release=$QIAO_KERNEL headers=/usr/src/linux-headers-$QIAO_KERNEL series cc
	series=$(grep -oE '^[0-9]+\.[0-9]+' <<<"$release")
	cc=$(sed -nE 's/^CONFIG_CC_VERSION_TEXT="([^ ]+) .*/\1/p' "$headers/.config")
	mkdir "$dir/ko"
	tar --extract --directory "$dir" --file "/usr/src/linux-source-$series.tar.xz"
	mv "$dir/linux-source-$series" "$dir/source"
	cp "$headers/.config" "$dir/ko/.config"

	local -a kmake=(make -C "$dir/source" O="$dir/ko" CC="$cc" -j"${JOBS:-$(nproc)}")
	"${kmake[@]}" olddefconfig >"$dir/log" 2>&1 || overlay_failed "olddefconfig" "$dir/log"
	# Another compiler or bindgen would change options, and with them the layout of the kernel's structures.
	diff -u "$headers/.config" "$dir/ko/.config" >&2 || die "kernel $release: the root's tools change its configuration as shown above"
	"${kmake[@]}" prepare modules_prepare >>"$dir/log" 2>&1 || overlay_failed "modules_prepare" "$dir/log"

	cp "$headers/Module.symvers" "$dir/ko/"
	cp "$headers/include/generated/utsrelease.h" "$dir/ko/include/generated/"
	printf '%s\n' "$release" >"$dir/ko/include/config/kernel.release"
	printf '%s\n' "$cc" >"$dir/cc"
}

overlay_failed() {
	tail -n 15 "$2" >&2
	die "kernel $QIAO_KERNEL gives no tree for Rust modules: make $1 broke (its last lines are above)"
}

if [[ ${1-} == --inside ]]; then
	build_overlay
	exit
fi
dir=$(overlay_dir)
artefact "$dir" make_overlay
say "kernel overlay $dir"
