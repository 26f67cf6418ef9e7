# The tasks of this project; `make` alone lists them.

help:
	@echo 'make demo    build, make a volume, mount it, do some real work on it, unmount, check'
	@echo '             (building needs Rust 1.88 or newer: https://rustup.rs)'
	@echo 'make test    lint, build and run all tests (20 minutes on 2 cores at the most)'
	@echo 'make soak    the long tests: many seeds, many crash states, stressors'
	@echo 'make kernels the checks of ubtrfs on kernels of Debian, emulated by qemu: 6.1, 6.12 and 6.17 (docs/kernels.md)'
	@echo 'make suites  the test suites of coreutils, SQLite and git on a mount, compared with the kernel (SUITES="git …", FULL=1)'
	@echo 'make fuzz    each fuzz target for ten minutes (FUZZ_SECONDS)'
	@echo 'make bench   the same workloads on ubtrfs, the kernel, and the bound of FUSE (BENCH="--quick", "--full", "--guard", workloads, …)'
	@echo 'make profile WORKLOAD=dbench-16    a flame graph of the server (OUT=profile.svg)'
	@echo 'make lint    formatting, clippy, and the rules of CONTRIBUTING.md'
	@echo 'make fmt     format the sources'
	@echo 'make install ubtrfs, helpers of mount(8), fsck(8) and mkfs(8), manual pages, completions, units for systemd'
	@echo '             (PREFIX=/usr/local, SBINDIR=/sbin, DESTDIR=, BIN= of a binary that is built)'
	@echo 'make deb     the same as a Debian package, with cargo-deb (target/debian)'

demo:
	@tests/demo.sh

test:
	@tests/run.sh test

soak:
	@tests/run.sh soak

kernels:
	@cargo build --profile proof -p ubtrfs-cli
	@UBTRFS_BIN=$(TARGET)/proof/ubtrfs tests/kernels.sh --write

suites:
	@tests/suites.sh $(SUITES)

fuzz:
	@tests/fuzz.sh

bench:
	@tests/bench.sh run $(BENCH)

profile:
	@tests/bench.sh profile $(WORKLOAD)

lint:
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	cargo clippy --package ubtrfs-interleavings --features shuttle --all-targets -- -D warnings
	@tests/shipped.sh
	RUSTDOCFLAGS='-D warnings' cargo doc --workspace --no-deps
	cargo run -q -p ubtrfs-lint
	@tests/advisories.sh

fmt:
	cargo fmt --all

deb:
	@tests/deb.sh build

# BIN names a binary; without it one is built. mount(8) looks for its helpers in /sbin, whatever the
# prefix.
install:
	$(if $(BIN),,cargo build --release -p ubtrfs-cli)
	install -D -m 755 $(BUILT) $(DESTDIR)$(PREFIX)/bin/ubtrfs
	install -d $(DESTDIR)$(SBINDIR) $(DESTDIR)$(PREFIX)/lib/systemd/system
	ln -sf $(LINKED)/ubtrfs $(DESTDIR)$(SBINDIR)/mount.ubtrfs
	ln -sf $(LINKED)/ubtrfs $(DESTDIR)$(SBINDIR)/mount.fuse.ubtrfs
	ln -sf $(LINKED)/ubtrfs $(DESTDIR)$(SBINDIR)/mount.fuseblk.ubtrfs
	ln -sf $(LINKED)/ubtrfs $(DESTDIR)$(SBINDIR)/fsck.ubtrfs
	ln -sf $(LINKED)/ubtrfs $(DESTDIR)$(SBINDIR)/mkfs.ubtrfs
	$(BUILT) generate $(DESTDIR)$(PREFIX)/share
	install -D -m 644 packaging/ubtrfs.conf $(DESTDIR)$(PREFIX)/lib/modprobe.d/ubtrfs.conf
	sed 's|@bin@|$(PREFIX)/bin|' docs/ubtrfs@.service.in > $(DESTDIR)$(PREFIX)/lib/systemd/system/ubtrfs@.service
	sed 's|@bin@|$(PREFIX)/bin|' docs/ubtrfs-scrub@.service.in > $(DESTDIR)$(PREFIX)/lib/systemd/system/ubtrfs-scrub@.service
	install -m 644 docs/ubtrfs-scrub@.timer $(DESTDIR)$(PREFIX)/lib/systemd/system/ubtrfs-scrub@.timer

PREFIX ?= /usr/local
SBINDIR ?= /sbin
TARGET ?= $(or $(CARGO_TARGET_DIR),target)
BUILT = $(or $(BIN),$(TARGET)/release/ubtrfs)
# What lies side by side is linked so that it can be moved together.
LINKED = $(if $(filter $(PREFIX)/sbin,$(SBINDIR)),../bin,$(PREFIX)/bin)
WORKLOAD ?= dbench-16

.PHONY: help demo test soak kernels suites fuzz bench profile lint fmt install deb
