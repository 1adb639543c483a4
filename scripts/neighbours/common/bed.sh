# shellcheck shell=bash disable=SC2086
# Sourced before a neighbour's file, in a system of its own: disks, a pool over them, and the same on a plain disk. A file has
# the array `packages` and the function `run`. Every command must succeed.

# What both run on: /pool is a pool of /disks/a and /disks/b with default options, /plain is a disk like these.
readonly POOL=/pool PLAIN=/plain

set -E
trap 'printf "FAILED: %s, line %d: %s\n" "${BASH_SOURCE[0]##*/}" "$LINENO" "$BASH_COMMAND" >&2' ERR

step() { printf '  %s\n' "$*"; }

fail() {
    printf 'FAILED: %s\n' "$*"
    exit 1
}

# quietly COMMAND...: shows what it printed only if it fails.
quietly() {
    "$@" >/root/log 2>&1 </dev/null || { tail -n 40 /root/log && fail "$*"; }
}

# until_true COMMAND...: waits for something to happen.
until_true() {
    local tries
    for ((tries = 0; tries < 1200; tries++)); do
        ! "$@" >/dev/null 2>&1 || return 0
        sleep 0.1
    done
    fail "still not true after two minutes: $*"
}

# is_gone PID...: none of them runs. A process whose parent has not asked for its end counts as gone.
is_gone() {
    local pid
    for pid in "$@"; do [[ $(ps -o stat= -p "$pid") =~ ^(Z.*)?$ ]] || return 1; done
}

# end PID...: tells them to end and waits until they have.
end() {
    kill "$@"
    until_true is_gone "$@"
}

# disk PATH: mounts an ext4 of 8 GiB there, of which only what is written takes room.
disk() {
    local image=/root/image${1//\//-}
    mkdir -p "$1"
    truncate -s 8G "$image"
    mkfs.ext4 -q "$image"
    mount -o loop "$image" "$1"
}

# the_pool [OPTION ...]: the pool, and the plain disk.
the_pool() {
    disk /disks/a
    disk /disks/b
    disk $PLAIN
    mkdir -p $POOL
    canopy mount "$@" /disks/a:/disks/b $POOL
}

# pool_with_remote [OPTION ...]: a pool of two disks and /disks/remote. The directory `there` is on /disks/remote, made there by
# its server if that keeps plain files in /export; the directory `here` with a hundred files is on one of the disks.
pool_with_remote() {
    local i remote=/disks/remote
    [[ ! -d /export ]] || remote=/export
    mkdir -p $remote/there /disks/a/here $POOL
    echo remote >$remote/there/file
    for i in {1..100}; do echo old >/disks/a/here/file$i; done
    canopy mount "$@" /disks/a:/disks/b:/disks/remote $POOL
}

# Reads, changes and lists what is on the disks. While the remote branch answers, this makes it known where that is.
work() {
    local i
    for i in {1..100}; do
        echo "$i" >$POOL/here/file$i
        [[ $(cat $POOL/here/file$i) == "$i" ]] || fail "file$i is wrong"
    done
    # shellcheck disable=SC2012 # a number of names
    (($(ls $POOL/here | wc -l) >= 100)) || fail "names are missing"
}

# fill_remote: makes and renames files in the directory `there`, some of which come to lie on the remote branch.
fill_remote() {
    local i
    for i in {1..30}; do
        head -c 200k /dev/urandom >/root/data$i
        cp /root/data$i $POOL/there/new$i
        mv $POOL/there/new$i $POOL/there/renamed$i
    done
    compare_remote
    [[ -n $(find /disks/remote/there -name 'renamed*') ]] || fail "no file is on the remote branch"
}

compare_remote() {
    local i
    for i in {1..30}; do cmp /root/data$i $POOL/there/renamed$i; done
}

# What only the remote branch can answer ends with an error, and is not taken for missing.
remote_fails() {
    local what
    for what in "cat $POOL/there/file" "touch $POOL/here/unknown"; do
        # shellcheck disable=SC2086 # a command
        ! timeout --signal=KILL 120 $what >/dev/null 2>/root/log || fail "$what: succeeds without the remote branch"
        grep -q -e "timed out" -e "Input/output error" -e "not connected" /root/log || { cat /root/log && fail "$what"; }
    done
}

remote_answers() { [[ $(cat $POOL/there/file) == remote ]] && canopy status $POOL | grep '^ */disks/remote .* ok$'; }

# Everything is as before: new names can be made, and it is known whether names exist.
remote_is_back() {
    until_true remote_answers
    until_true touch $POOL/here/unknown
    rm $POOL/here/unknown
    [[ ! -e $POOL/there/nothing ]]
    work
}

# all_unmounted PATH...
all_unmounted() {
    local path
    for path in "$@"; do ! mountpoint -q "$path" || umount "$path" || return 1; done
}

# Ends the pool and the disks. Nothing may use them, and no process may be left.
finish() {
    local process pid left=0
    ! mountpoint -q $POOL || canopy umount $POOL
    # The daemon ends a moment after the pool is unmounted.
    until_true all_unmounted /disks/* $PLAIN
    sleep 1
    for process in /proc/[0-9]*; do
        pid=${process#/proc/}
        if [[ $pid != 1 && $pid != "$$" && -e $process/exe ]]; then
            printf 'left behind: process %s %s\n' "$pid" "$(tr '\0' ' ' <"$process/cmdline")"
            left=1
        fi
    done
    ((left == 0)) || fail "processes are left"
}
