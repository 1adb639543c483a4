//! `canopy drain`.

use super::rig::{BINARY, PATIENCE, answering, disks, json, on_pool, put, unfinished};
use canopy_testkit::cmd::{run_within, wait_until, wait_within};
use canopy_testkit::{CliBed, Fields, PoolBed, Submount, Tree};
use rustix::fs::XattrFlags;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::process::{Command, Stdio};

const MIB: usize = 1 << 20;

/// Files, links, symlinks and directories with attributes of their own on the first branch.
fn populated() -> PoolBed {
    let bed = disks("");
    for file in 0..8 {
        put(&bed, 0, &format!("d/sub{}/f{file}", file % 2), vec![file; 2 * MIB]);
    }
    fs::hard_link(bed.on(0, "d/sub0/f0"), bed.on(0, "d/link")).expect("link");
    symlink("sub0/f0", bed.on(0, "d/symlink")).expect("symlink");
    fs::create_dir_all(bed.on(0, "d/empty/within")).expect("mkdir");
    put(&bed, 1, "d/shared/there", "x");
    fs::create_dir_all(bed.on(0, "d/shared")).expect("mkdir");
    for (path, mode, uid) in [("d/empty", 0o1770, 5), ("d/empty/within", 0o700, 6), ("d/shared", 0o751, 7)] {
        chown(bed.on(0, path), Some(uid), Some(uid)).expect("chown");
        fs::set_permissions(bed.on(0, path), fs::Permissions::from_mode(mode)).expect("chmod");
        rustix::fs::setxattr(bed.on(0, path), "user.x", path.as_bytes(), XattrFlags::empty()).expect("xattr");
    }
    bed
}

fn tree(bed: &PoolBed) -> Tree {
    assert_eq!(unfinished(bed), 0);
    Tree::capture_with(bed.pool.path(), Fields::all()).without("")
}

fn mode(bed: &PoolBed) -> String {
    let branches = bed.pool.get("branches");
    branches.split(':').next().and_then(|first| first.rsplit('=').next()).unwrap_or_default().to_owned()
}

#[test]
fn drain_empties_a_branch_with_its_directories() {
    let bed = populated();
    let before = tree(&bed);
    let branch = bed.on(0, "");
    let dry = json(&on_pool(&bed, "drain", [branch.as_os_str(), "--dry-run".as_ref(), "--json".as_ref()]));
    assert_eq!(dry["steps"].as_array().map(Vec::len), Some(9), "{dry}");
    assert_eq!(mode(&bed), "RW");
    let done = on_pool(&bed, "drain", [&branch]);
    assert!(done.success(), "{}", done.describe());
    assert!(done.stdout.contains("moved: 9 files (16M); planned: 9 files (16M)\n"), "{}", done.stdout);
    assert!(done.stdout.contains("; to remove it from the pool: canopy remove /"), "{}", done.stdout);
    assert_eq!(fs::read_dir(&branch).expect("a branch").count(), 0);
    assert_eq!(mode(&bed), "RW", "it has its mode back");
    before.assert_same(&tree(&bed));
    // Nothing is left to do.
    let again = json(&on_pool(&bed, "drain", [branch.as_os_str(), "--json".as_ref()]));
    assert_eq!(again["planned"]["files"], 0, "{again}");
}

#[test]
fn a_drained_branch_can_be_removed_and_unmounted() {
    let mut bed = populated();
    let before = tree(&bed);
    let _ = rustix::fs::statvfs(bed.pool.path());
    let branch = bed.on(0, "");
    let done = on_pool(&bed, "drain", [branch.as_os_str(), "--remove".as_ref()]);
    assert!(done.success() && done.stdout.contains("is no longer a branch of"), "{}", done.describe());
    assert_eq!(bed.pool.get("branches").split(':').count(), 2);
    before.assert_same(&tree(&bed));
    assert!(
        wait_until(PATIENCE, || {
            bed.pool.branch_descriptors().iter().all(|path| !path.starts_with(bed.disks[0].path()))
        }),
        "{:?}",
        bed.pool.branch_descriptors()
    );
    bed.disks[0].unmount();
    before.assert_same(&tree(&bed));
    bed.disks[0].mount_again();
}

/// The config file loses the branch, too.
#[test]
fn removing_changes_the_config_file() {
    let bed = CliBed::new(BINARY, "canopy-drain-", &["a", "b", "p", "etc"]).with_config_dir("etc");
    let [a, b, p] = ["a", "b", "p"].map(|name| bed.path(name).display().to_string());
    fs::write(
        bed.path("etc/films.toml"),
        format!("branches = [\"{a}\", \"{b}\"]\nmountpoint = \"{p}\"\nminfreespace = \"0\"\n"),
    )
    .expect("a config file");
    fs::write(bed.path("a/f"), "content").expect("a file");
    let done = bed.run("mount films");
    assert!(done.success(), "{}", done.describe());
    let done = run_within(&mut bed.command(&format!("drain films {a} --remove")), PATIENCE);
    let text = fs::read_to_string(bed.path("etc/films.toml")).expect("a config file");
    let content = fs::read_to_string(bed.path("p/f"));
    bed.umount("p");
    assert!(done.success(), "{}", done.describe());
    assert!(!text.contains(&a) && text.contains(&b), "{text}");
    assert_eq!(content.expect("a file"), "content");
    assert!(bed.path("b/f").exists() && !bed.path("a/f").exists());
}

#[test]
fn leftovers_are_told_and_nothing_is_removed() {
    let bed = populated();
    put(&bed, 0, "d/twice", "one");
    put(&bed, 1, "d/twice", "two");
    let writer = fs::OpenOptions::new().append(true).open(bed.at("d/sub1/f1")).expect("open");
    let branch = bed.on(0, "");
    let done = on_pool(&bed, "drain", [branch.as_os_str(), "--remove".as_ref()]);
    assert_eq!(done.code(), Some(1), "{}", done.describe());
    assert!(done.stdout.contains("/d/twice (several branches hold a copy)"), "{}", done.stdout);
    assert!(done.stdout.contains("/d/sub1/f1 (open for writing)"), "{}", done.stdout);
    assert_eq!(done.stdout.matches("\nstays: ").count(), 2, "{}", done.stdout);
    assert!(done.stdout.contains("; stay: 1 file (2.0M); planned: 9 files (16M)"), "{}", done.stdout);
    assert_eq!(bed.pool.get("branches").split(':').count(), 3);
    assert_eq!(mode(&bed), "RW");
    drop(writer);
}

/// A subvolume or another mount below a branch is told once, whatever it holds.
#[test]
fn what_is_on_another_filesystem_below_a_branch_is_told_once() {
    let bed = disks("");
    put(&bed, 0, "d/moves", "x");
    fs::create_dir_all(bed.on(0, "d/nested")).expect("mkdir");
    let nested = Submount::tmpfs(bed.on(0, "d/nested"));
    for file in 0..3 {
        fs::create_dir_all(bed.on(0, "d/nested/deeper")).expect("mkdir");
        fs::write(bed.on(0, &format!("d/nested/deeper/f{file}")), "x").expect("a file");
    }
    let branch = bed.on(0, "");
    let done = on_pool(&bed, "drain", [&branch]);
    assert_eq!(done.code(), Some(1), "{}", done.describe());
    let told = format!("stays: {} (a btrfs subvolume or another mount", bed.on(0, "d/nested").display());
    assert!(done.stdout.contains(&told), "{}", done.stdout);
    assert_eq!(done.stdout.matches("stays: ").count(), 1, "{}", done.stdout);
    assert!(!bed.on(0, "d/moves").exists() && bed.on(0, "d/nested/deeper/f2").exists());
    drop(nested);
}

#[test]
fn a_stopped_drain_gives_the_branch_its_mode_back_and_goes_on() {
    let bed = populated();
    // A new file comes and goes meanwhile.
    let capture = || Tree::capture_with(bed.pool.path(), Fields::without_dir_times());
    let before = capture();
    let branch = bed.on(0, "");
    let mut command = Command::new(BINARY);
    command.arg("drain").arg(bed.pool.path()).arg(&branch).args(["--bwlimit", "1K"]).stdin(Stdio::null());
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("canopy");
    // The first file moves at once, and then the limit holds.
    let file = |number: usize| bed.on(0, &format!("d/sub{}/f{number}", number % 2));
    let begun = || (0..8).any(|number| fs::metadata(file(number)).is_err());
    assert!(wait_until(PATIENCE, begun), "no file has moved");
    assert_eq!(mode(&bed), "NC");
    fs::write(bed.at("d/new"), "elsewhere").expect("a new file");
    assert!(!bed.on(0, "d/new").exists());
    fs::remove_file(bed.at("d/new")).expect("remove");
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::INT)
        .expect("kill");
    let status = wait_within(&mut child, PATIENCE);
    if status.is_none() {
        child.kill().expect("kill");
        child.wait().expect("wait");
    }
    assert_eq!(status.and_then(|status| status.code()), Some(1));
    assert_eq!(mode(&bed), "RW");
    let done = on_pool(&bed, "drain", [&branch]);
    assert!(done.success(), "{}", done.describe());
    assert_eq!(fs::read_dir(&branch).expect("a branch").count(), 0);
    assert_eq!(unfinished(&bed), 0);
    before.assert_same(&capture());
}

#[test]
fn a_branch_that_cannot_be_drained_says_why() {
    let bed = disks("");
    let done = on_pool(&bed, "drain", ["/none"]);
    assert!(done.stderr.contains("/none is not a branch of pool"), "{}", done.describe());
    let [a, b] = [0, 1].map(|branch| bed.on(branch, "").display().to_string());
    for (list, why) in [
        (format!("{a}=RO:{b}"), "its mode is RO"),
        (format!("{a}:{b}=NC"), "no other branch takes files"),
        (a.clone(), "no other branch takes files"),
    ] {
        bed.pool.set("branches", &list);
        let done = on_pool(&bed, "drain", [&a]);
        assert!(done.code() == Some(1) && done.stderr.contains(why), "{list}: {}", done.describe());
    }
}

/// At a terminal, a line shows how far it has got, and the branch is removed if the user says so.
#[test]
fn a_terminal_shows_progress_and_is_asked() {
    for (answer, branches) in [("n", 3), ("y", 2)] {
        let bed = populated();
        let script = format!("exec {BINARY} drain {} {}", bed.pool.path().display(), bed.on(0, "").display());
        let mut command = Command::new("script");
        command.args(["-qec", &script, "/dev/null"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("script");
        // Kept open: at its end, the terminal would hang up.
        let mut typed = child.stdin.take().expect("stdin");
        // The first question is whether files move.
        write!(typed, "y\n{answer}\n").expect("write");
        let status = wait_within(&mut child, 2 * PATIENCE);
        if status.is_none() {
            child.kill().expect("kill");
        }
        let output = child.wait_with_output().expect("output");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(status.is_some_and(|status| status.success()), "{text}");
        assert!(text.contains("/s ") && text.contains(" left ") && text.contains("MiB"), "{text}");
        assert!(text.contains("and its config file? [y/N] "), "{text}");
        assert!(!text.contains("/d/sub0/f2: "), "no line for each file: {text}");
        assert_eq!(bed.pool.get("branches").split(':').count(), branches, "{text}");
    }
    // One that is empty is asked for as well, whatever the options.
    let bed = disks("");
    let line = format!("drain {} {} --remove", bed.pool.path().display(), bed.on(0, "").display());
    let (_, shown) = answering(&line, &[("and its config file? [y/N]", "n\n")]);
    assert_eq!(bed.pool.get("branches").split(':').count(), 3, "{shown}");
}

/// What SnapRAID, the filesystem and the users of the pool keep on a disk stays there, whatever moves files.
#[test]
fn files_of_a_disk_stay_on_it() {
    let bed = disks("keep=*.local|/private");
    let kept = [
        ".snapraid.content",
        "snapraid.content.lock",
        "snapraid.parity",
        ".Trash-1000/files/old",
        "swapfile",
        "d/here.local",
        "private/key",
    ];
    for path in kept {
        put(&bed, 0, path, vec![1; MIB]);
    }
    // SnapRAID writes the same content file to several disks, which are no surplus copies.
    put(&bed, 1, ".snapraid.content", vec![1; MIB]);
    for file in 0..5 {
        put(&bed, 0, &format!("films/f{file}"), vec![file; 4 * MIB]);
    }
    let (branch, pool) = (bed.on(0, ""), bed.pool.path().to_owned());
    let there = |path: &str| bed.on(0, path).exists();
    assert!(on_pool(&bed, "balance", ["--to", "1%"]).success());
    assert!(on_pool(&bed, "dedup", ["--yes"]).success());
    let moved = on_pool(
        &bed,
        "move",
        [pool.join("swapfile").as_os_str(), "--to".as_ref(), bed.on(1, "").as_os_str()],
    );
    assert!(moved.stdout.contains("swapfile (belongs to its disk)"), "{}", moved.describe());
    let done = on_pool(&bed, "drain", [&branch]);
    assert!(done.success(), "{}", done.describe());
    assert!(
        done.stdout.contains("holds only what belongs to its disk; to remove it from the pool"),
        "{}",
        done.stdout
    );
    for path in kept {
        assert!(there(path), "{path}: {}", done.stdout);
        let first = path.split('/').next().unwrap();
        assert!(
            path.starts_with("d/") || done.stdout.contains(&format!("/{first} (belongs to its disk)")),
            "{path}: {}",
            done.stdout
        );
    }
    assert!(bed.on(1, ".snapraid.content").exists() && !there("films/f0"), "{}", done.stdout);
    let again = json(&on_pool(&bed, "drain", [branch.as_os_str(), "--json".as_ref()]));
    assert_eq!(again["belongs_to_disk"].as_array().map(Vec::len), Some(kept.len()), "{again}");
    assert_eq!(on_pool(&bed, "set", ["keep="]).stderr, "");
}
