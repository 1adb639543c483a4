//! What the machine has for io_uring: processors, and the switch that root holds.

use std::fs;
use std::io;

use rustix::thread::{CpuSet, sched_setaffinity};

const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";
const POSSIBLE: &str = "/sys/devices/system/cpu/possible";
const ONLINE: &str = "/sys/devices/system/cpu/online";

/// The module parameter `fuse.enable_uring`. It is the whole machine's, and counts when a filesystem is mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parameter {
    /// Linux before 6.14, or built without io_uring for FUSE.
    Missing,
    /// It is off.
    Off,
    /// It is on.
    On,
}

impl Parameter {
    /// What it is now.
    #[must_use]
    pub fn read() -> Parameter {
        match fs::read_to_string(PARAMETER) {
            Ok(text) if text.starts_with(['Y', '1']) => Parameter::On,
            Ok(_) => Parameter::Off,
            Err(_) => Parameter::Missing,
        }
    }
}

/// Turns `fuse.enable_uring` on for the whole machine, if it is there and off; true if that was done. To be called
/// before mounting.
///
/// # Errors
/// `EACCES` unless called by root, `EROFS` where `/sys` is read-only.
pub fn turn_on() -> io::Result<bool> {
    let mut found = Parameter::read();
    if found == Parameter::Missing && canopy_sys::fuse_dev::open().is_ok() {
        // Opening the device has loaded the module.
        found = Parameter::read();
    }
    if found != Parameter::Off {
        return Ok(false);
    }
    fs::write(PARAMETER, "1")?;
    Ok(true)
}

/// How many queues the kernel wants: one for each processor there may ever be (`num_possible_cpus`).
pub(super) fn possible_cpus() -> u16 {
    u16::try_from(listed(POSSIBLE).len()).unwrap_or(u16::MAX)
}

/// The processors that run now.
#[must_use]
pub fn online_cpus() -> Vec<u16> {
    listed(ONLINE)
}

fn listed(path: &str) -> Vec<u16> {
    let listed = fs::read_to_string(path).ok().and_then(|text| parse(&text));
    listed.unwrap_or_else(|| {
        let count = std::thread::available_parallelism().map_or(1, usize::from);
        (0..u16::try_from(count).unwrap_or(u16::MAX)).collect()
    })
}

/// Reads a list such as `0-3,8`.
fn parse(list: &str) -> Option<Vec<u16>> {
    let mut all = Vec::new();
    for range in list.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
        all.extend(first..=last);
    }
    Some(all)
}

/// Keeps the calling thread on the processor whose queue it serves, so that a request wakes nobody elsewhere. Where
/// that is not allowed, or the processor is not running, the thread stays free.
/// False then.
pub(in crate::transport) fn pin(queue: u16) -> bool {
    let cpu = usize::from(queue);
    if cpu >= CpuSet::MAX_CPU {
        return false;
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    let pinned = sched_setaffinity(None, &set);
    if let Err(error) = pinned {
        tracing::debug!(%error, cpu, "cannot stay on this processor");
    }
    pinned.is_ok()
}

/// Whether the kernel ends a connection some of whose requests are not answered in time (7.43), though its server has not asked for
/// that.
pub(super) fn requests_expire() -> bool {
    ["default_request_timeout", "max_request_timeout"].iter().any(|limit| {
        fs::read_to_string(format!("/proc/sys/fs/fuse/{limit}")).is_ok_and(|text| text.trim() != "0")
    })
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn processors_are_listed() {
        for (list, cpus) in [("0-1\n", &[0, 1][..]), ("0", &[0]), ("0-2,8-9,15", &[0, 1, 2, 8, 9, 15])] {
            assert_eq!(parse(list).as_deref(), Some(cpus), "{list}");
        }
        for list in ["", "a", "0-", "0-65536", "0,,1"] {
            assert_eq!(parse(list), None, "{list}");
        }
    }
}
