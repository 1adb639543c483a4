//! Open files without a name: every operation on a descriptor works as on the branch.

use super::files::{open, read_at, size, write_at};
use super::rig::{Disks, Mode};
use rustix::fd::OwnedFd;
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, Gid, Mode as Bits, OFlags, Timespec, Timestamps, Uid, XattrFlags,
};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Performs every operation and describes the results.
fn all_operations(fd: &OwnedFd) -> String {
    write_at(fd, 0, b"hello, world");
    rustix::fs::ftruncate(fd, 5).expect("ftruncate");
    rustix::fs::fallocate(fd, FallocateFlags::empty(), 4096, 4096).expect("fallocate");
    rustix::fs::fchmod(fd, Bits::from_raw_mode(0o640)).expect("fchmod");
    rustix::fs::fchown(fd, Some(Uid::from_raw(12)), Some(Gid::from_raw(34))).expect("fchown");
    let at = |tv_sec| Timespec { tv_sec, tv_nsec: 7 };
    rustix::fs::futimens(fd, &Timestamps { last_access: at(1000), last_modification: at(2000) })
        .expect("futimens");
    rustix::fs::fsetxattr(fd, c"user.name", b"value", XattrFlags::CREATE).expect("fsetxattr");
    let mut value = [0; 16];
    let len = rustix::fs::fgetxattr(fd, c"user.name", &mut value).expect("fgetxattr");
    assert_eq!(&value[..len], b"value");
    rustix::fs::fsync(fd).expect("fsync");
    let stat = rustix::fs::fstat(fd).expect("fstat");
    format!(
        "{:o} {} {} {} links, {} bytes, {} {}, {:?}",
        stat.st_mode,
        stat.st_uid,
        stat.st_gid,
        stat.st_nlink,
        stat.st_size,
        stat.st_mtime,
        stat.st_mtime_nsec,
        read_at(fd, 0, 8)
    )
}

/// Deletes a file while it is open.
fn deleted(dir: &Path) -> String {
    let path = dir.join("deleted");
    let fd = open(&path, OFlags::RDWR | OFlags::CREATE);
    let other = open(&path, OFlags::RDONLY);
    fs::remove_file(&path).expect("unlink");
    let results = all_operations(&fd);
    assert_eq!(read_at(&other, 0, 5), b"hello");
    // A new file with the old name is unrelated.
    fs::write(&path, "new").expect("a write");
    assert_eq!((size(&other), fs::read(&path).expect("a read")), (8192, b"new".to_vec()));
    results
}

/// Replaces a file by a rename while it is open.
fn replaced(dir: &Path) -> String {
    let (path, new) = (dir.join("replaced"), dir.join("new"));
    let fd = open(&path, OFlags::RDWR | OFlags::CREATE);
    fs::write(&new, "new").and_then(|()| fs::rename(&new, &path)).expect("rename");
    let results = all_operations(&fd);
    assert_eq!(fs::read(&path).expect("a read"), b"new");
    results
}

/// Creates a file without a name and links it afterwards.
fn nameless(dir: &Path) -> String {
    let fd = open(dir, OFlags::RDWR | OFlags::TMPFILE);
    let results = all_operations(&fd);
    let link = |fd: &OwnedFd, name: &str| {
        let proc = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(fd));
        rustix::fs::linkat(CWD, proc, CWD, dir.join(name), AtFlags::SYMLINK_FOLLOW)
    };
    link(&fd, "named").expect("linkat");
    let named = fs::metadata(dir.join("named")).expect("stat");
    let stat = rustix::fs::fstat(&fd).expect("fstat");
    assert_eq!((named.nlink(), stat.st_nlink as u64, named.len()), (1, 1, 8192));
    write_at(&fd, 0, b"HELLO");
    assert_eq!(&fs::read(dir.join("named")).expect("a read")[..5], b"HELLO");
    // With O_EXCL it can never be linked.
    let never = open(dir, OFlags::RDWR | OFlags::TMPFILE | OFlags::EXCL);
    format!("{results} {:?}", link(&never, "never"))
}

#[test]
fn everything_works_without_a_name() {
    let disks = Disks::new();
    for mode in [Mode::new("auto", "off"), Mode::new("off", "off"), Mode::new("off", "full")] {
        let pool = disks.mode(mode);
        for place in [disks.ext4(&pool), disks.tmpfs(&pool)] {
            let ours = place.dir("ours");
            let theirs = place.dir("theirs");
            for (name, what) in
                [("deleted", deleted as fn(&Path) -> String), ("replaced", replaced), ("nameless", nameless)]
            {
                assert_eq!(what(&ours.pool), what(&theirs.branch), "{mode}: {name}");
            }
        }
        pool.umount();
    }
}
