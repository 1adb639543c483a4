//! The memory of an entry of FUSE's io_uring transport, which is mapped twice.
//!
//! The kernel remembers the addresses of an entry's buffers, and copies requests to them and replies from them for as
//! long as the connection lives. A system call on a disk that hangs remembers its addresses, too, for as long as it
//! hangs. So that the entry can be used again meanwhile, these are different addresses of the same pages: the [`Window`]
//! is known to the kernel, the [`Pages`] to those who handle requests. Taking an entry from a thread that is stuck puts
//! fresh pages into its window ([`Window::renew`]). The thread keeps the old ones, where what it still reads or writes
//! concerns nobody else.

use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::OwnedFd;
use std::ptr::NonNull;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::param::page_size;

/// A shared mapping of a whole file of its own length.
struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping is a range of addresses. Those who own one decide who accesses it.
unsafe impl Send for Mapping {}
// SAFETY: a shared Mapping gives access to nothing but its address.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(file: &OwnedFd, len: usize) -> io::Result<Mapping> {
        // SAFETY: a fresh mapping at an address that the kernel chooses overlaps no other memory.
        let start =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, PROTECTION, MapFlags::SHARED, file, 0)? };
        let start = NonNull::new(start.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Mapping { start, len })
    }
}

const PROTECTION: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this value alone owns the range, and no slice of it outlives the value that owns this one.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// Creates a file in memory that only mappings refer to.
fn fresh(len: usize) -> io::Result<OwnedFd> {
    let file = memfd_create(c"canopy-entry", MemfdFlags::CLOEXEC | MemfdFlags::NOEXEC_SEAL)?;
    ftruncate(&file, len as u64)?;
    Ok(file)
}

/// The addresses that the kernel knows, of an entry that holds a request. This process does not access memory through
/// them. Whoever has the window, and nobody else, may answer the request.
pub struct Window {
    mapping: Mapping,
    /// Where its pages are.
    pages: NonNull<u8>,
    /// The entry's queue.
    pub(super) queue: u16,
    /// By which the kernel knows the request.
    pub(super) commit_id: u64,
}

// SAFETY: a window gives access to no memory.
unsafe impl Send for Window {}
// SAFETY: as above.
unsafe impl Sync for Window {}

impl Window {
    /// Returns the address, for the kernel.
    pub(super) fn address(&self) -> usize {
        self.mapping.start.as_ptr().expose_provenance()
    }

    /// Returns the number by which the kernel knows the request.
    #[must_use]
    pub fn commit_id(&self) -> u64 {
        self.commit_id
    }

    /// Returns whether these are the pages in the window.
    pub(super) fn shows(&self, pages: &Pages) -> bool {
        self.pages == pages.0.start
    }

    /// Puts fresh pages into the window. The pages that it had so far stay as they are.
    ///
    /// # Errors
    /// Gives the window back with `ENFILE`, `EMFILE` or `ENOMEM`.
    pub(super) fn renew(mut self) -> Result<Memory, (Window, io::Error)> {
        let len = self.mapping.len;
        let (file, pages) = match fresh(len).and_then(|file| Ok((Mapping::new(&file, len)?, file))) {
            Ok((pages, file)) => (file, pages),
            Err(error) => return Err((self, error)),
        };
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: this replaces the window's own range. No slice of it exists, and the kernel accesses it only in a call
        // that takes the window.
        let mapped =
            unsafe { rustix::mm::mmap(self.mapping.start.as_ptr().cast(), len, PROTECTION, flags, &file, 0) };
        if let Err(errno) = mapped {
            return Err((self, errno.into()));
        }
        self.pages = pages.start;
        Ok(Memory { window: self, pages: Pages(pages) })
    }
}

impl fmt::Debug for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Window({} bytes)", self.mapping.len)
    }
}

/// The pages of an entry, at addresses that the kernel does not know. They are zeroed at first, and each takes memory
/// once it is touched.
pub(super) struct Pages(Mapping);

impl Pages {
    /// Returns the memory to the system. The pages are then zeroed, and take memory again once touched.
    pub(super) fn discard(&mut self) {
        self.discard_from(0);
    }

    /// The same for the pages from this offset on. The page that it lies in stays.
    pub(super) fn discard_from(&mut self, offset: usize) {
        let offset = offset.checked_next_multiple_of(page_size()).unwrap_or(usize::MAX).min(self.0.len);
        if offset == self.0.len {
            return;
        }
        // SAFETY: the offset lies in the mapping, which is this value's own and whose file reads as zeros afterwards. No
        // slice of it exists, because the value is borrowed exclusively.
        let _ = unsafe {
            let start = self.0.start.as_ptr().add(offset);
            rustix::mm::madvise(start.cast(), self.0.len - offset, Advice::LinuxRemove)
        };
    }
}

impl Deref for Pages {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the range is mapped and initialised for as long as `self` lives. It changes through the window only, by a
        // call that borrows the entry exclusively, and so its pages.
        unsafe { std::slice::from_raw_parts(self.0.start.as_ptr(), self.0.len) }
    }
}

impl DerefMut for Pages {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; the exclusive borrow of `self` makes the slice exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.0.start.as_ptr(), self.0.len) }
    }
}

/// A window and the pages in it.
pub(super) struct Memory {
    pub(super) window: Window,
    pub(super) pages: Pages,
}

impl Memory {
    /// Maps at least `len` bytes twice.
    ///
    /// # Errors
    /// `ENFILE`, `EMFILE`, `ENOMEM`, and `EINVAL` for a length of 0 or before Linux 6.3, which has no FUSE over io_uring.
    pub(super) fn new(len: usize) -> io::Result<Memory> {
        let len = len.checked_next_multiple_of(page_size()).ok_or(io::ErrorKind::OutOfMemory)?;
        let file = fresh(len)?;
        let (mapping, pages) = (Mapping::new(&file, len)?, Mapping::new(&file, len)?);
        Ok(Memory {
            window: Window { mapping, pages: pages.start, queue: 0, commit_id: 0 },
            pages: Pages(pages),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::pipe::pipe;

    /// Writes to the addresses that the kernel knows, as the kernel does.
    fn write(window: &Window, at: usize, bytes: &[u8]) {
        let (reader, writer) = pipe().unwrap();
        rustix::io::write(&writer, bytes).unwrap();
        let target = std::ptr::with_exposed_provenance_mut::<u8>(window.address() + at);
        // SAFETY: the range lies in the window's mapping, of which no slice exists.
        let target = unsafe { std::slice::from_raw_parts_mut(target, bytes.len()) };
        assert_eq!(rustix::io::read(&reader, target).unwrap(), bytes.len());
    }

    #[test]
    fn pages_hold_what_the_kernel_writes_to_the_window() {
        let page = page_size();
        let mut memory = Memory::new(page + 1).unwrap();
        assert_eq!((memory.pages.len(), memory.pages.as_ptr() as usize % page), (2 * page, 0));
        write(&memory.window, page, b"request");
        assert_eq!(&memory.pages[page..page + 8], b"request\0");
        write(&memory.window, page - 1, b"r");
        memory.pages.discard_from(page - 1);
        assert_eq!((memory.pages[page - 1], &memory.pages[page..page + 4]), (b'r', &[0; 4][..]));
        memory.pages.discard_from(usize::MAX);
        memory.pages.discard();
        assert!(memory.pages.iter().all(|&byte| byte == 0));
    }

    #[test]
    fn a_renewed_window_has_nothing_to_do_with_its_old_pages() {
        let Memory { window, pages: mut old } = Memory::new(1).unwrap();
        let address = window.address();
        old[..3].copy_from_slice(b"old");
        let Memory { window, pages: mut new } = window.renew().map_err(|(_, error)| error).unwrap();
        assert_eq!(window.address(), address);
        assert_eq!(&new[..3], &[0; 3]);
        write(&window, 0, b"new");
        assert_eq!((&old[..3], &new[..3]), (&b"old"[..], &b"new"[..]));
        // What the old owner does late does not show.
        old[..4].copy_from_slice(b"late");
        assert_eq!(&new[..4], b"new\0");
        drop(old);
        new[0] = b'N';
        write(&window, 1, b"EW");
        assert_eq!(&new[..3], b"NEW");
    }
}
