#!/usr/bin/env bash
# Sets up whatever the tests need, and runs all of them, the external suites too. Needs root.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh test
cargo test --workspace --no-fail-fast
