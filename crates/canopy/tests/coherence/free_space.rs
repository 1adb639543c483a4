//! statvfs(3) of the pool, right after changes.

use super::rig::{BINARY, BOUND};
use canopy_testkit::cmd::wait_until;
use canopy_testkit::{Kind, LoopFs, Pool, PoolBed};
use std::fs::{self, OpenOptions};
use std::io::Write;

const SIZE: usize = 256 << 10;

/// Changes by one program are on one processor a few microseconds apart, so an answer that is remembered shows.
#[test]
fn figures_show_what_the_pool_has_changed_at_once() {
    for options in ["", "passthrough.io=off", "statfs=full"] {
        let builder = Pool::builder(BINARY).option("minfreespace=0").option(options);
        let bed =
            PoolBed::mount(builder, [LoopFs::new(Kind::Tmpfs, 64 << 20), LoopFs::new(Kind::Tmpfs, 64 << 20)]);
        let figures = || rustix::fs::statvfs(bed.at("")).expect("statvfs");
        let (free, files) = (|| figures().f_bfree * figures().f_frsize, || figures().f_ffree);
        for round in 0..20 {
            let (before, files_before) = (free(), files());
            fs::create_dir(bed.at(&format!("d{round}"))).expect("mkdir");
            assert_eq!(files(), files_before - 1, "{options}, {round}: a directory");
            let path = bed.at(&format!("f{round}"));
            let mut file = fs::File::create(&path).expect("a file");
            assert_eq!(files(), files_before - 2, "{options}, {round}: a file");
            file.write_all(&[1; SIZE]).expect("a write");
            assert_eq!(free(), before - SIZE as u64, "{options}, {round}: open for writing");
            file.write_all(&[1; SIZE]).expect("a write");
            drop(file);
            assert_eq!(free(), before - 2 * SIZE as u64, "{options}, {round}: closed");
            OpenOptions::new()
                .write(true)
                .open(&path)
                .and_then(|file| file.set_len(SIZE as u64))
                .expect("truncate");
            assert_eq!(free(), before - SIZE as u64, "{options}, {round}: truncated");
            OpenOptions::new().write(true).truncate(true).open(&path).expect("an open");
            assert_eq!(free(), before, "{options}, {round}: truncated by open");
        }
        // Another program's change shows after a moment.
        let before = free();
        fs::write(bed.on(1, "direct"), [1; SIZE]).expect("a file");
        assert!(wait_until(BOUND * 10, || free() == before - SIZE as u64), "{options}");
    }
}

/// Subvolumes have a device number each, and share the space of their filesystem.
#[test]
fn a_btrfs_counts_once_however_many_subvolumes_are_branches() {
    let disk = LoopFs::btrfs(256 << 20);
    let subvolumes = ["one", "two"].map(|name| disk.path().join(name));
    for path in &subvolumes {
        let done = std::process::Command::new("btrfs").args(["-q", "subvolume", "create"]).arg(path).status();
        assert!(done.expect("btrfs").success());
    }
    let other = LoopFs::tmpfs(64 << 20);
    for options in ["statfs=base", "statfs=full"] {
        let builder = Pool::builder(BINARY).branches(subvolumes.clone()).branch(other.path());
        let pool = builder.option("minfreespace=0").option(options).mount();
        for path in subvolumes.iter().map(std::path::PathBuf::as_path).chain([other.path()]) {
            fs::create_dir_all(path.join("dir")).expect("mkdir");
        }
        let size = |path: &std::path::Path| {
            let figures = rustix::fs::statvfs(path).expect("statvfs");
            figures.f_blocks * figures.f_frsize
        };
        let expected = size(disk.path()) + size(other.path());
        assert_eq!([size(pool.path()), size(&pool.path().join("dir"))], [expected; 2], "{options}");
        pool.umount();
    }
}
