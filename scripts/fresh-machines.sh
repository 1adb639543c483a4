#!/usr/bin/env bash
# Runs the README's commands on bare systems: roots of Debian 12, Debian 13 and Ubuntu 24.04 with nothing in them but what
# debootstrap puts there and git.
#   fresh-machines.sh [demo|test] [debian-12|debian-13|ubuntu-24.04 ...]     demo, and all three, if not said
# FRESH_MACHINES=DIR keeps the roots for the next run; without it they lie in a directory that goes in the end.
# Needs root, some 6 GiB a system and the distributions' mirrors; the demonstration takes some minutes each.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() {
    printf 'fresh-machines: %s\n' "$*" >&2
    exit 1
}

what=demo
if [[ ${1:-} == demo || ${1:-} == test ]]; then
    what=$1
    shift
fi
systems=("$@")
((${#systems[@]} > 0)) || systems=(debian-12 debian-13 ubuntu-24.04)
for system in "${systems[@]}"; do
    case $system in debian-12 | debian-13 | ubuntu-24.04) ;; *) fail "no such system: $system (debian-12, debian-13, ubuntu-24.04)" ;; esac
done
((EUID == 0)) || fail "needs root, to make the systems and to mount in them"
for program in debootstrap unshare git; do
    command -v "$program" >/dev/null || fail "needs $program (apt-get install $program)"
done

if [[ -n ${FRESH_MACHINES:-} ]]; then
    mkdir -p "$FRESH_MACHINES"
    roots=$(realpath "$FRESH_MACHINES")
else
    roots=$(mktemp -d "${TMPDIR:-/var/tmp}/canopy-fresh-XXXXXX")
    trap 'rm -rf --one-file-system "$roots"' EXIT
fi

make_root() {
    local root=$1 keys=()
    case $2 in
    debian-12) set -- bookworm http://deb.debian.org/debian ;;
    debian-13) set -- trixie http://deb.debian.org/debian ;;
    ubuntu-24.04)
        # Debian's debootstrap knows how all of Ubuntu's releases are made, by the name of an old one.
        set -- noble http://archive.ubuntu.com/ubuntu /usr/share/debootstrap/scripts/gutsy
        [[ -e /usr/share/keyrings/ubuntu-archive-keyring.gpg ]] || keys=(--no-check-gpg)
        ;;
    esac
    unshare --mount --propagation slave debootstrap --variant=minbase --include=git,ca-certificates --components=main,universe "${keys[@]}" "$1" "$root.new" "${@:2}"
    case $1 in
    bookworm | trixie) echo "deb http://deb.debian.org/debian-security $1-security main" >"$root.new/etc/apt/sources.list.d/security.list" ;;
    noble) echo "deb http://archive.ubuntu.com/ubuntu noble-updates main universe" >"$root.new/etc/apt/sources.list.d/updates.list" ;;
    esac
    mv "$root.new" "$root"
}

# What runs inside: as the first process of the system, with a /dev and a /proc of its own.
# shellcheck disable=SC2016,SC2317 # it is called by a shell of its own, and its last words are another's
inside() {
    local root=$1 what=$2 node
    # What others unmount meanwhile is not to be kept here.
    mount --make-rslave /
    mount -t tmpfs -o mode=755 dev "$root/dev"
    for node in "null 1 3" "zero 1 5" "full 1 7" "random 1 8" "urandom 1 9" "tty 5 0" "fuse 10 229" "loop-control 10 237"; do
        # shellcheck disable=SC2086
        set -- $node
        mknod -m 666 "$root/dev/$1" c "$2" "$3"
    done
    for ((node = 0; node < 64; node++)); do mknod -m 660 "$root/dev/loop$node" b 7 "$node"; done
    ln -s /proc/self/fd "$root/dev/fd"
    mkdir "$root/dev/shm"
    mount -t proc proc "$root/proc"
    mount -t sysfs -o ro sysfs "$root/sys"
    mount -t tmpfs tmp "$root/tmp"
    env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 chroot "$root" bash -euc '
        update-ca-certificates >/dev/null 2>&1
        cd /root/canopy
        case $1 in
        demo)
            CANOPY_DEMO=/root/demo scripts/demo.sh
            target/release/canopy status /root/demo/pool
            target/release/canopy umount /root/demo/pool
            ;;
        test) scripts/test.sh ;;
        esac' bash "$what"
}

failed=0
for system in "${systems[@]}"; do
    root=$roots/$system
    printf '=== %s: %s\n' "$system" "$what"
    if [[ ! -d $root ]]; then
        make_root "$root" "$system" >"$roots/$system.log" 2>&1 || {
            tail -n 5 "$roots/$system.log" >&2
            fail "debootstrap could not make $system"
        }
    fi
    cp /etc/resolv.conf "$root/etc/resolv.conf"
    # A network may have an authority of its own.
    cp /usr/local/share/ca-certificates/*.crt "$root/usr/local/share/ca-certificates/" 2>/dev/null || true
    rm -rf --one-file-system "$root/root/canopy" "$root/root/demo"
    git clone --quiet . "$root/root/canopy"
    if (
        export -f inside
        unshare --mount --propagation slave --pid --fork --kill-child bash -euc 'inside "$@"' bash "$root" "$what"
    ) </dev/null; then
        printf '=== %s: %s works\n' "$system" "$what"
    else
        printf '=== %s: %s FAILED\n' "$system" "$what"
        failed=1
    fi
done
exit "$failed"
