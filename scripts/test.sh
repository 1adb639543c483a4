#!/usr/bin/env bash
# Sets up what the tests need and runs them.
#   test.sh                    all of them, the external suites too; needs root, for they mount filesystems
#   test.sh NAME [FILTER ...]  those of a crate (pool, fuse, sys, testkit, canopy) or one test program (coherence, full,
#                              ...); with FILTER those tests of it whose names contain it
#   test.sh --fast             those that need neither root nor a mount: a minute
#   test.sh --list             the names
set -euo pipefail
cd "$(dirname "$0")/.."

fail() {
    printf 'test: %s\n' "$*" >&2
    exit 1
}

# Each test program and its crate.
programs() {
    local file crate
    for file in crates/*/tests/*.rs crates/*/tests/*/main.rs; do
        crate=${file#crates/} file=${file%/main.rs}
        printf '%s canopy-%s\n' "$(basename "$file" .rs)" "${crate%%/*}"
    done | sed 's/ canopy-canopy$/ canopy/'
}

crates() { printf '%s\n' crates/*/Cargo.toml | cut -d/ -f2; }

ready() {
    # shellcheck source=scripts/rust.sh
    . scripts/rust.sh
    rust_on_path || fail "building needs cargo $(rust_needed) or later (scripts/setup.sh run gets it)"
}

case ${1:-} in
--list)
    (($# == 1)) || fail "--list takes nothing more"
    printf 'crates: %s\nprograms: %s\n' "$(crates | xargs)" "$(programs | cut -d' ' -f1 | xargs)"
    ;;
--fast)
    (($# == 1)) || fail "--fast takes nothing more (scripts/test.sh NAME FILTER runs some of a program's)"
    ready
    cargo test -p canopy -p canopy-bench -p canopy-config -p canopy-fuse -p canopy-pool -p canopy-server -p canopy-sys --lib
    cargo test -p canopy-fuse --test wire
    cargo test -p canopy-pool --test explain --test stress
    ;;
-*) fail "no such option: $1 (--fast, --list)" ;;
'')
    ((EUID == 0)) || fail "needs root, to mount filesystems (sudo $0; --fast does without)"
    scripts/setup.sh test
    ready
    cargo test --workspace --no-fail-fast
    ;;
*)
    name=$1
    shift
    if crates | grep -qxF -- "$name"; then
        package=canopy-$name
        which=(-p "${package/#canopy-canopy/canopy}")
    elif mapfile -t packages < <(programs | awk -v name="$name" '$1 == name { print $2 }') && ((${#packages[@]} > 0)); then
        which=("${packages[@]/#/--package=}" --test "$name")
    else
        fail "no crate and no test program is called $name (scripts/test.sh --list)"
    fi
    ((EUID == 0)) || fail "needs root, to mount filesystems (sudo $0; --fast does without)"
    scripts/setup.sh test
    ready
    cargo test "${which[@]}" -- "$@"
    ;;
esac
