//! Directories reachable by two paths: a change made through one path shows through the other.

use super::limits::{PATIENCE, assert_changes_follow};
use super::rig::{builder, look, two_disks};

use canopy_testkit::cmd::{run, wait_until};
use canopy_testkit::{Kind, LoopFs, Submount, require_root};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

const KINDS: [Kind; 4] = [Kind::Tmpfs, Kind::Ext4, Kind::Xfs, Kind::Btrfs];

/// Looks up enough missing names that the pool itself, not only the kernel, caches which names the directory has.
fn cache_missing_names(dir: &Path) {
    for name in 0..100 {
        assert_eq!(look(&dir.join(format!("absent{name}"))), "entity not found");
    }
}

/// Asserts that changes made at `on` show at `at`.
fn assert_changes_show(at: &Path, on: &Path) {
    cache_missing_names(at);
    assert_changes_follow(&at.join("f"), &on.join("f"));
    fs::create_dir(on.join("d")).expect("mkdir");
    assert!(wait_until(PATIENCE, || look(&at.join("d")) == look(&on.join("d"))));
    cache_missing_names(&at.join("d"));
    assert_changes_follow(&at.join("d/f"), &on.join("d/f"));
    fs::rename(on.join("d"), on.join("e")).expect("a rename");
    assert!(wait_until(PATIENCE, || look(&at.join("e")) == look(&on.join("e"))));
    assert!(wait_until(PATIENCE, || look(&at.join("d")) == "entity not found"));
    fs::remove_dir(on.join("e")).expect("rmdir");
    assert!(wait_until(PATIENCE, || look(&at.join("e")) == "entity not found"));
}

#[test]
fn changes_show_through_a_bind_mount_below_a_branch() {
    require_root();
    for kind in [Kind::Tmpfs, Kind::Ext4] {
        let disk = LoopFs::new(kind, 64 << 20);
        let other = LoopFs::tmpfs(16 << 20);
        for dir in ["branch/early", "branch/late", "outside/dir"] {
            fs::create_dir_all(disk.path().join(dir)).expect("mkdir");
        }
        let on = |path: &str| disk.path().join(path);
        fs::write(on("outside/file"), "outside").expect("a file");
        fs::write(on("branch/file"), "").expect("a file");
        let early = Submount::bind(&on("outside/dir"), &on("branch/early"));
        let pool = builder("").branch(on("branch")).branch(other.path()).mount();
        assert_changes_show(&pool.path().join("early"), &on("outside/dir"));
        // Bind mounts of a directory and of a file, made while the pool is mounted.
        cache_missing_names(&pool.path().join("late"));
        let late = Submount::bind(&on("outside"), &on("branch/late"));
        assert!(wait_until(PATIENCE, || look(&pool.path().join("late/dir")).starts_with("40")), "{kind:?}");
        assert_changes_show(&pool.path().join("late/dir"), &on("outside/dir"));
        let file = Submount::bind(&on("outside/file"), &on("branch/file"));
        let read = || fs::read_to_string(pool.path().join("file")).unwrap_or_default();
        assert!(wait_until(PATIENCE, || read() == "outside"), "{kind:?}");
        fs::set_permissions(on("outside/file"), fs::Permissions::from_mode(0o640)).expect("chmod");
        assert!(wait_until(PATIENCE, || look(&pool.path().join("file")) == look(&on("outside/file"))));
        pool.drop_dentries();
        drop((early, late, file));
        cache_missing_names(&pool.path().join("late"));
        assert_changes_show(&pool.path().join("late"), &on("branch/late"));
        pool.umount();
    }
}

/// The branch root, and thus everything in it, is also reachable by another path.
#[test]
fn changes_show_on_a_branch_that_is_a_bind_mount() {
    require_root();
    let disk = LoopFs::ext4(64 << 20);
    for dir in ["real/dir", "branch"] {
        fs::create_dir_all(disk.path().join(dir)).expect("mkdir");
    }
    let on = |path: &str| disk.path().join(path);
    let bound = Submount::bind(&on("real"), &on("branch"));
    let pool = builder("").branch(on("branch")).mount();
    assert_changes_show(pool.path(), &on("real"));
    assert_changes_show(&pool.path().join("dir"), &on("real/dir"));
    pool.umount();
    drop(bound);
}

/// Creates entries only where the directory already exists, so that they show through both branches.
const EXISTING: &str = "category.create=epff";

/// Asserts that changes through either of a directory's two paths in the pool show at the other.
fn assert_both_paths_agree(pool: &Path, inner: &str) {
    for dir in ["", "deep"] {
        let (short, long) = (pool.join(dir), pool.join(inner).join(dir));
        cache_missing_names(&short);
        cache_missing_names(&long);
        assert_changes_show(&short, &long);
        assert_changes_show(&long, &short);
    }
}

#[test]
fn changes_show_at_both_paths_of_a_branch_inside_another() {
    require_root();
    for kind in KINDS {
        let disk = LoopFs::new(kind, 512 << 20);
        fs::create_dir_all(disk.path().join("inner/deep")).expect("mkdir");
        let inner = disk.path().join("inner");
        let pool = builder(EXISTING).branch(&inner).branch(disk.path()).mount();
        assert_both_paths_agree(pool.path(), "inner");
        pool.umount();
        // New names in the root are created on the outer branch, outside the inner one.
        let pool = builder(EXISTING).branch(disk.path()).branch(&inner).mount();
        cache_missing_names(&pool.path().join("inner"));
        assert_changes_show(pool.path(), &pool.path().join("inner"));
        pool.umount();
    }
}

#[test]
fn changes_show_at_both_paths_of_a_branch_moved_into_another() {
    require_root();
    let disk = LoopFs::ext4(64 << 20);
    for dir in ["outer", "inner/deep"] {
        fs::create_dir_all(disk.path().join(dir)).expect("mkdir");
    }
    let on = |path: &str| disk.path().join(path);
    let pool = builder(EXISTING).branch(on("inner")).branch(on("outer")).forgive_descriptors().mount();
    cache_missing_names(pool.path());
    assert_eq!(look(&pool.path().join("moved")), "entity not found");
    fs::rename(on("inner"), on("outer/moved")).expect("a rename");
    assert!(wait_until(PATIENCE, || look(&pool.path().join("moved/deep")).starts_with("40")));
    assert_both_paths_agree(pool.path(), "moved");
    pool.umount();
}

/// One directory is in two branches, because one branch is a bind mount of it.
#[test]
fn changes_show_at_both_paths_of_a_directory_bound_from_another_branch() {
    require_root();
    let disk = LoopFs::xfs(512 << 20);
    for dir in ["outer/inner/deep", "bound"] {
        fs::create_dir_all(disk.path().join(dir)).expect("mkdir");
    }
    let on = |path: &str| disk.path().join(path);
    let bound = Submount::bind(&on("outer/inner"), &on("bound"));
    let pool = builder(EXISTING).branch(on("bound")).branch(on("outer")).mount();
    assert_both_paths_agree(pool.path(), "inner");
    pool.umount();
    drop(bound);
}

/// Subvolumes do not appear in mount tables.
#[test]
fn changes_show_in_subvolumes_below_a_branch() {
    let bed = two_disks(Kind::Btrfs, "");
    fs::create_dir(bed.on(0, "dir")).expect("mkdir");
    cache_missing_names(&bed.at("dir"));
    let subvolume = bed.on(0, "dir/sub");
    run("btrfs", ["subvolume".as_ref(), "create".as_ref(), subvolume.as_os_str()]);
    assert!(wait_until(PATIENCE, || look(&bed.at("dir/sub")).starts_with("40")));
    assert_changes_show(&bed.at("dir/sub"), &bed.on(0, "dir/sub"));
    let snapshot = bed.on(0, "dir/snap");
    fs::write(bed.on(0, "dir/sub/kept"), "x").expect("a file");
    run("btrfs", ["subvolume".as_ref(), "snapshot".as_ref(), subvolume.as_os_str(), snapshot.as_os_str()]);
    assert!(wait_until(PATIENCE, || look(&bed.at("dir/snap/kept")) == look(&bed.on(0, "dir/snap/kept"))));
    assert_changes_show(&bed.at("dir/snap"), &bed.on(0, "dir/snap"));
    bed.pool.drop_dentries();
    run("btrfs", ["subvolume".as_ref(), "delete".as_ref(), snapshot.as_os_str()]);
    assert!(wait_until(PATIENCE, || look(&bed.at("dir/snap")) == "entity not found"));
    bed.pool.umount();
}

/// The branch is a subvolume, once of a filesystem that is mounted as a whole and once mounted on its own.
#[test]
fn changes_show_on_branches_that_are_subvolumes() {
    require_root();
    let mut disk = LoopFs::new(Kind::Btrfs, 512 << 20);
    let root = disk.path().to_owned();
    let on = |path: &str| root.join(path);
    for name in ["one", "two"] {
        run("btrfs", ["subvolume".as_ref(), "create".as_ref(), on(name).as_os_str()]);
        fs::create_dir_all(on(name).join("dir/deep")).expect("mkdir");
    }
    let below = on("one/dir/below");
    run("btrfs", ["subvolume".as_ref(), "create".as_ref(), below.as_os_str()]);
    let point = tempfile::tempdir().expect("a directory");
    let device = disk.device().expect("a device").to_owned();
    for whole in [true, false] {
        // On its own: the rest of the filesystem is not mounted anywhere.
        let (one, own_mount) = if whole {
            (on("one"), None)
        } else {
            run(
                "mount",
                ["-o".as_ref(), "subvol=one".as_ref(), device.as_os_str(), point.path().as_os_str()],
            );
            disk.unmount_lazily();
            (point.path().to_owned(), Some(Mounted(point.path())))
        };
        let pool = if whole {
            builder("").branch(&one).branch(on("two")).mount()
        } else {
            builder("").branch(&one).mount()
        };
        for dir in ["", "dir/deep", "dir/below"] {
            assert_changes_show(&pool.path().join(dir), &one.join(dir));
        }
        if whole {
            assert_changes_show(&pool.path().join("dir"), &on("two/dir"));
        }
        // Watched dentries are cached for a long time and would keep the branch busy.
        pool.drop_dentries();
        let log = pool.umount();
        assert!(!log.contains("are not watched"), "{log}");
        drop(own_mount);
    }
}

struct Mounted<'p>(&'p Path);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        run("umount", [self.0.as_os_str()]);
    }
}
