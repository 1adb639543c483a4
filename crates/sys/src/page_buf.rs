//! Page-aligned memory at a fixed address.

use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::param::page_size;

/// A private anonymous mapping: zeroed, page-aligned and of fixed size. A page takes memory once it is touched.
///
/// `O_DIRECT` needs aligned memory (open(2)), which a `Vec<u8>` does not guarantee.
pub struct PageBuf {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: this value alone owns the mapping, and access follows the borrow of the value.
unsafe impl Send for PageBuf {}
// SAFETY: a shared PageBuf only returns shared slices.
unsafe impl Sync for PageBuf {}

impl PageBuf {
    /// Maps at least `len` bytes, rounded up to whole pages.
    ///
    /// # Errors
    /// `ENOMEM` when the address space or the commit limit is used up, `EINVAL` for a length of 0.
    pub fn new(len: usize) -> io::Result<PageBuf> {
        let page = page_size();
        let len = len.checked_next_multiple_of(page).ok_or(io::ErrorKind::OutOfMemory)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh anonymous mapping at an address the kernel chooses overlaps no other memory.
        let start =
            unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, protection, MapFlags::PRIVATE)? };
        let start = NonNull::new(start.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(PageBuf { start, len })
    }

    /// Lets every page take memory now (Linux 5.14), so that the kernel can copy to it even for a process that is being
    /// killed, which gets no more.
    pub fn populate(&mut self) {
        // SAFETY: the range is this value's own mapping, and its contents stay as they are.
        let _ =
            unsafe { rustix::mm::madvise(self.start.as_ptr().cast(), self.len, Advice::LinuxPopulateWrite) };
    }
}

impl Deref for PageBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `start` points at `len` mapped, initialised bytes that live as long as `self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for PageBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; the exclusive borrow of `self` makes the slice exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for PageBuf {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `new` and no slice of it can outlive `self`.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

impl fmt::Debug for PageBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PageBuf({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_page_aligned_zeroed_and_rounded_up() {
        let page = page_size();
        let mut buf = PageBuf::new(page + 1).unwrap();
        assert_eq!(buf.len(), 2 * page);
        assert_eq!(buf.as_ptr() as usize % page, 0);
        assert!(buf.iter().all(|&b| b == 0));
        buf[page] = 7;
        assert_eq!(buf[page], 7);
    }

    #[test]
    fn an_empty_or_too_large_buffer_is_an_error() {
        assert!(PageBuf::new(0).is_err());
        assert!(PageBuf::new(usize::MAX).is_err());
    }
}
