//! Memory that a process shares with those that it forks.

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
}

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
        Ok(SharedWords { start, len })
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
}
