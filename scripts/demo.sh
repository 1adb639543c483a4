#!/usr/bin/env bash
# Shows a pool at work: mounts three directories as one tree, puts files in and shows where each of them landed.
# Works as root and as an ordinary user. CANOPY_DEMO=DIR chooses where; the default is a new directory under /tmp.
# If there is no compiler that is new enough, it asks before it installs one with rustup; with --yes it does not ask.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
[[ -t 1 ]] || say() { printf '\n%s\n' "$*"; }

fail() {
    printf 'demo: %s\n' "$*" >&2
    exit 1
}

[[ $* == "" || $* == --yes ]] || fail "takes only --yes (CANOPY_DEMO=DIR chooses the directory)"
say "Setting up"
scripts/setup.sh run "$@"
# shellcheck source=scripts/rust.sh
. scripts/rust.sh
rust_on_path
say "Building"
cargo build --release --quiet --package canopy --bin canopy
canopy=$(realpath "${CARGO_TARGET_DIR:-target}/release/canopy")
"$canopy" --version

if [[ -n ${CANOPY_DEMO:-} ]]; then
    mkdir -p "$CANOPY_DEMO"
    home=$(realpath "$CANOPY_DEMO")
    [[ -z $(ls -A "$home") ]] || fail "$home is not empty (choose another directory with CANOPY_DEMO=DIR)"
else
    home=$(mktemp -d /tmp/canopy-demo.XXXXXX)
fi
pool=$home/pool
mkdir "$home"/disk1 "$home"/disk2 "$home"/disk3 "$pool"

# Removes everything again if a step fails.
undo() {
    "$canopy" umount --lazy "$pool" 2>/dev/null || true
    rm -rf --one-file-system "$home"/disk[123]
    rmdir "$pool" "$home" 2>/dev/null || true
}
trap undo EXIT

say "Mounting three directories as one"
# A random branch for each file, so that a few files show something; the default prefers branches with more free space.
# The minimum of free space is low for the sake of small disks.
options=category.create=rand,minfreespace=1M
echo "\$ canopy mount -o $options $home/disk1:$home/disk2:$home/disk3 $pool"
"$canopy" mount -o "$options" "$home/disk1:$home/disk2:$home/disk3" "$pool"

mkdir -p "$pool"/music/album "$pool"/photos/2024 "$pool"/films
for name in music/album/{one,two,three}.flac photos/2024/{beach,forest,city}.jpg films/{long,short}.mkv notes.txt; do
    head -c "$((RANDOM % 200 + 50))K" /dev/urandom >"$pool/$name"
done

say "The pool: one tree"
(cd "$pool" && find . -mindepth 1 | sort | sed 's|[^/]*/|   |g')

say "Where each file landed"
printf '%-28s %-8s %s\n' FILE BRANCH SIZE
while read -r name; do
    for disk in disk1 disk2 disk3; do
        [[ -e $home/$disk/$name ]] || continue
        cmp -s "$home/$disk/$name" "$pool/$name" || fail "$name differs between $disk and the pool"
        printf '%-28s %-8s %s\n' "$name" "$disk" "$(du -h --apparent-size "$home/$disk/$name" | cut -f1)"
    done
done < <(cd "$pool" && find . -type f -printf '%P\n' | sort)
echo
echo "Each file is whole on one branch, and reads the same there as through the pool."

trap - EXIT
say "The pool is still mounted: look around in $pool"
cat <<END

To stop:
    $canopy umount $pool
    rm -r $home

With your own disks (the mount point must exist and be outside every branch):
    $canopy mount /mnt/disk1:/mnt/disk2 /mnt/pool

    $canopy options     lists what -o takes
END
