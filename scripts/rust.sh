# shellcheck shell=bash
# Sourced from the root of the tree: puts a cargo that can build it onto PATH. Ubuntu keeps its newer ones in directories
# of their own, and rustup its in the home directory, which sudo leaves out.

# The oldest that Cargo.toml allows.
rust_needed() { sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml; }

# rust_is_new_enough VERSION
rust_is_new_enough() { [[ $(printf '%s\n' "$(rust_needed)" "$1" | sort -V | head -n 1) == "$(rust_needed)" ]]; }

# The version of a cargo and its rustc, the older of the two; nothing where one does not run.
rust_version() {
    local dir=$1 program version versions=()
    for program in cargo rustc; do
        version=$("$dir$program" --version 2>/dev/null) || return 1
        version=${version#"$program "}
        versions+=("${version%% *}")
    done
    printf '%s\n' "${versions[@]}" | sort -V | head -n 1
}

# True when there is one; then it is the first on PATH.
rust_on_path() {
    local dir version
    for dir in "" "${CARGO_HOME:-$HOME/.cargo}/bin/" $(printf '%s\n' /usr/lib/rust-*/bin/ | sort -rV); do
        if version=$(rust_version "$dir") && rust_is_new_enough "$version"; then
            [[ -z $dir ]] || export PATH=${dir%/}:$PATH
            return 0
        fi
    done
    return 1
}
