//! For whom the calling thread works.

use super::Watched;
use super::history::Touch;
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

/// A client, and what it wants.
#[derive(Clone, Copy, Debug)]
pub struct Client {
    /// Its thread; 0 where it is not known.
    pub thread: u32,
    pub operation: &'static str,
    /// What is done for it may reach a disk after it has its answer.
    pub later: bool,
    /// Returns the process of a thread, and its name.
    pub program: fn(u32) -> (u32, Vec<u8>),
}

thread_local! {
    static CLIENT: Cell<Option<Client>> = const { Cell::new(None) };
    /// What has been noted of the client without its path.
    static NOTED: RefCell<Vec<(Arc<Watched>, u64)>> = const { RefCell::new(Vec::new()) };
}

/// As long as it lives, the thread works for a client.
pub struct Serving(());

/// Works for a client until the value is dropped.
#[inline]
pub fn serve(client: Client) -> Serving {
    CLIENT.set(Some(client));
    Serving(())
}

impl Drop for Serving {
    #[inline]
    fn drop(&mut self) {
        CLIENT.set(None);
    }
}

/// Returns whether the path is wanted of what the thread has done for its client.
#[inline]
pub fn wants_path() -> bool {
    NOTED.with(|noted| !noted.borrow().is_empty())
}

/// Tells that path; `None` if it is not known.
pub fn set_path(path: Option<&[u8]>) {
    for (disk, number) in NOTED.take() {
        if let Some(path) = path {
            disk.history.lock().set_path(number, path);
        }
    }
}

/// Returns whether what the client wants may reach a disk after it has its answer.
pub(super) fn reaches_it_later() -> bool {
    CLIENT.get().is_some_and(|client| client.later)
}

/// Returns for whom the thread has got to a disk.
pub(super) fn touch(disk: &Arc<Watched>, waited: bool) -> Touch {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    let at = SystemTime::now();
    let Some(client) = CLIENT.get() else {
        let own = std::process::id();
        let program = rustix::thread::name().map(|name| name.into_bytes()).unwrap_or_default();
        return Touch { at, number, program, pid: own, operation: "look", path: None, waited, own: true };
    };
    NOTED.with_borrow_mut(|noted| noted.push((Arc::clone(disk), number)));
    let (pid, program) = (client.program)(client.thread);
    Touch { at, number, program, pid, operation: client.operation, path: None, waited, own: false }
}
