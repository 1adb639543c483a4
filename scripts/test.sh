#!/usr/bin/env bash
# Installs what the tests need and runs them.
#   test.sh                    all of them, with the external suites; needs root, because they mount filesystems
#   test.sh NAME [FILTER ...]  the tests of a crate (pool, fuse, sys, ...) or one test program (coherence, full_disks, ...);
#                              with FILTER only those whose names contain it; needs root
#   test.sh --fast             the tests that mount nothing, in under two minutes; as root some more than otherwise
#   test.sh --kernel 6.1|6.12|7.3|sid|all [NAME [FILTER ...]]
#                              the tests that need another kernel, or those of a test program of `canopy`, on Debian's kernels
#                              in a virtual machine (scripts/kernel-tests.sh)
#   test.sh --packages [debian-12|debian-13|static|image ...]
#                              the packages, on bare systems (scripts/package-tests.sh)
#   test.sh --boot [fstab|unit ...]
#                              a machine with systemd boots with a disk that is dead (scripts/boot-tests.sh)
#   test.sh --neighbours [NAME ...]
#                              servers and databases over a pool, network filesystems below it (scripts/neighbour-tests.sh)
#   test.sh --web [FILTER]     the screen in the browser, in Chromium (scripts/web-tests.sh); with --bare, a pool's life on a bare Debian 13
#   test.sh --filesystems [tmpfs|xfs|btrfs|ext4|mixed ...]
#                              pjdfstest, fsx, the random changes and the mounted model over branches on each of these
#   test.sh --storm [SEED [MINUTES]] [OPTION ...]
#                              everything that can happen to a pool, at random, beside a plain directory (crates/storm)
#   test.sh --list             lists the names
# If there is no compiler that is new enough, it asks before it installs one with rustup; with --yes as the first
# argument it does not ask.
set -euo pipefail
cd "$(dirname "$0")/.."

# Test programs that need neither root nor a mount. The unit tests of every crate but the testkit are the others.
readonly FAST=(wire explain no_openat2 stress)
# Those that mount nothing either, but watch the branches, which only root may. Left out: model and listing, which take minutes.
readonly FAST_AS_ROOT=(branch_health descriptor_limit dir_attributes forgotten_nodes idle_files in_process mergerfs_defects newest
    node_ids places recreated relocate replay_rename)

# When all run, these run one after the other, and all other programs beside them. They drop the caches of the machine, count what is
# read from disks and asked of a pool, or compare speeds. None of the others may do the first.
readonly APART=(bench coherence datapath failing_branches full_disks hung_branches mounted_model nfs_handles real_kernels requests
    sleeping_disks slow_operations ssd_cache survival upkeep workloads)

fail() {
    printf 'test: %s\n' "$*" >&2
    exit 1
}

# What can be below the branches (CANOPY_TEST_BRANCHES).
readonly FILESYSTEMS=(tmpfs xfs btrfs ext4 mixed)

# Prints each test program and the package that it belongs to.
programs() {
    local file crate
    for file in crates/*/tests/*.rs crates/*/tests/*/main.rs; do
        crate=${file#crates/} file=${file%/main.rs}
        printf '%s canopy-%s\n' "$(basename "$file" .rs)" "${crate%%/*}"
    done | sed 's/ canopy-canopy$/ canopy/'
}

crates() { printf '%s\n' crates/*/Cargo.toml | cut -d/ -f2; }

# prepare fast|test: everything that the tests need, and cargo on PATH.
prepare() {
    scripts/setup.sh "$1" ${yes:+"$yes"}
    # shellcheck source=scripts/rust.sh
    . scripts/rust.sh
    rust_on_path
}

needs_root() { ((EUID == 0)) || fail "needs root, to mount filesystems (run sudo $0; --fast needs no root)"; }

yes=
if [[ ${1:-} == --yes ]]; then
    yes=--yes
    shift
fi
case ${1:-} in
--list)
    (($# == 1)) || fail "--list takes no arguments"
    printf 'crates:\n%s\ntest programs, each with its crate:\n%s\n' "$(crates | sed 's/^/  /')" \
        "$(programs | sort | awk '{ printf "  %-20s %s\n", $1, $2 }')"
    ;;
--fast)
    (($# == 1)) || fail "--fast takes no arguments (scripts/test.sh NAME FILTER runs some tests of a program)"
    # Debian gives only root a PATH with mkfs on it.
    export PATH=$PATH:/usr/sbin:/sbin
    prepare fast
    if ((EUID == 0)); then
        cargo test --workspace --exclude canopy-testkit --lib "${FAST[@]/#/--test=}"
        cargo test -p canopy-pool -p canopy-server "${FAST_AS_ROOT[@]/#/--test=}"
    else
        cargo test --workspace --exclude canopy-testkit --lib "${FAST[@]/#/--test=}" -- --skip on_disks
        cargo test -p canopy-server --test in_process operations
    fi
    ;;
--kernel)
    shift
    exec scripts/kernel-tests.sh "$@"
    ;;
--packages)
    shift
    exec scripts/package-tests.sh "$@"
    ;;
--web)
    shift
    exec scripts/web-tests.sh "$@"
    ;;
--filesystems)
    shift
    needs_root
    prepare test
    (($# > 0)) || set -- "${FILESYSTEMS[@]}"
    failed=()
    for filesystem; do
        [[ " ${FILESYSTEMS[*]} " == *" $filesystem "* ]] || fail "unknown filesystem: $filesystem (${FILESYSTEMS[*]})"
    done
    for filesystem; do
        printf 'test: branches on %s\n' "$filesystem"
        export CANOPY_TEST_BRANCHES=$filesystem
        cargo test -p canopy --test suites -- pjdfstest fsx || failed+=("$filesystem: suites")
        cargo test -p canopy --test coherence -- random_changes --nocapture || failed+=("$filesystem: coherence")
        cargo test -p canopy --test mounted_model || failed+=("$filesystem: mounted_model")
    done
    ((${#failed[@]} == 0)) || fail "failed: ${failed[*]}"
    ;;
--boot)
    shift
    exec scripts/boot-tests.sh "$@"
    ;;
--neighbours)
    shift
    exec scripts/neighbour-tests.sh "$@"
    ;;
--storm)
    shift
    needs_root
    prepare test
    # Many deaths within a minute are no reason to give up then.
    cargo build --package canopy --features test-switches
    cargo build --package canopy-storm
    exec "${CARGO_TARGET_DIR:-target}/debug/canopy-storm" "$@"
    ;;
-*) fail "unknown option: $1 (--fast, --kernel, --packages, --boot, --neighbours, --web, --filesystems, --storm, --list, --yes)" ;;
'')
    needs_root
    prepare test
    cargo test --workspace --no-run
    mapfile -t beside < <(programs | awk -v apart=" ${APART[*]} " '!index(apart, " " $1 " ") { print "--test=" $1 }' | sort -u)
    log=$(mktemp)
    trap 'rm -f "$log"' EXIT
    # A shell has what runs beside it ignore SIGINT. `timeout` has it take that signal again.
    timeout --foreground 2h cargo test --workspace --no-fail-fast --lib --bins "${beside[@]}" >"$log" 2>&1 &
    outcome=0
    cargo test --workspace --no-fail-fast "${APART[@]/#/--test=}" || outcome=$?
    wait $! || outcome=$?
    cat "$log"
    cargo test --workspace --no-fail-fast --doc || outcome=$?
    exit "$outcome"
    ;;
*)
    name=$1
    shift
    # Some names are both: the crate `preload` is tested by a program of `canopy`.
    mapfile -t runs < <(
        if crates | grep -qxF -- "$name"; then printf -- '-p canopy-%s\n' "$name" | sed 's/canopy-canopy$/canopy/'; fi
        programs | awk -v name="$name" '$1 == name { print "-p " $2 " --test " name }'
    )
    ((${#runs[@]} > 0)) || fail "no crate and no test program is called $name (scripts/test.sh --list)"
    needs_root
    prepare test
    for run in "${runs[@]}"; do
        # shellcheck disable=SC2086 # options, separated by blanks
        cargo test $run -- "$@"
    done
    ;;
esac
