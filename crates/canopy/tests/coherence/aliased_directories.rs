//! Directories that can be reached by two ways: what is changed by the one shows by the other.

use super::limits::{SOON, follows_in_time};
use super::rig::{builder, look, two_disks};

use canopy_testkit::cmd::{run, wait_until};
use canopy_testkit::{Kind, LoopFs, Submount, require_root};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

const KINDS: [Kind; 4] = [Kind::Tmpfs, Kind::Ext4, Kind::Xfs, Kind::Btrfs];

/// So that the pool knows which names the directory has, and not only the kernel.
fn known(dir: &Path) {
    for name in 0..100 {
        assert_eq!(look(&dir.join(format!("absent{name}"))), "entity not found");
    }
}

/// What is changed at `on`, by anybody, shows at `at`.
fn shows(at: &Path, on: &Path) {
    known(at);
    follows_in_time(&at.join("f"), &on.join("f"));
    fs::create_dir(on.join("d")).expect("mkdir");
    assert!(wait_until(SOON, || look(&at.join("d")) == look(&on.join("d"))));
    known(&at.join("d"));
    follows_in_time(&at.join("d/f"), &on.join("d/f"));
    fs::rename(on.join("d"), on.join("e")).expect("a rename");
    assert!(wait_until(SOON, || look(&at.join("e")) == look(&on.join("e"))));
    assert!(wait_until(SOON, || look(&at.join("d")) == "entity not found"));
    fs::remove_dir(on.join("e")).expect("rmdir");
    assert!(wait_until(SOON, || look(&at.join("e")) == "entity not found"));
}

#[test]
fn a_bind_mount_of_the_same_filesystem_below_a_branch() {
    require_root();
    for kind in [Kind::Tmpfs, Kind::Ext4] {
        let ground = LoopFs::new(kind, 64 << 20);
        let other = LoopFs::tmpfs(16 << 20);
        for dir in ["branch/early", "branch/late", "outside/dir"] {
            fs::create_dir_all(ground.path().join(dir)).expect("mkdir");
        }
        let on = |path: &str| ground.path().join(path);
        fs::write(on("outside/file"), "of the other place").expect("a file");
        fs::write(on("branch/file"), "").expect("a file");
        let early = Submount::bind(&on("outside/dir"), &on("branch/early"));
        let pool = builder("").branch(on("branch")).branch(other.path()).mount();
        shows(&pool.path().join("early"), &on("outside/dir"));
        // One that is made while the pool is mounted, of a directory and of a file.
        known(&pool.path().join("late"));
        let late = Submount::bind(&on("outside"), &on("branch/late"));
        assert!(wait_until(SOON, || look(&pool.path().join("late/dir")).starts_with("40")), "{kind:?}");
        shows(&pool.path().join("late/dir"), &on("outside/dir"));
        let file = Submount::bind(&on("outside/file"), &on("branch/file"));
        let read = || fs::read_to_string(pool.path().join("file")).unwrap_or_default();
        assert!(wait_until(SOON, || read() == "of the other place"), "{kind:?}");
        fs::set_permissions(on("outside/file"), fs::Permissions::from_mode(0o640)).expect("chmod");
        assert!(wait_until(SOON, || look(&pool.path().join("file")) == look(&on("outside/file"))));
        pool.drop_dentries();
        drop((early, late, file));
        known(&pool.path().join("late"));
        shows(&pool.path().join("late"), &on("branch/late"));
        pool.umount();
    }
}

/// The root of a branch is reached by another path, and so is what it holds.
#[test]
fn a_branch_that_is_a_bind_mount() {
    require_root();
    let ground = LoopFs::ext4(64 << 20);
    for dir in ["real/dir", "branch"] {
        fs::create_dir_all(ground.path().join(dir)).expect("mkdir");
    }
    let on = |path: &str| ground.path().join(path);
    let bound = Submount::bind(&on("real"), &on("branch"));
    let pool = builder("").branch(on("branch")).mount();
    shows(pool.path(), &on("real"));
    shows(&pool.path().join("dir"), &on("real/dir"));
    pool.umount();
    drop(bound);
}

/// Nothing is made in a place that the other branch does not show.
const EXISTING: &str = "category.create=epff";

/// What is made through the pool shows at both of its places.
fn both_ways(pool: &Path, inner: &str) {
    for dir in ["", "deep"] {
        let (short, long) = (pool.join(dir), pool.join(inner).join(dir));
        known(&short);
        known(&long);
        shows(&short, &long);
        shows(&long, &short);
    }
}

#[test]
fn a_branch_inside_another() {
    require_root();
    for kind in KINDS {
        let ground = LoopFs::new(kind, 512 << 20);
        fs::create_dir_all(ground.path().join("inner/deep")).expect("mkdir");
        let inner = ground.path().join("inner");
        let pool = builder(EXISTING).branch(&inner).branch(ground.path()).mount();
        both_ways(pool.path(), "inner");
        pool.umount();
        // New names in the root are made on the outer one, outside of the inner.
        let pool = builder(EXISTING).branch(ground.path()).branch(&inner).mount();
        known(&pool.path().join("inner"));
        shows(pool.path(), &pool.path().join("inner"));
        pool.umount();
    }
}

#[test]
fn a_branch_that_comes_to_lie_inside_another() {
    require_root();
    let ground = LoopFs::ext4(64 << 20);
    for dir in ["outer", "inner/deep"] {
        fs::create_dir_all(ground.path().join(dir)).expect("mkdir");
    }
    let on = |path: &str| ground.path().join(path);
    let pool = builder(EXISTING).branch(on("inner")).branch(on("outer")).forgive_descriptors().mount();
    known(pool.path());
    assert_eq!(look(&pool.path().join("moved")), "entity not found");
    fs::rename(on("inner"), on("outer/moved")).expect("a rename");
    assert!(wait_until(SOON, || look(&pool.path().join("moved/deep")).starts_with("40")));
    both_ways(pool.path(), "moved");
    pool.umount();
}

/// One directory under two branches, by a bind mount that is a branch.
#[test]
fn a_branch_that_is_a_bind_mount_of_what_is_inside_another() {
    require_root();
    let ground = LoopFs::xfs(512 << 20);
    for dir in ["outer/inner/deep", "bound"] {
        fs::create_dir_all(ground.path().join(dir)).expect("mkdir");
    }
    let on = |path: &str| ground.path().join(path);
    let bound = Submount::bind(&on("outer/inner"), &on("bound"));
    let pool = builder(EXISTING).branch(on("bound")).branch(on("outer")).mount();
    both_ways(pool.path(), "inner");
    pool.umount();
    drop(bound);
}

/// Subvolumes are on no list of mounts.
#[test]
fn subvolumes_below_a_branch() {
    let bed = two_disks(Kind::Btrfs, "");
    fs::create_dir(bed.on(0, "dir")).expect("mkdir");
    known(&bed.at("dir"));
    let subvolume = bed.on(0, "dir/sub");
    run("btrfs", ["subvolume".as_ref(), "create".as_ref(), subvolume.as_os_str()]);
    assert!(wait_until(SOON, || look(&bed.at("dir/sub")).starts_with("40")));
    shows(&bed.at("dir/sub"), &bed.on(0, "dir/sub"));
    let snapshot = bed.on(0, "dir/snap");
    fs::write(bed.on(0, "dir/sub/kept"), "x").expect("a file");
    run("btrfs", ["subvolume".as_ref(), "snapshot".as_ref(), subvolume.as_os_str(), snapshot.as_os_str()]);
    assert!(wait_until(SOON, || look(&bed.at("dir/snap/kept")) == look(&bed.on(0, "dir/snap/kept"))));
    shows(&bed.at("dir/snap"), &bed.on(0, "dir/snap"));
    bed.pool.drop_dentries();
    run("btrfs", ["subvolume".as_ref(), "delete".as_ref(), snapshot.as_os_str()]);
    assert!(wait_until(SOON, || look(&bed.at("dir/snap")) == "entity not found"));
    bed.pool.umount();
}

/// The branch is a subvolume: of a filesystem that is mounted whole, and mounted by itself.
#[test]
fn branches_that_are_subvolumes() {
    require_root();
    let mut ground = LoopFs::new(Kind::Btrfs, 512 << 20);
    let root = ground.path().to_owned();
    let on = |path: &str| root.join(path);
    for name in ["one", "two"] {
        run("btrfs", ["subvolume".as_ref(), "create".as_ref(), on(name).as_os_str()]);
        fs::create_dir_all(on(name).join("dir/deep")).expect("mkdir");
    }
    let below = on("one/dir/below");
    run("btrfs", ["subvolume".as_ref(), "create".as_ref(), below.as_os_str()]);
    let point = tempfile::tempdir().expect("a directory");
    let device = ground.device().expect("a device").to_owned();
    for whole in [true, false] {
        // By itself: nothing of the rest is mounted anywhere.
        let (one, alone) = match whole {
            true => (on("one"), None),
            false => {
                run(
                    "mount",
                    ["-o".as_ref(), "subvol=one".as_ref(), device.as_os_str(), point.path().as_os_str()],
                );
                ground.unmount_lazily();
                (point.path().to_owned(), Some(Mounted(point.path())))
            }
        };
        let pool = match whole {
            true => builder("").branch(&one).branch(on("two")).mount(),
            false => builder("").branch(&one).mount(),
        };
        for dir in ["", "dir/deep", "dir/below"] {
            shows(&pool.path().join(dir), &one.join(dir));
        }
        if whole {
            shows(&pool.path().join("dir"), &on("two/dir"));
        }
        // What is watched is remembered for long.
        pool.drop_dentries();
        let log = pool.umount();
        assert!(!log.contains("are not watched"), "{log}");
        drop(alone);
    }
}

struct Mounted<'p>(&'p Path);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        run("umount", [self.0.as_os_str()]);
    }
}
