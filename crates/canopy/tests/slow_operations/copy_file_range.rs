//! copy_file_range(2) of large files.

use super::rig::{BINARY, Rig};
use canopy_fuse::Opcode;
use canopy_testkit::cmd::wait_until;
use canopy_testkit::{Fault, LoopFs, PATIENCE, Pool, transports};
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

const SIZE: u64 = 40 << 20;

/// Copies a file of [`SIZE`] bytes and verifies the copy. Returns how many bytes the first call copied.
fn first_copy(branch: &Path) -> u64 {
    let pool = Pool::builder(BINARY).branch(branch).option("minfreespace=0").mount();
    let content: Vec<u8> = (0..SIZE).map(|at| (at % 251) as u8).collect();
    fs::write(pool.path().join("from"), &content).expect("a file");
    let from = File::open(pool.path().join("from")).expect("a file");
    let to = File::create(pool.path().join("to")).expect("a file");
    let (mut first, mut at, mut into) = (None, 0, 0);
    while at < SIZE {
        let copied = rustix::fs::copy_file_range(&from, Some(&mut at), &to, Some(&mut into), 1 << 30);
        let copied = copied.expect("a copy");
        assert_ne!(copied, 0, "a copy ends early");
        first.get_or_insert(copied as u64);
    }
    drop((from, to));
    assert!(fs::read(branch.join("to")).expect("a file") == content);
    pool.umount();
    first.expect("a copy")
}

#[test]
fn one_request_copies_a_part_of_a_large_file() {
    let disk = LoopFs::tmpfs(256 << 20);
    let first = first_copy(disk.path());
    assert!(first <= 16 << 20, "{first} bytes at once");
}

/// Sharing blocks takes no time, regardless of the size.
#[test]
fn one_request_copies_a_whole_file_by_sharing_blocks() {
    let disk = LoopFs::btrfs(256 << 20);
    assert_eq!(first_copy(disk.path()), SIZE);
}

#[test]
fn a_client_killed_during_a_copy_exits_promptly() {
    for transport in transports() {
        let rig = Rig::new(transport, 1, "cache.attr=0,cache.entry=0", &[]);
        fs::write(rig.faulty.backing_dir().join("busy0/large"), vec![3; 240 << 20]).expect("a file");
        fs::write(rig.faulty.backing_dir().join("busy0/copy"), "").expect("a file");
        // Each request on the branch copies one mebibyte: a request to the pool takes sixteen seconds, the file four minutes.
        let copies = &[Opcode::CopyFileRange, Opcode::CopyFileRange64];
        rig.faulty.set(Fault::Delay(Duration::from_secs(1)), copies);
        let mut copy = Command::new("cp")
            .arg("--sparse=never")
            .args([rig.at("busy0/large"), rig.at("busy0/copy")])
            .stdin(Stdio::null())
            .spawn()
            .expect("cp");
        let begun =
            || fs::metadata(rig.faulty.backing_dir().join("busy0/copy")).is_ok_and(|copy| copy.len() != 0);
        assert!(wait_until(PATIENCE, begun), "cp does not use copy_file_range");
        copy.kill().expect("a signal");
        let gone = wait_until(PATIENCE, || copy.try_wait().expect("a child").is_some());
        let copied = fs::metadata(rig.faulty.backing_dir().join("busy0/copy")).expect("the copy").len();
        rig.faulty.heal();
        let _ = copy.wait();
        assert!(gone, "io-uring={transport}: the killed cp still runs");
        // The request in flight stops early, too.
        assert!(copied <= 12 << 20, "io-uring={transport}: {copied} bytes");
        rig.pool.umount();
    }
}
