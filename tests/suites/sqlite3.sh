#!/usr/bin/env bash
# The tests of SQLite, each in a directory of its own on the mount, as nobody: those that its authors run before each check-in, and of the
# longer ones what asks most of a file system (locks, journals, crashes, the write-ahead log), without faults that are simulated in memory.
cd "$(dirname "$0")" && . ./lib.sh

# A name is `veryquick/FILE` or `full/FILE`.
test_of() {
    local flag=${1//\//_} dir=$DIR/$1.d log script=("$BUILD/source/test/permutations.test" veryquick "${1#*/}")
    log=$OUT/$flag.log
    [ "${1%%/*}" = veryquick ] || script=("$(find "$BUILD/source" -name "${1#*/}" | head -n 1)")
    mkdir -p "$dir" && chown nobody: "$dir"
    (cd "$dir" && HOME_OF_TESTS=$dir as_nobody timeout -k 10 "${LIMIT:-1800}" \
        "$BUILD/build/testfixture" "${script[@]}") >"$log" 2>&1 || true
    chmod -R u+rwx "$dir" 2>/dev/null || true
    rm -rf "$dir"
    if grep -q '^0 errors out of' "$log"; then
        echo "pass $(sed -n 's/^0 errors out of \([0-9]*\) .*/\1/p' "$log")"
    else
        sed -n 's/^!Failures on these tests: //p' "$log" | tr ' ' '\n' | sed "/^$/d; s|^|$1 |" >"$OUT/$flag.cases"
        echo fail
    fi
}
list_of() { # a variable of permutations.test
    cat >"$BUILD/$1.test" <<END
set testdir [file normalize $BUILD/source/test]
set argv0 \$testdir/nothing.test
source \$testdir/permutations.test
foreach f \$::$1 { puts "TEST [file tail \$f]" }
END
    (cd "$BUILD/build" && ./testfixture "$BUILD/$1.test" | sed -n 's/^TEST //p' | sort -u)
}

case $1 in
build)
    mkdir "$BUILD/build"
    cd "$BUILD/build"
    ../source/configure -q --with-tcl=/usr/lib/tcl8.6 CFLAGS='-O1 -w'
    sed -i 's/-DSQLITE_NO_SYNC=1//' Makefile # fsync is what we are here for
    make -s testfixture
    ;;
list)
    list_of allquicktests | sed 's|^|veryquick/|'
    if [ -n "${FULL:-}" ]; then
        list_of alltests | sed 's|^|full/|'
    else
        comm -23 <(list_of alltests) <(list_of allquicktests) |
            grep -E 'lock|journal|jrnl|wal|crash|^pager|exclusive|sync|mmap|shm|^backup' | grep -vE 'fault|ioerr|malloc' | sed 's|^|full/|'
    fi
    ;;
run)
    export DIR=$2/sqlite3
    mkdir -p "$DIR"
    each test_of "$3"
    rm -rf "$DIR"
    ;;
esac
