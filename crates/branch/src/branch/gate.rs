//! The way onto a branch: what runs system calls there says so first ([`Branch::reads`], [`Branch::changes`]).
//!
//! Until they have returned, the thread's slot names the branch, so that others can tell where the thread waits
//! ([`of_thread`]). Their error is recorded if it may be the branch's own doing. This is the only place that records errors,
//! so no operation has to think of it.
//!
//! It costs two relaxed stores and a load (0.3 ns in a loop), and neither a clock nor a lock: whoever wants to know looks at the
//! slots. While a disk [rests](super::rest), it is looked for who wakes it.

use super::health::OpKind;
use super::list::Mode;
use super::{Branch, BranchId, rest};
use canopy_base::error::Failure;
use canopy_base::lock::rank;
use canopy_base::lock::ranked::Mutex;
use rustix::io::Errno;
use rustix::process::Pid;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Weak};

impl Branch {
    /// Runs calls that read on the branch.
    pub fn reads<T, E: Failure>(&self, calls: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        self.runs(OpKind::Read, calls)
    }

    /// Runs calls that change something on the branch.
    pub fn changes<T, E: Failure>(&self, calls: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        self.runs(OpKind::Change, calls)
    }

    /// Runs calls whose failure tells nothing yet: who gets nothing asks in another way, which then records the error.
    pub fn tries<T>(&self, calls: impl FnOnce() -> Option<T>) -> Option<T> {
        marked(self.id, OpKind::Read, calls)
    }

    fn runs<T, E: Failure>(&self, act: OpKind, calls: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        run(self.id, act, calls, |record| record(self))
    }

    /// Records that the filesystem says that it is read-only, although it has not refused anything yet.
    pub fn is_found_read_only(&self) {
        self.record_error(Errno::ROFS, OpKind::Read);
    }

    fn record_error(&self, errno: Errno, act: OpKind) {
        // A branch with mode RO may be mounted read-only.
        if !(errno == Errno::ROFS && self.mode == Mode::Ro) {
            self.health.record_error(errno, act);
        }
    }
}

/// Runs calls while it can be seen that the thread is on the branch.
fn marked<T>(branch: BranchId, act: OpKind, calls: impl FnOnce() -> T) -> T {
    let arrived = rest::arrive(branch);
    let done = {
        let _here = Mark::set(branch);
        calls()
    };
    if let Some(arrived) = arrived {
        arrived.leave(act == OpKind::Change);
    }
    done
}

/// As [`Branch::reads`] or [`Branch::changes`], for who has the branch at hand only after an error: `with` calls what it gets
/// with the branch.
pub fn run<T, E: Failure>(
    branch: BranchId,
    act: OpKind,
    calls: impl FnOnce() -> Result<T, E>,
    with: impl FnOnce(&dyn Fn(&Branch)),
) -> Result<T, E> {
    marked(branch, act, calls).inspect_err(|error| {
        let errno = error.errno();
        with(&|branch| branch.record_error(errno, act));
    })
}

/// Which branch a thread is on: its id and 1; 0 for none.
type Slot = AtomicU32;

/// The slots of all threads that have been on a branch.
type Slots = Mutex<Vec<(Pid, Weak<Slot>)>, rank::Leaf>;

thread_local! {
    static OWN: Arc<Slot> = enlist();
}

static SLOTS: LazyLock<Slots> = LazyLock::new(Mutex::default);

fn enlist() -> Arc<Slot> {
    let own = Arc::new(Slot::new(0));
    let mut slots = SLOTS.lock();
    slots.retain(|(_, slot)| slot.strong_count() > 0);
    slots.push((rustix::thread::gettid(), Arc::downgrade(&own)));
    own
}

/// Returns the branch that a thread of this process is on: whose calls it runs.
pub fn of_thread(thread: Pid) -> Option<BranchId> {
    let slots = SLOTS.lock();
    // Of a thread that has ended, and another one with its number, the latter is enlisted later.
    let slot = slots.iter().rev().find(|(of, _)| *of == thread)?.1.upgrade()?;
    slot.load(Ordering::Relaxed).checked_sub(1).map(BranchId)
}

/// Names a branch in the thread's slot until it is dropped. Calls on another branch may be run meanwhile.
struct Mark {
    before: u32,
}

impl Mark {
    fn set(branch: BranchId) -> Mark {
        Mark { before: put(branch.0.wrapping_add(1)) }
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        put(self.before);
    }
}

/// Puts a value into the thread's slot, and returns the one before.
fn put(value: u32) -> u32 {
    // What is closed while the thread ends is on no branch that anybody could ask for.
    let swap = |slot: &Arc<Slot>| {
        let before = slot.load(Ordering::Relaxed);
        slot.store(value, Ordering::Relaxed);
        before
    };
    OWN.try_with(swap).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::branch::{BranchList, BranchSpec, Branches};
    use std::path::Path;

    fn branches(home: &Path) -> Branches {
        let spec = |name| {
            let path = home.join(name);
            std::fs::create_dir(&path).unwrap();
            BranchSpec { path, mode: Mode::Rw, min_free: None }
        };
        Branches::open(&["a", "b"].map(spec).into_iter().collect::<BranchList>()).unwrap()
    }

    fn here() -> Option<BranchId> {
        of_thread(rustix::thread::gettid())
    }

    #[test]
    fn a_thread_is_on_the_branch_whose_calls_it_runs() {
        let home = tempfile::tempdir().unwrap();
        let branches = branches(home.path());
        let [one, other] = [&branches[0], &branches[1]];
        let within = one.reads(|| {
            let before = here();
            let nested = other.changes(|| Ok::<_, Errno>(here()))?;
            Ok::<_, Errno>([before, nested, here()])
        });
        assert_eq!(within, Ok([Some(one.id), Some(other.id), Some(one.id)]));
        assert_eq!(here(), None);
        let panics = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            one.reads(|| -> Result<(), Errno> { panic!("on purpose") })
        }));
        assert!(panics.is_err());
        assert_eq!(here(), None, "it has left");
    }

    #[test]
    fn another_thread_sees_where_one_is_and_forgets_it_at_its_end() {
        let home = tempfile::tempdir().unwrap();
        let branches = branches(home.path());
        let (send, receive) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let branch = branches[1].clone();
        let thread = std::thread::spawn(move || {
            branch.reads(|| {
                send.send(rustix::thread::gettid()).unwrap();
                ended.recv().map_err(|_| Errno::PIPE)
            })
        });
        let number = receive.recv().unwrap();
        assert_eq!(of_thread(number), Some(branches[1].id));
        end.send(()).unwrap();
        assert_eq!(thread.join().unwrap(), Ok(()));
        assert_eq!(of_thread(number), None);
    }

    #[test]
    fn the_errors_of_calls_are_recorded_once_for_each_branch() {
        let home = tempfile::tempdir().unwrap();
        let branches = branches(home.path());
        let [one, other] = [&branches[0], &branches[1]];
        for errno in [Errno::NOENT, Errno::AGAIN, Errno::NOSPC] {
            assert_eq!(one.changes(|| Err::<(), _>(errno)), Err(errno));
        }
        assert!(!one.needs_check(), "these say nothing of the branch");
        assert_eq!(one.reads(|| other.changes(|| Err::<(), _>(Errno::IO))), Err(Errno::IO));
        assert!(one.needs_check() && other.needs_check(), "the error may come from either");
    }
}
