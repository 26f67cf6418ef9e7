#!/usr/bin/env bash
# Runs the tests: `run.sh test` what every change must pass, `run.sh soak` the long ones.
#
# Everything is built once, optimised but with assertions and overflow checks, by the profile "proof". Where the machine has
# root, loop devices, the kernel's btrfs and /dev/fuse, UBTRFS_TEST_KERNEL=1 forbids tests to skip themselves; elsewhere
# what was skipped is listed at the end.
set -euo pipefail
cd "$(dirname "$0")/.."
mode=${1:-test}

say() { printf '\n== %s\n' "$*"; }

tests/install-packages.sh \
    mkfs.btrfs=btrfs-progs fusermount3=fuse3 zstd=zstd setfattr=attr setfacl=acl mkfs.ext4=e2fsprogs git=git rsync=rsync sqlite3=sqlite3 \
    fio=fio dbench=dbench stress-ng=stress-ng make=make dpkg-deb=dpkg man=man-db cc=gcc ld=libc6-dev losetup=mount newuidmap=uidmap setcap=libcap2-bin \
    nbdkit=nbdkit qemu-nbd=qemu-utils nbd-server=nbd-server openssl=openssl \
    /usr/share/doc/python3-btrfsutil/copyright=python3-btrfsutil

export PATH="$PATH:/usr/sbin:/sbin"
target=${CARGO_TARGET_DIR:-$PWD/target}
proof=(--profile proof)
log=$(mktemp)
export UBTRFS_SKIP_LOG
UBTRFS_SKIP_LOG=$(mktemp)
trap 'rm -f "$log" "$UBTRFS_SKIP_LOG"' EXIT

if [ "$mode" = test ]; then
    say 'format and lints'
    cargo fmt --all --check
    cargo clippy --workspace --all-targets "${proof[@]}" -- -D warnings
    tests/shipped.sh "${proof[@]}"
    RUSTDOCFLAGS='-D warnings' cargo doc --workspace --no-deps "${proof[@]}"
fi

say 'build'
# With the programs, which are the same for all tests.
cargo test --workspace --no-run "${proof[@]}"
export UBTRFS_BIN=$target/proof/ubtrfs
if [ "$mode" = test ]; then
    cargo run -q "${proof[@]}" -p ubtrfs-lint
fi
# They wait for disks and other processes more than they compute.
export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$((2 * $(nproc)))}

lacking=()
[ "$(id -u)" -eq 0 ] || lacking+=('root')
[ -e /dev/loop-control ] || lacking+=('/dev/loop-control')
[ -w /dev/fuse ] || lacking+=('/dev/fuse')
grep -qw btrfs /proc/filesystems || modprobe btrfs 2>/dev/null || lacking+=("btrfs in the kernel")
if [ ${#lacking[@]} -eq 0 ]; then
    export UBTRFS_TEST_KERNEL=1
    say 'tests, with the kernel as the other side'
else
    printf -v list '%s, ' "${lacking[@]}"
    say "tests, without what needs: ${list%, }"
fi

# A soak leaves the sources as they were, which can be told where they were as committed.
changes() { git diff --no-ext-diff --name-only HEAD; }
is_clean=false
if [ "$mode" = soak ] && before=$(changes 2>/dev/null) && [ -z "$before" ]; then
    is_clean=true
fi

words=(--workspace --no-fail-fast "${proof[@]}")
if [ "$mode" = soak ]; then
    export UBTRFS_SOAK=1 UBTRFS_SEEDS=${UBTRFS_SEEDS:-1-100} UBTRFS_MOUNT_LIMIT=${UBTRFS_MOUNT_LIMIT:-7200}
    words+=(-- --include-ignored)
fi
status=0
cargo test "${words[@]}" 2>&1 | tee "$log" || status=$?

if [ -s "$UBTRFS_SKIP_LOG" ]; then
    say 'skipped'
    sort -u "$UBTRFS_SKIP_LOG"
fi
say 'summary'
grep -E '^test .* FAILED$' "$log" | sort -u || true
awk '/^ +(Running|Doc-tests) / { name = ($1 == "Running") ? $2 " " $3 : "doc " $2 } /^test result/ { print name ": " $0 }' "$log" |
    sed -E 's/ \([^)]*\)//'
grep -E '^test result' "$log" | awk '{ passed += $4; failed += $6; ignored += $8 }
        END { printf "tests: %d passed, %d failed, %d skipped\n", passed, failed, ignored }'
if "$is_clean" && after=$(changes) && [ -n "$after" ]; then
    say 'the tests have changed files of the sources'
    printf '%s\n' "$after"
    status=1
fi
exit "$status"
