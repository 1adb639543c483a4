#!/usr/bin/env bash
# Makes packages of this tree in target/packages, with SHA256SUMS:
#   package.sh [deb] [static] [image]    without a name, all three
#     deb     canopy_*.deb, canopy-mergerfs_*.deb (the names of mergerfs), canopy-web_*.deb (the screen in the browser), cockpit-canopy_*.deb and
#             canopy-dbgsym_*.deb (debug information)
#     static  canopy-VERSION-static-*, one program that needs no library, and its debug information in a file beside it
#     image   canopy-VERSION-image.tar, a container image with the static program only; needs buildah
# Environment variables, with their defaults:
#   OUT           where the packages go (target/packages)
#   VERSION       the version of the packages (that of Cargo.toml with a revision of Debian, as 0.1.0-1)
#   BUILD         a directory with a built canopy, canopy-web and libcanopy_preload.so; by default a release is built
#   STATIC_BUILD  a directory with a built static canopy; by default a release is built
#   DEBFULLNAME, DEBEMAIL  the maintainer (The Canopy authors, at the address of the repository's owner)
# scripts/install.sh has the list of what is installed, and where. Needs dpkg-deb and binutils.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() {
    printf 'package: %s\n' "$*" >&2
    exit 1
}

# field NAME: a field of the workspace's package in Cargo.toml.
field() { sed -n "s/^$1 = \"\(.*\)\"/\1/p" Cargo.toml | head -n 1; }

HOMEPAGE=$(field repository)
MACHINE=$(uname -m)
readonly HOMEPAGE MACHINE TARGET=${CARGO_TARGET_DIR:-target}
readonly VERSION=${VERSION:-$(field version)-1} OUT=${OUT:-target/packages}
readonly UPSTREAM=${VERSION%-*}
owner=${HOMEPAGE#https://github.com/} owner=${owner%%/*}
readonly MAINTAINER="${DEBFULLNAME:-The Canopy authors} <${DEBEMAIL:-$owner@users.noreply.github.com}>"
# Of equal input, packages are equal.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH

for program in dpkg-deb objcopy objdump readelf; do
    command -v "$program" >/dev/null || fail "needs $program (apt-get install dpkg binutils)"
done

work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT

# build_release [ARGUMENTS OF CARGO ...]
build_release() {
    # shellcheck source=scripts/rust.sh
    . scripts/rust.sh
    rust_on_path || fail "there is no cargo $(rust_needed) or later (scripts/setup.sh run installs it)"
    cargo build --release "$@"
}

# split FILE DEBUG_FILE: moves the debug information of FILE into another file, which FILE names.
split() {
    objcopy --only-keep-debug --compress-debug-sections "$1" "$2"
    chmod 644 "$2"
    objcopy --strip-unneeded --remove-section=.comment --add-gnu-debuglink="$2" "$1"
}

build_id() { readelf -n "$1" | sed -n 's/.*Build ID: //p'; }

# libraries FILE ...: what the package depends on. The C library's version is that of the newest symbol in use.
libraries() {
    local newest needed
    newest=$(objdump -T "$@" | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1)
    printf 'libc6 (>= %s)' "${newest#GLIBC_}"
    needed=$(objdump -p "$@")
    if [[ $needed == *libgcc_s.so* ]]; then printf ', libgcc-s1'; fi
}

# fill FILE: prints a template of dist/debian.
fill() {
    sed -e "s|@VERSION@|$VERSION|g" -e "s|@ARCH@|$arch|g" -e "s|@HOMEPAGE@|$HOMEPAGE|g" -e "s|@MAINTAINER@|$MAINTAINER|g" \
        -e "s|@SUMMARY@|many disks as one tree, with ordinary files on each|g" \
        -e "s|@DEPENDS@|${depends:-}|g" -e "s|@BUILD_IDS@|${ids:-}|g" \
        -e '/@MIT@/{' -e "r $work/mit" -e 'd' -e '}' "$1"
}

# deb PACKAGE: makes the package of the tree in $work/PACKAGE.
deb() {
    local root=$work/$1 doc=$work/$1/usr/share/doc/$1 script
    mkdir -p "$root/DEBIAN" "$doc"
    if [[ $1 == canopy-dbgsym ]]; then
        rmdir "$doc"
        ln -s canopy "$doc"
    else
        fill dist/debian/copyright >"$doc/copyright"
        {
            printf 'canopy (%s) unstable; urgency=medium\n\n  * See NEWS of the project in changelog.gz.\n\n' "$VERSION"
            printf ' -- %s  %s\n' "$MAINTAINER" "$(LC_ALL=C date -uR -d "@$SOURCE_DATE_EPOCH")"
        } | gzip -9n >"$doc/changelog.Debian.gz"
        gzip -9n <CHANGELOG.md >"$doc/changelog.gz"
        if [[ -e dist/debian/$1.lintian-overrides ]]; then
            install -D -m 644 "dist/debian/$1.lintian-overrides" "$root/usr/share/lintian/overrides/$1"
        fi
        find "$root/usr/share/man" -name '*.[1-8]' -exec gzip -9n {} + 2>/dev/null || true
    fi
    for script in postinst prerm postrm; do
        [[ ! -e dist/debian/$1.$script ]] || install -m 755 "dist/debian/$1.$script" "$root/DEBIAN/$script"
    done
    if [[ -d $root/etc ]]; then
        (cd "$root" && find etc -type f -printf '/%p\n') >"$root/DEBIAN/conffiles"
    fi
    # The paragraph of this package, with its size.
    fill dist/debian/control.in |
        awk -v RS= -v package="Package: $1" 'index($0 "\n", package "\n") == 1' |
        sed "s/^Description:/Installed-Size: $(du -sk --apparent-size --exclude=DEBIAN "$root" | cut -f 1)\n&/" \
            >"$root/DEBIAN/control"
    (cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum) >"$root/DEBIAN/md5sums"
    find "$root" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
    chmod -R u+rwX,go+rX,go-w "$root"
    dpkg-deb --root-owner-group -Zxz --build "$root" "$OUT" >/dev/null
}

# The package that has the files that NAMES selects in scripts/install.sh.
package_of() {
    case $1 in
    canopy) echo canopy ;;
    cockpit) echo cockpit-canopy ;;
    *) echo "canopy-$1" ;;
    esac
}

make_deb() {
    local arch ids='' depends build=${BUILD:-} file id
    arch=$(dpkg --print-architecture)
    if [[ -z $build ]]; then
        build_release -p canopy -p canopy-preload -p canopy-web
        build=$TARGET/release
    fi
    for file in canopy canopy-web libcanopy_preload.so; do
        [[ -e $build/$file ]] || fail "there is no $file in $build"
    done
    mkdir "$work/build"
    cp "$build"/{canopy,canopy-web,libcanopy_preload.so} "$work/build/"
    for file in canopy canopy-web libcanopy_preload.so; do
        id=$(build_id "$work/build/$file")
        [[ -n $id ]] || fail "$build/$file has no build id"
        ids+=${ids:+ }$id
        mkdir -p "$work/canopy-dbgsym/usr/lib/debug/.build-id/${id:0:2}"
        split "$work/build/$file" "$work/canopy-dbgsym/usr/lib/debug/.build-id/${id:0:2}/${id:2}.debug"
    done
    sed 's/^$/./; s/^/ /' LICENSE-MIT >"$work/mit"
    for file in canopy mergerfs web cockpit; do
        BUILD=$work/build DESTDIR=$work/$(package_of "$file") PREFIX=/usr SBINDIR=/usr/sbin NAMES=$file \
            scripts/install.sh install >/dev/null
    done
    # The configuration of pools: empty, so that it goes with the package.
    mkdir -p "$work/canopy/etc/canopy"
    install -D -m 644 dist/debian/needrestart.conf "$work/canopy/etc/needrestart/conf.d/canopy.conf"
    # Documents that answer what a first user asks.
    install -m 644 -t "$work/canopy/usr/share/doc/canopy" README.md docs/from-mergerfs.md docs/options.md docs/metrics.md \
        docs/metrics-list.md \
        dist/grafana.json
    gzip -9n "$work/canopy/usr/share/doc/canopy/options.md"
    rm -f "$OUT"/canopy_*.deb "$OUT"/canopy-*.deb "$OUT"/cockpit-canopy_*.deb
    depends=$(libraries "$work"/build/canopy-web)
    deb canopy-web
    depends=$(libraries "$work"/build/{canopy,libcanopy_preload.so})
    for file in canopy canopy-mergerfs canopy-dbgsym cockpit-canopy; do deb "$file"; done
}

make_static() {
    local build=${STATIC_BUILD:-} target=$MACHINE-unknown-linux-gnu program headers
    program=canopy-$UPSTREAM-static-$MACHINE
    if [[ -z $build ]]; then
        # The C library of the GNU target may be linked statically; crates with code that runs at build time may not.
        RUSTFLAGS="-C target-feature=+crt-static ${RUSTFLAGS:-}" build_release -p canopy --bin canopy --target "$target"
        build=$TARGET/$target/release
    fi
    [[ -x $build/canopy ]] || fail "there is no canopy in $build"
    headers=$(readelf -l "$build/canopy")
    [[ $headers != *INTERP* ]] || fail "$build/canopy is not static"
    cp "$build/canopy" "$work/$program"
    (cd "$work" && split "$program" "$program.debug")
    rm -f "$OUT"/canopy-*-static-*
    install -m 755 "$work/$program" "$OUT/$program"
    install -m 644 "$work/$program.debug" "$OUT/$program.debug"
    static=$OUT/$program
}

make_image() {
    local image=localhost/canopy:$UPSTREAM storage=(--storage-driver vfs --root "$work/storage" --runroot "$work/run")
    command -v buildah >/dev/null || fail "the image needs buildah (apt-get install buildah)"
    [[ -n ${static:-} ]] || make_static
    mkdir "$work/context"
    cp "$static" "$work/context/canopy"
    cp dist/container/Containerfile "$work/context/"
    # From scratch, and without RUN: it needs no network.
    buildah "${storage[@]}" build --quiet --isolation chroot --pull=never --timestamp "$SOURCE_DATE_EPOCH" \
        --tag "$image" "$work/context" >/dev/null
    rm -f "$OUT"/canopy-*-image.tar
    buildah "${storage[@]}" push --quiet "$image" "docker-archive:$OUT/canopy-$UPSTREAM-image.tar:canopy:$UPSTREAM" >/dev/null
}

kinds=("$@")
((${#kinds[@]} > 0)) || kinds=(deb static image)
for kind in "${kinds[@]}"; do
    case $kind in deb | static | image) ;; *) fail "unknown package: $kind (deb, static, image)" ;; esac
done
mkdir -p "$OUT"
for kind in "${kinds[@]}"; do
    [[ $kind == static && -n ${static:-} ]] || "make_$kind"
done
(cd "$OUT" && find . -maxdepth 1 -type f -name '*canopy[-_]*' -printf '%P\n' | sort | xargs sha256sum >SHA256SUMS.new && mv SHA256SUMS.new SHA256SUMS)
(cd "$OUT" && find . -maxdepth 1 -type f -name '*canopy[-_]*' -printf '%10s  %P\n' | sort -k 2)
