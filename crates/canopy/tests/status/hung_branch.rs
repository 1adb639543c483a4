//! A branch that never answers. It is a pool itself, whose daemon is stopped.

use super::rig::{BINARY, canopy, codes, shown};
use canopy_testkit::{LoopFs, Paused, Pool, proc};
use rustix::mount::{UnmountFlags, unmount};
use std::fs;

const MIB: u64 = 1 << 20;

#[test]
fn a_branch_hangs_and_the_pool_answers() {
    let (lower, plain) = (LoopFs::tmpfs(16 * MIB), LoopFs::tmpfs(16 * MIB));
    let inner = Pool::builder(BINARY).branch(lower.path()).mount();
    let outer = Pool::builder(BINARY)
        .branch(plain.path())
        .branch(inner.path())
        .option("minfreespace=0,cache.attr=3600,cache.entry=3600")
        .forgive_descriptors()
        .mount();
    // So the kernel need not ask about the root again.
    fs::metadata(outer.path().join(".mergerfs")).expect("the control file");
    {
        let _paused = Paused::new(inner.pid());
        for _ in 0..3 {
            let told = outer.status();
            assert_eq!(told["state"], "serving");
            assert_eq!(codes(&told), ["branch-does-not-answer"], "{told:#}");
            let health: Vec<_> =
                told["branches"].as_array().unwrap().iter().map(|branch| &branch["health"]).collect();
            assert_eq!(health, ["ok", "does-not-answer"]);
        }
        let text = shown(["status".as_ref(), outer.path().as_os_str()]);
        assert!(text.contains("does not answer"), "{text}");
    }
    outer.umount();
    inner.umount();
}

#[test]
fn a_branch_hangs_and_the_pool_with_it() {
    let (lower, plain) = (LoopFs::tmpfs(16 * MIB), LoopFs::tmpfs(16 * MIB));
    let inner = Pool::builder(BINARY).branch(lower.path()).option("cache.attr=0").mount();
    let outer = Pool::builder(BINARY)
        .branch(plain.path())
        .branch(inner.path())
        // Its branches are held on copies of their mounts as well.
        .option("minfreespace=0,cache.attr=0,cache.entry=0,noatime")
        .forgive_descriptors()
        .mount();
    {
        let _paused = Paused::new(inner.pid());
        let told = outer.status();
        assert_eq!(
            (&told["state"], codes(&told)),
            (&"does-not-answer".into(), vec!["pool-does-not-answer".into(), "branch-does-not-answer".into()]),
            "{told:#}"
        );
        let branches = told["branches"].as_array().unwrap();
        let find = |path: &std::path::Path| {
            let found = branches.iter().find(|branch| branch["path"] == path.to_str().unwrap());
            &found.unwrap_or_else(|| panic!("{path:?} among {branches:#?}"))["health"]
        };
        assert_eq!((find(plain.path()), find(inner.path())), (&"ok".into(), &"does-not-answer".into()));
        assert_eq!(branches.len(), 2, "{branches:#?}");
    }
    outer.umount();
    inner.umount();
}

/// The kernel gives the number of a connection again, once its mount is gone, whoever still has the old one open.
#[test]
fn a_server_of_another_pool_with_the_same_number_is_no_server_of_this_one() {
    let (theirs, ours) = (LoopFs::tmpfs(16 * MIB), LoopFs::tmpfs(16 * MIB));
    let number = |pool: &Pool| proc::mount_at(pool.path()).expect("a mount").minor;
    // Others mount, too, and may be given it.
    let shared = (0..100).any(|_| {
        let old = Pool::builder(BINARY).branch(theirs.path()).forgive_descriptors().mount();
        let before = number(&old);
        let _paused = Paused::new(old.pid());
        unmount(old.path(), UnmountFlags::empty()).expect("umount");
        let pool =
            Pool::builder(BINARY).branch(ours.path()).option("cache.attr=0").forgive_descriptors().mount();
        if number(&pool) != before {
            pool.umount();
            return false;
        }
        {
            let _paused = Paused::new(pool.pid());
            let told = pool.status();
            assert_eq!(told["state"], "does-not-answer");
            let branches = told["branches"].as_array().unwrap();
            assert!(branches.len() == 1 && branches[0]["path"] == ours.path().to_str().unwrap(), "{told:#}");
        }
        let done = canopy(["umount".as_ref(), pool.path().as_os_str()]);
        assert!(done.success() && done.stderr.is_empty(), "{}", done.describe());
        assert!(!pool.is_alive(), "its own server is waited for");
        true
    });
    assert!(shared, "the kernel gave no number again");
}

/// Of a pool that is mounted at two places one goes, and nobody is waited for.
#[test]
fn a_pool_goes_on_at_another_place() {
    let disk = LoopFs::tmpfs(16 * MIB);
    let pool = Pool::builder(BINARY).branch(disk.path()).mount();
    let other = tempfile::tempdir().unwrap();
    let other = other.path().canonicalize().unwrap();
    rustix::mount::mount_bind(pool.path(), &other).unwrap();
    let done = canopy(["umount".as_ref(), other.as_os_str()]);
    assert!(done.success() && done.stderr.is_empty(), "{}", done.describe());
    assert!(pool.is_alive() && pool.mounted());
    pool.umount();
}
