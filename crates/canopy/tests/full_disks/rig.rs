//! Pools over branches of given sizes, and data to check them with.

use canopy_testkit::cmd::{Finished, run_within};
use canopy_testkit::{LoopFs, PATIENCE, Pool, PoolBed, PoolBuilder, Rng, files};
use std::path::Path;
use std::process::Command;

pub(super) const MIB: usize = 1 << 20;

/// Describes a pool that creates files on the first branch with any room.
pub(super) fn builder(options: &str) -> PoolBuilder {
    Pool::builder(env!("CARGO_BIN_EXE_canopy")).option("minfreespace=0,category.create=ff").option(options)
}

/// Mounts a pool that creates files on the first branch with any room.
#[track_caller]
pub(super) fn pool_over(disks: Vec<LoopFs>, options: &str) -> PoolBed {
    PoolBed::mount(builder(options), disks)
}

/// Runs `work`, and returns how many bytes the daemon moved meanwhile.
#[track_caller]
pub(super) fn bytes_moved(bed: &PoolBed, work: impl FnOnce()) -> usize {
    bed.pool.bytes_moved(work).0 as usize
}

/// Returns whether no disk holds an unfinished copy.
pub(super) fn no_unfinished_copies(disks: &[LoopFs]) -> bool {
    disks.iter().all(|disk| files::unfinished_copies(disk.path()).is_empty())
}

/// Runs fio, which writes `files` files of `each` MiB and verifies every byte.
pub(super) fn fio(dir: &Path, files: u64, each: u64) -> Finished {
    let mut fio = Command::new("fio");
    fio.arg(format!("--directory={}", dir.display()));
    fio.args(
        "--name=full --rw=randwrite --bs=64k --ioengine=psync --thread --numjobs=2 --group_reporting"
            .split(' '),
    );
    fio.arg(format!("--filesize={each}M"));
    fio.args([format!("--nrfiles={}", files / 2), format!("--size={}M", files / 2 * each)]);
    fio.args(
        "--verify=crc32c --verify_fatal=1 --do_verify=1 --verify_state_save=0 --fallocate=none".split(' '),
    );
    fio.arg("--openfiles=4");
    run_within(&mut fio, 15 * PATIENCE)
}

/// Returns pseudo-random bytes that depend on the seed.
pub(super) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    Rng::new(seed).bytes(len)
}
