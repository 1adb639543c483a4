//! Values of which each thread takes its own, so that threads share no cache line that changes.

use std::sync::atomic::{AtomicUsize, Ordering};

/// How many there are. More threads than that share them.
pub const COUNT: usize = 16;

#[derive(Default)]
pub struct Sharded<T>([Shard<T>; COUNT]);

/// Two lines: processors fetch them in pairs.
#[derive(Default)]
#[repr(align(128))]
struct Shard<T>(T);

static NEXT: AtomicUsize = AtomicUsize::new(0);
thread_local! {
    static MINE: usize = NEXT.fetch_add(1, Ordering::Relaxed) % COUNT;
}

impl<T> Sharded<T> {
    /// That of the calling thread, always the same.
    pub fn mine(&self) -> &T {
        &self.0[MINE.with(|&mine| mine)].0
    }

    /// Those of all, always in the same order.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|shard| &shard.0)
    }
}
