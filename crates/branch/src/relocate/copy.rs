//! Copying the data of a file: by reflink where the filesystem supports it, and keeping holes.
//!
//! Where a filesystem does not report holes (FUSE servers without `lseek`, such as gocryptfs and sshfs), each whole block
//! of zeros becomes a hole. Their `st_blocks` is no help: many compute it from the size.

use super::lease::LeasedFile;
use crate::fs::magic;
use canopy_sys::creds;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Bytes per read and write where the kernel does not copy by itself.
const CHUNK: usize = 1 << 20;
/// The size of a block that becomes a hole if it has only zeros. Divides `CHUNK` and `STEP`.
const BLOCK: usize = 4 << 10;
/// Bytes copied between two checks whether the copy is still wanted and nobody wants to write the source.
pub const STEP: u64 = 4 << 20;

/// Copies the first `size` bytes of `source` into the empty `target`, which must not be an `O_PATH` descriptor.
///
/// It takes nothing that the target's filesystem keeps for root.
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
    let kind =
        |file: BorrowedFd<'_>| Ok::<_, Errno>(rustix::fs::fstatfs(file)?.f_type as u64 & u64::from(u32::MAX));
    let _nobody = if magic::keeps_reserve(kind(target)?) { Some(creds::without_reserve()?) } else { None };
    let skips_zeros = !magic::reports_holes(kind(source.as_fd())?);
    let mut copier = Copier { source: source.as_fd(), target, skips_zeros, buffer: Vec::new() };
    let mut at = 0;
    while let Some((start, end)) = next_data(source.as_fd(), at, size)? {
        at = start;
        while at < end {
            if !wanted() {
                return Err(Errno::INTR);
            }
            source.check()?;
            let upto = end.min(at + STEP);
            copier.copy(at, upto)?;
            at = upto;
        }
    }
    rustix::fs::ftruncate(target, size)
}

/// Returns whether two files hold the same `size` bytes.
///
/// Errors: those of `copy_data`; `EBUSY` also if another process opens the second file for writing.
pub fn same_data(
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

struct Copier<'a> {
    source: BorrowedFd<'a>,
    /// Empty where nothing was copied yet.
    target: BorrowedFd<'a>,
    /// Leaves out blocks of zeros.
    skips_zeros: bool,
    /// Empty until the kernel has failed to copy by itself once.
    buffer: Vec<u8>,
}

impl Copier<'_> {
    /// Copies a range.
    fn copy(&mut self, start: u64, end: u64) -> Result<(), Errno> {
        let mut at = start;
        while self.buffer.is_empty() && !self.skips_zeros && at < end {
            let (mut from, mut to) = (at, at);
            let len = usize::try_from(end - at).unwrap_or(usize::MAX);
            match rustix::fs::copy_file_range(self.source, Some(&mut from), self.target, Some(&mut to), len) {
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
            self.buffer.resize(CHUNK, 0);
        }
        while at < end {
            let want = usize::try_from(end - at).map_or(CHUNK, |left| left.min(CHUNK));
            match rustix::io::pread(self.source, &mut self.buffer[..want], at) {
                Ok(0) => return Err(Errno::IO),
                Ok(read) => {
                    self.write(read, at)?;
                    at += read as u64;
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// Writes the first `len` bytes of the buffer.
    fn write(&self, len: usize, at: u64) -> Result<(), Errno> {
        let data = &self.buffer[..len];
        if self.skips_zeros {
            runs(data, at).try_for_each(|(start, run)| write_all(self.target, run, at + start as u64))
        } else {
            write_all(self.target, data, at)
        }
    }
}

/// Returns what is left of data at an offset without its whole, aligned blocks of zeros: where each run starts in it, and
/// the run.
fn runs(data: &[u8], at: u64) -> impl Iterator<Item = (usize, &[u8])> {
    // Up to the first boundary.
    let lead = (at.next_multiple_of(BLOCK as u64) - at) as usize;
    let lead = lead.min(data.len());
    let starts = (lead..data.len()).step_by(BLOCK);
    let blocks = (lead > 0).then_some((0, lead)).into_iter();
    let mut blocks = blocks
        .chain(starts.map(move |start| (start, (start + BLOCK).min(data.len()))))
        .filter(|&(start, end)| end - start < BLOCK || !is_zero(&data[start..end]))
        .peekable();
    std::iter::from_fn(move || {
        let (start, mut end) = blocks.next()?;
        while let Some((_, next)) = blocks.next_if(|&(next, _)| next == end) {
            end = next;
        }
        Some((start, &data[start..end]))
    })
}

fn is_zero(block: &[u8]) -> bool {
    block.as_chunks::<8>().0.iter().all(|word| *word == [0; 8])
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

#[cfg(test)]
mod tests {
    use super::*;

    /// What is left out is zero, and whatever is not in a whole block of zeros is kept, wherever a read begins and ends.
    #[test]
    fn only_whole_blocks_of_zeros_are_left_out() {
        let block = BLOCK as u64;
        for at in [0, 1, block - 1, block, 3 * block + 17] {
            for len in [1, BLOCK - 1, BLOCK, BLOCK + 1, 5 * BLOCK, 7 * BLOCK + 3] {
                for data in [&[][..], &[0], &[len - 1], &[len / 2], &[BLOCK.min(len - 1), len / 3]] {
                    let mut bytes = vec![0; len];
                    data.iter().for_each(|&place| bytes[place] = 7);
                    let mut kept = vec![false; len];
                    for (start, run) in runs(&bytes, at) {
                        assert_eq!(run, &bytes[start..start + run.len()]);
                        kept[start..start + run.len()].fill(true);
                    }
                    for (place, is_kept) in kept.into_iter().enumerate() {
                        let begin =
                            ((at + place as u64) / block * block).checked_sub(at).map(|it| it as usize);
                        let whole = begin.and_then(|begin| bytes.get(begin..begin + BLOCK));
                        let hole = whole.is_some_and(|whole| whole.iter().all(|byte| *byte == 0));
                        assert_eq!(is_kept, !hole, "{place} of {len} at {at}");
                    }
                }
            }
        }
    }
}
