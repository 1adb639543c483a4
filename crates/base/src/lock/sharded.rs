//! Values with a copy per thread, so that threads on different processors do not write to the same cache line.

#[cfg(loom)]
use loom::{lazy_static, sync::atomic::AtomicUsize, thread_local};
use std::sync::atomic::Ordering;
#[cfg(not(loom))]
use std::{sync::atomic::AtomicUsize, thread_local};

/// The number of shards. With more threads than that, threads share shards.
pub const COUNT: usize = if cfg!(loom) { 2 } else { 16 };

/// A value with one copy for each shard.
#[derive(Default)]
pub struct Sharded<T>([Shard<T>; COUNT]);

/// Aligned to two cache lines, because processors fetch them in pairs.
#[derive(Default)]
#[repr(align(128))]
struct Shard<T>(T);

#[cfg(not(loom))]
static NEXT: AtomicUsize = AtomicUsize::new(0);
#[cfg(loom)]
lazy_static! {
    static ref NEXT: AtomicUsize = AtomicUsize::new(0);
}
thread_local! {
    static MINE: usize = NEXT.fetch_add(1, Ordering::Relaxed) % COUNT;
}

impl<T> Sharded<T> {
    /// Returns the shard of the calling thread, always the same.
    pub fn mine(&self) -> &T {
        &self.0[MINE.with(|&mine| mine)].0
    }

    /// Returns all shards, always in the same order.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|shard| &shard.0)
    }
}
