//! Deaths of each kind, and the ends that are none.

use crate::rig::{Rig, count, keeper, over_io_uring, send, server, servers};
use canopy_testkit::{CliBed, LoopFs, PATIENCE, Paused, Pool, ScratchDir, cmd, proc};
use rustix::process::Signal;
use std::fs;
use std::io::BufRead as _;
use std::os::unix::fs::FileExt as _;
use std::process::Command;

#[test]
fn status_tells_how_often_and_why() {
    let rig = Rig::new(&["a"], "");
    let survival = rig.pool.status()["survival"].clone();
    assert_eq!((&survival["takeovers"], &survival["last_death"]), (&0.into(), &serde_json::Value::Null));
    let signals = [
        (Signal::SEGV, "SIGSEGV"),
        (Signal::ABORT, "SIGABRT"),
        (Signal::KILL, "SIGKILL"),
        (Signal::BUS, "SIGBUS"),
    ];
    for (round, (signal, name)) in signals.into_iter().enumerate() {
        fs::write(rig.path("file"), name).unwrap();
        rig.kill(signal);
        assert_eq!(fs::read_to_string(rig.path("file")).unwrap(), name);
        let survival = rig.pool.status()["survival"].clone();
        assert_eq!((&survival["takeovers"], &survival["last_death"]), (&(round + 1).into(), &name.into()));
        assert!(survival["pause_ms"].as_f64() <= survival["longest_pause_ms"].as_f64());
    }
    let text = rig.pool.command(["status".as_ref(), rig.pool.path().as_os_str()]);
    assert!(text.stdout.contains("4 times, last after SIGBUS"), "{}", text.describe());
    let log = rig.pool.log();
    assert!(log.contains("has ended (SIGSEGV): another takes over"), "{log}");
}

#[test]
fn the_socket_is_that_of_the_process_that_serves() {
    let run = ScratchDir::new("canopy-run-", &["run"]);
    let rig = Rig::build(&["a"], |builder| builder.env("CANOPY_RUN_DIR", run.path("run")));
    let sockets = || {
        let entries = fs::read_dir(run.path("run")).unwrap().flatten().map(|entry| entry.path());
        entries.filter(|path| path.extension().is_some_and(|end| end == "sock")).collect::<Vec<_>>()
    };
    assert!(cmd::wait_until(PATIENCE, || sockets().len() == 1), "{}", rig.pool.log());
    let before = sockets();
    for _ in 0..2 {
        rig.kill(Signal::KILL);
        let answers = || {
            let mut hello = String::new();
            let stream = std::os::unix::net::UnixStream::connect(&before[0]);
            let read = stream.and_then(|stream| std::io::BufReader::new(stream).read_line(&mut hello));
            read.is_ok() && hello.contains("\"form\":1")
        };
        assert!(cmd::wait_until(PATIENCE, answers), "{}", rig.pool.log());
        assert_eq!(sockets(), before, "nothing is left of the one before");
    }
    let mut get = std::process::Command::new(env!("CARGO_BIN_EXE_canopy"));
    get.args(["get".as_ref(), rig.pool.path().as_os_str(), "pid".as_ref()])
        .env("CANOPY_RUN_DIR", run.path("run"));
    let pid = cmd::run_within(&mut get, PATIENCE).stdout;
    assert_eq!(pid.trim(), server(&rig.pool).to_string());
}

#[test]
fn the_fifth_death_in_a_minute_is_the_last() {
    let dir = ScratchDir::new("canopy-survival", &["a"]);
    let mut pool = Pool::builder(env!("CARGO_BIN_EXE_canopy"))
        .branch(dir.path("a"))
        .option("survive=true")
        .forgive_descriptors()
        .mount();
    let keeper = keeper(&pool);
    let mut deaths = 0;
    // On a slow machine, five may take longer than a minute.
    while proc::process(keeper).is_some() && deaths < 100 {
        if let Some(&dies) = servers(&pool).first() {
            let made = fs::write(pool.path().join("file"), "data");
            made.unwrap_or_else(|error| panic!("{error} after {deaths} deaths\n{}", pool.log()));
            send(dies, Signal::KILL);
            deaths += 1;
            assert!(cmd::wait_until(PATIENCE, || !servers(&pool).contains(&dies)));
        }
    }
    assert!(deaths >= 5, "{deaths} deaths\n{}", pool.log());
    // Reaps the process that was started in the foreground.
    pool.kill();
    assert!(cmd::wait_until(PATIENCE, || proc::process(keeper).is_none()), "{}", pool.log());
    assert!(pool.log().contains("has died 5 times within 60 s: the mount is dead"), "{}", pool.log());
    assert!(fs::write(pool.path().join("file"), "data").is_err());
}

#[test]
fn a_pool_can_be_unmounted_and_stopped_after_deaths() {
    for stop in [false, true] {
        let rig = Rig::new(&["a"], "");
        rig.kill(Signal::KILL);
        fs::write(rig.path("file"), "data").unwrap();
        if stop {
            send(keeper(&rig.pool), Signal::TERM);
            assert!(cmd::wait_until(PATIENCE, || count(&rig.pool) == 0), "{}", rig.pool.log());
            assert!(!rig.pool.mounted());
        }
        drop(rig);
    }
}

/// A terminal that hangs up, for one, ends neither process.
#[test]
fn signals_without_a_meaning_end_neither_process() {
    let rig = Rig::new(&["a"], "");
    let keeper = keeper(&rig.pool);
    for signal in [Signal::HUP, Signal::USR1, Signal::USR2, Signal::ALARM, Signal::IO] {
        send(keeper, signal);
        send(server(&rig.pool), signal);
    }
    rig.kill(Signal::KILL);
    send(keeper, Signal::HUP);
    rig.kill(Signal::KILL);
    assert!(proc::process(keeper).is_some());
}

#[test]
fn settings_stay_changed() {
    let rig = Rig::new(&["a", "b"], "category.create=ff");
    rig.pool.set("func.mkdir", "ff");
    // Covers the one before.
    rig.pool.set("category.create", "mfs");
    rig.pool.set("minfreespace", "12345");
    rig.pool.set("tiers", "ssd=/mnt/ssd|fuller than 70%");
    rig.pool.set("rules", "films/**=ssd");
    let more = rig.branch("c");
    fs::create_dir(&more).unwrap();
    rig.pool.set("branches", &format!("+{}", more.display()));
    let before = rig.pool.get("branches");
    for _ in 0..2 {
        rig.kill(Signal::KILL);
        assert_eq!(
            (rig.pool.get("category.create"), rig.pool.get("minfreespace")),
            ("mfs".into(), "12345".into())
        );
        assert_eq!((rig.pool.get("branches"), rig.pool.get("func.mkdir")), (before.clone(), "mfs".into()));
        assert_eq!(rig.pool.get("tiers"), "ssd=/mnt/ssd|fuller than 70%");
        assert_eq!(rig.pool.get("rules"), "films/**=ssd");
    }
}

/// What is at the path of a branch after its disk went away is not the branch.
#[test]
fn a_branch_that_went_meanwhile_is_gone() {
    let mut disk = LoopFs::ext4(32 << 20);
    let dir = ScratchDir::new("canopy-survival", &["a"]);
    let pool = Pool::builder(env!("CARGO_BIN_EXE_canopy"))
        .branch(disk.path())
        .branch(dir.path("a"))
        .option("survive=true,minfreespace=0,category.create=ff")
        .forgive_descriptors()
        .mount();
    fs::write(pool.path().join("on the disk"), "data").unwrap();
    {
        // Nobody notices the death before the disk is away.
        let keeper = Paused::new(keeper(&pool));
        send(server(&pool), Signal::KILL);
        disk.unmount_lazily();
        drop(keeper);
    }
    fs::write(pool.path().join("new"), "data").unwrap();
    assert_eq!(fs::read_dir(disk.path()).unwrap().count(), 0, "the mountpoint of the disk is empty");
    assert!(dir.path("a").join("new").exists() && !pool.path().join("on the disk").exists());
    assert!(pool.log().contains("its mount is gone"), "{}", pool.log());
    disk.mount_again();
    assert!(
        cmd::wait_until(PATIENCE, || pool.path().join("on the disk").exists()),
        "the branch comes back\n{}",
        pool.log()
    );
    pool.umount();
}

#[test]
fn without_the_option_there_is_one_process() {
    let dir = ScratchDir::new("canopy-survival", &["a"]);
    let pool =
        Pool::builder(env!("CARGO_BIN_EXE_canopy")).branch(dir.path("a")).option("survive=false").mount();
    // Children that wake a queue are there for a moment.
    assert!(cmd::wait_until(PATIENCE, || count(&pool) == 1));
    assert_eq!(pool.status()["survival"], serde_json::Value::Null);
    let maps = fs::read_to_string(format!("/proc/{}/maps", pool.pid())).unwrap();
    assert!(!maps.contains("/memfd:canopy-records (deleted)"), "it shares no memory\n{maps}");
    pool.umount();
    let rig = Rig::new(&["a"], "");
    assert_eq!(count(&rig.pool), 2);
    let maps = fs::read_to_string(format!("/proc/{}/maps", server(&rig.pool))).unwrap();
    assert!(maps.contains("/memfd:canopy-records (deleted)"), "{maps}");
}

/// Who would ask for another program then would lose the pool.
#[test]
fn a_pool_whose_keeper_was_killed_is_served_on() {
    let dir = ScratchDir::new("canopy-survival", &["a"]);
    let mut pool =
        Pool::builder(env!("CARGO_BIN_EXE_canopy")).branch(dir.path("a")).option("survive=auto").mount();
    assert!(pool.status()["survival"].is_object(), "{}", pool.log());
    let server = server(&pool);
    send(keeper(&pool), Signal::KILL);
    assert!(cmd::wait_until(PATIENCE, || pool.status()["survival"].is_null()), "{}", pool.log());
    let refused = pool.command(["upgrade".as_ref(), "--force".as_ref(), pool.path().as_os_str()]);
    assert!(refused.code() == Some(1) && refused.stderr.contains("keeper"), "{}", refused.describe());
    // Nor does it for who asks the pool itself.
    let asked = pool.try_set("cmd.upgrade", "");
    assert!(asked.is_err() && pool.status()["pid"] == server, "{asked:?}");
    fs::write(pool.path().join("file"), "data").unwrap();
    pool.kill();
}

/// The keeper runs with no capability while it waits, and may give no more to what it starts than a server needs to begin.
#[test]
fn the_keeper_has_no_capability_in_force() {
    let rig = Rig::new(&["a"], "");
    let keeper = keeper(&rig.pool);
    let capabilities = |process: i32, set: &str| {
        let status = fs::read_to_string(format!("/proc/{process}/status")).expect("a process");
        let line = status.lines().find_map(|line| line.strip_prefix(set)?.strip_prefix(':'));
        u64::from_str_radix(line.expect("a set of capabilities").trim(), 16).expect("a number")
    };
    let limits = ["CapPrm", "CapBnd"].map(|set| capabilities(keeper, set));
    // CHOWN, DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER, FSETID, SETGID, SETUID, SETPCAP, LINUX_IMMUTABLE, SYS_PTRACE, SYS_ADMIN,
    // SYS_NICE, SYS_RESOURCE, MKNOD, SETFCAP.
    let allowed =
        [0, 1, 2, 3, 4, 6, 7, 8, 9, 19, 21, 23, 24, 27, 31].iter().fold(0, |all, cap| all | 1_u64 << cap);
    for round in 0..3 {
        // It waits again soon after it has started a process.
        assert!(cmd::wait_until(PATIENCE, || capabilities(keeper, "CapEff") == 0), "round {round}");
        assert_eq!(capabilities(keeper, "CapInh") | capabilities(keeper, "CapAmb"), 0);
        assert_eq!(limits.map(|set| set & !allowed), [0, 0], "{limits:x?}");
        assert_eq!(["CapPrm", "CapBnd"].map(|set| capabilities(keeper, set)), limits, "round {round}");
        // The server has what it needs all the same.
        assert!(capabilities(server(&rig.pool), "CapEff") & 1 << 21 != 0);
        fs::write(rig.path("file"), "data").expect("a file");
        std::os::unix::fs::chown(rig.path("file"), Some(1000), Some(1000)).expect("chown");
        rig.kill(Signal::KILL);
    }
}

/// By default a pool has its requests over io_uring where the kernel offers that, and else is one that outlives deaths.
#[test]
fn over_the_device_every_pool_of_root_outlives_deaths() {
    let rig = Rig::new(&["a"], "survive=auto,io-uring=off");
    assert_eq!(rig.pool.status()["survival"]["deaths"], true);
    let open = fs::File::create_new(rig.path("open")).unwrap();
    rig.kill(Signal::KILL);
    open.write_all_at(b"+", 0).unwrap();
    assert_eq!((fs::read_to_string(rig.path("open")).unwrap().as_str(), rig.takeovers()), ("+", 1));
}

/// The limit is what a keeper has from who mounts: usually 1024, where clients may have many more files open.
#[test]
fn more_files_are_open_than_who_mounts_may_open() {
    for options in ["io-uring=off", "io-uring=auto"] {
        let bed = CliBed::new(env!("CARGO_BIN_EXE_canopy"), "canopy-survival-limit-", &["a", "p"]);
        let line = bed.command(&format!("mount -o minfreespace=0,survive=auto,{options} @a @p"));
        let mut limited = Command::new("sh");
        limited
            .args(["-c", "ulimit -Sn 64; exec \"$@\"", "sh"])
            .arg(line.get_program())
            .args(line.get_args());
        let done = cmd::run_within(&mut limited, PATIENCE);
        assert!(done.success(), "{}", done.describe());
        let create = |number| fs::File::create_new(bed.path("p").join(format!("file{number}"))).unwrap();
        let open: Vec<fs::File> = (0..200).map(create).collect();
        let again = |at| open.iter().try_for_each(|file| file.write_all_at(b"+", at));
        if options == "io-uring=off" {
            send(bed.daemons()[0].pid, Signal::KILL);
            again(0).unwrap();
        }
        bed.ok("upgrade --force @p");
        again(1).unwrap();
        drop(open);
        bed.umount("@p");
    }
}

/// Requests that the process had are lost with it, and clients would wait for them for ever. So nobody takes over.
#[test]
fn over_io_uring_a_kill_ends_the_mount() {
    let dir = ScratchDir::new("canopy-survival", &["a"]);
    let mut pool = Pool::builder(env!("CARGO_BIN_EXE_canopy"))
        .branch(dir.path("a"))
        .option("survive=auto")
        .forgive_descriptors()
        .mount();
    let survival = pool.status()["survival"].clone();
    if !over_io_uring(&pool) {
        assert_eq!(survival["deaths"], true);
        return;
    }
    assert_eq!(survival["deaths"], false);
    let text = pool.command(["status".as_ref(), pool.path().as_os_str()]).stdout;
    assert!(text.contains("upgrades and crashes need no unmount"), "{text}");
    let keeper = keeper(&pool);
    send(server(&pool), Signal::KILL);
    assert!(cmd::wait_until(PATIENCE, || rustix::fs::statvfs(pool.path()).is_err()), "{}", pool.log());
    // Reaps the process that was started in the foreground.
    pool.kill();
    assert!(cmd::wait_until(PATIENCE, || proc::process(keeper).is_none()), "{}", pool.log());
    let log = pool.log();
    assert!(log.contains("has died (SIGKILL): the mount is dead"), "{log}");
}
