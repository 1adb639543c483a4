#!/usr/bin/env bash
# Makes a repository for apt of Debian packages: a directory that any web server can serve as it is.
#   apt-repository.sh DIRECTORY [PACKAGE.deb ...]    without packages, those that scripts/package.sh has left in target/packages
# Packages that are in DIRECTORY from earlier runs stay, so that machines can go back to them.
# Environment variables, with their defaults:
#   KEY    the id of a key of gpg, with which the repository is signed; its public half is then in DIRECTORY/canopy.asc (not signed)
#   SUITE  the name of the suite (stable)
# A machine that uses it has a file /etc/apt/sources.list.d/canopy.sources; the last lines say what is in it.
# Needs apt-ftparchive (package apt-utils).
set -euo pipefail

readonly SUITE=${SUITE:-stable} COMPONENT=main

fail() {
    printf 'apt-repository: %s\n' "$*" >&2
    exit 1
}

(($# >= 1)) || fail "usage: apt-repository.sh DIRECTORY [PACKAGE.deb ...]"
directory=$1
shift
if (($# == 0)); then
    shopt -s nullglob
    set -- "$(dirname "$0")"/../target/packages/*.deb
    shopt -u nullglob
fi
(($# > 0)) || fail "there is no package (scripts/package.sh deb makes them)"
command -v apt-ftparchive >/dev/null || fail "needs apt-ftparchive (apt-get install apt-utils)"
[[ -z ${KEY:-} ]] || command -v gpg >/dev/null || fail "needs gpg to sign (apt-get install gpg)"

pool=pool/$COMPONENT/c/canopy
mkdir -p "$directory/$pool"
cp -- "$@" "$directory/$pool/"
cd "$directory"

# The new lists are put in place when they are complete. A client that reads in that instant tries again.
new=dists/.new
rm -rf "$new"
mapfile -t architectures < <(find "$pool" -name '*.deb' -exec dpkg-deb --field {} Architecture \; | sort -u | grep -vx all)
((${#architectures[@]} > 0)) || architectures=(all)
for architecture in "${architectures[@]}"; do
    index=$new/$COMPONENT/binary-$architecture
    mkdir -p "$index"
    # With the packages for all architectures.
    apt-ftparchive --arch "$architecture" packages "$pool" >"$index/Packages"
    gzip -9nk "$index/Packages"
done
apt-ftparchive -o "APT::FTPArchive::Release::Origin=Canopy" -o "APT::FTPArchive::Release::Label=Canopy" \
    -o "APT::FTPArchive::Release::Suite=$SUITE" -o "APT::FTPArchive::Release::Codename=$SUITE" \
    -o "APT::FTPArchive::Release::Components=$COMPONENT" \
    -o "APT::FTPArchive::Release::Architectures=${architectures[*]}" release "$new" >"$new.release"
mv "$new.release" "$new/Release"
if [[ -n ${KEY:-} ]]; then
    gpg --batch --yes --local-user "$KEY" --clearsign --output "$new/InRelease" "$new/Release"
    gpg --batch --yes --local-user "$KEY" --armor --detach-sign --output "$new/Release.gpg" "$new/Release"
    gpg --batch --yes --armor --output canopy.asc --export "$KEY"
fi
rm -rf "dists/.old"
[[ ! -e dists/$SUITE ]] || mv "dists/$SUITE" dists/.old
mv "$new" "dists/$SUITE"
rm -rf dists/.old

cat <<END
Types: deb
URIs: https://YOUR.SERVER/$(basename "$PWD")
Suites: $SUITE
Components: $COMPONENT
$(if [[ -n ${KEY:-} ]]; then echo "Signed-By: /etc/apt/keyrings/canopy.asc"; else echo "Trusted: yes"; fi)
END
