#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# kernels.sh FILE: for each kernel that the archive offers, or each of KERNELS=, builds the driver, boots that kernel and loads the
# driver into it; writes a table of the results. Kernels that are not tried keep their rows.

. "$(dirname "$0")/lib.sh"

table=$1
mark="| kernel |"

offered() {
	# The flavours rt and cloud do not match, as in kernel.sh.
	"$ENV_DIR/enter.sh" apt-cache --names-only search '^linux-modules-[0-9]' |
		sed -nE 's/^linux-modules-([0-9][^- ]*-amd64) .*/\1/p' | sort -V
}

# The objects of modules do not say for which kernel they are: every kernel's tree is at the same path.
forget_modules() {
	local build
	build=$(build_dir)
	rm -rf "$build/module" "$build/hello" "$build/kclient"
}

# try RELEASE: what became of it.
try() {
	local log
	log=$(mktemp)
	forget_modules
	# Each program is asked for by itself, so that the table says how far it came.
	if ! make -C "$TOP" overlay image >"$log" 2>&1; then
		echo "no development root: $(grep -m 1 'error:' "$log" | sed 's/.*error: //')"
	elif ! make -C "$TOP" modules >"$log" 2>&1; then
		echo "not built: $(grep -m 1 -E 'error(\[|:)' "$log")"
	elif ! make -C "$TOP" run S="driver demo" >"$log" 2>&1; then
		echo "not loaded: $(grep -m 1 FAILED "$log")"
	else
		echo "built, loaded, demo passed"
	fi
	rm -f "$log"
}

rows=$(sed -n "/^$mark/,\$p" "$table" 2>/dev/null | tail -n +3 || true)
for release in ${KERNELS:-$(offered)}; do
	say "kernel $release"
	# The root that is there has the newest one.
	if [[ $release == "$(KERNEL='' kernel_release)" ]]; then unset KERNEL; else export KERNEL=$release; fi
	result=$(try)
	rustc=$("$ENV_DIR/enter.sh" rustc --version 2>/dev/null | cut -d' ' -f2 || true)
	rows=$(printf '%s\n' "$rows" | grep -vF "| $release |" || true)
	rows+=$'\n'"| $release | ${rustc:--} | $result |"
	say "$release: $result"
done
forget_modules

cat >"$table" <<END
<!-- SPDX-License-Identifier: GPL-2.0 OR MIT -->

# Kernels

On which of Debian's kernels, as they ship, the driver was really built and loaded, and the demo ran. Made by \`make kernels\`;
\`make kernels KERNELS="RELEASE ..."\` tries only those, each in a development root of its own (15 GB must be free).

$mark compiler | result |
|---|---|---|
$(printf '%s\n' "$rows" | sed '/^$/d' | sort -rV)
END
