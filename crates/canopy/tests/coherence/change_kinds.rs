//! Every kind of change, on every kind of filesystem that can be watched.

use super::rig::{DelayMeter, look, two_disks};
use canopy_testkit::PoolBed;
use canopy_testkit::cmd::{run_within, wait_until};
use canopy_testkit::{Kind, PATIENCE, as_user};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::time::{Duration, Instant};

struct Change {
    what: &'static str,
    /// Sets up the branches beforehand.
    before: fn(&PoolBed),
    /// The paths that are looked up through the pool.
    paths: &'static [&'static str],
    change: fn(&PoolBed),
}

fn mode(bed: &PoolBed, branch: usize, path: &str, mode: u32) {
    fs::set_permissions(bed.on(branch, path), fs::Permissions::from_mode(mode)).expect("chmod");
}

fn write(bed: &PoolBed, branch: usize, path: &str, text: &str) {
    fs::write(bed.on(branch, path), text).expect("a file");
}

fn mkdir(bed: &PoolBed, branch: usize, path: &str) {
    fs::create_dir_all(bed.on(branch, path)).expect("a directory");
}

fn rename(bed: &PoolBed, branch: usize, from: &str, to: &str) {
    fs::rename(bed.on(branch, from), bed.on(branch, to)).expect("a rename");
}

const CHANGES: &[Change] = &[
    Change { what: "a file appears", before: |_| {}, paths: &["f"], change: |bed| write(bed, 1, "f", "x") },
    Change {
        what: "a file is removed",
        before: |bed| write(bed, 0, "f", "x"),
        paths: &["f"],
        change: |bed| fs::remove_file(bed.on(0, "f")).expect("removal"),
    },
    Change {
        what: "a file below directories appears",
        before: |bed| mkdir(bed, 1, "d/e"),
        paths: &["d/e/f", "d/e", "d/x"],
        change: |bed| write(bed, 1, "d/e/f", "x"),
    },
    Change {
        what: "a directory appears",
        before: |_| {},
        paths: &["d", "d/e", "d/e/f"],
        change: |bed| {
            mkdir(bed, 1, "d/e");
            write(bed, 1, "d/e/f", "x");
        },
    },
    Change {
        what: "a directory is removed with its contents",
        before: |bed| {
            mkdir(bed, 0, "d/e");
            write(bed, 0, "d/e/f", "x");
        },
        paths: &["d", "d/e", "d/e/f"],
        change: |bed| fs::remove_dir_all(bed.on(0, "d")).expect("removal"),
    },
    Change {
        what: "a directory is removed from one branch and stays on the other",
        before: |bed| {
            mkdir(bed, 0, "d/e");
            mkdir(bed, 1, "d/e");
            write(bed, 0, "d/e/f", "x");
            write(bed, 1, "d/e/g", "x");
        },
        paths: &["d/e/f", "d/e/g", "d/e"],
        change: |bed| fs::remove_dir_all(bed.on(0, "d")).expect("removal"),
    },
    Change {
        what: "a file is renamed",
        before: |bed| write(bed, 0, "f", "x"),
        paths: &["f", "g"],
        change: |bed| rename(bed, 0, "f", "g"),
    },
    Change {
        what: "a file is replaced",
        before: |bed| {
            write(bed, 0, "f", "x");
            write(bed, 0, "g", "longer");
        },
        paths: &["f", "g"],
        change: |bed| rename(bed, 0, "g", "f"),
    },
    Change {
        what: "two files swap names",
        before: |bed| {
            write(bed, 0, "f", "x");
            write(bed, 0, "g", "longer");
        },
        paths: &["f", "g"],
        change: |bed| {
            rename(bed, 0, "f", "t");
            rename(bed, 0, "g", "f");
            rename(bed, 0, "t", "g");
        },
    },
    Change {
        what: "a directory is renamed",
        before: |bed| {
            mkdir(bed, 0, "d/e");
            write(bed, 0, "d/e/f", "x");
        },
        paths: &["d/e/f", "n/e/f", "d", "n", "d/e", "n/e"],
        change: |bed| rename(bed, 0, "d", "n"),
    },
    Change {
        what: "a directory is renamed to the name of a directory on the other branch",
        before: |bed| {
            mkdir(bed, 0, "d/e");
            write(bed, 0, "d/e/f", "x");
            mkdir(bed, 1, "n/e");
            write(bed, 1, "n/e/g", "x");
        },
        paths: &["d/e/f", "n/e/f", "n/e/g", "d/e/g"],
        change: |bed| rename(bed, 0, "d", "n"),
    },
    Change {
        what: "a directory is moved in from one that was never looked up",
        before: |bed| {
            mkdir(bed, 0, "far/d/e");
            write(bed, 0, "far/d/e/f", "x");
        },
        paths: &["d/e/f", "d/e", "d"],
        change: |bed| rename(bed, 0, "far/d", "d"),
    },
    Change {
        what: "a mode changes",
        before: |bed| write(bed, 1, "f", "x"),
        paths: &["f"],
        change: |bed| mode(bed, 1, "f", 0o600),
    },
    Change {
        what: "a directory's mode changes",
        before: |bed| mkdir(bed, 1, "d"),
        paths: &["d"],
        change: |bed| mode(bed, 1, "d", 0o700),
    },
    Change {
        what: "the root's mode changes",
        before: |_| {},
        paths: &[""],
        change: |bed| mode(bed, 0, "", 0o711),
    },
    Change {
        what: "a file is written and closed",
        before: |bed| write(bed, 1, "f", "x"),
        paths: &["f"],
        change: |bed| write(bed, 1, "f", "longer"),
    },
    Change {
        what: "a file's mode changes through another link",
        before: |bed| {
            write(bed, 0, "f", "x");
            mkdir(bed, 0, "unknown");
            fs::hard_link(bed.on(0, "f"), bed.on(0, "unknown/g")).expect("a link");
        },
        paths: &["f"],
        change: |bed| mode(bed, 0, "unknown/g", 0o600),
    },
    Change {
        what: "another link of a file is removed",
        before: |bed| {
            write(bed, 0, "f", "x");
            mkdir(bed, 0, "unknown");
            fs::hard_link(bed.on(0, "f"), bed.on(0, "unknown/g")).expect("a link");
        },
        paths: &["f"],
        change: |bed| fs::remove_file(bed.on(0, "unknown/g")).expect("removal"),
    },
    Change {
        what: "a file gets another link",
        before: |bed| write(bed, 0, "f", "x"),
        paths: &["f", "g"],
        change: |bed| fs::hard_link(bed.on(0, "f"), bed.on(0, "g")).expect("a link"),
    },
    Change {
        what: "a copy on an earlier branch hides another",
        before: |bed| write(bed, 1, "f", "x"),
        paths: &["f"],
        change: |bed| write(bed, 0, "f", "longer"),
    },
    Change {
        what: "a copy that hid another is removed",
        before: |bed| {
            write(bed, 1, "f", "x");
            write(bed, 0, "f", "longer");
        },
        paths: &["f"],
        change: |bed| fs::remove_file(bed.on(0, "f")).expect("removal"),
    },
    Change {
        what: "a symlink replaces a file",
        before: |bed| {
            write(bed, 0, "f", "x");
            symlink("elsewhere", bed.on(0, "l")).expect("a symlink");
        },
        paths: &["f", "l"],
        change: |bed| rename(bed, 0, "l", "f"),
    },
    Change {
        what: "a directory replaces a file",
        before: |bed| write(bed, 0, "f", "x"),
        paths: &["f"],
        change: |bed| {
            fs::remove_file(bed.on(0, "f")).expect("removal");
            mkdir(bed, 0, "f");
        },
    },
    Change {
        what: "a directory that was renamed through the pool changes on the branch",
        before: |bed| {
            mkdir(bed, 0, "old/e");
            // A change that makes the pool record the path of the directory.
            mode(bed, 0, "old/e", 0o700);
            assert!(wait_until(PATIENCE, || look(&bed.at("old/e")).ends_with("700")));
            fs::rename(bed.at("old"), bed.at("new")).expect("a rename through the pool");
        },
        paths: &["new/e/f", "old/e/f"],
        change: |bed| write(bed, 0, "new/e/f", "x"),
    },
];

/// Returns what the pool must show: the entry on the first branch that has it.
fn expected_at(bed: &PoolBed, path: &str) -> String {
    let first = (0..2).map(|branch| look(&bed.on(branch, path))).find(|seen| !seen.contains("found"));
    first.unwrap_or_else(|| look(&bed.on(0, path)))
}

fn every_change_on(kind: Kind) {
    let delays = DelayMeter::new();
    // What shows does so because the kernel is told, and not because it asks again after ten seconds.
    let bed = two_disks(kind, "cache.attr=3600");
    for Change { what, before, paths, change } in CHANGES {
        clear(&bed);
        before(&bed);
        let seen = || paths.iter().map(|path| look(&bed.at(path))).collect::<Vec<_>>();
        let expected = || paths.iter().map(|path| expected_at(&bed, path)).collect::<Vec<_>>();
        assert!(wait_until(PATIENCE, || seen() == expected()), "{what}: {:?}", seen());
        // Notifications may be repeated for a moment; after that, answers are cached.
        std::thread::sleep(Duration::from_millis(120));
        let was = seen();
        assert_eq!(was, expected(), "{what}");
        change(&bed);
        let changed = Instant::now();
        let right = expected();
        assert_ne!(was, right, "{what}: the change made no difference");
        let mut took = None;
        let quiet = Duration::from_millis(250);
        loop {
            let asked = Instant::now();
            let now = delays.timed(seen);
            if now == right {
                took.get_or_insert_with(|| changed.elapsed());
            } else {
                took = None;
                let late = delays.exceeds_bound(changed, asked);
                assert!(
                    !late,
                    "{what} on {kind:?}: {now:?} instead of {right:?} after {:?}",
                    asked - changed
                );
            }
            if took.is_some_and(|took| changed.elapsed() > took + quiet) {
                break;
            }
        }
        println!(
            "{kind:?}: {what}: {:?} (scheduling delays of up to {:?})",
            took.unwrap_or_default(),
            delays.worst()
        );
    }
    bed.pool.umount();
}

/// Removes everything, including what is only on the branches.
fn clear(bed: &PoolBed) {
    for branch in 0..2 {
        mode(bed, branch, "", 0o755);
        for entry in fs::read_dir(bed.on(branch, "")).expect("a listing") {
            let path = entry.expect("an entry").path();
            if path.is_dir() && !path.is_symlink() {
                fs::remove_dir_all(path).expect("removal")
            } else {
                fs::remove_file(path).expect("removal")
            }
        }
    }
}

#[test]
fn every_change_on_ext4() {
    every_change_on(Kind::Ext4);
}

#[test]
fn every_change_on_xfs() {
    every_change_on(Kind::Xfs);
}

#[test]
fn every_change_on_btrfs() {
    every_change_on(Kind::Btrfs);
}

#[test]
fn every_change_on_tmpfs() {
    every_change_on(Kind::Tmpfs);
}

/// Shows that the tests above can fail: without watching, stale answers stay cached.
#[test]
fn without_watching_a_stale_answer_stays_cached() {
    let bed = two_disks(
        Kind::Tmpfs,
        "cache.coherence=timeout,cache.entry=3600,cache.attr=3600,cache.negative-entry=3600",
    );
    write(&bed, 0, "f", "x");
    let stale = wait_until(PATIENCE, || {
        let (was, none) = (look(&bed.at("f")), look(&bed.at("g")));
        mode(&bed, 0, "f", 0o600);
        write(&bed, 0, "g", "x");
        std::thread::sleep(Duration::from_millis(200));
        let remembered = (look(&bed.at("f")), look(&bed.at("g"))) == (was, none);
        fs::remove_file(bed.on(0, "g")).expect("removal");
        mode(&bed, 0, "f", 0o644);
        remembered
    });
    assert!(stale);
    bed.pool.umount();
}

/// Permissions revoked on the branch are revoked through the pool too.
#[test]
fn permissions_revoked_on_the_branch_are_revoked_in_the_pool() {
    let bed = two_disks(Kind::Ext4, "cache.attr=3600");
    mkdir(&bed, 0, "d");
    write(&bed, 0, "d/f", "secret");
    mode(&bed, 0, "d", 0o755);
    mode(&bed, 0, "d/f", 0o644);
    let path = bed.at("d/f");
    let can = || {
        let mut reading = as_user(1000, 1000, &[], "cat");
        run_within(reading.arg(&path), PATIENCE).success()
    };
    assert!(can());
    mode(&bed, 0, "d/f", 0o600);
    assert!(wait_until(PATIENCE, || !can()));
    mode(&bed, 0, "d/f", 0o644);
    assert!(wait_until(PATIENCE, can));
    mode(&bed, 0, "d", 0o700);
    assert!(wait_until(PATIENCE, || !can()));
    bed.pool.umount();
}
