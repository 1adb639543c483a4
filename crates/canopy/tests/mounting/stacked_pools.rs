//! A pool may be a branch of another pool, but never, directly or indirectly, of itself.

use canopy_testkit::cmd::{Finished, run_within};
use canopy_testkit::{PATIENCE, Pool, ScratchDir, proc};
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_bind, mount_change, unmount};
use std::fs;
use std::path::Path;
use std::process::Command;

const BINARY: &str = env!("CARGO_BIN_EXE_canopy");

fn canopy(args: &[&str]) -> Finished {
    run_within(Command::new(BINARY).args(args), PATIENCE)
}

/// Mounts a pool over one directory at another.
fn pool(scratch: &ScratchDir, branch: &str, point: &str) -> Pool {
    Pool::builder(BINARY)
        .branch(scratch.path(branch))
        .at(scratch.path(point))
        .option("minfreespace=0")
        .mount()
}

fn text(path: &Path) -> String {
    path.to_str().expect("UTF-8").to_owned()
}

/// Checks that neither the control file nor the command adds the branch, and that the command gives the reason.
#[track_caller]
fn cannot_add(pool: &Pool, branch: &Path, why: &str) {
    let value = format!("+>{}", branch.display());
    let control = pool.path().join(".mergerfs");
    let set = rustix::fs::setxattr(control, "user.mergerfs.branches", value.as_bytes(), XattrFlags::empty());
    assert_eq!(set, Err(Errno::INVAL), "{value}");
    assert!(pool.log().contains(why), "{}", pool.log());
    let done = canopy(&["set", &text(pool.path()), &format!("branches={value}")]);
    assert_eq!((done.code(), done.stderr.lines().count()), (Some(1), 1), "{}", done.describe());
    assert!(done.stderr.contains(why), "{}", done.describe());
    // The pool still works.
    fs::write(pool.path().join("after"), "x").expect("a write");
}

#[test]
fn cycles_of_pools_are_refused() {
    let scratch = ScratchDir::new("canopy-nested-", &["a", "b", "c", "p", "q", "r"]);
    let first = pool(&scratch, "a", "p");
    fs::create_dir(first.path().join("d")).expect("mkdir");
    // The second pool is on the first.
    let second = pool(&scratch, "p/d", "q");
    fs::write(second.path().join("f"), "text").expect("a write");
    fs::create_dir(second.path().join("in")).expect("mkdir");
    assert_eq!(fs::read(scratch.path("a/d/f")).expect("the branch"), b"text");
    // The third pool is on the second.
    let third = pool(&scratch, "q/in", "r");

    cannot_add(&first, &scratch.path("q/in"), "the pools would contain each other");
    cannot_add(&first, &scratch.path("r"), "the pools would contain each other");
    cannot_add(&second, &scratch.path("r"), "the pools would contain each other");
    // Branches that form no cycle are accepted.
    let done = canopy(&["set", &text(third.path()), &format!("branches=+>{}", text(&scratch.path("b")))]);
    assert!(done.success(), "{}", done.describe());
    let done = canopy(&["set", &text(third.path()), &format!("branches=+>{}", text(&scratch.path("p")))]);
    assert!(done.success(), "{}", done.describe());

    // A mount below a branch shows in all three pools.
    fs::create_dir_all(scratch.path("a/d/in/point")).expect("mkdir");
    let (branch, point) = (text(&scratch.path("r")), text(&scratch.path("a/d/in/point")));
    for foreground in [false, true] {
        let mut args = vec!["mount", "-o", "minfreespace=0"];
        args.extend(foreground.then_some("-f"));
        let done = canopy(&[&args[..], &[&branch, &point]].concat());
        assert_eq!((done.code(), done.stderr.lines().count()), (Some(1), 1), "{}", done.describe());
        for words in [&*branch, &*point, "the pools would contain each other", "leave out"] {
            assert!(done.stderr.contains(words), "{words}: {}", done.describe());
        }
        assert!(proc::mount_at(Path::new(&point)).is_none());
    }
    third.umount();
    second.umount();
    first.umount();
}

#[test]
fn a_bind_mount_of_the_pool_is_refused_as_its_branch() {
    let scratch = ScratchDir::new("canopy-nested-", &["a", "p", "bound", "deeper"]);
    let pool = pool(&scratch, "a", "p");
    fs::create_dir(pool.path().join("d")).expect("mkdir");
    let (bound, deeper) = (scratch.path("bound"), scratch.path("deeper"));
    for (from, to) in [(pool.path().to_owned(), &bound), (pool.path().join("d"), &deeper)] {
        mount_bind(from, to).expect("mount --bind");
        mount_change(to, MountPropagationFlags::PRIVATE).expect("mount --make-private");
        cannot_add(&pool, to, "is a bind mount of pool");
        unmount(to, UnmountFlags::empty()).expect("umount");
    }
    pool.umount();
}

/// The inner pool reserves the same hidden names, so what is made there is made in its place.
#[test]
fn a_pool_is_a_branch_beside_others() {
    let scratch = ScratchDir::new("canopy-nested-", &["a", "b", "c", "p", "q"]);
    let inner = pool(&scratch, "a", "p");
    let outer = Pool::builder(BINARY)
        .branch(scratch.path("p"))
        .branch(scratch.path("b"))
        .at(scratch.path("q"))
        .option("minfreespace=0,category.create=ff")
        .mount();
    // Directories that only the disk has, with owners and modes of their own.
    let deep = scratch.path("b/one/two");
    fs::create_dir_all(&deep).expect("mkdir");
    std::os::unix::fs::chown(&deep, Some(1000), Some(1000)).expect("chown");
    fs::set_permissions(&deep, std::os::unix::fs::PermissionsExt::from_mode(0o2770)).expect("chmod");
    for name in ["file", "dir", "link"] {
        let path = outer.path().join("one/two").join(name);
        match name {
            "file" => fs::write(&path, "text").expect("a write"),
            "dir" => fs::create_dir(&path).expect("mkdir"),
            _ => std::os::unix::fs::symlink("file", &path).expect("a symlink"),
        }
        assert!(
            scratch.path("a/one/two").join(name).symlink_metadata().is_ok(),
            "{name}: on the first branch"
        );
    }
    let meta = |path: &str| {
        let found = fs::metadata(scratch.path(path)).expect("a directory");
        use std::os::unix::fs::MetadataExt;
        (found.mode(), found.uid(), found.gid())
    };
    assert_eq!(meta("a/one/two"), meta("b/one/two"));
    fs::rename(outer.path().join("one"), outer.path().join("moved")).expect("a rename");
    assert_eq!(fs::read(scratch.path("a/moved/two/file")).expect("the file"), b"text");
    assert!(scratch.path("b/moved/two").exists());
    let left = canopy_testkit::cmd::run_within(
        Command::new("find").arg(scratch.path("a")).args(["-name", ".canopy*"]),
        PATIENCE,
    );
    assert_eq!(left.stdout, "", "nothing is left");
    outer.umount();
    inner.umount();
}
