//! The data of a file, into another: shared where the filesystem can, and holes stay holes.

use super::lease::LeasedFile;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::SeekFrom;
use rustix::io::Errno;

/// Bytes that are read and written at once where the kernel does not copy by itself.
const CHUNK: usize = 1 << 20;
/// So many bytes are copied before a look whether somebody still wants them, or wants to write the source.
const STEP: u64 = 4 << 20;

/// Copies the first `size` bytes of `source` into the empty `target`, which must be really open.
///
/// Errors: `EINTR` as soon as nobody wants it, `EBUSY` when the source does not keep still, `EIO` when it ends early;
/// whatever reading and writing gives, `ENOSPC` among it.
pub(crate) fn copy_data(
    source: &LeasedFile,
    target: BorrowedFd<'_>,
    size: u64,
    wanted: &dyn Fn() -> bool,
) -> Result<(), Errno> {
    // Costs no space; only within one filesystem that can (ioctl_ficlone(2)).
    if rustix::fs::ioctl_ficlone(target, source.as_fd()).is_ok() {
        return rustix::fs::ftruncate(target, size);
    }
    let mut buffer = Vec::new();
    let mut at = 0;
    while let Some((start, end)) = next_data(source.as_fd(), at, size)? {
        at = start;
        while at < end {
            if !wanted() {
                return Err(Errno::INTR);
            }
            source.check()?;
            let upto = end.min(at + STEP);
            copy_range(source.as_fd(), target, at, upto, &mut buffer)?;
            at = upto;
        }
    }
    rustix::fs::ftruncate(target, size)
}

/// The next run of data at or after `at`, up to `size`.
fn next_data(source: BorrowedFd<'_>, at: u64, size: u64) -> Result<Option<(u64, u64)>, Errno> {
    if at >= size {
        return Ok(None);
    }
    let start = match rustix::fs::seek(source, SeekFrom::Data(at)) {
        Ok(start) => start,
        // Nothing but a hole to the end.
        Err(Errno::NXIO) => return Ok(None),
        // A filesystem that does not tell: all of it is data.
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(Some((at, size))),
        Err(errno) => return Err(errno),
    };
    if start >= size {
        return Ok(None);
    }
    let end = match rustix::fs::seek(source, SeekFrom::Hole(start)) {
        Ok(end) => end,
        Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NXIO) => size,
        Err(errno) => return Err(errno),
    };
    Ok(Some((start, end.clamp(start + 1, size))))
}

fn copy_range(
    source: BorrowedFd<'_>,
    target: BorrowedFd<'_>,
    start: u64,
    end: u64,
    buffer: &mut Vec<u8>,
) -> Result<(), Errno> {
    let mut at = start;
    // A buffer in use says that the kernel has refused before.
    while buffer.is_empty() && at < end {
        let (mut from, mut to) = (at, at);
        let len = usize::try_from(end - at).unwrap_or(usize::MAX);
        match rustix::fs::copy_file_range(source, Some(&mut from), target, Some(&mut to), len) {
            // Some filesystems say that there is nothing where there is something.
            Ok(0) => break,
            Ok(copied) => at += copied as u64,
            Err(Errno::INTR) => {}
            Err(errno @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG)) => return Err(errno),
            // Another filesystem, or one that cannot; what is really wrong shows below.
            Err(_) => break,
        }
    }
    if at < end {
        buffer.resize(CHUNK, 0);
    }
    while at < end {
        let want = usize::try_from(end - at).map_or(CHUNK, |left| left.min(CHUNK));
        match rustix::io::pread(source, &mut buffer[..want], at) {
            Ok(0) => return Err(Errno::IO),
            Ok(read) => {
                write_all(target, &buffer[..read], at)?;
                at += read as u64;
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

fn write_all(target: BorrowedFd<'_>, mut data: &[u8], mut at: u64) -> Result<(), Errno> {
    while !data.is_empty() {
        match rustix::io::pwrite(target, data, at) {
            Ok(0) => return Err(Errno::IO),
            Ok(written) => {
                data = &data[written..];
                at += written as u64;
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}
