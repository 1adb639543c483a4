#!/usr/bin/env bash
# Interprets with Miri what it can run: base, with its locks, and what of sys makes no system call that Miri lacks. It knows
# neither ioctl(2) on files, clone(2) nor most of what sys is for. Fails, and says so, if it cannot run.
set -euo pipefail
cd "$(dirname "$0")/.."

not_run() {
    printf 'miri: did not run: %s\n' "$*" >&2
    exit 1
}

cargo +nightly miri --version >/dev/null 2>&1 ||
    not_run "there is no Miri (rustup toolchain install nightly --component miri rust-src)"
export CARGO_TARGET_DIR=target/miri MIRIFLAGS=-Zmiri-disable-isolation
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# interpret PACKAGE [FILTER...]
interpret() {
    local package=$1
    shift
    cargo +nightly miri test -p "$package" --lib -- "$@" 2>&1 | tee "$log"
    # A filter that fits no test is no success.
    grep -q '^test result: ok. [1-9]' "$log"
}
interpret canopy-base
interpret canopy-sys errno::tests fanotify::tests a_truncated_handle ioctl_numbers a_nul_byte ioctl::fitrim::tests::a_range \
    ioctl::relocate::tests::an_argument ioctl::relocate::tests::what_does mountinfo::tests::a_malformed mountinfo::tests::mountinfo_is_parsed page_buf::tests shown::tests \
    lines_of_the_kernel
echo "miri: no fault"
