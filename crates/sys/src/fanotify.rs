//! Change events of whole filesystems, by directory and name (fanotify(7)). Events identify directories by file handle;
//! [`file_handle`](crate::file_handle) opens these.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use crate::file_handle::HANDLE_MAX;

/// The events that [`mark`] asks for, and their bits (`FAN_*`). `ACCESS` is not among them: it would slow down every read on
/// the filesystem.
pub const CREATE: u64 = libc::FAN_CREATE;
pub const DELETE: u64 = libc::FAN_DELETE;
/// The first half of a rename, with the old name. The second half is the next event.
pub const MOVED_FROM: u64 = libc::FAN_MOVED_FROM;
/// The second half of a rename, with the new name.
pub const MOVED_TO: u64 = libc::FAN_MOVED_TO;
pub const ATTRIB: u64 = libc::FAN_ATTRIB;
pub const CLOSE_WRITE: u64 = libc::FAN_CLOSE_WRITE;
/// A file was written or truncated, or its modification time alone was set. Not: stores through a mapping, and what libaio and
/// loop devices write. Only on request, because it costs each write a microsecond; see [`ignore_writes`].
pub const MODIFY: u64 = libc::FAN_MODIFY;
/// The event is about a directory.
pub const ONDIR: u64 = libc::FAN_ONDIR;
/// Events were lost.
pub const OVERFLOW: u64 = libc::FAN_Q_OVERFLOW;

/// A rename as a single event, which costs the renaming process half as much as two.
const RENAME: u64 = libc::FAN_RENAME;

const WANTED: u64 = CREATE | DELETE | RENAME | ATTRIB | CLOSE_WRITE | ONDIR;

/// Opens a group that reports names and their targets (Linux 5.17). Reading from it does not block, and the length of
/// its queue is the system's (`fs.fanotify.max_queued_events`).
///
/// # Errors
/// `EPERM` without `CAP_SYS_ADMIN`, `EINVAL` on an older kernel, `ENOSYS` without fanotify, `EMFILE`.
pub fn open() -> io::Result<OwnedFd> {
    let flags =
        libc::FAN_CLASS_NOTIF | libc::FAN_CLOEXEC | libc::FAN_NONBLOCK | libc::FAN_REPORT_DFID_NAME_TARGET;
    // SAFETY: fanotify_init takes plain numbers.
    let fd = unsafe { libc::fanotify_init(flags, (libc::O_RDONLY | libc::O_CLOEXEC) as libc::c_uint) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just opened this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Returns whether the descriptor with this number is a group's.
#[must_use]
pub fn is_group(number: RawFd) -> bool {
    std::fs::read_link(format!("/proc/self/fd/{number}"))
        .is_ok_and(|to| to.as_os_str() == "anon_inode:[fanotify]")
}

/// Starts or stops (`on`) events from the filesystem that contains `within`, which must not be an `O_PATH` descriptor;
/// `writes`: [`MODIFY`] too.
///
/// # Errors
/// `ENODEV` and `EOPNOTSUPP` for a filesystem without an id or without file handles, `EXDEV` in a btrfs subvolume other
/// than the top-level one (see [`open_btrfs_toplevel`](crate::file_handle::open_btrfs_toplevel)), `EPERM` without
/// `CAP_SYS_ADMIN`, `ENOENT` when stopping events that were never started.
pub fn mark(group: BorrowedFd<'_>, within: BorrowedFd<'_>, on: bool, writes: bool) -> io::Result<()> {
    let what = if on { libc::FAN_MARK_ADD } else { libc::FAN_MARK_REMOVE };
    let events = if writes { WANTED | MODIFY } else { WANTED };
    // SAFETY: without a path, fanotify_mark reads none of our memory.
    let result = unsafe {
        libc::fanotify_mark(
            group.as_raw_fd(),
            what | libc::FAN_MARK_FILESYSTEM,
            events,
            within.as_raw_fd(),
            std::ptr::null(),
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Stops or resumes [`MODIFY`] events of a file or directory, for which `O_PATH` is enough. The kernel may forget that, with the
/// inode, once nothing has it open. It costs each write a quarter of a microsecond.
///
/// # Errors
/// `EINVAL` before Linux 6.0, `ENOENT` when resuming what was not stopped, or was forgotten.
pub fn ignore_writes(group: BorrowedFd<'_>, file: BorrowedFd<'_>, ignore: bool) -> io::Result<()> {
    let what =
        if ignore { libc::FAN_MARK_ADD | libc::FAN_MARK_IGNORED_SURV_MODIFY } else { libc::FAN_MARK_REMOVE };
    let path = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    // SAFETY: the path is a C string.
    let result = unsafe {
        libc::fanotify_mark(
            group.as_raw_fd(),
            what | libc::FAN_MARK_IGNORE | libc::FAN_MARK_EVICTABLE,
            MODIFY,
            libc::AT_FDCWD,
            path.as_ptr(),
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Resumes the events of all files at once.
pub fn ignore_nothing(group: BorrowedFd<'_>) {
    // SAFETY: without a path, fanotify_mark reads none of our memory.
    unsafe {
        libc::fanotify_mark(group.as_raw_fd(), libc::FAN_MARK_FLUSH, 0, libc::AT_FDCWD, std::ptr::null())
    };
}

/// One change, borrowed from the buffer it was read into.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event<'a> {
    pub mask: u64,
    /// The process that made the change; 0 when it is in another PID namespace.
    pub pid: i32,
    /// Directory and name; `None` for an event without one, such as the loss of events.
    pub entry: Option<Entry<'a>>,
    /// The file that the name refers, or referred, to.
    pub target: Option<Target<'a>>,
}

/// A file, by its filesystem's id and its file handle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Target<'a> {
    pub fsid: u64,
    pub handle: &'a [u8],
}

/// A directory entry: the directory and a name in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry<'a> {
    /// The filesystem's id, as statvfs(3) returns it.
    pub fsid: u64,
    /// The directory's file handle: length, type, bytes.
    pub dir: &'a [u8],
    /// `.` when the event is about the directory itself.
    pub name: &'a [u8],
}

const DFID_NAME: u8 = libc::FAN_EVENT_INFO_TYPE_DFID_NAME;
const OLD_DFID_NAME: u8 = libc::FAN_EVENT_INFO_TYPE_OLD_DFID_NAME;
const NEW_DFID_NAME: u8 = libc::FAN_EVENT_INFO_TYPE_NEW_DFID_NAME;

/// `sizeof(struct fanotify_event_metadata)`
const METADATA: usize = 24;
/// `sizeof(struct fanotify_event_info_fid)` without the handle: type, padding, length and filesystem id.
const INFO: usize = 12;
/// The length of the longest event, in bytes: two directories, a name in each (`NAME_MAX`, padded), and the target.
pub const EVENT_MAX: usize = METADATA + 3 * (INFO + 8 + HANDLE_MAX) + 2 * (256 + 8);

/// Returns the events in `buffer`, as read from a group. The first event that cannot be parsed ends the list.
pub fn events(mut buffer: &[u8]) -> impl Iterator<Item = Event<'_>> {
    std::iter::from_fn(move || {
        let len = u32::from_ne_bytes(*buffer.first_chunk()?) as usize;
        let (event, rest) = buffer.split_at_checked(len).filter(|_| len >= METADATA)?;
        buffer = rest;
        halves(event)
    })
    .flatten()
    .flatten()
}

/// Turns a rename into two events. Any other event stays one.
fn halves(event: &[u8]) -> Option<[Option<Event<'_>>; 2]> {
    let (event, old) = parse(event)?;
    if event.mask & RENAME == 0 {
        return Some([Some(event), None]);
    }
    let half = |kind: u64, entry| Some(Event { mask: event.mask & !RENAME | kind, entry, ..event });
    Some([half(MOVED_FROM, old), half(MOVED_TO, event.entry)])
}

/// Parses an event. The second value is the old entry of a rename.
fn parse(event: &[u8]) -> Option<(Event<'_>, Option<Entry<'_>>)> {
    let metadata_len = u16::from_ne_bytes(*event.get(6..)?.first_chunk()?) as usize;
    let mut parsed = Event {
        mask: u64::from_ne_bytes(*event.get(8..)?.first_chunk()?),
        pid: i32::from_ne_bytes(*event.get(20..)?.first_chunk()?),
        entry: None,
        target: None,
    };
    let mut old = None;
    let mut infos = event.get(metadata_len..)?;
    while let Some((&kind, _)) = infos.split_first() {
        let len = u16::from_ne_bytes(*infos.get(2..)?.first_chunk()?) as usize;
        let (info, rest) = infos.split_at_checked(len).filter(|_| len >= INFO + 8)?;
        infos = rest;
        let half = |at: usize| Some(u64::from(u32::from_ne_bytes(*info.get(at..)?.first_chunk()?)));
        let fsid = half(4)? | half(8)? << 32;
        let bytes = u32::from_ne_bytes(*info.get(INFO..)?.first_chunk()?) as usize;
        let (handle, name) = info.get(INFO..)?.split_at_checked(8 + bytes)?;
        match kind {
            DFID_NAME | OLD_DFID_NAME | NEW_DFID_NAME => {
                let name = name.split(|&byte| byte == 0).next()?;
                let entry = Some(Entry { fsid, dir: handle, name });
                if kind == OLD_DFID_NAME { old = entry } else { parsed.entry = entry }
            }
            libc::FAN_EVENT_INFO_TYPE_DFID => parsed.entry = Some(Entry { fsid, dir: handle, name: b"." }),
            libc::FAN_EVENT_INFO_TYPE_FID => parsed.target = Some(Target { fsid, handle }),
            _ => {}
        }
    }
    Some((parsed, old))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns events in the layout of Linux 6.18: a file is created, a directory is renamed, and events are lost.
    fn bytes() -> Vec<u8> {
        let info = |kind: u8, name: &[u8]| {
            let len = (INFO + 8 + 8 + name.len()) as u16;
            let mut info = vec![kind, 0];
            info.extend(len.to_ne_bytes());
            info.extend(0x0000_0002_0000_0001_u64.to_ne_bytes());
            info.extend(8_u32.to_ne_bytes());
            info.extend(1_i32.to_ne_bytes());
            info.extend([kind; 8]);
            info.extend(name);
            info
        };
        let event = |mask: u64, pid: i32, infos: &[u8]| {
            let mut event = ((METADATA + infos.len()) as u32).to_ne_bytes().to_vec();
            event.extend([3, 0]);
            event.extend((METADATA as u16).to_ne_bytes());
            event.extend(mask.to_ne_bytes());
            event.extend((-1_i32).to_ne_bytes());
            event.extend(pid.to_ne_bytes());
            event.extend(infos);
            event
        };
        let infos = [info(2, b"file\0\0\0\0"), info(1, b"")].concat();
        let places = [info(10, b"old\0"), info(12, b"new\0"), info(1, b"")].concat();
        let renamed = event(RENAME | ONDIR, 78, &places);
        [event(CREATE, 77, &infos), renamed, event(OVERFLOW, 0, b"")].concat()
    }

    #[test]
    fn events_of_the_kernel_are_parsed() {
        let bytes = bytes();
        let list: Vec<Event<'_>> = events(&bytes).collect();
        assert_eq!(list.len(), 4);
        let entry = list[0].entry.unwrap();
        assert_eq!((list[0].mask, list[0].pid, entry.name), (CREATE, 77, &b"file"[..]));
        assert_eq!((entry.fsid, entry.dir.len(), entry.dir[15]), (0x0000_0002_0000_0001, 16, 2));
        assert_eq!(list[0].target.map(|target| (target.handle.len(), target.handle[15])), Some((16, 1)));
        let half = |event: &Event<'_>| {
            let entry =
                event.entry.map(|entry| (entry.dir[15], String::from_utf8_lossy(entry.name).into_owned()));
            (event.mask, event.pid, entry, event.target.map(|target| target.handle[15]))
        };
        assert_eq!(half(&list[1]), (MOVED_FROM | ONDIR, 78, Some((10, "old".into())), Some(1)));
        assert_eq!(half(&list[2]), (MOVED_TO | ONDIR, 78, Some((12, "new".into())), Some(1)));
        assert_eq!((list[3].mask, list[3].entry, list[3].target), (OVERFLOW, None, None));
    }

    #[test]
    fn a_truncated_event_is_dropped() {
        let bytes = bytes();
        for len in 0..bytes.len() {
            assert!(events(&bytes[..len]).count() <= 3, "{len} bytes");
        }
    }
}
