#!/usr/bin/env bash
# Runs the tests: `run.sh test` what every change must pass, `run.sh soak` the long ones.
#
# Everything is built once, optimised but with assertions and overflow checks, by the profile "proof". Where the machine has
# root, loop devices, the kernel's btrfs and /dev/fuse, UBTRFS_TEST_KERNEL=1 forbids tests to skip themselves; elsewhere
# what was skipped is listed at the end.
#
# As many test programs run at once as there are CPUs, since each often waits for disks and other
# processes, and its last tests for one another. What computes runs beside them: the build with a
# scheduler, and the lints. What a program prints is shown when it has ended, and is in
# target/test-logs meanwhile.
set -euo pipefail
cd "$(dirname "$0")/.."
mode=${1:-test}

say() { printf '\n== %s\n' "$*"; }

tests/install-packages.sh \
    mkfs.btrfs=btrfs-progs fusermount3=fuse3 zstd=zstd setfattr=attr setfacl=acl mkfs.ext4=e2fsprogs git=git rsync=rsync sqlite3=sqlite3 \
    fio=fio dbench=dbench stress-ng=stress-ng make=make dpkg-deb=dpkg man=man-db cc=gcc ld=libc6-dev losetup=mount newuidmap=uidmap setcap=libcap2-bin \
    nbdkit=nbdkit nbdfuse=libnbd-bin qemu-nbd=qemu-utils nbd-server=nbd-server openssl=openssl fakeroot=fakeroot systemd-repart=systemd \
    /usr/share/doc/python3-btrfsutil/copyright=python3-btrfsutil bsdtar=libarchive-tools umoci=umoci skopeo=skopeo buildah=buildah

export PATH="$PATH:/usr/sbin:/sbin"
target=${CARGO_TARGET_DIR:-$PWD/target}
proof=(--profile proof)
# Engine and server with a scheduler in place of real threads.
scheduled=(--package ubtrfs-interleavings --features shuttle)
log=$(mktemp)
export logs=$target/test-logs
export UBTRFS_SKIP_LOG
UBTRFS_SKIP_LOG=$(mktemp)
trap 'rm -f "$log" "$UBTRFS_SKIP_LOG"; [ -z "${beside:-}" ] || kill -- "-$beside" || true' EXIT
rm -rf "$logs"
mkdir -p "$logs"

run_all() {
    local at_once=$1
    shift
    xargs -d '\n' -I LINE -P "$at_once" bash -c 'run_program "$@"' run LINE "$@" 2>&1
}

# The tests of the scheduler, which are a build of their own, and of the documentation.
run_others() {
    local status=0 found
    cargo test "${scheduled[@]}" --no-run "${proof[@]}" || status=1
    found=$(programs "${scheduled[@]}")
    if [ -n "$found" ]; then
        run_all 1 "$@" <<<"$found" || status=1
    else
        echo 'there are no test programs of the scheduler'
        status=1
    fi
    cargo test --workspace --doc --no-fail-fast "${proof[@]}" -- "$@" 2>&1 || status=1
    return "$status"
}

# What a program can say of the sources without running them.
lint() {
    cargo clippy --workspace --all-targets "${proof[@]}" -- -D warnings &&
        tests/shipped.sh "${proof[@]}" &&
        RUSTDOCFLAGS='-D warnings' cargo doc --workspace --no-deps "${proof[@]}"
}

# The test programs of a build: the directory of the package, the source, and the program. First
# come those that take longest: one that waits for disks and kernels beside one that computes.
programs() {
    cargo test "$@" --no-run "${proof[@]}" --message-format=json 2>/dev/null |
        sed -nE 's|.*"manifest_path":"([^"]*)/Cargo.toml".*"src_path":"([^"]*)".*"profile":\{[^}]*"test":true\}.*"executable":"([^"]*)".*|\1\t\2\t\3|p' |
        awk -F '\t' '{ print ($2 ~ /\/testkit\/tests/ ? 0 : $2 ~ /\/(interleavings|simulator|ubtrfs)\/tests/ ? 1 : $2 ~ /\/cli\/tests/ ? 2 : 3) "\t" $0 }' |
        sort -s -n -k 1,1 | cut -f 2-
}

# Where the engine's own tests have their images: what they try does not depend on the disk, and
# waits for nothing in memory. Programs that mount have theirs where TMPDIR says.
in_memory=
if [ "$(stat -f -c %T /dev/shm 2>/dev/null)" = tmpfs ] && [ -w /dev/shm ] &&
    [ "$(df --output=avail -B 1M /dev/shm | tail -n 1)" -ge 4096 ] && [ "$(awk '/^MemAvailable/ { print int($2 / 1024) }' /proc/meminfo)" -ge 6144 ]; then
    in_memory=/dev/shm
fi
export in_memory

# Runs a program as cargo would, and shows what it has printed.
run_program() {
    local directory source program own status=0
    IFS=$'\t' read -r directory source program <<<"$1"
    own=$logs/${program##*/}.log
    printf '     Running %s (%s)\n' "${source#"$PWD"/}" "$program" >"$own"
    case $directory in */crates/fs | */crates/ubtrfs | */crates/simulator) [ -z "$in_memory" ] || local -x TMPDIR=$in_memory ;; esac
    (cd "$directory" && exec "$program" "${@:2}") >>"$own" 2>&1 || status=$?
    # A program that crashes prints no result.
    [ "$status" -eq 0 ] || printf 'error: %s: exit status %s\n' "$program" "$status" >>"$own"
    flock "$logs" cat "$own"
    return "$status"
}
export -f run_program

if [ "$mode" = test ]; then
    say 'format'
    cargo fmt --all --check
fi
say 'build'
# With the programs, which are the same for all tests.
cargo test --workspace --no-run "${proof[@]}"
export UBTRFS_BIN=$target/proof/ubtrfs
if [ "$mode" = test ]; then
    cargo run -q "${proof[@]}" -p ubtrfs-lint
fi
at_once=$([ "$mode" = test ] && nproc || echo 1)
# They wait for disks and other processes more than they compute.
export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$((at_once > 1 ? $(nproc) + 1 : 2 * $(nproc)))}

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

words=()
if [ "$mode" = soak ]; then
    export UBTRFS_SOAK=1 UBTRFS_SEEDS=${UBTRFS_SEEDS:-1-100} UBTRFS_MOUNT_LIMIT=${UBTRFS_MOUNT_LIMIT:-7200}
    words+=(--include-ignored)
fi
status=0
found=$(programs --workspace)
[ -n "$found" ] || { echo 'there are no test programs'; exit 1; }
beside() {
    local status=0
    run_others >"$logs/others" || status=1
    lint >"$logs/lints" 2>&1 || status=1
    return "$status"
}
if [ "$mode" = test ]; then
    # As a process group, which ends as a whole. Tests wait for disks, and this computes meanwhile.
    set -m
    beside &
    beside=$!
    set +m
fi
run_all "$at_once" "${words[@]}" <<<"$found" | tee "$log" || status=1
if [ "$mode" = test ]; then
    wait "$beside" || status=1
    beside=
    tee -a "$log" <"$logs/others"
    say 'lints'
    cat "$logs/lints"
else
    run_others "${words[@]}" | tee -a "$log" || status=1
fi

if [ "$mode" = soak ] && [ "$(id -u)" -eq 0 ]; then
    say 'kernels'
    tests/kernels.sh 2>&1 | tee -a "$log" || status=1
fi

if [ -s "$UBTRFS_SKIP_LOG" ]; then
    say 'skipped'
    sort -u "$UBTRFS_SKIP_LOG"
fi
say 'summary'
grep -E '^(test .* FAILED|check .*: FAILED.*|error: .*: exit status [0-9]+)$' "$log" | sort -u || true
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
