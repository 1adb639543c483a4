#!/usr/bin/env bash
# Tries the screen in the browser in headless Chromium, against a pool of loop devices: each page at three widths and in both
# colours, with and without JavaScript, by keyboard, with axe, a disk pulled while its page is open, and a life of a pool without
# a terminal.
#   web-tests.sh [--pictures] [FILTER]    only what has FILTER in its name; --pictures also writes docs/images/web.png
#   web-tests.sh --bare                   the life of a pool on a bare Debian 13, with the packages of scripts/package.sh (BUILD as there);
#                                         needs debootstrap
# MODULES names a directory that has the two packages of npm (by default npm fetches them).
# BUILD names a directory with a built canopy and canopy-web (by default they are built).
# Needs root, chromium, node and npm (apt-get install chromium nodejs npm), and the registry of npm for the two packages in
# scripts/web/package.json, which it keeps in target/web. Screenshots go to target/web/screenshots.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() {
    printf 'web-tests: %s\n' "$*" >&2
    exit 1
}

((EUID == 0)) || fail "needs root, to mount filesystems"

# fetch: the packages of npm, of which the path is printed. They have no scripts of their own to run, and bring no browser.
fetch() {
    mkdir -p target/web
    cp scripts/web/package.json scripts/web/package-lock.json target/web/
    (cd target/web && npm ci --silent --ignore-scripts --no-audit --no-fund >&2)
    echo "$PWD/target/web/node_modules"
}

# inside: installs the packages, and lives the life.
# shellcheck disable=SC2317 # another shell calls this function
inside() {
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends chromium nodejs >/dev/null
    apt-get install -y -qq /root/packages/*.deb >/dev/null
    cd /root/canopy
    BUILD=/usr/bin MODULES=/root/canopy/modules TMPDIR=/root bash scripts/web-tests.sh "$1"
}

if [[ ${1:-} == --bare ]]; then
    (($# == 1)) || fail "--bare takes no other argument"
    # shellcheck source=scripts/bare-root.sh
    . scripts/bare-root.sh
    for program in debootstrap npm unshare; do
        command -v "$program" >/dev/null || fail "needs $program (apt-get install debootstrap npm util-linux)"
    done
    bare=$(mktemp -d "${TMPDIR:-/var/tmp}/canopy-web-bare-XXXXXX")
    trap 'rm -rf --one-file-system "$bare"' EXIT
    root=$bare/root
    OUT=$bare/packages scripts/package.sh deb >/dev/null
    make_root "$root" debian-13 ca-certificates,e2fsprogs,procps >&2
    mkdir -p "$root/root/packages" "$root/root/canopy"
    cp "$bare"/packages/canopy_*.deb "$bare"/packages/canopy-web_*.deb "$root/root/packages/"
    cp -a scripts "$root/root/canopy/"
    cp -a "$(fetch)" "$root/root/canopy/modules"
    in_root "$root" life
    exit
fi

pictures=
if [[ ${1:-} == --pictures ]]; then
    pictures=docs/images/web.png
    shift
fi
(($# <= 1)) && [[ ${1:-} != -* ]] || fail "unknown argument: $* (web-tests.sh [--pictures] [FILTER])"
readonly filter=${1:-}
modules=${MODULES:-}
programs=(chromium node mkfs.ext4)
[[ -n $modules ]] || programs+=(npm)
for program in "${programs[@]}"; do
    command -v "$program" >/dev/null || fail "needs $program (apt-get install chromium nodejs npm e2fsprogs)"
done

build=${BUILD:-}
if [[ -z $build ]]; then
    # shellcheck source=scripts/rust.sh
    . scripts/rust.sh
    rust_on_path || fail "there is no cargo $(rust_needed) or later"
    cargo build --quiet -p canopy -p canopy-web
    build=${CARGO_TARGET_DIR:-target}/debug
fi
build=$(realpath "$build")
[[ -n $modules ]] || modules=$(fetch)

work=$(mktemp -d "${TMPDIR:-/tmp}/canopy-web-tests-XXXXXX")
screen=
finish() {
    local disk record=${work//-/%2d}
    [[ -z $screen ]] || kill "$screen" 2>/dev/null || true
    "$build/canopy" umount --lazy "$work/media" 2>/dev/null || true
    "$build/canopy" umount --lazy "$work/second" 2>/dev/null || true
    "$build/canopy" umount --lazy "$work/life" 2>/dev/null || true
    for disk in "$work"/disk*/ "$work"/life?/; do
        umount -l "$disk" 2>/dev/null || true
    done
    # Where movers of the pool have said how they go.
    rm -f "/run/canopy/tier${record//\//-}"-{media,life}.json
    rm -rf --one-file-system "$work"
}
trap finish EXIT

for number in 1 2 3 4; do
    truncate -s 512M "$work/image$number"
    mkfs.ext4 -q -m 0 "$work/image$number"
    mkdir "$work/disk$number"
    mount -o loop "$work/image$number" "$work/disk$number"
done
mkdir "$work/media" "$work/etc" "$work/new1" "$work/new2"
export CANOPY_CONFIG_DIR=$work/etc CANOPY_STATE_DIR=$work/lib
cat >"$work/etc/media.toml" <<EOF
mountpoint = "$work/media"
branches = ["$work/disk1", "$work/disk2", "$work/disk3"]
minfreespace = "1M"
tiers = "fast=$work/disk1|fuller than 70%;large=$work/disk2:$work/disk3"
[[trash]]
path = "**"
keep = "3d"
[[schedule]]
do = "verify"
when = "every month at 02:00"
EOF
"$build/canopy" mount media
mkdir -p "$work/media/films" "$work/disk2/films"
head -c 230M /dev/zero >"$work/media/films/one.mkv"
head -c 120M /dev/zero >"$work/disk2/films/two.mkv"
# What a name may be.
touch "$work/media/films/<img src=x onerror=alert(1)>\"'&.mkv" "$work/media/films/"$'\u202egnp.exe\n'

# Something to bring back.
echo kept >"$work/media/films/a*[b].txt" && rm "$work/media/films/a*[b].txt"

"$build/canopy-web" --listen 127.0.0.1:0 --state "$work/state" >"$work/invitation" &
screen=$!
for ((tries = 0; tries < 100; tries++)); do
    [[ ! -s $work/invitation ]] || break
    sleep 0.1
done
rm -rf target/web/screenshots
mkdir -p target/web/screenshots
NODE_PATH=$modules WORK=$work BUILD=$build PICTURE=$pictures INVITATION=$(head -n 1 "$work/invitation") \
    SHOTS=$PWD/target/web/screenshots FILTER=$filter node scripts/web/browser.js
