//! The allocator's memory.

/// Gives free memory back to the system, which the allocator keeps for itself otherwise. Takes some milliseconds a
/// gigabyte; for after much was freed in small pieces. Does nothing without glibc (malloc_trim(3)).
pub fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim takes a number, and is safe to call from any thread at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}
