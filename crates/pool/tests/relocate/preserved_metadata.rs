//! A move between filesystems of any kind preserves data and metadata.

use super::*;
use canopy_pool::ops;
use canopy_testkit::cmd::run;
use canopy_testkit::files::put;
use canopy_testkit::{Fields, Kind, Tree};
use rustix::fs::XattrFlags;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;

fn disk(kind: Kind) -> LoopFs {
    LoopFs::new(kind, 320 << 20)
}

/// Makes a file with data, holes, two links, an owner, a mode with set-id bits, ACLs, extended attributes and times.
fn make_file(disks: &Disks) {
    let at = |path: &str| disks.on(0, path);
    fs::create_dir_all(at("d/e")).unwrap();
    rustix::fs::setxattr(at("d"), "user.of", b"directory", XattrFlags::empty()).unwrap();
    run("setfacl", ["-m", "u:1234:rwx,d:u:4321:r-x", at("d/e").to_str().unwrap()]);
    let file = fs::File::create(at("d/e/f")).unwrap();
    file.write_all_at(&pattern(1, 3 * MIB / 2), 0).unwrap();
    file.write_all_at(&pattern(2, MIB), 5 << 20).unwrap();
    file.set_len(9 << 20).unwrap();
    fs::hard_link(at("d/e/f"), at("d/g")).unwrap();
    let path = at("d/e/f");
    std::os::unix::fs::chown(&path, Some(1000), Some(1001)).unwrap();
    rustix::fs::setxattr(&path, "user.empty", b"", XattrFlags::empty()).unwrap();
    rustix::fs::setxattr(&path, "user.bytes", &pattern(3, 300), XattrFlags::empty()).unwrap();
    rustix::fs::setxattr(&path, "trusted.secret", b"\0\xff", XattrFlags::empty()).unwrap();
    run("setfacl", ["-b", "-m", "u:77:r--,g:88:-w-", path.to_str().unwrap()]);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o4765)).unwrap();
    let capability = [&[0, 0, 0, 2][..], &[1; 4], &[0; 12]].concat();
    rustix::fs::setxattr(&path, "security.capability", &capability, XattrFlags::empty()).unwrap();
    file.set_times(
        fs::FileTimes::new()
            .set_accessed(std::time::UNIX_EPOCH + std::time::Duration::new(1_111_111_111, 123_456_789))
            .set_modified(std::time::UNIX_EPOCH + std::time::Duration::new(1_222_222_222, 987_654_321)),
    )
    .unwrap();
}

#[test]
fn a_move_between_filesystems_preserves_data_and_metadata() {
    const KINDS: [Kind; 4] = [Kind::Ext4, Kind::Xfs, Kind::Btrfs, Kind::Tmpfs];
    let pairs =
        KINDS.iter().enumerate().flat_map(|(index, from)| [(*from, KINDS[(index + 1) % 4]), (*from, *from)]);
    for (from, to) in pairs {
        let what = format!("{from:?} to {to:?}");
        let disks = Disks::new(vec![disk(from), disk(to)]);
        make_file(&disks);
        let fields = Fields { sparse: from == to && from != Kind::Xfs, ..Fields::default() };
        let before = Tree::capture_with(disks.on(0, ""), fields);
        let accessed = |branch| {
            let meta = fs::metadata(disks.on(branch, "d/e/f")).unwrap();
            (meta.atime(), meta.atime_nsec())
        };
        let (then, allocated) = (accessed(0), fs::metadata(disks.on(0, "d/g")).unwrap().blocks());
        let mut client = common::Client::new(disks.pool.clone());
        let (_, handle) = disks.open(&mut client, "d/e/f", OFlags::RDWR);
        // The first branch is too small for this, the second is not.
        disks.fill(0);
        ops::data::io::fallocate(&disks.pool, handle, 1, 9 << 20, 64 << 20)
            .unwrap_or_else(|error| panic!("{what}: {error}"));
        ops::data::open::release(&disks.pool, handle).unwrap();
        assert!(!disks.on(0, "d/e/f").exists() && !disks.on(0, "d/g").exists(), "{what}");
        assert_eq!(accessed(1), then, "{what}");
        // To compare, release the room beyond the end and reset the modification time that both changed.
        let file = fs::File::options().write(true).open(disks.on(1, "d/g")).unwrap();
        file.set_len(9 << 20).unwrap();
        file.set_times(
            fs::FileTimes::new()
                .set_modified(std::time::UNIX_EPOCH + std::time::Duration::new(1_222_222_222, 987_654_321)),
        )
        .unwrap();
        // The truncation has cleared these.
        fs::set_permissions(disks.on(1, "d/g"), fs::Permissions::from_mode(0o4765)).unwrap();
        let capability = [&[0, 0, 0, 2][..], &[1; 4], &[0; 12]].concat();
        rustix::fs::setxattr(disks.on(1, "d/g"), "security.capability", &capability, XattrFlags::empty())
            .unwrap();
        before.assert_same(&Tree::capture_with(disks.on(1, ""), fields));
        // XFS allocates ahead.
        let taken = fs::metadata(disks.on(1, "d/g")).unwrap().blocks();
        assert!(taken <= allocated + 2048 || to == Kind::Xfs, "{what}: {taken} for {allocated}");
        assert_eq!(disks.unfinished_copies(), NONE, "{what}");
        client.end().unwrap();
    }
}

/// What lsattr(1) shows of a file or directory: the project and the flags, without those that describe its layout.
fn flags(path: &Path, with_project: bool) -> String {
    let options = if with_project { "-dp" } else { "-d" };
    let shown = run("lsattr", [options, path.to_str().unwrap()]);
    let mut shown: Vec<&str> = shown.split_whitespace().collect();
    shown.pop();
    shown.join(" ").replace(['-', 'e'], "")
}

fn chattr(options: &[&str], path: &Path) {
    run("chattr", options.iter().copied().chain([path.to_str().unwrap()]));
}

/// Moves `d/e/f` and makes a new file beside it, on the second branch.
fn move_and_create(disks: &Disks) {
    let mut client = common::Client::new(disks.pool.clone());
    let (_, handle) = disks.open(&mut client, "d/e/f", OFlags::RDWR);
    disks.fill(0);
    ops::data::io::fallocate(&disks.pool, handle, 1, 9 << 20, 64 << 20).unwrap();
    ops::data::open::release(&disks.pool, handle).unwrap();
    client.end().unwrap();
    assert!(!disks.on(0, "d/e/f").exists());
    assert_eq!(disks.unfinished_copies(), NONE);
}

/// Flags that say how data are stored have to be set before there are any.
#[test]
fn a_move_preserves_how_data_are_stored() {
    for (options, shown) in [("+C", "C"), ("+c", "c"), ("+m", "m")] {
        for within in [options, "-Ccm"] {
            let disks = Disks::new(vec![disk(Kind::Btrfs), disk(Kind::Btrfs)]);
            fs::create_dir_all(disks.on(0, "d/e")).unwrap();
            if within == options {
                chattr(&[options], &disks.on(0, "d/e"));
            }
            fs::create_dir(disks.on(0, "d/e/below")).unwrap();
            let file = disks.on(0, "d/e/f");
            fs::write(&file, "").unwrap();
            chattr(&[options], &file);
            fs::write(&file, pattern(1, MIB)).unwrap();
            assert_eq!(flags(&file, false), shown);
            let of_dir = flags(&disks.on(0, "d/e"), false);
            move_and_create(&disks);
            assert_eq!(flags(&disks.on(1, "d/e/f"), false), shown, "{options} in a directory with {within}");
            assert_eq!(flags(&disks.on(1, "d/e"), false), of_dir, "{options} of a directory");
            assert_eq!(fs::read(disks.on(1, "d/e/f")).unwrap()[..MIB], pattern(1, MIB));
        }
    }
}

/// A directory on the other branch that has a flag does not hand it down to a file that lacks it.
#[test]
fn a_move_brings_no_flags_that_the_file_has_not() {
    let disks = Disks::new(vec![disk(Kind::Btrfs), disk(Kind::Btrfs)]);
    for branch in [0, 1] {
        fs::create_dir_all(disks.on(branch, "d/e")).unwrap();
    }
    chattr(&["+C"], &disks.on(1, "d/e"));
    fs::write(disks.on(0, "d/e/f"), pattern(1, MIB)).unwrap();
    move_and_create(&disks);
    assert_eq!(flags(&disks.on(1, "d/e/f"), false), "");
}

/// The attribute by which btrfs shows that a file is compressed concerns btrfs alone.
#[test]
fn a_compressed_file_moves_to_another_filesystem() {
    let disks = Disks::new(vec![disk(Kind::Btrfs), disk(Kind::Ext4)]);
    fs::create_dir_all(disks.on(0, "d/e")).unwrap();
    chattr(&["+c"], &disks.on(0, "d/e"));
    fs::write(disks.on(0, "d/e/f"), pattern(1, MIB)).unwrap();
    assert_eq!(flags(&disks.on(0, "d/e/f"), false), "c");
    move_and_create(&disks);
    assert_eq!(fs::read(disks.on(1, "d/e/f")).unwrap()[..MIB], pattern(1, MIB));
}

/// `(project of the directory, project of the file)`. In a directory that hands its project down, a file of another one cannot be
/// given a name.
#[test]
fn a_move_preserves_projects_and_hints() {
    for (of_dir, of_file) in [(None, "7"), (Some("5"), "5"), (Some("5"), "7"), (Some("5"), "0")] {
        let disks = Disks::new(vec![disk(Kind::Xfs), disk(Kind::Xfs)]);
        fs::create_dir_all(disks.on(0, "d/e")).unwrap();
        let file = disks.on(0, "d/e/f");
        fs::write(&file, "").unwrap();
        run("xfs_io", ["-c", "extsize 1m", file.to_str().unwrap()]);
        fs::write(&file, pattern(1, MIB)).unwrap();
        fs::create_dir_all(disks.on(0, "x")).unwrap();
        fs::hard_link(&file, disks.on(0, "d/e/g")).unwrap();
        if let Some(project) = of_dir {
            chattr(&["+P", "-p", project], &disks.on(0, "d"));
            chattr(&["+P", "-p", project], &disks.on(0, "d/e"));
        }
        chattr(&["-p", of_file], &file);
        let (dir_was, file_was) = (flags(&disks.on(0, "d/e"), true), flags(&file, true));
        move_and_create(&disks);
        let moved = disks.on(1, "d/e/f");
        let what = format!("{of_dir:?} {of_file}");
        assert_eq!(flags(&moved, true), file_was, "{what}");
        assert_eq!(flags(&disks.on(1, "d/e"), true), dir_was, "{what}");
        assert_eq!(fs::metadata(&moved).unwrap().nlink(), 2, "{what}");
        let hint = run("xfs_io", ["-r", "-c", "extsize", moved.to_str().unwrap()]);
        assert!(hint.starts_with("[1048576]"), "{what}: {hint}");
    }
}

/// A branch that cannot hold an attribute does not get the file.
#[test]
fn a_file_stays_when_the_other_branch_cannot_hold_its_xattrs() {
    // An attribute of ext4 must fit into one block; tmpfs takes more.
    let disks = Disks::new(vec![LoopFs::tmpfs(4 << 20), LoopFs::ext4(64 << 20)]);
    put(disks.on(0, "f"), b"content");
    rustix::fs::setxattr(disks.on(0, "f"), "user.large", &pattern(1, 60_000), XattrFlags::empty()).unwrap();
    let mut client = common::Client::new(disks.pool.clone());
    let (_, handle) = disks.open(&mut client, "f", OFlags::RDWR);
    disks.fill(0);
    assert_eq!(write(&disks.pool, handle, 8192, &[1; MIB]), Err(Errno::NOSPC));
    assert!(disks.on(0, "f").exists() && !disks.on(1, "f").exists());
    assert_eq!(disks.unfinished_copies(), NONE);
    ops::data::open::release(&disks.pool, handle).unwrap();
    client.end().unwrap();
}
