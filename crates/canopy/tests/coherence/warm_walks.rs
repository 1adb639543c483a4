//! Walks over directories that the kernel remembers: it lists them without the daemon, as long as they do not change.

use super::cached_listings::{open, part};
use super::rig::{Opens, open_by, two_disks};

use canopy_testkit::cmd::wait_until;
use canopy_testkit::{Kind, LoopFs, PATIENCE, Paused, PoolBed, Rng, Submount};
use rustix::fs::SeekFrom;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

/// What shows does so because the kernel is told, and not because attributes expire.
pub(super) const TOLD: &str = "cache.attr=3600";

/// Lists a tree with the attributes of everything in it, as `ls -lR` and `find -newer` do; returns the number of names.
pub(super) fn walk(dir: &Path) -> usize {
    let entries: Vec<_> =
        fs::read_dir(dir).expect("a listing").map(|entry| entry.expect("an entry")).collect();
    let below = entries.iter().map(|entry| {
        let meta = fs::symlink_metadata(entry.path()).expect("a name");
        if meta.is_dir() { walk(&entry.path()) } else { 0 }
    });
    entries.len() + below.sum::<usize>()
}

/// Returns what `work` returns while the daemon is stopped; `None` if it needs the daemon.
pub(super) fn without_daemon<T: Send>(bed: &PoolBed, work: impl FnOnce() -> T + Send) -> Option<T> {
    let paused = Paused::new(bed.pool.pid());
    let before = bed.pool.unanswered().0;
    let (sender, answer) = channel();
    thread::scope(|scope| {
        let worker = scope.spawn(move || sender.send(work()));
        let asked = || bed.pool.unanswered().0 > before;
        assert!(wait_until(PATIENCE, || worker.is_finished() || asked()), "neither an end nor a request");
        // Not every request is waited for.
        let answer = answer.recv_timeout(Duration::from_secs(1));
        drop(paused);
        answer.ok()
    })
}

fn names(dir: &Path) -> BTreeSet<String> {
    let listed = fs::read_dir(dir).expect("a listing");
    listed.map(|entry| entry.expect("an entry").file_name().into_string().expect("text")).collect()
}

/// Returns the names that a directory has on any branch.
fn on_branches(bed: &PoolBed, dir: &str) -> BTreeSet<String> {
    (0..2).flat_map(|branch| names(&bed.on(branch, dir))).collect()
}

fn make(bed: &PoolBed, dir: &str, files: usize) {
    for branch in 0..2 {
        fs::create_dir_all(bed.on(branch, dir)).expect("mkdir");
        (0..files / 2).for_each(|n| {
            drop(File::create(bed.on(branch, &format!("{dir}/{branch}.{n:04}"))).expect("a file"))
        });
    }
}

/// Waits until the directories that were changed on a branch count as quiet again.
pub(super) fn settle() {
    thread::sleep(Duration::from_millis(2300));
}

/// Whether the kernel comes to list a directory without the daemon. A listing may have to be read twice after a change,
/// and may be dropped between two attempts, because its attributes expire.
fn is_kept(bed: &PoolBed, dir: &str) -> bool {
    (0..5).any(|_| {
        let before = [names(&bed.at(dir)), names(&bed.at(dir)), names(&bed.at(dir))];
        without_daemon(bed, || names(&bed.at(dir)))
            .is_some_and(|listed| before.iter().all(|one| *one == listed))
    })
}

#[test]
fn a_warm_walk_sends_no_request() {
    let bed = open_by(Opens::Kernel, Kind::Tmpfs, TOLD);
    for dir in 0..30 {
        make(&bed, &format!("d{}/s{dir}", dir % 5), 20);
    }
    make(&bed, "long", 3000);
    settle();
    let known = walk(&bed.at(""));
    assert_eq!(known, 5 + 30 + 30 * 20 + 1 + 3000);
    let warm = (0..5).find_map(|_| {
        // Reading a directory changes its access time, which the second walk asks for.
        assert_eq!(walk(&bed.at("")), walk(&bed.at("")));
        without_daemon(&bed, || walk(&bed.at("")))
    });
    assert_eq!(warm, Some(known), "the kernel had to ask the daemon");
    // A change is seen, costs no more than its directory, and then the kernel knows that, too.
    File::create(bed.on(0, "d1/s1/new")).expect("a file");
    File::create(bed.at("d2/s2/new")).expect("a file");
    let seen = wait_until(PATIENCE, || walk(&bed.at("")) == known + 2);
    assert!(seen, "{} of {}", walk(&bed.at("")), known + 2);
    settle();
    assert!(is_kept(&bed, "d1/s1") && is_kept(&bed, "d2/s2"));
    bed.pool.umount();
}

/// Attributes that expire come in bulk with a listing. So a listing expires a little earlier.
#[test]
fn a_listing_is_read_anew_when_its_attributes_expire() {
    let bed = open_by(Opens::Kernel, Kind::Tmpfs, "cache.attr=3");
    make(&bed, "d", 20);
    settle();
    assert!(is_kept(&bed, "d"));
    assert!(
        wait_until(PATIENCE, || without_daemon(&bed, || names(&bed.at("d"))).is_none()),
        "the listing was kept"
    );
    assert!(is_kept(&bed, "d"));
    bed.pool.umount();
}

/// Without this the kernel would not cache the directory again until it evicts the inode.
#[test]
fn a_directory_that_changed_while_it_was_being_listed_is_cached_again() {
    let bed = open_by(Opens::Kernel, Kind::Tmpfs, TOLD);
    make(&bed, "d", 2000);
    settle();
    for round in 0..4 {
        let listing = open(&bed.at("d"));
        assert!(!part(&listing, 2000).is_empty() && !part(&listing, 2000).is_empty());
        if round % 2 == 0 {
            // Otherwise the listing goes on.
            drop(listing);
            fs::write(bed.on(0, &format!("d/new{round}")), "").expect("a file");
        } else {
            fs::remove_file(bed.on(1, &format!("d/1.{round:04}"))).expect("removed");
            thread::sleep(Duration::from_millis(50));
            while !part(&listing, 2000).is_empty() {}
        }
        assert!(wait_until(PATIENCE, || names(&bed.at("d")) == on_branches(&bed, "d")));
        settle();
        assert!(is_kept(&bed, "d"), "round {round}");
    }
    bed.pool.umount();
}

/// The kernel cannot be made to ask at each open again. Where it must not keep listings any more, they are dropped.
#[test]
fn listings_that_must_not_be_kept_any_more_are_dropped() {
    let dropped = |what: &str, dir: &str, bed: &PoolBed, on: &Path| {
        for round in 0..300 {
            let listed = names(&bed.at(dir));
            assert!(listed == names(&bed.at(dir)));
            fs::write(on.join(format!("n{round}")), "").expect("a file");
            let after = names(&bed.at(dir));
            assert_eq!(after.len(), listed.len() + 1, "{what}, round {round}");
        }
    };
    let bed = open_by(Opens::Kernel, Kind::Tmpfs, TOLD);
    for dir in ["a", "b", "c"] {
        make(&bed, dir, 400);
    }
    settle();
    assert!(["a", "b", "c"].iter().all(|dir| is_kept(&bed, dir)));
    bed.pool.set("cache.readdir", "false");
    dropped("cache.readdir=false", "a", &bed, &bed.on(0, "a"));
    bed.pool.umount();

    let bed = open_by(Opens::Kernel, Kind::Tmpfs, TOLD);
    make(&bed, "b", 400);
    settle();
    assert!(is_kept(&bed, "b"));
    bed.pool.set("cache.coherence", "timeout");
    dropped("cache.coherence=timeout", "b", &bed, &bed.on(1, "b"));
    bed.pool.set("cache.coherence", "watch");
    settle();
    assert!(is_kept(&bed, "b"), "listings are kept again");
    bed.pool.umount();

    // A branch that cannot be watched is added: another pool.
    let (inner, bed) = (two_disks(Kind::Tmpfs, ""), open_by(Opens::Kernel, Kind::Tmpfs, TOLD));
    make(&bed, "c", 400);
    settle();
    assert!(is_kept(&bed, "c"));
    fs::create_dir(inner.at("c")).expect("mkdir");
    fs::write(inner.at("c/inner"), "").expect("a file");
    bed.pool.set("branches", &format!("+>{}", inner.pool.path().display()));
    assert!(names(&bed.at("c")).contains("inner"), "the listings of before are dropped");
    dropped("a branch that is not watched", "c", &bed, &inner.on(0, "c"));
    bed.pool.set("branches", &format!("-{}", inner.pool.path().display()));
    assert!(!names(&bed.at("c")).contains("inner"), "and so they are now");
    bed.pool.umount();
    inner.pool.umount();

    // Another filesystem is mounted below a branch.
    let bed = open_by(Opens::Kernel, Kind::Tmpfs, TOLD);
    make(&bed, "d/sub", 400);
    settle();
    assert!(is_kept(&bed, "d/sub"));
    {
        let nested = Submount::tmpfs(bed.on(0, "d/sub"));
        assert!(wait_until(PATIENCE, || !names(&bed.at("d/sub")).contains("0.0000")));
        dropped("a filesystem below a branch", "d/sub", &bed, nested.path());
        bed.pool.drop_dentries();
    }
    bed.pool.umount();
}

/// In a directory in which a program works on a branch, only its first change may be listed late.
#[test]
fn a_listing_of_a_busy_directory_includes_every_earlier_change() {
    let bed = open_by(Opens::Kernel, Kind::Tmpfs, TOLD);
    make(&bed, "d", 20);
    settle();
    assert!(is_kept(&bed, "d"));
    fs::write(bed.on(0, "d/first"), "").expect("a file");
    assert!(wait_until(PATIENCE, || names(&bed.at("d")).contains("first")));
    // A directory is busy for a second, from the last event on. On a busy machine an event may come later than that.
    let late = |round: &usize| {
        let name = format!("n{round}");
        fs::write(bed.on(round % 2, &format!("d/{name}")), "").expect("a file");
        let listed = names(&bed.at("d")).contains(&name);
        assert!(listed || wait_until(PATIENCE, || names(&bed.at("d")).contains(&name)), "round {round}");
        !listed
    };
    let late = (0..500).filter(late).count();
    assert!(late <= 25, "{late} of 500 listings came too early");
    bed.pool.umount();
}

const DIRS: [&str; 3] = ["short", "long", "long/below"];

/// How many clients list, and how.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Listers {
    /// One, from the beginning to the end.
    One,
    /// Several. They also list only a part, or on from an earlier position.
    Several,
}

/// Branches and pool are changed while clients list.
fn storm(opens: Opens, kind: Kind, options: &str, listers: Listers) {
    let bed = open_by(opens, kind, options);
    for (dir, files) in DIRS.iter().zip([20, 1200, 300]) {
        make(&bed, dir, files);
    }
    let rounds = 25;
    for round in 0..rounds {
        let stop = AtomicBool::new(false);
        let running = || !stop.load(Ordering::Relaxed);
        thread::scope(|scope| {
            for lister in 0..if listers == Listers::One { 1 } else { 4_u64 } {
                let (bed, running) = (&bed, &running);
                scope.spawn(move || {
                    let mut rng = Rng::new(round << 8 | lister);
                    while running() {
                        let listing = open(&bed.at(DIRS[rng.index(DIRS.len())]));
                        // readdir(3) has room for as many names as the daemon gives in one answer.
                        let bytes = match listers {
                            Listers::One => 32 << 10,
                            Listers::Several => [600, 4096, 32 << 10][rng.index(3)],
                        };
                        let mut parts = if listers == Listers::Several && rng.chance(300) {
                            1 + rng.index(3)
                        } else {
                            usize::MAX
                        };
                        let mut positions = vec![0];
                        while parts > 0 {
                            parts -= 1;
                            let names = part(&listing, bytes);
                            let Some((_, last)) = names.last() else { break };
                            positions.push(*last);
                            if listers == Listers::Several && rng.chance(30) {
                                let to = positions[rng.index(positions.len())];
                                rustix::fs::seek(&listing, SeekFrom::Start(to)).expect("a seek");
                                parts = parts.min(20);
                            }
                        }
                    }
                });
            }
            for changer in 0..3_usize {
                let (bed, running) = (&bed, &running);
                scope.spawn(move || {
                    let mut rng = Rng::new(round << 8 | (100 + changer as u64));
                    while running() {
                        let dir = DIRS[rng.index(DIRS.len())];
                        let at = |name: usize| match changer {
                            2 => bed.at(&format!("{dir}/p{name}")),
                            branch => bed.on(branch, &format!("{dir}/b{branch}.{name}")),
                        };
                        let (one, other) = (rng.index(30), rng.index(30));
                        // Any of them may fail.
                        let _ = match rng.below(3) {
                            0 => File::create(at(one)).map(drop),
                            1 => fs::remove_file(at(one)),
                            _ => fs::rename(at(one), at(other)),
                        };
                        thread::sleep(Duration::from_micros(rng.below(3000)));
                    }
                });
            }
            thread::sleep(Duration::from_millis(200));
            stop.store(true, Ordering::Relaxed);
        });
        let differs = |dir: &&&str| names(&bed.at(dir)) != on_branches(&bed, dir);
        let right = || !DIRS.iter().any(|dir| differs(&dir));
        assert!(wait_until(PATIENCE, right), "round {round}: {:?}", DIRS.iter().find(differs));
        // No answer of before comes too late.
        thread::sleep(Duration::from_millis(20));
        assert!(right(), "round {round}: {:?} is outdated again", DIRS.iter().find(differs));
    }
    // The kernel may give up caching a directory that changes while several clients list it, or where a listing stopped.
    if (opens, listers) == (Opens::Kernel, Listers::One) {
        settle();
        assert!(DIRS.iter().all(|dir| is_kept(&bed, dir)), "the kernel caches no listing any more");
    }
    bed.pool.umount();
}

#[test]
fn listings_are_right_after_a_storm() {
    storm(Opens::Kernel, Kind::Tmpfs, TOLD, Listers::Several);
}

#[test]
fn listings_are_right_and_kept_after_a_storm_with_one_lister() {
    storm(Opens::Kernel, Kind::Tmpfs, TOLD, Listers::One);
}

#[test]
fn listings_are_right_after_a_storm_on_disks() {
    storm(Opens::Kernel, Kind::Ext4, "cache.readdir=true,cache.attr=3600", Listers::Several);
}

#[test]
fn listings_are_right_after_a_storm_where_the_daemon_opens_directories() {
    storm(Opens::Daemon, Kind::Tmpfs, TOLD, Listers::Several);
}

/// A directory on two branches that leaves one of them takes its names with it.
#[test]
fn a_directory_that_leaves_a_branch_or_arrives_there_is_listed_anew() {
    for opens in [Opens::Kernel, Opens::Daemon] {
        let bed = open_by(opens, Kind::Ext4, TOLD);
        make(&bed, "here/d", 20);
        make(&bed, "elsewhere", 2);
        settle();
        for _ in 0..10 {
            names(&bed.at("here/d"));
            assert_eq!(names(&bed.at("here/d")).len(), 20);
            fs::rename(bed.on(1, "here/d"), bed.on(1, "elsewhere/d")).expect("a rename");
            assert!(wait_until(PATIENCE, || names(&bed.at("here/d")).len() == 10));
            names(&bed.at("here/d"));
            fs::rename(bed.on(1, "elsewhere/d"), bed.on(1, "here/d")).expect("a rename");
            assert!(wait_until(PATIENCE, || names(&bed.at("here/d")).len() == 20));
        }
        bed.pool.umount();
    }
}

/// What was mounted on a kernel that has no such thing is mounted on one that has.
#[test]
fn the_daemon_opens_directories_where_their_listings_are_not_cached() {
    for (options, kept) in [("", true), ("cache.readdir=true", true), ("cache.readdir=false", false)] {
        let bed = open_by(Opens::Kernel, Kind::Tmpfs, options);
        make(&bed, "d", 10);
        settle();
        assert_eq!(is_kept(&bed, "d"), kept, "{options}");
        bed.pool.umount();
    }
    let disks = [LoopFs::tmpfs(64 << 20), LoopFs::tmpfs(64 << 20)];
    let bed = PoolBed::mount(super::rig::builder("cache.coherence=timeout"), disks);
    make(&bed, "d", 10);
    assert!(!is_kept(&bed, "d"));
    bed.pool.umount();
}
