#!/usr/bin/env bash
# Runs programs that people use with a pool: servers and databases over it, network filesystems below it.
#   neighbour-tests.sh [NAME ...]    a file of scripts/neighbours without `.sh`; all of them without a name
# Each runs on a bare Debian 13 of its own, with the packages that its file names, and without a network but for loopback. What
# it mounts and starts ends with it, and it fails if it has left something. docs/neighbours.md tells what each is.
# Environment variables, with their defaults:
#   CANOPY_BIN    the program to test (it builds one)
#   BARE_SYSTEMS  a directory that keeps the systems for the next run (they are removed at the end)
# Needs root, debootstrap, loop devices, Debian's mirror and 10 GiB of disk.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/bare-root.sh
. scripts/bare-root.sh

readonly SYSTEM=debian-13

fail() {
    printf 'neighbour-tests: %s\n' "$*" >&2
    exit 1
}

names() { printf '%s\n' scripts/neighbours/*.sh | sed 's|.*/||; s|\.sh$||'; }

neighbours=("$@")
((${#neighbours[@]} > 0)) || mapfile -t neighbours < <(names)
for name in "${neighbours[@]}"; do
    names | grep -xF -- "$name" >/dev/null || fail "unknown: $name ($(names | paste -sd ' '))"
done
((EUID == 0)) || fail "needs root, to make the systems and to mount in them"
for program in debootstrap unshare losetup; do
    command -v "$program" >/dev/null || fail "needs $program (apt-get install $program)"
done
if [[ -z ${CANOPY_BIN:-} ]]; then
    cargo build --release -p canopy
    CANOPY_BIN=${CARGO_TARGET_DIR:-target}/release/canopy
fi

work=$(mktemp -d "${TMPDIR:-/var/tmp}/canopy-neighbours-XXXXXX")
trap 'rm -rf --one-file-system "$work"' EXIT
bare=$work/bare
[[ -z ${BARE_SYSTEMS:-} ]] || bare=$(realpath -m "$BARE_SYSTEMS")
mkdir -p "$bare"

# inside install|use NAME: installs what the neighbour needs, or runs it where the network is only loopback.
# shellcheck disable=SC2016,SC2317 # another shell calls this function, and expands what is quoted
inside() {
    local packages=()
    export DEBIAN_FRONTEND=noninteractive
    # shellcheck source=/dev/null
    . "/root/neighbours/$2.sh"
    if [[ $1 == install ]]; then
        # No server starts by being installed.
        printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
        chmod +x /usr/sbin/policy-rc.d
        echo force-unsafe-io >/etc/dpkg/dpkg.cfg.d/fast
        apt-get -q update
        apt-get -q -y --no-install-recommends install procps "${packages[@]}"
        apt-get -q clean
    else
        printf '127.0.0.1 localhost %s\n' "$(uname -n)" >/etc/hosts
        dpkg-query -W -f='  ${Package} ${Version}\n' "${packages[@]}"
        unshare --net bash -euo pipefail -c '
            ip link set lo up
            . /root/neighbours/common/bed.sh
            . "/root/neighbours/$1.sh"
            run
            finish' bash "$2"
    fi
}

# prepare NAME: the system with the packages of a neighbour.
prepare() {
    local base=$bare/$SYSTEM-neighbours system=$bare/neighbour-$1
    [[ ! -d $system ]] || return 0
    rm -rf --one-file-system "$system".{new,log}
    {
        [[ -d $base ]] || make_root "$base" "$SYSTEM" ca-certificates,mount,e2fsprogs,fuse3,iproute2,attr
        cp -a "$base" "$system.new"
        cp -r scripts/neighbours "$system.new/root/neighbours"
        in_root "$system.new" "install $1"
        mv "$system.new" "$system"
    } >"$system.log" 2>&1
}

# try NAME
try() {
    local root=$work/run
    prepare "$1" || { tail -n 5 "$bare/neighbour-$1.log" && return 1; }
    cp -a "$bare/neighbour-$1" "$root"
    rm -rf "$root/root/neighbours"
    cp -r scripts/neighbours "$root/root/neighbours"
    cp "$CANOPY_BIN" "$root/usr/bin/canopy"
    in_root "$root" "use $1"
}

failed=()
for name in "${neighbours[@]}"; do
    started=$SECONDS
    printf '=== %s\n' "$name"
    # Not as a condition: the shell would go on after a failed command.
    set +e
    (set -e && try "$name")
    status=$?
    set -e
    if losetup --noheadings --output BACK-FILE | grep -F "$work/"; then
        printf 'loop devices are left\n'
        status=1
    fi
    if ((status == 0)); then
        printf '=== %s works (%d s)\n' "$name" "$((SECONDS - started))"
    else
        printf '=== %s FAILED\n' "$name"
        failed+=("$name")
    fi
    rm -rf --one-file-system "$work/run"
done
((${#failed[@]} == 0)) || fail "failed: ${failed[*]}"
