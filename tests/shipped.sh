#!/usr/bin/env bash
# The program is built without test devices and faults: none of its dependencies has the feature
# "testing", and it is clean without it. A build of the whole workspace has it, for the tests' sake.
#
# Arguments go to cargo clippy.
set -euo pipefail
cd "$(dirname "$0")/.."

if found=$(cargo tree --edges no-dev,features --package ubtrfs-cli | grep 'feature "testing"'); then
    printf 'the program would have test devices and faults:\n%s\n' "$found"
    exit 1
fi
cargo clippy --package ubtrfs-cli "$@" -- -D warnings
