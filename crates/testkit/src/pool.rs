//! A mounted pool under test: the real binary, a mount, and proof that both are gone afterwards.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::panicking;
use std::time::{Duration, Instant};

use rustix::fs::CWD;
use rustix::mount::{FsPickFlags, UnmountFlags, fsconfig_reconfigure, fspick, unmount};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::cmd::{run_within, spawn, wait_until, wait_within};
use crate::procs;

const MOUNT_DEADLINE: Duration = Duration::from_secs(30);
const END_DEADLINE: Duration = Duration::from_secs(15);
/// How long descriptors on the branches may take to be closed: RELEASE and FORGET are asynchronous.
const SETTLE: Duration = Duration::from_secs(5);
/// And how long mostly: beyond that they are of directories that the daemon remembers as long as the kernel does.
const SOON: Duration = Duration::from_millis(100);

/// Runs a suite over another transport: `on` or `off`, as the option `io-uring`.
const TRANSPORT: &str = "CANOPY_TEST_IO_URING";

/// Describes a pool to be mounted.
#[derive(Debug, Clone)]
pub struct PoolBuilder {
    binary: PathBuf,
    branches: Vec<OsString>,
    options: Vec<String>,
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    point: Option<PathBuf>,
    daemon: bool,
    strict: bool,
}

/// Why a mount command did not lead to a pool.
#[derive(Debug)]
pub struct MountFailed {
    pub code: Option<i32>,
    pub log: String,
}

impl PoolBuilder {
    /// A branch directory, writable.
    pub fn branch(mut self, path: impl AsRef<Path>) -> Self {
        self.branches.push(path.as_ref().as_os_str().to_owned());
        self
    }

    /// A branch with its mode, such as `/mnt/a=RO` or `/mnt/a=NC,1G`.
    pub fn branch_spec(mut self, spec: impl Into<OsString>) -> Self {
        self.branches.push(spec.into());
        self
    }

    /// One `-o` option, or several separated by commas; none when empty.
    pub fn option(mut self, option: impl Into<String>) -> Self {
        let option = option.into();
        if !option.is_empty() {
            self.options.push(option);
        }
        self
    }

    /// A further argument before the branches.
    pub fn argument(mut self, argument: impl Into<OsString>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Mounts there rather than in a directory of its own.
    pub fn at(mut self, point: impl Into<PathBuf>) -> Self {
        self.point = Some(point.into());
        self
    }

    /// Lets the program go into the background, as users run it. Without this it stays in the foreground.
    pub fn daemon(mut self) -> Self {
        self.daemon = true;
        self
    }

    /// Does not demand at the end that descriptors on the branches are closed.
    pub fn forgive_descriptors(mut self) -> Self {
        self.strict = false;
        self
    }

    /// Mounts.
    ///
    /// # Panics
    /// When that fails; the message carries the program's output.
    #[track_caller]
    pub fn mount(self) -> Pool {
        let shown = format!("{self:?}");
        self.try_mount().unwrap_or_else(|failed| {
            panic!("no pool (exit code {:?})\n{shown}\n--- log\n{}", failed.code, failed.log)
        })
    }

    /// Mounts, or tells how the program refused. Nothing is left mounted or running then.
    pub fn try_mount(self) -> Result<Pool, MountFailed> {
        crate::require_root();
        let home = tempfile::Builder::new()
            .prefix("canopy-pool-")
            .permissions(Permissions::from_mode(0o755))
            .tempdir()
            .expect("a temporary directory");
        let root = home.path().canonicalize().expect("a path");
        let point = self.point.clone().unwrap_or_else(|| {
            let point = root.join("pool");
            fs::create_dir(&point).expect("a mount point");
            point
        });
        let point = point.canonicalize().expect("the mount point");
        let log = root.join("log");
        let mut child = self.spawn(&point, &log);
        let branches = self.branches.iter().map(|spec| branch_path(spec)).collect();
        let mut pool = Pool {
            binary: self.binary.clone(),
            home: Some(home),
            point,
            log,
            branches,
            child: None,
            pids: Vec::new(),
            baseline: Vec::new(),
            strict: self.strict,
            ended: false,
        };
        if self.daemon {
            let status = wait_within(&mut child, MOUNT_DEADLINE);
            pool.pids = pool.find_pids();
            if !status.is_some_and(|status| status.success()) || !pool.mounted() {
                let _ = child.kill();
                let _ = child.wait();
                return Err(pool.abandon(status.and_then(|status| status.code())));
            }
        } else {
            pool.pids = vec![i32::try_from(child.id()).expect("a pid")];
            let mut code = None;
            let up = wait_until(MOUNT_DEADLINE, || {
                code = child.try_wait().ok().flatten();
                code.is_some() || pool.mounted()
            });
            pool.child = Some(child);
            if !up || code.is_some() {
                return Err(pool.abandon(code.and_then(|status| status.code())));
            }
        }
        // The first answer: INIT is done once this returns.
        if fs::metadata(&pool.point).is_err() {
            return Err(pool.abandon(None));
        }
        pool.baseline = pool.branch_descriptors();
        Ok(pool)
    }

    fn spawn(&self, point: &Path, log: &Path) -> Child {
        let output = File::create(log).expect("a log file");
        let mut command = Command::new(&self.binary);
        command.arg("mount").args(&self.arguments).envs(self.environment.iter().cloned());
        if !self.daemon {
            command.arg("-f");
        }
        let mut options = self.options.clone();
        let chosen = std::env::var(TRANSPORT).ok().filter(|mode| !mode.is_empty());
        // First, so that a test that is about the transport has its way.
        options.splice(0..0, chosen.map(|mode| format!("io-uring={mode}")));
        if !options.is_empty() {
            command.arg("-o").arg(options.join(","));
        }
        command.arg(self.branches.join(OsStr::new(":"))).arg(point);
        command.stdin(Stdio::null()).stdout(output.try_clone().expect("dup")).stderr(output);
        spawn(&mut command).unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"))
    }
}

/// A mounted pool, ended and checked on drop.
#[derive(Debug)]
pub struct Pool {
    binary: PathBuf,
    home: Option<TempDir>,
    point: PathBuf,
    log: PathBuf,
    branches: Vec<PathBuf>,
    /// The program when it runs in the foreground.
    child: Option<Child>,
    pids: Vec<i32>,
    /// Descriptors on the branches right after the mount.
    baseline: Vec<PathBuf>,
    strict: bool,
    ended: bool,
}

impl Pool {
    /// A pool served by the given binary, usually `env!("CARGO_BIN_EXE_canopy")`; `CANOPY_BIN` overrides it.
    pub fn builder(binary: impl Into<PathBuf>) -> PoolBuilder {
        PoolBuilder {
            binary: std::env::var_os("CANOPY_BIN").map_or_else(|| binary.into(), PathBuf::from),
            branches: Vec::new(),
            options: Vec::new(),
            arguments: Vec::new(),
            environment: Vec::new(),
            point: None,
            daemon: false,
            strict: true,
        }
    }

    /// The pool's root.
    pub fn path(&self) -> &Path {
        &self.point
    }

    /// The process that serves the pool.
    pub fn pid(&self) -> i32 {
        let serves = |pid: &&i32| procs::descriptors(**pid).iter().any(|path| path == Path::new("/dev/fuse"));
        self.pids.iter().rev().find(serves).or(self.pids.last()).copied().unwrap_or(0)
    }

    pub fn is_alive(&self) -> bool {
        procs::process(self.pid()).is_some()
    }

    pub fn mounted(&self) -> bool {
        procs::mount_at(&self.point).is_some_and(|mount| mount.kind.starts_with("fuse"))
    }

    /// The descriptors of the serving process, but for those of its workers: there are more while requests wait, and for a
    /// while afterwards.
    pub fn fd_count(&self) -> usize {
        let of_workers = ["/dev/fuse", "anon_inode:[io_uring]"].map(Path::new);
        procs::descriptors(self.pid()).iter().filter(|path| !of_workers.contains(&path.as_path())).count()
    }

    /// What the serving process holds open on the branches.
    pub fn branch_descriptors(&self) -> Vec<PathBuf> {
        let mut held = procs::descriptors(self.pid());
        held.retain(|path| self.branches.iter().any(|branch| path.starts_with(branch)));
        held.sort();
        held
    }

    /// The least number of descriptors within a while, which ends early once that is at most `target`.
    /// With a target of zero it ends as soon as the number no longer falls.
    ///
    /// Names the kernel remembers may keep descriptors in the daemon, so it is made to forget them.
    pub fn settled_fd_count(&self, target: usize) -> usize {
        self.forget_names();
        let (mut least, mut since) = (usize::MAX, Instant::now());
        wait_until(SETTLE, || {
            let count = self.fd_count();
            if count < least {
                (least, since) = (count, Instant::now());
            }
            least <= target || (target == 0 && since.elapsed() > Duration::from_secs(1))
        });
        least
    }

    /// Has the kernel drop what it remembers of this mount and nobody uses: reconfiguring a superblock does that first
    /// (fs/super.c reconfigure_super). That of everything would disturb the tests beside this one.
    pub fn forget_names(&self) {
        let pick = FsPickFlags::FSPICK_CLOEXEC | FsPickFlags::FSPICK_SYMLINK_NOFOLLOW;
        let own = fspick(CWD, &self.point, pick).and_then(fsconfig_reconfigure);
        if own.is_err() {
            let _ = fs::write("/proc/sys/vm/drop_caches", "2");
        }
    }

    /// What the program printed so far.
    pub fn log(&self) -> String {
        fs::read(&self.log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }

    /// Runs the program with other arguments, to its end.
    pub fn command<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> crate::cmd::Finished {
        run_within(Command::new(&self.binary).args(args), Duration::from_secs(60))
    }

    /// Ends the serving process without any chance to clean up, as a crash does. The dead mount stays until drop.
    pub fn kill(&mut self) {
        self.strict = false;
        let pid = self.pid();
        signal(pid, Signal::KILL);
        if let Some(child) = &mut self.child {
            let _ = child.wait();
        }
        wait_until(END_DEADLINE, || procs::process(pid).is_none());
    }

    /// Descriptors on the branches beyond those held right after the mount, after time to settle.
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
        while !settled(SOON) && begun.elapsed() < SETTLE {
            // Names the kernel remembers may keep descriptors in the daemon; only those it must give back now, which it
            // does not with names that whoever has just ended has still in use.
            self.forget_names();
        }
        extra
    }

    /// Ends the pool the way users do, and checks everything that drop checks.
    ///
    /// # Panics
    /// When the pool does not end cleanly.
    #[track_caller]
    pub fn umount(mut self) -> String {
        let outcome = self.end();
        let log = self.log();
        if let Err(message) = outcome {
            panic!("{message}\n--- log\n{log}");
        }
        log
    }

    fn end(&mut self) -> Result<(), String> {
        if self.ended {
            return Ok(());
        }
        self.ended = true;
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
                    run_within(Command::new(&self.binary).arg("umount").arg(&self.point), END_DEADLINE)
                } else {
                    run_within(Command::new("umount").arg(&self.point), END_DEADLINE)
                }
            };
            // A test on another thread that starts a program holds a copy of every descriptor of this process
            // from fork to exec, those on this mount among them: busy is asked again.
            let mut asked = ask();
            wait_until(END_DEADLINE / 3, || {
                if !asked.success() && self.mounted() {
                    asked = ask();
                }
                asked.success() || !self.mounted()
            });
            if !wait_until(END_DEADLINE / 3, || !self.mounted()) {
                let holders = procs::holders(&self.point).join("\n  ");
                faults.push(format!("the mount is left: {}\n  {holders}", asked.describe()));
            } else if !asked.success() {
                faults.push(format!("umount complained: {}", asked.describe()));
            }
        }
        if faults.is_empty() && !self.wait_for_exit(END_DEADLINE) {
            faults.push(format!("the process {:?} is left after the unmount", self.pids));
        }
        self.force();
        if faults.is_empty() { Ok(()) } else { Err(faults.join("\n")) }
    }

    /// Whatever is still there goes now, in the order that cannot hang: abort, kill, detach.
    fn force(&mut self) {
        if let Some(mount) = procs::mount_at(&self.point).filter(|mount| mount.kind.starts_with("fuse")) {
            if !self.wait_for_exit(Duration::ZERO) {
                let _ = fs::write(format!("/sys/fs/fuse/connections/{}/abort", mount.minor), "1");
            }
            self.pids.iter().for_each(|&pid| signal(pid, Signal::KILL));
            let _ = unmount(&self.point, UnmountFlags::DETACH);
        } else if !self.wait_for_exit(Duration::ZERO) {
            self.pids.iter().for_each(|&pid| signal(pid, Signal::KILL));
        }
        self.wait_for_exit(END_DEADLINE);
    }

    fn wait_for_exit(&mut self, deadline: Duration) -> bool {
        if let Some(child) = &mut self.child
            && wait_within(child, deadline).is_some()
        {
            self.child = None;
        }
        let pids = &mut self.pids;
        wait_until(deadline, || {
            pids.retain(|&pid| procs::process(pid).is_some());
            pids.is_empty()
        })
    }

    /// Cleans up after a mount that did not come to be.
    fn abandon(mut self, code: Option<i32>) -> MountFailed {
        self.ended = true;
        self.force();
        MountFailed { code, log: self.log() }
    }

    /// Background processes of this pool: those that were given its mount point.
    fn find_pids(&self) -> Vec<i32> {
        let own = i32::try_from(std::process::id()).unwrap_or(0);
        let mut pids: Vec<i32> = procs::processes()
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
        if procs::mount_at(&self.point).is_some()
            && let Some(home) = self.home.take()
        {
            let _ = home.keep(); // deleting through a mount would empty the branches
        }
    }
}

fn signal(pid: i32, signal: Signal) {
    // Zero and one are nobody's daemon: a guard that lost its pid must not signal a process group or init.
    if pid > 1
        && let Some(pid) = Pid::from_raw(pid)
    {
        let _ = kill_process(pid, signal);
    }
}

/// The directory in a branch argument: `PATH`, `PATH=MODE` or `PATH=MODE,SIZE`.
fn branch_path(spec: &OsStr) -> PathBuf {
    let text = spec.to_string_lossy();
    let path = match text.rsplit_once('=') {
        Some((path, _)) if !Path::new(spec).exists() => PathBuf::from(path),
        _ => PathBuf::from(spec),
    };
    path.canonicalize().unwrap_or(path)
}

fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(60)..].join("\n")
}

#[cfg(test)]
mod tests;
