//! Memory that a process shares with those that it forks, and with the program that takes its place.

#[cfg(loom)]
pub mod model;

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use std::io;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// Words that this process and its children see at the same address, zero at first. Pages take memory once they are
/// touched.
#[derive(Debug)]
pub struct SharedWords {
    start: NonNull<AtomicU64>,
    len: usize,
    /// What is mapped; `None` for anonymous memory.
    file: Option<OwnedFd>,
}

/// The size of a file stays.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

// SAFETY: all that a value gives access to is atomic.
unsafe impl Send for SharedWords {}
// SAFETY: as above.
unsafe impl Sync for SharedWords {}

impl SharedWords {
    /// Maps so many words.
    ///
    /// # Errors
    /// `ENOMEM`, and `EINVAL` for none.
    pub fn new(len: usize) -> io::Result<SharedWords> {
        let bytes = len.checked_mul(size_of::<AtomicU64>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let (protection, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::NORESERVE);
        // SAFETY: a fresh mapping at an address that the kernel chooses overlaps no other memory.
        let start = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), bytes, protection, flags)? };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(SharedWords { start, len, file: None })
    }

    /// Maps so many words of a file in memory that has this name in /proc, and whose size nobody can change.
    ///
    /// # Errors
    /// Those of memfd_create(2) and mmap(2).
    pub fn named(name: &str, len: usize) -> io::Result<SharedWords> {
        let bytes = len.checked_mul(size_of::<AtomicU64>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let file = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&file, bytes as u64)?;
        rustix::fs::fcntl_add_seals(&file, SEALS)?;
        SharedWords::map(file)
    }

    /// Maps the words of another value's [file](Self::file).
    ///
    /// # Errors
    /// `EINVAL` for any other file; `ENOMEM`.
    pub fn map(file: OwnedFd) -> io::Result<SharedWords> {
        if !rustix::fs::fcntl_get_seals(&file)?.contains(SEALS) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let bytes = usize::try_from(rustix::fs::fstat(&file)?.st_size).unwrap_or(0);
        // SAFETY: as for anonymous memory. The seals keep the file from becoming shorter than the mapping.
        let start = unsafe {
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            rustix::mm::mmap(std::ptr::null_mut(), bytes, protection, MapFlags::SHARED, &file, 0)?
        };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(SharedWords { start, len: bytes / size_of::<AtomicU64>(), file: Some(file) })
    }

    /// Returns the file with the words; `None` for anonymous memory.
    #[must_use]
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }
}

impl Deref for SharedWords {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: the range is mapped for as long as `self` lives, page-aligned, and zeros are a valid value. Other
        // processes change it too, which atomics allow.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        // SAFETY: this value alone owns the range, and no slice of it outlives the value.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len * size_of::<AtomicU64>()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn words_are_zero_at_first_and_keep_what_is_stored() {
        let words = SharedWords::new(1 << 20).unwrap();
        assert_eq!(words.len(), 1 << 20);
        words[words.len() - 1].store(7, Ordering::Relaxed);
        assert_eq!((words[0].load(Ordering::Relaxed), words[(1 << 20) - 1].load(Ordering::Relaxed)), (0, 7));
        assert!(SharedWords::new(0).is_err());
    }

    #[test]
    fn a_file_is_mapped_again_with_what_was_stored() {
        let words = SharedWords::named("canopy-test", 1024).unwrap();
        words[1023].store(7, Ordering::Relaxed);
        let file = || words.file().unwrap().try_clone_to_owned().unwrap();
        let again = SharedWords::map(file()).unwrap();
        assert_eq!((again.len(), again[1023].load(Ordering::Relaxed)), (1024, 7));
        assert!(rustix::fs::ftruncate(file(), 0).is_err(), "its size is fixed");
        assert!(SharedWords::map(tempfile::tempfile().unwrap().into()).is_err());
        assert!(SharedWords::named("canopy-test", 0).is_err());
    }
}
