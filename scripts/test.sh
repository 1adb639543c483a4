#!/usr/bin/env bash
# Sets up whatever the tests need, and runs all of them, the external suites too. Needs root.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() {
    printf 'test: %s\n' "$*" >&2
    exit 1
}

(($# == 0)) || fail "takes no arguments (for some of the tests: cargo test -p canopy --test NAME)"
((EUID == 0)) || fail "needs root, to mount filesystems (sudo $0)"
scripts/setup.sh test
# shellcheck source=scripts/rust.sh
. scripts/rust.sh
rust_on_path
cargo test --workspace --no-fail-fast
