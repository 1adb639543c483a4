//! A pool over its disks, and the plain directory beside it.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use canopy_testkit::cmd::{Finished, run_within, spawn};
use canopy_testkit::model::Plain;
use canopy_testkit::{PATIENCE, Pool, ScratchDir, cmd, program_under_test};
use rustix::fs::Mode;

use crate::disk::Disk;
use crate::plan::{Make, Plan, TOP};

/// How long a command of upkeep may take.
const LONG: Duration = Duration::from_secs(180);

pub(crate) struct World {
    // In this order: clients close their files, the pool ends, the disks go.
    pub(crate) client: Plain,
    pub(crate) reference: Plain,
    pool: Option<Pool>,
    pub(crate) disks: Vec<Disk>,
    /// The disks that are branches of the pool, in its order.
    pub(crate) order: Vec<usize>,
    home: ScratchDir,
    pub(crate) plan: Plan,
}

/// The program, which is built along with this one.
pub(crate) fn program() -> PathBuf {
    let own = std::env::current_exe().expect("this program");
    program_under_test(own.with_file_name("canopy"))
}

impl World {
    pub(crate) fn new(plan: &Plan) -> Self {
        rustix::process::umask(Mode::empty());
        let home = ScratchDir::new("canopy-storm-", &["pool", "plain", "run", "etc", "ssd"]);
        // What others may write is not used.
        for dir in ["run", "etc"] {
            fs::set_permissions(home.path(dir), fs::Permissions::from_mode(0o700)).expect("chmod");
        }
        let top = home.path("plain").join(TOP);
        fs::create_dir(&top).expect("a directory");
        let disks: Vec<Disk> = plan
            .disks
            .iter()
            .enumerate()
            .map(|(number, make)| Disk::new(*make, &home.dir(), number))
            .collect();
        for path in disks.iter().map(|disk| disk.contents().join(TOP)).chain([top.clone()]) {
            fs::create_dir_all(&path).expect("a directory");
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("chmod");
        }
        let order: Vec<usize> = (0..disks.len()).collect();
        let pool = mount(plan, &home, &disks, &order);
        let client = Plain::new(pool.path().join(TOP));
        Self { client, reference: Plain::new(top), pool: Some(pool), disks, order, home, plan: plan.clone() }
    }

    pub(crate) fn pool(&self) -> &Pool {
        self.pool.as_ref().expect("the pool is mounted")
    }

    /// The directory in which all of it lies.
    pub(crate) fn home(&self) -> PathBuf {
        self.home.dir()
    }

    /// A path in the pool, below its [`TOP`].
    pub(crate) fn at(&self, path: impl AsRef<Path>) -> PathBuf {
        self.pool().path().join(TOP).join(path)
    }

    /// The same in the plain directory.
    pub(crate) fn beside(&self, path: impl AsRef<Path>) -> PathBuf {
        self.home.path("plain").join(TOP).join(path)
    }

    pub(crate) fn survives(&self) -> bool {
        self.plan.options.iter().any(|option| option == "survive=true")
    }

    /// The disks that hold this path, and are in the pool.
    pub(crate) fn holders(&self, path: impl AsRef<Path>) -> Vec<usize> {
        let holds = |disk: &usize| self.on(*disk, &path).symlink_metadata().is_ok();
        self.present().into_iter().filter(holds).collect()
    }

    /// The disks that are in the pool and there.
    pub(crate) fn present(&self) -> Vec<usize> {
        self.order.iter().copied().filter(|disk| !self.disks[*disk].is_pulled()).collect()
    }

    /// A path below [`TOP`] on a disk.
    pub(crate) fn on(&self, disk: usize, path: impl AsRef<Path>) -> PathBuf {
        self.disks[disk].contents().join(TOP).join(path)
    }

    /// Makes the sign of a disk one that only this disk has: directories follow files to other disks.
    pub(crate) fn set_sign(&self, disk: usize) -> Result<(), String> {
        let sign = &self.disks[disk].sign;
        for other in self.disks.iter().filter(|other| other.sign != *sign) {
            let _ = fs::remove_dir(other.contents().join(sign));
        }
        fs::create_dir_all(self.disks[disk].contents().join(sign)).map_err(|error| format!("{sign}: {error}"))
    }

    /// The disks that are there and take any file, apart from one.
    fn roomy_without(&self, disk: usize) -> usize {
        self.present().into_iter().filter(|other| *other != disk && Some(*other) != self.plan.small).count()
    }

    /// Whether there is room without this disk.
    pub(crate) fn can_spare(&self, disk: usize) -> bool {
        self.roomy_without(disk) > 0 && self.holders("").into_iter().any(|other| other != disk)
    }

    /// On how many disks a file of a rule with two copies can be.
    pub(crate) fn most_copies(&self) -> usize {
        self.roomy_without(usize::MAX).min(2)
    }

    /// Whether a disk may be emptied.
    pub(crate) fn can_drain(&self, disk: usize) -> bool {
        self.roomy_without(disk) > 1
    }

    fn command(&self, args: &[OsString]) -> Command {
        let mut command = Command::new(program());
        command.args(args).env("CANOPY_RUN_DIR", self.home.path("run"));
        command.env("CANOPY_CONFIG_DIR", self.home.path("etc")).stdin(Stdio::null());
        command
    }

    /// Replaces `POOL`, `DIR` and `DISK` in a command.
    fn words(&self, line: &str, disk: usize) -> Vec<OsString> {
        let word = |word: &str| match word {
            "POOL" => self.pool().path().into(),
            "TOP" => self.at("").into(),
            "DIR" => self.at("a").into(),
            "DISK" => self.disks[disk % self.disks.len()].path().into(),
            _ => word.into(),
        };
        line.split(' ').map(word).collect()
    }

    /// Runs `canopy LINE` to its end.
    pub(crate) fn run(&self, line: &str) -> Result<Finished, String> {
        ended(line, run_within(&mut self.command(&self.words(line, 0)), LONG))
    }

    /// Starts `canopy LINE`.
    pub(crate) fn start(&self, line: &str, disk: usize) -> Child {
        let mut command = self.command(&self.words(line, disk));
        command.stdout(Stdio::null()).stderr(Stdio::null());
        spawn(&mut command).expect("the program starts")
    }

    /// Sets an option of the pool.
    pub(crate) fn set(&self, option: &str) -> Result<(), String> {
        let done = run_within(
            &mut self.command(&["set".into(), self.pool().path().into(), option.into()]),
            PATIENCE,
        );
        if done.success() { Ok(()) } else { Err(format!("canopy set {option}: {}", done.describe())) }
    }

    /// Tells the pool which disks it has, in which order.
    pub(crate) fn set_branches(&self) -> Result<(), String> {
        let paths: Vec<String> =
            self.order.iter().map(|disk| self.disks[*disk].path().display().to_string()).collect();
        self.set(&format!("branches={}", paths.join(":")))
    }

    /// Replaces `@N` by the branch of disk N.
    pub(crate) fn place(&self, text: &str) -> String {
        place(text, &self.disks)
    }

    pub(crate) fn upgrade(&self) -> Result<(), String> {
        let done = self.run("upgrade --force POOL")?;
        if done.success() { Ok(()) } else { Err(format!("canopy upgrade: {}", done.describe())) }
    }

    /// Unmounts the pool, which checks that it ends, and mounts it again.
    pub(crate) fn remount(&mut self) {
        // Its directory would keep the pool busy.
        self.client = Plain::new(self.home.path("plain"));
        self.pool.take().expect("a pool").umount();
        let pool = mount(&self.plan, &self.home, &self.disks, &self.order);
        self.client = Plain::new(pool.path().join(TOP));
        self.pool = Some(pool);
    }

    /// Adds an empty disk.
    pub(crate) fn grow(&mut self) {
        let number = self.disks.len();
        let make = Make::Real { kind: canopy_testkit::Kind::Tmpfs, size: 128 << 20 };
        self.disks.push(Disk::new(make, &self.home.dir(), number));
        self.order.push(number);
    }

    /// Ends the pool with all its checks.
    pub(crate) fn end(mut self) {
        self.client = Plain::new(self.home.path("plain"));
        self.pool.take().expect("a pool").umount();
    }

    /// Ends the pool, whatever it does: what waits for it gets an error.
    pub(crate) fn abort(&self) {
        if let Some(pool) = &self.pool {
            crate::server::end_all(pool);
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // Its directory would keep the pool busy.
        self.client = Plain::new(self.home.path("plain"));
    }
}

fn ended(line: &str, done: Finished) -> Result<Finished, String> {
    if done.timed_out() || done.code() == Some(101) || done.code().is_none() {
        return Err(format!("canopy {line}: {}", done.describe()));
    }
    Ok(done)
}

fn place(text: &str, disks: &[Disk]) -> String {
    disks.iter().enumerate().fold(text.to_owned(), |text, (number, disk)| {
        text.replace(&format!("@{number}"), &disk.path().display().to_string())
    })
}

fn mount(plan: &Plan, home: &ScratchDir, disks: &[Disk], order: &[usize]) -> Pool {
    let mut builder = Pool::builder(program()).at(home.path("pool")).forgive_descriptors();
    for option in &plan.options {
        builder = builder.option(option);
    }
    for (name, value) in [("tiers", plan.tiers), ("rules", plan.rules), ("trash", plan.trash)] {
        if !value.is_empty() {
            builder = builder.option(format!("{name}={}", place(value, disks)));
        }
    }
    if plan.cached {
        builder =
            builder.option(format!("read-cache={}=**|size 64M|when opened", home.path("ssd").display()));
        // Two ticks of the clock that filesystems have.
        builder = builder.env("CANOPY_TEST_CACHED_AFTER", "20");
    }
    builder = builder.env("CANOPY_TEST_DEATHS", "100000").env("CANOPY_TEST_UPGRADE_SECONDS", "60");
    builder = builder.env("CANOPY_RUN_DIR", home.path("run")).env("CANOPY_CONFIG_DIR", home.path("etc"));
    let pool = builder.branches(order.iter().map(|disk| disks[*disk].path())).mount();
    if plan.options.iter().any(|option| option == "survive=true") {
        // The mount is there a moment before another process would take over.
        let on = cmd::wait_until(PATIENCE, || pool.log().contains(" is on "));
        assert!(on, "{}", pool.log());
    }
    pool
}
