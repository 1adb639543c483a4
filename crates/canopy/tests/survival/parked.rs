//! Requests that wait for a lease or a move while the process dies that has put them aside, or another takes over: none is
//! lost, and none is carried out twice.

use crate::rig::{Rig, end_all, send, server, servers};
use canopy_fuse::Opcode;
use canopy_sys::lease;
use canopy_testkit::{Fault, FaultyFs, LoopFs, PATIENCE, Pool, ScratchDir, cmd, files};
use rustix::fs::FallocateFlags;
use rustix::process::Signal;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread::{self, JoinHandle};
use std::time::Duration;

const CLIENTS: usize = 30;
const MIB: u64 = 1 << 20;

/// Returns how many requests wait for a cause, as `canopy status` tells it.
fn parked(pool: &Pool, cause: &str) -> u64 {
    let status = pool.status();
    let all = status["parked"].as_array().expect("a list");
    all.iter().filter(|one| one["cause"] == cause).filter_map(|one| one["requests"].as_u64()).sum()
}

/// Each appends a byte.
fn appending(path: &Path) -> Vec<JoinHandle<io::Result<()>>> {
    let client = || {
        let path = path.to_owned();
        thread::spawn(move || OpenOptions::new().append(true).open(path)?.write_all(b"+"))
    };
    (0..CLIENTS).map(|_| client()).collect()
}

#[test]
fn who_waits_for_a_lease_outlives_the_process() {
    let rig = Rig::new(&["a"], "");
    for (round, kill) in [true, false, true].into_iter().enumerate() {
        let path = rig.path(&format!("file{round}"));
        let on_branch = rig.branch("a").join(format!("file{round}"));
        fs::write(&on_branch, "x").expect("a file");
        let holder = File::open(&on_branch).expect("the branch's file");
        lease::take_alone(holder.as_fd()).expect("a lease");
        let clients = appending(&path);
        let all_wait = || cmd::wait_until(PATIENCE, || parked(&rig.pool, "lease") == CLIENTS as u64);
        assert!(all_wait(), "{}", rig.pool.log());
        if kill {
            rig.kill(Signal::KILL)
        } else {
            rig.upgrade().unwrap_or_else(|why| panic!("{why}: {}", rig.pool.log()))
        }
        assert!(all_wait(), "{} wait after round {round}: {}", parked(&rig.pool, "lease"), rig.pool.log());
        lease::release(holder.as_fd());
        drop(holder);
        for client in clients {
            client.join().expect("a client").expect("an append");
        }
        assert_eq!(fs::read(&path).expect("the file").len(), 1 + CLIENTS, "round {round}");
        assert_eq!(parked(&rig.pool, "lease"), 0);
    }
}

/// A file whose disk is full moves to a slow one, and then to one that does not answer: an upgrade waits for moves, but not for ever.
#[test]
fn who_waits_for_a_move_outlives_the_process() {
    for kill in [true, false] {
        let scratch = ScratchDir::new("canopy-survival-", &[]);
        let (slow, full) = (FaultyFs::mount(&scratch.dir()), LoopFs::tmpfs(64 << 20));
        fs::write(full.path().join("file"), vec![5; 24 << 20]).expect("a file");
        let pool = Pool::builder(env!("CARGO_BIN_EXE_canopy"))
            .branch(full.path())
            .branch(slow.path())
            .option("survive=true,moveonenospc=mfs,minfreespace=0,passthrough.io=off,branch-timeout=0")
            .env("CANOPY_TEST_UPGRADE_SECONDS", "60")
            .mount();
        assert!(cmd::wait_until(PATIENCE, || pool.log().contains(" is on ")), "{}", pool.log());
        let path = pool.path().join("file");
        // Whoever dies first waits for the write that is under way.
        let fault = if kill { Fault::Delay(Duration::from_millis(150)) } else { Fault::Hang };
        slow.set(fault, &[Opcode::Write]);
        let writer = {
            let path = path.clone();
            thread::spawn(move || {
                let file = OpenOptions::new().write(true).open(path)?;
                // More than the disk has.
                rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 70 * MIB).map_err(io::Error::from)
            })
        };
        assert!(cmd::wait_until(PATIENCE, || !files::unfinished_copies(slow.backing_dir()).is_empty()));
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let path = path.clone();
                thread::spawn(move || {
                    OpenOptions::new().write(true).open(path)?.write_all_at(&[number as u8], number as u64)
                })
            })
            .collect();
        let waited = cmd::wait_until(PATIENCE, || parked(&pool, "move") > 0 || writer.is_finished());
        let moves = !writer.is_finished();
        let before = server(&pool);
        let as_expected = if kill {
            send(before, Signal::KILL);
            cmd::wait_until(PATIENCE, || servers(&pool).iter().any(|&next| next != before))
        } else {
            let done = pool.command(["upgrade".as_ref(), "--force".as_ref(), pool.path().as_os_str()]);
            done.stderr.contains("a file that is moved") && server(&pool) == before
        };
        slow.heal();
        if !as_expected {
            end_all(&pool);
        }
        assert!(waited && moves && as_expected, "{waited} {moves} {as_expected}: {}", pool.log());
        writer.join().expect("a client").expect("space on the other disk");
        for client in clients {
            client.join().expect("a client").expect("a write");
        }
        let content = fs::read(&path).expect("the file");
        assert_eq!(content.len() as u64, 70 * MIB);
        let expected = |at: usize| if at < CLIENTS { at as u8 } else { 5 };
        assert!((0..24 << 20).all(|at| content[at] == expected(at)), "{}", pool.log());
        assert_eq!(parked(&pool, "move"), 0);
        assert!(slow.backing_dir().join("file").exists() && !full.path().join("file").exists());
        pool.umount();
    }
}
