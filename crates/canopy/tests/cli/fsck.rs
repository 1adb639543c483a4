//! `canopy fsck` and `fsck.mergerfs`, `canopy collect-info` and `mergerfs.collect-info`, on real pools.

use canopy_testkit::cmd::{Finished, run_within};
use canopy_testkit::files::copy_program;
use canopy_testkit::{LoopFs, PATIENCE, Pool, ScratchDir, as_user};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const BINARY: &str = env!("CARGO_BIN_EXE_canopy");
const MIB: u64 = 1 << 20;

fn rig() -> (ScratchDir, Pool) {
    let scratch = ScratchDir::new("canopy-fsck-", &["a", "b", "c", "bin"]);
    let pool = Pool::builder(BINARY)
        .branch(scratch.path("a"))
        .branch(scratch.path("b"))
        .branch(scratch.path("c"))
        .option("minfreespace=0,cache.attr=0,cache.entry=0")
        .mount();
    (scratch, pool)
}

/// Returns a command that runs the program by another name.
fn called(scratch: &ScratchDir, name: &str) -> Command {
    let link = scratch.path("bin").join(name);
    if !link.exists() {
        symlink(BINARY, &link).expect("a link");
    }
    Command::new(link)
}

fn finish(command: &mut Command) -> Finished {
    run_within(command, PATIENCE)
}

fn fsck(args: &[&str], path: &Path) -> Finished {
    finish(Command::new(BINARY).arg("fsck").args(args).arg(path))
}

fn put(path: PathBuf, content: &str, mode: u32, uid: u32, mtime: u64) -> PathBuf {
    fs::create_dir_all(path.parent().expect("a directory")).expect("mkdir");
    fs::write(&path, content).expect("write");
    chown(&path, Some(uid), Some(uid)).expect("chown");
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("chmod");
    let time = std::time::UNIX_EPOCH + Duration::from_secs(mtime);
    fs::File::options().write(true).open(&path).expect("open").set_modified(time).expect("utimens");
    path
}

/// Returns the mode, owner and content of a file.
fn state(path: &Path) -> (u32, u32, String) {
    let meta = fs::metadata(path).expect("a file");
    (meta.mode() & 0o7777, meta.uid(), fs::read_to_string(path).expect("text"))
}

#[test]
fn fsck_reports_differences_and_changes_nothing() {
    let (scratch, pool) = rig();
    put(scratch.path("a/same"), "x", 0o644, 5, 1000);
    put(scratch.path("b/same"), "y", 0o644, 5, 2000);
    put(scratch.path("a/lone"), "x", 0o600, 5, 1000);
    assert_eq!(fsck(&[], pool.path()).code(), Some(0));
    put(scratch.path("a/deep/er/mode"), "x", 0o4755, 0, 0);
    put(scratch.path("c/deep/er/mode"), "x", 0o755, 0, 1_709_251_199);
    put(scratch.path("b/sizes"), "long", 0o644, 0, 1000);
    put(scratch.path("c/sizes"), "longer", 0o644, 0, 1000);
    symlink("nowhere", scratch.path("a/link")).expect("symlink");
    symlink("nowhere", scratch.path("b/link")).expect("symlink");
    std::os::unix::fs::lchown(scratch.path("b/link"), Some(7), Some(7)).expect("lchown");
    fs::set_permissions(scratch.path("a/deep"), fs::Permissions::from_mode(0o700)).expect("chmod");

    let done = fsck(&[], pool.path());
    assert_eq!(done.code(), Some(4), "{}", done.describe());
    let found: Vec<&str> = done.stdout.lines().filter_map(|line| line.strip_prefix("* ")).collect();
    let mut found: Vec<PathBuf> = found.into_iter().map(PathBuf::from).collect();
    found.sort();
    // Symlinks are compared too, although user.* attributes cannot be read from them.
    assert_eq!(found, ["deep", "deep/er/mode", "link"].map(|name| pool.path().join(name)));
    let expected = format!(
        "* {}\n  0: {}\n     uid: 0; gid: 0; mode: 04755; type: regular; size: 1; mtime: 1970-01-01T00:00:00+0000\n  1: {}\n     \
         uid: 0; gid: 0; mode: 00755; type: regular; size: 1; mtime: 2024-02-29T23:59:59+0000\n",
        pool.path().join("deep/er/mode").display(),
        scratch.path("a/deep/er/mode").display(),
        scratch.path("c/deep/er/mode").display()
    );
    assert!(done.stdout.contains(&expected), "{}\n{expected}", done.stdout);
    assert!(done.stdout.ends_with("8 checked, 3 with copies that differ\n"), "{}", done.stdout);
    assert!(fsck(&["--check-size"], pool.path()).stdout.contains("/sizes\n"));
    assert!(fsck(&["-q", "-s"], pool.path()).stdout.is_empty());
    assert_eq!(fsck(&["-v"], &pool.path().join("deep")).stdout.matches("/deep/er\n").count(), 1);
    assert_eq!(state(&scratch.path("c/deep/er/mode")).0, 0o755);
    pool.umount();
}

#[test]
fn fsck_prints_json_and_takes_filters() {
    let (scratch, pool) = rig();
    for (branch, mode) in [("a", 0o600), ("b", 0o640)] {
        put(scratch.path(branch).join("films/a.mkv"), "x", mode, 5, 1000);
        put(scratch.path(branch).join("films/a.txt"), "text", mode, 7, 1_709_251_199);
    }
    fs::set_permissions(scratch.path("a/films"), fs::Permissions::from_mode(0o700)).expect("chmod");
    let json = |args: &[&str], status| {
        let done = fsck(&[&["--json"], args].concat(), pool.path());
        assert_eq!(done.code(), Some(status), "{}", done.describe());
        let report: serde_json::Value = serde_json::from_str(&done.stdout).expect("JSON");
        assert_eq!(report["differ"].as_u64(), report["findings"].as_array().map(|all| all.len() as u64));
        report
    };
    // The root, a directory and two files.
    let all = json(&[], 4);
    assert_eq!(
        (all["checked"].as_u64(), all["differ"].as_u64(), all["errors"].as_u64()),
        (Some(4), Some(3), Some(0))
    );
    for (args, expected) in [
        (&["--include", "*.mkv"][..], "a.mkv"),
        (&["--include", "films/**", "--exclude", "*.mkv"], "a.txt"),
        (&["--min-size", "2"], "a.txt"),
        (&["--max-size", "1"], "a.mkv"),
        (&["--owner", "7"], "a.txt"),
    ] {
        let found = json(args, 4);
        let path = pool.path().join("films").join(expected);
        assert_eq!((found["checked"].as_u64(), found["differ"].as_u64()), (Some(1), Some(1)), "{args:?}");
        assert_eq!(found["findings"][0]["path"], serde_json::json!(path), "{args:?}");
    }
    let fixed = json(&["--include", "*.txt", "--fix", "newest"], 1);
    let finding = &fixed["findings"][0];
    assert_eq!((fixed["repaired"].as_u64(), finding["repaired_from"].as_u64()), (Some(1), Some(0)));
    let second = &finding["copies"][1];
    assert_eq!(second["path"], serde_json::json!(scratch.path("b/films/a.txt")));
    assert_eq!((second["mode"].as_str(), second["uid"].as_u64()), (Some("00640"), Some(7)));
    assert_eq!(
        (second["size"].as_u64(), second["mtime"].as_str()),
        (Some(4), Some("2024-02-29T23:59:59+0000"))
    );
    assert_eq!(state(&scratch.path("b/films/a.txt")).0, 0o600);
    assert_eq!(state(&scratch.path("b/films/a.mkv")).0, 0o640, "a filter has left it out");
    let refused = fsck(&["--json", "--fix", "manual"], pool.path());
    assert!(refused.code() == Some(8) && refused.stderr.contains("cannot ask"), "{}", refused.describe());
    pool.umount();
}

#[test]
fn fix_makes_all_copies_equal() {
    let (scratch, pool) = rig();
    let file = |branch: &str| scratch.path(branch).join("f");
    let fresh = || {
        put(file("a"), "old and long", 0o600, 0, 1000);
        put(file("b"), "newest", 0o6755, 1000, 3000);
        put(file("c"), "mid", 0o644, 0, 2000);
    };
    let modes = || ["a", "b", "c"].map(|branch| state(&file(branch)));
    for (fix, winner) in [("newest", (0o6755, 1000)), ("largest", (0o600, 0)), ("nonroot", (0o6755, 1000))] {
        fresh();
        let done = fsck(&["--fix", fix], pool.path());
        assert_eq!(done.code(), Some(1), "{}", done.describe());
        for (state, content) in modes().iter().zip(["old and long", "newest", "mid"]) {
            // The set-id bits survive the change of owner.
            assert_eq!((state.0, state.1, state.2.as_str()), (winner.0, winner.1, content), "{fix}");
        }
        assert_eq!(fsck(&[], pool.path()).code(), Some(0), "{fix}");
    }
    // Without --copy-file the sizes still differ, and a message suggests it.
    fresh();
    let done = fsck(&["-s", "-f", "newest"], pool.path());
    assert!(done.code() == Some(4) && done.stdout.contains("--copy-file=true"), "{}", done.describe());
    rustix::fs::setxattr(file("b"), "user.mark", b"1", rustix::fs::XattrFlags::empty()).expect("setxattr");
    fresh();
    let done = fsck(&["-s", "-f", "newest", "--copy-file"], pool.path());
    assert_eq!(done.code(), Some(1), "{}", done.describe());
    assert_eq!(modes().map(|state| state.2), ["newest"; 3]);
    assert_eq!(fs::metadata(file("c")).unwrap().mtime(), 3000);
    assert_eq!(rustix::fs::getxattr(file("a"), "user.mark", &mut [0; 4][..]), Ok(1));
    assert_eq!(fs::read_to_string(pool.path().join("f")).unwrap(), "newest");
    for branch in ["a", "b", "c"] {
        assert_eq!(fs::read_dir(scratch.path(branch)).unwrap().count(), 1, "a temporary file is left behind");
    }
    pool.umount();
}

#[test]
fn copies_that_cannot_be_repaired_are_not_changed() {
    let (scratch, pool) = rig();
    fs::create_dir(scratch.path("a/kind")).expect("mkdir");
    put(scratch.path("b/kind"), "file", 0o644, 0, 1000);
    let done = fsck(&["--fix=newest", "--copy-file"], pool.path());
    assert!(done.code() == Some(4) && done.stdout.contains("different types"), "{}", done.describe());
    fs::remove_dir(scratch.path("a/kind")).expect("rmdir");
    put(scratch.path("a/kind"), "older", 0o600, 0, 500);
    fs::hard_link(scratch.path("a/kind"), scratch.path("a/other")).expect("link");
    let done = fsck(&["--fix=newest", "--copy-file"], pool.path());
    assert!(done.code() == Some(4) && done.stdout.contains("has other hard links"), "{}", done.describe());
    assert_eq!(state(&scratch.path("a/kind")).2, "older");
    fs::remove_file(scratch.path("a/other")).expect("rm");
    // Standard input gives no answer.
    let done = fsck(&["--fix=manual"], pool.path());
    assert!(done.code() == Some(4) && done.stdout.contains("Select correct file: "), "{}", done.describe());
    assert_eq!(state(&scratch.path("a/kind")).0, 0o600);
    let script = format!("echo 1 | {BINARY} fsck --fix=manual {}", pool.path().display());
    let done = finish(Command::new("sh").args(["-c", &script]));
    assert_eq!((done.code(), state(&scratch.path("a/kind")).0), (Some(1), 0o644), "{}", done.describe());
    pool.umount();
}

#[test]
fn a_full_disk_leaves_the_old_copy_whole() {
    let (small, large) = (LoopFs::tmpfs(MIB), LoopFs::tmpfs(16 * MIB));
    put(small.path().join("f"), "small", 0o644, 0, 1000);
    put(large.path().join("f"), &"x".repeat(4 << 20), 0o600, 0, 2000);
    let pool =
        Pool::builder(BINARY).branch(small.path()).branch(large.path()).option("minfreespace=0").mount();
    let done = fsck(&["--fix=largest", "--copy-file", "-s"], pool.path());
    assert!(done.code() == Some(4) && done.stdout.contains("No space left"), "{}", done.describe());
    assert_eq!(state(&small.path().join("f")), (0o644, 0, "small".into()));
    assert_eq!(fs::read_dir(small.path()).unwrap().count(), 1);
    pool.umount();
}

#[test]
fn unreadable_directories_are_reported_and_other_mounts_skipped() {
    let (scratch, pool) = rig();
    put(scratch.path("a/mine/f"), "1", 0o600, 0, 1);
    put(scratch.path("b/mine/f"), "1", 0o644, 0, 1);
    for branch in ["a", "b"] {
        fs::set_permissions(scratch.path(branch).join("mine"), fs::Permissions::from_mode(0o700))
            .expect("chmod");
    }
    let binary = scratch.path("bin").join("canopy");
    copy_program(BINARY, &binary);
    let done = finish(as_user(4242, 4242, &[], &binary).arg("fsck").arg(pool.path()));
    // A directory that fsck may not read is reported as unchecked.
    let told = format!(
        "canopy: {}: not checked, because you may not read it (root may)\n",
        pool.path().join("mine").display()
    );
    assert_eq!((done.code(), done.stderr.as_str()), (Some(8), told.as_str()), "{}", done.describe());
    assert!(done.stdout.contains("1 could not be checked"), "{}", done.stdout);
    assert_eq!(fsck(&[], pool.path()).code(), Some(4));
    // Another mount over the directory is not part of the pool.
    let point = pool.path().join("mine");
    rustix::mount::mount(
        "tmpfs",
        &point,
        "tmpfs",
        rustix::mount::MountFlags::empty(),
        None::<&std::ffi::CStr>,
    )
    .expect("mount");
    let done = fsck(&[], pool.path());
    rustix::mount::unmount(&point, rustix::mount::UnmountFlags::DETACH).expect("umount");
    assert_eq!(done.code(), Some(0), "{}", done.describe());
    pool.umount();
}

#[test]
fn fsck_mergerfs_accepts_the_arguments_of_scripts_and_fsck() {
    let (scratch, pool) = rig();
    put(scratch.path("a/f"), "1", 0o600, 0, 1);
    put(scratch.path("b/f"), "12", 0o644, 0, 2);
    let run = |args: &[&str]| finish(called(&scratch, "fsck.mergerfs").args(args));
    let point = pool.path().to_str().expect("UTF-8");
    // Under this name, differences do not change the exit status.
    let done = run(&[point]);
    assert!(done.code() == Some(0) && done.stdout.starts_with("* "), "{}", done.describe());
    assert!(!done.stdout.contains("checked"));
    for args in
        [&["--check-size", "true", "--fix", "newest", "--copy-file", "true", point][..], &["-s", point]]
    {
        assert_eq!(run(args).code(), Some(0));
    }
    assert_eq!(state(&scratch.path("a/f")), (0o644, 0, "12".into()));
    // As fsck(8) runs it at boot, with the pool mounted or not; branches are not block devices, so it succeeds.
    for args in [
        &["-a", "-A"][..],
        &["-a", "/mnt/a:/mnt/b"],
        &["-a", "-C0", "-T", "/nowhere"],
        &["-y", "-f", "/"],
        &["-p", point],
    ] {
        let done = run(args);
        assert!(done.code() == Some(0) && done.stderr.is_empty(), "{args:?}: {}", done.describe());
    }
    let path = format!("{}:{}", scratch.path("bin").display(), std::env::var("PATH").unwrap_or_default());
    let done = finish(Command::new("fsck").env("PATH", &path).args(["-t", "mergerfs", "-a", "/dev/null"]));
    assert!(done.code().is_some_and(|code| code & 4 == 0), "{}", done.describe());
    for (args, code, words) in [
        (&[][..], 16, "required"),
        (&["--fix", "oldest", point], 16, "oldest"),
        (&["/proc"], 8, "/proc is not on a pool"),
        (&["/nowhere"], 8, "/nowhere"),
    ] {
        let done = run(args);
        assert!(
            done.code() == Some(code) && done.stderr.contains(words) && done.stderr.lines().count() == 1,
            "{}",
            done.describe()
        );
    }
    assert!(run(&["--help"]).stdout.contains("Usage: fsck.mergerfs"));
    pool.umount();
}

#[test]
fn collect_info_writes_all_sections_to_a_private_file() {
    let (scratch, pool) = rig();
    let done = finish(Command::new(BINARY).arg("collect-info"));
    assert!(done.success(), "{}", done.describe());
    let point = pool.path().display();
    for words in [
        "=== canopy --version\ncanopy ",
        "=== uname -a\nLinux",
        "=== /proc/mounts\n",
        "=== canopy status\n",
        &format!("=== canopy get {point}\n"),
        "\ncategory.create=pfrd\n",
    ] {
        assert!(done.stdout.contains(words), "{words}\n{}", done.describe());
    }
    let file = scratch.path("report");
    let collect = |args: &[&str]| finish(Command::new(BINARY).arg("collect-info").args(args));
    let told = collect(&["-o", file.to_str().unwrap()]);
    assert!(told.success() && told.stdout.contains("  uname -a\n"), "{}", told.describe());
    assert!(fs::read_to_string(&file).unwrap().contains("=== uname -a\nLinux"));
    assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
    let again = collect(&["--output", file.to_str().unwrap()]);
    assert!(again.code() == Some(1) && again.stderr.contains("already exists"), "{}", again.describe());
    let nowhere = collect(&["-o", "/nowhere/report"]);
    assert_eq!(nowhere.stderr, "canopy: /nowhere/report cannot be written: No such file or directory\n");
    pool.umount();
}

#[test]
fn collect_info_replaces_a_symlink_at_its_default_file() {
    // A /tmp of its own, with a malicious symlink at the file's name.
    let script = r#"
        exec 3<"$1"
        mount -t tmpfs tmpfs /tmp
        echo untouched >/tmp/victim
        ln -s /tmp/victim /tmp/mergerfs.info.txt
        (exec -a mergerfs.collect-info /proc/self/fd/3) >/tmp/told
        cat /tmp/victim; stat -c %a,%F /tmp/mergerfs.info.txt; head -n 1 /tmp/mergerfs.info.txt; head -n 1 /tmp/told
    "#;
    let done = finish(Command::new("unshare").args(["-m", "bash", "-euc", script, "bash", BINARY]));
    let expected = "untouched\n600,regular file\n=== canopy --version\nwriting to /tmp/mergerfs.info.txt:\n";
    assert_eq!(done.stdout, expected, "{}", done.describe());
}
