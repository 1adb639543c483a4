//! A pool with tiers, and the mover that works on it.

use canopy_testkit::cmd::{Finished, run_within};
use canopy_testkit::{LoopFs, PATIENCE, Pool, PoolBed, ScratchDir};
use serde_json::Value;
use std::process::{Command, Stdio};

pub(super) const BINARY: &str = env!("CARGO_BIN_EXE_canopy");
pub(super) const MIB: usize = 1 << 20;

/// A pool, and where its movers leave their record.
pub(super) struct Mover {
    pub(super) bed: PoolBed,
    records: ScratchDir,
}

/// Mounts a pool over disks, with tiers and rules in which `@N` is the path of a disk.
pub(super) fn mounted(disks: Vec<LoopFs>, tiers: &str, rules: &str) -> Mover {
    mounted_with(disks, tiers, rules, "minfreespace=0")
}

/// The same with further options.
pub(super) fn mounted_with(disks: Vec<LoopFs>, tiers: &str, rules: &str, options: &str) -> Mover {
    let place = |text: &str| {
        disks.iter().enumerate().fold(text.to_owned(), |text, (index, disk)| {
            text.replace(&format!("@{index}"), &disk.path().display().to_string())
        })
    };
    let options = [
        "category.create=ff,cache.attr=0,cache.entry=0,cache.statfs=0".to_owned(),
        options.to_owned(),
        format!("tiers={}", place(tiers)),
        format!("rules={}", place(rules)),
    ];
    let builder = options.into_iter().fold(Pool::builder(BINARY), |builder, option| builder.option(option));
    Mover { bed: PoolBed::mount(builder, disks), records: ScratchDir::new("canopy-tier-", &["run"]) }
}

impl Mover {
    /// The command `canopy tier POOL ARGS`.
    pub(super) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(BINARY);
        command.arg("tier").arg(self.bed.pool.path()).args(args);
        command.env("CANOPY_RUN_DIR", self.records.path("run")).stdin(Stdio::null()).stdout(Stdio::null());
        command
    }

    pub(super) fn run(&self, args: &[&str]) -> Finished {
        run_within(&mut self.command(args), PATIENCE)
    }

    /// Returns the report of a command that must succeed.
    #[track_caller]
    pub(super) fn json(&self, args: &[&str]) -> Value {
        let done = self.run(&[args, &["--json"]].concat());
        assert!(done.success(), "{}", done.describe());
        serde_json::from_str(&done.stdout).unwrap_or_else(|why| panic!("{why}: {}", done.describe()))
    }

    /// Returns what `canopy status` says of the pool.
    #[track_caller]
    pub(super) fn status(&self) -> Value {
        let mut status: Value = serde_json::from_str(&self.asked(&["--json"])).unwrap();
        status["pools"][0].take()
    }

    /// Returns the same for people, with one blank between words.
    pub(super) fn status_text(&self) -> String {
        self.asked(&[]).split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[track_caller]
    fn asked(&self, args: &[&str]) -> String {
        let mut command = Command::new(BINARY);
        command.arg("status").arg(self.bed.pool.path()).args(args);
        let done = run_within(command.env("CANOPY_RUN_DIR", self.records.path("run")), PATIENCE);
        // 1: something is missing or fails.
        assert!(done.status.is_some() && done.stderr.is_empty(), "{}", done.describe());
        done.stdout
    }
}
