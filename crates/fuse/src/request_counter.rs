//! Counts the requests that the kernel sends on a connection, with its tracepoint `fuse:fuse_request_send` (Linux 6.11).
//!
//! FORGET and INTERRUPT do not pass the tracepoint and are not counted.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, RawDir, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use crate::opcode::Opcode;

/// The size of the kernel's buffer for each processor in KiB. An event takes about 40 bytes.
const BUFFER_KIB: u32 = 4096;
/// The names of trace instances begin with this, followed by the process id and a number.
const PREFIX: &str = "canopy-requests-";

const EVENT: &str = "events/fuse/fuse_request_send";

/// Why requests cannot be counted.
#[derive(Debug, thiserror::Error)]
pub enum CountError {
    /// The kernel has no tracefs, or the tracepoint is missing (before Linux 6.11), or the caller is not root.
    #[error("cannot use the kernel's tracefs: {0}")]
    Tracefs(Errno),
    /// The path cannot be examined.
    #[error("{0}")]
    Mountpoint(Errno),
    /// Requests were sent faster than they were taken. None of them are counted.
    #[error("{sent} requests were sent, but the kernel's buffer held only {held}")]
    Overrun {
        /// The number of requests since the last call of [`RequestCounter::take`].
        sent: u64,
        /// The number of requests that were still in the buffer.
        held: u64,
    },
}

/// Counts the requests of one connection, until it is dropped.
///
/// It has its own trace instance, so several counters and other users of tracefs do not disturb each other.
pub struct RequestCounter {
    /// A detached mount of tracefs.
    tracefs: OwnedFd,
    instance: String,
}

impl RequestCounter {
    /// Starts counting the requests of the FUSE filesystem at `mountpoint`, without sending it one.
    ///
    /// # Errors
    /// [`CountError::Tracefs`], [`CountError::Mountpoint`]
    pub fn of_mount(mountpoint: &Path) -> Result<Self, CountError> {
        let no_request = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
        let stat = rustix::fs::statx(CWD, mountpoint, no_request, StatxFlags::empty());
        // The kernel numbers connections by the anonymous device of their filesystem, whose major number is 0.
        Self::of_connection(stat.map_err(CountError::Mountpoint)?.stx_dev_minor)
    }

    /// Starts counting the requests of a connection, which has this number in `/sys/fs/fuse/connections`.
    ///
    /// # Errors
    /// [`CountError::Tracefs`]
    pub fn of_connection(connection: u32) -> Result<Self, CountError> {
        Self::start(connection).map_err(CountError::Tracefs)
    }

    fn start(connection: u32) -> Result<Self, Errno> {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let context = fsopen("tracefs", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_create(&context)?;
        let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
        let tracefs = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)?;
        remove_stale_instances(&tracefs)?;
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let instance = format!("instances/{PREFIX}{}-{number}", std::process::id());
        rustix::fs::mkdirat(&tracefs, &instance, Mode::from_raw_mode(0o700))?;
        let counter = Self { tracefs, instance };
        counter.write("buffer_size_kb", &BUFFER_KIB.to_string())?;
        counter.write(&format!("{EVENT}/filter"), &format!("connection == {connection}"))?;
        counter.write(&format!("{EVENT}/enable"), "1")?;
        Ok(counter)
    }

    /// Returns the requests since the counter was started or this was last called. Requests that are sent during the call
    /// may be missing.
    ///
    /// # Errors
    /// [`CountError::Tracefs`], [`CountError::Overrun`]
    pub fn take(&self) -> Result<Requests, CountError> {
        let trace = self.read_trace();
        self.write("trace", "").map_err(CountError::Tracefs)?;
        trace
    }

    fn read_trace(&self) -> Result<Requests, CountError> {
        let trace = self.open("trace", OFlags::RDONLY).map_err(CountError::Tracefs)?;
        let mut requests = Requests::default();
        for line in BufReader::new(File::from(trace)).split(b'\n') {
            let line =
                line.map_err(|error| CountError::Tracefs(Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
            let line = String::from_utf8_lossy(&line);
            if let Some((held, sent)) = entries(&line) {
                if held < sent {
                    return Err(CountError::Overrun { sent, held });
                }
            } else if let Some(opcode) = opcode(&line) {
                *requests.0.entry(opcode).or_default() += 1;
            }
        }
        Ok(requests)
    }

    fn open(&self, file: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
        let path = format!("{}/{file}", self.instance);
        rustix::fs::openat(&self.tracefs, path, flags | OFlags::CLOEXEC, Mode::empty())
    }

    fn write(&self, file: &str, value: &str) -> Result<(), Errno> {
        let file = self.open(file, OFlags::WRONLY | OFlags::TRUNC)?;
        rustix::io::write(file, value.as_bytes())?;
        Ok(())
    }
}

impl Drop for RequestCounter {
    fn drop(&mut self) {
        // What cannot be removed now, the next counter removes.
        let _ = rustix::fs::unlinkat(&self.tracefs, &self.instance, AtFlags::REMOVEDIR);
    }
}

/// Removes the instances of processes that were killed.
fn remove_stale_instances(tracefs: &OwnedFd) -> Result<(), Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let instances = rustix::fs::openat(tracefs, "instances", flags, Mode::empty())?;
    let mut buffer = Vec::with_capacity(8192);
    let mut entries = RawDir::new(instances.as_fd(), buffer.spare_capacity_mut());
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let owner = entry.file_name().to_str().ok().and_then(owner);
        if owner.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            let _ = rustix::fs::unlinkat(&instances, entry.file_name(), AtFlags::REMOVEDIR);
        }
    }
    Ok(())
}

/// Returns the process that an instance with this name belongs to.
fn owner(instance: &str) -> Option<u32> {
    instance.strip_prefix(PREFIX)?.split('-').next()?.parse().ok()
}

/// Parses the header line with the number of events that the buffer holds and that were written to it.
fn entries(line: &str) -> Option<(u64, u64)> {
    let (_, counts) = line.strip_prefix('#')?.split_once("entries-in-buffer/entries-written:")?;
    let (held, written) = counts.split_whitespace().next()?.split_once('/')?;
    Some((held.parse().ok()?, written.parse().ok()?))
}

/// Parses the opcode of an event.
fn opcode(line: &str) -> Option<u32> {
    let (_, event) = line.split_once("fuse_request_send: ")?;
    event.split_once(" opcode ")?.1.split_whitespace().next()?.parse().ok()
}

/// Numbers of requests by opcode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requests(BTreeMap<u32, u64>);

impl Requests {
    /// Returns the number of requests of all kinds.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.values().sum()
    }

    /// Returns the number of requests of one kind.
    #[must_use]
    pub fn of(&self, opcode: Opcode) -> u64 {
        self.0.get(&(opcode as u32)).copied().unwrap_or(0)
    }

    /// Returns the numbers above zero with the kernel's names of the operations (`GETATTR`), in the order of the
    /// opcodes.
    pub fn by_name(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let name = |opcode| Opcode::from_u32(opcode).map_or("unknown", Opcode::name);
        self.0.iter().map(move |(&opcode, &count)| (name(opcode), count))
    }
}

impl fmt::Display for Requests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} requests", self.total())?;
        for (index, (name, count)) in self.by_name().enumerate() {
            write!(f, "{} {name} {count}", if index == 0 { ":" } else { "," })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_trace_are_understood() {
        let event =
            "ls-7 [001] ..... 5.1: fuse_request_send: connection 44 req 2 opcode 22 (FUSE_GETXATTR) len 64 ";
        assert_eq!(opcode(event), Some(22));
        assert_eq!(
            opcode("ls-7 [001] ..... 5.1: fuse_request_end: connection 44 req 2 len 16 error 0"),
            None
        );
        assert_eq!(entries("# entries-in-buffer/entries-written: 12/345   #P:2"), Some((12, 345)));
        assert_eq!(entries("#           TASK-PID     CPU#  |||||  TIMESTAMP  FUNCTION"), None);
    }

    #[test]
    fn an_instance_names_its_owner() {
        assert_eq!(owner("canopy-requests-123-4"), Some(123));
        assert_eq!(owner("somebody-elses"), None);
    }

    #[test]
    fn requests_are_shown_by_name() {
        let requests = Requests(BTreeMap::from([(3, 2), (1, 1)]));
        assert_eq!(requests.to_string(), "3 requests: LOOKUP 1, GETATTR 2");
        assert_eq!((requests.of(Opcode::Getattr), requests.of(Opcode::Open)), (2, 0));
        assert_eq!(Requests::default().to_string(), "0 requests");
    }
}
