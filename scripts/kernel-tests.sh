#!/usr/bin/env bash
# Runs test programs on Debian's kernels in a virtual machine, for what the kernel at hand lacks: device mapper (disks that
# lag, hang or fail), the kernel's NFS server, other filesystems, older and newer kernels.
#   kernel-tests.sh KERNEL [NAME [FILTER]]
#     KERNEL   6.1 (bookworm), 6.12 (trixie), another version, such as 7.3, of those that trixie-backports has; sid, experimental;
#              or all: 6.1, 6.12, 7.3 and sid
#     NAME     a test program of crates/canopy (scripts/test.sh --list); `real_kernels` by default, whose tests need such a
#              machine and are ignored elsewhere
#     FILTER   only the tests whose names contain it
#   kernel-tests.sh KERNEL --filesystems [tmpfs|xfs|btrfs|ext4|mixed ...]
#     pjdfstest, fsx, the random changes and the mounted model over branches on each of these, in short: an emulated machine is
#     slow, and CANOPY_FSX_OPS, CANOPY_COHERENCE_CHANGES and CANOPY_MODEL_SEQUENCES say how much is run
#   kernel-tests.sh KERNEL --run SCRIPT
#     runs a shell script there instead, to look into something
#   kernel-tests.sh KERNEL --power-cuts CUTS [FILESYSTEM,...]
#     cuts the machine's power so often while it writes and moves files, and compares what was acknowledged; the disks are
#     ext4,xfs,btrfs by default. It boots once: each life after a cut begins with the memory of a machine that has just booted
# It downloads kernels and the programs of the machine from Debian's mirror into target/kernels, where they stay; installs
# qemu if it is missing; builds the program and its tests. The machine needs no KVM. Environment variables: docs/testing.md.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly CACHE=target/kernels
readonly MIRROR=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
readonly KEYS=/usr/share/keyrings/debian-archive-keyring.gpg
# The C library there has to be as new as the one that the tests were linked with, whatever the kernel.
readonly USERLAND=trixie
readonly PROGRAMS=(base-files base-passwd bash coreutils util-linux mount kmod procps grep sed gawk findutils hostname strace
    attr acl psmisc dmsetup e2fsprogs xfsprogs btrfs-progs dosfstools exfatprogs ntfs-3g f2fs-tools iproute2 fuse3
    nfs-kernel-server nfs-common rpcbind ksmbd-tools cifs-utils python3-minimal debianutils)
# Has many kernels: what Debian's stable release could be run with since it came out.
readonly BACKPORTS=trixie-backports
# What `all` means.
readonly KERNELS=(6.1 6.12 7.3 sid)
# What can be below the branches (CANOPY_TEST_BRANCHES).
readonly FILESYSTEMS=(tmpfs xfs btrfs ext4 mixed)
# The filesystems of the machine whose power is cut.
readonly POWER_DISKS=ext4,xfs,btrfs
# Directories of kernel modules.
readonly MODULES=(fs lib crypto arch net block drivers/md drivers/block drivers/virtio drivers/scsi drivers/nvdimm)

say() { printf 'kernel-tests: %s\n' "$*"; }

fail() {
    printf 'kernel-tests: %s\n' "$*" >&2
    exit 1
}

# suite_of KERNEL: prints the Debian suite that has it.
suite_of() {
    case $1 in
    6.1) echo bookworm ;;
    6.12) echo trixie ;;
    sid | experimental) echo "$1" ;;
    [0-9]*.[0-9]*) echo "$BACKPORTS" ;;
    *) fail "unknown kernel: $1 (6.1, 6.12, another version such as 7.3, sid, experimental, all)" ;;
    esac
}

# image_of KERNEL: prints the name of its newest package. `apt` is set up for its suite, of which it is the newest kernel, unless
# that has several.
image_of() {
    local name
    if [[ $(suite_of "$1") == "$BACKPORTS" ]]; then
        for name in $(apt-cache "${apt[@]}" pkgnames "linux-image-$1." | grep -E '^linux-image-[0-9.]+\+deb[0-9]+-amd64$' | sort -rV); do
            # The mirror forgets the modules of a kernel before its image.
            apt-cache "${apt[@]}" depends "$name" | grep -qF '<linux-modules-' || { echo "$name" && break; }
        done
    else
        apt-cache "${apt[@]}" depends linux-image-amd64 | sed -n 's/^ *Depends: \(linux-image-.*\)/\1/p' | head -n 1
    fi
}

# suite SUITE: makes the array `apt` the options with which apt uses this suite alone, and none of the machine's packages.
suite() {
    local dir
    dir=$(realpath -m "$CACHE/apt-$1")
    apt=(-q -o Dir::Etc::sourcelist="$dir/sources" -o Dir::Etc::sourceparts=/dev/null -o Dir::Etc::preferencesparts=/dev/null
        -o Dir::State="$dir" -o Dir::State::status="$dir/status" -o Dir::Cache="$dir" -o APT::Sandbox::User=root
        -o APT::Architecture=amd64 -o APT::Architectures=amd64 -o Acquire::Languages=none)
    [[ ! -e $dir/updated || $(<"$dir/updated") != "$MIRROR" ]] || return 0
    mkdir -p "$dir/lists/partial" "$dir/archives/partial"
    : >"$dir/status"
    # A snapshot's lists are old.
    echo "deb [signed-by=$KEYS check-valid-until=no] $MIRROR $1 main" >"$dir/sources"
    apt-get "${apt[@]}" -o APT::Update::Error-Mode=any update >"$dir/log" 2>&1 || fail "no package lists of $1, see $dir/log"
    echo "$MIRROR" >"$dir/updated"
}

# archive DIRECTORY FILE: packs a directory as part of an initial root filesystem. The kernel accepts several in a row.
archive() {
    (cd "$1" && find . -xdev -print0 | cpio --null --create --format=newc --owner=0:0 --quiet) >"$2.new"
    mv "$2.new" "$2"
}

# Installs qemu and what unpacks packages, where they are missing.
tools() {
    local missing=()
    [[ $(uname -m) == x86_64 ]] || fail "the virtual machine is x86_64, and this machine is $(uname -m)"
    command -v apt-get >/dev/null || fail "needs apt, to get Debian's kernels and programs"
    command -v qemu-system-x86_64 >/dev/null || missing+=(qemu-system-x86)
    command -v cpio >/dev/null || missing+=(cpio)
    command -v depmod >/dev/null || missing+=(kmod)
    [[ -e $KEYS ]] || missing+=(debian-archive-keyring)
    ((${#missing[@]} > 0)) || return 0
    ((EUID == 0)) || fail "packages are missing: run 'apt-get install ${missing[*]}' as root"
    say "installing ${missing[*]}"
    apt-get -q update >/dev/null
    DEBIAN_FRONTEND=noninteractive apt-get -q -y install --no-install-recommends "${missing[@]}" >/dev/null
}

# Packs the programs of the machine. Packages are unpacked, not configured: no script of theirs runs.
userland() {
    local root=$CACHE/root package
    [[ ! -e $CACHE/userland.list || $(<"$CACHE/userland.list") != "${PROGRAMS[*]}" ]] || return 0
    say "programs of $USERLAND"
    suite "$USERLAND"
    apt-get "${apt[@]}" -y --download-only --no-install-recommends install "${PROGRAMS[@]}" >"$CACHE/userland.log" 2>&1 ||
        fail "cannot download them, see $CACHE/userland.log"
    rm -rf "$root"
    mkdir -p "$root"
    # First, because it has the links from /bin to /usr/bin.
    for package in "$CACHE/apt-$USERLAND"/archives/base-files_*.deb "$CACHE/apt-$USERLAND"/archives/*.deb; do
        dpkg-deb --fsys-tarfile "$package" | tar -x -C "$root" --keep-directory-symlink
    done
    rm -rf "$root"/usr/share/{doc,man,locale,info,zoneinfo,bash-completion} "$CACHE/apt-$USERLAND"/archives/*.deb
    cp "$root/usr/share/base-passwd/passwd.master" "$root/etc/passwd"
    cp "$root/usr/share/base-passwd/group.master" "$root/etc/group"
    ln -sf gawk "$root/usr/bin/awk"
    ln -sf bash "$root/usr/bin/sh" # the scripts among the programs, which(1) for one, are its
    ln -sf which.debianutils "$root/usr/bin/which"
    ln -sf ../proc/self/mounts "$root/etc/mtab"
    mkdir -p "$root"/{proc,sys,dev,run,tmp,root}
    archive "$root" "$CACHE/userland.cpio"
    rm -rf "$root"
    echo "${PROGRAMS[*]}" >"$CACHE/userland.list"
}

# kernel KERNEL: its image, and its modules packed.
kernel() {
    local dir=$CACHE/$1 names version part root
    [[ ! -e $dir/modules.list || $(<"$dir/modules.list") != "${MODULES[*]}" ]] || return 0
    suite "$(suite_of "$1")"
    rm -rf "$dir"
    mkdir -p "$dir/unpacked"
    # With the packages that it is divided into.
    names=$(image_of "$1")
    [[ -n $names ]] || fail "$(suite_of "$1") has no kernel $1 (any more: DEBIAN_MIRROR may be a snapshot of it)"
    names+=" $(apt-cache "${apt[@]}" depends "$names" | sed -nE 's/^ *Depends: (linux-(base|binary|modules)-[0-9].*)/\1/p' | tr '\n' ' ')"
    say "kernel $1: $names"
    # shellcheck disable=SC2086 # several names
    (cd "$dir" && apt-get "${apt[@]}" download $names >log 2>&1) || fail "cannot download it, see $dir/log"
    for part in "$dir"/*.deb; do dpkg-deb -x "$part" "$dir/unpacked"; done
    mv "$(find "$dir/unpacked" -type f -name 'vmlinuz*')" "$dir/vmlinuz"
    version=$(basename "$(find "$dir/unpacked" -type d -path '*/lib/modules/*' -prune)")
    if [[ -d $dir/unpacked/lib ]]; then
        mkdir -p "$dir/unpacked/usr/lib"
        mv "$dir/unpacked/lib/modules" "$dir/unpacked/usr/lib/modules"
    fi
    root=usr/lib/modules/$version
    for part in "${MODULES[@]}"; do
        [[ -d $dir/unpacked/$root/kernel/$part ]] || continue
        mkdir -p "$dir/root/$root/kernel/$part"
        cp -r "$dir/unpacked/$root/kernel/$part/." "$dir/root/$root/kernel/$part/"
    done
    cp "$dir/unpacked/$root"/modules.* "$dir/root/$root/"
    # The links of a merged /usr would be in the way of the programs' own.
    ln -s usr/lib "$dir/root/lib"
    depmod -b "$dir/root" "$version"
    rm "$dir/root/lib"
    archive "$dir/root" "$dir/modules.cpio"
    rm -rf "$dir/root" "$dir/unpacked" "$dir"/*.deb
    echo "${MODULES[*]}" >"$dir/modules.list"
}

# Prints the environment of the tests and the command that runs test programs there: with branches on each of these filesystems.
filesystem_tests() {
    (($# > 0)) || set -- "${FILESYSTEMS[@]}"
    for filesystem; do
        [[ " ${FILESYSTEMS[*]} " == *" $filesystem "* ]] || fail "unknown filesystem: $filesystem (${FILESYSTEMS[*]})"
    done
    printf 'export %s\n' "CANOPY_FSX_OPS=${CANOPY_FSX_OPS:-200}" "CANOPY_MODEL_SEQUENCES=${CANOPY_MODEL_SEQUENCES:-2}" \
        "CANOPY_COHERENCE_CHANGES=${CANOPY_COHERENCE_CHANGES:-1000}"
    cat <<EOF
failed=()
for filesystem in $*; do
    export CANOPY_TEST_BRANCHES=\$filesystem
    # 65,000 links take an emulated machine a quarter of an hour.
    for tests in "suites pjdfstest fsx --skip link_count_limit" "coherence random_changes" mounted_model; do
        set -- \$tests
        echo "--- branches on \$filesystem: \$tests"
        guest-\$1 --nocapture --test-threads=1 "\${@:2}" || failed+=("\$filesystem: \$1")
    done
done
echo "--- failed: \${failed[*]:-none}"
((\${#failed[@]} == 0))
EOF
}

# Prints the path of a test program of crates/canopy, built.
test_program() {
    local built
    built=$(cargo test -p canopy --test "$1" --no-run 2>&1) || { printf '%s\n' "$built" >&2 && fail "cannot build the tests"; }
    sed -n 's/^ *Executable .*(\(.*\))$/\1/p' <<<"$built"
}

# pack NAME [FILTER]: what changes from run to run: the program, its tests, and the first process.
pack() {
    local root=$work/root program=${CANOPY_BIN:-} programs tests tool name arguments=(--nocapture --test-threads=1)
    mkdir -p "$root/usr/bin"
    if [[ -z $program ]]; then
        cargo build --quiet --release -p canopy
        program=target/release/canopy
    fi
    strip -o "$root/usr/bin/canopy" "$program"
    cp scripts/kernel-tests/init "$root/init"
    case $1 in
    --run) cp "$2" "$root/run-tests" ;;
    --power-cuts)
        cp scripts/kernel-tests/power_guest.py "$root/"
        # Without the disks' driver until its memory has been kept.
        cat >"$root/run-tests" <<EOF
modprobe -a virtio_pci ext4 xfs btrfs
until read -r -t 1 seed now; do echo '@ asleep'; done
date -s "@\$now"
modprobe virtio_blk
disks=(/dev/vd?)
tr -d '\0' <"\${disks[-1]}" >/story
exec python3 /power_guest.py ${3:-$POWER_DISKS} /story "\$seed"
EOF
        ;;
    esac
    if [[ $1 == --run || $1 == --power-cuts ]]; then
        archive "$root" "$work/run.cpio"
        return
    fi
    programs=("$1")
    [[ $1 != --filesystems ]] || programs=(suites coherence mounted_model)
    for name in "${programs[@]}"; do
        tests=$(test_program "$name")
        strip -o "$root/usr/bin/guest-$name" "$tests"
    done
    for tool in target/tools/bin/{pjdfstest,fsx}; do [[ ! -x $tool ]] || cp "$tool" "$root/usr/bin/"; done
    [[ $1 != real_kernels ]] || arguments+=(--ignored)
    {
        for name in $(compgen -e CANOPY_); do
            [[ $name == CANOPY_BIN || $name == CANOPY_TOOLS ]] || printf 'export %s=%q\n' "$name" "${!name}"
        done
        if [[ $1 == --filesystems ]]; then
            filesystem_tests "${@:2}"
        else
            printf 'exec guest-%s %s\n' "$1" "$(printf '%q ' "${arguments[@]}" "${@:2}")"
        fi
    } >"$root/run-tests"
    archive "$root" "$work/run.cpio"
}

# machine KERNEL: packs its root filesystem, and makes the array `qemu` the command that boots it, but for its console.
machine() {
    cat "$CACHE/userland.cpio" "$CACHE/$1/modules.cpio" "$work/run.cpio" >"$work/initrd"
    qemu=(qemu-system-x86_64 -accel "${KERNEL_TEST_ACCEL:-tcg}" -cpu max -smp "${KERNEL_TEST_CPUS:-2}" -m "${KERNEL_TEST_MEMORY:-4G}"
        -kernel "$CACHE/$1/vmlinuz" -append "console=ttyS0 quiet panic=-1 rdinit=/init" -nographic -nodefaults -no-reboot)
}

# boot KERNEL: runs the machine until it ends, and returns the status of its tests.
boot() {
    local status
    machine "$1"
    # A file and not a pipe, so that qemu is the process that this script starts and waits for.
    : >"$work/console"
    timeout --kill-after=10 "${KERNEL_TEST_SECONDS:-3600}" "${qemu[@]}" -initrd "$work/initrd" -serial "file:$work/console" \
        </dev/null &
    child=$!
    tail -n +1 -s 0.2 -f --pid="$child" "$work/console" | sed -u -n '/=== Linux/,/^=== exit/{s/.*=== Linux/=== Linux/;s/\r$//;p}' || true
    wait "$child" || true
    child=
    status=$(tr -d '\r' <"$work/console" | sed -n 's/^=== exit \([0-9]*\)$/\1/p')
    [[ -n $status ]] || say "Linux $1: the machine ended before its tests did"
    return "${status:-1}"
}

# power_cuts KERNEL CUTS [FILESYSTEM,...]
power_cuts() {
    local status=0
    machine "$1"
    mkdir "$work/power"
    mv "$work/initrd" "$work/power/"
    python3 scripts/kernel-tests/power_cuts.py "$2" "$work/power" "${3:-$POWER_DISKS}" "${qemu[@]}" &
    child=$!
    wait "$child" || status=$?
    child=
    rm -r "$work/power"
    return "$status"
}

# run KERNEL NAME|--run|--power-cuts [ARGUMENT ...]
run() {
    case $2 in
    --power-cuts) power_cuts "$1" "${@:3}" ;;
    *) boot "$1" ;;
    esac
}

# shellcheck disable=SC2317 # the trap calls it
cleanup() {
    [[ -z $child ]] || kill "$child" 2>/dev/null || true
    rm -rf "$work"
}

(($# >= 1)) || fail "which kernel? (6.1, 6.12, another version such as 7.3, sid, experimental, all)"
kernels=("$1")
[[ $1 != all ]] || kernels=("${KERNELS[@]}")
shift
for kernel in "${kernels[@]}"; do suite_of "$kernel" >/dev/null; done
(($# > 0)) || set -- real_kernels
mkdir -p "$CACHE"
work=$(mktemp -d "${TMPDIR:-/tmp}/canopy-kernels-XXXXXX")
child=''
qemu=()
trap cleanup EXIT
tools
userland
for kernel in "${kernels[@]}"; do kernel "$kernel"; done
# shellcheck source=scripts/rust.sh
. scripts/rust.sh
rust_on_path || fail "there is no cargo $(rust_needed) or later (scripts/setup.sh test)"
pack "$@"
failed=0
for kernel in "${kernels[@]}"; do
    started=$SECONDS
    if run "$kernel" "$@"; then
        say "Linux $kernel: $1 ok ($((SECONDS - started)) s)"
    else
        say "Linux $kernel: $1 FAILED ($((SECONDS - started)) s)"
        failed=1
    fi
done
exit "$failed"
