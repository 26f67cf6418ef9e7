#!/usr/bin/env bash
# A volume on a Ceph cluster of this machine: a monitor and three OSDs, and qemu-nbd in front of an
# image. While writers call fsync(2), an OSD and qemu-nbd are killed and started again; what was
# acknowledged must be there, and the checks clean.
#
# usage: ceph.sh   (as root; UBTRFS_BIN names the program, ROUNDS how often something is killed)
set -euo pipefail
cd "$(dirname "$0")/.."
ubtrfs=$(realpath "${UBTRFS_BIN:-target/proof/ubtrfs}")
tests/install-packages.sh ceph-mon=ceph-mon ceph-osd=ceph-osd rbd=ceph-common qemu-nbd=qemu-utils btrfs=btrfs-progs \
    /usr/lib/x86_64-linux-gnu/qemu/block-rbd.so=qemu-block-extra

dir=$(mktemp -d /tmp/ubtrfs-ceph-XXXXXX)
uri="nbd+unix:///?socket=$dir/socket"
declare -A running=()
finish() {
    umount -l "$dir/mnt" 2>/dev/null || true
    for pid in "${running[@]}"; do kill -9 "$pid" 2>/dev/null || true; done
    rm -rf "$dir"
}
trap finish EXIT
say() { printf '== %s\n' "$*"; }

mkdir -p "$dir/mon" "$dir/run" "$dir/mnt"
fsid=$(cat /proc/sys/kernel/random/uuid)
port=$((20000 + RANDOM % 20000))
monitor="[v2:127.0.0.1:$port/0,v1:127.0.0.1:$((port + 1))/0]"
cat >"$dir/ceph.conf" <<CONF
[global]
fsid = $fsid
mon initial members = a
mon host = $monitor
public network = 127.0.0.0/8
auth cluster required = none
auth service required = none
auth client required = none
osd pool default size = 3
osd pool default min size = 2
osd crush chooseleaf type = 0
run dir = $dir/run
pid file = $dir/run/\$type.\$id.pid
admin socket = $dir/run/\$cluster-\$name.asok
log file = $dir/run/\$type.\$id.log
keyring = $dir/keyring
mon data = $dir/mon/a
osd data = $dir/osd/\$id
osd objectstore = bluestore
bluestore block size = 3221225472
bluestore cache autotune = false
bluestore cache size = 67108864
CONF
export CEPH_CONF=$dir/ceph.conf

start() {
    local name=$1
    shift
    # Not behind the trap of this shell: it is killed by its id.
    "$@" >>"$dir/run/$name.out" 2>&1 &
    running[$name]=$!
}
end() {
    kill -9 "${running[$1]}"
    wait "${running[$1]}" 2>/dev/null || true
    unset "running[$1]"
}
serve() {
    rm -f "$dir/socket"
    start qemu qemu-nbd --persistent --shared=8 --socket="$dir/socket" --format=raw --cache=writeback --discard=unmap \
        "rbd:rbd/volume:conf=$CEPH_CONF"
    until [ -S "$dir/socket" ]; do sleep 0.1; done
}

say 'a monitor and three OSDs'
ceph-authtool --create-keyring "$dir/keyring" --gen-key -n mon. --cap mon 'allow *' >/dev/null
ceph-authtool "$dir/keyring" --gen-key -n client.admin --cap mon 'allow *' --cap osd 'allow *'
monmaptool --create --clobber --fsid "$fsid" --addv a "$monitor" "$dir/monmap" >/dev/null
ceph-mon --mkfs -i a --monmap "$dir/monmap" --keyring "$dir/keyring"
start mon ceph-mon -f -i a
for osd in 0 1 2; do
    uuid=$(cat /proc/sys/kernel/random/uuid)
    timeout 120 ceph osd new "$uuid" >/dev/null
    mkdir -p "$dir/osd/$osd"
    ceph-osd -i "$osd" --mkfs --osd-uuid "$uuid" >"$dir/run/mkfs.$osd" 2>&1
    start "osd.$osd" ceph-osd -f -i "$osd"
done
timeout 120 ceph osd pool create rbd 8 2>/dev/null
timeout 120 rbd pool init rbd
timeout 120 rbd create --size 1G rbd/volume
serve
"$ubtrfs" mkfs "$uri"
"$ubtrfs" mount -o timeout=3600 "$uri" "$dir/mnt"

# Each file is named in the list when its fsync has returned.
work() {
    local number=0
    while [ ! -e "$dir/enough" ]; do
        number=$((number + 1))
        head -c $((RANDOM * 4 + 1)) /dev/urandom >"$dir/content.$1"
        dd if="$dir/content.$1" of="$dir/mnt/$1.$number" bs=1M conv=fsync status=none
        (cd "$dir/mnt" && echo "$(sha256sum <"$dir/content.$1" | cut -d' ' -f1)  $1.$number") >>"$dir/acknowledged.$1"
        [ "$number" -lt 20 ] || rm -f "$dir/mnt/$1.$((number - 20))"
    done
}
workers=()
for worker in a b c; do
    work "$worker" &
    workers+=($!)
done

for round in $(seq "${ROUNDS:-6}"); do
    sleep 2
    if [ $((round % 2)) -eq 0 ]; then
        osd=$((RANDOM % 3))
        say "osd.$osd is killed"
        end "osd.$osd"
        sleep 2
        start "osd.$osd" ceph-osd -f -i "$osd"
    else
        say 'qemu-nbd is killed'
        end qemu
        serve
    fi
done
touch "$dir/enough"
wait "${workers[@]}"

say 'qemu-nbd and the server of the mount are killed, and what was acknowledged is compared'
server=$("$ubtrfs" stats --json "$dir/mnt" | sed -n 's/.*"pid": *\([0-9]*\).*/\1/p' | head -n 1)
end qemu
kill -9 "$server"
umount -l "$dir/mnt"
serve
"$ubtrfs" check "$uri"
"$ubtrfs" mount -o ro "$uri" "$dir/mnt"
compared=0
for worker in a b c; do
    # Files that were removed meanwhile are not compared.
    tail -n 19 "$dir/acknowledged.$worker" >"$dir/last"
    (cd "$dir/mnt" && sha256sum --quiet -c "$dir/last")
    compared=$((compared + $(wc -l <"$dir/last")))
done
"$ubtrfs" umount "$dir/mnt"
end qemu
timeout 300 rbd export --no-progress rbd/volume "$dir/image"
btrfs check --readonly --check-data-csum "$dir/image" >"$dir/run/check" 2>&1 || {
    cat "$dir/run/check"
    exit 1
}
say "$compared files are as they were acknowledged; the checks are clean"
