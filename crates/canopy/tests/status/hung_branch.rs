//! A branch that never answers: another pool, whose daemon is stopped. And one that answers late.

use super::rig::{BINARY, canopy, codes, shown, warning};
use canopy_testkit::cmd::wait_until;
use canopy_testkit::{Fault, FaultyFs, LoopFs, PATIENCE, Paused, Pool, ScratchDir, proc};
use rustix::mount::{UnmountFlags, unmount};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const MIB: u64 = 1 << 20;

#[test]
fn a_pool_that_still_answers_reports_its_hung_branch() {
    let (lower, plain) = (LoopFs::tmpfs(16 * MIB), LoopFs::tmpfs(16 * MIB));
    let inner = Pool::builder(BINARY).branch(lower.path()).mount();
    let outer = Pool::builder(BINARY)
        .branch(plain.path())
        .branch(inner.path())
        .option("minfreespace=0,cache.attr=3600,cache.entry=3600")
        .forgive_descriptors()
        .mount();
    // From now on the kernel has the root cached, and need not ask the daemon about it.
    fs::metadata(outer.path().join(".mergerfs")).expect("the control file");
    {
        let _paused = Paused::new(inner.pid());
        for _ in 0..3 {
            let status = outer.status();
            assert_eq!(status["state"], "serving");
            assert_eq!(codes(&status), ["branch-does-not-answer"], "{status:#}");
            let health: Vec<_> =
                status["branches"].as_array().unwrap().iter().map(|branch| &branch["health"]).collect();
            assert_eq!(health, ["ok", "does-not-answer"]);
        }
        let text = shown(["status".as_ref(), outer.path().as_os_str()]);
        assert!(text.contains("does not answer"), "{text}");
    }
    outer.umount();
    inner.umount();
}

#[test]
fn a_pool_that_hangs_with_its_branch_is_reported_with_both() {
    let (lower, plain) = (LoopFs::tmpfs(16 * MIB), LoopFs::tmpfs(16 * MIB));
    let inner = Pool::builder(BINARY).branch(lower.path()).option("cache.attr=0").mount();
    let outer = Pool::builder(BINARY)
        .branch(plain.path())
        .branch(inner.path())
        // With `noatime`, the daemon also holds each branch through a copy of its mount.
        .option("minfreespace=0,cache.attr=0,cache.entry=0,noatime")
        .forgive_descriptors()
        .mount();
    {
        let _paused = Paused::new(inner.pid());
        let mut status = outer.status();
        assert_eq!(status["state"], "does-not-answer", "{status:#}");
        // At first, the branch only lags.
        let expected = ["pool-does-not-answer", "branch-does-not-answer"];
        let reached = wait_until(PATIENCE, || {
            status = outer.status();
            codes(&status) == expected
        });
        assert!(reached, "{status:#}");
        assert_eq!(status["pid"], outer.pid());
        assert_eq!(codes(&outer.status()), expected);
        let branches = status["branches"].as_array().unwrap();
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

/// The kernel reuses the number of a connection once its mount is gone, even while the old connection is still open.
#[test]
fn a_reused_connection_number_does_not_confuse_two_daemons() {
    let (theirs, ours) = (LoopFs::tmpfs(16 * MIB), LoopFs::tmpfs(16 * MIB));
    let number = |pool: &Pool| proc::mount_at(pool.path()).expect("a mount").minor;
    // Another mount on the machine may take the number first.
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
            let status = pool.status();
            assert_eq!(status["state"], "does-not-answer");
            let branches = status["branches"].as_array().unwrap();
            assert!(
                branches.len() == 1 && branches[0]["path"] == ours.path().to_str().unwrap(),
                "{status:#}"
            );
        }
        let done = canopy(["umount".as_ref(), pool.path().as_os_str()]);
        assert!(done.success() && done.stderr.is_empty(), "{}", done.describe());
        assert!(!pool.is_alive(), "umount did not wait for the daemon");
        true
    });
    assert!(shared, "the kernel reused no connection number");
}

/// If a pool is mounted at two places, unmounting one does not wait for the daemon.
#[test]
fn a_pool_keeps_running_when_its_bind_mount_is_unmounted() {
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

/// A branch whose file server needs more than a second for each request, and one that does not answer at all.
#[test]
fn a_branch_that_lets_requests_wait_is_reported_with_their_number() {
    let scratch = ScratchDir::new("canopy-lags-", &[]);
    let faulty = FaultyFs::mount(&scratch.dir());
    let plain = LoopFs::tmpfs(16 * MIB);
    fs::write(faulty.backing_dir().join("file"), "x").expect("a file");
    let pool = Pool::builder(BINARY)
        .branch(plain.path())
        .branch(faulty.path())
        .option("minfreespace=0,branch-timeout=0,cache.coherence=timeout,passthrough.io=off,cache.files=off")
        .mount();
    let open = fs::File::open(pool.path().join("file")).expect("a file");
    for (timeout, fault, expected, code, outlook) in [
        (0, Fault::Delay(Duration::from_millis(1500)), "lagging", "branch-lags", "slow to answer"),
        (0, Fault::Hang, "does-not-answer", "branch-does-not-answer", "operations that need it will wait"),
        // As a remote branch by default, with another time.
        (600, Fault::Hang, "does-not-answer", "branch-does-not-answer", "need it fail after 600 s"),
    ] {
        let set =
            canopy(["set".as_ref(), pool.path().as_os_str(), format!("branch-timeout={timeout}").as_ref()]);
        assert!(set.success(), "{}", set.describe());
        faulty.set_all(fault);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let readers: Vec<_> = (0..3)
                .map(|_| {
                    scope.spawn(|| {
                        while !done.load(Ordering::Relaxed) {
                            assert_eq!(open.read_at(&mut [0; 8], 0).expect("a read"), 1);
                        }
                    })
                })
                .collect();
            let mut last = Value::Null;
            let reached = wait_until(PATIENCE, || {
                last = pool.status();
                last["branches"][1]["health"] == expected
                    && last["branches"][1]["waits"]["requests"].as_u64().is_some_and(|number| number >= 3)
            });
            done.store(true, Ordering::Relaxed);
            faulty.heal();
            assert!(reached, "{last:#}\n{}", pool.log());
            let said = warning(&last, code);
            let number = &last["branches"][1]["waits"]["requests"];
            let text = said["text"].as_str().unwrap();
            assert!(text.contains(&format!("{number} requests wait")) && text.contains(outlook), "{said}");
            // No advice to set what is set.
            let advised = said["fix"].as_str().unwrap().contains("branch-timeout=");
            assert_eq!(advised, timeout == 0 && fault == Fault::Hang, "{said}");
            assert_eq!(last["branches"][0]["health"], "ok");
            assert_eq!(last["branches"][1]["waits"]["disks"], Value::Array(Vec::new()));
            readers.into_iter().for_each(|reader| reader.join().expect("a reader"));
        });
        let is_well = || {
            let status = pool.status();
            status["branches"][1]["health"] == "ok" && codes(&status).is_empty()
        };
        assert!(wait_until(PATIENCE, is_well), "{:#}", pool.status());
    }
    drop(open);
    pool.umount();
}
