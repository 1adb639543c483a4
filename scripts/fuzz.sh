#!/usr/bin/env bash
# Fuzzes: fuzz.sh [SECONDS [TARGET...]]. SECONDS, 360 by default, are shared out among the targets, all of them by default.
# Fails, and says so, if it cannot run.
set -euo pipefail
cd "$(dirname "$0")/.."
readonly seconds=${1:-360}
shift || true
export PATH="$PWD/target/tools/bin:$PATH"

not_run() {
    printf 'fuzz: did not run: %s\n' "$*" >&2
    exit 1
}

cargo +nightly --version >/dev/null 2>&1 || not_run "there is no nightly toolchain (rustup toolchain install nightly)"
command -v cargo-fuzz >/dev/null || not_run "cargo-fuzz is not installed (scripts/setup.sh test)"

log=$(mktemp)
trap 'rm -f "$log"' EXIT
# The targets have no unsafe code, so the address sanitizer would only slow them down.
cargo +nightly fuzz build --sanitizer none >"$log" 2>&1 || {
    cat "$log" >&2
    exit 1
}
targets=("$@")
(($# > 0)) || mapfile -t targets < <(cargo +nightly fuzz list)
((${#targets[@]} > 0)) || not_run "there are no targets"
# Each at least a second.
readonly each=$((seconds / ${#targets[@]} > 0 ? seconds / ${#targets[@]} : 1))
for target in "${targets[@]}"; do
    # On a copy of the corpus, so that a run does not change the tree.
    corpus=$(mktemp -d)
    [[ ! -d fuzz/corpus/$target ]] || cp -r "fuzz/corpus/$target/." "$corpus"
    if ! cargo +nightly fuzz run --sanitizer none "$target" "$corpus" -- \
        -max_total_time="$each" -timeout=10 -rss_limit_mb=2048 -print_final_stats=0 >"$log" 2>&1 </dev/null; then
        rm -rf "$corpus"
        tail -n 60 "$log" >&2
        echo "fuzz: $target failed" >&2
        exit 1
    fi
    rm -rf "$corpus"
    done=$(grep -E '^Done [0-9]+ runs' "$log") || not_run "$target has no summary line"
    echo "fuzz: $target: $done"
done
