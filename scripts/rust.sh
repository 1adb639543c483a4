# shellcheck shell=bash
# Sourced from the root of the tree. Finds a cargo that is new enough to build it and puts it on PATH. Ubuntu keeps its
# newer versions in directories of their own. rustup keeps its own in the home directory, which is not on sudo's PATH.

# Prints the oldest version that Cargo.toml allows.
rust_needed() { sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml; }

# rust_is_new_enough VERSION
rust_is_new_enough() { [[ $(printf '%s\n' "$(rust_needed)" "$1" | sort -V | head -n 1) == "$(rust_needed)" ]]; }

# rust_version DIR/: prints the version of the cargo and the rustc in DIR, the older of the two. With an empty argument
# it looks on PATH. Fails if either does not run.
rust_version() {
    local dir=$1 program version versions=()
    for program in cargo rustc; do
        version=$("$dir$program" --version 2>/dev/null) || return 1
        version=${version#"$program "}
        versions+=("${version%% *}")
    done
    printf '%s\n' "${versions[@]}" | sort -V | head -n 1
}

# Puts a cargo that is new enough first on PATH. Fails if there is none.
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
