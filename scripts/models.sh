#!/usr/bin/env bash
# Explores the protocols between threads, and those by which a process leaves its records to the next one, with loom: all
# orders in which they may run, up to a bound. A few minutes, most of it for the compiler, because the crates are built anew
# with `--cfg loom`.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/rust.sh
. scripts/rust.sh
rust_on_path
export RUSTFLAGS="--cfg loom ${RUSTFLAGS:-}" CARGO_TARGET_DIR=target/loom
# What is explored is optimized, but nobody debugs it: without debugging information, the compiler needs much less memory.
export CARGO_PROFILE_RELEASE_DEBUG=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT
for crate in canopy-pool canopy-server; do
    cargo test --release -p "$crate" --lib model:: 2>&1 | tee "$log"
    # A filter that fits no test is no success.
    grep -q '^test result: ok. [1-9]' "$log"
done
echo "models: all explored"
