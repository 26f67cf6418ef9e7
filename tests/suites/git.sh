#!/usr/bin/env bash
# The tests of git, with their directories on the mount, as nobody.
cd "$(dirname "$0")" && . ./lib.sh

test_of() {
    local log=$OUT/$1.log
    (cd "$BUILD/source/t" && HOME_OF_TESTS=$DIR as_nobody TEST_OUTPUT_DIRECTORY="$DIR" GIT_TEST_CHAIN_LINT=0 \
        timeout -k 10 "${LIMIT:-1800}" sh "./$1" --root="$DIR" -v) >"$log" 2>&1 && result=0 || result=$?
    chmod -R u+rwx "$DIR/trash directory.${1%.sh}" 2>/dev/null || true
    rm -rf "$DIR/trash directory.${1%.sh}"
    if grep -q '^1\.\.0 # SKIP' "$log"; then
        echo skip
    elif [ "$result" -eq 0 ]; then
        echo "pass $(grep -c '^ok ' "$log")"
    else
        sed -n "s/^not ok \([0-9]*\) - \(.*\)/\1 \2/; t ok; d; :ok; / # TODO known breakage/d; s|^|$1 |p" "$log" >"$OUT/$1.cases"
        echo fail
    fi
}

case $1 in
build)
    cd "$BUILD/source"
    make -s -j "$jobs" NO_CURL=1 NO_GETTEXT=1 NO_TCLTK=1 NO_PYTHON=1 CFLAGS='-O1 -w'
    ;;
list)
    # by default what deals with files, directories and the object store, not with diff's output, protocols and importers
    cd "$BUILD/source/t"
    if [ -n "${FULL:-}" ]; then ls t[0-9][0-9][0-9][0-9]-*.sh; else ls t[01237][0-9][0-9][0-9]-*.sh; fi
    ;;
run)
    export DIR=$2/git
    mkdir -p "$DIR"
    chown nobody: "$DIR"
    each test_of "$3"
    rm -rf "$DIR"
    ;;
esac
