//! `func.readdir`: whether a directory's branches are read in sequence or concurrently.
//!
//! The branches are pools themselves. Their daemons are paused, so their unanswered requests can be counted.

use super::rig::{Connections, Dirs};
use canopy_testkit::Pool;
use canopy_testkit::cmd::wait_until;
use canopy_testkit::{PATIENCE, Paused};
use rustix::fs::{Dir, Mode, OFlags};
use std::fs;
use std::time::Duration;

pub(super) fn branches_are_read_in_sequence_or_concurrently() {
    let dirs = Dirs::new();
    let connections = Connections::new();
    let waiting = |pool| connections.waiting(pool);
    let remembered = "cache.attr=3600,cache.entry=3600";
    let inner = ["c", "d"].map(|name| {
        fs::write(dirs.path(name).join(name), "").expect("a file");
        // Each listing has to ask the daemon.
        let options = format!("{remembered},cache.readdir=false");
        Pool::builder(super::rig::BINARY).branch(dirs.path(name)).option(options).mount()
    });
    let outer = Pool::builder(super::rig::BINARY)
        .branch(inner[0].path())
        .branch(inner[1].path())
        .option(remembered)
        .mount();
    for (value, both) in [
        ("seq", false),
        ("cosr", true),
        ("cor", true),
        ("cosr:1", false),
        ("cor:1:8", false),
        ("cor:2:1", true),
        ("seq", false),
    ] {
        outer.set("func.readdir", value);
        // Fill the caches, so that only listings cause requests to the branches.
        assert_eq!(fs::read_dir(outer.path()).expect("a listing").count(), 2, "{value}");
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(outer.path(), flags, Mode::empty()).expect("open");
        assert!(wait_until(PATIENCE, || waiting(&inner[0]) + waiting(&inner[1]) == 0));
        let paused = [0, 1].map(|branch| Paused::new(inner[branch].pid()));
        std::thread::scope(|scope| {
            let listing = scope.spawn(|| Dir::new(dir).expect("a directory").filter_map(Result::ok).count());
            let first = wait_until(PATIENCE, || waiting(&inner[0]) > 0);
            let patience = if both { PATIENCE } else { Duration::from_millis(100) };
            let second = wait_until(patience, || waiting(&inner[1]) > 0);
            drop(paused);
            // The count includes `.` and `..`.
            assert_eq!(listing.join().expect("a listing"), 4, "{value}");
            assert_eq!((first, second), (true, both), "{value}");
        });
    }
    outer.umount();
    inner.into_iter().for_each(|pool| drop(pool.umount()));
}
