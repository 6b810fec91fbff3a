# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# What every script of this folder shares: the cache, artefacts keyed by what made them, the mirror, and privilege.
# An artefact is a folder NAME-KEY of the cache that appears by one rename when it is complete.

set -euo pipefail

# A normal user's path may not have chroot in it.
PATH=$PATH:/usr/sbin:/sbin

ENV_DIR=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
TOP=$(cd "$ENV_DIR/../../.." && pwd)
QIAO_CACHE=${QIAO_CACHE-${XDG_CACHE_HOME:-$HOME/.cache}/qiao}
SUITE=trixie
# shellcheck disable=SC2034 # read by root.sh
ROOT_DISK_GB=15

say() { printf 'qiao: %s\n' "$*" >&2; }
die() {
	printf 'qiao: error: %s\n' "$*" >&2
	exit 1
}

# Scripts are started in several folders, and an empty name must not mean the default cache to make distclean.
[[ $QIAO_CACHE == /* ]] || die "QIAO_CACHE must be an absolute path and is '$QIAO_CACHE'"
mkdir -p "$QIAO_CACHE" 2>/dev/null || die "cannot make $QIAO_CACHE (choose another folder with QIAO_CACHE=)"
QIAO_CACHE=$(cd "$QIAO_CACHE" && pwd)
[[ -w $QIAO_CACHE ]] || die "cannot write to $QIAO_CACHE (choose another folder with QIAO_CACHE=)"
for folder in "$TOP" "$QIAO_CACHE"; do
	if [[ $folder == *[[:space:]:]* ]]; then
		die "the kernel's build takes no path with a space or a colon in it: move $folder"
	fi
done

# key WORD|FILE...: a short hash of the words and of the contents of those that are files.
key() {
	local part
	for part in "$@"; do
		if [[ -f $part ]]; then cat "$part"; else printf '%s\n' "$part"; fi
	done | sha256sum | cut -c1-12
}

root_dir() { printf '%s/root-%s\n' "$QIAO_CACHE" \
	"$(key "$SUITE" "${KERNEL:-newest}" "$ENV_DIR"/root.sh "$ENV_DIR"/kernel.sh "$ENV_DIR"/root.packages "$ENV_DIR"/apt.preferences)"; }
kernel_release() { cat "$(root_dir)/kernel"; }
overlay_dir() { printf '%s/overlay-%s\n' "$QIAO_CACHE" \
	"$(key "$(basename "$(root_dir)")" "$(kernel_release)" "$ENV_DIR"/overlay.sh)"; }
image_dir() { printf '%s/image-%s\n' "$QIAO_CACHE" \
	"$(key "$SUITE" "$(kernel_release)" "$ENV_DIR"/image.sh "$ENV_DIR"/image.packages "$ENV_DIR"/apt.preferences)"; }
debug_dir() { printf '%s/debug-%s\n' "$QIAO_CACHE" \
	"$(key "$(basename "$(overlay_dir)")" "$ENV_DIR"/debug.sh "$ENV_DIR"/debug.config)"; }
# What is built from a work tree: one folder for each place a tree is checked out, so that trees do not mix.
build_dir() { printf '%s/build-%s\n' "$QIAO_CACHE" "$(key "$TOP")"; }

# artefact DIR COMMAND...: unless DIR exists, run COMMAND with a new folder as its last argument and rename that to DIR.
# A lock per artefact lets a second run wait for the first and then find the work done.
artefact() {
	local dir=$1 lock
	shift
	[[ -d $dir ]] && return
	lock=$dir.lock
	exec {lock_fd}>"$lock"
	flock "$lock_fd"
	if [[ ! -d $dir ]]; then
		discard "$dir.part"
		mkdir "$dir.part"
		# Not `|| die`: that would let COMMAND go on after its first failure.
		trap 'say "error: making $(basename "${dir%.part}") failed: what it said is above"' EXIT
		"$@" "$dir.part"
		trap - EXIT
		mv -T "$dir.part" "$dir"
	fi
	exec {lock_fd}>&-
}

# discard FOLDER: remove it, as the user that owns what mmdebstrap put there.
discard() {
	[[ -e $1 ]] || return 0
	privileged rm -rf --one-file-system "$1"
}

# privileged COMMAND...: as root, or as root of a new user namespace that owns this user's subordinate ids.
privileged() {
	if ((EUID == 0)); then
		"$@"
	else
		unshare --user --map-root-user --map-auto "$@"
	fi
}

# The mode of mmdebstrap, or one line that says what a normal user lacks.
mmdebstrap_mode() {
	if ((EUID == 0)); then
		echo root
	elif unshare --user --map-root-user --map-auto true 2>/dev/null; then
		echo unshare
	else
		die "as a normal user this needs user namespaces, newuidmap (package uidmap) and a range in /etc/subuid; otherwise run make as root"
	fi
}

need_tools() {
	local tool
	for tool in mmdebstrap git make; do
		command -v "$tool" >/dev/null || die "$tool is missing: install make, git and mmdebstrap (apt-get install make git mmdebstrap)"
	done
}

# The archives, from MIRROR= and SECURITY_MIRROR= or the host's own apt configuration.
archive_of_host() {
	command -v apt-get >/dev/null || return 0
	# shellcheck disable=SC2016 # the names are apt's
	apt-get indextargets --format '$(ORIGIN) $(LABEL) $(REPO_URI)' 'Created-By: Packages' 2>/dev/null |
		sed -n "s/^Debian $1 //p" | head -n 1
}

mirrors() {
	local label_hint="set MIRROR= to a Debian mirror (and SECURITY_MIRROR= if it is not MIRROR-security)"
	MIRROR=${MIRROR:-$(archive_of_host Debian)}
	[[ -n $MIRROR ]] || die "this host's apt configuration names no Debian archive: $label_hint and install the package debian-archive-keyring"
	SECURITY_MIRROR=${SECURITY_MIRROR:-$(archive_of_host Debian-Security)}
	MIRROR=${MIRROR%/}
	SECURITY_MIRROR=${SECURITY_MIRROR:-$MIRROR-security}
	SECURITY_MIRROR=${SECURITY_MIRROR%/}
	KEYRING=${KEYRING:-/usr/share/keyrings/debian-archive-keyring.gpg}
	[[ -f $KEYRING ]] || die "no keyring at $KEYRING: install the package debian-archive-keyring, or name the file with KEYRING="
}

sources() {
	local suite
	mirrors
	for suite in "$SUITE" "$SUITE-updates" "$SUITE-backports"; do
		printf 'deb [signed-by=%s] %s %s main\n' "$KEYRING" "$MIRROR" "$suite"
	done
	printf 'deb [signed-by=%s] %s %s-security main\n' "$KEYRING" "$SECURITY_MIRROR" "$SUITE"
}

# packages FILE: the names in a list with comments.
packages() { sed 's/#.*//' "$1" | tr -s ' \n' ' '; }

# debian_tree TARGET OPTION...: a Debian tree with the pinning of this folder, as a folder or, for TARGET -, a tar stream.
# Of what is said meanwhile, only our own words are shown; if it fails, all errors.
debian_tree() {
	local target=$1 sources log
	local -a program=(mmdebstrap)
	shift
	sources=$(sources)
	log=$(mktemp)
	# What root mounts in the tree is in a name space of its own and vanishes with it: a killed run leaves no mounts on the host.
	((EUID == 0)) && program=(unshare --mount --propagation private mmdebstrap)
	# The rules of apt are copied before its first use.
	{
		"${program[@]}" --verbose --mode="$(mmdebstrap_mode)" --format="$([[ $target == - ]] && echo tar || echo directory)" \
			--aptopt='Acquire::Retries "5"' \
			--setup-hook="mkdir -p \"\$1\"/etc/apt/preferences.d; cp '$ENV_DIR/apt.preferences' \"\$1\"/etc/apt/preferences.d/qiao" \
			"$@" "$SUITE" "$target" - <<<"$sources" 2>&1 >&3 3>&- | tee "$log" | sed --unbuffered -n '/^qiao: /p' >&2
	} 3>&1 || {
		grep -E '^(E:|Err:|dpkg: error)' "$log" | tail -n 10 >&2
		rm -f "$log"
		die "mmdebstrap failed; its sources (choose another archive with MIRROR=):"$'\n'"$sources"
	}
	rm -f "$log"
}
