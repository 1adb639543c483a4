//! Another program takes over (`canopy upgrade`), or does not, and then the one before serves on.

use crate::rig::{Rig, count, keeper, send, server};
use canopy_testkit::cmd::Finished;
use canopy_testkit::{PATIENCE, Pool, PoolBuilder, ScratchDir, cmd, program_under_test};
use rustix::process::Signal;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::process::Command;

/// A pool that is served by a program of its own, which can be replaced.
struct Installed {
    pool: Pool,
    dir: ScratchDir,
}

impl Installed {
    fn new(with: impl FnOnce(PoolBuilder, &ScratchDir) -> PoolBuilder) -> Installed {
        let dir = ScratchDir::new("canopy-upgrade", &["a", "b"]);
        install(&dir);
        let builder = Pool::builder("").program(dir.path("program"));
        let builder = builder.env("CANOPY_TEST_UPGRADE_SECONDS", "60");
        let pool = with(builder, &dir).mount();
        assert!(cmd::wait_until(PATIENCE, || pool.log().contains(" is on ")), "{}", pool.log());
        Installed { pool, dir }
    }

    fn upgrade(&self) -> Finished {
        self.pool.command(["upgrade".as_ref(), self.pool.path().as_os_str()])
    }

    fn survival(&self) -> serde_json::Value {
        self.pool.status()["survival"].clone()
    }

    /// Whether the file at the program's path serves.
    fn serves_installed(&self) -> bool {
        let serves = fs::metadata(format!("/proc/{}/exe", server(&self.pool))).unwrap();
        serves.ino() == fs::metadata(self.dir.path("program")).unwrap().ino()
    }

    /// Upgrades although that fails, and waits until the program before serves again.
    #[track_caller]
    fn refused(&self, why: &str) {
        let before = (keeper(&self.pool), self.survival()["refused_upgrades"].as_u64().unwrap());
        let done = self.upgrade();
        assert!(!done.success() && done.stderr.contains(why), "{}\n{}", done.describe(), self.pool.log());
        assert_eq!(done.stderr.lines().count(), 1, "{}", done.describe());
        let survival = self.survival();
        assert_eq!(survival["refused_upgrades"].as_u64().unwrap(), before.1 + 1, "{survival}");
        assert!(survival["last_refusal"].as_str().unwrap().contains(why), "{survival}");
        assert_eq!((keeper(&self.pool), count(&self.pool)), (before.0, 2));
        assert!(!self.serves_installed());
    }
}

/// Puts a new file in the program's place, as package managers do.
fn install(dir: &ScratchDir) {
    fs::copy(program_under_test(env!("CARGO_BIN_EXE_canopy")), dir.path("new")).unwrap();
    fs::rename(dir.path("new"), dir.path("program")).unwrap();
}

fn over_both(builder: PoolBuilder, dir: &ScratchDir) -> PoolBuilder {
    builder.branch(dir.path("a")).branch(dir.path("b")).option("survive=true,minfreespace=0")
}

#[test]
fn the_installed_program_takes_over() {
    let installed = Installed::new(over_both);
    let pool = &installed.pool;
    pool.set("category.create", "ff");
    let mut open =
        OpenOptions::new().read(true).write(true).create_new(true).open(pool.path().join("open")).unwrap();
    open.write_all(b"before").unwrap();
    let unlinked = File::create_new(pool.path().join("unlinked")).unwrap();
    fs::remove_file(pool.path().join("unlinked")).unwrap();
    let keeper_before = keeper(pool);
    assert!(installed.serves_installed());
    let done = installed.upgrade();
    assert!(
        done.success() && done.stdout.contains("serves") && done.stdout.contains("already"),
        "{}",
        done.describe()
    );
    assert_eq!(installed.survival()["upgrades"], 0);
    for round in 1..4_u64 {
        install(&installed.dir);
        assert!(!installed.serves_installed());
        let done = installed.upgrade();
        assert!(done.success() && done.stdout.contains("now, after"), "{}\n{}", done.describe(), pool.log());
        assert!(installed.serves_installed());
        let survival = installed.survival();
        assert_eq!((&survival["upgrades"], &survival["takeovers"]), (&round.into(), &(round - 1).into()));
        assert!(survival["upgrade_pause_ms"].as_f64().unwrap() > 0.0, "{survival}");
        // A death is survived as before.
        open.write_all(b", after").unwrap();
        send(server(pool), Signal::KILL);
        unlinked.write_all_at(b"+", round).unwrap();
        assert_eq!(pool.get("category.create"), "ff");
        assert_eq!(keeper(pool), keeper_before);
        let rests = || {
            fs::read_to_string(format!("/proc/{keeper_before}/status"))
                .unwrap()
                .contains("CapEff:\t0000000000000000\n")
        };
        assert!(cmd::wait_until(PATIENCE, rests), "a keeper that waits has no capability in force");
    }
    let mut text = String::new();
    File::open(pool.path().join("open")).unwrap().read_to_string(&mut text).unwrap();
    assert_eq!((text.as_str(), unlinked.metadata().unwrap().len()), ("before, after, after, after", 4));
    let status = pool.command(["status".as_ref(), pool.path().as_os_str()]);
    assert!(status.stdout.contains("; upgraded 3 times, last in "), "{}", status.describe());
    drop((open, unlinked));
    // And a request to stop.
    send(keeper_before, Signal::TERM);
    assert!(cmd::wait_until(PATIENCE, || count(pool) == 0), "{}", pool.log());
    assert!(!pool.mounted());
}

/// The command line and the file are read again. What is wrong there does not cost the pool.
#[test]
fn a_file_with_mistakes_is_no_reason_to_lose_the_pool() {
    let write = |dir: &ScratchDir, text: &str| fs::write(dir.path("pool.toml"), text).unwrap();
    let installed = Installed::new(|builder, dir| {
        write(dir, "survive = true\nminfreespace = \"0\"\n");
        builder.branch(dir.path("a")).option(format!("config={}", dir.path("pool.toml").display()))
    });
    let pool = &installed.pool;
    let open = File::create_new(pool.path().join("open")).unwrap();
    install(&installed.dir);
    write(&installed.dir, "frob = 1\n");
    let done = installed.upgrade();
    assert!(!done.success() && done.stderr.contains("frob"), "{}", done.describe());
    assert_eq!((done.stderr.lines().count(), &installed.survival()["refused_upgrades"]), (1, &0.into()));
    // Without the command, which has found it.
    pool.set("cmd.upgrade", "");
    assert!(cmd::wait_until(PATIENCE, || pool.log().contains("nobody serves the pool")), "{}", pool.log());
    // It cannot be switched off while the pool is mounted.
    write(&installed.dir, "survive = false\ncache.attr = 7\n");
    open.write_all_at(b"+", 0).unwrap();
    let survival = installed.survival();
    assert!(survival["last_refusal"].as_str().unwrap().contains("ended before it served"), "{survival}");
    assert!(!installed.serves_installed());
    send(server(pool), Signal::KILL);
    open.write_all_at(b"+", 1).unwrap();
    let done = installed.upgrade();
    assert!(done.success() && installed.serves_installed(), "{}\n{}", done.describe(), pool.log());
    assert_eq!(
        (fs::read_to_string(pool.path().join("open")).unwrap().as_str(), pool.get("cache.attr").as_str()),
        ("++", "7")
    );
}

#[test]
fn a_program_that_is_late_is_taken_back() {
    late("survive=true");
}

#[test]
fn over_io_uring_a_program_that_is_late_is_taken_back() {
    late("survive=auto");
}

fn late(survive: &str) {
    let installed = Installed::new(|builder, dir| {
        over_both(builder, dir).option(survive).env("CANOPY_TEST_UPGRADE_SECONDS", "0")
    });
    let open = File::create_new(installed.pool.path().join("open")).unwrap();
    install(&installed.dir);
    for round in 0..3 {
        installed.refused("did not serve within a second");
        open.write_all_at(b"+", round).unwrap();
    }
    assert_eq!(fs::read_to_string(installed.pool.path().join("open")).unwrap(), "+++");
}

/// The command is the installed program itself, which cannot run either: so the pool is asked without it.
#[test]
fn the_program_before_serves_on_if_the_installed_one_cannot_be_executed() {
    let installed = Installed::new(over_both);
    let pool = &installed.pool;
    let open = File::create_new(pool.path().join("open")).unwrap();
    install(&installed.dir);
    let program = installed.dir.path("program");
    fs::set_permissions(&program, Permissions::from_mode(0o644)).unwrap();
    pool.set("cmd.upgrade", "");
    let tried = cmd::wait_until(PATIENCE, || pool.log().contains("cannot take over"));
    fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    assert!(tried, "{}", pool.log());
    open.write_all_at(b"+", 0).unwrap();
    assert!(cmd::wait_until(PATIENCE, || installed.survival()["refused_upgrades"] == 1), "{}", pool.log());
    assert!(installed.survival()["last_refusal"].as_str().unwrap().contains("cannot be executed"));
    let done = installed.upgrade();
    assert!(done.success() && installed.serves_installed(), "{}\n{}", done.describe(), pool.log());
    open.write_all_at(b"+", 1).unwrap();
}

#[test]
fn a_pool_that_does_not_survive_is_not_upgraded() {
    let installed = Installed::new(|builder, dir| builder.branch(dir.path("a")).option("survive=false"));
    let done = installed.upgrade();
    let line = "cannot be served by another process: it was mounted with survive=false";
    assert!(!done.success() && done.stderr.contains(line), "{}", done.describe());
    assert_eq!(done.stderr.lines().count(), 1, "{}", done.describe());
    assert!(installed.pool.try_set("cmd.upgrade", "").is_err());
}

#[test]
fn another_program_than_the_installed_one_refuses() {
    let rig = Rig::new(&["a"], "");
    let dir = ScratchDir::new("canopy-upgrade", &[]);
    let program = dir.path("other");
    fs::copy(program_under_test(env!("CARGO_BIN_EXE_canopy")), &program).unwrap();
    let done = cmd::run_within(Command::new(program).arg("upgrade").arg(rig.pool.path()), PATIENCE);
    assert!(
        !done.success() && done.stderr.contains("is another program than this one"),
        "{}",
        done.describe()
    );
    rig.upgrade().unwrap();
    assert_eq!(rig.pool.status()["survival"]["upgrades"], 1);
}
