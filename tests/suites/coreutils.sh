#!/usr/bin/env bash
# The tests of coreutils, in a copy of the built tree on the mount: as nobody, and those of root as root.
cd "$(dirname "$0")" && . ./lib.sh

tests_of() { # make's variable, that is which tests
    make -s -C "$BUILD/source" --no-print-directory -f - names VARIABLE="$1" <<'END'
include Makefile
names: ; @printf '%s\n' $($(VARIABLE))
END
}

# make check TREE LIST COMMAND…: by the suite's own harness
check() {
    local tree=$1 list=$2
    shift 2
    [ -s "$list" ] || return 0
    (cd "$tree" && "$@" timeout -k 10 "${LIMIT:-3600}" make -k -j "$jobs" check \
        SUBDIRS=. TESTS="$(tr '\n' ' ' <"$list")" VERBOSE=yes ${FULL:+RUN_EXPENSIVE_TESTS=yes}) || true
}

case $1 in
build)
    cd "$BUILD/source"
    FORCE_UNSAFE_CONFIGURE=1 ./configure -q --disable-nls --disable-gcc-warnings CFLAGS='-O1 -w'
    make -s -j "$jobs"
    make -s -j "$jobs" check SUBDIRS=. TESTS= # what tests need beside the programs
    ;;
list)
    tests_of all_tests
    ;;
run)
    dir=$2 out=$3 tree=$2/coreutils
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    sort -u >"$work/all"
    tests_of all_root_tests | sort -u >"$work/of-root"
    comm -12 "$work/all" "$work/of-root" >"$work/as-root"
    comm -23 "$work/all" "$work/of-root" >"$work/as-nobody"

    rm -rf "$tree"
    cp -a "$BUILD/source" "$tree"
    chown -hR nobody: "$tree"
    check "$tree" "$work/as-nobody" as_nobody
    check "$tree" "$work/as-root" env NON_ROOT_USERNAME=nobody
    while read -r name; do
        base=${name%.*}
        case $(sed -n 's/^:test-result: //p' "$tree/$base.trs" 2>/dev/null) in
        PASS | XFAIL) echo "pass $name 1" >>"$out/results" && continue ;;
        SKIP) echo "skip $name" >>"$out/results" ;;
        *) echo "fail $name" >>"$out/results" && echo "$name (whole)" >>"$out/failures" ;;
        esac
        cp "$tree/$base.log" "$out/$(tr / _ <<<"$base").log" 2>/dev/null || true
    done <"$work/all"
    ;;
esac
