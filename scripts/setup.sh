#!/usr/bin/env bash
# Prepares a Debian or Ubuntu machine: `setup.sh fast` for the tests that need no root, `setup.sh run` for building and
# mounting, `setup.sh test` for all tests. It can run any number of times and changes nothing that is already there.
# Installing packages needs root. Where the distribution has no compiler that is new enough, or without root, it asks
# before it installs one with rustup; with --yes it does not ask.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly BUILD_PACKAGES=(gcc libc6-dev)
readonly FAST_PACKAGES=(e2fsprogs)
readonly RUN_PACKAGES=(fuse3 mount util-linux kmod)
readonly TEST_PACKAGES=(git g++ make pkg-config groff-base xfsprogs btrfs-progs attr acl curl rsync sqlite3 python3 stress-ng strace fio jq procps shellcheck systemd
    zsh fish
    borgbackup inotify-tools iproute2 python3-yaml restic snapraid syncthing) # the last ones for the examples of the manual
# Programs from crates.io as name=version, installed into target/tools.
readonly CARGO_TOOLS=(pjdfstest=0.2.2 fsx=0.3.2 cargo-deny=0.20.2)
readonly FUZZ_TOOL=cargo-fuzz=0.13.2
readonly TOOLS=target/tools
# What https://sh.rustup.rs serves.
readonly RUSTUP=https://static.rust-lang.org/rustup/rustup-init.sh

# shellcheck source=scripts/rust.sh
. scripts/rust.sh

log=$(mktemp)
trap 'rm -f "$log"' EXIT

say() { printf 'setup: %s\n' "$*"; }

fail() {
    printf 'setup: %s\n' "$*" >&2
    exit 1
}

# Runs a command without showing its output, unless it fails.
quietly() {
    if ! "$@" >"$log" 2>&1 </dev/null; then
        cat "$log" >&2
        fail "failed: $*"
    fi
}

# Downloads the package lists, once.
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
    if ! command -v dpkg-query >/dev/null; then
        say "packages: cannot check on this distribution; needed is what Debian calls $*"
        return
    fi
    for package in "$@"; do
        if [[ $(dpkg-query -W -f='${db:Status-Abbrev}' "$package" 2>/dev/null) != ii* ]]; then
            missing+=("$package")
        fi
    done
    if ((${#missing[@]} == 0)); then
        say "packages: all $# present"
        return
    fi
    ((EUID == 0)) || fail "packages are missing: run 'apt-get install ${missing[*]}' as root"
    install_packages "${missing[@]}"
}

# candidate PACKAGE: prints the upstream version that apt-get would install.
candidate() { apt-cache policy "$1" 2>/dev/null | sed -nE 's/^ *Candidate: ([0-9]+:)?([0-9.]+).*/\2/p'; }

# Prints the names of the packages of a cargo and a rustc that are new enough, if the distribution has any. Debian
# updates cargo-web, with which it builds browsers. Ubuntu has several versions side by side.
rust_packages() {
    local cargo
    command -v apt-cache >/dev/null || return 0
    for cargo in cargo cargo-web $(apt-cache search --names-only '^cargo-[0-9.]+$' | cut -d' ' -f1 | sort -rV); do
        if rust_is_new_enough "$(candidate "$cargo")" && rust_is_new_enough "$(candidate "${cargo/cargo/rustc}")"; then
            echo "$cargo ${cargo/cargo/rustc}"
            return
        fi
    done
}

# confirm QUESTION: true with --yes, or if the user says so at the terminal.
confirm() {
    local answer
    [[ $yes == no ]] || return 0
    [[ -t 0 && -t 2 ]] || return 1
    read -r -p "setup: $1 [y/N] " answer
    [[ $answer == [yY]* ]]
}

install_rustup() {
    local script
    if ! command -v curl >/dev/null; then
        ((EUID == 0)) || fail "installing rustup needs curl: run 'apt-get install curl ca-certificates' as root"
        install_packages curl ca-certificates
    fi
    say "rust: installing rustup and the stable toolchain into ${CARGO_HOME:-$HOME/.cargo} and ${RUSTUP_HOME:-$HOME/.rustup}"
    script=$(mktemp)
    quietly curl --proto '=https' --tlsv1.2 -sSf -o "$script" "$RUSTUP"
    # A cargo that is too old is no reason to stop.
    RUSTUP_INIT_SKIP_PATH_CHECK=yes quietly sh "$script" -y --profile minimal
    rm -f "$script"
}

toolchain() {
    local found wanted packages rustup=${CARGO_HOME:-$HOME/.cargo}/bin/rustup
    if ! rust_on_path; then
        if found=$(rust_version ""); then
            wanted="building needs cargo $(rust_needed) or later, and this is $found"
        else
            wanted="building needs cargo $(rust_needed) or later, and there is none"
        fi
        [[ -x $rustup ]] || rustup=$(command -v rustup) || rustup=
        if [[ -n $rustup ]]; then
            say "$wanted: run 'rustup update stable && rustup default stable'"
            confirm "Run it now?" || fail "nothing done (--yes runs it)"
            quietly "$rustup" update stable
            quietly "$rustup" default stable
        else
            if ((EUID == 0)) && command -v apt-get >/dev/null; then lists; fi
            packages=$(rust_packages)
            if [[ -n $packages ]] && ((EUID == 0)); then
                # Unquoted: two names.
                # shellcheck disable=SC2086
                install_packages $packages
            else
                wanted+=": install rustup (https://rustup.rs)"
                [[ -z $packages ]] || wanted+=", or run 'apt-get install $packages' as root"
                say "$wanted"
                confirm "Install rustup for this user now?" || fail "nothing done (--yes installs rustup)"
                install_rustup
            fi
        fi
        rust_on_path || fail "there is still no cargo $(rust_needed) or later (PATH is $PATH)"
    fi
    say "rust: $(rustc --version)"
}

modules() {
    if ((EUID == 0)); then
        modprobe -q -a fuse loop 2>/dev/null || true # They may be built in, and a container may have no modprobe.
        # In a container the kernel may have the device without its node.
        [[ -e /dev/fuse ]] || mknod -m 0666 /dev/fuse c 10 229 2>/dev/null || true
    fi
    [[ -e /dev/fuse ]] || fail "this kernel has no /dev/fuse"
    [[ $1 == run || -e /dev/loop-control ]] || fail "this kernel has no loop devices, which the tests mount"
    say "kernel: $(uname -r), /dev/fuse present"
}

# Installs rustfmt and clippy, for .ci/run.
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

# tool NAME=VERSION
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

usage() {
    echo "usage: scripts/setup.sh fast|run|test [--yes]" >&2
    exit 2
}

yes=no
case ${2:-} in
--yes) yes=yes ;;
'') ;;
*) usage ;;
esac
(($# <= 2)) || usage

case ${1:-} in
fast)
    packages "${BUILD_PACKAGES[@]}" "${FAST_PACKAGES[@]}"
    toolchain
    ;;
run)
    packages "${BUILD_PACKAGES[@]}" "${RUN_PACKAGES[@]}"
    toolchain
    modules run
    ;;
test)
    packages "${BUILD_PACKAGES[@]}" "${FAST_PACKAGES[@]}" "${RUN_PACKAGES[@]}" "${TEST_PACKAGES[@]}"
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
*) usage ;;
esac
