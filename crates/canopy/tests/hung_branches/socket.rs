//! The socket of a pool.

use super::rig::BINARY;
use canopy_testkit::cmd::{Finished, run_within, spawn, wait_until, wait_within};
use canopy_testkit::{Fault, FaultyFs, PATIENCE, Pool, PoolBuilder, ScratchDir, as_user};
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// How long a command waits that has to wait for a branch. Others take less than a second on an idle machine.
const HANGS: Duration = Duration::from_secs(20);

fn canopy<S: AsRef<OsStr>>(
    run_dir: &Path,
    args: impl IntoIterator<Item = S>,
    deadline: Duration,
) -> Finished {
    run_within(Command::new(BINARY).args(args).env("CANOPY_RUN_DIR", run_dir), deadline)
}

/// Describes a pool over `a` and `b`, with its socket in `run`.
fn over(scratch: &ScratchDir, options: &str) -> PoolBuilder {
    let branches = ["a", "b"].map(|name| scratch.path(name));
    let builder = Pool::builder(BINARY).branches(branches).env("CANOPY_RUN_DIR", scratch.path("run"));
    builder.option("minfreespace=0").option(options)
}

/// Returns the socket of the only pool in a directory, which its daemon has made when it answers.
fn socket_of(pool: &Pool, dir: &Path) -> PathBuf {
    fs::metadata(pool.path()).expect("a pool");
    let mut found = None;
    assert!(wait_until(PATIENCE, || {
        found = socket_in(dir);
        found.as_ref().is_some_and(|socket| UnixStream::connect(socket).is_ok())
    }));
    found.expect("a socket")
}

fn is_socket(path: &Path) -> bool {
    path.extension().is_some_and(|end| end == "sock")
}

fn socket_in(dir: &Path) -> Option<PathBuf> {
    let mut paths = fs::read_dir(dir).ok()?.flatten().map(|entry| entry.path());
    paths.find(|path| is_socket(path))
}

fn ask(socket: &Path, query: &str) -> (Value, Value) {
    let mut stream = UnixStream::connect(socket).expect("a socket");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let mut lines = BufReader::new(stream.try_clone().expect("a socket")).lines();
    let mut read = || {
        let line = lines.next().and_then(Result::ok).unwrap_or_default();
        serde_json::from_str(&line).unwrap_or(Value::Null)
    };
    let hello = read();
    let _ = stream.write_all(format!("{query}\n").as_bytes());
    (hello, read())
}

#[test]
fn commands_do_not_wait_for_a_branch_that_hangs() {
    let scratch = ScratchDir::new("canopy-socket-", &["run", "b"]);
    let faulty = FaultyFs::mount(&scratch.dir());
    let run = scratch.path("run");
    let pool = Pool::builder(BINARY)
        .branch(faulty.path())
        .branch(scratch.path("b"))
        .option("minfreespace=0,category.create=ff,cache.attr=0,cache.entry=0,branch-timeout=60")
        .env("CANOPY_RUN_DIR", &run)
        .mount();
    socket_of(&pool, &run);
    faulty.set_all(Fault::Hang);
    // It holds the root of the pool in the kernel, as an open that creates does.
    let held = pool.path().join("new");
    let creator = std::thread::spawn(move || File::create(held).map(drop));
    assert!(wait_until(PATIENCE, || faulty.hanging() > 0));
    let point = pool.path().as_os_str();
    let elsewhere = scratch.dir();
    let args = [OsStr::new("get"), point, OsStr::new("category.create")];
    let mut by_file = Command::new(BINARY);
    let mut by_file = spawn(by_file.args(args).env("CANOPY_RUN_DIR", elsewhere)).expect("a process");
    let by_socket = canopy(&run, args, HANGS);
    let set = canopy(&run, [OsStr::new("set"), point, OsStr::new("category.create=mfs")], HANGS);
    let now = canopy(&run, args, HANGS);
    let status = canopy(&run, [OsStr::new("status"), point, OsStr::new("--json")], HANGS);
    let waits = by_file.try_wait().expect("a process").is_none();
    faulty.heal();
    creator.join().expect("a thread").expect("a file");
    assert!(wait_within(&mut by_file, PATIENCE).is_some_and(|status| status.success()));
    assert!(waits, "the control file waits");
    assert_eq!(by_socket.stdout, "ff\n", "{}", by_socket.describe());
    assert!(set.success(), "{}", set.describe());
    assert_eq!(now.stdout, "mfs\n", "{}", now.describe());
    let status: Value = serde_json::from_str(&status.stdout).expect("JSON");
    // It asks the pool itself, too: that one does hang.
    assert_eq!(status["pools"][0]["state"], "does-not-answer", "{status}");
}

#[test]
fn a_socket_answers_as_the_control_file_does() {
    let scratch = ScratchDir::new("canopy-socket-", &["a", "b", "run"]);
    let run = scratch.path("run");
    // Left by a process that was killed.
    let stale = run.join("0-0.sock");
    drop(UnixListener::bind(&stale).expect("a socket"));
    let tiers = "ssd=/mnt/ssd|fuller than 70 %";
    let pool = over(&scratch, &format!("tiers={tiers},rules=films/**=ssd|copies 2")).mount();
    let socket = socket_of(&pool, &run);
    assert!(!stale.exists());
    let (hello, answer) = ask(&socket, "{\"get\":\"category.create\"}");
    assert_eq!(hello["form"], 1);
    assert_eq!(answer, json!({"Ok": {"value": pool.get("category.create")}}));
    let (_, status) = ask(&socket, "\"status\"");
    assert_eq!(status["Ok"]["status"]["pid"], pool.pid());
    let (_, rules) = ask(&socket, "\"placement\"");
    let rule = &rules["Ok"]["placement"]["rules"][0];
    assert_eq!(*rule, json!({"path": "films/**", "target": {"tier": "ssd"}, "copies": 2, "written": false}));
    // What the control file refuses, in the same way.
    for (key, value) in [("version", "1"), ("no-such-key", "1"), ("category.create", "nonsense")] {
        let by_file = pool.try_set(key, value).expect_err("a refusal").raw_os_error();
        let (_, by_socket) =
            ask(&socket, &format!("{{\"set\":{{\"key\":\"{key}\",\"value\":\"{value}\"}}}}"));
        assert_eq!(by_socket, json!({"Err": by_file}), "{key}");
    }
    let (_, done) = ask(&socket, "{\"set\":{\"key\":\"category.create\",\"value\":\"mfs\"}}");
    assert_eq!((done, pool.get("category.create").as_str()), (json!({"Ok": "done"}), "mfs"));
    assert_eq!(ask(&socket, "{\"nonsense\":1}").1, Value::Null);
    // Silent clients leave the others their turn.
    let silent: Vec<UnixStream> = (0..8).map(|_| UnixStream::connect(&socket).expect("a socket")).collect();
    assert_eq!(ask(&socket, "\"keys\"").1["Ok"]["keys"][0], "allow-idmap");
    drop(silent);
    pool.umount();
    assert!(wait_until(PATIENCE, || socket_in(&run).is_none()), "it goes with its pool");
}

#[test]
fn other_users_look_and_do_not_touch() {
    let scratch = ScratchDir::new("canopy-socket-", &["a", "b", "run"]);
    let run = scratch.path("run");
    let pool = over(&scratch, "").mount();
    let socket = socket_of(&pool, &run);
    let script = "import socket,sys\ns=socket.socket(socket.AF_UNIX)\ns.connect(sys.argv[1])\nf=s.makefile('rw')\n\
        f.readline()\nf.write(sys.argv[2]+'\\n')\nf.flush()\nprint(f.readline())";
    let ask = |query: &str| {
        let mut python = as_user(65_534, 65_534, &[], "/usr/bin/python3");
        let done = run_within(python.args(["-c", script]).arg(&socket).arg(query), PATIENCE);
        serde_json::from_str::<Value>(&done.stdout).unwrap_or_else(|_| panic!("{}", done.describe()))
    };
    assert_eq!(ask("{\"get\":\"version\"}"), json!({"Ok": {"value": env!("CARGO_PKG_VERSION")}}));
    let refused = json!({"Err": 13});
    assert_eq!(ask("{\"set\":{\"key\":\"category.create\",\"value\":\"mfs\"}}"), refused);
    assert_eq!(ask("{\"command\":\"gc\"}"), refused);
    assert_eq!(ask("{\"closed\":0}"), refused, "it names files");
    assert_ne!(pool.get("category.create"), "mfs");
    // A directory into which others may write is no place for a socket, and nobody asks there.
    fs::set_permissions(&run, std::os::unix::fs::PermissionsExt::from_mode(0o777)).expect("chmod");
    let args = [OsStr::new("get"), pool.path().as_os_str(), OsStr::new("version")];
    assert!(canopy(&run, args, PATIENCE).success(), "the control file answers");
    let other = over(&scratch, "").mount();
    let listing = fs::read_dir(&run).expect("a listing").flatten();
    let sockets: Vec<PathBuf> = listing.map(|entry| entry.path()).filter(|path| is_socket(path)).collect();
    assert_eq!(sockets, [socket], "and no other");
    drop(other);
}
