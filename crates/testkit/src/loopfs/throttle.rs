//! A disk that writes slowly because the kernel lets it (blk-throttle).

use std::fs;
use std::path::Path;

use super::LoopFs;

/// Where limits count for all that a device does, also for what the kernel writes back by itself: the root group of version 1.
/// In version 2 (`io.max`), the root group has none.
const WRITES: &str = "/sys/fs/cgroup/blkio/blkio.throttle.write_bps_device";
const READS: &str = "/sys/fs/cgroup/blkio/blkio.throttle.read_iops_device";

/// A limit for a disk. It ends when this is dropped.
#[derive(Debug)]
pub struct Throttle {
    device: String,
    /// Where it is set.
    limit: &'static str,
}

impl LoopFs {
    /// Limits what the disk writes in a second, in bytes. `None` where the kernel has no control group for that.
    ///
    /// # Panics
    /// If the filesystem is on no device.
    #[track_caller]
    pub fn throttle(&self, rate: u64) -> Option<Throttle> {
        self.limit(WRITES, rate)
    }

    /// As [`LoopFs::throttle`], for requests to read in a second: a disk that seeks has some hundred.
    #[track_caller]
    pub fn throttle_reads(&self, requests: u64) -> Option<Throttle> {
        self.limit(READS, requests)
    }

    #[track_caller]
    fn limit(&self, limit: &'static str, rate: u64) -> Option<Throttle> {
        let device = self.device().expect("a loop device");
        let name = device.file_name().unwrap_or_default();
        let number =
            fs::read_to_string(Path::new("/sys/block").join(name).join("dev")).expect("a block device");
        let throttle = Throttle { device: number.trim().to_owned(), limit };
        fs::write(limit, format!("{} {rate}", throttle.device)).ok().map(|()| throttle)
    }

    /// Returns how many bytes the disk has written since it is there.
    ///
    /// # Panics
    /// If the filesystem is on no device.
    #[track_caller]
    pub fn written(&self) -> u64 {
        let name = self.device().expect("a loop device").file_name().unwrap_or_default();
        let stat =
            fs::read_to_string(Path::new("/sys/block").join(name).join("stat")).expect("a block device");
        // The seventh number: sectors of 512 bytes (Documentation/block/stat.rst).
        stat.split_whitespace().nth(6).and_then(|sectors| sectors.parse::<u64>().ok()).expect("a number")
            * 512
    }
}

impl Drop for Throttle {
    fn drop(&mut self) {
        let _ = fs::write(self.limit, format!("{} 0", self.device));
    }
}
