#!/usr/bin/env bash
# How long programs take on a volume behind an NBD server whose answers come late, beside the
# kernel's btrfs on the same kind of export (nbdkit, made a file by nbdfuse and a device by a loop
# device). Needs root, nbdkit, nbdfuse (libnbd-bin), git, sqlite3 and dbench. Rounds alternate;
# prints the median of each step in seconds, least and most, and the ratio.
#
# usage: latency.sh UBTRFS [ROUNDS [MILLISECONDS...]]
set -euo pipefail

ubtrfs=$(realpath "$1")
rounds=${2:-3}
delays=("${@:3}")
[ ${#delays[@]} -gt 0 ] || delays=(0 1 5 20)
work=$(mktemp -d /dev/shm/ubtrfs-latency-XXXXXX)
pids=()
loop=

finish() {
    umount "$work/mnt" 2>/dev/null || true
    [ -z "$loop" ] || losetup -d "$loop" 2>/dev/null || true
    umount "$work/fuse" 2>/dev/null || true
    for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
    rm -rf "$work"
}
trap finish EXIT
mkdir "$work/mnt" "$work/fuse" "$work/source"

# What is unpacked: documentation of this machine's packages, up to 5000 files of it; and a
# repository with the same.
find /usr/share/doc -type f -print0 | sort -z | head -z -n 5000 >"$work/list"
tar cf "$work/tree.tar" --null -T "$work/list" 2>/dev/null
tar xf "$work/tree.tar" -C "$work/source"
git -C "$work/source" init -q
git -C "$work/source" add .
git -C "$work/source" -c user.name=x -c user.email=x@x commit -q -m x
git clone -q --bare "$work/source" "$work/repository"
rm -rf "$work/source"

serve() {
    rm -f "$work/disk" "$work/socket"
    truncate -s 2G "$work/disk"
    nbdkit -f -U "$work/socket" --filter=delay file "$work/disk" "rdelay=$1ms" "wdelay=$1ms" "delay-zero=$1ms" "delay-trim=$1ms" &
    pids=($!)
    until [ -S "$work/socket" ]; do sleep 0.05; done
}

make_ubtrfs() { "$ubtrfs" mkfs "$uri" >/dev/null; }
mount_ubtrfs() { "$ubtrfs" mount "$uri" "$work/mnt"; }
make_btrfs() {
    nbdfuse "$work/fuse/disk" "$uri" 2>/dev/null &
    pids+=($!)
    until [ -e "$work/fuse/disk" ]; do sleep 0.05; done
    loop=$(losetup -f --show "$work/fuse/disk")
    mkfs.btrfs -q -f "$loop" 2>/dev/null
}
mount_btrfs() { mount -o nodiscard "$loop" "$work/mnt"; }

# All of it is on the server, and nothing in memory.
again() {
    umount "$work/mnt"
    # A server of ours holds the export until it has ended.
    sleep 0.5
    echo 3 >/proc/sys/vm/drop_caches
    "mount_$1"
}

timed() {
    local start
    start=$(date +%s%N)
    "${@:2}" >/dev/null 2>&1
    echo "$1 $((($(date +%s%N) - start) / 1000))" >>"$results"
}

sync_mount() { if [ "$1" = ubtrfs ]; then "$ubtrfs" sync "$work/mnt"; else sync -f "$work/mnt"; fi; }
untar() { tar xf "$work/tree.tar" -C "$work/mnt" && sync_mount "$1"; }
checkout() { git clone -q "$work/repository" "$work/mnt/clone" && sync_mount "$1"; }
sqlite() {
    {
        echo "PRAGMA journal_mode=WAL; CREATE TABLE t (x);"
        for number in $(seq 100); do echo "INSERT INTO t VALUES ($number);"; done
    } | sqlite3 "$work/mnt/database"
}
# Operations of the usual loads within some seconds, as the time that so many take.
dbench_load() {
    local rate
    rate=$(dbench -D "$work/mnt" -t 8 1 2>/dev/null | sed -n 's/^Throughput \([0-9.]*\) .*/\1/p')
    echo "dbench,100MB $(awk "BEGIN { print int(100e6 / $rate) }")" >>"$results"
}
read_all() { tar c -C "$work/mnt" usr | cat; }

run() {
    results=$work/results-$1-$2
    serve "$2"
    uri="nbd+unix:///?socket=$work/socket"
    "make_$1"
    "mount_$1"
    timed untar untar "$1"
    timed git-checkout checkout "$1"
    timed sqlite,100 sqlite
    dbench_load
    again "$1"
    timed ls-lR,cold ls -lR "$work/mnt/usr"
    again "$1"
    timed git-status,cold git -C "$work/mnt/clone" status
    again "$1"
    timed tar-c,cold read_all
    umount "$work/mnt"
    if [ "$1" = btrfs ]; then
        losetup -d "$loop"
        loop=
        umount "$work/fuse"
    fi
    sleep 0.5
    for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; wait "$pid" 2>/dev/null || true; done
    pids=()
}

export GIT_OPTIONAL_LOCKS=0
git config --file "$work/gitconfig" safe.directory '*'
export GIT_CONFIG_GLOBAL=$work/gitconfig
for round in $(seq "$rounds"); do
    for delay in "${delays[@]}"; do
        echo "round $round, $delay ms" >&2
        run ubtrfs "$delay"
        run btrfs "$delay"
    done
done

spread() { sort -n | awk '{ v[NR] = $1 / 1e6 } END { printf "%.3f %.3f %.3f", v[int((NR + 1) / 2)], v[1], v[NR] }'; }
echo "| delay | step | ubtrfs | btrfs | btrfs/ubtrfs |"
echo "|---|---|---|---|---|"
for delay in "${delays[@]}"; do
    for step in $(cut -d' ' -f1 "$work/results-ubtrfs-$delay" | awk '!seen[$0]++'); do
        read -r ours least most < <(grep "^$step " "$work/results-ubtrfs-$delay" | cut -d' ' -f2 | spread; echo)
        read -r theirs low high < <(grep "^$step " "$work/results-btrfs-$delay" | cut -d' ' -f2 | spread; echo)
        ratio=$(awk "BEGIN { printf \"%.2f\", $theirs / $ours }")
        echo "| $delay ms | $step | $ours ($least-$most) | $theirs ($low-$high) | $ratio |"
    done
done
