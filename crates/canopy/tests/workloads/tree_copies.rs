//! Whole trees copied into a pool and out of it with cp, rsync and tar.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use canopy_testkit::tree::Fields;
use canopy_testkit::{Kind, Pool, Tree, TreeSpec, populate};

use super::rig::{Disks, plain, shell, shell_ok};

/// The number of files in a tree of more than twenty thousand names.
const FILES: usize = 18_500;

/// Generates the tree of a seed at `root/tree`.
fn source(root: &Path, spec: &TreeSpec) -> Tree {
    let tree = root.join("tree");
    fs::create_dir(&tree).unwrap();
    populate(&tree, spec);
    // rsync compares times in whole seconds, and keeps the time of a directory that it creates within the same second.
    let past = SystemTime::UNIX_EPOCH + Duration::new(1_500_000_000, 123_456_789);
    fs::File::open(&tree).unwrap().set_modified(past).unwrap();
    Tree::capture_with(&tree, Fields { root: true, ..Fields::default() })
}

fn spec(seed: u64, files: usize) -> TreeSpec {
    // Each comparison of trees reads sparse files at full length, so there are few.
    TreeSpec { sparse: 1 + (10_000 / files.max(1)) as u32, max_file: 128 << 10, ..TreeSpec::new(seed, files) }
}

fn seen(root: &Path) -> Tree {
    Tree::capture_with(root.join("tree"), Fields { root: true, ..Fields::default() })
}

/// Checks that the copies kept their holes: no file uses many more blocks than its original.
fn assert_sparse(original: &Path, copy: &Path, tree: &Tree) {
    let mut holes = 0;
    for path in tree.entries.keys() {
        let at = |root: &Path| root.join("tree").join(OsStr::from_bytes(path));
        let wanted = fs::symlink_metadata(at(original)).unwrap();
        if !wanted.is_file() || wanted.size() < 1 << 20 {
            continue;
        }
        let found = fs::symlink_metadata(at(copy)).unwrap();
        holes += 1;
        assert!(
            found.blocks() * 512 <= wanted.blocks() * 512 + (1 << 20),
            "{}: {} blocks of 512 bytes, {} in the original",
            path.escape_ascii(),
            found.blocks(),
            wanted.blocks()
        );
    }
    assert!(holes > 5, "only {holes} sparse files");
}

/// Copies a tree into a pool and compares it; then compares the branches after an unmount, compares again after a new
/// mount, and removes the tree.
#[track_caller]
fn check_copy(kinds: &[Kind], options: &str, spec: &TreeSpec, copy: &str) {
    let original = plain();
    let wanted = source(original.path(), spec);
    let from = original.path().as_os_str();
    let disks = Disks::new(kinds);
    let pool = disks.pool(options);
    shell_ok(pool.path(), copy, &[from]);
    wanted.assert_same(&seen(pool.path()));
    assert_sparse(original.path(), pool.path(), &wanted);
    assert_no_difference(&pool, original.path());
    pool.umount();

    let spread = disks.spread();
    let least = wanted.len() / (kinds.len() * 4);
    assert!(spread.iter().all(|&count| count > least), "the branches hold {spread:?} names");
    let held = disks.union();
    let mut below = held.entries.into_iter();
    let (top, _) = below.next().unwrap();
    assert_eq!(top, b"tree");
    let held = Tree {
        entries: below.map(|(path, entry)| (path[b"tree/".len()..].to_vec(), unprefixed(entry))).collect(),
    };
    wanted.clone().without(b"").assert_same(&held);

    let pool = disks.pool(options);
    wanted.assert_same(&seen(pool.path()));
    assert_no_difference(&pool, original.path());
    shell_ok(pool.path(), "rm -rf tree", &[]);
    assert_eq!(fs::read_dir(pool.path()).unwrap().count(), 0);
    pool.umount();
    assert_eq!(disks.spread(), vec![0; kinds.len()], "rm -rf left something on the branches");
}

/// Makes the names of hard links relative to `tree`, because a capture records them relative to its root.
fn unprefixed(mut entry: canopy_testkit::tree::Entry) -> canopy_testkit::tree::Entry {
    entry.group = entry.group.map(|name| name[b"tree/".len()..].to_vec());
    entry
}

#[track_caller]
fn assert_no_difference(pool: &Pool, original: &Path) {
    let script = "rsync -aHAXn --delete -i \"$1/tree/\" tree/";
    let done = shell(pool.path(), script, &[original.as_os_str()]);
    assert!(done.success() && done.stdout.is_empty(), "rsync finds work to do: {}", done.describe());
}

#[test]
fn cp_copies_a_large_tree_onto_two_branches() {
    check_copy(&[Kind::Ext4, Kind::Ext4], "", &spec(7, FILES), "cp -a \"$1/tree\" .");
}

#[test]
fn rsync_copies_a_large_tree_onto_two_branches() {
    let rsync = "rsync -aHAX --sparse \"$1/tree\" .";
    check_copy(&[Kind::Ext4, Kind::Ext4], "", &spec(8, FILES), rsync);
}

#[test]
fn rsync_copies_onto_four_kinds_of_branches() {
    let kinds = [Kind::Ext4, Kind::Xfs, Kind::Btrfs, Kind::Tmpfs];
    let rsync = "rsync -aHAX --sparse --inplace \"$1/tree\" .";
    check_copy(&kinds, "category.create=rand,posix-acl=true", &spec(9, 2500), rsync);
}

#[test]
fn cp_copies_onto_xfs_and_btrfs_through_the_daemon() {
    let options = "category.create=rand,passthrough.io=off,cache.files=off";
    check_copy(&[Kind::Xfs, Kind::Btrfs], options, &spec(10, 2500), "cp -a \"$1/tree\" .");
}

#[test]
fn tar_packs_and_unpacks() {
    let original = plain();
    // tar has no form for sockets.
    let wanted = source(original.path(), &TreeSpec { specials: 0, ..spec(11, 3000) });
    let disks = Disks::new(&[Kind::Ext4, Kind::Xfs]);
    let pool = disks.pool("category.create=rand");
    let tar = "tar --acls --xattrs --xattrs-include='*' --numeric-owner";
    let through = format!(
        "{tar} -cf archive.tar --sparse --format=posix -C \"$1\" tree
         {tar} -xpf archive.tar
         {tar} -cf again.tar --sparse --format=posix tree
         mkdir \"$1/back\"
         {tar} -xpf again.tar -C \"$1/back\"
         rm archive.tar again.tar"
    );
    shell_ok(pool.path(), &through, &[original.path().as_os_str()]);
    wanted.assert_same(&seen(pool.path()));
    wanted.assert_same(&seen(&original.path().join("back")));
    pool.umount();
}

#[test]
fn directories_move_across_directories_with_their_content() {
    let original = plain();
    let disks = Disks::new(&[Kind::Ext4, Kind::Ext4]);
    let pool = disks.pool("category.create=rand");
    source(original.path(), &spec(12, 1500));
    let from = original.path().as_os_str();
    let wanted = seen(original.path());
    shell_ok(pool.path(), "cp -a \"$1/tree\" . && mkdir -p far/away", &[from]);
    let counted = shell_ok(pool.path(), "find tree -ls | wc -l; find tree -type f | wc -l", &[]);
    let expected = shell_ok(original.path(), "find tree -ls | wc -l; find tree -type f | wc -l", &[]);
    assert_eq!(counted, expected);
    // du must count the sum of the file sizes, with hard links once.
    let usage = |root: &Path| -> u64 {
        let text =
            shell_ok(root, "du -s --apparent-size --block-size=1 --exclude='*.nothing' tree | cut -f1", &[]);
        text.trim().parse().unwrap()
    };
    let (whole, dirs) = (usage(pool.path()), wanted.entries.values());
    let mut counted = std::collections::HashSet::new();
    let files: u64 = dirs
        .filter(|entry| entry.group.as_ref().is_none_or(|name| counted.insert(name.clone())))
        .map(|entry| entry.size)
        .sum();
    assert!(whole >= files && whole - files < 64 << 20, "du says {whole}, the files say {files}");
    for step in [
        "mv tree far/away/",
        "mv far near",
        "mkdir other && mv near/away other/away",
        "mv other/away/tree tree && rmdir other/away other near",
    ] {
        shell_ok(pool.path(), step, &[]);
    }
    wanted.assert_same(&seen(pool.path()));
    pool.umount();
    let held: Vec<Vec<u8>> = disks.union().entries.into_keys().collect();
    assert!(held.iter().all(|path| path.starts_with(b"tree")), "{held:?}");
    assert_eq!(held.len(), wanted.len());
}
