#!/usr/bin/env bash
# Builds the manual (docs/) as a book into target/book, and checks that every link in it leads to a page and a heading, or to a
# file of the tree. What it builds is a site of its own, with a search. Installs mdBook into target/tools if it is not there.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly MDBOOK=0.5.4 TOOLS=target/tools

# shellcheck source=scripts/rust.sh
. scripts/rust.sh
rust_on_path
if [[ $("$TOOLS/bin/mdbook" --version 2>/dev/null) != "mdbook v$MDBOOK" ]] || ! grep -qsF '"search"' "$TOOLS/.crates2.json"; then
    # Without its server.
    CARGO_TARGET_DIR=$TOOLS/build cargo install --locked --quiet --no-default-features --features search --root "$TOOLS" --version "$MDBOOK" mdbook
    rm -rf "$TOOLS/build"
fi
"$TOOLS/bin/mdbook" build docs
compgen -G "target/book/searchindex*.js" >/dev/null || { echo "manual: the book has no index to search" >&2 && exit 1; }
python3 scripts/manual/links.py target/book docs "$(sed -n 's/^git-repository-url = "\(.*\)"/\1/p' docs/book.toml)"
