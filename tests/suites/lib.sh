# What the suites share. Sourced by each of them; BUILD is where the suite's source is and is built.
# shellcheck shell=bash
set -euo pipefail

# Tests wait for the disk more than they compute.
jobs=$(($(nproc) * 2))

# Runs a command as the user nobody, who may do nothing but what everybody may, and is in two groups: some tests change groups.
# Its home is at HOME_OF_TESTS.
as_nobody() {
    setpriv --reuid=65534 --regid=65534 --groups=65534,100 --inh-caps=-all --bounding-set=-all \
        env -i PATH="$PATH" HOME="${HOME_OF_TESTS:-/}" LANG=C.UTF-8 TZ=UTC SHELL=/bin/sh SUITES_MARK="$SUITES_MARK" "$@"
}

# each FUNCTION OUT: FUNCTION for each name of the standard input, some at a time. It says `pass CASES` (how many there are), `fail` or
# `skip`, and may write a line `NAME CASE` for each case that failed to OUT/FLAG.cases, where FLAG is the name with _ for /; a test that
# fails without telling cases is a case itself.
each() {
    local function=$1
    export OUT=$2
    # shellcheck disable=SC2163 # the function's name
    export -f "$function" as_nobody
    xargs -r -P "$jobs" -I {} bash -c '
        verdict=$('"$function"' {}) || verdict=fail
        flag=${1//\//_}
        [ "$verdict" != fail ] || [ -s "$OUT/$flag.cases" ] || echo "{} (whole)" >"$OUT/$flag.cases"
        [ ! -s "$OUT/$flag.cases" ] || cat "$OUT/$flag.cases" >>"$OUT/failures"
        rm -f "$OUT/$flag.cases"
        [ "${verdict% *}" != pass ] || rm -f "$OUT/$flag.log"
        echo "${verdict%% *} $1 ${verdict#* }" | sed "s/ \(fail\|skip\)$//" >>"$OUT/results"' - {}
}
