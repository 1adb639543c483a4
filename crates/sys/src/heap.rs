//! Memory that the allocator holds.

/// Returns freed memory to the system, which the allocator otherwise keeps (malloc_trim(3)). Useful after much memory has
/// been freed in small pieces. It takes some milliseconds per gigabyte. Does nothing without glibc.
pub fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim takes a number and may be called from any thread at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}
