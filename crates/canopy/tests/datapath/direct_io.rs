//! `O_DIRECT`.

use super::files::{Aligned, BLOCK, TwoPaths, open, read_at, try_open, write_at};
use super::rig::{CACHES, Disks, Mode, builder};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::fs;
use std::path::{Path, PathBuf};

/// `O_DIRECT` reads and writes of whole blocks are coherent with cached handles.
#[track_caller]
pub(super) fn aligned(dir: &TwoPaths) {
    let file = dir.file("f", &vec![b'.'; 64 * BLOCK]);
    let cached = open(&file.pool, OFlags::RDWR);
    assert_eq!(read_at(&cached, 0, BLOCK), [b'.'; BLOCK]);
    for (round, flags) in [OFlags::RDWR, OFlags::WRONLY].into_iter().enumerate() {
        let mark = b'0' + round as u8;
        let fd = open(&file.pool, flags | OFlags::DIRECT);
        write_at(&fd, BLOCK as u64, Aligned::filled(40 * BLOCK, mark).get());
        assert_eq!(read_at(&cached, BLOCK as u64, 40 * BLOCK), vec![mark; 40 * BLOCK]);
        write_at(&cached, BLOCK as u64, &[b'c'; BLOCK]);
        let reader =
            if flags == OFlags::RDWR { fd } else { open(&file.pool, OFlags::RDONLY | OFlags::DIRECT) };
        let mut seen = Aligned::filled(64 * BLOCK, 0xee);
        assert_eq!(rustix::io::pread(&reader, seen.get_mut(), BLOCK as u64), Ok(63 * BLOCK), "{flags:?}");
        assert!(seen.get()[..BLOCK] == [b'c'; BLOCK], "a cached write does not show ({flags:?})");
        assert!(seen.get()[BLOCK..40 * BLOCK].iter().all(|&byte| byte == mark), "{flags:?}");
        assert!(seen.get()[40 * BLOCK..63 * BLOCK].iter().all(|&byte| byte == b'.'), "{flags:?}");
    }
    drop(cached);
    let content = fs::read(&file.branch).expect("the branch");
    assert!(content[2 * BLOCK..41 * BLOCK].iter().all(|&byte| byte == b'1'));
}

/// Unaligned requests get the branch's own result.
#[track_caller]
pub(super) fn unaligned(dir: &TwoPaths) {
    let pairs = [("pool", dir.pool.clone()), ("branch", dir.branch.clone())];
    for access in [OFlags::RDWR, OFlags::WRONLY] {
        for (offset, len) in [(1, 512), (0, 100), (4096, 4097), (3 * 4096, 4096), (5000, 4096)] {
            let [ours, theirs] = pairs.each_ref().map(|(name, dir)| {
                let path = dir.join(name);
                fs::write(&path, vec![b'x'; 2 * BLOCK + 10]).expect("a file");
                let fd = open(&path, access | OFlags::DIRECT);
                let mut buffer = Aligned::filled(len, b'w');
                let written = rustix::io::pwrite(&fd, buffer.get(), offset);
                let read = rustix::io::pread(&fd, buffer.get_mut(), offset);
                drop(fd);
                (written, read, fs::read(path).expect("content"))
            });
            assert_eq!((ours.0, ours.1), (theirs.0, theirs.1), "{access:?}, {len} bytes at {offset}");
            assert!(ours.2 == theirs.2, "{access:?}, {len} bytes at {offset}: other content");
        }
    }
}

/// A ramfs, which does not support `O_DIRECT`.
struct Ramfs(PathBuf, #[expect(dead_code, reason = "removed on drop")] tempfile::TempDir);

impl Ramfs {
    fn new() -> Self {
        let home = tempfile::tempdir().expect("a directory");
        let point = home.path().join("ramfs");
        fs::create_dir(&point).expect("mkdir");
        mount(c"none", &point, c"ramfs", MountFlags::empty(), None).expect("a ramfs");
        Ramfs(point, home)
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Ramfs {
    fn drop(&mut self) {
        let outcome = unmount(&self.0, UnmountFlags::empty());
        assert!(std::thread::panicking() || outcome.is_ok(), "{outcome:?}");
    }
}

/// If the branch refuses `O_DIRECT`, the caller gets the branch's error; other opens work.
#[test]
fn opens_return_the_branchs_refusal_of_o_direct() {
    canopy_testkit::require_root();
    let branch = Ramfs::new();
    fs::write(branch.path().join("f"), "there").expect("a file");
    let refusal = try_open(&branch.path().join("f"), OFlags::RDONLY | OFlags::DIRECT).expect_err("ramfs");
    assert_eq!(refusal, Errno::INVAL);
    for passthrough in ["off", "rw", "auto"] {
        for cache in CACHES {
            let mode = Mode::new(passthrough, cache);
            let pool = builder(&[branch.path()], &mode.to_string()).option("category.create=ff").mount();
            let path = pool.path().join("f");
            for flags in [OFlags::RDONLY, OFlags::RDWR, OFlags::WRONLY] {
                let before = open(&path, OFlags::RDWR);
                assert_eq!(try_open(&path, flags | OFlags::DIRECT).err(), Some(refusal), "{mode} {flags:?}");
                assert_eq!(read_at(&before, 0, 10), b"there", "{mode}");
            }
            let new = pool.path().join("new");
            let create = OFlags::RDWR | OFlags::CREATE | OFlags::DIRECT;
            let beside = try_open(&branch.path().join("beside"), create).err();
            assert_eq!(try_open(&new, create).err(), beside, "{mode}");
            assert_eq!(
                new.exists(),
                branch.path().join("beside").exists(),
                "{mode}: whether the file exists"
            );
            for name in ["new", "beside"] {
                let _ = fs::remove_file(branch.path().join(name));
            }
            pool.umount();
        }
    }
}

/// One call transfers more than fits into a message.
#[test]
fn one_call_transfers_more_than_a_message() {
    let disks = Disks::new();
    for (passthrough, cache) in [("off", "off"), ("off", "full"), ("auto", "off")] {
        let pool = disks.mode(Mode::new(passthrough, cache));
        let file = disks.ext4(&pool).file("f", b"");
        let fd = open(&file.pool, OFlags::RDWR | OFlags::DIRECT);
        let mut block = Aligned::filled(5 << 20, 0);
        block.get_mut().iter_mut().enumerate().for_each(|(index, byte)| *byte = (index / 997) as u8);
        write_at(&fd, 0, block.get());
        let mut back = Aligned::filled(6 << 20, 0);
        assert_eq!(rustix::io::pread(&fd, back.get_mut(), 0), Ok(5 << 20));
        assert!(back.get()[..5 << 20] == *block.get(), "{passthrough} {cache}");
        drop(fd);
        assert!(fs::read(&file.branch).expect("the branch") == block.get());
        pool.umount();
    }
}
