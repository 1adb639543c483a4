//! A pool mounted by the real program. Dropping it checks that the mount and the process are gone.

mod builder;
mod control;
#[cfg(test)]
mod tests;
mod transports;

pub use builder::{MountFailed, PoolBuilder, program_under_test};
pub use control::pool_status;
pub use transports::transports;

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread::panicking;
use std::time::{Duration, Instant};

use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::cmd::{PATIENCE, run_within, wait_until, wait_within};
use crate::proc;

/// How many times longer a process may take to end while another mount namespace has a copy of the mount.
const LEFT_ELSEWHERE: usize = 2;
/// How long descriptors on the branches usually take to be closed: RELEASE and FORGET are asynchronous. Descriptors that stay
/// longer belong to directories in the kernel's dentry cache.
const SOON: Duration = Duration::from_millis(100);

/// A mounted pool. Dropping it unmounts it and checks that nothing is left.
#[derive(Debug)]
pub struct Pool {
    binary: PathBuf,
    home: Option<TempDir>,
    point: PathBuf,
    log: PathBuf,
    branches: Vec<PathBuf>,
    /// The program, if it runs in the foreground.
    child: Option<Child>,
    pids: Vec<i32>,
    /// Descriptors on the branches right after the mount.
    baseline: Vec<PathBuf>,
    strict: bool,
    ended: bool,
}

impl Pool {
    /// Describes a pool that the given program serves, usually `env!("CARGO_BIN_EXE_canopy")`. The environment variable
    /// `CANOPY_BIN` overrides it.
    pub fn builder(program: impl Into<PathBuf>) -> PoolBuilder {
        PoolBuilder::new(program_under_test(program))
    }

    /// The pool's root.
    pub fn path(&self) -> &Path {
        &self.point
    }

    /// The process that serves the pool.
    pub fn pid(&self) -> i32 {
        let serves = |pid: &&i32| proc::descriptors(**pid).iter().any(|path| path == Path::new("/dev/fuse"));
        self.pids.iter().rev().find(serves).or(self.pids.last()).copied().unwrap_or(0)
    }

    pub fn is_alive(&self) -> bool {
        proc::process(self.pid()).is_some()
    }

    pub fn mounted(&self) -> bool {
        proc::mount_at(&self.point).is_some_and(|mount| mount.kind.starts_with("fuse"))
    }

    /// Counts the descriptors of the serving process, without those of its worker threads, whose number varies with the
    /// load.
    pub fn fd_count(&self) -> usize {
        let of_workers = ["/dev/fuse", "anon_inode:[io_uring]"].map(Path::new);
        proc::descriptors(self.pid()).iter().filter(|path| !of_workers.contains(&path.as_path())).count()
    }

    /// Returns what the serving process holds open on the branches.
    pub fn branch_descriptors(&self) -> Vec<PathBuf> {
        let mut held = proc::descriptors(self.pid());
        held.retain(|path| self.branches.iter().any(|branch| path.starts_with(branch)));
        held.sort();
        held
    }

    /// Returns the number of descriptors as soon as it is at most `target`, or the least that was seen. With a target of zero
    /// it returns when the number no longer falls.
    ///
    /// Shrinks the kernel's dentry cache first, since cached names may keep descriptors open in the daemon.
    pub fn settled_fd_count(&self, target: usize) -> usize {
        self.drop_dentries();
        let (mut least, mut since) = (usize::MAX, Instant::now());
        wait_until(PATIENCE, || {
            let count = self.fd_count();
            if count < least {
                (least, since) = (count, Instant::now());
            }
            least <= target || (target == 0 && since.elapsed() > Duration::from_secs(1))
        });
        least
    }

    /// Returns how many requests of this mount the kernel counts as unanswered, and how many of these are no client's:
    /// over io_uring, a worker that leaves keeps its entry's last request, which asks for nothing, until another worker
    /// takes the entry over. Both numbers are the same when nothing is going on.
    pub fn unanswered(&self) -> (usize, usize) {
        let minor = proc::mount_at(&self.point).expect("the pool is mounted").minor;
        let waiting = proc::fuse_connection(minor, "waiting");
        let pid = self.pid();
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("the daemon runs");
        // An entry's memory is mapped twice.
        let entries = maps.lines().filter(|line| line.contains("memfd:canopy-entry")).count() / 2;
        let workers = proc::threads(pid).iter().filter(|thread| thread.name.starts_with("canopy-q")).count();
        (waiting.trim().parse().expect("a number"), entries.saturating_sub(workers))
    }

    /// Makes the kernel drop the unused dentries and inodes of this mount. Dropping the caches of the whole machine would
    /// disturb other tests.
    pub fn drop_dentries(&self) {
        if proc::drop_dentries(&self.point).is_err() {
            let _ = fs::write("/proc/sys/vm/drop_caches", "2");
        }
    }

    /// Returns what the program has printed so far.
    pub fn log(&self) -> String {
        fs::read(&self.log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }

    /// Runs the program with other arguments until it exits.
    pub fn command<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> crate::cmd::Finished {
        run_within(Command::new(&self.binary).args(args), PATIENCE)
    }

    /// Kills the processes of the pool, first the one that would start another, so that none can clean up. The dead mount stays
    /// until drop.
    pub fn kill(&mut self) {
        self.strict = false;
        self.pids.iter().for_each(|&pid| signal(pid, Signal::KILL));
        if let Some(child) = &mut self.child {
            let _ = child.wait();
        }
        wait_until(PATIENCE, || self.pids.iter().all(|&pid| proc::process(pid).is_none()));
    }

    /// Returns the descriptors on the branches that were not open right after the mount, after giving them time to close.
    pub fn leaked_descriptors(&self) -> Vec<PathBuf> {
        let mut extra = Vec::new();
        let mut settled = |patience| {
            wait_until(patience, || {
                extra = self.branch_descriptors();
                for known in &self.baseline {
                    if let Some(index) = extra.iter().position(|path| path == known) {
                        extra.swap_remove(index);
                    }
                }
                extra.is_empty()
            })
        };
        let begun = Instant::now();
        while !settled(SOON) && begun.elapsed() < PATIENCE {
            // Cached names may keep descriptors open in the daemon. Names that an exiting process still uses stay in the
            // cache, so this is repeated.
            self.drop_dentries();
        }
        extra
    }

    /// Unmounts the pool as users do, with all the checks of drop, and returns its log.
    ///
    /// # Panics
    /// If the pool does not end cleanly.
    #[track_caller]
    pub fn umount(mut self) -> String {
        let outcome = self.end();
        let log = self.log();
        if let Err(message) = outcome {
            panic!("{message}\n--- log\n{log}");
        }
        log
    }

    /// Removes what `canopy tier` leaves of a pool where a test has named no place of its own (`CANOPY_RUN_DIR`).
    fn remove_record(&self) {
        let point = self.point.to_string_lossy().replace('-', "%2d").replace('/', "-");
        let _ = fs::remove_file(format!("/run/canopy/tier{point}.json"));
    }

    fn end(&mut self) -> Result<(), String> {
        if self.ended {
            return Ok(());
        }
        self.ended = true;
        self.remove_record();
        let mut faults = Vec::new();
        if self.strict && !panicking() {
            let left = self.leaked_descriptors();
            if !left.is_empty() {
                faults.push(format!("descriptors left open on the branches: {left:?}"));
            }
        }
        if self.mounted() {
            let ask = || {
                if self.is_alive() {
                    run_within(Command::new(&self.binary).arg("umount").arg(&self.point), PATIENCE)
                } else {
                    run_within(Command::new("umount").arg(&self.point), PATIENCE)
                }
            };
            // A program that a test on another thread starts holds copies of this process's descriptors between fork and
            // exec, so the mount may be busy for a moment.
            let mut asked = ask();
            wait_until(PATIENCE, || {
                if !asked.success() && self.mounted() {
                    asked = ask();
                }
                asked.success() || !self.mounted()
            });
            if !wait_until(PATIENCE, || !self.mounted()) {
                let holders = proc::holders(&self.point).join("\n  ");
                faults.push(format!("the mount is still there: {}\n  {holders}", asked.describe()));
            } else if !asked.success() {
                faults.push(format!("unmounting failed: {}", asked.describe()));
            }
        }
        let mut exited = faults.is_empty() && self.wait_for_exit(PATIENCE);
        for _ in 0..LEFT_ELSEWHERE {
            if faults.is_empty() && !exited && proc::is_left_elsewhere(&self.point) {
                exited = self.wait_for_exit(PATIENCE);
            }
        }
        if faults.is_empty() && !exited {
            let elsewhere = if proc::is_left_elsewhere(&self.point) {
                " (another mount namespace still has the pool)"
            } else {
                ""
            };
            faults.push(format!("the process {:?} still runs after the unmount{elsewhere}", self.pids));
        }
        self.force();
        if faults.is_empty() { Ok(()) } else { Err(faults.join("\n")) }
    }

    /// Removes what is still there, in an order that cannot hang: abort, kill, detach.
    fn force(&mut self) {
        if let Some(mount) = proc::mount_at(&self.point).filter(|mount| mount.kind.starts_with("fuse")) {
            if !self.wait_for_exit(Duration::ZERO) {
                let _ = fs::write(format!("/sys/fs/fuse/connections/{}/abort", mount.minor), "1");
            }
            self.pids.iter().for_each(|&pid| signal(pid, Signal::KILL));
            let _ = unmount(&self.point, UnmountFlags::DETACH);
        } else if !self.wait_for_exit(Duration::ZERO) {
            self.pids.iter().for_each(|&pid| signal(pid, Signal::KILL));
        }
        self.wait_for_exit(PATIENCE);
    }

    fn wait_for_exit(&mut self, deadline: Duration) -> bool {
        if let Some(child) = &mut self.child
            && wait_within(child, deadline).is_some()
        {
            self.child = None;
        }
        let pids = &mut self.pids;
        wait_until(deadline, || {
            pids.retain(|&pid| proc::process(pid).is_some());
            pids.is_empty()
        })
    }

    /// Cleans up after a failed mount.
    fn abandon(mut self, code: Option<i32>) -> MountFailed {
        self.ended = true;
        self.force();
        MountFailed { code, log: self.log() }
    }

    /// Finds the background processes of this pool by the mount point among their arguments.
    fn find_pids(&self) -> Vec<i32> {
        let own = i32::try_from(std::process::id()).unwrap_or(0);
        let mut pids: Vec<i32> = proc::processes()
            .into_iter()
            .filter(|process| {
                process.pid != own && process.args.iter().any(|arg| self.point == Path::new(arg))
            })
            .map(|process| process.pid)
            .collect();
        pids.sort_unstable();
        pids
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let outcome = self.end();
        if panicking() {
            eprintln!("--- log of the pool at {}\n{}", self.point.display(), tail(&self.log()));
        }
        if let Err(message) = outcome {
            let message = format!("{message}\n--- log\n{}", tail(&self.log()));
            if panicking() { eprintln!("{message}") } else { panic!("{message}") }
        }
        if proc::mount_at(&self.point).is_some()
            && let Some(home) = self.home.take()
        {
            let _ = home.keep(); // removing a mounted directory would empty the branches
        }
    }
}

fn signal(pid: i32, signal: Signal) {
    // Pid 0 would signal the process group of the test, and pid 1 is init.
    if pid > 1
        && let Some(pid) = Pid::from_raw(pid)
    {
        let _ = kill_process(pid, signal);
    }
}

fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(60)..].join("\n")
}
