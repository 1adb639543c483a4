#!/usr/bin/env bash
# Tries the packages of scripts/package.sh on bare systems of Debian 12 and Debian 13: the quick start of the manual, word for word;
# install from a repository for apt (scripts/apt-repository.sh), install, mount by fstab, upgrade, replace mergerfs, remove and purge. Then the static program in an empty root, and the container image.
#   package-tests.sh [debian-12|debian-13|static|image ...]    without a name, all four
# Environment variables, with their defaults:
#   BUILD, STATIC_BUILD  built programs, as for package.sh (it builds a release)
#   BARE_SYSTEMS         a directory that keeps the bare systems for the next run (they are removed at the end)
# Needs root, debootstrap, apt-utils, gpg and lintian, buildah for the image, the mirrors of Debian if there is no bare system yet, and 2 GiB of
# disk.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/bare-root.sh
. scripts/bare-root.sh

fail() {
    printf 'package-tests: %s\n' "$*" >&2
    exit 1
}

whats=("$@")
((${#whats[@]} > 0)) || whats=(debian-12 debian-13 static image)
for what in "${whats[@]}"; do
    case $what in debian-12 | debian-13 | static | image) ;; *) fail "unknown: $what (debian-12, debian-13, static, image)" ;; esac
done
((EUID == 0)) || fail "needs root, to make the systems and to mount in them"
for program in apt-ftparchive debootstrap gpg lintian unshare; do
    command -v "$program" >/dev/null || fail "needs $program (apt-get install $program)"
done

work=$(mktemp -d "${TMPDIR:-/var/tmp}/canopy-packages-XXXXXX")
trap 'rm -rf --one-file-system "$work"' EXIT
bare=$work/bare
[[ -z ${BARE_SYSTEMS:-} ]] || bare=$(realpath -m "$BARE_SYSTEMS")
mkdir -p "$bare"

# inside debian-N: installs, uses and removes the packages. Every command must succeed.
# inside quick-start: runs the commands of the manual's quick start on a system with three disks.
# inside units: installs all packages, and has those programs read their files that use them: systemd, Cockpit, needrestart's Perl.
# shellcheck disable=SC2317 # another shell calls this function
inside() {
    local pid old new output disk tries from unit link screen package=/root/packages
    export DEBIAN_FRONTEND=noninteractive
    if [[ $1 == quick-start ]]; then
        for disk in 1 2 3; do
            truncate -s 8G "/root/image$disk"
            mkfs.ext4 -q "/root/image$disk"
            mkdir "/mnt/disk$disk"
            echo "/root/image$disk /mnt/disk$disk ext4 loop,nofail 0 2" >>/etc/fstab
        done
        mount -a
        cp /etc/fstab /root/fstab
        cd "$package/1"
        bash -eux /root/quick-start >/root/log 2>&1 || { cat /root/log && exit 1; }
        for output in "Setting up canopy" "To be written" "fuse.canopy" "/mnt/disk3  RW" "add x-systemd.after=/mnt/disk3"; do
            grep -qF -- "$output" /root/log || { printf 'no "%s" in\n%s\n' "$output" "$(</root/log)" && exit 1; }
        done
        # It has all been taken back.
        [[ -z $(findmnt -rno TARGET -t fuse.canopy) ]]
        diff /root/fstab /etc/fstab
        [[ $(cat /mnt/disk*/films/film.mkv) == "a film" && $(echo /mnt/*) == "/mnt/disk1 /mnt/disk2 /mnt/disk3" ]]
        # What it keeps is a copy of the file, as it says.
        output=$(echo /etc/canopy/*)
        [[ $output == /etc/canopy/media.toml.canopy-[0-9]* && $(<"$output") == *"/mnt/disk3"* ]]
        grep -qxF "kept: $output" /root/log
        umount /mnt/disk1 /mnt/disk2 /mnt/disk3
        return
    fi
    # expect TEXT COMMAND...: runs the command, whose output must contain the text.
    expect() {
        local text=$1
        shift
        output=$("$@" 2>&1) || { printf '%s: FAILED\n%s\n' "$*" "$output" && exit 1; }
        [[ $output == *"$text"* ]] || { printf '%s: no "%s" in\n%s\n' "$*" "$text" "$output" && exit 1; }
    }
    # Every file but those that package managers and their triggers keep about themselves.
    files() {
        find / -xdev \( -path /root -o -path /proc -o -path /run -o -path /sys -o -path /var/lib/dpkg -o -path /var/lib/apt -o -path /var/cache \
            -o -path /var/log -o -path /tmp -o -path /etc/ld.so.cache \) -prune -o -print | sort
    }
    step() { printf '  %s\n' "$*"; }
    apt() { apt-get -q -y --no-install-recommends "$@"; }

    if [[ $1 == units ]]; then
        apt update >/dev/null
        apt install "$package"/1/{canopy,canopy-web,cockpit-canopy,canopy-mergerfs}_*.deb >/root/log 2>&1 || { cat /root/log && exit 1; }
        step "units"
        for unit in /usr/lib/systemd/system/canopy*.service; do
            link=/root/$(basename "${unit/@/@media}")
            ln -s "$unit" "$link"
            # systemd does not run here, so it only reads the unit. It tells what it does not understand, and goes on.
            output=$(systemd-analyze --man=no verify "$link" 2>&1) || output+=" (failed)"
            [[ -z $output ]] || { printf '%s: %s\n' "$unit" "$output" && exit 1; }
        done
        step "needrestart"
        # As needrestart reads it.
        perl -we 'our %nrconf; eval do { local (@ARGV, $/) = shift; <> }; die $@ if $@;
            my ($rule) = keys %{$nrconf{override_rc}};
            exit !("canopy\@media.service" =~ /$rule/ && "canopy-web.service" !~ /$rule/);' /etc/needrestart/conf.d/canopy.conf
        step "Cockpit"
        expect "/usr/share/cockpit/canopy" cockpit-bridge --packages
        # It shows no page of a program that is not there.
        mv /usr/bin/canopy-web /root/
        ! cockpit-bridge --packages | grep -q canopy || exit 1
        mv /root/canopy-web /usr/bin/
        # What the page starts.
        install -d -m 700 /run/canopy-cockpit
        bash -c "exec $(sed -n 's/^ExecStart=//p' /usr/lib/systemd/system/canopy-cockpit.service)" &
        screen=$!
        for ((tries = 0; tries < 50; tries++)); do [[ ! -S /run/canopy-cockpit/socket ]] || break && sleep 0.1; done
        [[ $(stat -c %a /run/canopy-cockpit/socket) == 600 ]]
        kill "$screen"
        wait "$screen"
        return
    fi

    files >/root/before
    step "install from a repository"
    mkdir -p /root/sources
    printf '%s\n' "Types: deb" "URIs: file:$package/apt" "Suites: stable" "Components: main" "Signed-By: $package/apt/canopy.asc" \
        >/root/sources/canopy.sources
    from=(-o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts=/root/sources)
    apt "${from[@]}" update
    expect "Setting up canopy" apt "${from[@]}" install canopy-mergerfs
    expect "-2" dpkg-query -W canopy
    # Without its key, nothing is installed from it.
    rm "$package/apt/canopy.asc"
    ! apt "${from[@]}" -o APT::Update::Error-Mode=any update >/dev/null 2>&1 || exit 1
    apt purge canopy canopy-mergerfs >/dev/null 2>&1
    apt update >/dev/null

    step "install"
    expect "Setting up canopy" apt install "$package"/1/canopy_*.deb
    expect "canopy 0." canopy --version
    expect "fuse" cat /usr/lib/modprobe.d/canopy.conf
    bash -n /usr/share/bash-completion/completions/canopy
    [[ -d /etc/canopy && -x /usr/sbin/mount.canopy && -e /usr/share/man/man8/canopy.8.gz ]]
    [[ ! -e /usr/bin/mergerfs ]]

    step "mount by fstab"
    mkdir -p /mnt/disk1 /mnt/disk2
    cp /etc/fstab /root/fstab
    printf 'disk%d /mnt/disk%d tmpfs size=8g 0 0\n' 1 1 2 2 >/etc/fstab
    mount -a
    expect "mount /mnt/media" canopy init media -b /mnt/disk1 -b /mnt/disk2 --boot fstab --yes
    mount -a
    expect fuse.canopy findmnt -n -o FSTYPE /mnt/media
    echo film >/mnt/media/film
    [[ $(cat /mnt/disk[12]/film) == film ]]
    expect /mnt/disk2 canopy status
    # What a restart of the machine does.
    canopy umount media # waits until the daemon has let the disks go
    umount /mnt/disk1 /mnt/disk2
    mount -a
    expect fuse.canopy findmnt -n -o FSTYPE /mnt/media
    echo film >/mnt/media/film

    step "mount by unit"
    # What its unit runs ends with a pool that has no tiers, and moves files of one that has.
    [[ $(sed -n 's/^ExecStart=//p' /usr/lib/systemd/system/canopy-tier@.service) == "/usr/bin/canopy tier --quiet %i" ]]
    ! output=$(canopy tier --quiet media 2>&1) || exit 1
    [[ $output == *"has neither tiers nor rules"* ]] || { printf '%s\n' "$output" && exit 1; }
    canopy set media "rules=film=/mnt/disk1"
    mv /mnt/disk1/film /mnt/disk2/film 2>/dev/null || true
    canopy tier media --once --eager
    [[ $(cat /mnt/disk1/film /mnt/media/film) == $'film\nfilm' && ! -e /mnt/disk2/film ]]
    expect "mover" canopy status
    canopy set media rules=

    step "the screen in the browser"
    output=$(canopy web 2>&1) && exit 1
    [[ $output == *"apt install canopy-web"* ]] || { printf '%s\n' "$output" && exit 1; }
    apt install "$package"/1/canopy-web_*.deb >/dev/null 2>&1
    canopy web --no-token &
    screen=$!
    for ((tries = 0; tries < 50; tries++)); do [[ ! -e /run/canopy-web/address ]] || break && sleep 0.1; done
    expect "http://127.0.0.1:7373/enter?token=" canopy web token
    kill "$screen"
    wait "$screen"
    apt purge canopy-web >/dev/null 2>&1
    [[ ! -e /usr/bin/canopy-web ]]

    step "upgrade"
    # The installed program takes over, and what is open stays open. A pool without a keeper is left as it is.
    mkdir -p /mnt/old
    canopy mount -o survive=false /mnt/disk1:/mnt/disk2 /mnt/old
    pid=$(canopy get /mnt/media pid)
    old=$(canopy get /mnt/old pid)
    exec 3</mnt/media/film
    expect " serves /mnt/media now" apt install "$package"/2/canopy_*.deb
    [[ $output == *"/mnt/old stays mounted"* ]]
    new=$(canopy get media pid)
    [[ $new != "$pid" && $(cat <&3) == film && $(cat /mnt/media/film) == film ]]
    exec 3<&-
    [[ $(canopy get /mnt/old pid) == "$old" ]]
    canopy umount /mnt/old
    # What needrestart would ask a restart for.
    ! grep -q '/canopy (deleted)$' /proc/[0-9]*/maps || exit 1

    step "replace mergerfs"
    expect "Setting up mergerfs" apt install "$package"/mergerfs.deb
    expect "Removing mergerfs" apt install "$package"/2/canopy-mergerfs_*.deb
    mkdir -p /mnt/old
    expect "" mount -t mergerfs -o category.create=mfs,minfreespace=1M /mnt/disk1:/mnt/disk2 /mnt/old
    expect fuse.mergerfs findmnt -n -o FSTYPE /mnt/old
    [[ $(cat /mnt/old/film) == film ]]
    canopy umount /mnt/old

    step "remove"
    expect "Pools stay mounted" apt remove canopy canopy-mergerfs
    [[ ! -e /usr/bin/canopy && $(cat /mnt/media/film) == film ]]
    umount /mnt/media

    step "purge"
    # The file is the administrator's.
    expect "stay in /etc/canopy" apt purge canopy
    rm /etc/canopy/media.toml /etc/fstab.canopy-*
    # A purge after that, as of somebody who never described a pool, leaves nothing.
    apt install "$package"/2/canopy_*.deb >/dev/null 2>&1
    ln -s /usr/lib/systemd/system/canopy@.service /etc/systemd/system/multi-user.target.wants/canopy@media.service
    rmdir /etc/canopy # as `rm -r` by its owner
    apt purge canopy >/dev/null 2>&1
    [[ ! -e /etc/canopy ]]
    # The daemon ends a moment after the pool is unmounted.
    for disk in /mnt/disk1 /mnt/disk2; do
        for ((tries = 0; tries < 600; tries++)); do
            ! umount "$disk" 2>/dev/null || break
            sleep 0.1
        done
    done
    rmdir /mnt/disk1 /mnt/disk2 /mnt/media /mnt/old
    cp /root/fstab /etc/fstab
    files >/root/after
    diff /root/before /root/after
}

make_packages() {
    local revision upstream key
    if [[ -z ${BUILD:-} ]]; then
        VERSION='' OUT=$work/release scripts/package.sh deb static >/dev/null
        BUILD=${CARGO_TARGET_DIR:-target}/release STATIC_BUILD=${CARGO_TARGET_DIR:-target}/$(uname -m)-unknown-linux-gnu/release
        export BUILD STATIC_BUILD
    fi
    upstream=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
    for revision in 1 2; do
        VERSION=$upstream-$revision OUT=$work/packages/$revision scripts/package.sh deb >/dev/null
    done
    key=$work/gnupg
    install -d -m 700 "$key"
    GNUPGHOME=$key gpg --batch --quiet --passphrase '' --quick-generate-key test@localhost
    GNUPGHOME=$key KEY=test@localhost scripts/apt-repository.sh "$work/packages/apt" "$work"/packages/[12]/*.deb >/dev/null
    GNUPGHOME=$key gpgconf --kill all
    mkdir -p "$work/mergerfs/DEBIAN" "$work/mergerfs/usr/bin"
    echo theirs >"$work/mergerfs/usr/bin/mergerfs"
    printf 'Package: mergerfs\nVersion: 2.40\nArchitecture: all\nMaintainer: nobody <nobody@localhost>\nDescription: a stand-in\n' \
        >"$work/mergerfs/DEBIAN/control"
    dpkg-deb --root-owner-group --build "$work/mergerfs" "$work/packages/mergerfs.deb" >/dev/null
    (cd "$work/packages/1" && sha256sum --quiet -c SHA256SUMS && [[ $(wc -l <SHA256SUMS) == $(find . -name '*.deb' | wc -l) ]])
    lintian --allow-root --no-cfg --display-info --pedantic --fail-on error,warning "$work"/packages/1/*.deb
}

# Prints the commands of the quick start, but for those that make the package.
quick_start() {
    awk '/^```/ { inside = $0 == "```sh" || $0 == "```bash"; next } inside && !/scripts\/|target\// ' docs/quick-start.md
}

try_debian() {
    local root=$work/run what
    if [[ ! -d $bare/$1 ]]; then
        make_root "$bare/$1" "$1" ca-certificates,e2fsprogs,mount,systemd >"$bare/$1.log" 2>&1 || {
            tail -n 5 "$bare/$1.log" >&2
            fail "debootstrap could not make $1"
        }
    fi
    for what in quick-start units "$1"; do
        printf '  %s\n' "$what"
        cp -a "$bare/$1" "$root"
        # apt reads keys as another user.
        chmod 711 "$root/root"
        cp -r "$work/packages" "$root/root/packages"
        cp /etc/resolv.conf "$root/etc/resolv.conf"
        quick_start >"$root/root/quick-start"
        in_root "$root" "$what"
        rm -rf --one-file-system "$root"
    done
}

# The program, /proc, /dev/fuse and three directories are all there is. A static program has no library to be found.
try_static() (
    local root=$work/run program=$work/static
    OUT=$work/static scripts/package.sh static >/dev/null
    mkdir -p "$root"/{a,b,pool,proc,dev}
    cp "$program"/canopy-*-static-"$(uname -m)" "$root/canopy"
    # shellcheck disable=SC2016 # another shell expands it
    unshare --mount --propagation slave --pid --fork --kill-child bash -euo pipefail -c '
        mount --bind "$1" "$1"
        mount -t proc proc "$1/proc"
        mount -t tmpfs dev "$1/dev"
        mknod -m 666 "$1/dev/fuse" c 10 229
        mknod -m 666 "$1/dev/null" c 1 3
        chroot "$1" /canopy mount -o minfreespace=0 /a:/b /pool
        echo film >"$1/pool/film"
        [[ $(cat "$1"/[ab]/film) == film ]]
        chroot "$1" /canopy status /pool | grep "^ */a .* ok$"
        chroot "$1" /canopy umount /pool
    ' bash "$root" </dev/null
)

# What the image holds runs as a container does, in a root of its own, and its pool appears outside through a directory whose
# mounts propagate. No runtime is needed for that: the archive is unpacked layer by layer.
try_image() (
    local root=$work/run layer
    OUT=$work/image scripts/package.sh image >/dev/null
    mkdir -p "$work/archive" "$root"
    tar -xf "$work"/image/canopy-*-image.tar -C "$work/archive"
    grep -o '"Layers":\[[^]]*' "$work/archive/manifest.json" | grep -o '[0-9a-f]*\.tar' | while read -r layer; do
        tar -xf "$work/archive/$layer" -C "$root"
    done
    [[ $(find "$root" -mindepth 1) == "$root/canopy" ]]
    mkdir -p "$root"/{disks,proc,dev} "$work/host"/{a,b,pool}
    # shellcheck disable=SC2016 # another shell expands it
    unshare --mount --propagation slave --pid --fork --kill-child bash -euo pipefail -c '
        # -v HOST:/disks:rshared
        mount --bind "$2" "$2"
        mount --make-shared "$2"
        mount -t proc proc /proc
        mkfifo "$2/ready"
        unshare --mount --propagation unchanged bash -euo pipefail -c "
            mount --bind $1 $1
            mount --rbind $2 $1/disks
            mount -t proc proc $1/proc
            mount -t tmpfs dev $1/dev
            mknod -m 666 $1/dev/fuse c 10 229
            mknod -m 666 $1/dev/null c 1 3
            exec chroot $1 /canopy mount -f -o minfreespace=0 /disks/a:/disks/b /disks/pool
        " &
        container=$!
        for ((tries = 0; tries < 600; tries++)); do
            ! findmnt -n "$2/pool" >/dev/null || break
            sleep 0.1
        done
        echo film >"$2/pool/film"
        [[ $(cat "$2"/[ab]/film) == film ]]
        # As `podman stop` does. The pool leaves the host, too.
        kill -TERM "$container"
        wait "$container"
        ! findmnt -n "$2/pool"
    ' bash "$root" "$work/host" </dev/null
)

failed=0
make_packages
for what in "${whats[@]}"; do
    started=$SECONDS
    printf '=== packages: %s\n' "$what"
    # Not as a condition: the shell would go on after a failed command.
    set +e
    case $what in
    debian-*) (set -e && try_debian "$what") ;;
    static) (set -e && try_static) ;;
    image) (set -e && try_image) ;;
    esac
    status=$?
    set -e
    if ((status == 0)); then
        printf '=== packages: %s works (%d s)\n' "$what" "$((SECONDS - started))"
    else
        printf '=== packages: %s FAILED\n' "$what"
        failed=1
    fi
    rm -rf --one-file-system "$work/run"
done
exit "$failed"
