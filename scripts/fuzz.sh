#!/usr/bin/env bash
# Runs each fuzz target for SECONDS, 60 by default: fuzz.sh [SECONDS]
set -euo pipefail
cd "$(dirname "$0")/.."
readonly seconds=${1:-60}
export PATH="$PWD/target/tools/bin:$PATH"

skip() {
    printf 'fuzz: skipped: %s\n' "$*"
    exit 0
}

[[ -f fuzz/Cargo.toml ]] || skip "there are no fuzz targets"
cargo +nightly --version >/dev/null 2>&1 || skip "there is no nightly toolchain"
command -v cargo-fuzz >/dev/null || skip "cargo-fuzz is not installed (scripts/setup.sh test)"

log=$(mktemp)
trap 'rm -f "$log"' EXIT
# The targets have no unsafe code, so the address sanitizer would only slow them down.
cargo +nightly fuzz build --sanitizer none >"$log" 2>&1 || {
    cat "$log" >&2
    exit 1
}
mapfile -t targets < <(cargo +nightly fuzz list)
for target in "${targets[@]}"; do
    # On a copy of the corpus, so that a run does not change the tree.
    corpus=$(mktemp -d)
    [[ ! -d fuzz/corpus/$target ]] || cp -r "fuzz/corpus/$target/." "$corpus"
    if ! cargo +nightly fuzz run --sanitizer none "$target" "$corpus" -- \
        -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=0 >"$log" 2>&1 </dev/null; then
        rm -rf "$corpus"
        tail -n 60 "$log" >&2
        echo "fuzz: $target failed" >&2
        exit 1
    fi
    rm -rf "$corpus"
    echo "fuzz: $target: $(grep -E '^Done [0-9]+ runs' "$log" || echo 'no summary line')"
done
