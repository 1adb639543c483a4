# shellcheck shell=bash
# Sourced by the scripts that try something on bare systems: makes such systems with debootstrap, and runs commands in
# them. Each run has mount and PID namespaces of its own, and device nodes of its own. What it mounts and starts ends with it.

# make_root ROOT debian-12|debian-13|ubuntu-24.04 PACKAGES: a bare system with these packages, separated by commas.
make_root() {
    local root=$1 packages=$3 keys=()
    case $2 in
    debian-12) set -- bookworm http://deb.debian.org/debian ;;
    debian-13) set -- trixie http://deb.debian.org/debian ;;
    ubuntu-24.04)
        # Debian's debootstrap may not know the release's name; all of Ubuntu's releases share one script.
        set -- noble http://archive.ubuntu.com/ubuntu /usr/share/debootstrap/scripts/gutsy
        # Debian 12 has no package of Ubuntu's keys.
        [[ -e /usr/share/keyrings/ubuntu-archive-keyring.gpg ]] || keys=(--no-check-gpg)
        ;;
    esac
    # Where mounts are private, what others unmount would stay mounted here until debootstrap ends, and a pool's daemon with it.
    # shellcheck disable=SC2016 # the other shell expands it
    unshare --mount --propagation slave bash -euc '
        findmnt --raw --noheadings --output TARGET,FSTYPE,SOURCE | awk "\$2 ~ /^fuse/ || \$3 ~ \"^/dev/loop\" { print \$1 }" | tac |
            while read -r target; do umount --lazy "$(printf %b "$target")"; done
        exec "$@"' bash debootstrap --variant=minbase --include="$packages" --components=main,universe "${keys[@]}" "$1" "$root.new" "${@:2}"
    case $1 in
    bookworm | trixie) echo "deb http://deb.debian.org/debian-security $1-security main" >"$root.new/etc/apt/sources.list.d/security.list" ;;
    noble) echo "deb http://archive.ubuntu.com/ubuntu noble-updates main universe" >"$root.new/etc/apt/sources.list.d/updates.list" ;;
    esac
    mv "$root.new" "$root"
}

# enter ROOT COMMAND: runs the function inside(), which the caller defines, in that system. Called by the first process of
# new mount and PID namespaces; see in_root.
# shellcheck disable=SC2016,SC2317 # another shell calls this function, and expands what is quoted
enter() {
    local root=$1 command=$2 node
    # What is unmounted here stays mounted elsewhere.
    mount --make-rslave /
    # The root of a real machine is a mount. Canopy finds a branch's filesystem in the list of mounts.
    mount --bind "$root" "$root"
    mount -t tmpfs -o mode=755 dev "$root/dev"
    for node in "null 1 3" "zero 1 5" "full 1 7" "random 1 8" "urandom 1 9" "tty 5 0" "fuse 10 229" "loop-control 10 237"; do
        # shellcheck disable=SC2086
        set -- $node
        mknod -m 666 "$root/dev/$1" c "$2" "$3"
    done
    for ((node = 0; node < 64; node++)); do mknod -m 660 "$root/dev/loop$node" b 7 "$node"; done
    ln -s /proc/self/fd "$root/dev/fd"
    ln -sf ../proc/self/mounts "$root/etc/mtab" # systemd makes it at boot; fusermount3 reads it
    mkdir "$root/dev/shm"
    mount -t tmpfs -o mode=1777 shm "$root/dev/shm"
    mount -t proc proc "$root/proc"
    mount -t sysfs -o ro sysfs "$root/sys"
    mount -t tmpfs -o mode=1777 tmp "$root/tmp"
    # The machine's own mounts leave this namespace: it would keep the filesystems of others mounted otherwise.
    cd "$root" || return
    mkdir -p host
    pivot_root . host
    exec chroot . /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 \
        bash -euo pipefail -c "umount --lazy /host; rmdir /host; $(declare -f inside); inside $command"
}

# in_root ROOT COMMAND: runs inside() with COMMAND in the system below ROOT, in namespaces of its own.
# shellcheck disable=SC2016 # another shell expands what is quoted
in_root() (
    export -f enter inside
    unshare --mount --propagation slave --pid --fork --kill-child bash -euc 'enter "$@"' bash "$1" "$2"
) </dev/null
