//! What waits for something else than a disk waits without a worker, and holds up nobody else: leases on files of branches,
//! moves of files, searches for the files of handles.

use super::rig::{BINARY, Rig, client};
use canopy_fuse::Opcode;
use canopy_sys::{file_handle, lease};
use canopy_testkit::cmd::{self, wait_until};
use canopy_testkit::{Fault, LoopFs, PATIENCE, Pool, transports};
use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::JoinHandle;

/// More clients than the pool may have workers.
const CLIENTS: usize = 300;
/// Far fewer than the clients.
const FEW_THREADS: usize = 100;

/// Returns how many requests wait for a cause, as `canopy status` tells it.
pub(super) fn parked(pool: &Pool, cause: &str) -> u64 {
    let status = pool.status();
    let all = status["parked"].as_array().expect("a list");
    all.iter().filter(|one| one["cause"] == cause).filter_map(|one| one["requests"].as_u64()).sum()
}

#[track_caller]
pub(super) fn wait_for_parked(pool: &Pool, cause: &str, requests: usize) {
    let arrived = wait_until(PATIENCE, || parked(pool, cause) >= requests as u64);
    assert!(arrived, "{} of {requests}: {}", parked(pool, cause), pool.log());
}

/// Another user's work, which changes directories elsewhere, too.
#[track_caller]
fn bystander(pool: &Path) {
    let dir = pool.join("victim");
    for round in 0..20 {
        let name = |name: &str| dir.join(format!("{name}{round}"));
        fs::create_dir(name("dir")).expect("mkdir");
        fs::write(name("dir").join("file"), "data").expect("a file");
        fs::rename(name("dir"), name("renamed")).expect("a rename of a directory");
        assert_eq!(fs::read(name("renamed").join("file")).expect("a read"), b"data");
        fs::remove_dir_all(name("renamed")).expect("a removal");
    }
}

fn open(path: &Path, flags: OFlags) -> io::Result<()> {
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()).map(drop).map_err(io::Error::from)
}

/// Ways to come upon a lease.
fn ways(path: &Path) -> Vec<Box<dyn FnOnce() -> io::Result<()> + Send>> {
    let path = path.to_owned();
    (0..CLIENTS)
        .map(|number| {
            let path = path.clone();
            let work: Box<dyn FnOnce() -> io::Result<()> + Send> = match number % 3 {
                0 => Box::new(move || open(&path, OFlags::RDWR)),
                1 => Box::new(move || open(&path, OFlags::RDONLY)),
                _ => Box::new(move || open(&path, OFlags::WRONLY | OFlags::APPEND)),
            };
            work
        })
        .collect()
}

pub(super) fn pool_with_file(transport: &str, disk: &LoopFs) -> (Pool, PathBuf, File) {
    fs::create_dir(disk.path().join("victim")).expect("mkdir");
    fs::create_dir(disk.path().join("own")).expect("mkdir");
    fs::write(disk.path().join("own/file"), "x").expect("a file");
    let pool = Pool::builder(BINARY)
        .branch(disk.path())
        .option(format!("minfreespace=0,io-uring={transport}"))
        .mount();
    let path = pool.path().join("own/file");
    let holder = File::open(disk.path().join("own/file")).expect("the branch's file");
    (pool, path, holder)
}

fn join_all<T>(clients: Vec<JoinHandle<T>>) -> Vec<T> {
    clients.into_iter().map(|client| client.join().expect("a client")).collect()
}

#[test]
fn a_lease_holds_up_only_those_who_open_the_file() {
    for transport in transports() {
        let disk = LoopFs::ext4(64 << 20);
        let (pool, path, holder) = pool_with_file(transport, &disk);
        lease::take_alone(holder.as_fd()).expect("a lease");
        let clients: Vec<_> = ways(&path).into_iter().map(client).collect();
        wait_for_parked(&pool, "lease", CLIENTS);
        bystander(pool.path());
        assert!(pool.threads().len() < FEW_THREADS, "{} threads", pool.threads().len());
        // Who does not want to wait does not.
        let refused = open(&path, OFlags::RDWR | OFlags::NONBLOCK).expect_err("a lease");
        assert_eq!(Errno::from_io_error(&refused), Some(Errno::AGAIN));
        // All of that while the lease holds.
        assert_eq!(parked(&pool, "lease"), CLIENTS as u64);
        lease::release(holder.as_fd());
        for (number, opened) in join_all(clients).into_iter().enumerate() {
            opened.unwrap_or_else(|why| panic!("{transport}, {number}: {why}"));
        }
        assert_eq!(parked(&pool, "lease"), 0);
        pool.umount();
    }
}

#[test]
fn a_client_that_is_killed_no_longer_waits_for_a_lease() {
    for transport in transports() {
        let disk = LoopFs::ext4(64 << 20);
        let (pool, path, holder) = pool_with_file(transport, &disk);
        lease::take_alone(holder.as_fd()).expect("a lease");
        let mut waiting: Vec<_> =
            (0..20).map(|_| cmd::spawn(Command::new("cat").arg(&path)).expect("a client")).collect();
        wait_for_parked(&pool, "lease", waiting.len());
        for child in &mut waiting {
            child.kill().expect("a signal");
        }
        for child in &mut waiting {
            assert!(cmd::wait_within(child, PATIENCE).is_some(), "{transport}: it still waits");
        }
        assert!(wait_until(PATIENCE, || parked(&pool, "lease") == 0));
        lease::release(holder.as_fd());
        assert_eq!(fs::read(&path).expect("the file"), b"x");
        pool.umount();
    }
}

/// A file that is being moved, because its disk is full, to a disk that does not answer.
#[test]
fn a_move_holds_up_only_those_who_write_the_file() {
    for transport in transports() {
        let rig = Rig::new(transport, 0, "moveonenospc=mfs", &[]);
        fs::create_dir(rig.at("own")).expect("mkdir");
        let path = rig.at("own/moving");
        fs::write(&path, vec![5; 4 << 20]).expect("a file");
        rig.faulty.set(Fault::Hang, &[Opcode::Write]);
        let writer = {
            let path = path.clone();
            client(move || {
                let file = File::options().write(true).open(path)?;
                // More than the disk has.
                rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 70 << 20).map_err(io::Error::from)
            })
        };
        assert!(wait_until(PATIENCE, || rig.faulty.hanging() > 0), "{}", rig.pool.log());
        let opening: Vec<_> = (0..CLIENTS)
            .map(|_| {
                let path = path.clone();
                client(move || open(&path, OFlags::WRONLY))
            })
            .collect();
        let arrived = wait_until(PATIENCE, || parked(&rig.pool, "move") >= CLIENTS as u64);
        if arrived {
            rig.bystander("the move of another file");
        }
        let threads = rig.pool.threads().len();
        let still = parked(&rig.pool, "move");
        rig.faulty.heal();
        assert!(arrived && still == CLIENTS as u64, "{still}: {}", rig.pool.log());
        assert!(threads < FEW_THREADS, "{threads} threads");
        writer.join().expect("a client").expect("space on the other disk");
        join_all(opening).into_iter().for_each(|opened| opened.expect("an open after the move"));
        assert_eq!(fs::metadata(rig.faulty.backing_dir().join("own/moving")).expect("moved").len(), 70 << 20);
        rig.pool.umount();
    }
}

/// Large writes to a file that is being moved take all the memory that is there for them. The next keep workers, and those beyond
/// fail: the pool keeps workers for others. Over io_uring, requests wait in the memory of their entries.
#[test]
fn writes_for_which_there_is_no_memory_leave_workers_for_others() {
    /// How many writes may keep a worker.
    const STAYING: usize = 64;
    let rig = Rig::new("off", 0, "moveonenospc=mfs,cache.files=off,parallel-direct-writes=true", &[]);
    fs::write(rig.at("filler"), vec![5; 61 << 20]).expect("a file");
    let path = rig.at("moving");
    File::create(&path).and_then(|file| file.set_len(4 << 20)).expect("a file of holes");
    let open = || File::options().write(true).open(&path).expect("an open before the move");
    let files: Vec<File> = (0..CLIENTS).map(|_| open()).collect();
    rig.faulty.set(Fault::Hang, &[Opcode::Write]);
    let mover = open();
    // More than the disk has. The kernel lets others write meanwhile, as the size stays.
    let mover = client(move || mover.write_all_at(&vec![7; 4 << 20], 0));
    assert!(wait_until(PATIENCE, || rig.faulty.hanging() > 0), "{}", rig.pool.log());
    // The bystander needs room on the healthy disk.
    fs::remove_file(rig.at("filler")).expect("a removal");
    let write = |file: File| client(move || file.write_all_at(&vec![6; 1 << 20], 0));
    let writing: Vec<_> = files.into_iter().map(write).collect();
    let refused = || writing.iter().filter(|client| client.is_finished()).count();
    let in_line = || parked(&rig.pool, "move") as usize;
    // The rest of them has a worker each.
    let settled = wait_until(PATIENCE, || refused() > 0 && refused() + in_line() + STAYING >= CLIENTS);
    let aside = in_line();
    if settled {
        rig.bystander("writes to a file that is moved");
    }
    rig.faulty.heal();
    assert!(settled && aside > 0, "{} refused, {aside} in line: {}", refused(), rig.pool.log());
    mover.join().expect("a client").expect("space on the other disk");
    let failures: Vec<_> = join_all(writing).into_iter().filter_map(Result::err).collect();
    assert!((1..=CLIENTS - aside).contains(&failures.len()), "{} failures, {aside} in line", failures.len());
    for why in failures {
        assert_eq!(why.kind(), io::ErrorKind::WouldBlock, "{why}");
    }
    rig.pool.umount();
}

/// With `link-cow`, an open for writing copies the file of a hard link, which cannot be while it is moved. The kernel looks the
/// name up again first.
#[test]
fn a_move_holds_up_only_those_who_open_one_of_its_links() {
    for transport in transports() {
        let rig = Rig::new(transport, 0, "link-cow=true", &[]);
        fs::create_dir(rig.at("own")).expect("mkdir");
        let (path, link) = (rig.at("own/moving"), rig.at("own/link"));
        fs::write(&path, vec![5; 4 << 20]).expect("a file");
        fs::hard_link(&path, &link).expect("a link");
        rig.faulty.set(Fault::Hang, &[Opcode::Write]);
        let mut mover = Command::new(BINARY);
        mover.arg("move").arg(rig.pool.path()).arg("own").arg("--to").arg(rig.faulty.path());
        let mut mover = cmd::spawn(mover.arg("--eager")).expect("canopy");
        let moves = wait_until(PATIENCE, || rig.faulty.hanging() > 0);
        let opening: Vec<_> = (0..CLIENTS)
            .map(|_| {
                let path = path.clone();
                client(move || open(&path, OFlags::WRONLY))
            })
            .collect();
        let arrived = wait_until(PATIENCE, || parked(&rig.pool, "move") >= CLIENTS as u64);
        if arrived {
            rig.bystander("the move of another file");
        }
        let threads = rig.pool.threads().len();
        rig.faulty.heal();
        let ended = cmd::wait_within(&mut mover, PATIENCE);
        assert!(moves && arrived && ended.is_some(), "{moves} {arrived}: {}", rig.pool.log());
        assert!(threads < FEW_THREADS, "{threads} threads");
        join_all(opening).into_iter().for_each(|opened| opened.expect("an open after the move"));
        for name in [&path, &link] {
            assert_eq!(fs::read(name).expect("the file"), vec![5; 4 << 20]);
        }
        let number = |path: &Path| std::os::unix::fs::MetadataExt::ino(&fs::metadata(path).expect("a stat"));
        assert_ne!(number(&path), number(&link), "the name that was opened has a file of its own");
        rig.pool.umount();
    }
}

/// Handles that somebody has made up: each is searched for on the branch, where inodes cannot be opened by their numbers.
#[test]
fn made_up_handles_hold_up_nobody_and_lead_nowhere() {
    const FILES: usize = 20_000;
    for transport in transports() {
        let disk = LoopFs::tmpfs(256 << 20);
        fs::create_dir(disk.path().join("many")).expect("mkdir");
        (0..FILES).for_each(|n| fs::write(disk.path().join(format!("many/{n}")), "").expect("a file"));
        let (pool, path, _) = pool_with_file(transport, &disk);
        let root = File::open(pool.path()).expect("the pool");
        let handle =
            |path: &Path| file_handle::from_fd(File::open(path).expect("a file").as_fd()).expect("a handle");
        let (real, pattern) = (handle(&path), handle(&pool.path().join("many/1")));
        let clients: Vec<_> = (0..CLIENTS as u64)
            .map(|client_number| {
                let (root, pattern) = (root.try_clone().expect("a descriptor"), pattern.clone());
                client(move || {
                    (0..5).all(|round| {
                        let mut made_up = pattern.clone();
                        // The node id of a FUSE handle: two words, the upper one first. Its inode number is from bit 13 on.
                        let low = u32::from_ne_bytes(made_up[12..16].try_into().expect("a word"));
                        let other = low ^ ((client_number * 5 + round + 1) << 13) as u32;
                        made_up[12..16].copy_from_slice(&other.to_ne_bytes());
                        let opened = file_handle::open_as(root.as_fd(), &made_up, OFlags::RDONLY);
                        matches!(opened, Err(Errno::STALE))
                    })
                })
            })
            .collect();
        bystander(pool.path());
        assert!(pool.threads().len() < FEW_THREADS, "{} threads", pool.threads().len());
        // A real one is found meanwhile, although the kernel has forgotten it.
        pool.drop_dentries();
        let opened = file_handle::open_as(root.as_fd(), &real, OFlags::RDONLY).expect("a handle of a file");
        assert_eq!(io::read_to_string(File::from(opened)).expect("the file"), "x");
        assert!(join_all(clients).into_iter().all(|stale| stale), "{transport}");
        drop(root);
        pool.umount();
    }
}
