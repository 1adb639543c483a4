//! The programs of mergerfs-tools by their old names.

use super::rig::{BINARY, PATIENCE, Rig, disks, put};
use canopy_testkit::cmd::{Finished, run_within};
use canopy_testkit::{PoolBed, ScratchDir};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;
use std::time::{Duration, UNIX_EPOCH};

const MIB: usize = 1 << 20;

/// Runs the program by another name.
fn called<S: AsRef<OsStr>>(name: &str, args: impl IntoIterator<Item = S>) -> Finished {
    let scratch = ScratchDir::new("canopy-tools-", &["bin"]);
    let link = scratch.path("bin").join(name);
    symlink(BINARY, &link).expect("a link");
    run_within(Command::new(link).args(args), PATIENCE)
}

fn held(bed: &PoolBed, files: impl Iterator<Item = String>) -> [usize; 3] {
    let mut held = [0; 3];
    files.for_each(|file| held[bed.branches_with(&file)[0]] += 1);
    held
}

#[test]
fn balance_takes_the_filters_of_its_name() {
    let bed = disks("");
    for file in 0..16 {
        put(&bed, 0, &format!("tv/f{file}.mkv"), vec![1; 2 * MIB]);
        put(&bed, 0, &format!("tv/f{file}.nfo"), "text");
    }
    let all = |ending: &'static str| (0..16).map(move |file| format!("tv/f{file}.{ending}"));
    let dir = bed.at("tv");
    let run =
        |args: &[&str]| called("mergerfs.balance", args.iter().map(OsStr::new).chain([dir.as_os_str()]));
    // Each of these leaves nothing to move.
    let whole = format!("{}/tv*", bed.pool.path().display());
    for args in [&["-i", "*.nfo"][..], &["-e", "*.mkv"], &["-S", "1M"], &["-s", "3M"], &["-E", &whole]] {
        let done = run(args);
        assert!(done.success(), "{args:?}: {}", done.describe());
        assert_eq!(held(&bed, all("mkv")), [16, 0, 0], "{args:?}");
    }
    let small = held(&bed, all("nfo"));
    let done = run(&["-p", "10", "-I", &whole, "-s", "1K", "--include", "*.mkv"]);
    assert!(done.success(), "{}", done.describe());
    let [first, second, third] = held(&bed, all("mkv"));
    assert!(first < 10 && second > 2 && third > 2, "{first} {second} {third}");
    assert_eq!(held(&bed, all("nfo")), small);
    let help = called("mergerfs.balance", ["--help"]);
    assert!(help.success() && help.stdout.contains("Usage: mergerfs.balance"), "{}", help.describe());
    let wrong = called("mergerfs.balance", ["--frob"]);
    assert!(wrong.code() == Some(1) && wrong.stderr.lines().count() == 1, "{}", wrong.describe());
}

#[test]
fn consolidate_moves_each_directory_only_with_execute() {
    let bed = disks("");
    put(&bed, 0, "a/1", vec![1; 4 * MIB]);
    put(&bed, 1, "a/2", vec![1; 2 * MIB]);
    put(&bed, 0, "a/alone/3", vec![1; MIB]);
    put(&bed, 0, "b/4", vec![1; MIB]);
    put(&bed, 1, "b/5", vec![1; MIB]);
    let run = |args: &[&str]| {
        called("mergerfs.consolidate", args.iter().map(OsStr::new).chain([bed.pool.path().as_os_str()]))
    };
    let places = || ["a/1", "a/2", "a/alone/3", "b/4", "b/5"].map(|path| bed.branches_with(path)[0]);
    let done = run(&[]);
    assert!(done.success() && done.stdout.contains("/a/1: "), "{}", done.describe());
    assert_eq!(places(), [0, 1, 0, 0, 1]);
    for args in [&["-e", "-m", "1"][..], &["-e", "-M", "1M"]] {
        assert!(run(args).success());
        assert_eq!(places(), [0, 1, 0, 0, 1], "{args:?}");
    }
    let only = format!("{}/b", bed.pool.path().display());
    let done = run(&["-e", "-I", &only]);
    assert!(done.success(), "{}", done.describe());
    assert_eq!(places(), [0, 1, 0, 2, 2]);
    assert!(run(&["--execute", "-E", "*/b"]).success());
    assert_eq!(places(), [2, 2, 0, 2, 2], "a file alone in its directory stays");
}

#[test]
fn ctl_shows_and_changes_pools() {
    let rig = Rig::new(BINARY, &["a", "b"]);
    let pool = rig.pool.path().to_str().expect("text").to_owned();
    let run = |args: &[&str]| called("mergerfs.ctl", ["-m", &pool].iter().chain(args));
    let [a, b, home] = ["a", "b", "home"].map(|name| rig.scratch.path(name).display().to_string());
    let done = run(&["info"]);
    let expected = format!(
        "- mount: {pool}\n  version: {}\n  pid: {}\n  srcmounts:\n    - {a}\n    - {b}\n",
        env!("CARGO_PKG_VERSION"),
        rig.pool.pid()
    );
    assert_eq!(done.stdout, expected, "{}", done.describe());
    assert!(run(&["add", "path", &home]).success());
    assert!(run(&["remove", "path", &a]).success());
    assert_eq!(rig.pool.get("branches"), format!("{b}=RW:{home}=RW"));
    assert!(run(&["set", "minfreespace", "3M"]).success());
    assert!(run(&["set", "user.mergerfs.category.create", "mfs"]).success());
    let done = run(&["get", "minfreespace", "user.mergerfs.func.create"]);
    let expected = format!(
        "- mount: {pool}\n    user.mergerfs.minfreespace: 3145728\n    user.mergerfs.func.create: mfs\n"
    );
    assert_eq!(done.stdout, expected, "{}", done.describe());
    let list = run(&["list", "options"]).stdout;
    assert!(list.contains("\n    - user.mergerfs.minfreespace\n"), "{list}");
    assert!(run(&["list", "values"]).stdout.contains("\n    user.mergerfs.minfreespace: 3145728\n"));
    for (args, why) in [
        (&["get", "frob"][..], "frob of pool"),
        (&["set", "minfreespace", "much"], "minfreespace of pool"),
        (&["add", "device", "/dev/none"], "/dev/none is not mounted"),
    ] {
        let done = run(args);
        assert!(done.code() == Some(1) && done.stderr.contains(why), "{args:?}: {}", done.describe());
    }
    let done = called("mergerfs.ctl", ["-m", "/none", "info"]);
    assert!(done.stderr.contains("/none is not the mountpoint of a pool"), "{}", done.describe());
    rig.pool.umount();
}

#[test]
fn dedup_takes_its_old_options_and_keeps_what_differs() {
    let rig = Rig::new(BINARY, &["a", "b"]);
    for (path, other) in [("equal", "xx"), ("longer", "xxx")] {
        rig.put("a", path, "xx");
        rig.put("b", path, other);
    }
    let later = std::time::SystemTime::now() + std::time::Duration::from_secs(60);
    fs::File::open(rig.on("b", "equal")).expect("a file").set_modified(later).expect("a time");
    let run = |args: &[&str]| {
        called("mergerfs.dedup", args.iter().map(OsStr::new).chain([rig.pool.path().as_os_str()]))
    };
    let held = |branch: &str, path: &str| rig.on(branch, path).exists();
    let plan = run(&["-v", "-d", "newest"]);
    assert!(plan.success() && plan.stdout.contains("/equal: kept on "), "{}", plan.describe());
    assert!(!run(&["-d", "newest"]).stdout.contains("/equal: "), "one line a copy only with -v");
    assert!(held("a", "equal") && held("b", "equal"));
    let done = run(&["-i", "-e", "-d", "newest"]);
    assert!(done.success() && held("a", "equal"), "of one size: {}", done.describe());
    let done = run(&["--execute", "--dedup", "newest"]);
    assert!(done.success() && done.stdout.contains("differ in size"), "{}", done.describe());
    assert!(!held("a", "equal") && held("b", "equal"));
    assert!(run(&["-e", "-d", "mostfreespace"]).success() && run(&["-e", "-d", "largest"]).success());
    assert!(held("a", "longer") && held("b", "longer"));
    let wrong = run(&["-d", "best"]);
    assert!(wrong.code() == Some(1) && wrong.stderr.lines().count() == 1, "{}", wrong.describe());
    rig.pool.umount();
}

#[test]
fn dedup_takes_the_options_of_its_newer_version() {
    let rig = Rig::new(BINARY, &["a", "b"]);
    let put = || {
        for (branch, seconds) in [("a", 3000), ("b", 1000)] {
            for path in ["tv/x.mkv", "tv/y.nfo", "skip/x.mkv", "tv/tied.mkv"] {
                rig.put(branch, path, "xx");
                let time = UNIX_EPOCH + Duration::from_secs(if path == "tv/tied.mkv" { 7 } else { seconds });
                fs::File::open(rig.on(branch, path)).expect("a file").set_modified(time).expect("a time");
            }
        }
    };
    put();
    let run = |args: &[&str]| {
        called("mergerfs.dedup", args.iter().map(OsStr::new).chain([rig.pool.path().as_os_str()]))
    };
    let held = |path: &str| ["a", "b"].map(|branch| rig.on(branch, path).exists());
    // Each of these leaves everything.
    for args in
        [&["-i", "same-size"][..], &["-i", "diff-time", "-I", "x*"], &["--ignore=same-hash"], &["-ii"]]
    {
        let done = run(&[args, &["-e", "-d", "oldest", "-E", "tied*"]].concat());
        assert!(done.success(), "{args:?}: {}", done.describe());
        assert_eq!([held("tv/x.mkv"), held("skip/x.mkv")], [[true; 2]; 2], "{args:?}");
        if args != ["-i", "diff-time", "-I", "x*"] {
            assert_eq!(held("tv/y.nfo"), [true; 2], "{args:?}");
        }
    }
    let done = run(&["-e", "-s", "-d", "oldest", "-I", "*.mkv", "-D", "skip", "-i", "diff-size"]);
    assert!(done.success(), "{}", done.describe());
    assert_eq!(held("tv/x.mkv"), [false, true]);
    // Another directory, another name, and one of which both copies are the oldest.
    assert_eq!([held("skip/x.mkv"), held("tv/y.nfo"), held("tv/tied.mkv")], [[true; 2]; 3]);
    put();
    assert!(run(&["-e", "-v", "-d", "smallest", "-s"]).success());
    assert_eq!(held("tv/y.nfo"), [true; 2], "of one size");
    assert!(run(&["-e", "-d", "mergerfs"]).success());
    assert_eq!(held("tv/y.nfo"), [true, false]);
    // It asks for each file: the second copy, none, the first, and then there is no answer.
    put();
    let scratch = ScratchDir::new("canopy-tools-", &["bin"]);
    let link = scratch.path("bin").join("mergerfs.dedup");
    symlink(BINARY, &link).expect("a link");
    let line = r#"printf '7\n2\ns\n1\n' | "$1" -e -d manual "$2""#;
    let mut shell = Command::new("sh");
    let done = run_within(shell.args(["-c", line, "sh"]).arg(link).arg(rig.pool.path()), PATIENCE);
    assert!(done.success() && done.stdout.contains("Which one do you want to keep?"), "{}", done.describe());
    let all = ["skip/x.mkv", "tv/tied.mkv", "tv/x.mkv", "tv/y.nfo"].map(held);
    assert_eq!(all, [[false, true], [true, true], [true, false], [true, true]], "{}", done.describe());
    rig.pool.umount();
}

#[test]
fn dup_takes_its_old_options() {
    let bed = disks("");
    for path in ["tv/a.mkv", "tv/b.nfo", "other"] {
        put(&bed, 0, path, vec![1; MIB]);
    }
    let dir = bed.at("tv");
    let run = |args: &[&str]| called("mergerfs.dup", args.iter().map(OsStr::new).chain([dir.as_os_str()]));
    let copies = || ["tv/a.mkv", "tv/b.nfo", "other"].map(|path| bed.branches_with(path).len());
    let plan = run(&["-c", "3"]);
    assert!(plan.success() && plan.stdout.contains("/tv/a.mkv: "), "{}", plan.describe());
    assert_eq!(copies(), [1, 1, 1]);
    assert!(run(&["-e", "-I", "*.mkv"]).success());
    assert_eq!(copies(), [2, 1, 1]);
    assert!(run(&["-e", "-E", "*.nfo", "-c", "3", "-d", "newest"]).success());
    assert_eq!(copies(), [3, 1, 1]);
    let done = run(&["--execute", "--prune", "--count", "2", "--dup", "mergerfs"]);
    assert!(done.success(), "{}", done.describe());
    assert_eq!(copies(), [2, 2, 1]);
    let wrong = run(&["-d", "manual"]);
    assert!(wrong.code() == Some(1) && wrong.stderr.lines().count() == 1, "{}", wrong.describe());
}

#[test]
fn fsck_can_leave_out_copies_of_different_size() {
    let rig = Rig::new(BINARY, &["a", "b"]);
    for (path, other) in [("same", "x"), ("longer", "xx")] {
        rig.put("a", path, "x");
        rig.put("b", path, other);
        fs::set_permissions(rig.on("a", path), fs::Permissions::from_mode(0o600)).expect("chmod");
    }
    let run = |args: &[&str]| {
        called("mergerfs.fsck", args.iter().map(OsStr::new).chain([rig.pool.path().as_os_str()]))
    };
    let done = run(&["-v"]);
    assert!(done.success() && done.stdout.contains("/longer\n") && done.stdout.contains("/same\n"));
    let done = run(&["-s"]);
    assert!(!done.stdout.contains("/longer\n") && done.stdout.contains("/same\n"), "{}", done.describe());
    assert!(run(&["--size", "--fix", "newest"]).success());
    let mode =
        |branch, path| fs::metadata(rig.on(branch, path)).expect("a file").permissions().mode() & 0o777;
    assert_eq!(mode("a", "same"), mode("b", "same"));
    assert_ne!(mode("a", "longer"), mode("b", "longer"));
    rig.pool.umount();
}
