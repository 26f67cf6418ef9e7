# What one does with this project, by name. `make` alone tells.

help:
	@echo 'make demo    build, make a volume, mount it, do some real work on it, unmount, check'
	@echo 'make test    lint, build and run all tests (15 minutes on 2 cores at the most)'
	@echo 'make soak    the long tests: many seeds, many crash states, stressors'
	@echo 'make fuzz    each fuzz target for ten minutes (FUZZ_SECONDS)'
	@echo 'make bench   the same workloads on ubtrfs, the kernel, and the bound of FUSE (BENCH="--quick", "--full", workloads, …)'
	@echo 'make profile WORKLOAD=dbench-16    a flame graph of the server (OUT=profile.svg)'
	@echo 'make lint    clippy and the format of the sources'
	@echo 'make fmt     format the sources'

demo:
	@tests/demo.sh

test:
	@tests/run.sh test

soak:
	@tests/run.sh soak

fuzz:
	@tests/fuzz.sh

bench:
	@tests/bench.sh run $(BENCH)

profile:
	@tests/bench.sh profile $(WORKLOAD)

lint:
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings

fmt:
	cargo fmt --all

WORKLOAD ?= dbench-16

.PHONY: help demo test soak fuzz bench profile lint fmt
