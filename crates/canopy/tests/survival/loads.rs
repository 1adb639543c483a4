//! Programs that work, and check what they read, while one process after the other is killed or upgraded.

use crate::rig::{Rig, end_all};
use crate::storm::kills;
use canopy_testkit::cmd::{run_within, tool};
use canopy_testkit::model::{Plain, Rules, World, check};
use canopy_testkit::{PATIENCE, Rng};
use rustix::process::Signal;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// The longest pause between two strikes, in microseconds.
const BETWEEN: u64 = 200_000;

/// What ends the process that serves.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Strikes {
    KillsAndUpgrades,
    /// No request is interrupted.
    Upgrades,
}

/// Works in a directory of the pool that is empty, and checks what it has done.
type Load<'a> = &'a (dyn Fn(&Rig, &Path) -> Result<(), String> + Sync);

/// Repeats a load until so many processes were ended as `CANOPY_TEST_KILLS` tells, and at least once.
#[track_caller]
fn survives(options: &str, strikes: Strikes, load: Load<'_>) {
    let rig = Rig::build(&["a", "b", "c"], |builder| {
        builder.option("category.create=rand").option(options).env("CANOPY_TEST_DEATHS", "5000")
    });
    let (stop, ended) = (AtomicBool::new(false), AtomicBool::new(false));
    let (rounds, fault) = thread::scope(|scope| {
        let worker = scope.spawn(|| {
            let work = || {
                for round in 0.. {
                    let dir = rig.path(&format!("round-{round}"));
                    fs::create_dir(&dir).map_err(|error| format!("mkdir: {error}"))?;
                    load(&rig, &dir).map_err(|why| format!("round {round}: {why}"))?;
                    fs::remove_dir_all(&dir).map_err(|error| format!("round {round}: rm -r: {error}"))?;
                    if stop.load(Ordering::Relaxed) {
                        return Ok::<u32, String>(round + 1);
                    }
                }
                unreachable!("the rounds have no end")
            };
            // A panic of the load must not leave the other thread without an end.
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            ended.store(true, Ordering::Relaxed);
            done.unwrap_or_else(|_| Err("the load has panicked".into()))
        });
        let mut rng = Rng::new(77);
        let mut fault = None;
        for number in 0..kills() {
            thread::sleep(Duration::from_micros(rng.below(BETWEEN)));
            let upgrades = strikes == Strikes::Upgrades || rng.chance(300);
            let struck = if upgrades {
                rig.upgrade()
            } else {
                rig.try_kill(Signal::KILL).then_some(()).ok_or_else(|| "no process takes over".into())
            };
            if let Err(why) = struck {
                fault = Some(format!("strike {number}: {why}"));
                // So that the load ends.
                end_all(&rig.pool);
            }
            if fault.is_some() || ended.load(Ordering::Relaxed) {
                break;
            }
        }
        stop.store(true, Ordering::Relaxed);
        (worker.join().expect("a panic was caught"), fault)
    });
    assert!(fault.is_none(), "{fault:?}\n{}", rig.pool.log());
    let rounds = rounds.unwrap_or_else(|why| panic!("{why}\n{}", rig.pool.log()));
    println!("{rounds} rounds, {} strikes", kills());
}

/// Runs a program that has to succeed. Returns its output.
fn run(command: &mut Command) -> Result<String, String> {
    let done = run_within(command, 10 * PATIENCE);
    if done.success() { Ok(done.stdout) } else { Err(format!("{command:?}: {}", done.describe())) }
}

/// Runs a shell script in a directory.
fn sh(dir: &Path, script: &str) -> Result<String, String> {
    run(Command::new("sh").args(["-euc", script]).current_dir(dir))
}

fn equal(what: &str, found: &str, expected: &str) -> Result<(), String> {
    let same = found.trim() == expected;
    same.then_some(()).ok_or_else(|| format!("{what}: {found:?} instead of {expected:?}"))
}

/// Random reads and writes with checksums, which are all read again at the end.
fn fio(dir: &Path, how: &str) -> Result<(), String> {
    let mut fio = Command::new("fio");
    fio.args("--name=f --rw=randrw --bs=16k --size=3m --numjobs=3 --fallocate=none".split(' '));
    fio.args("--verify=crc32c --verify_fatal=1 --do_verify=1 --verify_state_save=0".split(' '));
    fio.args(how.split(' ')).arg("--directory").arg(dir);
    run(&mut fio).map(drop)
}

#[test]
fn fio_finds_what_it_has_written() {
    survives("passthrough.io=off", Strikes::KillsAndUpgrades, &|_, dir| fio(dir, "--ioengine=psync"));
}

#[test]
fn fio_over_passthrough_finds_what_it_has_written() {
    survives("passthrough.io=rw", Strikes::KillsAndUpgrades, &|_, dir| {
        fio(dir, "--ioengine=psync --fsync=16")
    });
}

#[test]
fn over_io_uring_fio_does_not_notice_upgrades() {
    for passthrough in ["passthrough.io=rw,survive=auto", "passthrough.io=off,survive=auto"] {
        survives(passthrough, Strikes::Upgrades, &|_, dir| fio(dir, "--ioengine=psync --fsync=16"));
    }
}

#[test]
fn fio_past_the_caches_finds_what_it_has_written() {
    survives("passthrough.io=off", Strikes::KillsAndUpgrades, &|_, dir| {
        fio(dir, "--ioengine=psync --direct=1")
    });
}

#[test]
fn fio_finds_what_it_has_written_to_mappings() {
    survives("passthrough.io=off", Strikes::KillsAndUpgrades, &|_, dir| fio(dir, "--ioengine=mmap"));
}

#[test]
fn fsx_finds_what_it_expects() {
    survives("passthrough.io=off", Strikes::KillsAndUpgrades, &|_, dir| {
        // Its own files are elsewhere.
        let work = tempfile::tempdir().map_err(|error| error.to_string())?;
        let mut fsx = Command::new(tool("fsx"));
        fsx.args(["-N", "3000", "-S", "15", "-P"])
            .arg(work.path())
            .arg(dir.join("file"))
            .env("RUST_BACKTRACE", "0");
        let output = run(&mut fsx)?;
        output.contains("A-OK").then_some(()).ok_or(output)
    });
}

/// Two programs write, each row in a transaction of its own, and each row that was committed is there.
#[test]
fn sqlite_keeps_what_was_committed() {
    survives("passthrough.io=off", Strikes::KillsAndUpgrades, &|_, dir| {
        let sqlite = |script: &str| {
            let mut sqlite = Command::new("sqlite3");
            sqlite.args(["-batch", "-bail"]).arg(dir.join("base")).arg(".timeout 600000").arg(script);
            sqlite
        };
        run(&mut sqlite("PRAGMA journal_mode=WAL; CREATE TABLE t(a INTEGER PRIMARY KEY, b, c);"))?;
        let writer = |name: &str| {
            let row = format!("INSERT INTO t(b, c) VALUES('{name}', randomblob(1500));");
            sqlite(&row.repeat(60))
        };
        thread::scope(|scope| {
            let writers = ["one", "two"].map(|name| scope.spawn(move || run(&mut writer(name))));
            writers.into_iter().try_for_each(|writer| writer.join().expect("no panic").map(drop))
        })?;
        let found =
            run(&mut sqlite("PRAGMA integrity_check; SELECT b, count(*) FROM t GROUP BY b ORDER BY b;"))?;
        equal("the database", &found, "ok\none|60\ntwo|60")
    });
}

#[test]
fn a_git_clone_is_whole() {
    let home = tempfile::tempdir().expect("a directory");
    let origin = home.path().join("origin");
    fs::create_dir(&origin).expect("mkdir");
    let made = sh(
        &origin,
        "git init -q -b main .; git config user.name a; git config user.email a@b.c
        for commit in 1 2 3; do
            mkdir dir$commit
            for file in $(seq 60); do seq $((commit * file * 7)) >dir$commit/file$file; done
            git add .; git commit -q -m $commit
        done",
    );
    made.expect("a repository");
    survives("passthrough.io=off", Strikes::KillsAndUpgrades, &|_, dir| {
        let script = format!(
            "git clone -q --no-local '{}' clone; cd clone
            git config user.name a; git config user.email a@b.c
            git fsck --full --strict; git status --porcelain
            git mv dir1 moved; git commit -q -m moved; git gc -q; git fsck --full --strict
            git status --porcelain; git ls-files | wc -l",
            origin.display()
        );
        equal("the clone", &sh(dir, &script)?, "180")
    });
}

/// A build maps files, links them, locks its directory, and goes by times of change.
#[test]
fn a_build_is_whole() {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let built = |dir: &Path, part: u32| {
        let mut build = Command::new(&cargo);
        build.args(["build", "--offline", "--quiet"]).current_dir(dir).env("CARGO_INCREMENTAL", "1");
        run(build.env_remove("CARGO_TARGET_DIR").env_remove("RUSTFLAGS"))?;
        equal("the sum", &run(&mut Command::new(dir.join("target/debug/sum")))?, &(300 + part).to_string())
    };
    survives("", Strikes::KillsAndUpgrades, &|_, dir| {
        let write =
            |name: String, text: String| fs::write(dir.join(name), text).map_err(|error| error.to_string());
        fs::create_dir(dir.join("src")).map_err(|error| error.to_string())?;
        write("Cargo.toml".into(), "[package]\nname = 'sum'\nedition = '2021'\n[workspace]\n".into())?;
        for part in 1..=24 {
            write(format!("src/part{part}.rs"), format!("pub fn of() -> u32 {{ {part} }}"))?;
        }
        let mods: String = (1..=24).map(|part| format!("pub mod part{part};\n")).collect();
        let sum: Vec<String> = (1..=24).map(|part| format!("sum::part{part}::of()")).collect();
        write("src/lib.rs".into(), mods)?;
        write("src/main.rs".into(), format!("fn main() {{ println!(\"{{}}\", {}) }}", sum.join(" + ")))?;
        built(dir, 0)?;
        write("src/part7.rs".into(), "pub fn of() -> u32 { 7 + 50 }".into())?;
        built(dir, 50)
    });
}

/// Each name is found once, and removed.
#[test]
fn trees_are_found_and_removed_whole() {
    survives("passthrough.io=off", Strikes::KillsAndUpgrades, &|_, dir| {
        let found = sh(
            dir,
            "for at in $(seq 30); do mkdir -p t/$((at % 6))/$at; done
            for at in t/*/*; do for file in $(seq 40); do : >$at/$file; done; done
            find t | sort | uniq -d; find t -type f | wc -l; cp -r t u; diff -r t u; rm -rf t; find t u 2>/dev/null | wc -l; rm -rf u; ls",
        )?;
        let found: Vec<&str> = found.lines().map(str::trim).collect();
        equal("the tree", &found.join(" "), &format!("{} {}", 30 * 40, 30 * 40 + 30 + 6 + 1))
    });
}

/// Those who wait for a lock get it one after the other.
#[test]
fn locks_exclude_each_other() {
    survives("passthrough.io=off", Strikes::KillsAndUpgrades, &|_, dir| {
        fs::write(dir.join("count"), "0\n").map_err(|error| error.to_string())?;
        let client =
            "for round in $(seq 20); do flock lock sh -euc 'n=$(cat count); echo $((n + 1)) >count'; done";
        thread::scope(|scope| {
            let clients = [(); 3].map(|()| scope.spawn(|| sh(dir, client)));
            clients.into_iter().try_for_each(|client| client.join().expect("no panic").map(drop))
        })?;
        equal("the count", &sh(dir, "cat count")?, "60")
    });
}

/// An operation that a kill interrupts may report success instead of EEXIST, ENOENT or ENODATA (docs/survival.md), and such
/// are half of what the model does. So here are upgrades only, which interrupt nothing.
#[test]
fn the_reference_model_does_not_notice_upgrades() {
    model_is_upgraded("passthrough.io=off");
}

#[test]
fn over_io_uring_the_reference_model_does_not_notice_upgrades() {
    model_is_upgraded("passthrough.io=off,survive=auto");
}

fn model_is_upgraded(options: &str) {
    let rules = Rules { path_preserving: false, holes_unknown: false, every: 20 };
    let home = tempfile::Builder::new().prefix("canopy-plain-").tempdir().expect("a directory");
    let number = std::sync::atomic::AtomicU64::new(1);
    let directory = |path: &Path| {
        fs::create_dir_all(path).expect("a directory");
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("chmod");
    };
    survives(options, Strikes::Upgrades, &|rig, dir| {
        for _ in 0..5 {
            let seed = number.fetch_add(1, Ordering::Relaxed);
            let (plain, pool) = (home.path().join(seed.to_string()), dir.join(seed.to_string()));
            let below = pool.strip_prefix(rig.pool.path()).expect("a path in the pool");
            let on_branches = ["a", "b", "c"].map(|name| rig.branch(name).join(below));
            let runs = std::sync::atomic::AtomicU64::new(0);
            check(seed, 60, rules, || {
                let run = runs.fetch_add(1, Ordering::Relaxed).to_string();
                let (plain, pool) = (plain.join(&run), pool.join(&run));
                directory(&plain);
                directory(&pool);
                World {
                    plain: Plain::new(plain),
                    subject: Box::new(Plain::new(pool)),
                    branches: on_branches.iter().map(|branch| branch.join(&run)).collect(),
                    keep: Box::new(()),
                }
            });
        }
        Ok(())
    });
}

/// The checks above can fail.
#[test]
fn a_load_that_finds_something_wrong_is_told() {
    assert!(equal("a count", "1\n", "1").is_ok() && equal("a count", "2\n", "1").is_err());
    let dir = tempfile::tempdir().expect("a directory");
    assert!(sh(dir.path(), "false").is_err());
    assert_eq!(sh(dir.path(), "echo x").as_deref(), Ok("x\n"));
}
