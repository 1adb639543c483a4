//! Copies follow what the pool changes of a file but its data.

use super::*;
use canopy_pool::ops::names::rename::RenameKind;

#[test]
fn a_copy_follows_its_file_through_all_but_changes_of_its_data() {
    let rig = rig(Room::Size(1 << 20), When::Opened, &["films/a"]);
    rig.cache("films/a");
    let (pool, who) = (&rig.made.pool, administrator());
    let films = rig.node("films");
    let set = |set: SetAttr| {
        ops::attrs::setattr::setattr(pool, &who, rig.node("films/a"), None, &set).unwrap();
        assert_eq!(rig.content("films/a"), "the copy", "{set:?}");
    };
    set(SetAttr { mode: Some(0o600), ..SetAttr::default() });
    set(SetAttr { uid: Some(1), gid: Some(2), ..SetAttr::default() });
    ops::attrs::xattr::setxattr(pool, &who, rig.node("films/a"), b"user.a", b"b", 0, false).unwrap();
    assert_eq!(rig.content("films/a"), "the copy");
    ops::attrs::xattr::removexattr(pool, &who, rig.node("films/a"), b"user.a").unwrap();
    assert_eq!(rig.content("films/a"), "the copy");
    ops::names::link::link(pool, &who, rig.node("films/a"), films, b"b").unwrap();
    assert_eq!(rig.content("films/b"), "the copy");
    ops::names::rename::rename(pool, &who, films, b"a", films, b"c", RenameKind::Replace).unwrap();
    assert_eq!(rig.content("films/c"), "the copy");
    assert_eq!(rig.copies().len(), 1);
}

#[test]
fn a_listed_path_follows_renames_of_directories() {
    let rig = rig(Room::Size(1 << 20), When::Opened, &["films/a"]);
    rig.cache("films/a");
    let root = NodeId::ROOT;
    ops::names::rename::rename(
        &rig.made.pool,
        &administrator(),
        root,
        b"films",
        root,
        b"old",
        RenameKind::Replace,
    )
    .unwrap();
    let paths: Vec<_> = ops::read_cache::list(&rig.made.pool).into_iter().map(|copy| copy.path).collect();
    assert_eq!(paths, [b"old/a".to_vec()]);
}

#[test]
fn a_copy_that_is_wrong_does_not_become_right() {
    let rig = rig(Room::Size(1 << 20), When::Opened, &["films/a"]);
    rig.cache("films/a");
    fs::write(rig.made.on(0, "films/a"), "directly").unwrap();
    let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    ops::attrs::setattr::setattr(&rig.made.pool, &administrator(), rig.node("films/a"), None, &set).unwrap();
    assert_eq!(rig.content("films/a"), "directly");
}

#[test]
fn a_file_that_is_being_written_has_no_copy_that_follows() {
    let rig = rig(Room::Size(1 << 20), When::Opened, &["films/a"]);
    rig.cache("films/a");
    let writer = File::options().write(true).open(rig.made.on(0, "films/a")).unwrap();
    let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    ops::attrs::setattr::setattr(&rig.made.pool, &administrator(), rig.node("films/a"), None, &set).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&writer, b"directly", 0).unwrap();
    assert_eq!(rig.content("films/a"), "directly");
}
