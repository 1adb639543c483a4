//! `canopy move`, `canopy balance` and `canopy consolidate`.

use super::rig::{BINARY, disks, interrupted_at_terminal, json, on_pool, put, unfinished};
use canopy_testkit::cmd::{run_within, wait_until, wait_within};
use canopy_testkit::{Fields, PATIENCE, PoolBed, Tree, as_user};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::process::{Command, Stdio};

const MIB: usize = 1 << 20;

/// Returns the tree of the pool, and checks that nothing is under construction.
fn tree(bed: &PoolBed) -> Tree {
    assert_eq!(unfinished(bed), 0);
    Tree::capture_with(bed.pool.path(), Fields::all())
}

/// Checks that a report adds up, and returns the numbers of files that moved, stay, and were not begun.
fn sums(report: &Value) -> [u64; 3] {
    let number =
        |part: &str, key: &str| report[part][key].as_u64().unwrap_or_else(|| panic!("{part}: {report}"));
    for key in ["files", "bytes"] {
        let parts: u64 = ["moved", "stayed", "not_begun"].iter().map(|part| number(part, key)).sum();
        assert_eq!(number("planned", key), parts, "{report}");
    }
    ["moved", "stayed", "not_begun"].map(|part| number(part, "files"))
}

/// A FUSE server need not tell holes from data, as gocryptfs and sshfs do not. A file with holes fits where its data fit.
#[test]
fn holes_stay_when_a_file_leaves_a_filesystem_that_does_not_report_them() {
    let home = canopy_testkit::ScratchDir::new("canopy-holes-", &["backing"]);
    let faulty = canopy_testkit::FaultyFs::mount(&home.path("backing"));
    faulty.set(canopy_testkit::Fault::Fail(rustix::io::Errno::NOSYS), &[canopy_fuse::Opcode::Lseek]);
    let target = canopy_testkit::LoopFs::tmpfs(16 << 20);
    let sparse = fs::File::create(faulty.backing_dir().join("sparse")).expect("a file");
    let mut content = vec![0; 100 * MIB + 77];
    for at in [0, 5000, 10 * MIB - 1, 100 * MIB + 76] {
        content[at] = 7;
        std::os::unix::fs::FileExt::write_all_at(&sparse, &[7], at as u64).expect("a write");
    }
    let pool = canopy_testkit::Pool::builder(BINARY)
        .branch(faulty.path())
        .branch(target.path())
        .option("minfreespace=1M")
        .mount();
    let mut command = Command::new(BINARY);
    command.arg("move").arg(pool.path()).arg(pool.path().join("sparse")).arg("--to").arg(target.path());
    let done = run_within(&mut command, PATIENCE);
    assert!(done.success(), "{}", done.describe());
    let moved = target.path().join("sparse");
    assert!(fs::metadata(&moved).expect("it has moved").blocks() * 512 < MIB as u64);
    assert!(fs::read(&moved).expect("read") == content);
    pool.umount();
}

#[test]
fn move_takes_files_with_all_their_names_to_a_branch() {
    let bed = disks("");
    put(&bed, 0, "films/a.mkv", vec![1; MIB]);
    put(&bed, 1, "films/deep/b.mkv", vec![2; MIB]);
    put(&bed, 1, "films/deep/b.txt", "text");
    put(&bed, 2, "films/there", "there");
    fs::create_dir_all(bed.on(0, "other")).expect("mkdir");
    fs::hard_link(bed.on(0, "films/a.mkv"), bed.on(0, "other/link")).expect("link");
    symlink("a.mkv", bed.on(0, "films/symlink")).expect("symlink");
    let before = tree(&bed);
    let target = bed.on(2, "");
    let args = |rest: &[&str]| {
        let fixed = ["films", "--to"].map(Into::into);
        fixed
            .into_iter()
            .chain([target.clone().into_os_string()])
            .chain(rest.iter().map(Into::into))
            .collect::<Vec<_>>()
    };
    let dry = json(&on_pool(&bed, "move", args(&["--dry-run", "--json"])));
    assert_eq!((sums(&dry), dry["steps"].as_array().map(Vec::len)), ([0; 3], Some(4)), "{dry}");
    assert_eq!(bed.branches_with("films/a.mkv"), [0]);
    // One file that a filter admits.
    let some =
        json(&on_pool(&bed, "move", args(&["--json", "--include", "*.mkv", "--exclude", "films/deep/**"])));
    assert_eq!(sums(&some), [1, 0, 0]);
    assert_eq!((bed.branches_with("films/a.mkv"), bed.branches_with("other/link")), (vec![2], vec![2]));
    let done = on_pool(&bed, "move", args(&[]));
    assert!(done.success(), "{}", done.describe());
    assert!(done.stdout.contains("/films/deep/b.mkv: "), "{}", done.stdout);
    assert!(done.stdout.ends_with("moved: 3 files (1.0M); planned: 3 files (1.0M)\n"), "{}", done.stdout);
    for path in ["films/a.mkv", "films/deep/b.mkv", "films/deep/b.txt", "films/there", "films/symlink"] {
        assert_eq!(bed.branches_with(path), [2], "{path}");
    }
    let ino = |path| fs::metadata(bed.on(2, path)).expect("metadata").ino();
    assert_eq!(ino("films/a.mkv"), ino("other/link"));
    before.assert_same(&tree(&bed));
    let done = on_pool(&bed, "move", args(&[]));
    assert!(done.success() && done.stdout.starts_with("nothing to move\n"), "{}", done.describe());
}

#[test]
fn what_stays_is_told_and_the_rest_moves() {
    let bed = disks("");
    put(&bed, 0, "d/busy", vec![1; MIB]);
    put(&bed, 0, "d/plain", vec![1; MIB]);
    put(&bed, 0, "d/twice", "one");
    put(&bed, 1, "d/twice", "two");
    rustix::net::bind(
        rustix::net::socket(rustix::net::AddressFamily::UNIX, rustix::net::SocketType::STREAM, None)
            .expect("socket"),
        &rustix::net::SocketAddrUnix::new(bed.on(0, "d/socket")).expect("an address"),
    )
    .expect("bind");
    let writer = fs::OpenOptions::new().append(true).open(bed.at("d/busy")).expect("open");
    let to = bed.on(2, "");
    let to = to.to_str().expect("text");
    let done = on_pool(&bed, "move", ["d", "--to", to, "--json"]);
    assert_eq!(done.code(), Some(1), "{}", done.describe());
    assert!(done.stderr.ends_with("3 of 4 stay where they are\n"), "{}", done.stderr);
    let report: Value = serde_json::from_str(&done.stdout).expect("JSON");
    assert_eq!(sums(&report), [1, 1, 0]);
    let stays = report["stays"].as_array().expect("an array");
    let why = |name: &str| {
        let path = json!(bed.at(name));
        stays.iter().find(|stay| stay["path"] == path).and_then(|stay| stay["why"].as_str())
    };
    assert_eq!(why("d/busy"), Some("open for writing"));
    assert_eq!(why("d/twice"), Some("several branches hold a copy"));
    assert_eq!(why("d/socket"), Some("sockets, fifos and devices do not move"));
    assert_eq!((bed.branches_with("d/busy"), bed.branches_with("d/plain")), (vec![0], vec![2]));
    drop(writer);
    bed.wait_until_closed("d/busy");
    let done = on_pool(&bed, "move", ["d/busy", "--to", to]);
    assert!(done.success(), "{}", done.describe());
    // Mistakes.
    for (args, expected) in [
        (["none", "--to", to], "none: No such file or directory"),
        (["d", "--to", "/none"], "/none is not a branch of pool"),
        (["/", "--to", to], "/ is not on a pool"),
    ] {
        let done = on_pool(&bed, "move", args);
        assert!(done.code() == Some(1) && done.stderr.contains(expected), "{}", done.describe());
    }
    bed.pool.set("branches", &format!("{}:{}=NC", bed.on(0, "").display(), to));
    let done = on_pool(&bed, "move", ["d", "--to", to]);
    assert!(done.stderr.contains("its mode is NC"), "{}", done.describe());
}

#[test]
fn only_root_and_the_owner_of_the_pool_move_files() {
    let bed = disks("allow_other");
    put(&bed, 0, "f", "x");
    let mut command = as_user(1000, 1000, &[], BINARY);
    command.arg("move").arg(bed.pool.path()).arg(bed.at("f")).arg("--to").arg(bed.on(1, ""));
    let done = run_within(&mut command, PATIENCE);
    assert_eq!(done.code(), Some(1), "{}", done.describe());
    assert!(done.stderr.contains("only its owner and root can move files"), "{}", done.stderr);
    assert_eq!(bed.branches_with("f"), [0]);
}

/// A terminal shows how far a large file is, and Ctrl-C ends its move.
#[test]
fn ctrl_c_at_a_terminal_ends_the_move_of_a_large_file() {
    let bed = disks("");
    put(&bed, 0, "large", vec![7; 24 * MIB]);
    let before = tree(&bed);
    let (pool, to) = (bed.pool.path().display(), bed.on(1, ""));
    let line = format!("move {pool} large --to {} --bwlimit 1K --yes", to.display());
    // The first slice, and then the limit holds.
    let (status, shown) = interrupted_at_terminal(&line, "4.00 MiB/24.00 MiB");
    assert_eq!(status, Some(1), "{shown}");
    assert!(shown.contains("not begun: 1 file (24M); planned: 1 file (24M)"), "{shown}");
    assert!(wait_until(PATIENCE, || unfinished(&bed) == 0), "the copy is dropped");
    before.assert_same(&tree(&bed));
}

#[test]
fn nothing_moves_in_a_pool_that_is_read_only() {
    let bed = disks("ro");
    put(&bed, 0, "f", "x");
    for (command, args) in
        [("move", vec![bed.at("f"), "--to".into(), bed.on(1, "")]), ("drain", vec![bed.on(0, "")])]
    {
        let done = on_pool(&bed, command, args);
        assert!(
            done.code() == Some(1) && done.stderr.contains("is mounted read-only"),
            "{}",
            done.describe()
        );
    }
    assert_eq!(bed.branches_with("f"), [0]);
    let done = super::rig::canopy(["which".into(), bed.at("f")]);
    assert!(done.success(), "{}", done.describe());
}

/// Returns how full the branches are, in per cent of what users may use.
fn shares(bed: &PoolBed) -> Vec<f64> {
    let share = |branch: usize| {
        let space = rustix::fs::statvfs(bed.on(branch, "")).expect("statvfs");
        100.0 * (1.0 - space.f_bavail as f64 / space.f_blocks as f64)
    };
    (0..bed.disks.len()).map(share).collect()
}

fn spread(bed: &PoolBed) -> f64 {
    let shares = shares(bed);
    shares.iter().copied().fold(0.0, f64::max) - shares.iter().copied().fold(100.0, f64::min)
}

#[test]
fn balance_evens_out_and_moves_little() {
    let bed = disks("");
    for file in 0..20 {
        put(&bed, 0, &format!("d{}/f{file}", file % 3), vec![file; 2 * MIB]);
    }
    fs::hard_link(bed.on(0, "d0/f0"), bed.on(0, "d1/link")).expect("link");
    let before = tree(&bed);
    let first = spread(&bed);
    assert!(first > 50.0, "{first}");
    let dry = on_pool(&bed, "balance", ["--dry-run"]);
    assert!(dry.success() && dry.stdout.contains("to move: "), "{}", dry.describe());
    assert_eq!(spread(&bed), first);
    let report = json(&on_pool(&bed, "balance", ["--to", "8%", "--json"]));
    let [moved, stayed, _] = sums(&report);
    // Two thirds, less the width.
    assert!((8..=13).contains(&moved) && stayed == 0, "{report}");
    assert!(spread(&bed) <= 8.0, "{:?}", shares(&bed));
    before.assert_same(&tree(&bed));
    let again = json(&on_pool(&bed, "balance", ["--to", "8%", "--json"]));
    assert_eq!(sums(&again), [0; 3], "{again}");
    let wrong = on_pool(&bed, "balance", ["--to", "101%"]);
    assert!(wrong.code() == Some(2) && wrong.stderr.contains("between 0% and 100%"), "{}", wrong.describe());
}

#[test]
fn consolidate_gathers_a_directory_where_most_of_it_is() {
    let bed = disks("");
    put(&bed, 0, "album/1", vec![1; MIB]);
    put(&bed, 1, "album/2", vec![2; 3 * MIB]);
    put(&bed, 2, "album/scans/3", vec![3; MIB]);
    put(&bed, 0, "elsewhere", "x");
    let before = tree(&bed);
    let done = on_pool(&bed, "consolidate", [bed.at("album")]);
    assert!(done.success(), "{}", done.describe());
    for path in ["album/1", "album/2", "album/scans/3"] {
        assert_eq!(bed.branches_with(path), [1], "{path}");
    }
    assert_eq!(bed.branches_with("elsewhere"), [0]);
    before.assert_same(&tree(&bed));
    let to = bed.on(2, "").into_os_string();
    let done = on_pool(&bed, "consolidate", ["album".into(), "--to".into(), to]);
    assert!(done.success(), "{}", done.describe());
    assert_eq!(bed.branches_with("album/2"), [2]);
    // None has room for all.
    put(&bed, 0, "big/1", vec![1; 30 * MIB]);
    put(&bed, 1, "big/2", vec![1; 30 * MIB]);
    bed.disks[0].fill(MIB as u64);
    bed.disks[1].fill(MIB as u64);
    bed.disks[2].fill(50 << 20);
    let done = on_pool(&bed, "consolidate", [bed.at("big")]);
    assert!(done.code() == Some(1) && done.stderr.contains("no branch has room"), "{}", done.describe());
}

/// Ctrl-C ends a move in the middle of a file, however large and slow.
#[test]
fn a_signal_ends_a_move_at_once_and_harmlessly() {
    let bed = disks("");
    put(&bed, 0, "d/large", vec![7; 24 * MIB]);
    put(&bed, 0, "d/small", "small");
    let before = tree(&bed);
    for signal in ["INT", "TERM"] {
        let mut command = Command::new(BINARY);
        command.arg("move").arg(bed.pool.path()).arg("d").arg("--to").arg(bed.on(1, ""));
        // Longer than any test waits.
        command.args(["--bwlimit", "1K", "--json"]).stdin(Stdio::null());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("canopy");
        assert!(wait_until(PATIENCE, || unfinished(&bed) > 0), "no copy has begun");
        let pid = rustix::process::Pid::from_child(&child);
        let signal =
            if signal == "INT" { rustix::process::Signal::INT } else { rustix::process::Signal::TERM };
        rustix::process::kill_process(pid, signal).expect("kill");
        let status = wait_within(&mut child, PATIENCE);
        let ended = status.is_some();
        if !ended {
            child.kill().expect("kill");
        }
        let output = child.wait_with_output().expect("output");
        assert!(ended, "it goes on");
        let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!((sums(&report), &report["stopped"]), ([0, 0, 2], &json!(true)), "{report}");
        assert!(wait_until(PATIENCE, || unfinished(&bed) == 0), "the copy is dropped");
        before.assert_same(&tree(&bed));
    }
    let done = on_pool(&bed, "move", ["d".into(), "--to".into(), bed.on(1, "").into_os_string()]);
    assert!(done.success(), "{}", done.describe());
    before.assert_same(&tree(&bed));
}

/// Both pools use the same hidden names for what is being copied.
#[test]
fn a_file_that_cannot_move_onto_a_pool_says_why() {
    let disks = [0; 3].map(|_| canopy_testkit::LoopFs::tmpfs(16 << 20));
    let pool = || canopy_testkit::Pool::builder(BINARY).option("minfreespace=0,category.create=ff");
    let inner = pool().branches(disks[1..].iter().map(|disk| disk.path())).mount();
    let outer = pool().branch(disks[0].path()).branch(inner.path()).mount();
    fs::write(outer.path().join("film"), "a film").expect("a file");
    let mut command = Command::new(BINARY);
    command.arg("move").arg(outer.path()).arg("film").arg("--to").arg(inner.path());
    let done = run_within(&mut command, PATIENCE);
    assert_eq!(done.code(), Some(1), "{}", done.describe());
    let told = done.stdout.clone() + &done.stderr;
    let why = format!("{} is itself a pool", inner.path().display());
    assert!(told.contains(&why) && told.contains("branches of this pool"), "{}", done.describe());
    assert_eq!(fs::read_to_string(disks[0].path().join("film")).expect("it stays"), "a film");
    assert_eq!(fs::read_dir(inner.path()).expect("the inner pool").count(), 0);
    outer.umount();
    inner.umount();
}
