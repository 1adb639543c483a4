use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::Path;

use super::*;
use crate::cmd;

fn sample(root: &Path) {
    for dir in ["a", "a/b"] {
        fs::create_dir(root.join(dir)).expect("a directory");
        // The model's tests turn the umask of this process off.
        fs::set_permissions(root.join(dir), PermissionsExt::from_mode(0o755)).expect("chmod");
    }
    fs::write(root.join("a/file"), b"one").expect("a file");
    fs::hard_link(root.join("a/file"), root.join("a/b/again")).expect("a link");
    symlink("no/where", root.join("link")).expect("a symlink");
}

fn pair() -> (tempfile::TempDir, tempfile::TempDir) {
    let pair = (tempfile::tempdir().expect("a dir"), tempfile::tempdir().expect("a dir"));
    sample(pair.0.path());
    cmd::run("cp", ["-a".as_ref(), pair.0.path().join(".").as_os_str(), pair.1.path().as_os_str()]);
    pair
}

#[track_caller]
fn one_difference(change: impl FnOnce(&Path), expected: &str) {
    let (left, right) = pair();
    let before = Tree::capture_with(left.path(), Fields { sparse: true, ..Fields::without_dir_times() });
    change(right.path());
    let after = Tree::capture_with(right.path(), Fields { sparse: true, ..Fields::without_dir_times() });
    let shown = before.diff(&after).to_string();
    assert!(shown.contains(expected), "{expected:?} is not in:\n{shown}");
}

#[test]
fn a_faithful_copy_is_equal() {
    let (left, right) = pair();
    let tree = Tree::capture(left.path());
    assert_eq!(tree.len(), 5);
    tree.assert_same(&Tree::capture(right.path()));
    assert_eq!(tree.get("a/file").expect("an entry").group.as_deref(), Some(b"a/b/again".as_slice()));
}

#[test]
fn each_kind_of_difference_is_reported() {
    one_difference(|root| fs::remove_file(root.join("link")).expect("rm"), "- link (Symlink)");
    one_difference(|root| fs::write(root.join("new"), b"").expect("write"), "+ new (File)");
    one_difference(|root| fs::write(root.join("a/file"), b"two").expect("write"), "content");
    one_difference(|root| fs::write(root.join("a/file"), b"longer").expect("write"), "size 3 != 6");
    let mode = |root: &Path| fs::set_permissions(root.join("a/b"), PermissionsExt::from_mode(0o2700));
    one_difference(|root| mode(root).expect("chmod"), "mode 0755 != 2700");
    let relink =
        |root: &Path| fs::remove_file(root.join("link")).and_then(|()| symlink("x", root.join("link")));
    one_difference(|root| relink(root).expect("relink"), "target no/where != x");
    let split = |root: &Path| {
        fs::remove_file(root.join("a/file"))
            .and_then(|()| fs::copy(root.join("a/b/again"), root.join("a/file")))
            .expect("copy")
    };
    one_difference(|root| assert_eq!(split(root), 3), "nlink 2 != 1");
    one_difference(|root| drop(cmd::run("touch", ["-d@5", &root.join("a/file").to_string_lossy()])), "mtime");
    one_difference(
        |root| drop(cmd::run("setfattr", ["-nuser.k", "-vv", &root.join("a/file").to_string_lossy()])),
        "xattr user.k none != v",
    );
}

#[test]
fn acls_are_captured_as_xattrs() {
    let dir = tempfile::tempdir().expect("a directory");
    cmd::run("setfacl", ["-m", "u:12:rwx", &dir.path().to_string_lossy()]);
    let tree = Tree::capture_with(dir.path(), Fields::all());
    let root = tree.get("").expect("the root");
    assert!(root.xattrs.contains_key(b"system.posix_acl_access".as_slice()), "{root:?}");
}

#[test]
fn holes_are_captured() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = File::create(dir.path().join("sparse")).expect("a file");
    file.write_all_at(b"x", 1 << 20).expect("a write");
    file.set_len(4 << 20).expect("a size");
    let tree = Tree::capture_with(dir.path(), Fields::all());
    assert_eq!(tree.get("sparse").expect("a file").data, Some(vec![(1 << 20, (1 << 20) + 4096)]));
}

#[test]
fn the_union_of_branches_is_the_whole_tree() {
    let (left, right) = pair();
    let whole = Tree::capture_with(left.path(), Fields::without_dir_times());
    fs::remove_dir_all(left.path().join("a/b")).expect("rm");
    fs::remove_file(left.path().join("a/file")).expect("rm");
    fs::remove_file(right.path().join("link")).expect("rm");
    let parts = [left.path(), right.path()].map(|path| Tree::capture_with(path, Fields::without_dir_times()));
    whole.assert_same(&Tree::union(&parts).expect("a union"));
}

#[test]
fn a_union_reports_a_file_on_two_branches() {
    let (left, right) = pair();
    fs::set_permissions(right.path().join("a"), PermissionsExt::from_mode(0o700)).expect("chmod");
    let parts = [left.path(), right.path()].map(Tree::capture);
    let faults = Tree::union(&parts).expect_err("faults");
    assert!(faults.contains("a/file: also in branch 1"), "{faults}");
    assert!(faults.contains("a: differs in branch 1: mode 0755 != 0700"), "{faults}");
}

#[test]
fn without_keeps_siblings() {
    let dir = tempfile::tempdir().expect("a directory");
    for name in ["lost", "lost/x", "lost+found"] {
        fs::create_dir(dir.path().join(name)).expect("a directory");
    }
    let tree = Tree::capture(dir.path()).without("lost");
    assert_eq!(tree.entries.keys().collect::<Vec<_>>(), [b"lost+found"]);
}
