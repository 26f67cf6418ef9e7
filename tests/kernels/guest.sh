#!/usr/bin/env bash
# What every kernel has to do with ubtrfs, run as root on one: the round trip with the kernel's
# btrfs, what docs/durability.md promises, the calls of POSIX, snapshots, and volumes of several
# devices. Each check is a line "check NAME: ok" or "check NAME: FAILED: why"; the last line is
# "checks: N failed".
#
# usage: guest.sh UBTRFS DIRECTORY    (the directory is empty, and in memory)
set -u
ubtrfs=$1
cd "$2" || exit 1
export UBTRFS_LOG=warn
failed=0
why=$PWD/why
loops=()

# Runs a check, which has to succeed, in a shell of its own; its output is shown where it fails.
check() {
    local name=$1
    shift
    # Not in a condition, where nothing would end it at the first command that fails.
    (set -e; "$@") >"$why" 2>&1
    # shellcheck disable=SC2181
    if [ $? -eq 0 ]; then
        echo "check $name: ok"
    else
        failed=$((failed + 1))
        echo "check $name: FAILED: $(tail -n 3 "$why" | tr '\n' ' ')"
    fi
}

fail() {
    echo "$*"
    return 1
}

refused() {
    if "$@" >/dev/null 2>&1; then fail "'$*' succeeds"; fi
}

# is ACTUAL EXPECTED
is() { [ "$1" = "$2" ] || fail "'$1' instead of '$2'"; }

# A new volume: new IMAGE [MKFS'S ARGUMENTS]
new() {
    local image=$1
    shift
    rm -f "$image"
    truncate -s 300M "$image"
    "$ubtrfs" mkfs "$@" "$image"
}

# Attaches a loop device, whose path is then in $device.
attach() {
    device=$(losetup -f --show "$1")
    loops+=("$device")
}

# What a tree holds: names, kinds, modes, owners, sizes, times, targets, contents and xattrs.
listing() {
    (
        cd "$1"
        find . -mindepth 1 \( -type d -printf '%p %y %m %U %G %T@\n' -o -printf '%p %y %m %U %G %n %s %T@ %l\n' \) | LC_ALL=C sort
        find . -type f -exec sha256sum {} + | LC_ALL=C sort -k 2
        find . -mindepth 1 ! -type l | LC_ALL=C sort | xargs -d '\n' getfattr -d -m '^(user|trusted)\.' 2>/dev/null
    )
}

# A tree with all that a volume can hold.
plant() {
    mkdir -p "$1/a/b/c" "$1/many"
    local number
    for number in $(seq 200); do echo "content $number" >"$1/many/file-$number"; done
    head -c 3000000 /dev/urandom >"$1/a/large"
    head -c 100 /dev/zero >"$1/a/b/small"
    yes compressible | head -c 2000000 >"$1/a/b/text"
    truncate -s 40M "$1/a/holes"
    echo end >>"$1/a/holes"
    ln "$1/a/large" "$1/a/b/c/hard link"
    ln -s ../large "$1/a/b/symbolic"
    mkfifo "$1/a/fifo"
    mknod "$1/a/null" c 1 3
    setfattr -n user.colour -v green "$1/a/large"
    setfattr -n trusted.shade -v dark "$1/a/b"
    chmod 4751 "$1/a/b/small"
    chown 1000:1001 "$1/a/b/text"
    touch -d '2001-02-03 04:05:06.789' "$1/a/b/c"
}

# -- The round trip --------------------------------------------------------------------------------

round_trip() {
    new rt.img --label trip
    mkdir -p mnt knl
    "$ubtrfs" mount -o compress=zstd rt.img mnt
    plant mnt
    listing mnt >ours
    umount mnt
    "$ubtrfs" check rt.img
    btrfs check -p rt.img
    attach rt.img
    mount -t btrfs "$device" knl
    listing knl >kernels
    cmp ours kernels || { diff ours kernels; fail 'the kernel reads something else'; }
    # And back.
    rm -r knl/many
    plant knl/again
    mv knl/a/large knl/a/b/moved
    btrfs subvolume snapshot -r knl knl/snapshot
    echo later >>knl/a/b/text
    btrfs scrub start -B knl
    listing knl >kernels
    umount knl
    losetup -d "$device"
    "$ubtrfs" check rt.img
    "$ubtrfs" mount rt.img mnt
    listing mnt >ours
    cmp ours kernels || { diff ours kernels; fail 'ubtrfs reads something else'; }
    umount mnt
}

# -- Promises --------------------------------------------------------------------------------------

# Mounts so that nothing but what is asked for makes changes durable: as an image, as a device, or
# by an ordinary user.
mount_as() {
    local how=$1
    shift
    mkdir -p mnt
    new p.img --root-owner "$([ "$how" = user ] && echo 1000:1000 || echo 0:0)" >/dev/null
    target=p.img
    case $how in
        image) ;;
        device) attach p.img; target=$device ;;
        user) chown 1000:1000 p.img mnt; chmod 711 . ;;
    esac
    if [ "$how" = user ]; then
        as_user "$ubtrfs" mount -o commit=100000 "$PWD/p.img" "$PWD/mnt"
    else
        "$ubtrfs" mount -o commit=100000 "$target" mnt
    fi
}

as_user() { setpriv --reuid=1000 --regid=1000 --clear-groups -- "$@"; }

# What would be there if everything ended now.
crash() {
    rm -f copy.img
    cp --sparse=always p.img copy.img
    "$ubtrfs" check copy.img >/dev/null || fail 'the copy is damaged'
}

# holds FILE CONTENT: the copy has that, by ubtrfs, and by the kernel (which replays the log).
holds() {
    local found
    found=$("$ubtrfs" cat copy.img "$1") || fail "$1 is missing"
    [ "$found" = "$2" ] || fail "$1 has '$found' instead of '$2'"
    attach copy.img
    mkdir -p knl
    mount -t btrfs "$device" knl
    found=$(cat "knl/$1") || fail "the kernel misses $1"
    umount knl
    losetup -d "$device"
    [ "$found" = "$2" ] || fail "for the kernel $1 has '$found' instead of '$2'"
}

lacks() {
    refused "$ubtrfs" cat copy.img "$1"
}

# The copy does not have what nothing has asked for. Where syncs arrive by the device, the kernel
# asks by itself after half a minute, and a busy machine may need longer to come this far.
lacks_yet() {
    local commits
    commits=$("$ubtrfs" stats mnt 2>/dev/null | awk '$1 == "commits" { print $2 }')
    [ "${commits:-0}" -gt 0 ] || lacks "$1"
}

# lacks_content FILE CONTENT
lacks_content() {
    [ "$("$ubtrfs" cat copy.img "$1")" != "$2" ] || fail "$1 has '$2' already"
}

finish() {
    umount mnt 2>/dev/null || umount -l mnt 2>/dev/null || true
    [ "${target#/dev/}" = "$target" ] || losetup -d "$target"
    wait_for_end
}

# A user's mount ends without anybody waiting for it.
wait_for_end() {
    local round
    for round in $(seq 200); do
        pgrep -f "^ubtrfs mount --server.* $PWD/" >/dev/null || return 0
        sleep 0.1
    done
    fail 'the server does not end'
}

# promise HOW COMMAND...: the command makes durable what was done before it.
promise() {
    local how=$1
    shift
    mount_as "$how"
    echo before >mnt/file
    mkdir mnt/dir
    echo inner >mnt/dir/inner
    crash
    lacks_yet file
    "$@"
    crash
    holds file before
    holds dir/inner inner
    # Again: it is no matter of the first time.
    case "$*" in
        *remount* | umount*) ;;
        *)
            local round
            for round in 1 2 3; do
                echo "round $round" >mnt/file
                "$@"
                crash
                holds file "round $round"
            done
            ;;
    esac
    finish
}

fsync_file() {
    mount_as "$1"
    echo before >mnt/other
    mkdir mnt/dir
    xfs_io -f -c 'pwrite -S 0x61 0 5' -c fsync mnt/dir/file
    crash
    lacks_yet other
    holds dir/file aaaaa
    mv mnt/dir/file mnt/dir/renamed
    xfs_io -c fsync mnt/dir
    crash
    holds dir/renamed aaaaa
    lacks dir/file
    xfs_io -d -f -s -c 'pwrite -S 0x62 0 4096' mnt/synchronous
    crash
    "$ubtrfs" cat copy.img synchronous | tr -d b | cmp - /dev/null
    finish
}

# What is done through each of several mounts of a device is durable by a sync of any of them, and
# by the end of the last one.
several_mounts() {
    new p.img >/dev/null
    attach p.img
    target=$device
    mkdir -p mnt other
    "$ubtrfs" mount "$target" mnt
    for name in a b; do "$ubtrfs" subvolume create mnt/$name; done
    umount mnt
    wait_for_end
    "$ubtrfs" mount -o commit=100000,subvol=a "$target" mnt
    "$ubtrfs" mount -o subvol=b "$target" other
    is "$(pgrep -c -f "^ubtrfs mount --server.* $PWD/")" 1
    local round
    for round in 'sync' 'sync -f mnt' 'sync -f other' "$ubtrfs sync other"; do
        echo "a: $round" >mnt/file
        echo "b: $round" >other/file
        # Its words are separate.
        # shellcheck disable=SC2086
        $round
        crash
        holds a/file "a: $round"
        holds b/file "b: $round"
    done
    umount mnt
    echo last >other/file
    crash
    lacks_content b/file last
    sync -f other
    crash
    holds b/file last
    echo end >other/file
    umount other
    crash
    holds b/file end
    finish
}

# Stores to a live mapping at a hundred places, then the command, some times.
mapped() {
    local how=$1 rounds=$2 round missing=0 waited place places=()
    shift 2
    for place in $(seq 0 40000 3999999); do places+=("$place 8"); done
    mount_as "$how"
    xfs_io -f -c 'pwrite -S 0x2d 0 4m' -c fsync mnt/mapped
    cp mnt/mapped expected
    mkfifo orders
    xfs_io mnt/mapped <orders >/dev/null &
    local pid=$!
    exec 9>orders
    echo 'mmap -rw 0 4m' >&9
    for round in $(seq "$rounds"); do
        printf "mwrite -S $round %s\n" "${places[@]}" >&9
        printf "pwrite -S $round %s\n" "${places[@]}" | xfs_io expected >/dev/null
        # The name tells that the stores are over.
        printf 'open -f stored-%d\nclose\n' "$round" >&9
        waited=0
        until [ -e "stored-$round" ]; do
            waited=$((waited + 1))
            [ "$waited" -lt 3000 ] || fail 'nothing is stored'
            sleep 0.01
        done
        "$@"
        rm -f copy.img
        cp --sparse=always p.img copy.img
        "$ubtrfs" cat copy.img mapped | cmp -s - expected || missing=$((missing + 1))
    done
    exec 9>&-
    wait "$pid"
    rm -f orders stored-* expected
    finish
    [ "$missing" -eq 0 ] || fail "$missing of $rounds times stores were missing"
}

# A mapping that is left, and an unmount at once.
mapped_then_unmounted() {
    local round
    for round in 1 2 3; do
        mount_as image
        truncate -s 8M mnt/mapped
        xfs_io -c 'mmap -rw 0 8m' -c 'mwrite -S 0x65 0 8m' mnt/mapped
        umount mnt
        cp --sparse=always p.img copy.img
        [ "$("$ubtrfs" cat copy.img mapped | tr -d e | wc -c)" -eq 0 ] || fail "stores are missing in round $round"
        wait_for_end
    done
}

# Writes of many programs while some sync: none of those that were over is missing.
under_load() {
    mount_as image
    local writer pids=() round
    for writer in 1 2 3 4; do
        (
            n=0
            until [ -e stop ]; do
                n=$((n + 1))
                echo "$n" >>"mnt/w$writer"
                echo "$n" >"new$writer"
                mv "new$writer" "done$writer"
            done
        ) &
        pids+=($!)
    done
    until [ -e done1 ] && [ -e done2 ] && [ -e done3 ] && [ -e done4 ]; do sleep 0.1; done
    for round in 1 2 3 4 5 6; do
        for writer in 1 2 3 4; do cat "done$writer" >"was$writer"; done
        if [ $((round % 2)) = 0 ]; then sync; else sync -f mnt; fi
        cp --sparse=always p.img copy.img
        for writer in 1 2 3 4; do
            local was now
            was=$(cat "was$writer")
            now=$("$ubtrfs" cat copy.img "w$writer" | wc -l)
            [ "$now" -ge "$was" ] || fail "writer $writer had written $was lines, and the copy has $now"
        done
    done
    touch stop
    wait "${pids[@]}"
    rm -f stop done? was?
    finish
}

# Who has mounted as an ordinary user has his fsyncs, and `ubtrfs sync`.
users_promises() {
    mount_as user
    local work='cd "$1/mnt"; echo before >other; mkdir dir; xfs_io -f -c "pwrite -S 0x61 0 5" -c fsync dir/file'
    as_user bash -ec "$work" as "$PWD"
    crash
    lacks other
    holds dir/file aaaaa
    as_user "$ubtrfs" sync "$PWD/mnt"
    crash
    holds other before
    as_user bash -ec 'echo after >"$1/mnt/other"' as "$PWD"
    as_user "$ubtrfs" umount "$PWD/mnt"
    crash
    holds other after
    target=p.img
    wait_for_end
}

# Loop devices that are attached to anything.
attached() { losetup -nO NAME | wc -l; }

# How a mount ends, nobody who calls sync(2) waits then, and no device stays attached.
ends() {
    local how=$1 before server watcher waited
    before=$(attached)
    mount_as image
    echo before >mnt/file
    server=$("$ubtrfs" stats mnt | awk '$1 == "pid" { print $2 }')
    watcher=$(pgrep -P "$server" -f '^ubtrfs mount --watcher')
    # Two connections where syncs arrive by a device.
    if "$ubtrfs" stats mnt | grep -q '^syncs .*writing to /dev/loop'; then
        case $(readlink "/proc/$watcher/fd/2") in */abort) ;; *) fail 'the watcher does not abort the second connection' ;; esac
    fi
    case $how in
        killed)
            kill -KILL "$server"
            timeout 60 sync || fail 'sync(2) does not come back'
            umount -l mnt
            ;;
        lazily)
            exec 8<mnt/file
            umount -l mnt
            timeout 60 sync || fail 'sync(2) does not come back'
            is "$(cat <&8)" before
            exec 8<&-
            ;;
        by-force)
            (timeout 60 sync; timeout 60 sync) &
            "$ubtrfs" umount --force mnt
            wait $!
            ;;
        detached)
            losetup -D
            echo after >mnt/file
            timeout 60 sync || fail 'sync(2) does not come back'
            crash
            holds file after
            umount mnt
            ;;
        beside-syncs)
            # The last sync and the last request at once, some times.
            local round
            for round in $(seq 20); do
                (timeout 60 sync -f mnt || true; timeout 60 sync) &
                timeout 60 umount mnt 2>/dev/null || { wait $!; timeout 60 umount mnt; }
                wait $! || fail 'sync(2) does not come back'
                wait_for_end
                "$ubtrfs" mount -o commit=100000 p.img mnt
                echo "$round" >mnt/file
            done
            umount mnt
            ;;
    esac
    wait_for_end
    timeout 60 sync || fail 'sync(2) does not come back after the end'
    for waited in $(seq 100); do
        [ "$(attached)" -gt "$before" ] || break
        sleep 0.1
    done
    is "$(attached)" "$before"
    "$ubtrfs" check p.img
    [ "$how" = killed ] || "$ubtrfs" cat p.img file
}

# What a mount says of its syncs.
said() {
    mount_as image
    "$ubtrfs" stats mnt | grep -E '^(transport|mount_type|syncs) '
    local source
    source=$(findmnt -no SOURCE mnt)
    echo "source $source"
    finish
}

# -- POSIX -----------------------------------------------------------------------------------------

posix() {
    mount_as "$1"
    cd mnt
    echo one >file
    chmod 640 file
    is "$(stat -c %a file)" 640
    ln file link
    is "$(stat -c %h file)" 2
    ln -s file symbolic
    is "$(cat symbolic)" one
    mv link moved
    refused stat link
    cmp file moved
    echo more >>file
    is "$(wc -l <moved)" 2
    truncate -s 2 file
    is "$(stat -c %s file)" 2
    truncate -s 100000 file
    is "$(stat -c %s file)" 100000
    fallocate -l 1M reserved
    is "$(stat -c %s reserved)" 1048576
    xfs_io -c 'pwrite -S 1 0 1m' -c 'fpunch 4096 8192' reserved
    is "$(head -c 12288 reserved | tail -c 8192 | tr -d '\0' | wc -c)" 0
    is "$(xfs_io -r -c 'seek -h 0' reserved | awk 'END { print $NF }')" 4096
    cp reserved copy
    cmp reserved copy
    xfs_io -f -c 'copy_range -s 0 -d 0 -l 1m reserved' shared
    cmp reserved shared
    setfattr -n user.x -v y file
    is "$(getfattr --only-values -n user.x file)" y
    setfattr -x user.x file
    refused getfattr -n user.x file
    mkdir -p d/e/f
    refused rmdir d
    rmdir d/e/f
    mv --no-target-directory d/e g
    is "$(stat -c %F g)" directory
    mkfifo fifo
    is "$(stat -c %F fifo)" fifo
    flock -n lock true
    touch -d '2011-11-11 11:11:11' file
    is "$(stat -c %Y file)" "$(date -d '2011-11-11 11:11:11' +%s)"
    # A file that is deleted while it is open, and one without a name.
    exec 7<>deleted
    echo still >&7
    rm deleted
    is "$(cat /proc/self/fd/7)" still
    exec 7>&-
    xfs_io -T -c 'pwrite 0 10' .
    xfs_io -f -d -c 'pwrite -S 7 0 8192' direct
    is "$(stat -c %s direct)" 8192
    xfs_io -f -c 'truncate 4096' -c 'mmap -rw 0 4k' -c 'mwrite -S 0x62 0 4096' -c 'msync -s' mapped
    is "$(tr -d b <mapped | wc -c)" 0
    local n
    for n in $(seq 300); do : >"entry-$n"; done
    is "$(find . -name 'entry-*' | wc -l)" 300
    rm entry-*
    is "$(find . -name 'entry-*' | wc -l)" 0
    df . >/dev/null
    chown 1000:1000 file
    is "$(stat -c %u file)" 1000
    chmod 600 file
    chown 0:0 file
    refused as_user cat file
    chmod 1777 .
    chmod 711 ..
    as_user touch users
    is "$(stat -c %u users)" 1000
    cp "$(type -P true)" program
    chmod 755 program
    ./program
    cd ..
    finish
    "$ubtrfs" check p.img
    btrfs check p.img
}

posix_of() {
    if [ "$1" = user ]; then
        # Only its owner may look into the mount.
        mount_as user
        as_user bash -ec 'cd "$1/mnt"; echo one >file; ln file link; mv link moved; mkdir d; rmdir d; truncate -s 5000 file
            setfattr -n user.x -v y file; xfs_io -c "mmap -rw 0 4k" -c "mwrite 0 4096" -c "msync -s" file; cmp file moved; rm file' as "$PWD"
        as_user "$ubtrfs" umount "$PWD/mnt"
        target=p.img
        wait_for_end
        "$ubtrfs" check p.img
    else
        posix "$1"
    fi
}

# -- Snapshots and devices -------------------------------------------------------------------------

snapshots() {
    mount_as image
    btrfs subvolume create mnt/sub || "$ubtrfs" subvolume create mnt/sub
    plant mnt/sub
    listing mnt/sub >ours
    "$ubtrfs" subvolume snapshot mnt/sub mnt/writable
    "$ubtrfs" subvolume snapshot -r mnt/sub mnt/kept
    # Made is durable.
    crash
    "$ubtrfs" ls copy.img kept/a >/dev/null
    rm -r mnt/sub/many
    echo changed >mnt/writable/a/large
    refused touch mnt/kept/new
    listing mnt/kept >kept
    cmp ours kept
    "$ubtrfs" diff mnt/kept mnt/writable | grep -q a/large
    "$ubtrfs" subvolume delete mnt/writable
    umount mnt
    wait_for_end
    "$ubtrfs" check p.img
    attach p.img
    mount -t btrfs "$device" knl
    listing knl/kept >kernels
    cmp ours kernels
    is "$(btrfs property get knl/kept ro)" ro=true
    btrfs subvolume snapshot knl/kept knl/kernels
    btrfs subvolume delete knl/sub
    btrfs subvolume sync knl
    umount knl
    losetup -d "$device"
    "$ubtrfs" mount p.img mnt
    listing mnt/kernels >ours
    cmp ours kernels
    refused stat mnt/sub
    umount mnt
    wait_for_end
    "$ubtrfs" check p.img
}

# devices PROFILE COUNT
devices() {
    local profile=$1 count=$2 number all=()
    for number in $(seq "$count"); do
        rm -f "d$number.img"
        truncate -s 300M "d$number.img"
        attach "d$number.img"
        all+=("$device")
    done
    "$ubtrfs" mkfs --force -d "$profile" -m raid1 "${all[@]}"
    mkdir -p mnt knl
    "$ubtrfs" mount "${all[@]}" mnt
    plant mnt
    listing mnt >ours
    sync
    umount mnt
    wait_for_end
    "$ubtrfs" check "${all[@]}"
    btrfs device scan "${all[@]}"
    mount -t btrfs "${all[0]}" knl
    listing knl >kernels
    cmp ours kernels
    btrfs scrub start -B knl
    plant knl/again
    listing knl >kernels
    umount knl
    "$ubtrfs" check "${all[@]}"
    if [ "$profile" != single ] && [ "$profile" != raid0 ]; then
        # Without one of them.
        "$ubtrfs" mount -o ro,degraded "${all[@]:1}" mnt
        listing mnt >ours
        cmp ours kernels
        umount mnt
        wait_for_end
    fi
    btrfs device scan --forget "${all[@]}" 2>/dev/null || true
    losetup -d "${all[@]}"
    rm -f d?.img
}

# --------------------------------------------------------------------------------------------------

helper() { "$ubtrfs" mount -o remount,ro mnt mnt; }

# What failed may have left something behind.
clean() {
    umount -l mnt 2>/dev/null
    umount -l other 2>/dev/null
    umount -l knl 2>/dev/null
    local device
    for device in $(losetup -nO NAME,BACK-FILE | awk -v place="$PWD/" 'index($2, place) == 1 { print $1 }'); do
        losetup -d "$device" 2>/dev/null
    done
    rm -f orders stored-* stop
    wait_for_end >/dev/null
}

run() {
    check "$@"
    clean
}

echo "kernel $(uname -r)"
only=${ONLY:-}
(said) 2>/dev/null | sed 's/^/says: /'
clean
all() {
    run 'round trip with the kernel' round_trip
    local how
    for how in image device; do
        run "fsync, $how" fsync_file "$how"
        run "sync(2), $how" promise "$how" sync
        run "syncfs(2), $how" promise "$how" sync -f mnt
        run "ubtrfs sync, $how" promise "$how" "$ubtrfs" sync mnt
        run "mount -i -o remount,ro, $how" promise "$how" mount -i -o remount,ro mnt
        run "mount -o remount,ro by the helper, $how" promise "$how" "$ubtrfs" mount -o remount,ro p.img mnt
        run "umount, $how" promise "$how" umount mnt
        run "stores to live mappings, sync(2), $how" mapped "$how" "${ROUNDS:-10}" sync
        run "stores to live mappings, syncfs(2), $how" mapped "$how" "${ROUNDS:-10}" sync -f mnt
    done
    run 'stores to left mappings, umount' mapped_then_unmounted
    run 'several mounts of a device' several_mounts
    run 'syncs beside writers' under_load
    for how in killed lazily by-force beside-syncs; do run "a mount that ends $how" ends "$how"; done
    # It detaches devices of others, too.
    if [ -n "${ALONE:-}" ]; then run 'losetup -D' ends detached; fi
    # Where they may not open it, there is nothing to try.
    if as_user test -w /dev/fuse; then
        run "fsync, ubtrfs sync and ubtrfs umount, a user's mount" users_promises
        run "POSIX, a user's mount" posix_of user
    fi
    run 'POSIX, image' posix_of image
    run 'POSIX, device' posix_of device
    run 'snapshots' snapshots
    run 'two devices, RAID1' devices raid1 2
    run 'three devices, RAID1C3' devices raid1c3 3
    run 'two devices, RAID0' devices raid0 2
}
if [ -n "$only" ]; then
    eval "$only"
else
    all
fi
echo "checks: $failed failed"
