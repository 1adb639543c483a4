//! All checks in every mode, on ext4 and on tmpfs.

use super::rig::{CACHES, Disks, Mode, log_count};
use super::{checks, direct_io, mmap};

/// Enough rounds for the defect to appear in nearly every run.
const SOAK: u32 = 150;

#[track_caller]
fn run_all_checks(modes: impl IntoIterator<Item = Mode>) {
    let disks = Disks::new();
    for mode in modes {
        let pool = disks.mode(mode);
        for place in [disks.ext4(&pool), disks.tmpfs(&pool)] {
            let note = |check: &str| eprintln!("{mode}: {check} in {}", place.pool.display());
            note("passthrough");
            checks::served_by(&pool, mode, &place.dir("served"));
            note("open orders");
            checks::open_orders(&place.dir("orders"));
            note("threads");
            checks::threads(&place.dir("threads"));
            note("fifty handles");
            checks::fifty_handles(&place.dir("fifty"));
            note("appending");
            checks::appending(&place.dir("append"));
            note("changed flags");
            checks::changed_flags(mode, &place.dir("flags"));
            note("truncation");
            checks::truncation(&place.dir("truncate"));
            note("O_DIRECT");
            direct_io::aligned(&place.dir("direct"));
            direct_io::unaligned(&place.dir("unaligned"));
            note("mapped");
            mmap::coherent(&place.dir("mapped"));
            mmap::append_only_descriptor(&place.dir("mapped-append"));
            mmap::fio(&place.dir("fio"));
            mmap::sqlite(&place.dir("sqlite"));
        }
        assert!(pool.is_alive(), "{mode}: the daemon died\n{}", pool.log());
        assert_eq!(log_count(&pool, "ERROR"), 0, "{mode}:\n{}", pool.log());
        assert!(log_count(&pool, "WARN") <= 1, "{mode}:\n{}", pool.log());
        pool.umount();
    }
}

fn all_caches(passthrough: &'static str) {
    run_all_checks(CACHES.map(|cache| Mode::new(passthrough, cache)));
}

#[test]
fn passthrough_off() {
    all_caches("off");
}

#[test]
fn passthrough_ro() {
    all_caches("ro");
}

#[test]
fn passthrough_wo() {
    all_caches("wo");
}

#[test]
fn passthrough_rw() {
    all_caches("rw");
}

#[test]
fn passthrough_auto() {
    all_caches("auto");
}

/// An explicit passthrough mode turns writeback off; `auto` yields to writeback.
#[test]
fn writeback() {
    run_all_checks(CACHES.map(|cache| Mode { writeback: true, ..Mode::new("off", cache) }));
    run_all_checks(
        [("rw", "auto-full"), ("ro", "full"), ("auto", "partial")]
            .map(|(passthrough, cache)| Mode { writeback: true, ..Mode::new(passthrough, cache) }),
    );
}

/// The kernel drops a file's cached pages at an open. An open during a write used to bring old data back into the
/// cache.
#[test]
fn opens_during_writes_do_not_bring_back_old_data() {
    let disks = Disks::new();
    for (passthrough, cache) in
        [("off", "partial"), ("off", "auto-full"), ("ro", "auto-full"), ("auto", "auto-full")]
    {
        let pool = disks.mode(Mode::new(passthrough, cache));
        let place = disks.tmpfs(&pool);
        for round in 0..SOAK {
            checks::threads(&place.dir(&round.to_string()));
        }
        pool.umount();
    }
}
