#!/usr/bin/env bash
# Prints docs/conformance.md: public test suites on filesystems, on a pool over them, and on mergerfs over them.
#   conformance.sh [--filesystems "ext4 xfs btrfs tmpfs"] [--suites "pjdfstest fsx stress-ng fs_mark dbench fio"]
# Environment variables, with their defaults:
#   CANOPY    the program to test (target/release/canopy, which it builds)
#   MERGERFS  mergerfs, or "none" (that of Debian 13, which it downloads)
#   FSX_OPS   operations of fsx for each seed (20000)
# Needs root, scripts/setup.sh test, dbench, fs_mark (Debian's dbench and fsmark), loop devices, and 3 GiB of disk. Takes a quarter
# of an hour. All mounts are in a mount namespace of their own, which ends with the script.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() {
    printf 'conformance: %s\n' "$*" >&2
    exit 1
}

filesystems="ext4 xfs btrfs tmpfs" suites="pjdfstest fsx stress-ng fs_mark dbench fio"
while (($# > 0)); do
    case $1 in
    --filesystems | --suites)
        (($# > 1)) || fail "$1 needs names"
        declare "${1#--}=$2"
        shift 2
        ;;
    *) fail "unknown: $1 (--filesystems, --suites)" ;;
    esac
done
((EUID == 0)) || fail "needs root, to mount filesystems"
if [[ -z ${CONFORMANCE_APART:-} ]]; then
    if [[ -z ${CANOPY:-} ]]; then
        # shellcheck source=scripts/rust.sh
        . scripts/rust.sh
        rust_on_path
        cargo build --quiet --release -p canopy
        CANOPY=$PWD/${CARGO_TARGET_DIR:-target}/release/canopy
    fi
    CONFORMANCE_APART=yes CANOPY=$(realpath "$CANOPY") exec unshare --mount --propagation private \
        "$0" --filesystems "$filesystems" --suites "$suites"
fi
export PATH="$PWD/target/tools/bin:$PATH"
for program in pjdfstest fsx stress-ng fs_mark dbench fio; do
    command -v "$program" >/dev/null || fail "needs $program (scripts/setup.sh test; apt-get install dbench fsmark)"
done

# Short, for the names of sockets.
work=$(mktemp -d "${TMPDIR:-/var/tmp}/cc-XXXXXX")
chmod 711 "$work" # pjdfstest works as other users, too
loops=()
# shellcheck disable=SC2317 # the trap calls it
end() {
    local mount loop
    for mount in "$work"/{pool,mergerfs,plain,one,other,second}; do
        while mountpoint -q "$mount"; do umount "$mount" || umount -l "$mount"; done
    done
    for loop in "${loops[@]}"; do losetup -d "$loop" 2>/dev/null || true; done
    rm -rf --one-file-system "$work"
}
trap end EXIT
mkdir "$work"/{pool,mergerfs,plain,one,other,second,images,scratch}

# That of Debian 13, with its own C library, wherever this runs.
if [[ -z ${MERGERFS:-} ]]; then
    mkdir -p "$work"/apt/{lists/partial,archives/partial} "$work/debian"
    echo "deb [trusted=yes] http://deb.debian.org/debian trixie main" >"$work/apt/sources"
    options=(-q -o "Dir::Etc::sourcelist=$work/apt/sources" -o Dir::Etc::sourceparts=- -o "Dir::State::lists=$work/apt/lists"
        -o "Dir::Cache=$work/apt" -o "Dir::Cache::archives=$work/apt/archives" -o APT::Sandbox::User=root)
    { apt-get "${options[@]}" update && cd "$work/apt" && apt-get "${options[@]}" download mergerfs libc6 libstdc++6 libgcc-s1; } \
        >"$work/log" 2>&1 || fail "cannot download mergerfs of Debian 13 (MERGERFS=none does without): $(tail -n 1 "$work/log")"
    cd "$OLDPWD"
    for deb in "$work"/apt/*.deb; do dpkg-deb -x "$deb" "$work/debian"; done
    root=$work/debian/usr
    printf '#!/bin/sh\nexec %s --library-path %s %s "$@"\n' "$root/lib64/ld-linux-x86-64.so.2" "$root/lib/x86_64-linux-gnu" \
        "$root/bin/mergerfs" >"$work/mergerfs.sh"
    chmod +x "$work/mergerfs.sh"
    MERGERFS=$work/mergerfs.sh
    version=$(dpkg-deb -f "$work"/apt/mergerfs_*.deb Version)
elif [[ $MERGERFS == none ]]; then
    version=
else
    version=$("$MERGERFS" --version 2>&1 | sed -nE 's/^mergerfs +v?(.+)/\1/p')
fi

# disk NAME KIND: mounts a new filesystem.
disk() {
    local image=$work/images/$1 loop
    if [[ $2 == tmpfs ]]; then
        # iomix writes a file of 1 GiB.
        mount -t tmpfs -o size=1200M none "$work/$1"
        return
    fi
    truncate -s 1G "$image"
    loop=$(losetup --find --show "$image")
    loops+=("$loop")
    "mkfs.$2" -q "$loop" >/dev/null
    mount "$loop" "$work/$1"
}

no_disk() {
    local loop
    umount "$work/$1"
    loop=$(losetup -n -O NAME -j "$work/images/$1")
    [[ -z $loop ]] || losetup -d "$loop"
    rm -f "$work/images/$1"
}

# Each suite gets a directory, prints its result in a few words, and writes what failed to the file "$work/failed".

pjdfstest_in() {
    local output
    cat >"$work/pjdfstest.toml" <<-'TOML'
	[features]
	posix_fallocate = {}
	rename_ctime = {}
	utime_now = {}
	utimensat = {}
	[settings]
	naptime = 0.02
	allow_remount = false
	[dummy_auth]
	entries = [["nobody", "nogroup"], ["daemon", "daemon"]]
	TOML
    output=$(NO_COLOR=1 RUST_BACKTRACE=0 timeout 300 pjdfstest -c "$work/pjdfstest.toml" -p "$1" -s "$work/second" 2>&1) || true
    grep -oE '^[a-z_]+(::[a-z_0-9]+)+ +FAILED' <<<"$output" | awk '{ print $1 }' >"$work/failed" || true
    sed -nE 's/^Summary: ([0-9]+) failed, ([0-9]+) skipped, ([0-9]+) passed.*/\3 passed, \1 failed, \2 skipped/p' <<<"$output"
}

fsx_in() {
    local seed ops=${FSX_OPS:-20000} done=0
    for seed in 1 2 3; do
        if RUST_BACKTRACE=0 timeout 300 fsx -f crates/canopy/tests/suites/fsx.toml -N "$ops" -S "$seed" -P "$work/scratch" "$1/fsx-$seed" >"$work/fsx.log" 2>&1; then
            done=$((done + 1))
        else
            printf 'seed %s: %s\n' "$seed" "$(grep -vE '^(\[|  |note: )' "$work/fsx.log" | tail -n 1 | cut -c1-90)" >>"$work/failed"
        fi
        rm -f "$1/fsx-$seed"
    done
    printf '%d of 3 seeds of %d operations' "$done" "$ops"
}

stress-ng_in() {
    local stressor passed=0 skipped=() code output
    for stressor in $(stress-ng --class 'filesystem?' 2>&1 | sed -n 's/.*stressors: //p'); do
        # They do not touch the directory.
        [[ " bind-mount binderfs eventfd procfs ramfs sysfs umount " != *" $stressor "* ]] || continue
        code=0
        output=$(timeout --kill-after=5 60 stress-ng "--$stressor" 1 "--$stressor-ops" 50 --timeout 5 --verify --no-rand-seed \
            --oomable --temp-path "$1" 2>&1) || code=$?
        if grep -qE ' fail: ' <<<"$output" || ((code != 0 && code != 3 && code != 4)); then
            printf '%s\n' "$stressor" >>"$work/failed"
        elif ((code != 0)) || grep -qE 'skipping stress|not implemented|aborted early' <<<"$output"; then
            skipped+=("$stressor")
        else
            passed=$((passed + 1))
        fi
    done
    printf '%d passed, %d failed' "$passed" "$(wc -l <"$work/failed")"
    ((${#skipped[@]} == 0)) || printf ', skipped %s' "${skipped[*]}"
}

fs_mark_in() {
    # It takes no long paths, and its exit status says nothing.
    (cd "$1" && timeout 300 fs_mark -d marks -D 16 -n 2000 -s 4096 -t 4 -S 1 -v -l log) >"$work/log" 2>&1 || true
    if awk '$2 == 8000 { found = 1 } END { exit !found }' "$work/log"; then
        printf '8000 files by 4 threads'
    else
        tail -n 1 "$work/log" | cut -c1-90 >"$work/failed"
        printf 'failed'
    fi
}

dbench_in() {
    if timeout 120 dbench -c /usr/share/dbench/client.txt -D "$1" -t 10 8 >"$work/log" 2>&1 && ! grep -qiE 'failed|error' "$work/log"; then
        printf '8 clients, 10 s, no error'
    else
        grep -iE 'failed|error' "$work/log" | head -n 1 | cut -c1-90 >"$work/failed" || true
        printf 'failed'
    fi
}

fio_in() {
    local how
    for how in "psync --rw=randwrite" "libaio --direct=1 --rw=randwrite --iodepth=8" "mmap --rw=randwrite" "psync --rw=write --end_fsync=1"; do
        # shellcheck disable=SC2086 # options
        timeout 300 fio --name=job --directory="$1" --ioengine=$how --size=32M --bs=16k --numjobs=2 --verify=crc32c --verify_fatal=1 \
            --do_verify=1 --verify_state_save=0 --group_reporting >"$work/log" 2>&1 ||
            printf '%s: %s\n' "${how// --/ }" "$(grep -m1 -iE 'error|bad' "$work/log" | cut -c1-90)" >>"$work/failed"
        rm -f "$1"/job*
    done
    printf '%d of 4 jobs' "$((4 - $(wc -l <"$work/failed")))"
}

notes=()
# note KIND WHERE FILE: keeps the names in a file.
note() { notes+=("$1"$'\t'"$2: $(paste -sd';' "$3" | sed 's/;/; /g')"); }

# cell SUITE SIDE KIND DIR: prints a result. What has failed there and not on the filesystem itself becomes a note.
cell() {
    local suite=$1 side=$2 kind=$3 dir=$4/c result
    : >"$work/failed"
    mkdir "$dir"
    # Some stressors work as other users. For pjdfstest, a directory with the sticky bit is another one.
    [[ $suite != stress-ng ]] || chmod 1777 "$dir"
    result=$("${suite}_in" "$dir")
    find "$dir" -mindepth 1 -delete
    rmdir "$dir"
    sort -u -o "$work/failed" "$work/failed"
    if [[ $side == itself ]]; then
        cp "$work/failed" "$work/expected"
        [[ ! -s $work/failed ]] || note "$kind" "itself, $suite" "$work/failed"
    else
        comm -13 "$work/expected" "$work/failed" >"$work/more"
        [[ ! -s $work/more ]] || note "$kind" "$side, $suite" "$work/more"
    fi
    printf ' %s |' "$result"
}

cat <<EOF
# Conformance

Public test suites, on a filesystem itself, on a pool over two of its kind, and on mergerfs over the same two. \`scripts/conformance.sh\` prints
this page: $(date +%F), Linux $(uname -r | cut -d- -f1), Canopy at commit $(git rev-parse --short HEAD) with its defaults${version:+, mergerfs $version}.
Both have \`minfreespace=0\`, because the disks are small; mergerfs has \`cache.files=auto-full\`, without which it maps no files here.
EOF
for suite in $suites; do
    case $suite in
    pjdfstest) about="What POSIX says about names, modes, owners, links and times (version $(pjdfstest --version | awk '{ print $2 }'), all features of Linux, a second filesystem for EXDEV; the cases that remount are skipped)." ;;
    fsx) about="Random reads, writes, mappings and changes of size of a file, each read compared." ;;
    stress-ng) about="The stressors of the class *filesystem*, each 50 operations with \`--verify\` ($(stress-ng --version | awk '{ print $3 }'))." ;;
    fs_mark) about="4 threads create files of 4 KiB in 16 directories, each with fsync." ;;
    dbench) about="What a file server's clients do ($(dpkg-query -W -f='dbench ${Version}' dbench))." ;;
    fio) about="Written data are read and compared by CRC: write(2) at random, O_DIRECT with a queue, a shared mapping, in order with fsync." ;;
    *) fail "unknown suite: $suite" ;;
    esac
    printf '\n## %s\n\n%s\n\n| | itself | Canopy |%s\n| --- | --- | --- |%s\n' "$suite" "$about" "${version:+ mergerfs |}" "${version:+ --- |}"
    for kind in $filesystems; do
        disk second ext4
        disk plain "$kind"
        disk one "$kind"
        disk other "$kind"
        printf '| %s |' "$kind"
        cell "$suite" itself "$kind" "$work/plain"
        "$CANOPY" mount -o minfreespace=0 "$work/one:$work/other" "$work/pool" >&2
        cell "$suite" Canopy "$kind" "$work/pool"
        umount "$work/pool"
        if [[ -n $version ]]; then
            "$MERGERFS" -o minfreespace=0,cache.files=auto-full,func.getattr=newest,dropcacheonclose=false "$work/one:$work/other" "$work/mergerfs" >&2
            cell "$suite" mergerfs "$kind" "$work/mergerfs"
            umount "$work/mergerfs"
        fi
        printf '\n'
        for name in other one plain second; do
            # The daemon may still hold it for a moment.
            for _ in {1..50}; do
                ! no_disk "$name" 2>/dev/null || break
                sleep 0.1
            done
        done
    done
done
printf '\n## What differs\n\nWhat fails, and of a pool or mergerfs what does not fail on the filesystem itself as well:\n\n'
((${#notes[@]} > 0)) || printf -- '- nothing\n'
printf '%s\n' "${notes[@]}" | awk -F '\t' 'NF { if (!($2 in on)) order[++count] = $2; on[$2] = on[$2] (on[$2] ? ", " : "") $1 }
    END { for (i = 1; i <= count; i++) print "- " order[i] " (" on[order[i]] ")" }'
cat <<'EOF'

## Why

- `fiemap` is skipped over FUSE, which has no such operation (`fuse_file_inode_operations` in fs/fuse/file.c of Linux); a tmpfs has none either.
- `verity` is skipped, because the filesystems are made without it, and `iomix`, whose file of 1 GiB fits on the tmpfs
  alone.
- `rename::updates_link_parent` counts the links of directories, which are always 1 on btrfs.
- What fails on mergerfs is its own: the times and link counts of a file with several names, which it caches by name, and names that are too long.

## To repeat it

`scripts/conformance.sh --filesystems ext4 --suites pjdfstest` prints one row. On other kernels, `scripts/test.sh --kernel 6.12 --filesystems` runs
pjdfstest, fsx and the random changes over each filesystem, in a virtual machine. The Linux Test Project and mdtest are not run: Debian does
not have them. The [storm](testing.md#the-storm) is what finds most.
EOF
