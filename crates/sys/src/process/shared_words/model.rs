//! The words for models under loom, of which no other process can have any: threads of the model stand for processes.

pub use loom::sync::atomic::AtomicU64;
use loom::sync::atomic::{Ordering, fence};
use rustix::fd::{BorrowedFd, OwnedFd};
use std::io;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

#[derive(Debug)]
pub struct SharedWords(Box<[AtomicU64]>);

impl SharedWords {
    /// # Errors
    /// None.
    pub fn new(len: usize) -> io::Result<SharedWords> {
        Ok(SharedWords((0..len).map(|_| AtomicU64::new(0)).collect()))
    }

    /// # Errors
    /// None.
    pub fn named(_: &str, len: usize) -> io::Result<SharedWords> {
        SharedWords::new(len)
    }

    /// # Errors
    /// Always: there is no file.
    pub fn map(_: OwnedFd) -> io::Result<SharedWords> {
        Err(io::ErrorKind::Unsupported.into())
    }

    #[must_use]
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl Deref for SharedWords {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        &self.0
    }
}

/// Runs `write` as a process that dies at any point, and `read` as the next one. Returns all that it may find.
///
/// Nothing orders the two but what the words themselves say: the reader sees a store or not, unless it has seen a later one
/// that has to come after it. So whatever the compiler may put first is found, too.
pub fn left_by_the_dead<M, R>(
    memory: impl Fn() -> M + Send + Sync + 'static,
    write: impl Fn(&M) + Send + Sync + 'static,
    read: impl Fn(&M) -> R + Send + Sync + 'static,
) -> Vec<R>
where
    M: Send + Sync + 'static,
    R: PartialEq + Send + 'static,
{
    let (write, found) = (Arc::new(write), Arc::new(Mutex::new(Vec::new())));
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    let all = Arc::clone(&found);
    model.check(move || {
        let memory = Arc::new(memory());
        let (write, written) = (Arc::clone(&write), Arc::clone(&memory));
        let dying = loom::thread::spawn(move || write(&written));
        // The reader may see less than was stored, however far the writer has come.
        loom::thread::yield_now();
        let first = read(&memory);
        // What a dead process has left stays as it is. Twice more: a word may have got its old value again.
        let stays = (0..2).all(|_| {
            fence(Ordering::Acquire);
            read(&memory) == first
        });
        if stays {
            let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
            if !all.contains(&first) {
                all.push(first);
            }
        }
        let _ = dying.join();
    });
    std::mem::take(&mut *found.lock().unwrap_or_else(PoisonError::into_inner))
}
