//! Allocation, holes and copies: the pool gives the same results as the branch.

use super::files::{TwoPaths, open, read_at, size, try_open, write_at};
use super::rig::{Disks, Mode, builder};
use canopy_testkit::LoopFs;
use rustix::fd::OwnedFd;
use rustix::fs::{FallocateFlags, OFlags, SeekFrom};
use rustix::io::Errno;

const MODES: [Mode; 4] = [
    Mode { passthrough: "auto", cache: "off", writeback: false },
    Mode { passthrough: "off", cache: "off", writeback: false },
    Mode { passthrough: "off", cache: "full", writeback: false },
    Mode { passthrough: "off", cache: "full", writeback: true },
];

/// Returns where data and holes begin, according to lseek(2).
fn map(fd: &OwnedFd) -> Vec<Result<u64, Errno>> {
    let end = size(fd);
    let mut answers = Vec::new();
    for from in [SeekFrom::Data(0), SeekFrom::Hole(0), SeekFrom::Data(end), SeekFrom::Hole(end)] {
        answers.push(rustix::fs::seek(fd, from));
    }
    let mut at = 0;
    while let Ok(data) = rustix::fs::seek(fd, SeekFrom::Data(at)) {
        let hole = rustix::fs::seek(fd, SeekFrom::Hole(data));
        answers.extend([Ok(data), hole]);
        at = hole.expect("an end");
    }
    answers
}

#[test]
fn allocation_and_holes_are_as_on_the_branch() {
    let disks = Disks::new();
    for mode in MODES {
        let pool = disks.mode(mode);
        for (place, kind) in [(disks.ext4(&pool), "ext4"), (disks.tmpfs(&pool), "tmpfs")] {
            let ours = open(&place.pool.join("ours"), OFlags::RDWR | OFlags::CREATE);
            let theirs = open(&place.branch.join("theirs"), OFlags::RDWR | OFlags::CREATE);
            for at in [0_u64, 1 << 20, 3 << 20] {
                let pattern: Vec<u8> = (0..65536_u32).map(|index| (index / 512) as u8 | 1).collect();
                write_at(&ours, at, &pattern);
                write_at(&theirs, at, &pattern);
            }
            let keep = FallocateFlags::KEEP_SIZE;
            for (flags, offset, len) in [
                (FallocateFlags::empty(), 0, 0),
                (FallocateFlags::PUNCH_HOLE | keep, 8192, 16384),
                (FallocateFlags::PUNCH_HOLE | keep, 1000, 100),
                (FallocateFlags::PUNCH_HOLE, 0, 4096),
                (FallocateFlags::ZERO_RANGE, 32768, 8192),
                (FallocateFlags::ZERO_RANGE | keep, 8 << 20, 4096),
                (FallocateFlags::COLLAPSE_RANGE, 4096, 8192),
                (FallocateFlags::COLLAPSE_RANGE, 100, 8192),
                (FallocateFlags::INSERT_RANGE, 1 << 20, 12288),
                (FallocateFlags::INSERT_RANGE, 64 << 20, 4096),
                (keep, 16 << 20, 8192),
                (FallocateFlags::empty(), 5 << 20, 8192),
                (FallocateFlags::UNSHARE_RANGE, 0, 4096),
                (FallocateFlags::from_bits_retain(0x8000), 0, 4096),
            ] {
                let known = keep | FallocateFlags::PUNCH_HOLE | FallocateFlags::ZERO_RANGE;
                if !known.contains(flags) {
                    // The kernel rejects every other mode (fs/fuse/file.c fuse_file_fallocate).
                    let refused = rustix::fs::fallocate(&ours, flags, offset, len);
                    assert_eq!(refused, Err(Errno::OPNOTSUPP), "{mode}, {kind}: {flags:?}");
                    continue;
                }
                let results = [&ours, &theirs].map(|fd| rustix::fs::fallocate(fd, flags, offset, len));
                assert_eq!(results[0], results[1], "{mode}, {kind}: {flags:?} at {offset}, {len} bytes");
                assert_eq!(size(&ours), size(&theirs), "{mode}, {kind}: {flags:?}");
                let content = [&ours, &theirs].map(|fd| read_at(fd, 0, 10 << 20));
                assert!(content[0] == content[1], "{mode}, {kind}: {flags:?}: content");
                if mode.writeback {
                    // Data that is not written back yet must not show as a hole.
                    let end = size(&ours);
                    assert_eq!(map(&ours)[..2], [Ok(0), Ok(end)], "{mode}, {kind}: after {flags:?}");
                } else {
                    assert_eq!(map(&ours), map(&theirs), "{mode}, {kind}: holes after {flags:?}");
                }
            }
        }
        pool.umount();
    }
}

#[test]
fn copies_within_and_between_branches_are_complete() {
    let disks = Disks::new();
    for mode in MODES {
        let pool = disks.mode(mode);
        let (one, two) = (disks.ext4(&pool), disks.tmpfs(&pool));
        let content: Vec<u8> = (0..3_000_000_u32).map(|index| (index / 1000) as u8).collect();
        let source = one.file("source", &content);
        for target in [&one, &two] {
            let from = open(&source.pool, OFlags::RDONLY);
            let to = open(&target.pool.join("copy"), OFlags::RDWR | OFlags::CREATE);
            copy(&from, &to, content.len() as u64);
            assert!(read_at(&to, 0, content.len() + 1) == content, "{mode}");
            drop(to);
            assert!(std::fs::read(target.branch.join("copy")).expect("the branch") == content, "{mode}");
        }
        // Copies include data that is written but not synced.
        let fresh = open(&one.pool.join("fresh"), OFlags::RDWR | OFlags::CREATE);
        write_at(&fresh, 0, b"fresh data");
        let to = open(&one.pool.join("of-fresh"), OFlags::RDWR | OFlags::CREATE);
        assert_eq!(read_at(&to, 0, 10), b"");
        copy(&fresh, &to, 10);
        assert_eq!((read_at(&to, 0, 20), size(&to)), (b"fresh data".to_vec(), 10), "{mode}");
        drop((fresh, to));
        pool.umount();
    }
}

#[track_caller]
fn copy(from: &OwnedFd, to: &OwnedFd, len: u64) {
    let (mut read, mut written) = (0, 0);
    while written < len {
        let left = (len - written) as usize;
        let copied = rustix::fs::copy_file_range(from, Some(&mut read), to, Some(&mut written), left);
        assert_ne!(copied.expect("copy_file_range"), 0, "at {written} of {len}");
    }
}

/// Copies beyond 4 GiB, with sizes that do not fit into 32 bits.
#[test]
fn copies_of_more_than_four_gigabytes_are_complete() {
    const SIZE: u64 = 5 << 30;
    let disk = LoopFs::btrfs(256 << 20);
    for mode in MODES {
        let pool = builder(&[disk.path()], &mode.to_string()).mount();
        let file = |name: &str| TwoPaths { pool: pool.path().join(name), branch: disk.path().join(name) };
        let from = open(&file("from").pool, OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC);
        let marks = [0, (4 << 30) - 3, SIZE - 7];
        rustix::fs::ftruncate(&from, SIZE).expect("ftruncate");
        marks.iter().for_each(|&at| write_at(&from, at, b"a mark"));
        let to = open(&file("to").pool, OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC);
        copy(&from, &to, SIZE);
        assert_eq!(size(&to), SIZE, "{mode}");
        for at in marks {
            assert_eq!(read_at(&to, at, 6), b"a mark", "{mode} at {at}");
        }
        assert_eq!(read_at(&to, 1 << 30, 100), [0; 100], "{mode}");
        drop((from, to));
        assert!(try_open(&file("to").branch, OFlags::RDONLY).is_ok_and(|fd| size(fd) == SIZE));
        pool.umount();
    }
}
