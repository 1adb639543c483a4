//! Pools over disks that can lag, hang or fail.

use canopy_fuse::transport::uring;
pub(super) use canopy_testkit::PATIENCE;
use canopy_testkit::cmd::wait_until;
use canopy_testkit::{Kind, LoopFs, Pool, PoolBed};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;

pub(super) const BINARY: &str = env!("CARGO_BIN_EXE_canopy");
pub(super) const MIB: u64 = 1 << 20;

/// Mounts a pool over `count` healthy disks, after `fill` has written to each of them.
#[track_caller]
pub(super) fn pool_over(count: usize, options: &str, fill: impl Fn(usize, &LoopFs)) -> PoolBed {
    modules(&["ext4", "loop", "dm-mod", "dm-delay", "dm-flakey"]);
    let disks: Vec<_> = (0..count).map(|_| LoopFs::with_medium(Kind::Ext4, 128 * MIB)).collect();
    disks.iter().enumerate().for_each(|(number, disk)| fill(number, disk));
    rustix::fs::sync();
    let builder = Pool::builder(BINARY)
        .option("minfreespace=0,category.create=epff")
        .option(format!("io-uring={}", transport()))
        .option(options);
    PoolBed::mount(builder, disks)
}

/// Loads modules of the kernel. Some may be built in, or missing.
pub(super) fn modules(names: &[&str]) {
    let _ = Command::new("modprobe").arg("-a").args(names).output();
}

/// Returns the value of `io-uring` for the kernel's fastest transport.
pub(super) fn transport() -> &'static str {
    let _ = uring::turn_on();
    match uring::Parameter::read() {
        uring::Parameter::On => "on",
        _ => "off",
    }
}

/// Makes the kernel forget what it has cached of files and names.
pub(super) fn drop_caches() {
    rustix::fs::sync();
    fs::write("/proc/sys/vm/drop_caches", "3").expect("drop_caches");
}

/// Returns what `canopy status` calls the health of the branch at a path.
#[track_caller]
pub(super) fn health(pool: &Pool, branch: &Path) -> String {
    look_up_health(pool, branch)
        .unwrap_or_else(|status| panic!("{} is missing: {status:#}", branch.display()))
}

/// Returns the whole status where it does not list the branch: in a slow machine, the daemon may not answer in time.
fn look_up_health(pool: &Pool, branch: &Path) -> Result<String, Value> {
    let status = pool.status();
    let branches = status["branches"].as_array().expect("branches");
    let found = branches.iter().find(|found| found["path"] == branch.to_str().expect("text"));
    match found {
        Some(found) => Ok(found["health"].as_str().expect("health").to_owned()),
        None => Err(status),
    }
}

#[track_caller]
pub(super) fn wait_for_health(pool: &Pool, branch: &Path, expected: &str) {
    let mut last = String::new();
    let reached = wait_until(PATIENCE, || {
        last = look_up_health(pool, branch).unwrap_or_else(|status| format!("unknown ({})", status["state"]));
        last == expected
    });
    assert!(reached, "{} is {last} and not {expected}\n{}", branch.display(), pool.log());
}
