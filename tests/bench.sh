#!/usr/bin/env bash
# Builds and runs the bench command: `bench.sh run [WORD…]` measures and draws pictures, `bench.sh profile WORKLOAD` draws a
# flame graph, `bench.sh run --guard` compares counters with the baseline. Results go into target/bench, or where OUT says (profile: a file).
set -euo pipefail
cd "$(dirname "$0")/.."
mode=${1:-run}
shift || true

if [ "$mode" = run ] && [ "${1:-}" = --guard ]; then
    shift
    exec cargo run -q --release -p ubtrfs-bench -- guard "$@"
fi

tests/install-packages.sh \
    mkfs.btrfs=btrfs-progs mkfs.xfs=xfsprogs mkfs.ext4=e2fsprogs fusermount3=fuse3 dbench=dbench fio=fio git=git \
    losetup=mount findmnt=util-linux nbdkit=nbdkit nbdfuse=libnbd-bin sqlite3=sqlite3
export PATH="$PATH:/usr/sbin:/sbin"
target=${CARGO_TARGET_DIR:-$PWD/target}

case "$mode" in
run)
    cargo build --release -p ubtrfs-cli -p ubtrfs-bench
    out=${OUT:-$target/bench}
    mkdir -p "$out"
    exec "$target/release/ubtrfs-bench" run --out "$out/bench.json" --plots "$out" "$@"
    ;;
profile)
    tests/install-packages.sh perf=linux-perf
    # perf follows frame pointers; what is built with them lies apart.
    RUSTFLAGS='-C force-frame-pointers=yes' cargo build --profile profiling --target-dir "$target/profile" -p ubtrfs-cli -p ubtrfs-bench
    exec "$target/profile/profiling/ubtrfs-bench" profile --out "${OUT:-profile.svg}" "$@"
    ;;
*)
    echo 'bench.sh run [WORD…] | profile WORKLOAD' >&2
    exit 2
    ;;
esac
