//! sendfile(2), which reads pages from the page cache, concurrently with writers.

use super::files::{BLOCK, open, read_at, write_at, xfs_io};
use super::rig::{Disks, Mode};
use rustix::fd::OwnedFd;
use rustix::fs::OFlags;
use std::io::{Read, Seek, SeekFrom};

/// Returns the first block as sendfile(2) delivers it.
#[track_caller]
fn send_block(from: &OwnedFd) -> Vec<u8> {
    let mut to = tempfile::tempfile().expect("a file");
    let (mut at, mut left) = (0, BLOCK);
    while left > 0 {
        match rustix::fs::sendfile(&to, from, Some(&mut at), left).expect("sendfile") {
            0 => break,
            n => left -= n,
        }
    }
    let mut bytes = Vec::new();
    to.seek(SeekFrom::Start(0)).and_then(|_| to.read_to_end(&mut bytes)).expect("the bytes sent");
    bytes
}

fn reads(flags: OFlags) -> bool {
    flags & OFlags::ACCMODE != OFlags::WRONLY
}

/// sendfile(2) on a handle served by the daemon used to return stale pages when another handle wrote with passthrough.
#[test]
fn sendfile_returns_the_latest_write() {
    const ACCESS: [OFlags; 3] = [OFlags::RDONLY, OFlags::WRONLY, OFlags::RDWR];
    let disks = Disks::new();
    for passthrough in ["off", "ro", "wo", "rw", "auto"] {
        for cache in ["off", "auto-full"] {
            let mode = Mode::new(passthrough, cache);
            let pool = disks.mode(mode);
            for (number, place) in [disks.ext4(&pool), disks.tmpfs(&pool)].iter().enumerate() {
                for order in 0..27 {
                    let order = [order / 9, order / 3 % 3, order % 3].map(|access| ACCESS[access]);
                    let file = place.file(&format!("{number}-{order:?}"), &[b'.'; BLOCK]);
                    let handles = order.map(|flags| (flags, open(&file.pool, flags)));
                    let writers = (0..3).filter(|&one| order[one] != OFlags::RDONLY);
                    let readers = || handles.iter().enumerate().filter(|(_, (flags, _))| reads(*flags));
                    for (writer, mark) in writers.zip(b'a'..) {
                        for (_, (_, fd)) in readers() {
                            send_block(fd);
                        }
                        write_at(&handles[writer].1, 0, &[mark; BLOCK]);
                        for (reader, (_, fd)) in readers() {
                            let what =
                                format!("{mode}: {order:?}: handle {writer} wrote, handle {reader} read");
                            let first = |bytes: &[u8]| (bytes.len(), bytes.first().copied().map(char::from));
                            let (seen, read) = (send_block(fd), read_at(fd, 0, BLOCK));
                            assert_eq!(first(&seen), (BLOCK, Some(mark.into())), "{what}");
                            assert!(seen == [mark; BLOCK] && read == seen, "{what}");
                        }
                    }
                }
            }
            pool.umount();
        }
    }
}

/// With a backing file, a shared mapping maps that file even if the daemon serves reads.
#[test]
fn sendfile_returns_stores_through_a_mapping() {
    let disks = Disks::new();
    for passthrough in ["ro", "wo", "rw", "auto"] {
        let mode = Mode::new(passthrough, "auto-full");
        let pool = disks.mode(mode);
        for place in [disks.ext4(&pool), disks.tmpfs(&pool)] {
            for first in [OFlags::RDONLY, OFlags::WRONLY] {
                let file = place.file(&format!("{first:?}"), &[b'.'; BLOCK]);
                let _first = open(&file.pool, first);
                let both = open(&file.pool, OFlags::RDWR);
                assert_eq!(send_block(&both), [b'.'; BLOCK]);
                let path = file.pool.display();
                xfs_io(&[
                    format!("open {path}"),
                    format!("mmap -rw 0 {BLOCK}"),
                    format!("mwrite -S 0x6d 0 {BLOCK}"),
                    "msync -s".into(),
                ]);
                assert!(send_block(&both) == [b'm'; BLOCK], "{mode}: opened for {first:?} first");
            }
        }
        pool.umount();
    }
}
