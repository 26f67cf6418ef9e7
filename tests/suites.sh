#!/usr/bin/env bash
# Runs the test suites of other programs on a mount: `suites.sh [coreutils] [sqlite3] [git]`, by default all three.
#
# The sources are Debian's source packages of this machine's release. They are built outside the mount; the tests work on it. What
# fails or is skipped on ubtrfs runs again on the kernel's btrfs: only what fails here and passes there is a failure.
# It needs root (for the kernel's side; most tests run as the user nobody) and the network. See CONTRIBUTING.md.
#
#   FULL=1           all tests, also those that take long
#   SUITES_TESTS     only these tests: their names, as the results show them, with blanks between
#   SUITES_BUILD     a directory in which sources and builds are kept for the next time
#   SUITES_LOGS      where logs of failed tests and results go (target/suites)
#   SUITES_OPTIONS   more options of the mount
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PATH:/usr/sbin:/sbin"

say() { printf '\n== %s\n' "$*"; }
stop() {
    printf '\n%s\n' "$*" >&2
    exit 2
}

[ "$(id -u)" -eq 0 ] || stop 'The suites need root: for the kernel'"'"'s btrfs on a loop device, and for the tests of root.'
[ -w /dev/fuse ] || stop 'There is no /dev/fuse; the kernel module is called fuse, and a container needs --device /dev/fuse.'
grep -qw btrfs /proc/filesystems || modprobe btrfs 2>/dev/null || stop 'The kernel has no btrfs to compare with.'
command -v apt-get >/dev/null 2>&1 || stop 'The sources of the suites come with apt-get, and this machine has none.'

suites=("$@")
[ ${#suites[@]} -gt 0 ] || suites=(coreutils sqlite3 git)
for suite in "${suites[@]}"; do
    [ -x "tests/suites/$suite.sh" ] || stop "There is no suite $suite."
done

tests/install-packages.sh \
    mkfs.btrfs=btrfs-progs dpkg-source=dpkg-dev make=make cc=gcc ld=libc6-dev perl=perl setpriv=util-linux losetup=mount \
    gperf=gperf tclsh=tcl /usr/include/sys/acl.h=libacl1-dev /usr/include/attr/libattr.h=libattr1-dev \
    /usr/include/sys/capability.h=libcap-dev /usr/include/zlib.h=zlib1g-dev tclsh8.6=tcl8.6 \
    /usr/include/tcl8.6/tcl.h=tcl8.6-dev /usr/include/openssl/sha.h=libssl-dev /usr/include/expat.h=libexpat1-dev

target=${CARGO_TARGET_DIR:-$PWD/target}
if [ -z "${UBTRFS_BIN:-}" ]; then
    say 'building ubtrfs'
    cargo build --profile proof -p ubtrfs-cli
    UBTRFS_BIN=$target/proof/ubtrfs
fi

place=$(mktemp -d "${TMPDIR:-/tmp}/ubtrfs-suites.XXXXXX")
chmod 755 "$place"
logs=${SUITES_LOGS:-$target/suites}
build=${SUITES_BUILD:-$place/build}
mkdir -p "$logs" "$build" "$place/ubtrfs" "$place/kernel"
rm -rf "${logs:?}"/*
export SUITES_MARK=$place # every process of a test has it in its environment
status=0

# What tests left running, by the mark; not the mount's server.
own_processes() {
    local dir pid
    for dir in /proc/[0-9]*; do
        pid=${dir#/proc/}
        [ "$pid" != $$ ] && [ "$pid" != "$BASHPID" ] || continue
        [ "$(readlink "$dir/exe" 2>/dev/null)" != "$(readlink -f "$UBTRFS_BIN")" ] || continue
        grep -qzxF "SUITES_MARK=$place" "$dir/environ" 2>/dev/null && echo "$pid"
    done
    return 0
}
end_processes() {
    local pids
    for _ in 1 2 3; do
        pids=$(own_processes)
        [ -n "$pids" ] || return 0
        # shellcheck disable=SC2086 # one word each
        kill -KILL $pids 2>/dev/null || true
        sleep 0.3
    done
}
# Tests of root mount things below their own directories; what they leave goes first.
unmount() {
    local dir
    findmnt -rno TARGET 2>/dev/null | grep "^$1/" | sort -r | while read -r dir; do umount -l "$dir" || true; done
    mountpoint -q "$1" || return 0
    if [ "$1" = "$place/ubtrfs" ]; then "$UBTRFS_BIN" umount "$1"; else umount "$1"; fi
}
clean_up() {
    trap '' INT TERM HUP
    cd /
    end_processes
    for side in ubtrfs kernel; do
        unmount "$place/$side" || umount -l "$place/$side" || true
    done
    losetup -nO NAME -j "$place/kernel.img" | xargs -r -n 1 losetup -d || true
    rm -rf --one-file-system "$place"
}
trap clean_up EXIT
trap 'exit 130' INT TERM HUP

# --- sources -------------------------------------------------------------------------------------------------------------------

# This machine's own sources of packages, as sources of their sources. Nothing of the machine's configuration is changed.
source_lists() {
    local file
    mkdir -p "$place/apt/parts" "$place/apt/lists/partial" "$place/apt/cache/archives/partial"
    for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
        [ ! -f "$file" ] || sed -n 's/^deb\(-src\)\?[[:space:]]/deb-src /p' "$file" >"$place/apt/parts/$(basename "$file" .list)-of-suites.list"
    done
    for file in /etc/apt/sources.list.d/*.sources; do
        [ ! -f "$file" ] || sed 's/^Types:.*/Types: deb-src/' "$file" >"$place/apt/parts/$(basename "$file")"
    done
}
apt() {
    apt-get -q -o APT::Sandbox::User=root -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$place/apt/parts" \
        -o Dir::State::lists="$place/apt/lists" -o Dir::Cache="$place/apt/cache" "$@"
}
fetch() { # SUITE: its unpacked source in $build/SUITE/source
    # A list that can't be had (some have no sources) may not matter: what follows shows it.
    [ -d "$place/apt" ] || { source_lists && apt update; } >"$logs/apt.log" 2>&1 || true
    (cd "$build/$1" && apt --download-only source "$1" && dpkg-source --no-check -x ./*.dsc source) >>"$logs/apt.log" 2>&1
}
prepare() { # SUITE
    export BUILD=$build/$1
    [ ! -e "$BUILD/built" ] || return 0
    rm -rf "$BUILD" && mkdir -p "$BUILD"
    if ! fetch "$1"; then
        echo "$1 is left out: its source could not be had (see $logs/apt.log)"
        return 1
    fi
    if ! "tests/suites/$1.sh" build >"$logs/$1.build.log" 2>&1; then
        echo "$1 is left out: it could not be built (see $logs/$1.build.log)"
        return 1
    fi
    touch "$BUILD/built"
}

# --- the two sides -------------------------------------------------------------------------------------------------------------

start_ubtrfs() {
    "$UBTRFS_BIN" mkfs --size 8G "$place/ubtrfs.img" >/dev/null
    "$UBTRFS_BIN" mount -o "suid,dev${SUITES_OPTIONS:+,$SUITES_OPTIONS}" "$place/ubtrfs.img" "$place/ubtrfs"
    chmod 755 "$place/ubtrfs"
}
start_kernel() {
    mountpoint -q "$place/kernel" && return
    truncate -s 8G "$place/kernel.img"
    mkfs.btrfs -q "$place/kernel.img" >/dev/null
    mount -o loop "$place/kernel.img" "$place/kernel"
}

# run SIDE SUITE ROUND FILE: the tests that FILE names. Their logs go to $logs/SUITE.SIDE.ROUND, with the files "results" (lines
# `pass NAME CASES`, `fail NAME`, `skip NAME`) and "failures" (lines `NAME CASE`, where a test tells cases apart).
run() {
    local out=$logs/$2.$1.$3
    rm -rf "$out" && mkdir -p "$out"
    : >"$out/failures"
    "tests/suites/$2.sh" run "$place/$1" "$out" <"$4" >"$out/output" 2>&1 &
    [ ! -t 1 ] || show_progress $! "$out/results" "$(wc -l <"$4")"
    wait $! || true # so that a signal is heard at once
    end_processes
    if ! [ -s "$out/results" ]; then
        echo "$2 could not be run on $1 (see $out/output)"
        status=1
        : >"$out/results"
    fi
    sort -o "$out/failures" "$out/failures"
}
show_progress() { # PID RESULTS TESTS
    while kill -0 "$1" 2>/dev/null; do
        printf '\r%d of %d tests ' "$({ cat "$2" 2>/dev/null || true; } | wc -l)" "$3"
        sleep 1
    done
    printf '\r\033[K'
}
count() { grep -c "^$2 " "$logs/$1/results" || true; }
cases() { awk '/^pass/ { cases += $3 } END { print cases + 0 }' "$logs/$1/results"; }

suite() { # NAME
    local name=$1 started=$SECONDS
    say "$name"
    if ! prepare "$name"; then
        status=1
        return
    fi
    echo "built in $((SECONDS - started)) seconds"
    "tests/suites/$name.sh" list >"$place/tests"
    if [ -n "${SUITES_TESTS:-}" ]; then
        tr ' ' '\n' <<<"$SUITES_TESTS" | sort >"$place/wanted"
        sort "$place/tests" | comm -12 - "$place/wanted" >"$place/chosen"
        mv "$place/chosen" "$place/tests"
    fi
    [ -s "$place/tests" ] || {
        echo 'no such test in this suite'
        return 0
    }
    started=$SECONDS
    run ubtrfs "$name" 1 "$place/tests"
    printf 'ubtrfs: %d passed with %d cases, %d failed, %d skipped, of %d, in %d seconds\n' "$(count "$name.ubtrfs.1" pass)" \
        "$(cases "$name.ubtrfs.1")" "$(count "$name.ubtrfs.1" fail)" "$(count "$name.ubtrfs.1" skip)" \
        "$(wc -l <"$place/tests")" $((SECONDS - started))

    { grep -v '^pass ' "$logs/$name.ubtrfs.1/results" || true; } | cut -d ' ' -f 2 >"$place/doubtful"
    [ -s "$place/doubtful" ] || return 0
    started=$SECONDS
    start_kernel
    run kernel "$name" 1 "$place/doubtful"
    printf 'the kernel'"'"'s btrfs, of those that did not pass: %d passed, %d failed, %d skipped, in %d seconds\n' \
        "$(count "$name.kernel.1" pass)" "$(count "$name.kernel.1" fail)" "$(count "$name.kernel.1" skip)" $((SECONDS - started))

    grep '^skip ' "$logs/$name.ubtrfs.1/results" | sort >"$place/skipped" || true
    { grep -v '^skip ' "$logs/$name.kernel.1/results" || true; } | awk '{ print "skip", $2 }' | sort |
        comm -12 - "$place/skipped" | sed 's/^skip /skipped on ubtrfs only: /' | tee -a "$logs/skipped"
    comm -12 "$logs/$name.ubtrfs.1/failures" "$logs/$name.kernel.1/failures" >"$place/both"
    sed "s/^/fails on both: $name /" "$place/both"
    if [ -z "${SUITES_TESTS:-}" ] && [ $(($(cut -d ' ' -f 1 "$place/both" | sort -u | wc -l) * 10)) -gt "$(wc -l <"$place/tests")" ]; then
        echo "FAILED: $name says little here: more than a tenth of its tests fail on both"
        status=1
    fi
    comm -23 "$logs/$name.ubtrfs.1/failures" "$logs/$name.kernel.1/failures" >"$place/differences"
    [ -s "$place/differences" ] || return 0
    judge "$name"
}

# Tests that are not the same each time: three times on both sides, and what most of them say is what counts. What FUSE itself keeps
# from being the same is in suites/known, with the reason.
judge() { # SUITE, with $place/differences
    local name=$1 round here there line reason
    cut -d ' ' -f 1 "$place/differences" | sort -u >"$place/again"
    for round in 2 3; do
        run ubtrfs "$name" "$round" "$place/again"
        run kernel "$name" "$round" "$place/again"
    done
    while read -r line; do
        here=$(cat "$logs/$name".ubtrfs.?/failures | grep -cxF "$line" || true)
        there=$(cat "$logs/$name".kernel.?/failures | grep -cxF "$line" || true)
        if [ "$here" -ge 2 ] && [ "$there" -le 1 ]; then
            reason=$(awk -v key="$name $line: " 'index($0, key) == 1 { print substr($0, length(key) + 1) }' tests/suites/known)
            if [ -n "$reason" ]; then
                echo "known: $name $line: $reason"
                continue
            fi
            echo "FAILED: $name $line ($here of 3 times on ubtrfs, $there of 3 on the kernel's btrfs; logs in $logs/$name.*)"
            status=1
        else
            echo "unsteady: $name $line (fails $here of 3 times on ubtrfs, $there of 3 on the kernel's btrfs; logs in $logs/$name.*)"
        fi
    done <"$place/differences"
}

start_ubtrfs
for suite in "${suites[@]}"; do
    suite "$suite"
done

say 'afterwards'
end_processes
unmount "$place/ubtrfs" || status=1
"$UBTRFS_BIN" check "$place/ubtrfs.img" || status=1
btrfs check --check-data-csum "$place/ubtrfs.img" >"$logs/btrfs-check" 2>&1 && echo 'btrfs check: clean' || {
    cat "$logs/btrfs-check"
    status=1
}
exit "$status"
