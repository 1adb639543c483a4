#!/usr/bin/env bash
# Tries the screen in the browser in headless Chromium, against a pool of loop devices: each page at three widths and in both
# colours, with and without JavaScript, by keyboard, with axe, a disk pulled while its page is open, and a life of a pool without
# a terminal.
#   web-tests.sh [--pictures] [FILTER]    only what has FILTER in its name; --pictures also writes docs/images/web.png
# BUILD names a directory with a built canopy and canopy-web (by default they are built).
# Needs root, chromium, node and npm (apt-get install chromium nodejs npm), and the registry of npm for the two packages in
# scripts/web/package.json, which it keeps in target/web. Screenshots go to target/web/screenshots.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() {
    printf 'web-tests: %s\n' "$*" >&2
    exit 1
}

pictures=
if [[ ${1:-} == --pictures ]]; then
    pictures=docs/images/web.png
    shift
fi
(($# <= 1)) && [[ ${1:-} != -* ]] || fail "unknown argument: $* (web-tests.sh [--pictures] [FILTER])"
readonly filter=${1:-}
((EUID == 0)) || fail "needs root, to mount filesystems"
for program in chromium node npm mkfs.ext4; do
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
mkdir -p target/web
cp scripts/web/package.json scripts/web/package-lock.json target/web/
# They have no scripts of their own to run, and bring no browser.
(cd target/web && npm ci --silent --ignore-scripts --no-audit --no-fund)

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
NODE_PATH=$PWD/target/web/node_modules WORK=$work BUILD=$build PICTURE=$pictures INVITATION=$(head -n 1 "$work/invitation") \
    SHOTS=$PWD/target/web/screenshots FILTER=$filter node scripts/web/browser.js
