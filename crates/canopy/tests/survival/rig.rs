//! A pool that outlives the process that serves it, and how to kill that.

use canopy_testkit::{PATIENCE, Pool, PoolBuilder, ScratchDir, cmd, proc};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::PathBuf;

impl Drop for Rig {
    /// After a failure, ends all processes: clients that wait for an answer get an error then.
    fn drop(&mut self) {
        if std::thread::panicking() {
            end_all(&self.pool);
        }
    }
}

/// Kills the keeper, so that nothing is started any more, and what it has started.
pub(crate) fn end_all(pool: &Pool) {
    let mut all = processes(pool);
    let pids: Vec<i32> = all.iter().map(|&(pid, _)| pid).collect();
    all.sort_by_key(|(_, parent)| pids.contains(parent));
    all.into_iter().for_each(|(pid, _)| send(pid, Signal::KILL));
}

/// Branches in a directory, and the pool over them.
pub(crate) struct Rig {
    pub(crate) pool: Pool,
    pub(crate) dir: ScratchDir,
}

impl Rig {
    pub(crate) fn new(branches: &[&str], options: &str) -> Rig {
        Rig::build(branches, |builder| builder.option(options))
    }

    pub(crate) fn build(branches: &[&str], with: impl FnOnce(PoolBuilder) -> PoolBuilder) -> Rig {
        let dir = ScratchDir::new("canopy-survival", branches);
        let paths = branches.iter().map(|name| dir.path(name));
        let builder = Pool::builder(env!("CARGO_BIN_EXE_canopy")).branches(paths);
        // A second is short while other tests run.
        let builder = builder.env("CANOPY_TEST_UPGRADE_SECONDS", "60");
        let pool = with(builder.option("survive=true,minfreespace=0")).mount();
        // The mount is there a moment before another process would take over.
        assert!(cmd::wait_until(PATIENCE, || pool.log().contains(" is on ")), "{}", pool.log());
        Rig { pool, dir }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.pool.path().join(name)
    }

    pub(crate) fn branch(&self, name: &str) -> PathBuf {
        self.dir.path(name)
    }

    /// Kills the process that serves with a signal, and waits until the next one serves.
    #[track_caller]
    pub(crate) fn kill(&self, signal: Signal) {
        assert!(self.try_kill(signal), "no other process takes over\n{}", self.pool.log());
        // The first request waits for it.
        fs::metadata(self.pool.path()).unwrap();
    }

    /// Kills the process that serves. Returns whether another one is started.
    pub(crate) fn try_kill(&self, signal: Signal) -> bool {
        let server = server(&self.pool);
        send(server, signal);
        cmd::wait_until(PATIENCE, || servers(&self.pool).iter().any(|&next| next != server))
    }

    /// Has the installed program take over, which is the same one.
    pub(crate) fn upgrade(&self) -> Result<(), String> {
        let done = self.pool.command(["upgrade".as_ref(), "--force".as_ref(), self.pool.path().as_os_str()]);
        if done.success() { Ok(()) } else { Err(done.describe()) }
    }

    /// Ends the process that serves, in each way.
    pub(crate) fn each_end(&self, mut then: impl FnMut(&str)) {
        self.kill(Signal::KILL);
        then("killed");
        self.upgrade().unwrap();
        then("upgraded");
        self.kill(Signal::KILL);
        then("killed again");
    }

    /// How often another process has taken over, as `canopy status` tells it.
    pub(crate) fn takeovers(&self) -> u64 {
        self.pool.status()["survival"]["takeovers"].as_u64().expect("a number")
    }
}

pub(crate) fn send(pid: i32, signal: Signal) {
    assert!(pid > 1);
    // It may have ended by itself.
    let _ = kill_process(Pid::from_raw(pid).unwrap(), signal);
}

/// The processes of a pool, which have its mountpoint among their arguments, with their parents.
fn processes(pool: &Pool) -> Vec<(i32, i32)> {
    let own = std::process::id().cast_signed();
    let all = proc::processes().into_iter().filter(|process| process.pid != own);
    let of_pool = all.filter(|process| process.args.iter().any(|arg| arg == pool.path()));
    of_pool.filter_map(|process| Some((process.pid, proc::parent(process.pid)?))).collect()
}

/// The processes that serve a pool, or are ending: the children of the keeper.
pub(crate) fn servers(pool: &Pool) -> Vec<i32> {
    let all = processes(pool);
    let is_child = |parent: i32| all.iter().any(|&(pid, _)| pid == parent);
    all.iter().filter(|&&(_, parent)| is_child(parent)).map(|&(pid, _)| pid).collect()
}

/// The process that serves.
#[track_caller]
pub(crate) fn server(pool: &Pool) -> i32 {
    let mut found = Vec::new();
    cmd::wait_until(PATIENCE, || {
        found = servers(pool);
        found.len() == 1
    });
    assert_eq!(found.len(), 1, "{:?}\n{}", processes(pool), pool.log());
    found[0]
}

/// The process that starts those that serve.
pub(crate) fn keeper(pool: &Pool) -> i32 {
    proc::parent(server(pool)).expect("the server has a parent")
}

/// How many processes a pool has.
pub(crate) fn count(pool: &Pool) -> usize {
    processes(pool).len()
}

/// Whether the pool has its requests over io_uring, which not every kernel offers.
pub(crate) fn over_io_uring(pool: &Pool) -> bool {
    pool.status()["transport"] == "io-uring"
}
