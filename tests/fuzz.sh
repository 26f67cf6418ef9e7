#!/usr/bin/env bash
# Runs each fuzz target for FUZZ_SECONDS (ten minutes) and stops at the first finding. What the fuzzer learns goes to
# fuzz/scratch, not into the corpora that are checked in.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ ! -d fuzz/fuzz_targets ]; then
    echo 'there are no fuzz targets (fuzz/fuzz_targets)'
    exit 1
fi
if ! cargo +nightly --version >/dev/null 2>&1; then
    echo 'missing: a nightly toolchain (rustup toolchain install nightly)'
    exit 1
fi
if ! cargo +nightly fuzz --version >/dev/null 2>&1; then
    echo 'missing: cargo-fuzz (cargo install cargo-fuzz)'
    exit 1
fi
for file in fuzz/fuzz_targets/*.rs; do
    name=$(basename "$file" .rs)
    echo "== $name"
    # A whole volume passes through much code, hardly any of it unsafe: without a sanitizer it gets further.
    sanitizer=address
    case $name in whole_image | log_replay | dump) sanitizer=none ;; esac
    # New inputs go to the first directory that is named.
    mkdir -p "fuzz/scratch/$name"
    cargo +nightly fuzz run --sanitizer "$sanitizer" "$name" "fuzz/scratch/$name" "fuzz/corpus/$name" -- \
        -max_total_time="${FUZZ_SECONDS:-600}" -max_len=4096 -timeout=30 -rss_limit_mb=6144
done
