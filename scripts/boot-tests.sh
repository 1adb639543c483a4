#!/usr/bin/env bash
# Boots a machine with systemd whose pool has lost a disk: Debian, in a virtual machine. Once the pool is mounted by fstab, and once
# by its unit. Each time the machine
#   1. boots with both disks; `canopy init` makes a pool of them, and `canopy doctor --fix` does the rest
#   2. boots without the second disk: it has to come up with its pool, and `canopy status` has to name what is missing;
#      then the disk is plugged in, and has to join the pool
#   3. boots with both disks again: what was written without the second is there beside what was on it
#   boot-tests.sh [fstab|unit ...]     without a name, both
# Environment variables, with their defaults:
#   CANOPY_BIN         the program (a release is built)
#   BARE_SYSTEMS       a directory that keeps the system for the next run (it is removed at the end)
#   BOOT_TEST_ACCEL    tcg; `kvm` where that works
#   BOOT_TEST_SECONDS  the time that each boot may take (1200)
# Needs root, debootstrap, qemu, the mirror of Debian if there is no system yet, 4 GiB of disk, and ten minutes without KVM.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/bare-root.sh
. scripts/bare-root.sh

readonly PACKAGES=systemd-sysv,udev,dbus,kmod,mount,util-linux,e2fsprogs,fuse3,initramfs-tools,linux-image-amd64

say() { printf 'boot-tests: %s\n' "$*"; }

fail() {
    printf 'boot-tests: %s\n' "$*" >&2
    exit 1
}

ways=("$@")
((${#ways[@]} > 0)) || ways=(fstab unit)
for way in "${ways[@]}"; do
    case $way in fstab | unit) ;; *) fail "unknown: $way (fstab, unit)" ;; esac
done
((EUID == 0)) || fail "needs root, to make the system"
for program in debootstrap unshare qemu-system-x86_64 mkfs.ext4; do
    command -v "$program" >/dev/null || fail "needs $program (apt-get install debootstrap qemu-system-x86 e2fsprogs)"
done

work=$(mktemp -d "${TMPDIR:-/var/tmp}/canopy-boot-XXXXXX")
machine=
# shellcheck disable=SC2317 # the trap calls it
cleanup() {
    [[ -z $machine ]] || kill "$machine" 2>/dev/null || true
    rm -rf --one-file-system "$work"
}
trap cleanup EXIT
bare=$work
[[ -z ${BARE_SYSTEMS:-} ]] || bare=$(realpath -m "$BARE_SYSTEMS")
mkdir -p "$bare"
system=$bare/boot-debian-13

# What runs in the machine, once it is up; the kernel's command line says what.
# shellcheck disable=SC2317 # it runs there
guest() {
    local step way
    step=$(sed -n 's/.*canopy.step=\([a-z]*\).*/\1/p' /proc/cmdline) way=$(sed -n 's/.*canopy.way=\([a-z]*\).*/\1/p' /proc/cmdline)
    tell() { printf '%s\n' "$*" >/dev/ttyS1; }
    # expect TEXT COMMAND...: the output of the command contains the text.
    expect() {
        local text=$1 output
        shift
        output=$("$@" 2>&1) || true
        [[ $output == *"$text"* ]] || { tell "$*: no '$text' in" && tell "$output" && return 1; }
        tell "  $*: $text"
    }
    # within SECONDS COMMAND...: the command succeeds by then.
    within() {
        local end=$((SECONDS + $1))
        shift
        until "$@" >/dev/null 2>&1; do
            ((SECONDS < end)) || { tell "$*: not within the time" && return 1; }
            sleep 1
        done
        tell "  $*"
    }
    tell "step $step, up after $(cut -d. -f1 /proc/uptime) s: $(systemctl is-system-running || true)"
    tell "  failed units: $(systemctl --failed --no-legend --plain | awk '{ print $1 }' | paste -sd' ')"
    case $step in
    set)
        mkdir -p /mnt/disk1 /mnt/disk2
        # As an installer writes them: without nofail.
        printf 'LABEL=disk%d /mnt/disk%d ext4 defaults 0 2\n' 1 1 2 2 >>/etc/fstab
        systemctl daemon-reload
        mount -a
        expect "written" canopy init media -b /mnt/disk1 -b /mnt/disk2 --way spread --boot "$way" --yes || return
        # What it says is next.
        systemctl daemon-reload
        if [[ $way == unit ]]; then systemctl enable --now canopy@media; else mount /mnt/media; fi
        within 60 mountpoint /mnt/media || return
        canopy doctor --fix --yes >/root/doctor 2>&1 || true
        tell "$(grep -v '^#' /etc/fstab)"
        echo "film one" >/mnt/disk1/one
        echo "film two" >/mnt/disk2/two
        ;;
    dead)
        within 300 mountpoint /mnt/media || return
        expect "film one" cat /mnt/media/one || return
        expect "No such file" cat /mnt/media/two || return
        for name in three four five six; do echo "film $name" >"/mnt/media/$name" || return; done
        for name in three four five six; do expect "film $name" cat "/mnt/disk1/$name" || return; done
        # An emulated machine may take longer to answer than `status` waits.
        within 300 bash -c '! canopy status media 2>&1 | grep -q "does not answer"' || return
        expect "/mnt/disk2" canopy status media || return
        ! canopy status media >/root/status || { tell "status says that nothing is wrong" && return 1; }
        tell "$(cat /root/status)"
        [[ -z $(ls -A /mnt/disk2) ]] || { tell "something was written below the mountpoint of the disk" && return 1; }
        tell "@ plug"
        within 120 test -e /dev/disk/by-label/disk2 || return
        # What systemd has given up is mounted by hand, as the owner of the disk would.
        sleep 10
        if mountpoint -q /mnt/disk2; then tell "  mounted by systemd"; else tell "  mounted by hand" && mount /mnt/disk2 || return; fi
        within 120 cat /mnt/media/two || return
        tell "$(canopy status media)"
        expect "film two" cat /mnt/media/two || return
        ;;
    both)
        within 300 mountpoint /mnt/media || return
        for name in one two three four five six; do expect "film $name" cat "/mnt/media/$name" || return; done
        expect "/mnt/disk2  RW" canopy status media || return
        canopy status media >/root/status || { tell "$(cat /root/status)" && return 1; }
        ;;
    esac
}

if [[ ! -d $system ]]; then
    say "making a Debian 13 with a kernel"
    make_root "$system" debian-13 "$PACKAGES" >"$bare/boot-debian-13.log" 2>&1 || {
        tail -n 5 "$bare/boot-debian-13.log" >&2
        fail "debootstrap could not make it"
    }
fi
program=${CANOPY_BIN:-}
if [[ -z $program ]]; then
    # shellcheck source=scripts/rust.sh
    . scripts/rust.sh
    rust_on_path || fail "there is no cargo $(rust_needed) or later (scripts/setup.sh test)"
    cargo build --quiet --release -p canopy
    program=target/release/canopy
fi

# The system with the program, and with what runs in it.
cp -a "$system" "$work/root"
install -D "$program" "$work/root/usr/bin/canopy"
for name in mount.canopy mount.fuse.canopy; do ln -sf ../bin/canopy "$work/root/usr/sbin/$name"; done
install -D -m 644 -t "$work/root/usr/lib/systemd/system" 'dist/canopy@.service'
echo 'LABEL=system / ext4 errors=remount-ro 0 1' >"$work/root/etc/fstab"
{
    declare -f guest
    printf 'guest && echo "@ good" >/dev/ttyS1 || echo "@ bad" >/dev/ttyS1\nsystemctl poweroff\n'
} >"$work/root/usr/local/sbin/boot-test"
cat >"$work/root/etc/systemd/system/boot-test.service" <<END
[Unit]
After=getty.target
[Service]
Type=idle
ExecStart=/bin/bash /usr/local/sbin/boot-test
[Install]
WantedBy=multi-user.target
END
ln -s ../boot-test.service "$work/root/etc/systemd/system/multi-user.target.wants/boot-test.service"
kernel=$(find "$work/root/boot" -name 'vmlinuz-*' | sort -V | tail -n 1)
initrd=${kernel/vmlinuz/initrd.img}
[[ -e $kernel && -e $initrd ]] || fail "the system has no kernel, or no initrd"
cp "$kernel" "$work/vmlinuz"
cp "$initrd" "$work/initrd"
truncate -s 4G "$work/system"
mkfs.ext4 -q -L system -d "$work/root" "$work/system"
rm -rf --one-file-system "$work/root"

# boot STEP WAY DISKS: boots the machine with so many disks, until it is switched off. The second is plugged in when it asks.
boot() {
    local step=$1 way=$2 disk seconds=0 plugged=no drives=()
    for ((disk = 1; disk <= 2; disk++)); do
        drives+=(-drive "file=$work/disk$disk,if=none,id=disk$disk,format=raw")
        ((disk > $3)) || drives+=(-device "virtio-blk-pci,drive=disk$disk")
    done
    : >"$work/told"
    rm -f "$work/monitor"
    mkfifo "$work/monitor"
    exec {monitor}<>"$work/monitor"
    qemu-system-x86_64 -accel "${BOOT_TEST_ACCEL:-tcg}" -cpu max -smp 2 -m 1G -nodefaults -no-reboot -display none \
        -kernel "$work/vmlinuz" -initrd "$work/initrd" \
        -append "root=LABEL=system console=ttyS0 panic=-1 canopy.step=$step canopy.way=$way" \
        -drive "file=$work/$way,if=virtio,format=raw" "${drives[@]}" \
        -serial "file:$work/console" -serial "file:$work/told" -monitor stdio <"$work/monitor" >/dev/null &
    machine=$!
    while kill -0 "$machine" 2>/dev/null; do
        if [[ $plugged == no ]] && grep -q '^@ plug' "$work/told"; then
            echo "device_add virtio-blk-pci,drive=disk2,id=plugged" >&"$monitor"
            plugged=yes
        fi
        ((seconds++ < ${BOOT_TEST_SECONDS:-1200})) || kill "$machine"
        sleep 1
    done
    wait "$machine" || true
    machine=
    exec {monitor}>&-
    tr -d '\r' <"$work/told" | grep -v '^@ plug' | sed 's/^/    /'
    grep -q '^@ good' "$work/told" || {
        tail -n 30 "$work/console"
        return 1
    }
}

failed=()
for way in "${ways[@]}"; do
    say "a pool that is mounted by $way"
    cp --sparse=always "$work/system" "$work/$way"
    for disk in 1 2; do
        rm -f "$work/disk$disk"
        truncate -s 256M "$work/disk$disk"
        mkfs.ext4 -q -L "disk$disk" "$work/disk$disk"
    done
    for step in "set 2" "dead 1" "both 2"; do
        # shellcheck disable=SC2086 # the step and its disks
        set -- $step
        boot "$1" "$way" "$2" || {
            failed+=("$way: $1")
            break
        }
    done
    rm "$work/$way"
done
((${#failed[@]} == 0)) || fail "failed: ${failed[*]}"
say "a machine whose pool has lost a disk boots with the pool, and the disk joins when it comes"
