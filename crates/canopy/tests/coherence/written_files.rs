//! Writes on a branch show while the file is still open there, and attributes of files that are not written stay cached.
//!
//! What shows does so because the kernel is told: attributes are cached for an hour or more.

use super::rig::{BINARY, DelayMeter, builder, two_disks};
use super::warm_walks::{TOLD, settle, walk, without_daemon};

use canopy_testkit::cmd::wait_until;
use canopy_testkit::{Kind, LoopFs, PATIENCE, Pool, PoolBed, Rng};
use rustix::fs::{AtFlags, CWD, FallocateFlags, Timespec, Timestamps, UTIME_OMIT};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// Returns what stat(2) tells of a file, except its access time.
fn stat(path: &Path) -> (u32, u64, u64, (i64, i64), (i64, i64)) {
    let meta = fs::symlink_metadata(path).expect("a file");
    (
        meta.mode(),
        meta.nlink(),
        meta.size(),
        (meta.mtime(), meta.mtime_nsec()),
        (meta.ctime(), meta.ctime_nsec()),
    )
}

#[track_caller]
fn assert_shows(bed: &PoolBed, path: &str, on: &Path, what: &str) {
    let alike = || stat(&bed.at(path)) == stat(on);
    assert!(wait_until(PATIENCE, alike), "{what}: {:?} instead of {:?}", stat(&bed.at(path)), stat(on));
}

fn open(path: &Path) -> File {
    OpenOptions::new().write(true).read(true).open(path).expect("a file")
}

fn set_mtime(path: &Path, sec: i64) {
    let omit = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
    let times = Timestamps { last_access: omit, last_modification: Timespec { tv_sec: sec, tv_nsec: 0 } };
    rustix::fs::utimensat(CWD, path, &times, AtFlags::empty()).expect("times");
}

/// Makes files whose last change is long ago, and has the kernel know them.
fn known_files(bed: &PoolBed, names: &[&str]) {
    for name in names {
        fs::write(bed.on(0, name), "x").expect("a file");
        set_mtime(&bed.on(0, name), 1_000_000_000);
    }
    settle();
    for name in names {
        assert_shows(bed, name, &bed.on(0, name), name);
    }
}

/// A way to change a file that is open on the branch, by its path and as a file.
type Way = (&'static str, fn(&Path, &mut File));

const WAYS: &[Way] = &[
    ("write", |_, file| file.write_all(b"some text").expect("a write")),
    ("a write at an offset", |_, file| file.write_all_at(b"more", 5000).expect("a write")),
    ("ftruncate", |_, file| file.set_len(3).expect("truncate")),
    ("truncate by name", |path, _| {
        rustix::fs::ftruncate(open(path), 70_000).expect("truncate");
    }),
    ("open with O_TRUNC", |path, _| drop(File::create(path).expect("a file"))),
    ("fallocate", |_, file| {
        rustix::fs::fallocate(file, FallocateFlags::empty(), 0, 9000).expect("room");
    }),
    ("copy_file_range", |_, file| {
        let from = File::open("/proc/self/exe").expect("a file");
        std::io::copy(&mut std::io::Read::take(from, 3000), file).expect("a copy");
    }),
    ("a modification time alone", |path, _| set_mtime(path, 1_100_000_000)),
    ("chmod", |_, file| file.set_permissions(fs::Permissions::from_mode(0o600)).expect("chmod")),
];

#[test]
fn every_way_to_write_shows_while_the_file_is_open() {
    for kind in [Kind::Tmpfs, Kind::Ext4, Kind::Xfs, Kind::Btrfs] {
        let bed = two_disks(kind, TOLD);
        known_files(&bed, &["f"]);
        let mut file = open(&bed.on(0, "f"));
        for (what, change) in WAYS {
            let before = stat(&bed.on(0, "f"));
            change(&bed.on(0, "f"), &mut file);
            assert_ne!(before, stat(&bed.on(0, "f")), "{what} changed nothing");
            assert_shows(&bed, "f", &bed.on(0, "f"), what);
            thread::sleep(Duration::from_millis(50));
        }
        drop(file);
        assert_shows(&bed, "f", &bed.on(0, "f"), "close");
        bed.pool.umount();
    }
}

/// The file was opened before the pool was mounted.
#[test]
fn a_file_that_was_open_before_the_pool_was_mounted_shows() {
    let disk = LoopFs::tmpfs(64 << 20);
    let path = disk.path().join("f");
    fs::write(&path, "x").expect("a file");
    set_mtime(&path, 1_000_000_000);
    let mut file = open(&path);
    let bed = PoolBed::mount(builder(""), [disk]);
    assert_shows(&bed, "f", &path, "mount");
    for round in 0..10 {
        file.write_all(&[b'x'; 100]).expect("a write");
        assert_shows(&bed, "f", &path, &format!("write {round}"));
    }
    drop(file);
    bed.pool.umount();
}

/// Whoever goes on writing is not reported again, and what is shown is right at every moment; once the file is closed, the
/// kernel knows it again.
#[test]
fn a_file_that_is_being_written_shows_as_it_is() {
    let bed = two_disks(Kind::Ext4, TOLD);
    known_files(&bed, &["f", "other"]);
    let delays = DelayMeter::new();
    for through_pool in [false, true] {
        let path = if through_pool { bed.at("f") } else { bed.on(0, "f") };
        let mut file = OpenOptions::new().append(true).open(path).expect("a file");
        let end = Instant::now() + Duration::from_secs(4);
        while Instant::now() < end {
            for _ in 0..50 {
                file.write_all(&[b'y'; 10]).expect("a write");
            }
            let written = Instant::now();
            loop {
                let asked = Instant::now();
                let (shown, right) = (delays.timed(|| stat(&bed.at("f"))), stat(&bed.on(0, "f")));
                if shown == right {
                    break;
                }
                let late = delays.exceeds_bound(written, asked);
                assert!(!late, "{shown:?} instead of {right:?} through the pool: {through_pool}");
            }
            thread::sleep(Duration::from_millis(3));
        }
        drop(file);
        assert_shows(&bed, "f", &bed.on(0, "f"), "close");
        settle();
        let known = || ["f", "other"].map(|name| stat(&bed.at(name)));
        let before = known();
        assert_eq!(without_daemon(&bed, known), Some(before), "written through the pool: {through_pool}");
    }
    // The marks have ended: a write is reported.
    let mut file = OpenOptions::new().append(true).open(bed.on(0, "f")).expect("a file");
    file.write_all(b"z").expect("a write");
    assert_shows(&bed, "f", &bed.on(0, "f"), "a write after the close");
    bed.pool.umount();
}

#[test]
fn another_who_goes_on_writing_after_a_close_shows() {
    let bed = two_disks(Kind::Tmpfs, TOLD);
    known_files(&bed, &["f"]);
    let mut files = [(); 2].map(|()| OpenOptions::new().append(true).open(bed.on(0, "f")).expect("a file"));
    for _ in 0..300 {
        files[0].write_all(b"y").expect("a write");
        thread::sleep(Duration::from_millis(2));
    }
    drop(std::mem::replace(&mut files[1], File::open(bed.on(0, "f")).expect("a file")));
    for round in 0..20 {
        files[0].write_all(b"y").expect("a write");
        assert_shows(&bed, "f", &bed.on(0, "f"), &format!("write {round} after another's close"));
        thread::sleep(Duration::from_millis(20));
    }
    bed.pool.umount();
}

/// A pipe that is written on the branch all the time is not opened by the pool, and its times show.
#[test]
fn a_pipe_that_is_being_written_shows_and_stays_alone() {
    let bed = two_disks(Kind::Tmpfs, TOLD);
    let on = bed.on(0, "pipe");
    rustix::fs::mknodat(CWD, &on, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0).expect("a pipe");
    let mut pipe = open(&on);
    for round in 0..100 {
        pipe.write_all(b"x").expect("a write");
        let alike = || stat(&bed.at("pipe")) == stat(&on);
        assert!(wait_until(PATIENCE, alike), "{round}: {:?} {:?}", stat(&bed.at("pipe")), stat(&on));
        thread::sleep(Duration::from_millis(5));
    }
    let mut all = [0; 100];
    std::io::Read::read_exact(&mut pipe, &mut all).expect("what was written");
    drop(pipe);
    let mode = rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::NONBLOCK;
    let reader = rustix::fs::open(&on, mode, rustix::fs::Mode::empty());
    assert_eq!(reader.err(), Some(rustix::io::Errno::NXIO), "nobody has it open for reading");
    bed.pool.umount();
}

/// A branch need not be the root of its filesystem: a file may have another name outside of it.
#[test]
fn changes_by_a_name_outside_of_the_branch_show() {
    let disk = LoopFs::ext4(64 << 20);
    let (branch, outside) = (disk.path().join("branch"), disk.path().join("outside"));
    for dir in [&branch, &outside] {
        fs::create_dir(dir).expect("mkdir");
    }
    let pool = Pool::builder(BINARY)
        .option("minfreespace=0,cache.coherence=watch")
        .option(TOLD)
        .branch(&branch)
        .mount();
    let missing = pool.status()["kernel"]["missing"].to_string();
    assert!(!missing.contains("fan_mark_ignore"), "{missing}");
    fs::write(branch.join("f"), "x").expect("a file");
    fs::hard_link(branch.join("f"), outside.join("g")).expect("a link");
    set_mtime(&outside.join("g"), 1_000_000_000);
    settle();
    let follows = |what: &str| {
        let alike = || stat(&pool.path().join("f")) == stat(&branch.join("f"));
        assert!(wait_until(PATIENCE, alike), "{what}");
        thread::sleep(Duration::from_millis(200));
        assert!(alike(), "{what}");
    };
    follows("link");
    let mut file = open(&outside.join("g"));
    for (what, change) in WAYS {
        change(&outside.join("g"), &mut file);
        follows(what);
    }
    drop(file);
    fs::hard_link(outside.join("g"), outside.join("h")).expect("a link");
    follows("another link");
    fs::write(outside.join("new"), "x").expect("a file");
    fs::rename(outside.join("new"), outside.join("h")).expect("a rename");
    follows("a link that is replaced");
    fs::remove_file(outside.join("g")).expect("removal");
    follows("a link that is removed");
    pool.umount();
}

/// A tree that was walked is walked again later without any request.
#[test]
fn a_walk_after_a_while_sends_no_request() {
    let bed = two_disks(Kind::Tmpfs, "");
    for dir in 0..20 {
        for branch in 0..2 {
            fs::create_dir_all(bed.on(branch, &format!("d{dir}"))).expect("mkdir");
            for file in 0..20 {
                fs::write(bed.on(branch, &format!("d{dir}/{branch}.{file}")), "x").expect("a file");
            }
        }
    }
    // The files have to be older than this.
    thread::sleep(Duration::from_secs(11));
    // Another program may have the kernel forget all meanwhile.
    let silent = (0..3).any(|_| {
        let known = walk(&bed.at(""));
        // Reading a directory changes its access time, which the next walk asks for.
        walk(&bed.at(""));
        walk(&bed.at(""));
        thread::sleep(Duration::from_secs(12));
        without_daemon(&bed, || walk(&bed.at(""))) == Some(known)
    });
    assert!(silent, "the kernel had to ask the daemon");
    bed.pool.umount();
}

/// Before Linux 6.0, writes are not reported: attributes are cached for ten seconds.
#[test]
fn writes_show_after_a_while_where_they_are_not_reported() {
    let disks = [0, 1].map(|_| LoopFs::tmpfs(64 << 20));
    let bed = PoolBed::mount(builder("").env("CANOPY_TEST_UNREPORTED_WRITES", "1"), disks);
    let missing = bed.pool.status()["kernel"]["missing"].to_string();
    assert!(missing.contains("fan_mark_ignore"), "{missing}");
    known_files(&bed, &["f"]);
    let mut file = open(&bed.on(0, "f"));
    file.write_all(b"some text").expect("a write");
    assert_shows(&bed, "f", &bed.on(0, "f"), "a write");
    // A file that has just changed is asked for every second.
    let begun = Instant::now();
    file.write_all(b"more").expect("a write");
    assert_shows(&bed, "f", &bed.on(0, "f"), "another write");
    println!("shown after {:?}", begun.elapsed());
    drop(file);
    let log = bed.pool.umount();
    assert!(log.contains("when the file is closed"), "{log}");
}

/// Files, written in random ways by two who hold them open, beside somebody who renames and links them: what is shown is
/// right at once, or is asked for.
#[test]
fn random_writes_show() {
    const FILES: usize = 12;
    let seed = std::env::var("CANOPY_COHERENCE_SEED").map_or(7, |text| text.parse().expect("a number"));
    for (kind, rounds) in [(Kind::Tmpfs, 400), (Kind::Ext4, 200)] {
        let bed = two_disks(kind, TOLD);
        let mut rng = Rng::new(seed);
        let name = |n: usize| format!("f{n}");
        let names: Vec<String> = (0..FILES).map(name).collect();
        known_files(&bed, &names.iter().map(String::as_str).collect::<Vec<_>>());
        let mut opened: Vec<Option<File>> = (0..FILES).map(|_| None).collect();
        for round in 0..rounds {
            let n = rng.index(FILES);
            let (on, at) = (bed.on(0, &name(n)), bed.at(&name(n)));
            let what = rng.below(9);
            match what {
                0 => opened[n] = Some(open(&on)),
                1 => opened[n] = Some(open(&at)),
                2 => opened[n] = None,
                3 => fs::rename(bed.on(0, &name(rng.index(FILES))), &on).expect("a rename"),
                4 => set_mtime(&on, 1_200_000_000 + round),
                5 => drop(open(&on).write_all(b"text")),
                6 => drop(rustix::fs::ftruncate(open(&at), rng.below(100_000))),
                _ => {
                    let file = opened[n].get_or_insert_with(|| open(&on));
                    for _ in 0..=rng.below(40) {
                        file.write_all_at(&[b'z'; 100], rng.below(10_000)).expect("a write");
                        if rng.below(4) == 0 {
                            thread::sleep(Duration::from_millis(1));
                        }
                    }
                }
            }
            // A rename leaves a name free.
            for free in (0..FILES).filter(|&n| !bed.on(0, &name(n)).exists()) {
                fs::write(bed.on(0, &name(free)), "new").expect("a file");
            }
            let alike = |n: usize| {
                let shown =
                    fs::symlink_metadata(bed.at(&name(n))).map(|meta| (meta.size(), meta.mtime_nsec()));
                let there =
                    fs::symlink_metadata(bed.on(0, &name(n))).map(|meta| (meta.size(), meta.mtime_nsec()));
                shown.is_ok_and(|shown| there.is_ok_and(|there| shown == there))
            };
            for n in 0..FILES {
                assert!(
                    wait_until(PATIENCE, || alike(n)),
                    "seed {seed}, round {round}, change {what}, file {n}"
                );
            }
        }
        // Nothing is stale in the long run either.
        settle();
        opened.clear();
        for name in &names {
            assert_shows(&bed, name, &bed.on(0, name), "the end");
        }
        bed.pool.umount();
    }
}
