#!/usr/bin/env bash
# Prepares a Debian or Ubuntu machine: `setup.sh run` for building and mounting, `setup.sh test` for all the tests too.
# Can be repeated at any time; what is there already is left alone. Needs root for packages.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly RUN_PACKAGES=(gcc libc6-dev pkg-config fuse3 e2fsprogs util-linux mount kmod)
readonly TEST_PACKAGES=(git g++ make groff-base xfsprogs btrfs-progs attr acl rsync sqlite3 python3 stress-ng strace fio jq procps shellcheck systemd)
# name=version of programs from crates.io, installed into target/tools.
readonly CARGO_TOOLS=(pjdfstest=0.2.2 fsx=0.3.2 cargo-deny=0.20.2)
readonly FUZZ_TOOL=cargo-fuzz=0.13.2
readonly TOOLS=target/tools

# shellcheck source=scripts/rust.sh
. scripts/rust.sh

log=$(mktemp)
trap 'rm -f "$log"' EXIT

say() { printf 'setup: %s\n' "$*"; }

fail() {
    printf 'setup: %s\n' "$*" >&2
    exit 1
}

# Runs a command silently; when it fails, shows what it printed.
quietly() {
    if ! "$@" >"$log" 2>&1 </dev/null; then
        cat "$log" >&2
        fail "failed: $*"
    fi
}

# Fetches the lists of packages, once.
lists() {
    [[ -z ${listed:-} ]] || return 0
    quietly apt-get -q -o DPkg::Lock::Timeout=300 update
    listed=yes
}

install_packages() {
    export DEBIAN_FRONTEND=noninteractive
    say "packages: installing $*"
    lists
    quietly apt-get -q -y -o DPkg::Lock::Timeout=300 install --no-install-recommends "$@"
}

packages() {
    local missing=() package
    for package in "$@"; do
        if [[ $(dpkg-query -W -f='${db:Status-Abbrev}' "$package" 2>/dev/null) != ii* ]]; then
            missing+=("$package")
        fi
    done
    if ((${#missing[@]} == 0)); then
        say "packages: all $# present"
        return
    fi
    ((EUID == 0)) || fail "run as root to install: ${missing[*]}"
    install_packages "${missing[@]}"
}

# The version of a package that would be installed, without the distribution's part.
candidate() { apt-cache policy "$1" 2>/dev/null | sed -nE 's/^ *Candidate: ([0-9]+:)?([0-9.]+).*/\2/p'; }

# A cargo and its compiler that are new enough: the names of their packages. Debian updates the one it builds browsers
# with, Ubuntu has several beside each other.
rust_packages() {
    local cargo
    for cargo in cargo cargo-web $(apt-cache search --names-only '^cargo-[0-9.]+$' | cut -d' ' -f1 | sort -rV); do
        if rust_is_new_enough "$(candidate "$cargo")" && rust_is_new_enough "$(candidate "${cargo/cargo/rustc}")"; then
            echo "$cargo ${cargo/cargo/rustc}"
            return
        fi
    done
}

toolchain() {
    local found=no packages
    rust_on_path || {
        found=$(rust_version "") || found=none
        ! command -v rustup >/dev/null || fail "$(rust_wanted "$found"): run rustup update"
        command -v apt-cache >/dev/null || fail "$(rust_wanted "$found"): install it (https://rustup.rs)"
        if ((EUID == 0)); then lists; fi
        packages=$(rust_packages)
        [[ -n $packages ]] || fail "$(rust_wanted "$found"), and this distribution has none: install it (https://rustup.rs)"
        ((EUID == 0)) || fail "$(rust_wanted "$found"): run apt-get install $packages as root, or install it (https://rustup.rs)"
        # Unquoted: two names.
        # shellcheck disable=SC2086
        install_packages $packages
        rust_on_path || fail "$packages is installed, and still there is no cargo $(rust_needed) on PATH"
    }
    say "rust: $(rustc --version)"
}

# rust_wanted FOUND
rust_wanted() {
    case $1 in
    none) echo "building needs cargo $(rust_needed) or later, and there is none" ;;
    *) echo "building needs cargo $(rust_needed) or later, and this is $1" ;;
    esac
}

modules() {
    if ((EUID == 0)); then
        modprobe -q -a fuse loop 2>/dev/null || true # built in, or there is no modprobe
        # Containers have the device in the kernel but not always its node.
        [[ -e /dev/fuse ]] || mknod -m 0666 /dev/fuse c 10 229 2>/dev/null || true
    fi
    [[ -e /dev/fuse ]] || fail "this kernel has no /dev/fuse"
    [[ $1 == run || -e /dev/loop-control ]] || fail "this kernel has no loop devices, which the tests mount"
    say "kernel: $(uname -r), /dev/fuse present"
}

# rustfmt and clippy, for .ci/run.
components() {
    local component package=rust
    for component in rustfmt clippy; do
        ! cargo "${component/rustfmt/fmt}" --version >/dev/null 2>&1 || continue
        if command -v rustup >/dev/null; then
            say "rust: adding $component"
            quietly rustup component add "$component"
        else
            package=$(dpkg-query -S "$(realpath "$(command -v rustc)")" 2>/dev/null | cut -d: -f1)
            case $component in
            rustfmt) install_packages "${package/rustc/rustfmt}" ;;
            clippy) install_packages "${package/rustc/rust}-clippy" ;;
            esac
        fi
        cargo "${component/rustfmt/fmt}" --version >/dev/null || fail "cargo has no $component"
    done
    say "rust: rustfmt and clippy present"
}

tool() {
    local name=${1%=*} version=${1#*=}
    if grep -qsF "\"$name $version (" "$TOOLS/.crates.toml" && [[ -x $TOOLS/bin/$name ]]; then
        say "tool: $name $version present"
        return
    fi
    say "tool: building $name $version"
    CARGO_TARGET_DIR=$TOOLS/build quietly \
        cargo install --locked --quiet --root "$TOOLS" --version "$version" "$name"
}

case ${1:-} in
run)
    packages "${RUN_PACKAGES[@]}"
    toolchain
    modules run
    ;;
test)
    packages "${RUN_PACKAGES[@]}" "${TEST_PACKAGES[@]}"
    toolchain
    modules test
    components
    for entry in "${CARGO_TOOLS[@]}"; do tool "$entry"; done
    if cargo +nightly --version >/dev/null 2>&1; then
        tool "$FUZZ_TOOL"
    else
        say "tool: no nightly toolchain, so no cargo-fuzz"
    fi
    rm -rf "$TOOLS/build"
    ;;
*)
    echo "usage: scripts/setup.sh run|test" >&2
    exit 2
    ;;
esac
