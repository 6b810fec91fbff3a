#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# enter.sh COMMAND...: runs COMMAND inside the development root, in this folder, with a private mount name space. The work tree
# and the cache are at the same paths as outside. Nothing of the host's environment comes in but what is named here.

. "$(dirname "$0")/lib.sh"

[[ ${1-} != --inside ]] && {
	# Named by the user's own id, which is another one in there.
	export lab_lock=/tmp/qiao-lab.$EUID.lock
	[[ -d $(root_dir) ]] || die "no development root yet: run make root"
	if ((EUID == 0)); then
		exec unshare --mount --propagation private "$0" --inside "$@"
	fi
	exec unshare --user --map-root-user --map-auto --mount --propagation private "$0" --inside "$@"
}
shift

tree=$(root_dir)/tree
build=$(build_dir)
cwd=$PWD
mkdir -p "$QIAO_CACHE/cargo" "$QIAO_CACHE/home" "$build"

# A bind of the tree itself, so that it can be remounted and mounts below it vanish with this name space.
mount --bind "$tree" "$tree"
for dir in /proc /dev /sys /tmp "$QIAO_CACHE" "$TOP"; do
	mkdir -p "$tree$dir"
	mount --rbind "$dir" "$tree$dir"
done

# Overlay and debug kernel are always at these paths: kernel metadata and modules name their sources, and must not depend on where
# the cache is.
kernel=/kernel
overlay=${QIAO_OVERLAY:-$(overlay_dir)}
mkdir -p "$tree$kernel"
[[ -d $overlay ]] && mount --bind "$overlay" "$tree$kernel"
debug=/debug
debug_kernel=${QIAO_DEBUG:-$(debug_dir)}
mkdir -p "$tree$debug"
[[ -d $debug_kernel ]] && mount --bind "$debug_kernel" "$tree$debug"

# The network of the host: its resolver, and its certificates where a proxy has its own.
for file in /etc/resolv.conf /etc/hosts; do
	[[ -e $file ]] || continue
	[[ -e $tree$file ]] || : >"$tree$file"
	mount --bind "$(readlink -f "$file")" "$tree$file"
done
bundle=/etc/ssl/certs/ca-certificates.crt
for host_bundle in "${SSL_CERT_FILE-}" "$bundle" /etc/pki/tls/certs/ca-bundle.crt /etc/ssl/ca-bundle.pem; do
	if [[ -f $host_bundle ]]; then
		mount --bind "$(readlink -f "$host_bundle")" "$tree$bundle"
		break
	fi
done

environment=(
	"PATH=/usr/sbin:/usr/bin:/sbin:/bin" "HOME=$QIAO_CACHE/home" "LANG=C.UTF-8" "TERM=${TERM:-dumb}" "USER=${USER:-root}"
	"SSL_CERT_FILE=$bundle" "CARGO_HOME=$QIAO_CACHE/cargo" "CARGO_TARGET_DIR=$build/target"
	"QIAO_CACHE=$QIAO_CACHE" "QIAO_TOP=$TOP" "QIAO_BUILD=$build" "QIAO_KERNEL=$(kernel_release)"
	"QIAO_COMMIT=$(git -C "$TOP" describe --always --dirty --abbrev=12 2>/dev/null || echo unknown)"
	"QIAO_KO=$kernel/ko" "QIAO_KERNEL_SOURCE=$kernel/source" "QIAO_IMAGE=$(image_dir)"
	"QIAO_DEBUG=$debug"
	# Of the machine and not of the cache: guests of two caches would starve each other just the same.
	"QIAO_LAB_LOCK=${lab_lock:?}"
)
for name in CI JOBS RUST_LOG NO_COLOR RDMA_CORE QIAO_ACCEL http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY; do
	[[ -n ${!name-} ]] && environment+=("$name=${!name}")
done
# shellcheck disable=SC2016 # the inner shell expands
exec chroot "$tree" env -i "${environment[@]}" sh -c 'cd "$1" && shift && exec "$@"' enter "$cwd" "$@"
