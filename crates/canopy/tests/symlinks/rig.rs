//! A pool over two branches.

use canopy_testkit::cmd::wait_until;
use canopy_testkit::{LoopFs, PATIENCE, Pool, PoolBed};
use std::fs;
use std::path::{Path, PathBuf};

/// Mounts a pool over two branches, which `prepare` fills first.
#[track_caller]
pub(super) fn pool(options: &str, prepare: impl FnOnce(&Path, &Path)) -> PoolBed {
    let disks = [LoopFs::tmpfs(32 << 20), LoopFs::tmpfs(32 << 20)];
    prepare(disks[0].path(), disks[1].path());
    let builder = Pool::builder(env!("CARGO_BIN_EXE_canopy")).option("minfreespace=0").option(options);
    PoolBed::mount(builder, disks)
}

/// Changes an option of the running pool and reads it back.
#[track_caller]
pub(super) fn set(bed: &PoolBed, option: &str, value: &str) {
    bed.pool.set(option, value);
    assert_eq!(bed.pool.get(option), value, "{option}");
}

/// Returns the target of a symlink. Waits for it, because the kernel may still cache the name as another file type.
#[track_caller]
pub(super) fn target(path: &Path) -> PathBuf {
    wait_until(PATIENCE, || fs::read_link(path).is_ok());
    fs::read_link(path).expect("a symlink")
}
