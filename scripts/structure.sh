#!/usr/bin/env bash
# Checks the shape of the house: which crate may use which, where `unsafe` may be, how long a file may get.
set -euo pipefail
cd "$(dirname "$0")/.."

# What each crate may depend on; for development only, anything may use the testkit, and the tests of the program
# the library that they load into others.
declare -A allowed=(
    [canopy]="canopy-bench canopy-config canopy-fuse canopy-pool canopy-server canopy-sys"
    [canopy-server]="canopy-config canopy-fuse canopy-pool canopy-sys"
    [canopy-config]="canopy-fuse canopy-pool canopy-sys"
    [canopy-bench]="canopy-config canopy-fuse canopy-sys"
    [canopy-fuse]="canopy-sys"
    [canopy-pool]="canopy-sys"
    [canopy-sys]=""
    [canopy-preload]=""
    [canopy-testkit]="canopy-fuse"
    [canopy-structure]=""
)
# Crates in which `unsafe` may occur.
readonly UNSAFE_CRATES=" canopy-sys canopy-preload "
# Lines of a file, its tests not counted.
readonly LONGEST=1000

faults=0
fault() {
    printf 'structure: %s\n' "$*" >&2
    faults=$((faults + 1))
}

metadata=$(cargo metadata --format-version 1 --no-deps --offline 2>/dev/null || cargo metadata --format-version 1 --no-deps)
root=$(jq -r .workspace_root <<<"$metadata")

# Arrows between crates.
members=" $(jq -r '.packages[].name' <<<"$metadata" | tr '\n' ' ') "
arrows=0
while read -r from to kind; do
    [[ $members == *" $to "* ]] || continue
    arrows=$((arrows + 1))
    if [[ $to == canopy-testkit ]]; then
        [[ $kind == dev ]] || fault "$from uses canopy-testkit outside of development"
    elif [[ $from/$to/$kind == canopy/canopy-preload/dev ]]; then
        continue
    elif [[ " ${allowed[$from]-} " != *" $to "* ]]; then
        fault "$from may not depend on $to"
    fi
done < <(jq -r '.packages[] | .name as $from | .dependencies[] | "\($from) \(.name) \(.kind // "normal")"' <<<"$metadata")
for member in $members; do
    [[ -v allowed[$member] ]] || fault "$member has no place among the arrows in scripts/structure.sh"
done

# Every program and library but the rooms for it forbids unsafe code.
while read -r name path; do
    [[ $UNSAFE_CRATES != *" $name "* ]] || continue
    grep -q '^#!\[forbid(unsafe_code)\]' "$path" || fault "${path#"$root"/} lacks #![forbid(unsafe_code)]"
done < <(jq -r '.packages[] | .name as $name | .targets[]
    | select(.kind | any(. == "lib" or . == "bin" or . == "cdylib")) | "\($name) \(.src_path)"' <<<"$metadata")

# Tests, benches and fuzz targets are crates of their own, so look for the word as well.
dirs=(crates)
[[ ! -d fuzz ]] || dirs+=(fuzz)
files=0
while IFS= read -r -d '' file; do
    files=$((files + 1))
    case $file in
    crates/sys/* | crates/preload/*) ;;
    *)
        # Without comments and strings; attributes such as forbid(unsafe_code) do not match.
        found=$(sed -E 's://.*$::; s/"([^"\\]|\\.)*"//g' "$file" | grep -nE '\bunsafe\b *(\{|\(|fn|impl|extern|trait)' || true)
        [[ -z $found ]] || fault "unsafe code outside of crates/sys: $file:${found%%:*}"
        ;;
    esac
    case $file in
    */tests/* | */tests.rs | */test_*.rs | */*_tests.rs) continue ;;
    esac
    lines=$(awk '/^#\[cfg\(test\)\]/ { exit } { count++ } END { print count + 0 }' "$file")
    ((lines <= LONGEST)) || fault "$file has $lines lines without its tests; $LONGEST is the limit"
done < <(find "${dirs[@]}" -name target -prune -o -name '*.rs' -print0)

((faults == 0)) || exit 1
echo "structure: $arrows arrows between crates, $files files, no fault"
