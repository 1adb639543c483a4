//! Copying the data of a file: by reflink where the filesystem supports it, and keeping holes.

use super::lease::LeasedFile;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Bytes per read and write where the kernel does not copy by itself.
const CHUNK: usize = 1 << 20;
/// Bytes copied between two checks whether the copy is still wanted and nobody wants to write the source.
pub(crate) const STEP: u64 = 4 << 20;

/// Copies the first `size` bytes of `source` into the empty `target`, which must not be an `O_PATH` descriptor.
///
/// Errors: `EINTR` as soon as the copy is not `wanted`, `EBUSY` if another process opens the source for writing,
/// `EIO` if the source ends early; those of reading and writing, such as `ENOSPC`.
pub(crate) fn copy_data(
    source: &LeasedFile,
    target: BorrowedFd<'_>,
    size: u64,
    wanted: &dyn Fn() -> bool,
) -> Result<(), Errno> {
    // A reflink takes no space; it works within one filesystem only (ioctl_ficlone(2)).
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

/// Returns whether two files hold the same `size` bytes.
///
/// Errors: those of [`copy_data`]; `EBUSY` also if another process opens the second file for writing.
pub(crate) fn same_data(
    one: &LeasedFile,
    other: &LeasedFile,
    size: u64,
    wanted: &dyn Fn() -> bool,
) -> Result<bool, Errno> {
    let files = [File::from(rustix::io::dup(one)?), File::from(rustix::io::dup(other)?)];
    let mut buffers = [vec![0; CHUNK], vec![0; CHUNK]];
    let mut at = 0;
    while at < size {
        if at % STEP == 0 && !wanted() {
            return Err(Errno::INTR);
        }
        one.check().and_then(|()| other.check())?;
        let length = usize::try_from(size - at).map_or(CHUNK, |rest| rest.min(CHUNK));
        for (file, buffer) in files.iter().zip(&mut buffers) {
            let read = file.read_exact_at(&mut buffer[..length], at);
            read.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        }
        if buffers[0][..length] != buffers[1][..length] {
            return Ok(false);
        }
        at += length as u64;
    }
    Ok(true)
}

/// Returns the next range of data at or after `at`, up to `size`.
fn next_data(source: BorrowedFd<'_>, at: u64, size: u64) -> Result<Option<(u64, u64)>, Errno> {
    if at >= size {
        return Ok(None);
    }
    let start = match rustix::fs::seek(source, SeekFrom::Data(at)) {
        Ok(start) => start,
        // Only a hole is left.
        Err(Errno::NXIO) => return Ok(None),
        // The filesystem does not report holes: treat everything as data.
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
    // The buffer is empty until copy_file_range has failed once.
    while buffer.is_empty() && at < end {
        let (mut from, mut to) = (at, at);
        let len = usize::try_from(end - at).unwrap_or(usize::MAX);
        match rustix::fs::copy_file_range(source, Some(&mut from), target, Some(&mut to), len) {
            // Some filesystems return 0 although there is data.
            Ok(0) => break,
            Ok(copied) => at += copied as u64,
            Err(Errno::INTR) => {}
            Err(errno @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG)) => return Err(errno),
            // Another filesystem, or one without support; a real error shows again below.
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
