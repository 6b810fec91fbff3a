# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Every command a person needs. All of it is built and run inside a development root, a Debian tree in the cache, so that
# the host needs only make, git and mmdebstrap. Kbuild, not this file, is what the kernel's build reads.

MAKEFLAGS += --no-print-directory
JOBS ?= $(shell nproc)
export JOBS

ENV   := qemu/lab/env
ENTER := $(ENV)/enter.sh
CARGO := $(ENTER) nice cargo
LAB   := $(ENTER) sh -c 'exec "$$CARGO_TARGET_DIR/release/qiao-lab" "$$@"' qiao-lab

# One object tree in the cache for each module: nothing is written to this tree.
STOCK := "$$QIAO_KO" CC="$$(cat /kernel/cc)"
DEBUG_KERNEL := "$$QIAO_DEBUG/ko" LLVM=1
KBUILD = $(ENTER) sh -c 'mkdir -p "$$QIAO_BUILD/$(2)" && exec nice make -C $(or $(4),$(STOCK)) \
	M="$$QIAO_TOP/$(1)" MO="$$QIAO_BUILD/$(2)" -j"$$JOBS" --no-print-directory $(3)'

# With DEBUG=1 guests boot the debug kernel.
$(if $(filter-out 0 1,$(DEBUG)),$(error DEBUG is 1 or 0))
DEBUGGED := $(filter 1,$(DEBUG))
GUESTS := $(if $(DEBUGGED),debug-guests,guests)
KERNEL_OPTION := $(if $(DEBUGGED),--kernel debug)

# What the source tree has so far; an absent piece is not built and not tested.
PIECES := $(if $(wildcard Kbuild),modules) $(if $(wildcard provider/Cargo.toml),provider) \
	$(if $(wildcard qemu/model/src/main.rs),model) $(if $(wildcard kunit/kclient/Kbuild),kclient)

.PHONY: help
help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 16

.PHONY: demo
demo: guests ## two guests with an HCA each run the distribution's RDMA programs; prints a table
	@$(LAB) run demo

.PHONY: check
check: guests ## run every test; the last line is N passed, N failed
	@$(LAB) check

.PHONY: check-debug
check-debug: debug-guests ## run the tests that need the debug kernel: KUnit, failures on demand, scenarios under its checks
	@$(LAB) check --kernel debug guests

.PHONY: kunit
kunit: ## run the tests inside the kernel
	@$(MAKE) run S=kunit DEBUG=1

.PHONY: lint
lint: lab-program overlay ## check format, lints and licences
	@$(LAB) check lint

.PHONY: test
test: lab-program overlay ## run the tests that need no guest
	@$(LAB) check unit symbols

.PHONY: run
run: $(if $(strip $(S)),$(GUESTS),unnamed) ## run the scenarios named by S="..." (make list names them); DEBUG=1: on the debug kernel
	@$(LAB) run $(KERNEL_OPTION) $(S)

.PHONY: unnamed
unnamed:
	@echo 'qiao: error: name scenarios, as in make run S="twins lifecycle"; make list lists them' >&2; exit 1

.PHONY: bench
bench: guests ## measure Qiao beside soft-RoCE in the same guests, and the device model beside memcpy
	@$(LAB) bench

.PHONY: lab
lab: terminal $(GUESTS) ## boot two guests with the driver and stay at a shell; Control-] shows the other guest, Control-\ ends
	@$(LAB) shell $(KERNEL_OPTION) $(S)

# Before everything is built for it.
.PHONY: terminal
terminal:
	@[ -t 0 ] && [ -t 1 ] || { echo 'qiao: error: make lab needs a terminal' >&2; exit 1; }

.PHONY: list
list: lab-program ## list the scenarios
	@$(LAB) list

.PHONY: coverage
coverage: lab-program ## print what of the device interface the scenarios have used, and what they have not
	@$(LAB) coverage

.PHONY: info
info: guests ## print the versions of everything that is used
	@$(LAB) info

.PHONY: kernels
kernels: root ## load the driver into each kernel that the archive offers, or into KERNELS=; writes docs/kernels.md
	@$(ENV)/kernels.sh docs/kernels.md

.PHONY: enter
enter: overlay ## a shell inside the development root
	@$(ENTER) bash

.PHONY: root
root: ## make the development root
	@$(ENV)/root.sh

.PHONY: overlay
overlay: root ## make the tree that modules for the distribution's kernel are built against
	@$(ENV)/overlay.sh

.PHONY: debug-kernel
debug-kernel: overlay ## make the kernel that looks for errors of memory, locks and lifetimes
	@$(ENV)/debug.sh

.PHONY: image
image: root ## make the guest image
	@$(ENV)/image.sh

# Everything that scenarios boot.
.PHONY: guests
guests: image lab-program agent probe hello $(PIECES)

# The same on the debug kernel.
.PHONY: debug-guests
debug-guests: guests debug-modules

.PHONY: modules
modules: overlay ## build the driver
	@echo 'qiao: building the driver' >&2
	@$(call KBUILD,,module,modules)

.PHONY: hello
hello: overlay ## build the module that tests the tool chain
	@echo 'qiao: building the smoke-test module' >&2
	@$(call KBUILD,qemu/lab/hello,hello,modules)

.PHONY: kclient
kclient: overlay ## build the test of devices by a consumer in the kernel
	@echo 'qiao: building the kernel client' >&2
	@$(call KBUILD,kunit/kclient,kclient,modules)

.PHONY: debug-modules
debug-modules: debug-kernel ## build the modules for the debug kernel
	@echo 'qiao: building the modules for the debug kernel' >&2
	@$(call KBUILD,,debug/module,modules,$(DEBUG_KERNEL))
	@$(call KBUILD,qemu/lab/hello,debug/hello,modules,$(DEBUG_KERNEL))
	@$(call KBUILD,kunit/kclient,debug/kclient,modules,$(DEBUG_KERNEL))

.PHONY: provider
provider: root ## build the libibverbs provider
	@echo 'qiao: building the provider' >&2
	@$(CARGO) build --locked --release --quiet --manifest-path provider/Cargo.toml

.PHONY: model
model: root ## build the device model
	@echo 'qiao: building the device model' >&2
	@$(CARGO) build --locked --release --quiet --manifest-path qemu/Cargo.toml --package qiao-model

.PHONY: lab-program
lab-program: root ## build the lab's own program
	@echo 'qiao: building the lab' >&2
	@$(CARGO) build --locked --release $(if $(filter list,$(MAKECMDGOALS)),,--quiet) --manifest-path qemu/Cargo.toml --package qiao-lab

# Static, since the agent is also the guests' first process, before there is a C library. The target is named so that the flags
# are not used for procedural macros.
GUEST_PROGRAM = $(ENTER) nice env RUSTFLAGS='-C target-feature=+crt-static -C strip=symbols' cargo build --locked --release --quiet \
	--manifest-path qemu/Cargo.toml --target x86_64-unknown-linux-gnu --package

.PHONY: agent
agent: root ## build the guests' agent
	@echo 'qiao: building the agent' >&2
	@$(GUEST_PROGRAM) qiao-agent

.PHONY: probe
probe: root ## build the hostile user program of the guests
	@echo 'qiao: building the probe' >&2
	@$(GUEST_PROGRAM) qiao-probe

.PHONY: interface
interface: root ## make the tables of docs/interface.md anew from the code
	@$(CARGO) run --locked --quiet --manifest-path qemu/Cargo.toml --package qiao_hw -- update docs/interface.md

.PHONY: header
header: root ## print the device interface as a C header
	@$(CARGO) run --locked --quiet --manifest-path qemu/Cargo.toml --package qiao_hw -- header

SIM = $(CARGO) run --locked --quiet --release --manifest-path qemu/Cargo.toml --package qiao-sim --

.PHONY: sim
sim: root ## run the simulator with ARGS="..." (make sim ARGS=help)
	@$(SIM) $(ARGS)

.PHONY: sim-validate
sim-validate: root ## compare the simulator with published results of congestion control
	@$(SIM) validate

.PHONY: sim-bench
sim-bench: root ## speed of the simulator at 320 and at 10,240 hosts
	@$(SIM) bench

.PHONY: cc-bench
cc-bench: root ## nanoseconds per event of congestion control, at 1 to 262,144 flows
	@$(CARGO) bench --locked --quiet --manifest-path qemu/Cargo.toml --package qiao_cc

.PHONY: cc-report
cc-report: root ## a page with the goals of congestion control and plots, in the folder OUT=
	@$(SIM) report --clusters --out $(or $(OUT),$(error say where to with OUT=FOLDER))

.PHONY: clean
clean: ## remove what was built from this tree
	@$(ENV)/clean.sh build

.PHONY: distclean
distclean: ## remove the whole cache: root, overlay, image and all builds
	@$(ENV)/clean.sh all
