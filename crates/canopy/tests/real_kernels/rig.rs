//! Disks of device mapper, and pools over them.

use canopy_fuse::transport::uring;
use canopy_testkit::{MappedDisk, Pool};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

pub(super) const BINARY: &str = env!("CARGO_BIN_EXE_canopy");
const MIB: u64 = 1 << 20;

/// A pool over healthy disks. Tests make one of them lag, hang or fail.
pub(super) struct Rig {
    // Dropped first: the disks cannot be unmounted while the pool uses them.
    pub(super) pool: Pool,
    pub(super) disks: Vec<MappedDisk>,
}

impl Rig {
    /// Mounts a pool over `count` disks. `fill` writes to the disk with a number before that.
    #[track_caller]
    pub(super) fn new(count: usize, options: &str, fill: impl Fn(usize, &MappedDisk)) -> Rig {
        modules(&["ext4", "loop", "dm-mod", "dm-delay", "dm-flakey"]);
        let disks: Vec<_> = (0..count).map(|_| MappedDisk::new(128 * MIB)).collect();
        for (number, disk) in disks.iter().enumerate() {
            fs::remove_dir(disk.path().join("lost+found")).expect("rmdir");
            fill(number, disk);
        }
        rustix::fs::sync();
        let pool = Pool::builder(BINARY)
            .branches(disks.iter().map(MappedDisk::path))
            .option("minfreespace=0,category.create=epff")
            .option(format!("io-uring={}", transport()))
            .option(options)
            .mount();
        Rig { pool, disks }
    }

    pub(super) fn at(&self, path: &str) -> PathBuf {
        self.pool.path().join(path)
    }
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
