#!/usr/bin/env bash
# Runs the README's commands on bare systems: Debian 12, Debian 13 and Ubuntu 24.04, with only git and what debootstrap
# installs. Each run starts from a new copy of such a system and tests the last commit.
#   fresh-machines.sh [demo|user|test] [debian-12|debian-13|ubuntu-24.04 ...]
#     demo   scripts/demo.sh as root (the default)
#     user   scripts/demo.sh and scripts/test.sh --fast as an ordinary user who has only the distribution's old cargo
#     test   scripts/test.sh as root
# FRESH_MACHINES=DIR keeps the bare systems for the next run; by default they are removed at the end.
# Needs root, the distributions' mirrors, 3 GiB of disk (12 GiB for `test`) and ten minutes or more for each system.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/bare-root.sh
. scripts/bare-root.sh

fail() {
    printf 'fresh-machines: %s\n' "$*" >&2
    exit 1
}

what=demo
case ${1:-} in
demo | user | test)
    what=$1
    shift
    ;;
esac
systems=("$@")
((${#systems[@]} > 0)) || systems=(debian-12 debian-13 ubuntu-24.04)
for system in "${systems[@]}"; do
    case $system in debian-12 | debian-13 | ubuntu-24.04) ;; *) fail "unknown system: $system (debian-12, debian-13, ubuntu-24.04)" ;; esac
done
((EUID == 0)) || fail "needs root, to make the systems and to mount in them"
for program in debootstrap unshare git; do
    command -v "$program" >/dev/null || fail "needs $program (apt-get install $program)"
done

work=$(mktemp -d "${TMPDIR:-/var/tmp}/canopy-fresh-XXXXXX")
trap 'rm -rf --one-file-system "$work"' EXIT
bare=$work
if [[ -n ${FRESH_MACHINES:-} ]]; then
    mkdir -p "$FRESH_MACHINES"
    bare=$(realpath "$FRESH_MACHINES")
fi

# inside demo|user|test
# shellcheck disable=SC2317 # another shell calls this function
inside() {
    local reason
    update-ca-certificates >/dev/null 2>&1
    cd /root/canopy
    case $1 in
    demo)
        CANOPY_DEMO=/root/demo scripts/demo.sh
        target/release/canopy status /root/demo/pool | tee /root/status
        [[ $(grep -c "^ */root/demo/disk[123] .* ok$" /root/status) == 3 ]]
        target/release/canopy umount /root/demo/pool
        ;;
    user)
        export DEBIAN_FRONTEND=noninteractive
        apt-get -q update >/dev/null
        apt-get -q -y install --no-install-recommends cargo gcc libc6-dev e2fsprogs fuse3 mount util-linux kmod curl >/dev/null 2>&1
        useradd --create-home ordinary
        mv /root/canopy /home/ordinary/
        chown -R ordinary: /home/ordinary
        # Unasked, nothing is installed, and one line says what is missing.
        if reason=$(runuser -l ordinary -c "cd canopy && scripts/demo.sh" 2>&1 </dev/null); then exit 1; fi
        grep "building needs cargo [0-9.]* or later, and this is [0-9.]*: install rustup" <<<"$reason"
        runuser -l ordinary -c "cd canopy && CANOPY_DEMO=\$HOME/demo scripts/demo.sh --yes && target/release/canopy umount ~/demo/pool"
        runuser -l ordinary -c "cd canopy && scripts/test.sh --fast" >/root/fast.log 2>&1 || {
            tail -n 60 /root/fast.log
            exit 1
        }
        grep "^test result" /root/fast.log
        ;;
    test) scripts/test.sh ;;
    esac
}

failed=0
for system in "${systems[@]}"; do
    root=$work/run
    printf '=== %s: %s\n' "$system" "$what"
    if [[ ! -d $bare/$system ]]; then
        make_root "$bare/$system" "$system" git,ca-certificates >"$bare/$system.log" 2>&1 || {
            tail -n 5 "$bare/$system.log" >&2
            fail "debootstrap could not make $system"
        }
    fi
    cp -a "$bare/$system" "$root"
    cp /etc/resolv.conf "$root/etc/resolv.conf"
    # A network may have a certificate authority of its own.
    cp /usr/local/share/ca-certificates/*.crt "$root/usr/local/share/ca-certificates/" 2>/dev/null || true
    git clone --quiet . "$root/root/canopy"
    started=$SECONDS
    if in_root "$root" "$what"; then
        printf '=== %s: %s works (%d s)\n' "$system" "$what" "$((SECONDS - started))"
    else
        printf '=== %s: %s FAILED\n' "$system" "$what"
        failed=1
    fi
    rm -rf --one-file-system "$root"
    [[ $bare != "$work" ]] || rm -rf --one-file-system "${bare:?}/$system"
done
exit "$failed"
