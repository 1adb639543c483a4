#!/usr/bin/env bash
# Checks that Canopy still compiles with the oldest compiler that Cargo.toml allows. Needs rustup, which provides it.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/rust.sh
. scripts/rust.sh
oldest=$(rust_needed)

skip() {
    printf 'msrv: skipped: %s\n' "$*"
    exit 0
}

command -v rustup >/dev/null || skip "rustup is not installed"
if ! rustup run "$oldest" rustc --version >/dev/null 2>&1; then
    rustup toolchain install "$oldest" --profile minimal --no-self-update || skip "rustup cannot install Rust $oldest"
fi
# In a directory of its own, so that it replaces nothing that the other phases have built.
CARGO_TARGET_DIR=target/msrv rustup run "$oldest" cargo check --workspace --all-targets --locked
echo "msrv: Rust $oldest compiles everything"
