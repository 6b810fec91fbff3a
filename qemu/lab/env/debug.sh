#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Makes the debug kernel: the sources of the kernel under test with the configuration debug.config, by LLVM, since KASAN and Rust
# go together only there. The folder holds the kernel, its object tree for modules, and what a guest has in /usr/lib/modules.
# Inside the root: debug.sh --inside, with the folder to fill at /debug.

. "$(dirname "$0")/lib.sh"

make_debug_kernel() {
	say "making the debug kernel (10 to 20 minutes, once)"
	QIAO_DEBUG=$1 "$ENV_DIR/enter.sh" "$ENV_DIR/debug.sh" --inside
}

build_debug_kernel() {
	local dir=/debug release
	mkdir "$dir/ko"
	local -a kmake=(nice make -C "$QIAO_KERNEL_SOURCE" O="$dir/ko" LLVM=1 -j"${JOBS:-$(nproc)}")
	"${kmake[@]}" KCONFIG_ALLCONFIG="$ENV_DIR/debug.config" allnoconfig >"$dir/log" 2>&1 || debug_failed "allnoconfig" "$dir/log"
	ensure_configured "$ENV_DIR/debug.config" "$dir/ko/.config"
	"${kmake[@]}" >>"$dir/log" 2>&1 || debug_failed "of the kernel" "$dir/log"

	# Modules are loaded by modprobe where a scenario cannot know that this kernel has them built in.
	"${kmake[@]}" INSTALL_MOD_PATH="$dir" modules_install >>"$dir/log" 2>&1 || debug_failed "modules_install" "$dir/log"
	release=$(<"$dir/ko/include/config/kernel.release")
	rm -f "$dir/lib/modules/$release"/{build,source}
	mv "$dir/lib/modules/$release" "$dir/modules"
	rmdir "$dir/lib/modules" "$dir/lib"
	cp "$dir/ko/arch/x86/boot/bzImage" "$dir/vmlinuz"
	printf '%s\n' "$release" >"$dir/release"
	discard_objects "$dir/ko"
}

# ensure_configured WANTED GOT: an error that names each line of WANTED which is not in GOT: its dependencies are not met.
ensure_configured() {
	local missing
	missing=$(grep '^CONFIG_' "$1" | grep -vxFf "$2" || true)
	[[ -z $missing ]] || die "the debug kernel cannot have this as it stands in $1:"$'\n'"$missing"
}

# discard_objects TREE: what building modules does not need; most of the size of the tree.
discard_objects() {
	find "$1" \( -name tools -o -name scripts -o -path "$1/rust" \) -prune -o \
		-type f \( -name '*.o' -o -name '*.a' -o -name '.*.cmd' -o -name 'vmlinux*' \) -exec rm {} +
}

debug_failed() {
	grep -E 'error|Error' "$2" | head -n 5 >&2
	tail -n 15 "$2" >&2
	die "building the debug kernel failed: make $1 broke (its last lines are above)"
}

if [[ ${1-} == --inside ]]; then
	build_debug_kernel
	exit
fi
dir=$(debug_dir)
artefact "$dir" make_debug_kernel
say "debug kernel $dir"
