//! Creates on a branch without free inodes.

use super::*;
use canopy_pool::ops;
use canopy_testkit::Kind;

type Make = fn(&Pool, &[u8]) -> Result<NodeId, canopy_base::error::Error>;

const WAYS: [(&str, Make); 5] = [
    ("create", |pool, name| {
        let flags = (OFlags::RDWR | OFlags::CREATE | OFlags::EXCL).bits();
        let (entry, opened) =
            ops::data::create::create(pool, &common::ROOT, NodeId::ROOT, name, 0o644, flags)?;
        ops::data::open::release(pool, opened.handle)?;
        Ok(entry.node)
    }),
    ("mknod", |pool, name| {
        Ok(ops::names::create::mknod(pool, &common::ROOT, NodeId::ROOT, name, 0o100_644, (0, 0))?.node)
    }),
    ("mkdir", |pool, name| {
        Ok(ops::names::create::mkdir(pool, &common::ROOT, NodeId::ROOT, name, 0o755)?.node)
    }),
    ("symlink", |pool, name| {
        Ok(ops::names::create::symlink(pool, &common::ROOT, NodeId::ROOT, name, b"target")?.node)
    }),
    ("tmpfile", |pool, _| {
        let (entry, opened) =
            ops::data::create::tmpfile(pool, &common::ROOT, NodeId::ROOT, 0o644, OFlags::RDWR.bits())?;
        ops::data::open::release(pool, opened.handle)?;
        Ok(entry.node)
    }),
];

#[test]
fn a_create_without_inodes_goes_to_the_next_branch() {
    for config in [Config::default(), never()] {
        let few_inodes = LoopFs::with(Kind::Tmpfs, 32 << 20, &[], "nr_inodes=2");
        let disks = Disks::with(vec![few_inodes, LoopFs::tmpfs(32 << 20)], config);
        let mut used = 0;
        while fs::write(disks.on(0, &format!("used{used}")), "").is_ok() {
            used += 1;
        }
        for (what, make) in WAYS {
            let node = make(&disks.pool, what.as_bytes()).unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(fs::symlink_metadata(disks.on(1, what)).is_ok(), what != "tmpfile", "{what}");
            ops::names::lookup::forget(&disks.pool, node, 1);
        }
    }
}

/// The caller gets the error of the last branch, and the attempts leave nothing behind.
#[test]
fn without_room_on_any_branch_a_create_fails_with_enospc() {
    let few_inodes = || LoopFs::with(Kind::Tmpfs, 32 << 20, &[], "nr_inodes=2");
    let disks = Disks::new(vec![few_inodes(), few_inodes()]);
    for branch in 0..2 {
        let mut used = 0;
        while fs::write(disks.on(branch, &format!("used{branch}.{used}")), "").is_ok() {
            used += 1;
        }
    }
    for (what, make) in WAYS {
        assert_eq!(
            make(&disks.pool, what.as_bytes()).map_err(|error| error.errno()),
            Err(Errno::NOSPC),
            "{what}"
        );
    }
    assert_eq!(disks.unfinished_copies(), NONE);
}
