//! What changes several copies, or opens a file in a roundabout way, waits for a lease before it has changed anything.

use super::rig::BINARY;
use super::waits::wait_for_parked;
use canopy_sys::lease;
use canopy_testkit::{LoopFs, PATIENCE, Pool, cmd, transports};
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;
use std::thread::JoinHandle;

/// A change by name of a file with several copies.
struct Change {
    program: &'static [&'static str],
    /// What the change is seen by in a copy: before and after it.
    state: fn(&Path) -> u64,
    states: [u64; 2],
    /// Which copies may be leased. The program itself opens the one that is shown, and does not want to wait.
    leased: &'static [usize],
}

const SIZE: u64 = 8192;

const CHANGES: [Change; 2] = [
    Change {
        // truncate(2), which truncate(1) does not use.
        program: &["python3", "-c", "import os, sys; os.truncate(sys.argv[1], 100)"],
        state: |copy| fs::metadata(copy).expect("a copy").len(),
        states: [SIZE, 100],
        leased: &[0, 1],
    },
    Change {
        program: &["chattr", "+d"],
        state: |copy| {
            let mut lsattr = Command::new("lsattr");
            let flags = cmd::run_within(lsattr.arg(copy), PATIENCE).stdout;
            u64::from(flags.split(' ').next().expect("flags").contains('d'))
        },
        states: [0, 1],
        leased: &[1],
    },
];

fn begin(program: &[&str], path: &Path) -> JoinHandle<cmd::Finished> {
    let mut command = Command::new(program[0]);
    command.args(&program[1..]).arg(path);
    std::thread::spawn(move || cmd::run_within(&mut command, PATIENCE))
}

#[track_caller]
fn succeeds(client: JoinHandle<cmd::Finished>) {
    let done = client.join().expect("a client");
    assert!(done.success(), "{}", done.describe());
}

/// All copies change or none, whichever of them is leased.
#[test]
fn a_change_by_name_waits_for_a_lease_before_it_changes_a_copy() {
    for (transport, Change { program, state, states: [before, after], leased }) in
        transports().into_iter().flat_map(|transport| CHANGES.map(|change| (transport, change)))
    {
        for &leased in leased {
            let disks = [LoopFs::ext4(64 << 20), LoopFs::ext4(64 << 20)];
            let copies = [0, 1].map(|disk: usize| disks[disk].path().join("file"));
            copies.iter().for_each(|copy| fs::write(copy, vec![1; SIZE as usize]).expect("a copy"));
            let pool = Pool::builder(BINARY)
                .branches([disks[0].path(), disks[1].path()])
                .option(format!("minfreespace=0,func.truncate=epall,io-uring={transport}"))
                .mount();
            let both = || copies.each_ref().map(|copy| state(copy));
            let holder = File::open(&copies[leased]).expect("a copy");
            // lsattr(1) opens the file, too.
            assert_eq!(both(), [before, before], "{transport}, {program:?}");
            lease::take_alone(holder.as_fd()).expect("a lease");
            let waiting = begin(program, &pool.path().join("file"));
            wait_for_parked(&pool, "lease", 1);
            let others = state(&copies[1 - leased]);
            lease::release(holder.as_fd());
            succeeds(waiting);
            assert_eq!(others, before, "{transport}, {program:?}, copy {leased} was leased");
            assert_eq!(both(), [after, after], "{transport}, {program:?}, copy {leased} was leased");
            pool.umount();
        }
    }
}

/// chown(2) that changes no owner, but takes set-id bits away, marks the other copies that a rule has made as old. The mark has to
/// be on disk, for which the copy is opened.
#[test]
fn a_chown_that_marks_a_copy_waits_for_a_lease() {
    for transport in transports() {
        let disks = [LoopFs::ext4(64 << 20), LoopFs::ext4(64 << 20)];
        let copies = [0, 1].map(|disk: usize| disks[disk].path().join("file"));
        for copy in &copies {
            fs::write(copy, "text").expect("a copy");
            fs::set_permissions(copy, fs::Permissions::from_mode(0o4755)).expect("chmod");
            // As copies of a rule are.
            let shared = rustix::fs::XattrFlags::empty();
            rustix::fs::setxattr(copy, "user.canopy.generation", b"5+", shared).expect("setxattr");
        }
        let pool = Pool::builder(BINARY)
            .branches([disks[0].path(), disks[1].path()])
            .option(format!("minfreespace=0,rules=**=copies 2,io-uring={transport}"))
            .mount();
        let mode = || fs::metadata(&copies[0]).expect("a copy").mode() & 0o7777;
        let holder = File::open(&copies[0]).expect("a copy");
        lease::take_alone(holder.as_fd()).expect("a lease");
        let program = ["python3", "-c", "import os, sys; os.chown(sys.argv[1], -1, -1)"];
        let waiting = begin(&program, &pool.path().join("file"));
        wait_for_parked(&pool, "lease", 1);
        assert_eq!(mode(), 0o4755, "{transport}");
        lease::release(holder.as_fd());
        succeeds(waiting);
        assert_eq!(mode(), 0o755, "{transport}");
        pool.umount();
    }
}

/// `nfsopenhack` makes a file writable, opens it, and takes that back. Under a lease, each try takes it back.
#[test]
fn an_open_by_nfsopenhack_waits_for_a_lease() {
    let home = tempfile::tempdir().expect("a directory");
    let weak = home.path().join("canopy");
    // The branch denies such a daemon what an NFS server denies root.
    let script = format!("#!/bin/sh\nexec setpriv --bounding-set=-dac_override {BINARY} \"$@\"\n");
    fs::write(&weak, script).expect("a script");
    fs::set_permissions(&weak, fs::Permissions::from_mode(0o755)).expect("chmod");
    for transport in transports() {
        let disk = LoopFs::ext4(64 << 20);
        let file = disk.path().join("file");
        fs::write(&file, "old").expect("a file");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o444)).expect("chmod");
        let pool = Pool::builder(&weak)
            .branch(disk.path())
            .option(format!("minfreespace=0,nfsopenhack=all,io-uring={transport}"))
            .mount();
        let holder = File::open(&file).expect("the branch's file");
        lease::take_alone(holder.as_fd()).expect("a lease");
        let waiting = begin(&["sh", "-c", "echo new 1<>\"$0\""], &pool.path().join("file"));
        wait_for_parked(&pool, "lease", 1);
        assert_eq!(fs::metadata(&file).expect("stat").mode() & 0o7777, 0o444);
        lease::release(holder.as_fd());
        succeeds(waiting);
        assert_eq!(fs::read_to_string(&file).expect("the file"), "new\n");
        assert_eq!(fs::metadata(&file).expect("stat").mode() & 0o7777, 0o444);
        pool.umount();
    }
}
