//! Requests that wait for a lease or a move, and whose client gets a signal, or whose pool is unmounted: each gets one answer.

use super::rig::{BINARY, Rig};
use super::waits::{parked, pool_with_file, wait_for_parked};
use canopy_fuse::Opcode;
use canopy_sys::lease;
use canopy_testkit::cmd::{self, wait_until};
use canopy_testkit::{Fault, LoopFs, PATIENCE, Pool, transports};
use rustix::fs::FallocateFlags;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;

/// What a client's exit status says.
const OPENED: i32 = 0;
const INTERRUPTED: i32 = 3;
const FAILED: i32 = 4;

/// Opens a file for writing. A signal interrupts it, if the pool lets it.
const CLIENT: &str = "
import os, signal, sys
def interrupt(*_): raise InterruptedError
if sys.argv[2] == 'interrupts': signal.signal(signal.SIGUSR1, interrupt)
else: signal.signal(signal.SIGUSR1, lambda *_: None)
try: os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND)
except InterruptedError: sys.exit(3)
except OSError: sys.exit(4)
";

fn client(path: &Path, handler: &str) -> Child {
    let mut command = Command::new("python3");
    command.args(["-c", CLIENT]).arg(path).arg(handler).stdin(Stdio::null());
    cmd::spawn(&mut command).expect("a client")
}

fn send(client: &Child, signal: Signal) {
    kill_process(Pid::from_child(client), signal).expect("a signal");
}

#[track_caller]
fn end_of(mut client: Child, what: &str) -> ExitStatus {
    let ended = cmd::wait_within(&mut client, PATIENCE);
    if ended.is_none() {
        let _ = client.kill();
    }
    ended.unwrap_or_else(|| panic!("{what}: a client waits for ever"))
}

/// As file systems wait for a lease: any signal ends it.
#[test]
fn a_signal_ends_the_wait_for_a_lease() {
    for transport in transports() {
        let disk = LoopFs::ext4(64 << 20);
        let (pool, path, holder) = pool_with_file(transport, &disk);
        lease::take_alone(holder.as_fd()).expect("a lease");
        let (interrupted, killed) = (client(&path, "interrupts"), client(&path, "interrupts"));
        let waits_on = client(&path, "interrupts");
        wait_for_parked(&pool, "lease", 3);
        send(&interrupted, Signal::USR1);
        assert_eq!(end_of(interrupted, transport).code(), Some(INTERRUPTED));
        send(&killed, Signal::KILL);
        assert_eq!(end_of(killed, transport).code(), None);
        assert!(wait_until(PATIENCE, || parked(&pool, "lease") == 1), "{}", pool.log());
        lease::release(holder.as_fd());
        assert_eq!(end_of(waits_on, transport).code(), Some(OPENED));
        pool.umount();
    }
}

/// A file that is being moved to a disk that does not answer.
struct Moving {
    rig: Rig,
    writer: JoinHandle<io::Result<()>>,
}

impl Moving {
    fn new(transport: &str) -> Moving {
        let rig = Rig::new(transport, 0, "moveonenospc=mfs", &[]);
        let path = rig.at("moving");
        fs::write(&path, vec![5; 4 << 20]).expect("a file");
        rig.faulty.set(Fault::Hang, &[Opcode::Write]);
        let writer = std::thread::spawn(move || {
            let file = File::options().write(true).open(path)?;
            // More than the disk has.
            rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 70 << 20).map_err(io::Error::from)
        });
        assert!(wait_until(PATIENCE, || rig.faulty.hanging() > 0), "{}", rig.pool.log());
        Moving { rig, writer }
    }
}

/// As file systems wait for a disk: only a signal that kills ends it, and the others do not make the open fail.
#[test]
fn only_a_signal_that_kills_ends_the_wait_for_a_move() {
    for transport in transports() {
        let Moving { rig, writer } = Moving::new(transport);
        let path = rig.at("moving");
        let (signalled, killed) = (client(&path, "goes on"), client(&path, "goes on"));
        let arrived = wait_until(PATIENCE, || parked(&rig.pool, "move") == 2);
        send(&signalled, Signal::USR1);
        send(&killed, Signal::KILL);
        let left = wait_until(PATIENCE, || parked(&rig.pool, "move") == 1);
        let killed = end_of(killed, transport).code();
        rig.faulty.heal();
        assert!(arrived && left && killed.is_none(), "{arrived} {left} {killed:?}: {}", rig.pool.log());
        writer.join().expect("a client").expect("space on the other disk");
        assert_eq!(end_of(signalled, transport).code(), Some(OPENED));
        rig.pool.umount();
    }
}

/// Ways to unmount a pool that is in use: whether it is refused, and what is run.
fn unmounts(pool: &Pool) -> [(bool, Command); 4] {
    let command = |program: &str, args: &[&str]| {
        let mut command = Command::new(program);
        command.args(args).arg(pool.path());
        command
    };
    [
        (true, command("umount", &[])),
        (true, command(BINARY, &["umount"])),
        (false, command("umount", &["-l"])),
        (false, command(BINARY, &["umount", "--lazy"])),
    ]
}

/// Whoever is inside of the pool keeps it, and gets an answer when the lease ends, also from one that was detached.
#[test]
fn who_waits_for_a_lease_is_answered_although_the_pool_is_unmounted() {
    for transport in transports() {
        for way in 0..4 {
            let disk = LoopFs::ext4(64 << 20);
            let (pool, path, holder) = pool_with_file(transport, &disk);
            lease::take_alone(holder.as_fd()).expect("a lease");
            let clients = [client(&path, "interrupts"), client(&path, "interrupts")];
            wait_for_parked(&pool, "lease", clients.len());
            let (is_refused, mut command) = unmounts(&pool).into_iter().nth(way).expect("a way");
            let done = cmd::run_within(&mut command, PATIENCE);
            let what = format!("{transport}, {command:?}: {}", done.describe());
            assert_eq!((done.success(), pool.mounted()), (!is_refused, is_refused), "{what}");
            lease::release(holder.as_fd());
            for client in clients {
                assert_eq!(end_of(client, &what).code(), Some(OPENED), "{what}");
            }
            drop(holder);
            // One that was detached ends by itself once nobody uses it.
            pool.umount();
        }
    }
}

/// A daemon that is told to end does not leave a client behind.
#[test]
fn who_waits_is_answered_when_the_daemon_ends() {
    for transport in transports() {
        let disk = LoopFs::ext4(64 << 20);
        let (pool, path, holder) = pool_with_file(transport, &disk);
        lease::take_alone(holder.as_fd()).expect("a lease");
        let waits = client(&path, "interrupts");
        wait_for_parked(&pool, "lease", 1);
        kill_process(Pid::from_raw(pool.pid()).expect("a pid"), Signal::TERM).expect("SIGTERM");
        assert!(wait_until(PATIENCE, || !pool.mounted()), "{}", pool.log());
        lease::release(holder.as_fd());
        let code = end_of(waits, transport).code();
        assert!(matches!(code, Some(OPENED | FAILED)), "{code:?}");
        drop(holder);
        pool.umount();
    }
}

/// The same for a file that is being moved.
#[test]
fn who_waits_for_a_move_is_answered_although_the_pool_is_unmounted() {
    for transport in transports() {
        let Moving { rig, writer } = Moving::new(transport);
        let clients = [client(&rig.at("moving"), "goes on"), client(&rig.at("moving"), "goes on")];
        let arrived = wait_until(PATIENCE, || parked(&rig.pool, "move") == 2);
        let refused = cmd::run_within(Command::new("umount").arg(rig.pool.path()), PATIENCE);
        let detached = cmd::run_within(Command::new("umount").arg("-l").arg(rig.pool.path()), PATIENCE);
        rig.faulty.heal();
        assert!(arrived && !refused.success() && detached.success(), "{arrived}: {}", rig.pool.log());
        writer.join().expect("a client").expect("space on the other disk");
        for client in clients {
            assert_eq!(end_of(client, transport).code(), Some(OPENED), "{}", rig.pool.log());
        }
        rig.pool.umount();
    }
}
