//! The processes that serve a pool with `survive=true`: a keeper, and its child.

use std::fs;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use canopy_testkit::{PATIENCE, Pool, cmd, proc};
use rustix::process::{Pid, Signal, kill_process};

/// The processes that have the pool's mountpoint among their arguments, with their parents.
fn processes(pool: &Pool) -> Vec<(i32, i32)> {
    let own = std::process::id().cast_signed();
    let all = proc::processes().into_iter().filter(|process| process.pid != own);
    let of_pool = all.filter(|process| process.args.iter().any(|arg| arg == "mount"));
    let of_pool = of_pool.filter(|process| process.args.iter().any(|arg| arg == pool.path()));
    of_pool.filter_map(|process| Some((process.pid, parent(process.pid)?))).collect()
}

fn parent(pid: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

fn servers(pool: &Pool) -> Vec<i32> {
    let all = processes(pool);
    let is_child = |parent: i32| all.iter().any(|&(pid, _)| pid == parent);
    all.iter().filter(|&&(_, parent)| is_child(parent)).map(|&(pid, _)| pid).collect()
}

/// The process that serves.
pub(crate) fn server(pool: &Pool) -> Result<i32, String> {
    let mut found = Vec::new();
    cmd::wait_until(PATIENCE, || {
        found = servers(pool);
        found.len() == 1
    });
    match found[..] {
        [server] => Ok(server),
        _ => Err(format!("the pool is served by {found:?} of {:?}", processes(pool))),
    }
}

pub(crate) fn send(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid).filter(|_| pid > 1) {
        // It may have ended by itself.
        let _ = kill_process(pid, signal);
    }
}

/// Kills the process that serves after some time.
pub(crate) struct Kill {
    server: i32,
    thread: JoinHandle<()>,
}

impl Kill {
    pub(crate) fn after(pool: &Pool, time: Duration) -> Result<Self, String> {
        let server = server(pool)?;
        let thread = thread::spawn(move || {
            thread::sleep(time);
            send(server, Signal::KILL);
        });
        Ok(Self { server, thread })
    }

    pub(crate) fn is_done(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits until another process serves.
    pub(crate) fn wait(self, pool: &Pool) -> Result<(), String> {
        let _ = self.thread.join();
        let next = || servers(pool).iter().any(|&next| next != self.server);
        if !cmd::wait_until(PATIENCE, next) {
            return Err("no process takes over from the one that was killed".into());
        }
        fs::metadata(pool.path()).map(drop).map_err(|error| format!("after a kill: {error}"))
    }
}

/// Kills the keeper, so that nothing is started any more, and what it has started.
pub(crate) fn end_all(pool: &Pool) {
    let mut all = processes(pool);
    let pids: Vec<i32> = all.iter().map(|&(pid, _)| pid).collect();
    all.sort_by_key(|(_, parent)| pids.contains(parent));
    all.into_iter().for_each(|(pid, _)| send(pid, Signal::KILL));
}
