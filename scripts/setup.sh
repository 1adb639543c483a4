#!/usr/bin/env bash
# Prepares a Debian or Ubuntu machine: `setup.sh run` for building and mounting, `setup.sh test` for all the tests too.
# Can be repeated at any time; what is there already is left alone. Needs root for packages.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly RUN_PACKAGES=(gcc libc6-dev pkg-config fuse3 e2fsprogs util-linux mount kmod)
readonly TEST_PACKAGES=(git g++ make groff-base xfsprogs btrfs-progs attr acl rsync sqlite3 python3 stress-ng strace fio jq procps shellcheck systemd)
# name=version of programs from crates.io, installed into target/tools.
readonly CARGO_TOOLS=(pjdfstest=0.2.2 fsx=0.3.2)
readonly FUZZ_TOOL=cargo-fuzz=0.13.2
readonly TOOLS=target/tools

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
    export DEBIAN_FRONTEND=noninteractive
    say "packages: installing ${missing[*]}"
    quietly apt-get -q -o DPkg::Lock::Timeout=300 update
    quietly apt-get -q -y -o DPkg::Lock::Timeout=300 install --no-install-recommends "${missing[@]}"
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

components() {
    local component
    for component in rustfmt clippy; do
        if ! cargo "${component/rustfmt/fmt}" --version >/dev/null 2>&1; then
            command -v rustup >/dev/null || fail "cargo has no $component, and there is no rustup to add it"
            say "rust: adding $component"
            quietly rustup component add "$component"
        fi
    done
    say "rust: $(rustc --version), rustfmt and clippy present"
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
    modules run
    ;;
test)
    packages "${RUN_PACKAGES[@]}" "${TEST_PACKAGES[@]}"
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
