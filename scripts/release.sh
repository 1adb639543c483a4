#!/usr/bin/env bash
# Makes a release of what is committed: a commit with the new version and a dated section of the changelog, and an annotated
# tag with that section as its text. Nothing leaves the machine; the last lines say how to publish it.
#   release.sh VERSION        for example 0.2.0
#   release.sh --text [VERSION]  prints the section of the changelog, by default that of what is not released yet
# To take it back before it is published: git tag -d vVERSION && git reset --hard HEAD^
set -euo pipefail
cd "$(dirname "$0")/.."

fail() {
    printf 'release: %s\n' "$*" >&2
    exit 1
}

# section HEADING: what the changelog has under it.
section() {
    awk -v heading="## $1" '
        found && /^## / { exit }
        found { print }
        $0 == heading || index($0, heading " ") == 1 { found = 1 }
    ' CHANGELOG.md | sed -e '/./,$!d' | sed -e :a -e '/^\n*$/{$d;N;ba' -e '}'
}

if [[ ${1:-} == --text ]]; then
    text=$(section "${2:-Unreleased}")
    [[ -n $text ]] || fail "CHANGELOG.md has nothing under '${2:-Unreleased}'"
    printf '%s\n' "$text"
    exit
fi
(($# == 1)) || fail "usage: release.sh VERSION | --text [VERSION]"
new=$1
[[ $new =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] || fail "$new is no version: three numbers, such as 0.2.0"
old=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
newest=$(printf '%s\n' "$old" "$new" | sort -V | tail -n 1)
[[ $new == "$newest" ]] || fail "$new is older than $old, the version in Cargo.toml"
[[ -z $(git status --porcelain) ]] || fail "there are changes that are not committed (git status)"
if git rev-parse -q --verify "refs/tags/v$new" >/dev/null; then
    fail "the tag v$new exists"
fi
text=$(section Unreleased)
[[ -n $text ]] || fail "CHANGELOG.md has nothing under 'Unreleased': there is nothing to release"
grep -qx '### Upgrading' <<<"$text" || fail "CHANGELOG.md does not say under '### Upgrading' what to look at, or that there is nothing"

# shellcheck source=scripts/rust.sh
. scripts/rust.sh
rust_on_path || fail "there is no cargo $(rust_needed) or later (scripts/setup.sh run installs it)"
# What is half done is taken back.
trap 'git checkout --quiet -- .; fail "it failed, and nothing has changed"' ERR
sed -i "0,/^version = \".*\"/s//version = \"$new\"/" Cargo.toml
sed -i "s/^## Unreleased\$/&\n\n## $new ($(date -u +%F))/" CHANGELOG.md
# The packages of the workspace only.
cargo update --quiet --workspace --offline
sed -i "s/canopy-$old-image/canopy-$new-image/; s/canopy:$old /canopy:$new /" docs/containers.md
git commit --quiet --all --message "Version $new"
trap - ERR
printf 'Canopy %s\n\n%s\n' "$new" "$text" | git tag --annotate --cleanup=verbatim --file - "v$new"
echo "The commit and the tag v$new are made. Then:"
echo "  .ci/run                              # what decides"
echo "  scripts/package.sh                   # packages with checksums in target/packages"
echo "  KEY=... scripts/apt-repository.sh DIRECTORY  # adds them to a repository for apt"
echo "  git push origin HEAD v$new"
