//! Runs work in a pool and counts its requests.

use std::fmt;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use canopy_fuse::request_counter::{RequestCounter, Requests};
use canopy_testkit::cmd::run_within;
use canopy_testkit::{PATIENCE, PoolBed};
use tempfile::TempDir;

use super::work::{DIRS, FILES, Row};

/// A user without privileges. The directories of work are its own, the pool's root is not.
const USER: u32 = 6001;

/// Who works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Actor {
    /// Root, the owner of the pool's root.
    Owner,
    /// An ordinary user.
    Other,
}

impl Actor {
    fn command(self) -> Command {
        match self {
            Actor::Owner => Command::new("sh"),
            Actor::Other => {
                let mut command = Command::new("setpriv");
                let id = USER.to_string();
                command.args(["--reuid", &id, "--regid", &id, "--clear-groups", "sh"]);
                command
            }
        }
    }

    fn own(self, path: &Path) {
        if self == Actor::Other {
            chown(path, Some(USER), Some(USER)).unwrap();
        }
    }
}

pub(super) struct Rig<'a> {
    bed: &'a PoolBed,
    counter: &'a RequestCounter,
    actor: Actor,
    /// Outside of the pool: `tree`, `tree.tar` and the repository `repo`, and a directory `out`.
    outside: TempDir,
}

impl<'a> Rig<'a> {
    pub(super) fn new(bed: &'a PoolBed, counter: &'a RequestCounter, actor: Actor) -> Self {
        let outside = tempfile::tempdir().unwrap();
        fs::set_permissions(outside.path(), PermissionsExt::from_mode(0o755)).unwrap();
        actor.own(outside.path());
        let rig = Self { bed, counter, actor, outside };
        let script = format!(
            "for d in $(seq {DIRS}); do
                 mkdir -p tree/d$d
                 for f in $(seq {FILES}); do head -c $((f * 200)) /dev/zero > tree/d$d/f$f; done
             done
             mkdir out home
             tar -cf tree.tar tree
             cp -r tree repo; cd repo; git init -q; git add .; git commit -qm all"
        );
        rig.run(rig.outside.path(), &script);
        rig
    }

    /// Runs the work in a directory of its own.
    pub(super) fn count(&self, row: &Row, attempt: usize) -> Count {
        let dir = self.bed.at(&format!("{:?}-{}-{attempt}", self.actor, row.name.replace(' ', "-")));
        fs::create_dir(&dir).unwrap();
        self.actor.own(&dir);
        self.run(&dir, row.before);
        if row.cold {
            self.bed.pool.drop_dentries();
        }
        self.counter.take().unwrap();
        self.run(&dir, row.work);
        let requests = self.counter.take().unwrap();
        fs::remove_dir_all(&dir).unwrap();
        self.run(self.outside.path(), "rm -rf out/*");
        Count { requests, of: row.of }
    }

    /// `$HERE` is the directory, `$OUTSIDE` the one outside of the pool.
    #[track_caller]
    fn run(&self, dir: &Path, script: &str) {
        let mut command = self.actor.command();
        let outside: PathBuf = self.outside.path().to_owned();
        command.env("HERE", dir).env("HOME", outside.join("home")).env("LC_ALL", "C.UTF-8");
        for role in ["AUTHOR", "COMMITTER"] {
            command.env(format!("GIT_{role}_NAME"), "a").env(format!("GIT_{role}_EMAIL"), "a@example.org");
        }
        command.env("OUTSIDE", outside).current_dir(dir).args(["-euc", script]);
        let done = run_within(&mut command, 2 * PATIENCE);
        assert!(done.success(), "{script}: {}", done.describe());
    }
}

/// What a row cost.
#[derive(Debug)]
pub(super) struct Count {
    requests: Requests,
    of: usize,
}

impl Count {
    /// Requests per file and directory, or per whatever the row says.
    pub(super) fn each(&self) -> f64 {
        self.requests.total() as f64 / self.of as f64
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2}:", self.each())?;
        let mut kinds: Vec<_> = self.requests.by_name().collect();
        kinds.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        for (name, count) in kinds {
            write!(f, " {name} {:.2}", count as f64 / self.of as f64)?;
        }
        Ok(())
    }
}
