//! `canopy bench` reports every row, and leaves nothing behind, however it ends. The tests do not check the measured
//! times.

#![forbid(unsafe_code)]

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use canopy_testkit::cmd::{Finished, run_within, spawn, wait_until, wait_within};
use canopy_testkit::files::copy_program;
use canopy_testkit::{LoopFs, PATIENCE, ScratchDir, proc};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// A run of the benchmark is a lot of work.
const RUN: Duration = Duration::from_secs(900);

/// Returns a command whose temporary directories are in the scratch directory, where the tests look for leaks.
fn bench(scratch: &ScratchDir, words: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_canopy"));
    command.env("TMPDIR", scratch.dir()).arg("bench").args(scratch.words(words));
    command
}

fn run(scratch: &ScratchDir, words: &str) -> Finished {
    run_within(&mut bench(scratch, words), RUN)
}

/// Returns the entries of the scratch directory that the test did not create.
fn left(scratch: &ScratchDir, own: &[&str]) -> Vec<String> {
    let names = fs::read_dir(scratch.dir()).unwrap().map(|entry| entry.unwrap().file_name());
    names.map(|name| name.into_string().unwrap()).filter(|name| !own.contains(&name.as_str())).collect()
}

fn read_json(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

fn list(value: &Value) -> &Vec<Value> {
    value.as_array().unwrap_or_else(|| panic!("no list: {value}"))
}

fn words<'v>(values: &'v [Value], key: &str) -> Vec<&'v str> {
    values.iter().map(|value| value[key].as_str().unwrap()).collect()
}

#[test]
fn a_quick_run_shows_every_row_and_leaves_nothing() {
    let scratch = ScratchDir::new("canopy-bench-test-", &[]);
    let done = run(&scratch, "--quick --json @figures --plot @picture");
    assert!(done.success(), "{}", done.describe());
    assert_eq!(done.stderr, "", "{}", done.describe());
    assert_eq!(left(&scratch, &["figures", "picture"]), Vec::<String>::new());

    let report = read_json(&scratch.path("figures"));
    let tables = list(&report["tables"]);
    let names = [
        "goals",
        "meta",
        "walks",
        "programs",
        "concurrency",
        "dd",
        "reads",
        "blocks",
        "jobs",
        "survive",
        "cold",
    ];
    assert_eq!(words(tables, "table"), names);
    let rows: Vec<usize> = tables.iter().map(|table| list(&table["rows"]).len()).collect();
    assert_eq!(rows, [21, 24, 6, 8, 16, 2, 18, 4, 12, 5, 4]);
    let goals = list(&tables[0]["rows"]);
    for row in tables.iter().flat_map(|table| list(&table["rows"])) {
        assert!(done.stdout.contains(row["work"].as_str().unwrap()), "{row}");
        for side in list(&row["sides"]) {
            for (kind, key) in ["figure", "ratio"]
                .into_iter()
                .flat_map(|kind| ["median", "lowest", "highest"].map(|key| (kind, key)))
            {
                let figure = side[kind][key].as_f64();
                assert!(
                    figure.is_some_and(|figure| figure > 0.0 && figure.is_finite()),
                    "{kind} {key}: {row}"
                );
            }
        }
    }
    // The listings in meta have no goal, and whole programs only beside another filesystem.
    for (table, most) in [(0, 1), (1, 3), (2, 1), (3, 0), (4, 0), (5, 0), (6, 0), (7, 0), (8, 0)] {
        let least = if table == 1 { 0 } else { most };
        for row in list(&tables[table]["rows"]) {
            let judged = list(&row["sides"]).iter().filter(|side| !side["goal"].is_null()).count();
            assert!(judged == least || judged == most, "{row}");
        }
    }
    let sides = |table: usize| words_of_sides(&tables[table]["rows"][0]);
    assert_eq!(sides(1), ["branch", "pool of 1", "pool of 8", "pool of 32", "floor"]);
    assert_eq!(sides(2), ["branch", "pool"]);
    let ways = ["branch", "nullrw", "cache.files=off", "passthrough", "auto-full", "auto-full, writeback"];
    assert_eq!(sides(3), ["branch", "pool of 1", "pool of 8", "pool of 32"]);
    assert_eq!(sides(5), ways);
    assert_eq!(sides(7), ways);
    check_requests(&tables[1]);
    check_requests(&tables[2]);
    check_requests(&tables[3]);

    let picture = fs::read_to_string(scratch.path("picture")).unwrap();
    assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"));
    assert_eq!(picture.matches("<text").count(), picture.matches("</text>").count());
    for row in goals {
        let work = row["work"].as_str().unwrap();
        assert!(picture.contains(work), "{work} is not in the picture");
    }
}

/// Checks that a table has the requests of every row, or says why not.
#[track_caller]
fn check_requests(table: &Value) {
    let notes = list(&table["notes"]);
    if notes.iter().any(|note| note.as_str().unwrap().starts_with("Requests were not counted: ")) {
        return;
    }
    for row in list(&table["rows"]) {
        for side in list(&row["sides"]) {
            let counted = side["requests"].is_object();
            assert_eq!(counted, side["side"] != "branch", "{row}");
        }
    }
    let requests = |work: &str, side: &str, kind: &str| {
        let mut rows = list(&table["rows"]).iter().filter(|row| row["work"] == work);
        let row = rows.next()?;
        list(&row["sides"]).iter().find(|cell| cell["side"] == side)?["requests"][kind].as_f64()
    };
    if table["table"] == "meta" {
        for (work, kind) in [
            ("chmod by name", "SETATTR"),
            ("setxattr", "SETXATTR"),
            ("link", "LINK"),
            ("mkdir", "MKDIR"),
            ("statvfs", "STATFS"),
        ] {
            for side in ["pool of 1", "pool of 32", "floor"] {
                assert_eq!(requests(work, side, kind), Some(1.0), "{work} {side}");
            }
        }
    }
}

/// Starts a run that takes far longer than the test, and waits until its pools are mounted.
fn start_long_run(scratch: &ScratchDir) -> Child {
    let stderr = File::create(scratch.path("stderr")).unwrap();
    let mut command = bench(scratch, "--quick --rounds 1000 --only goals");
    let mut child = spawn(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr)).unwrap();
    // A pool that outlives its process has two.
    let up = || pools(scratch).len() >= 3 && mounts(scratch) == 8;
    if !wait_until(PATIENCE, up) {
        send(Pid::from_child(&child).as_raw_pid(), Signal::TERM);
        let _ = wait_within(&mut child, PATIENCE);
        panic!("no pools: {}", fs::read_to_string(scratch.path("stderr")).unwrap());
    }
    // The run must have started measuring.
    std::thread::sleep(Duration::from_millis(300));
    child
}

fn pools(scratch: &ScratchDir) -> Vec<i32> {
    let here = scratch.dir();
    let ours = |process: &proc::Process| {
        let inside = process.args.iter().any(|arg| Path::new(arg).starts_with(&here));
        inside && process.args.iter().any(|arg| arg == "mount")
    };
    proc::processes().into_iter().filter(ours).map(|process| process.pid).collect()
}

fn mounts(scratch: &ScratchDir) -> usize {
    proc::mounts().iter().filter(|mount| mount.point.starts_with(scratch.dir())).count()
}

fn send(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

/// Checks that the run ends by itself, gives the reason in one line, and leaves nothing.
#[track_caller]
fn check_end(scratch: &ScratchDir, mut child: Child, why: &str) {
    let status = wait_within(&mut child, PATIENCE);
    if status.is_none() {
        let _ = child.kill();
    }
    let stderr = fs::read_to_string(scratch.path("stderr")).unwrap();
    assert_eq!(status.and_then(|status| status.code()), Some(1), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(stderr.contains(why), "{stderr}");
    assert_eq!(mounts(scratch), 0);
    // The one that served a pool whose keeper was killed ends with the mount.
    assert!(wait_until(PATIENCE, || pools(scratch).is_empty()), "{:?}", pools(scratch));
    assert_eq!(left(scratch, &["stderr"]), Vec::<String>::new());
}

#[test]
fn an_interrupted_run_leaves_nothing() {
    for signal in [Signal::INT, Signal::TERM] {
        let scratch = ScratchDir::new("canopy-bench-test-", &[]);
        let child = start_long_run(&scratch);
        send(Pid::from_child(&child).as_raw_pid(), signal);
        check_end(&scratch, child, "interrupted");
    }
}

#[test]
fn a_second_signal_ends_a_run_with_hung_pools() {
    let scratch = ScratchDir::new("canopy-bench-test-", &[]);
    let mut child = start_long_run(&scratch);
    pools(&scratch).into_iter().for_each(|pool| send(pool, Signal::STOP));
    let bench = Pid::from_child(&child).as_raw_pid();
    send(bench, Signal::INT);
    // A signal that arrives before the first was handled counts as the same.
    wait_until(PATIENCE, || {
        let ended = child.try_wait().expect("a child").is_some();
        if !ended {
            send(bench, Signal::INT);
        }
        ended
    });
    check_end(&scratch, child, "interrupted");
}

#[test]
fn a_killed_pool_is_reported_and_leaves_nothing() {
    let scratch = ScratchDir::new("canopy-bench-test-", &[]);
    let child = start_long_run(&scratch);
    // The other pools are for later rows. The keeper goes first, or it would start another.
    let first = pools(&scratch).into_iter().min().unwrap();
    let point = |pid: i32| proc::processes().into_iter().find(|it| it.pid == pid)?.args.pop();
    let of_first = point(first);
    let mut processes: Vec<i32> = pools(&scratch).into_iter().filter(|&pid| point(pid) == of_first).collect();
    processes.sort_unstable();
    for pid in processes {
        // The second may have ended with the first.
        let _ = kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL);
    }
    check_end(&scratch, child, "exited while it was being measured: signal: 9");
}

#[test]
fn the_user_can_choose_branches_and_other_filesystems() {
    let scratch = ScratchDir::new("canopy-bench-test-", &["a", "b", "c", "beside"]);
    let own = ["a", "b", "c", "beside", "figures"];
    for name in &own[..4] {
        fs::write(scratch.path(name).join("precious"), "x").unwrap();
    }
    let common = "--quick --rounds 1 --json @figures --against @beside";
    for (more, sides) in [
        ("--only meta --branch @a @b @c", &["branch", "pool of 1", "pool of 3", "floor", "against"][..]),
        ("--only concurrency --dir @a", &["branch", "pool", "floor", "against"]),
        ("--only walks --dir @a", &["branch", "pool", "against"]),
        ("--only programs --dir @a --pools 1,3", &["branch", "pool of 1", "pool of 3", "against"]),
        (
            "--only meta --dir @a --pools 2,40,2 --clients free",
            &["branch", "pool of 2", "pool of 40", "floor", "against"],
        ),
        (
            "--only goals --branch @a -o cache.attr=0,cache.entry=0",
            &["branch", "pool", "floor", "floor, /dev/fuse", "against"],
        ),
    ] {
        let done = run(&scratch, &format!("{common} {more}"));
        assert!(done.success(), "{more}: {}", done.describe());
        let report = read_json(&scratch.path("figures"));
        assert_eq!(words_of_sides(&report["tables"][0]["rows"][0]), sides, "{more}");
        for name in &own[..4] {
            let left: Vec<_> = fs::read_dir(scratch.path(name)).unwrap().map(Result::unwrap).collect();
            assert_eq!(left.len(), 1, "{more}: {left:?}");
        }
        assert_eq!(left(&scratch, &own), Vec::<String>::new(), "{more}");
    }
}

#[test]
fn another_program_gets_branches_of_its_own() {
    let scratch = ScratchDir::new("canopy-bench-test-", &[]);
    let program = format!("{} mount -f -o cache.attr=0", env!("CARGO_BIN_EXE_canopy"));
    for (table, clients, sides) in [
        ("meta", "bound", &["branch", "pool of 1", "pool of 3", "floor", "against of 1", "against of 3"][..]),
        ("walks", "free,bound", &["branch", "pool", "against"]),
        ("programs", "free", &["branch", "pool of 1", "pool of 3", "against of 1", "against of 3"]),
        ("dd", "free,bound", &["branch", "nullrw", "cache.files=off", "passthrough", "auto-full"]),
    ] {
        let mut command = bench(&scratch, "--quick --rounds 1 --json @figures --pools 1,3");
        command.args(["--only", table, "--clients", clients, "--against", &program]);
        let done = run_within(&mut command, RUN);
        assert!(done.success(), "{table}: {}", done.describe());
        let report = read_json(&scratch.path("figures"));
        let rows = list(&report["tables"][0]["rows"]);
        let measured = words_of_sides(&rows[0]);
        assert_eq!(measured[..sides.len()], *sides, "{table}");
        assert!(measured.last().unwrap().starts_with("against"), "{table}: {measured:?}");
        // Each row of a single client is measured with a bound one and then with a free one.
        let works = words(rows, "work");
        for pair in works.chunks(2).filter(|_| clients == "free,bound") {
            assert_eq!(pair[1], format!("{}, free client", pair[0]), "{table}");
        }
        assert_eq!((mounts(&scratch), pools(&scratch)), (0, Vec::new()), "{table}");
        assert_eq!(left(&scratch, &["figures"]), Vec::<String>::new(), "{table}");
    }
}

fn words_of_sides(row: &Value) -> Vec<&str> {
    words(list(&row["sides"]), "side")
}

#[test]
fn a_mistake_gives_one_line_and_leaves_nothing() {
    let scratch = ScratchDir::new("canopy-bench-test-", &["dir"]);
    let small = LoopFs::tmpfs(1 << 20);
    let small = small.path().display();
    for (words, why) in [
        (format!("--quick --dir {small}"), "MiB free, but these tables need"),
        ("--quick --dir @missing".into(), "missing cannot be used: No such file or directory"),
        ("--quick --against @missing".into(), "missing cannot be used: No such file or directory"),
        ("--quick --only meta --against false".into(), "cannot start the filesystem of --against \"false\""),
        ("--quick --only meta --against true".into(), "\"true\": it left the foreground"),
        ("--quick --only meta --against no-such-program".into(), "not found"),
        ("--pools 0".into(), "0"),
        ("--pools 2 --branch @dir".into(), "cannot be used with"),
        ("--clients many".into(), "many"),
        ("--quick --json @dir".into(), "not a regular file"),
        ("--quick --plot @missing/picture".into(), "picture cannot be used"),
        ("--quick -o frobnicate".into(), "cannot start a pool with -o"),
        ("--only frobnicate".into(), "frobnicate"),
        ("--dir @dir --branch @dir".into(), "cannot be used with"),
        ("--rounds 0".into(), "0"),
    ] {
        let done = run(&scratch, &words);
        assert!(!done.success(), "{words}: {}", done.describe());
        assert_eq!(done.stderr.lines().count(), 1, "{words}: {}", done.describe());
        assert!(done.stderr.contains(why), "{words}: {}", done.describe());
        assert_eq!(left(&scratch, &["dir"]), Vec::<String>::new(), "{words}");
    }
}

#[test]
fn an_ordinary_user_can_run_the_benchmark() {
    let scratch = ScratchDir::new("canopy-bench-test-", &["own", "dev"]);
    std::os::unix::fs::chown(scratch.path("own"), Some(65_534), Some(65_534)).unwrap();
    // Every user may execute the copy.
    let canopy = scratch.path("canopy");
    copy_program(env!("CARGO_BIN_EXE_canopy"), &canopy);
    // A private mount namespace gets a `/dev/fuse` with udev's mode, whatever mode this machine's device has.
    let script = r#"
        mount -t tmpfs none "$1/dev"
        mknod "$1/dev/fuse" c 10 229; chmod 666 "$1/dev/fuse"; mount --bind "$1/dev/fuse" /dev/fuse
        exec setpriv --reuid 65534 --regid 65534 --clear-groups \
            "$1/canopy" bench --quick --rounds 1 --only goals,meta,dd"#;
    let mut command = Command::new("unshare");
    command.env("TMPDIR", scratch.path("own")).args(["-m", "sh", "-ec", script, "sh"]).arg(scratch.dir());
    let done = run_within(&mut command, RUN);
    assert!(done.success(), "{}", done.describe());
    for expected in ["first stat of a name", "chmod by name", "Requests were not counted: ", "written"] {
        assert!(done.stdout.contains(expected), "{expected}: {}", done.describe());
    }
    assert_eq!(fs::read_dir(scratch.path("own")).unwrap().count(), 0);
}
