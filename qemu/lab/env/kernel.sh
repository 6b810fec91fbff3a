#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# kernel.sh TREE: a hook of mmdebstrap that chooses the kernel in the archives of TREE and installs what building for it and
# booting it takes. The newest is taken, of whatever series; KERNEL=RELEASE asks for one by name. Writes its name to TREE/kernel.

set -euo pipefail
tree=$1

# The series that Qiao is known to build for. Another one is tried.
SUPPORTED_SERIES="7.3"
FLAVOUR=amd64

say() { printf 'qiao: %s\n' "$*" >&2; }
die() {
	printf 'qiao: error: %s\n' "$*" >&2
	exit 1
}

# The flavours rt and cloud do not match: their names have a word between the version and the architecture.
releases=$(chroot "$tree" apt-cache --names-only search '^linux-modules-[0-9]' | sed -nE "s/^linux-modules-([0-9][^- ]*-$FLAVOUR) .*/\1/p" | sort -V)
release=${KERNEL:-$(tail -n 1 <<<"$releases")}
grep -qxF "$release" <<<"$releases" || die "the archive offers no kernel '$release'; it has: ${releases//$'\n'/ }"

series=$(grep -oE '^[0-9]+\.[0-9]+' <<<"$release")
if [[ " $SUPPORTED_SERIES " == *" $series "* ]]; then
	say "kernel $release (supported series $series)"
else
	say "kernel $release: series $series is not one of the supported ($SUPPORTED_SERIES); trying it"
fi

# The source must be the very one that the binary was built from, or symbol names of Rust differ.
version=$(chroot "$tree" apt-cache show --no-all-versions "linux-headers-$release" | sed -n 's/^Version: //p')
# grep reads to the end: with -q it would leave at the first of several versions, and apt-cache would die of SIGPIPE.
chroot "$tree" apt-cache madison "linux-source-$series" | grep -F " $version " >/dev/null ||
	die "the archive has no linux-source-$series in version $version, which $release was built from"

log=$tree/var/log/qiao-kernel.log
chroot "$tree" env DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet=2 --no-install-recommends \
	"linux-headers-$release" "linux-binary-$release" "linux-modules-$release" "linux-source-$series=$version" >"$log" 2>&1 ||
	{
		tail -n 20 "$log" >&2
		die "installing kernel $release failed"
	}
chroot "$tree" depmod "$release"
printf '%s\n' "$release" >"$tree/etc/qiao-kernel"
