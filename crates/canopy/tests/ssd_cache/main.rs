//! What is read again is read from a fast disk. Needs root.

#![forbid(unsafe_code)]

use canopy_testkit::cmd::wait_until;
use canopy_testkit::{LoopFs, PATIENCE, Pool, PoolBed};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

const BINARY: &str = env!("CARGO_BIN_EXE_canopy");

/// A file rests for so long before it is copied.
const RESTS: Duration = Duration::from_millis(4200);

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
        let mut builder = Pool::builder(BINARY).option("minfreespace=0").option(option);
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

        fs::rename(bed.at("films/a"), bed.at("films/b")).unwrap();
        assert!(fs::read(bed.at("films/b")).unwrap() == text, "{options:?}");
        fs::remove_file(bed.at("films/b")).unwrap();
        assert!(!bed.at("films/b").exists());
        drop(bed);
    }
}

#[test]
fn copies_go_before_a_disk_is_full() {
    let disks = [LoopFs::ext4(96 << 20), LoopFs::ext4(64 << 20)];
    let ssd = disks[1].path().to_owned();
    let option = format!("read-cache={}=films/**|when opened", ssd.display());
    let builder =
        Pool::builder(BINARY).option("minfreespace=0").option("category.create=epmfs").option(option);
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
