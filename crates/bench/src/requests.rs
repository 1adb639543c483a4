//! Counts the requests that the kernel sends to a FUSE server, by the tracepoint `fuse:fuse_request_send`.
//!
//! Forgets and interrupts do not pass this tracepoint. The events go to a tracing instance of this process, so other
//! users of tracing are not disturbed.

use rustix::fd::{AsRawFd, OwnedFd};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use std::fs;
use std::io;
use std::path::PathBuf;

/// A tracing instance, removed on drop.
#[derive(Debug)]
pub(crate) struct RequestCounter {
    /// A mount of tracefs that has no place in the tree, so nothing has to be unmounted.
    _tracefs: OwnedFd,
    instance: PathBuf,
}

impl RequestCounter {
    /// Makes the instance.
    ///
    /// # Errors
    /// Says in a few words why requests cannot be counted.
    pub(crate) fn new() -> Result<RequestCounter, String> {
        let mounted = fsopen("tracefs", FsOpenFlags::FSOPEN_CLOEXEC).and_then(|context| {
            fsconfig_create(&context)?;
            fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
        });
        let tracefs = mounted.map_err(|errno| format!("tracefs cannot be mounted: {errno}"))?;
        // The tests run several benchmarks at once.
        let name = format!("instances/canopy-bench-{}", std::process::id());
        let root = PathBuf::from(format!("/proc/self/fd/{}", tracefs.as_raw_fd()));
        let instance = root.join(name);
        // A killed process with the same number may have left one.
        let _ = fs::remove_dir(&instance);
        fs::create_dir(&instance).map_err(|error| format!("no tracing instance: {error}"))?;
        let counter = RequestCounter { _tracefs: tracefs, instance };
        // Linux 6.11 and later have it.
        match counter.event("enable").exists() {
            true => Ok(counter),
            false => Err("the kernel has no tracepoint fuse:fuse_request_send".into()),
        }
    }

    /// Runs `work`, and returns its result and the number of requests that the connection got meanwhile. A connection
    /// is the minor device number of its mounts.
    pub(crate) fn count<T>(&self, connection: u32, work: impl FnOnce() -> T) -> io::Result<(T, u64)> {
        fs::write(self.event("filter"), format!("connection == {connection}"))?;
        let before = self.total()?;
        fs::write(self.event("enable"), "1")?;
        let result = work();
        fs::write(self.event("enable"), "0")?;
        Ok((result, self.total()? - before))
    }

    fn event(&self, file: &str) -> PathBuf {
        self.instance.join("events/fuse/fuse_request_send").join(file)
    }

    /// Returns the number of events that the instance has ever recorded.
    fn total(&self) -> io::Result<u64> {
        let mut total = 0;
        for processor in fs::read_dir(self.instance.join("per_cpu"))? {
            total += recorded(&fs::read_to_string(processor?.path().join("stats"))?);
        }
        Ok(total)
    }
}

/// Returns the events in a buffer and those that newer ones have replaced.
fn recorded(stats: &str) -> u64 {
    let value = |line: &str| {
        ["entries: ", "overrun: "].iter().find_map(|key| line.strip_prefix(key)?.parse::<u64>().ok())
    };
    stats.lines().filter_map(value).sum::<u64>()
}

impl Drop for RequestCounter {
    fn drop(&mut self) {
        // Fails if the tracepoint does not exist. An instance with active events can be removed too.
        let _ = fs::write(self.event("enable"), "0");
        if let Err(error) = fs::remove_dir(&self.instance) {
            eprintln!("canopy: the tracing instance {} remains: {error}", self.instance.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaced_events_count() {
        let stats = "entries: 40\noverrun: 2\ncommit overrun: 7\nbytes: 1000\nread events: 0\n";
        assert_eq!(recorded(stats), 42);
    }
}
