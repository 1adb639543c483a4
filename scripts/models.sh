#!/usr/bin/env bash
# Explores the protocols between threads with loom: all orders in which they may run, up to a bound. A minute or two, most of
# it for the compiler, because the crates are built anew with `--cfg loom`.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/rust.sh
. scripts/rust.sh
rust_on_path
export RUSTFLAGS="--cfg loom ${RUSTFLAGS:-}" CARGO_TARGET_DIR=target/loom
log=$(mktemp)
trap 'rm -f "$log"' EXIT
cargo test --release -p canopy-pool --lib -- lock::paths::tests::model coherence::changes::model 2>&1 | tee "$log"
# A filter that fits no test is no success.
grep -q '^test result: ok. [1-9]' "$log"
echo "models: all explored"
