#!/usr/bin/env bash
# Installs Canopy from a build of this tree, under every name that it answers to. `install.sh uninstall` removes it.
# Environment variables, with their defaults:
#   PREFIX   where to install (/usr/local)
#   SBINDIR  where mount(8) looks for its helpers (/sbin)
#   DESTDIR  a prefix to every path, for building packages (none)
#   BUILD    the directory of the build (release in CARGO_TARGET_DIR or target)
#   NAMES    canopy, mergerfs, web, cockpit or all: whether to install Canopy itself, the names and files that replace mergerfs, the screen
#            in the browser (if it is built), or all of them (all)
# With PREFIX=/usr the paths are those of Debian's packages; scripts/package.sh takes its lists from here.
# If another program owns one of the names, nothing is installed. With --force that program's file is renamed to
# NAME.before-canopy, and uninstalling renames it back.
set -euo pipefail

here=$(cd "$(dirname "$0")/.." && pwd)
readonly PREFIX=${PREFIX:-/usr/local} SBINDIR=${SBINDIR:-/sbin} DESTDIR=${DESTDIR:-} NAMES=${NAMES:-all}
readonly ASIDE=before-canopy
readonly BUILD=${BUILD:-${CARGO_TARGET_DIR:-$here/target}/release}
readonly PROGRAM=$PREFIX/bin/canopy PRELOAD=libcanopy_preload.so
readonly UNITS=(canopy@.service canopy-tier@.service canopy-notify.service canopy-jobs.service)

# links present|all: prints each link and its target. `present` leaves out the library if it is not built.
links() {
    local name program=$PROGRAM
    for name in mergerfs mergerfs.collect-info fsck.mergerfs mergerfs.{balance,consolidate,ctl,dedup,dup,fsck}; do
        printf '%s %s\n' "$PREFIX/bin/$name" canopy
    done
    # Absolute targets outside the prefix, because /sbin may be a symlink itself.
    [[ $SBINDIR != "$PREFIX/sbin" ]] || program=../bin/canopy
    for name in mount.canopy mount.fuse.canopy mount.mergerfs mount.fuse.mergerfs; do
        printf '%s %s\n' "$SBINDIR/$name" "$program"
    done
    if [[ $1 == all || -e $BUILD/$PRELOAD ]]; then
        printf '%s %s\n' "$PREFIX/lib/mergerfs/preload.so" "../$PRELOAD"
    fi
}

# files present|all: prints every other file with its source and its mode.
files() {
    local page unit zsh=zsh/site-functions
    [[ $PREFIX != /usr ]] || zsh=zsh/vendor-completions
    printf '%s %s 755\n' "$PROGRAM" "$BUILD/canopy"
    if [[ $1 == all || -e $BUILD/$PRELOAD ]]; then
        printf '%s %s 644\n' "$PREFIX/lib/$PRELOAD" "$BUILD/$PRELOAD"
    fi
    for unit in "${UNITS[@]}"; do
        printf '%s %s 644\n' "$PREFIX/lib/systemd/system/$unit" "$here/dist/$unit"
    done
    if [[ $1 == all || -e $BUILD/canopy-web ]]; then
        printf '%s %s 755\n' "$PROGRAM-web" "$BUILD/canopy-web"
        printf '%s %s 644\n' "$PREFIX/lib/systemd/system/canopy-web.service" "$here/dist/canopy-web.service"
        printf '%s %s 644\n' "$PREFIX/lib/systemd/system/canopy-cockpit.service" "$here/dist/canopy-cockpit.service"
        for page in manifest.json index.html canopy.js; do
            printf '%s %s 644\n' "$PREFIX/share/cockpit/canopy/$page" "$here/dist/cockpit/$page"
        done
        printf '%s %s 644\n' "$PREFIX/share/cockpit/canopy/style.css" "$here/crates/web/assets/style.css"
    fi
    printf '%s %s 644\n' "$PREFIX/lib/modprobe.d/canopy.conf" "$here/dist/modprobe.d/canopy.conf"
    printf '%s %s 644\n' "$PREFIX/share/doc/canopy/example.toml" "$here/dist/example.toml"
    # What --help and the manual point to.
    for page in "$here"/docs/*.md; do
        printf '%s %s 644\n' "$PREFIX/share/doc/canopy/docs/${page##*/}" "$page"
    done
    printf '%s %s 644\n' "$PREFIX/share/doc/canopy/dist/grafana.json" "$here/dist/grafana.json"
    printf '%s %s 644\n' "$PREFIX/share/bash-completion/completions/canopy" "$here/dist/completions/canopy.bash"
    printf '%s %s 644\n' "$PREFIX/share/$zsh/_canopy" "$here/dist/completions/_canopy"
    printf '%s %s 644\n' "$PREFIX/share/fish/vendor_completions.d/canopy.fish" "$here/dist/completions/canopy.fish"
    for page in "$here"/man/*.[1-8]; do
        [[ ! -e $page ]] || printf '%s %s 644\n' "$PREFIX/share/man/man${page##*.}/${page##*/}" "$page"
    done
}

# Of lines that begin with a path, prints those that NAMES selects. What replaces mergerfs has its name in the path. The page of
# the manual about `canopy web` belongs to Canopy itself.
selected() {
    case $NAMES in
    all) cat ;;
    web) awk '$1 ~ /\/canopy-web(\.service)?$/' ;;
    cockpit) awk '$1 ~ /cockpit/' ;;
    mergerfs) awk -v prefix="$PREFIX" '{ path = $1; sub("^" prefix, "", path) } path ~ /mergerfs/' ;;
    canopy) awk -v prefix="$PREFIX" '{ path = $1; sub("^" prefix, "", path) } path !~ /mergerfs|cockpit/ && path !~ /\/canopy-web(\.service)?$/' ;;
    esac
}

fail() {
    printf 'install: %s\n' "$*" >&2
    exit 1
}

exists() { [[ -e $1 || -L $1 ]]; }

# A link is ours if it points to the program or the library, in whatever directory.
is_ours() {
    local target
    target=$(readlink -- "$1") || return 1
    [[ ${target##*/} == canopy || ${target##*/} == "$PRELOAD" ]]
}

install_all() {
    local path target source mode foreign=()
    [[ -x $BUILD/canopy ]] || fail "there is no canopy in $BUILD (run cargo build --release)"
    while read -r path target; do
        if exists "$DESTDIR$path" && ! is_ours "$DESTDIR$path"; then
            foreign+=("$DESTDIR$path")
        fi
    done < <(links present | selected)
    if ((${#foreign[@]} > 0)); then
        [[ $force == yes ]] || fail "${foreign[*]} belongs to another program (uninstall that, or set it aside with --force)"
        for path in "${foreign[@]}"; do
            mv -T -- "$path" "$path.$ASIDE"
        done
    fi
    while read -r path source mode; do
        # Renamed into place, because the program may be running.
        install -D -m "$mode" -- "$source" "$DESTDIR$path.new"
        # They name the program.
        [[ $path != *.service && $path != */cockpit/*.json ]] || sed -i "s|/usr/bin/canopy|$PROGRAM|" "$DESTDIR$path.new"
        mv -fT -- "$DESTDIR$path.new" "$DESTDIR$path"
    done < <(files present | selected)
    while read -r path target; do
        mkdir -p -- "$(dirname "$DESTDIR$path")"
        ln -sfT -- "$target" "$DESTDIR$path"
    done < <(links present | selected)
    printf 'installed %s, known as:' "$DESTDIR$PROGRAM"
    links present | selected | while read -r path _; do printf ' %s' "${path##*/}"; done
    printf '\n'
}

uninstall_all() {
    local path _
    while read -r path _; do
        if exists "$DESTDIR$path" && is_ours "$DESTDIR$path"; then
            rm -f -- "$DESTDIR$path"
            ! exists "$DESTDIR$path.$ASIDE" || mv -T -- "$DESTDIR$path.$ASIDE" "$DESTDIR$path"
        fi
    done < <(links all | selected)
    while read -r path _; do
        rm -f -- "$DESTDIR$path"
    done < <(files all | selected)
    rmdir -- "$DESTDIR$PREFIX"/{lib/mergerfs,lib/modprobe.d,share/cockpit/canopy,share/doc/canopy/docs,share/doc/canopy/dist,share/doc/canopy} 2>/dev/null || true
}

case $NAMES in all | canopy | mergerfs | web | cockpit) ;; *) fail "NAMES is $NAMES, not all, canopy, mergerfs, web or cockpit" ;; esac
action=install force=no
for word in "$@"; do
    case $word in
    install | uninstall) action=$word ;;
    --force) force=yes ;;
    *) fail "unknown argument '$word' (install.sh [install|uninstall] [--force])" ;;
    esac
done
"${action}_all"
