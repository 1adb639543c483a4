//! `canopy fsck`: what other programs have left, and its manners.

use super::rig::{BINARY, PATIENCE, Rig, at_terminal, canopy, interrupted_at_terminal, json};
use canopy_testkit::cmd::{Finished, run_within};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, UNIX_EPOCH};

fn rig() -> Rig {
    Rig::new(BINARY, &["a", "b", "c"])
}

fn fsck(rig: &Rig, args: &[&str]) -> Finished {
    canopy([OsStr::new("fsck"), rig.pool.path().as_os_str()].into_iter().chain(args.iter().map(OsStr::new)))
}

fn put(path: PathBuf, content: &str, mode: u32, mtime: u64) {
    fs::create_dir_all(path.parent().expect("a directory")).expect("mkdir");
    fs::write(&path, content).expect("write");
    fs::File::open(&path)
        .expect("open")
        .set_modified(UNIX_EPOCH + Duration::from_secs(mtime))
        .expect("utimens");
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("chmod");
}

/// The mover replaces an old copy. Nothing may take it for the right one.
#[test]
fn copies_that_are_out_of_date_are_left_alone() {
    let rig = Rig::with(BINARY, &["a", "b", "c"], |builder| builder.option("rules=**=copies 1"));
    for (branch, content, mode, time, generation) in
        [("a", "new", 0o600, 1000, "8"), ("b", "old and large", 0o644, 2000, "7+")]
    {
        let path = rig.scratch.path(&format!("{branch}/f"));
        put(path.clone(), content, mode, time);
        rustix::fs::setxattr(
            &path,
            "user.canopy.generation",
            generation.as_bytes(),
            rustix::fs::XattrFlags::empty(),
        )
        .expect("setxattr");
    }
    let done = fsck(&rig, &["--fix", "largest", "--copy-file", "--check-size"]);
    assert_eq!(done.code(), Some(0), "{}", done.describe());
    let read = |branch| fs::read_to_string(rig.on(branch, "f")).expect("read");
    assert_eq!([read("a"), read("b")], ["new", "old and large"]);
    // Whoever may read the file learns it, without the socket.
    fs::set_permissions(rig.on("a", "f"), fs::Permissions::from_mode(0o644)).expect("chmod");
    let mut which = Command::new("setpriv");
    which
        .args(["--reuid=2000", "--regid=2000", "--clear-groups", BINARY, "which", "--json"])
        .arg(rig.at("f"));
    let told = json(&run_within(&mut which, PATIENCE));
    let old = |copy: usize| told["paths"][0]["copies"][copy]["old"].as_bool();
    assert_eq!([old(0), old(1)], [Some(false), Some(true)], "{told:#}");
}

#[test]
fn leftovers_of_other_programs_are_told_and_removed_on_request() {
    let rig = rig();
    let old = |path: &str, mode| put(rig.scratch.path(path), "x", mode, 1000);
    old("a/films/.a.mkv.aB3dE5", 0o600);
    old("b/films/.a.mkv.aB3dE5", 0o600);
    old("a/films/a.mkv", 0o644);
    old("b/.fuse_hidden0000000a00000001", 0o644);
    old("c/.aB3dE5fG7hI9jK1l", 0o200);
    old("c/.nfs000000000012ab3400000001", 0o644);
    // One that is still written.
    fs::write(rig.on("a", "films/.b.mkv.aB3dE5"), "x").expect("write");
    fs::set_permissions(rig.on("a", "films/.b.mkv.aB3dE5"), fs::Permissions::from_mode(0o600))
        .expect("chmod");
    let names = [".a.mkv.aB3dE5", ".fuse_hidden0000000a00000001", ".aB3dE5fG7hI9jK1l"];
    let done = fsck(&rig, &[]);
    assert_eq!(done.code(), Some(0), "{}", done.describe());
    let expected = [("rsync", names[0]), ("a FUSE filesystem", names[1]), ("mergerfs", names[2])];
    for (of, name) in expected.into_iter().chain([("an NFS client", ".nfs000000000012ab3400000001")]) {
        let found = done
            .stdout
            .lines()
            .any(|line| line.starts_with(&format!("left by {of}: ")) && line.contains(&format!("/{name} (")));
        assert!(found, "{name}: {}", done.describe());
    }
    assert!(done.stdout.contains("\nleft by crashes of other programs: 4 ("), "{}", done.describe());
    assert!(!done.stdout.contains(".b.mkv"), "{}", done.describe());
    let open = fs::File::open(rig.on("b", ".fuse_hidden0000000a00000001")).expect("open");
    let done = fsck(&rig, &["--remove-leftovers", "--json"]);
    let report: serde_json::Value = serde_json::from_str(&done.stdout).expect("JSON");
    let files = |part: &str| report[part]["files"].as_u64();
    assert_eq!((files("left"), files("removed"), done.code()), (Some(4), Some(2), Some(0)), "{report:#}");
    let left = report["leftovers"].as_array().expect("a list");
    let why = |name: &str| {
        let found = left.iter().find(|left| left["path"].as_str().is_some_and(|path| path.ends_with(name)));
        found.expect("a leftover")["why"].clone()
    };
    assert_eq!(why(names[1]), "open in a program");
    assert!(why("00001").is_string() && why(names[0]).is_null());
    drop(open);
    let exists = |path: &str| rig.scratch.path(path).exists();
    assert!(!exists("a/films/.a.mkv.aB3dE5") && !exists("b/films/.a.mkv.aB3dE5") && exists("a/films/a.mkv"));
    assert!(exists("a/films/.b.mkv.aB3dE5") && exists("b/.fuse_hidden0000000a00000001"));
    assert!(!rig.pool.path().join(names[2]).exists());
    // Not under the old name.
    let link = rig.scratch.path("home").join("fsck.mergerfs");
    std::os::unix::fs::symlink(BINARY, &link).expect("a link");
    let done = run_within(Command::new(link).arg(rig.pool.path()), PATIENCE);
    assert!(done.success() && !done.stdout.contains("left by"), "{}", done.describe());
    rig.pool.umount();
}

/// Ctrl-C while it copies a file, and while it asks.
#[test]
fn ctrl_c_ends_it_without_harm() {
    let rig = rig();
    put(rig.on("a", "f"), &"o".repeat(3 << 20), 0o600, 1000);
    put(rig.on("b", "f"), &"n".repeat(4 << 20), 0o600, 2000);
    let point = rig.pool.path().display();
    let line = format!("fsck {point} -s --fix newest --copy-file --bwlimit 1K");
    let (status, shown) = interrupted_at_terminal(&line, "* ");
    assert_eq!(status, Some(32), "{shown}");
    assert!(shown.contains("not repaired: ") && shown.contains("Nothing is lost"), "{shown}");
    assert_eq!(fs::read_to_string(rig.on("a", "f")).expect("text"), "o".repeat(3 << 20));
    assert_eq!(fs::read_dir(rig.scratch.path("a")).unwrap().count(), 1, "a temporary file is left behind");
    let (status, shown) = interrupted_at_terminal(&format!("fsck {point} -s --fix manual"), "correct file: ");
    assert_eq!(status, Some(32), "{shown}");
    // On a terminal, it shows how far it is.
    for file in 0..3000 {
        fs::write(rig.scratch.path("c").join(format!("f{file}")), "x").expect("write");
    }
    let (status, shown) = at_terminal(&format!("fsck {point} -s --fix newest --copy-file --bwlimit 8M"));
    assert_eq!(status, Some(1), "{shown}");
    assert!(
        shown.contains(" checked ") && shown.contains("/s ") && shown.contains("repaired from 1"),
        "{shown}"
    );
    assert_eq!(fs::read_to_string(rig.on("a", "f")).expect("text"), "n".repeat(4 << 20));
    rig.pool.umount();
}
