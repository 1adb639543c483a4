//! What is read again is read from a fast disk. Needs root.

#![forbid(unsafe_code)]

mod zipf;

use canopy_testkit::cmd::wait_until;
use canopy_testkit::{LoopFs, PATIENCE, Pool, PoolBed, PoolBuilder};
use std::ffi::OsStr;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

const BINARY: &str = env!("CARGO_BIN_EXE_canopy");

/// A file rests for so long before it is copied.
const RESTS: Duration = Duration::from_millis(200);
/// As the daemon is told, in milliseconds.
const CACHED_AFTER: (&str, &str) = ("CANOPY_TEST_CACHED_AFTER", "100");

fn builder() -> PoolBuilder {
    Pool::builder(BINARY).option("minfreespace=0").env(CACHED_AFTER.0, CACHED_AFTER.1)
}

fn film(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at / 7 % 251) as u8).collect()
}

fn copies(ssd: &Path) -> Vec<PathBuf> {
    let all =
        fs::read_dir(ssd.join(".canopy-cache")).into_iter().flatten().map(|entry| entry.unwrap().path());
    let is_copy = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        name != "reads" && !name.starts_with('.')
    };
    all.filter(is_copy).collect()
}

/// Reads a file of the pool until it has a copy.
fn cache(bed: &PoolBed, ssd: &Path, name: &str) {
    std::thread::sleep(RESTS);
    let cached = wait_until(PATIENCE, || {
        fs::read(bed.at(name)).unwrap();
        std::thread::sleep(Duration::from_millis(500));
        !copies(ssd).is_empty()
    });
    assert!(cached, "{name} gets a copy");
}

/// Removes all copies: the originals of those are held open.
fn forget_copies(pool: &Pool) {
    let dropped = pool.command(["cache", "drop", pool.path().to_str().unwrap()]);
    assert!(dropped.success(), "{}", dropped.describe());
}

/// Returns how many opens were served from copies.
fn hits(bed: &PoolBed) -> u64 {
    bed.pool.status()["read_caches"][0]["hits"].as_u64().unwrap()
}

/// Returns how many bytes a loop device was asked to read.
fn bytes_read(disk: &LoopFs) -> u64 {
    let device = disk.device().unwrap().file_name().unwrap().to_string_lossy().into_owned();
    let stat = fs::read_to_string(format!("/sys/block/{device}/stat")).unwrap();
    stat.split_whitespace().nth(2).unwrap().parse::<u64>().unwrap() * 512
}

#[test]
fn a_file_that_was_read_costs_its_disk_no_more_reads_until_it_changes() {
    for options in [&["cache.files=off"][..], &["cache.files=auto-full"], &["landlock=true"]] {
        let ssd = LoopFs::ext4(64 << 20);
        let option = format!("read-cache={}=films/**|when opened", ssd.path().display());
        let mut builder = builder().option(option);
        for option in options {
            builder = builder.option(*option);
        }
        let bed = PoolBed::mount(builder, [LoopFs::ext4(64 << 20)]);
        fs::create_dir(bed.at("films")).unwrap();
        let mut text = film(8 << 20);
        fs::write(bed.at("films/a"), &text).unwrap();
        cache(&bed, ssd.path(), "films/a");
        assert!(copies(bed.pool.path()).is_empty());

        let slow = &bed.disks[0];
        slow.drop_caches();
        let before = bytes_read(slow);
        assert!(fs::read(bed.at("films/a")).unwrap() == text, "{options:?}");
        let read = bytes_read(slow) - before;
        assert!(read < 1 << 20, "{options:?}: {read} bytes of the slow disk");

        // Readers see what is written, and what is changed on the branch.
        let reader = fs::File::open(bed.at("films/a")).unwrap();
        let mut buffer = [0; 5];
        reader.read_exact_at(&mut buffer, 4 << 20).unwrap();
        let writer = fs::File::options().write(true).open(bed.at("films/a")).unwrap();
        writer.write_all_at(b"other", 4 << 20).unwrap();
        text[4 << 20..][..5].copy_from_slice(b"other");
        drop(writer);
        reader.read_exact_at(&mut buffer, 4 << 20).unwrap();
        assert_eq!(&buffer, b"other", "{options:?}");
        drop(reader);
        assert!(fs::read(bed.at("films/a")).unwrap() == text, "{options:?}");
        cache(&bed, ssd.path(), "films/a");
        fs::File::options().write(true).open(bed.on(0, "films/a")).unwrap().write_all_at(b"TEXT", 0).unwrap();
        text[..4].copy_from_slice(b"TEXT");
        assert!(fs::read(bed.at("films/a")).unwrap() == text, "{options:?}");

        // A rename changes nothing of the file but its times.
        std::thread::sleep(RESTS);
        let before = hits(&bed);
        let is_hit = || fs::read(bed.at("films/a")).unwrap() == text && hits(&bed) > before;
        assert!(wait_until(PATIENCE, is_hit), "{options:?}");
        fs::rename(bed.at("films/a"), bed.at("films/b")).unwrap();
        let before = hits(&bed);
        assert!(fs::read(bed.at("films/b")).unwrap() == text, "{options:?}");
        assert!(hits(&bed) > before, "{options:?}");
        fs::remove_file(bed.at("films/b")).unwrap();
        assert!(!bed.at("films/b").exists());
        drop(bed);
    }
}

#[test]
fn a_film_with_a_copy_is_opened_while_all_disks_sleep() {
    for kind in [LoopFs::ext4, LoopFs::xfs, LoopFs::btrfs] {
        let (ssd, home) = (LoopFs::ext4(64 << 20), tempfile::tempdir().unwrap());
        let cache_option = format!("read-cache={}=films/**|when opened", ssd.path().display());
        let catalogue = format!("catalogue={}", home.path().display());
        // A catalogue learns at once what a file is.
        let builder = builder().option(cache_option).option(catalogue).env("CANOPY_TEST_RESTED", "0");
        let bed = PoolBed::mount(builder, [kind(320 << 20), kind(320 << 20)]);
        fs::create_dir_all(bed.at("films/of 1994")).unwrap();
        let text = film(8 << 20);
        fs::write(bed.at("films/of 1994/a"), &text).unwrap();
        cache(&bed, ssd.path(), "films/of 1994/a");
        let before = hits(&bed);
        let is_hit = || fs::read(bed.at("films/of 1994/a")).unwrap() == text && hits(&bed) > before;
        assert!(wait_until(PATIENCE, is_hit));
        // A catalogue learns a directory when it is listed.
        for dir in ["", "films", "films/of 1994"] {
            fs::read_dir(bed.at(dir)).unwrap().for_each(drop);
        }
        for round in 0..3 {
            // As if the kernel had needed the memory.
            bed.pool.drop_dentries();
            bed.disks.iter().for_each(LoopFs::drop_caches);
            fs::write("/proc/sys/vm/drop_caches", "3").unwrap();
            let reads = || bed.disks.iter().map(bytes_read).collect::<Vec<_>>();
            let mut before = reads();
            // What is known of the branches is looked over in the background after a mount.
            let rest = || {
                std::thread::sleep(Duration::from_secs(1));
                std::mem::replace(&mut before, reads()) == reads()
            };
            assert!(wait_until(PATIENCE, rest), "{round}: the disks never rest");
            assert!(fs::read(bed.at("films/of 1994/a")).unwrap() == text);
            assert_eq!(reads(), before, "{round}");
        }
        forget_copies(&bed.pool);
    }
}

#[test]
fn copies_go_before_a_disk_is_full() {
    let disks = [LoopFs::ext4(96 << 20), LoopFs::ext4(64 << 20)];
    let ssd = disks[1].path().to_owned();
    let option = format!("read-cache={}=films/**|when opened", ssd.display());
    let builder = builder().option("category.create=epmfs").option(option);
    fs::create_dir(disks[0].path().join("films")).unwrap();
    fs::create_dir(ssd.join("new")).unwrap();
    fs::write(disks[0].path().join("films/a"), film(24 << 20)).unwrap();
    let bed = PoolBed::mount(builder, disks);
    cache(&bed, &ssd, "films/a");
    assert!(!bed.at(".canopy-cache").exists());
    let names: Vec<_> =
        fs::read_dir(bed.pool.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!names.iter().any(|name| name.to_string_lossy().starts_with(".canopy")), "{names:?}");
    // Beside the copy there is no room for so much.
    fs::write(bed.at("new/b"), film(40 << 20)).unwrap();
    assert_eq!(bed.branches_with("new/b"), [1]);
    assert!(copies(&ssd).is_empty());
    assert!(fs::read(bed.at("films/a")).unwrap() == film(24 << 20));
}

/// Returns what `canopy` prints.
fn canopy(args: &[&str], stdin: &str) -> (bool, String) {
    let mut child = Command::new(BINARY)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(stdin.as_bytes()).unwrap();
    let done = child.wait_with_output().unwrap();
    let text = [done.stdout, done.stderr].concat();
    (done.status.success(), String::from_utf8(text).unwrap())
}

#[test]
fn files_are_cached_by_name() {
    let ssd = LoopFs::ext4(64 << 20);
    let option = format!("read-cache={}=films/**|only canopy cache add|size 20M", ssd.path().display());
    let bed = PoolBed::mount(builder().option(option), [LoopFs::ext4(96 << 20)]);
    let pool = bed.pool.path().to_str().unwrap();
    for (dir, name) in
        [("films/s", "1"), ("films/s", "2"), ("films", "a b"), ("films", "large"), ("music", "c")]
    {
        fs::create_dir_all(bed.at(dir)).unwrap();
        let size = if name == "large" { 30 << 20 } else { 1 << 20 };
        fs::write(bed.at(dir).join(name), film(size)).unwrap();
    }
    std::thread::sleep(RESTS);
    fs::read(bed.at("films/a b")).unwrap();
    assert_eq!(canopy(&["cache", "list", pool], ""), (true, "Nothing is cached.\n".into()));
    // As a media server lists them.
    let list = format!("{pool}/films/s/2\nfilms/a b\n");
    let (done, text) = canopy(&["cache", "add", pool, "-"], &list);
    assert!(done && text.contains("Cached: 2 files, 2.0M"), "{text}");
    let (done, text) = canopy(&["cache", "add", pool, "films", "music/c", "none"], "");
    for words in ["Cached: 3 files", "films/large: it does not fit", "music/c: no cache", "none: no file"] {
        assert!(!done && text.contains(words), "{words}: {text}");
    }
    let (done, text) = canopy(&["cache", "add", pool, "none"], "");
    assert!(!done && text.contains("1 of 1 files are not cached"), "{text}");
    fs::read(bed.at("films/s/1")).unwrap();
    let (_, text) = canopy(&["cache", "list", pool], "");
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines.len(), 5, "{text}");
    assert!(lines[1].ends_with(&["+", "films/a", "b"]) && lines[2][1] == "1", "{text}");
    assert!(lines[3].ends_with(&["+", "films/s/2"]), "{text}");
    // Long paths break the line anywhere.
    let (_, text) = canopy(&["status", pool], "");
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains(": 3 files, 3.0M; hits: 1 of "), "{text}");
    let (_, text) = canopy(&["metrics", pool], "");
    assert!(text.contains("result=\"hit\"} 1\n"), "{text}");
    assert_eq!(canopy(&["cache", "drop", pool, "films/s/*"], ""), (true, "Dropped: 2 files, 2.0M\n".into()));
    assert_eq!(copies(ssd.path()).len(), 1);
    assert_eq!(canopy(&["cache", "drop", pool], ""), (true, "Dropped: 1 files, 1.0M\n".into()));
    assert!(copies(ssd.path()).is_empty() && bed.at("films/s/1").exists());
}

#[test]
fn a_film_is_read_from_its_copy_as_soon_as_that_is_there() {
    let ssd = LoopFs::ext4(192 << 20);
    let option = format!("read-cache={}=**|when opened|spool", ssd.path().display());
    let bed = PoolBed::mount(builder().option(option), [LoopFs::ext4(192 << 20)]);
    let text = film(80 << 20);
    fs::write(bed.at("a"), &text).unwrap();
    std::thread::sleep(RESTS);
    let reader = fs::File::open(bed.at("a")).unwrap();
    let mut buffer = vec![0; 1 << 20];
    reader.read_exact_at(&mut buffer, 0).unwrap();
    assert!(buffer == text[..1 << 20]);
    assert!(wait_until(PATIENCE, || !copies(ssd.path()).is_empty()));
    bed.disks[0].drop_caches();
    let before = bytes_read(&bed.disks[0]);
    for at in 1..80 {
        reader.read_exact_at(&mut buffer, at << 20).unwrap();
        assert!(buffer == text[(at as usize) << 20..][..1 << 20]);
    }
    let read = bytes_read(&bed.disks[0]) - before;
    assert!(read < 1 << 20, "{read} bytes of the slow disk");
    // The writer takes the copy away from the reader in the middle of his file.
    fs::File::options().write(true).open(bed.at("a")).unwrap().write_all_at(b"other", 40 << 20).unwrap();
    reader.read_exact_at(&mut buffer[..5], 40 << 20).unwrap();
    assert_eq!(&buffer[..5], b"other");
    forget_copies(&bed.pool);
}

/// Returns whether a file in a directory of copies is one that is being made.
fn is_part(name: &OsStr) -> bool {
    name.to_string_lossy().starts_with(".canopy-clone")
}

#[test]
fn whenever_the_daemon_is_killed_no_stale_byte_is_read() {
    let (ssd, slow) = (LoopFs::ext4(96 << 20), LoopFs::ext4(96 << 20));
    let option = format!("read-cache={}=**|when opened|spool", ssd.path().display());
    let mount = || builder().option(option.clone()).branch(slow.path()).mount();
    let mut text = film(65 << 20);
    fs::write(slow.path().join("a"), &text).unwrap();
    let home = ssd.path().join(".canopy-cache");
    // As soon as there is so much of the copy, or it has its name.
    for upto in [0, 1, 20 << 20, 64 << 20, u64::MAX] {
        let _ = fs::remove_dir_all(&home);
        std::thread::sleep(RESTS);
        let mut pool = mount();
        drop(fs::File::open(pool.path().join("a")).unwrap());
        let is_there = || {
            let mut parts = fs::read_dir(&home)
                .into_iter()
                .flatten()
                .flatten()
                .filter(|entry| is_part(&entry.file_name()));
            !copies(ssd.path()).is_empty()
                || parts.any(|entry| entry.metadata().is_ok_and(|found| found.len() >= upto))
        };
        assert!(wait_until(PATIENCE, is_there), "{upto}");
        pool.kill();
        drop(pool);
        // What the next process finds is another file, with the same size and time of change of its data.
        let at = slow.path().join("a");
        let modified = fs::metadata(&at).unwrap().modified().unwrap();
        text[upto.min(9) as usize] ^= 1;
        let file = fs::File::options().write(true).open(&at).unwrap();
        file.write_all_at(&text, 0).unwrap();
        file.set_times(fs::FileTimes::new().set_modified(modified)).unwrap();
        drop(file);
        std::thread::sleep(RESTS);
        let pool = mount();
        let is_clean = || !fs::read_dir(&home).unwrap().any(|entry| is_part(&entry.unwrap().file_name()));
        assert!(wait_until(PATIENCE, is_clean), "{upto}");
        for _ in 0..2 {
            assert!(fs::read(pool.path().join("a")).unwrap() == text, "{upto}");
        }
        // The one of the file as it was makes room.
        let is_hit = || {
            fs::read(pool.path().join("a")).unwrap();
            pool.status()["read_caches"][0]["hits"].as_u64().unwrap() > 0
        };
        assert!(wait_until(PATIENCE, is_hit), "{upto}");
        assert!(fs::read(pool.path().join("a")).unwrap() == text, "{upto}");
        forget_copies(&pool);
    }
}
