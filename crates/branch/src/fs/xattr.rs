//! Extended attributes of a name in a directory, and of the file behind a descriptor.

use super::beneath::{self, ProcPath};
use canopy_sys::xattr::{self, Links};
use rustix::fd::BorrowedFd;
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use rustix::path::DecInt;
use smallvec::SmallVec;
use std::ffi::CStr;

/// Reads an extended attribute of the file `name` in a directory; does not follow a symlink. Returns the size if the
/// buffer is empty.
pub fn get_at(dir: BorrowedFd<'_>, name: &[u8], attribute: &[u8], buffer: &mut [u8]) -> Result<usize, Errno> {
    let attribute = terminated(attribute);
    match xattr::getxattrat(dir, text(&terminated(name))?, text(&attribute)?, buffer) {
        // The detour through /proc takes some 4 us.
        Err(Errno::NOSYS) => {
            let path = [ProcPath::of(dir).as_bytes(), b"/", name].concat();
            if buffer.is_empty() {
                rustix::fs::lgetxattr_query(path, text(&attribute)?)
            } else {
                rustix::fs::lgetxattr(path, text(&attribute)?, buffer)
            }
        }
        other => other,
    }
}

/// Lists the extended attributes of the file `name` in a directory; does not follow a symlink. Returns the size of the
/// list if the buffer is empty.
pub fn list_at(dir: BorrowedFd<'_>, name: &[u8], buffer: &mut [u8]) -> Result<usize, Errno> {
    match xattr::listxattrat(dir, text(&terminated(name))?, buffer) {
        Err(Errno::NOSYS) => {
            let path = [ProcPath::of(dir).as_bytes(), b"/", name].concat();
            if buffer.is_empty() {
                rustix::fs::llistxattr_query(path)
            } else {
                rustix::fs::llistxattr(path, buffer)
            }
        }
        other => other,
    }
}

/// Reads an extended attribute of the file behind a descriptor, for which `O_PATH` is enough. Returns the size if the
/// buffer is empty.
pub fn get(file: BorrowedFd<'_>, name: &[u8], buffer: &mut [u8]) -> Result<usize, Errno> {
    let by_descriptor = if buffer.is_empty() {
        rustix::fs::fgetxattr_query(file, name)
    } else {
        rustix::fs::fgetxattr(file, name, &mut *buffer)
    };
    let path = ProcPath::of(file);
    match by_descriptor {
        // The descriptor is open with `O_PATH`.
        Err(Errno::BADF) if buffer.is_empty() => rustix::fs::getxattr_query(path.as_bytes(), name),
        Err(Errno::BADF) => rustix::fs::getxattr(path.as_bytes(), name, buffer),
        other => other,
    }
}

/// The longest value of an attribute, and the longest list of them, in bytes (xattr(7)).
pub const MAX: usize = 65536;

/// Reads the whole value of an extended attribute of the file behind a descriptor, for which `O_PATH` is enough. `None` if it has
/// none.
pub fn value(file: BorrowedFd<'_>, name: &[u8]) -> Result<Option<Vec<u8>>, Errno> {
    // Most are short.
    let mut value = vec![0; 256];
    loop {
        match get(file, name, &mut value) {
            Ok(length) => {
                value.truncate(length);
                return Ok(Some(value));
            }
            Err(Errno::RANGE) if value.len() < MAX => value.resize(MAX, 0),
            Err(Errno::NODATA) => return Ok(None),
            Err(errno) => return Err(errno),
        }
    }
}

/// Lists the extended attributes of the file behind a descriptor, for which `O_PATH` is enough. Returns the size of the
/// list if the buffer is empty.
pub fn list(file: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<usize, Errno> {
    let path = ProcPath::of(file);
    if buffer.is_empty() {
        rustix::fs::listxattr_query(path.as_bytes())
    } else {
        rustix::fs::listxattr(path.as_bytes(), buffer)
    }
}

/// Sets an extended attribute of the file behind a descriptor, for which `O_PATH` is enough.
pub fn set(file: BorrowedFd<'_>, name: &[u8], value: &[u8], flags: XattrFlags) -> Result<(), Errno> {
    match rustix::fs::fsetxattr(file, name, value, flags) {
        Err(Errno::BADF) => {}
        other => return other,
    }
    let set = |dir: BorrowedFd<'_>, number: &CStr, name: &CStr| {
        xattr::setxattrat(dir, number, Links::Follow, name, value, flags.bits())
    };
    match by_number(file, name, set)? {
        Some(()) => Ok(()),
        None => rustix::fs::setxattr(ProcPath::of(file).as_bytes(), name, value, flags),
    }
}

/// Removes an extended attribute of the file behind a descriptor, for which `O_PATH` is enough.
pub fn remove(file: BorrowedFd<'_>, name: &[u8]) -> Result<(), Errno> {
    match rustix::fs::fremovexattr(file, name) {
        Err(Errno::BADF) => {}
        other => return other,
    }
    let remove = |dir: BorrowedFd<'_>, number: &CStr, name: &CStr| {
        xattr::removexattrat(dir, number, Links::Follow, name)
    };
    match by_number(file, name, remove)? {
        Some(()) => Ok(()),
        None => rustix::fs::removexattr(ProcPath::of(file).as_bytes(), name),
    }
}

/// Runs a call on an attribute of a file that is named by the number of its descriptor. `None` if that is not possible.
fn by_number(
    file: BorrowedFd<'_>,
    attribute: &[u8],
    call: impl FnOnce(BorrowedFd<'_>, &CStr, &CStr) -> Result<(), Errno>,
) -> Result<Option<()>, Errno> {
    let Some(descriptors) = beneath::descriptors() else { return Ok(None) };
    let number = DecInt::from_fd(file);
    match call(descriptors, number.as_c_str(), text(&terminated(attribute))?) {
        Err(Errno::NOSYS) => Ok(None),
        other => other.map(Some),
    }
}

fn terminated(bytes: &[u8]) -> SmallVec<[u8; 256]> {
    bytes.iter().copied().chain([0]).collect()
}

fn text(bytes: &[u8]) -> Result<&CStr, Errno> {
    CStr::from_bytes_with_nul(bytes).map_err(|_| Errno::INVAL)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;
    use rustix::fs::{Mode, OFlags};

    #[test]
    fn attributes_of_pinned_and_open_files_change_and_are_read() {
        let tmp = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = tmp.path().join("file");
        std::fs::write(&path, "").unwrap();
        let dir = rustix::fs::open(tmp.path(), OFlags::PATH, Mode::empty()).unwrap();
        for (flags, older) in [(OFlags::PATH, false), (OFlags::PATH, true), (OFlags::RDONLY, false)] {
            canopy_sys::xattr::pretend_missing(older);
            let file = rustix::fs::open(&path, flags, Mode::empty()).unwrap();
            let (file, dir) = (file.as_fd(), dir.as_fd());
            set(file, b"user.k", b"value", XattrFlags::CREATE).unwrap();
            assert_eq!(set(file, b"user.k", b"value", XattrFlags::CREATE), Err(Errno::EXIST));
            let mut buffer = [0; 99];
            for answer in [get(file, b"user.k", &mut buffer), get_at(dir, b"file", b"user.k", &mut buffer)] {
                assert_eq!((answer, &buffer[..5]), (Ok(5), &b"value"[..]));
            }
            assert_eq!(
                (get(file, b"user.k", &mut []), get_at(dir, b"file", b"user.k", &mut [])),
                (Ok(5), Ok(5))
            );
            let listed = list(file, &mut buffer);
            assert_eq!(list_at(dir, b"file", &mut [0; 99]), listed);
            assert_eq!((list(file, &mut []), list_at(dir, b"file", &mut [])), (listed, listed));
            assert!(buffer[..listed.unwrap()].split(|&byte| byte == 0).any(|name| name == b"user.k"));
            remove(file, b"user.k").unwrap();
            assert_eq!(remove(file, b"user.k"), Err(Errno::NODATA));
        }
    }

    #[test]
    fn whole_values_are_read_whatever_their_length() {
        let tmp = tempfile::tempdir_in("/dev/shm").unwrap();
        let file = std::fs::File::create(tmp.path().join("file")).unwrap();
        assert_eq!(value(file.as_fd(), b"user.k"), Ok(None));
        for length in [0, 1, 255, 256, 257, 5000, MAX] {
            let long = vec![b'x'; length];
            set(file.as_fd(), b"user.k", &long, XattrFlags::empty()).unwrap();
            assert_eq!(value(file.as_fd(), b"user.k"), Ok(Some(long)), "{length} bytes");
        }
    }
}
