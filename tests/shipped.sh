#!/usr/bin/env bash
# The program is built without test devices and faults: none of its dependencies has the feature
# "testing", and it is clean without it. A build of the whole workspace has it, for the tests' sake.
# Everything that is linked into it has its licence in packaging/copyright.
#
# Arguments go to cargo clippy.
set -euo pipefail
cd "$(dirname "$0")/.."

if found=$(cargo tree --edges no-dev,features --package ubtrfs-cli | grep 'feature "testing"'); then
    printf 'the program would have test devices and faults:\n%s\n' "$found"
    exit 1
fi

# Each crate has one of the licences that it offers, or all of those that it demands, and the text
# of these is there. What runs while others are compiled (macros) is no part of the program.
crates=$(cargo tree --edges normal,no-proc-macro --package ubtrfs-cli --prefix none --no-dedupe --format '{p}|{l}')
if ! grep -v ' (/' <<<"$crates" | sort -u | awk '
        FNR == NR && $1 == "License:" { text[$2] }
        FNR == NR && $1 == "Files:" {
            match($0, /License: [^\n]*/)
            licences = substr($0, RSTART + 9, RLENGTH - 9)
            for (i = 2; $i != "Copyright:"; i++) named[$i] = licences
        }
        FNR == NR { next }
        {
            split($0, parts, "|")
            split(parts[1], crate, " ")
            count = split(named[crate[1]], here, / (and|or) /)
            met = lacks_text = 0
            for (i = 1; i <= count; i++) {
                if (!(here[i] in text)) lacks_text = 1
                is_here[NR, here[i]]
            }
            count = split(parts[2], there, / (OR|AND) |\//)
            for (i = 1; i <= count; i++) met += ((NR, there[i]) in is_here)
            if (lacks_text || met < (parts[2] ~ / AND / ? count : 1)) { print crate[1] ": " parts[2]; is_bad = 1 }
        }
        END { exit is_bad }
    ' RS= packaging/copyright RS='\n' -; then
    echo 'packaging/copyright lacks licences of these crates, which the program is linked with'
    exit 1
fi

cargo clippy --package ubtrfs-cli "$@" -- -D warnings
