//! Requests that wait in a fresh pool, of which the kernel knows no regular file.

use super::rig::{BINARY, PATIENCE, client};
use canopy_testkit::cmd::wait_until;
use canopy_testkit::{Fault, FaultyFs, Kind, LoopFs, Paused, Pool, ScratchDir, proc, transports};
use rustix::fs::{AtFlags, Mode, OFlags, statat, statvfs};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, mount_bind, unmount};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;

/// How many requests hang, more than a queue has workers.
const WAITING: usize = 12;

struct Rig {
    /// Keeps the pool busy.
    root: Arc<OwnedFd>,
    pool: Pool,
    // Dropped before the filesystem that has its image.
    _disks: [LoopFs; 2],
    faulty: FaultyFs,
    _scratch: ScratchDir,
}

impl Rig {
    /// Mounts a pool over a disk with the directory `mine` and another one, which hangs from then on. The kernel knows
    /// directories and nothing else.
    fn new(transport: &str) -> Rig {
        let scratch = ScratchDir::new("canopy-unknown-", &[]);
        let faulty = FaultyFs::mount(&scratch.dir());
        let mut disks = [LoopFs::tmpfs(16 << 20), LoopFs::with_image_in(faulty.path(), Kind::Ext4, 32 << 20)];
        fs::create_dir(disks[0].path().join("mine")).expect("mkdir");
        for number in 0..WAITING {
            fs::write(disks[0].path().join(format!("mine/f{number}")), "mine").expect("a file");
        }
        disks[1].unmount();
        disks[1].mount_again();
        let pool = Pool::builder(BINARY)
            .branches(disks.iter().map(LoopFs::path))
            .option("minfreespace=0,branch-timeout=0,cache.attr=600,cache.entry=600")
            .option(format!("io-uring={transport}"))
            .mount();
        // Whoever mounted may have looked at the control file.
        pool.drop_dentries();
        fs::metadata(pool.path().join("mine")).expect("a directory");
        let root = rustix::fs::open(pool.path(), OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
        disks[1].drop_caches();
        faulty.set_all(Fault::Hang);
        Rig { pool, root: Arc::new(root.expect("the root")), _disks: disks, faulty, _scratch: scratch }
    }

    /// Starts lookups of names that the disk which hangs may have, all on one processor.
    fn look_up_unknown_names(&self) -> Vec<JoinHandle<Result<(), Errno>>> {
        let one = |number| {
            let root = Arc::clone(&self.root);
            client(move || statat(&*root, format!("unknown{number}"), AtFlags::empty()).map(drop))
        };
        (0..WAITING).map(one).collect()
    }

    /// Returns how many workers wait for the disk. Sends no request, which would have the kernel pass on others.
    fn at_the_disk(&self) -> usize {
        let threads = proc::threads(self.pool.pid());
        threads.iter().filter(|thread| is_worker(thread) && thread.field("State").starts_with('D')).count()
    }
}

fn is_worker(thread: &proc::Thread) -> bool {
    thread.name.starts_with("canopy-q") || thread.name.starts_with("canopy-fuse")
}

fn workers(pid: i32) -> usize {
    proc::threads(pid).iter().filter(|thread| is_worker(thread)).count()
}

/// Returns the children of a process, zombies too.
fn children(pid: i32) -> Vec<i32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("a process");
    let of =
        |task: std::io::Result<fs::DirEntry>| fs::read_to_string(task.ok()?.path().join("children")).ok();
    let listed: Vec<String> = tasks.filter_map(of).collect();
    listed.iter().flat_map(|list| list.split_whitespace()).map(|id| id.parse().expect("a number")).collect()
}

#[test]
fn requests_that_wait_need_no_file_that_the_kernel_knows() {
    for transport in transports() {
        let rig = Rig::new(transport);
        let waiting = rig.look_up_unknown_names();
        let all_wait = wait_until(PATIENCE, || rig.at_the_disk() >= WAITING);
        let wait = rig.at_the_disk();
        // The pool knows that the other disk does not have their directory.
        let one = |number| {
            let path = rig.pool.path().join(format!("mine/f{number}"));
            client(move || fs::metadata(path).map(|file| file.len()))
        };
        let others: Vec<_> = (0..WAITING).map(one).collect();
        let served = wait_until(PATIENCE, || others.iter().all(JoinHandle::is_finished));
        let still = waiting.iter().filter(|client| !client.is_finished()).count();
        rig.faulty.heal();
        let what =
            format!("io-uring={transport}: {wait} wait for the disk, {still} are left\n{}", rig.pool.log());
        assert!(all_wait && served && still == WAITING, "{what}");
        for other in others {
            assert_eq!(other.join().expect("a client").expect("a file"), 4, "{what}");
        }
        for client in waiting {
            assert_eq!(client.join().expect("a client"), Err(Errno::NOENT), "{what}");
        }
        let pid = rig.pool.pid();
        assert!(wait_until(PATIENCE, || children(pid).is_empty()), "children are left: {:?}", children(pid));
        let Rig { pool, root, .. } = rig;
        drop(root);
        pool.umount();
    }
}

/// Workers that were added leave although the kernel knows no file.
#[test]
fn workers_leave_a_pool_without_a_file_that_the_kernel_knows() {
    for transport in transports() {
        let rig = Rig::new(transport);
        let before = workers(rig.pool.pid());
        let waiting = rig.look_up_unknown_names();
        let all_wait = wait_until(PATIENCE, || rig.at_the_disk() >= WAITING);
        let most = workers(rig.pool.pid());
        rig.faulty.heal();
        for client in waiting {
            assert_eq!(client.join().expect("a client"), Err(Errno::NOENT));
        }
        // They leave some ten seconds after they were needed, while there are requests; these need no file.
        let left = wait_until(PATIENCE, || {
            statvfs(rig.pool.path()).expect("statfs");
            workers(rig.pool.pid()) <= before
        });
        let now = workers(rig.pool.pid());
        assert!(
            all_wait && left && most > before,
            "io-uring={transport}: {before}, then {most}, and {now} at the end"
        );
        let Rig { pool, root, .. } = rig;
        drop(root);
        pool.umount();
    }
}

/// Another filesystem covers the mountpoint and does not answer the child by which the daemon has the kernel send a request.
#[test]
fn a_daemon_that_is_killed_while_its_child_hangs_leaves_nothing() {
    if !transports().contains(&"on") {
        return;
    }
    let mut rig = Rig::new("on");
    let pid = rig.pool.pid();
    let disk = LoopFs::tmpfs(16 << 20);
    let cover = Pool::builder(BINARY).branch(disk.path()).mount();
    mount_bind(cover.path(), rig.pool.path()).expect("a mount over the pool");
    let paused = Paused::new(cover.pid());
    let waiting = rig.look_up_unknown_names();
    let mut left = Vec::new();
    let hangs = wait_until(PATIENCE, || {
        // One that does not hang is only there for a moment.
        let before = std::mem::replace(&mut left, children(pid));
        left.iter().any(|child| before.contains(child))
    });
    // What hangs on the disk can only end with it.
    kill_process(Pid::from_raw(pid).expect("a process"), Signal::KILL).expect("kill");
    rig.faulty.heal();
    let ended = wait_until(PATIENCE, || waiting.iter().all(JoinHandle::is_finished));
    drop(paused);
    unmount(rig.pool.path(), UnmountFlags::DETACH).expect("umount");
    rig.pool.kill();
    let gone = wait_until(PATIENCE, || left.iter().all(|&child| proc::process(child).is_none()));
    assert!(hangs, "no child asks for a request\n{}", rig.pool.log());
    assert!(ended, "clients wait for a daemon that was killed, while its child waits");
    assert!(gone, "the children {left:?} are left");
    for client in waiting {
        client.join().expect("a client").expect_err("a dead mount");
    }
    cover.umount();
}
