//! Deadlines: a layer around a handler, which decides when a request is answered with `ETIMEDOUT` because a branch does not
//! respond in time.
//!
//! A thread in a system call on a hung disk cannot be called back. So where a branch has a deadline (`branch-timeout`), the
//! transport's watchdog asks here about requests that take long ([`Handler::stalled`]), and answers those that are over
//! their deadline in their workers' place. A worker that comes back late discards its answer, and what the answer held is
//! released. Requests that do not take long pay for two loads, and for a note of what they may wait for.

use crate::branches::crowded::line_of;
use crate::branches::liveness::Liveness;
use crate::branches::stalls::BlockedOn;
use crate::control;
use crate::lock_rank as rank;
use crate::translate::operation::{Changes, Operation, Waits};
use canopy_base::ids::{HandleId, NodeId};
use canopy_base::lock::ranked::Mutex;
use canopy_branch::branch::{Branch, BranchId};
use canopy_branch::tend;
use canopy_fuse::notify::Notifier;
use canopy_fuse::transport::{Expected, Note, Stalled, Verdict};
use canopy_fuse::{Handler, Replied, Reply, Request, Undelivered};
use canopy_pool::Pool;
use canopy_pool::ops;
use rustix::io::Errno;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// The most requests on names that may be stuck at once after they were answered. Each holds a thread. Fewer than
/// [`WorkerGrowth::max_extra`](canopy_fuse::transport::WorkerGrowth), so that there are threads for others.
const MAX_STUCK: usize = 128;
/// How often the state of a request is looked at that has no deadline.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// How often, while its worker is not stuck or it is not known where.
const LOCATE_AGAIN: Duration = Duration::from_millis(20);

/// The layer around `inner`.
pub(crate) struct Deadline<H> {
    inner: Arc<H>,
    pool: Arc<Pool>,
    liveness: Arc<Liveness>,
    notifier: Notifier,
    /// Requests that were answered while their workers were stuck in them, by number.
    given_up: Mutex<HashMap<u64, GivenUp>, rank::Leaf>,
}

/// What a request may block on, as a [`Note`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MayBlockOn {
    /// No branch, or nobody waits for the answer.
    Nothing,
    /// Any branch, while it holds locks on names. `long`: it may take long on a healthy branch, too.
    Names { long: bool },
    /// The branches of one or two open files.
    Files { handle: HandleId, other: Option<HandleId>, long: bool },
    /// This branch, closing a file.
    Close(BranchId),
}

/// A request that was answered although its worker is stuck in it.
struct GivenUp {
    /// It may hold locks on names.
    names: bool,
    /// The branches that it is stuck in.
    branches: Vec<BranchId>,
}

impl MayBlockOn {
    fn note(self) -> Note {
        match self {
            MayBlockOn::Nothing => [0, 0, 0],
            MayBlockOn::Names { long } => [1, u64::from(long), 0],
            // Handles are numbered from 1.
            MayBlockOn::Files { handle, other, long } => {
                [2 + u64::from(long), handle.0, other.map_or(0, |other| other.0)]
            }
            MayBlockOn::Close(BranchId(branch)) => [4, u64::from(branch), 0],
        }
    }

    fn from_note(note: Note) -> MayBlockOn {
        match note {
            [1, long, _] => MayBlockOn::Names { long: long != 0 },
            [kind @ (2 | 3), handle, other] => MayBlockOn::Files {
                handle: HandleId(handle),
                other: (other != 0).then_some(HandleId(other)),
                long: kind == 3,
            },
            [4, branch, _] => MayBlockOn::Close(BranchId(branch as u32)),
            _ => MayBlockOn::Nothing,
        }
    }
}

impl<H: Handler> Handler for Deadline<H> {
    fn handle(&self, request: Request<'_>, reply: Reply<'_>) -> Replied {
        let some_hang = !ops::branch_deadlines::all_answer(&self.pool)
            || ops::branch_deadlines::stuck(&self.pool) >= MAX_STUCK;
        if some_hang && ops::branch_deadlines::longest_deadline(&self.pool).is_some() && !is_control(&request)
        {
            if self.is_refused(&request) {
                return reply.error(Errno::TIMEDOUT.raw_os_error());
            }
            if let Waits::Close { handle } = Operation::of(&request).waits
                && let Some(branch) = ops::branch_deadlines::deadline_of(&self.pool, HandleId(handle))
                && branch.is_silent()
            {
                // The client does not wait for it.
                let pool = Arc::clone(&self.pool);
                tend::apart((c"silent-files", branch.id.0.into()), move || {
                    let _ = ops::data::open::release(&pool, HandleId(handle));
                });
                return reply.ok();
            }
        }
        self.inner.handle(request, reply)
    }

    fn undelivered(&self, what: Undelivered) {
        self.inner.undelivered(what);
    }

    fn expect(&self, request: &Request<'_>) -> Expected {
        Expected { note: self.may_block_on(request).note(), line: self.line(request) }
    }

    fn stalled(&self, request: &Stalled) -> Verdict {
        let note = MayBlockOn::from_note(request.note);
        let file = match note {
            MayBlockOn::Files { handle, other: None, .. } => {
                ops::branch_deadlines::branch_id_of(&self.pool, handle)
            }
            MayBlockOn::Close(branch) => Some(branch),
            MayBlockOn::Files { .. } | MayBlockOn::Names { .. } | MayBlockOn::Nothing => None,
        };
        let stalls = self.liveness.stalls();
        stalls.stalled(request.unique, request.thread, request.since, file, request.answered);
        if request.answered {
            self.give_up(request);
            return Verdict::Wait(LOOK_AGAIN);
        }
        if note == MayBlockOn::Nothing {
            return Verdict::Wait(LOOK_AGAIN);
        }
        let place = stalls.place(request.unique);
        let Some(deadline) = self.deadline_at(&place) else { return Verdict::Wait(LOOK_AGAIN) };
        let long = match note {
            MayBlockOn::Nothing => return Verdict::Wait(LOOK_AGAIN),
            // It waits for a lock, or its place is not known: the branches of the files decide.
            MayBlockOn::Files { handle, other, .. }
                if !matches!(place, BlockedOn::Branches(_)) && self.branch_of(handle, other).is_none() =>
            {
                return Verdict::Wait(LOOK_AGAIN);
            }
            MayBlockOn::Names { long } | MayBlockOn::Files { long, .. } => long,
            MayBlockOn::Close(branch) if !self.pool.deadlines().iter().any(|(it, _)| it.id == branch) => {
                return Verdict::Wait(LOOK_AGAIN);
            }
            // The client does not wait for it, and closing is continued.
            MayBlockOn::Close(branch) if self.is_silent(branch) => return Verdict::Answer(0),
            MayBlockOn::Close(_) => true,
        };
        if place == BlockedOn::Unknown {
            return Verdict::Wait(LOCATE_AGAIN);
        }
        if request.since < deadline {
            return Verdict::Wait((deadline - request.since).min(LOOK_AGAIN));
        }
        // Moving a file to another branch takes time too, and other requests may wait for it.
        if (long || ops::branch_deadlines::is_moving(&self.pool))
            && ops::branch_deadlines::all_answer(&self.pool)
        {
            return Verdict::Wait(LOOK_AGAIN);
        }
        Verdict::Answer(Errno::TIMEDOUT.raw_os_error())
    }

    fn resumed(&self, request: &Request<'_>, late: bool) {
        self.liveness.resumed(request.header.unique);
        if !late {
            return;
        }
        self.invalidate(request);
        let Some(ended) = self.given_up.lock().remove(&request.header.unique) else { return };
        if ended.names {
            ops::branch_deadlines::count_stuck(&self.pool, false);
        }
        for branch in ended.branches {
            self.liveness.operation_ended(branch);
        }
    }
}

/// Returns whether a request is answered without asking the pool.
fn is_control(request: &Request<'_>) -> bool {
    request.header.node == control::NODE || control::refusal(request).is_some()
}

impl<H: Handler> Deadline<H> {
    pub(crate) fn new(
        inner: &Arc<H>,
        pool: &Arc<Pool>,
        liveness: &Arc<Liveness>,
        notifier: Notifier,
    ) -> Self {
        let (inner, pool, liveness) = (Arc::clone(inner), Arc::clone(pool), Arc::clone(liveness));
        Deadline { inner, pool, liveness, notifier, given_up: Mutex::default() }
    }

    /// Returns what a request may block on.
    fn may_block_on(&self, request: &Request<'_>) -> MayBlockOn {
        // Other requests about control names are answered at once.
        if ops::branch_deadlines::longest_deadline(&self.pool).is_none()
            || request.header.node == control::NODE
        {
            return MayBlockOn::Nothing;
        }
        let files = |handle, other: Option<u64>, long| MayBlockOn::Files {
            handle: HandleId(handle),
            other: other.map(HandleId),
            long,
        };
        match Operation::of(request).waits {
            Waits::Nothing => MayBlockOn::Nothing,
            Waits::AllBranches => MayBlockOn::Names { long: false },
            Waits::Names { long, .. } => MayBlockOn::Names { long },
            Waits::File { handle, other, long } => files(handle, other, long),
            // Later the handle is gone.
            Waits::Close { handle } => ops::branch_deadlines::branch_id_of(&self.pool, HandleId(handle))
                .map_or(MayBlockOn::Nothing, MayBlockOn::Close),
        }
    }

    /// Returns the line of a crowded branch that a request certainly needs.
    fn line(&self, request: &Request<'_>) -> Option<u64> {
        let needed = self.liveness.crowded().needed(&self.pool, request)?;
        // A branch that does not answer refuses it at once.
        (!is_control(request) && !self.is_silent(needed)).then(|| line_of(needed))
    }

    /// Records that a request is answered although its worker is stuck in it.
    fn give_up(&self, request: &Stalled) {
        if self.given_up.lock().contains_key(&request.unique) {
            return;
        }
        let note = MayBlockOn::from_note(request.note);
        let branches = match self.liveness.stalls().place(request.unique) {
            BlockedOn::Branches(branches) => branches,
            BlockedOn::Unknown | BlockedOn::Thread | BlockedOn::Elsewhere => match note {
                MayBlockOn::Files { handle, other, .. } => {
                    self.branch_of(handle, other).map(|branch| branch.id).into_iter().collect()
                }
                MayBlockOn::Close(branch) => vec![branch],
                MayBlockOn::Names { .. } | MayBlockOn::Nothing => Vec::new(),
            },
        };
        let given_up =
            GivenUp { names: matches!(note, MayBlockOn::Names { .. }), branches: branches.clone() };
        // Counted before the worker can take it back.
        if given_up.names {
            ops::branch_deadlines::count_stuck(&self.pool, true);
        }
        self.given_up.lock().insert(request.unique, given_up);
        for branch in branches {
            self.liveness.operation_stuck(branch);
        }
    }

    /// Returns whether a request would wait for a branch that does not answer.
    fn is_refused(&self, request: &Request<'_>) -> bool {
        let pool = &self.pool;
        match Operation::of(request).waits {
            Waits::Nothing | Waits::AllBranches | Waits::Close { .. } => false,
            Waits::Names { handle, other, .. } => {
                ops::branch_deadlines::is_silent(pool, NodeId(request.header.node.0), handle.map(HandleId))
                    || other
                        .is_some_and(|other| ops::branch_deadlines::is_silent(pool, NodeId(other.0), None))
                    || ops::branch_deadlines::stuck(pool) >= MAX_STUCK
            }
            Waits::File { handle, other, .. } => {
                let branch = self.branch_of(HandleId(handle), other.map(HandleId));
                branch.is_some_and(|branch| branch.is_silent())
            }
        }
    }

    /// Returns how long a worker may be stuck there: as long as the branches that it is stuck in allow; where that is not
    /// known, as long as any branch does.
    fn deadline_at(&self, place: &BlockedOn) -> Option<Duration> {
        let longest = ops::branch_deadlines::longest_deadline(&self.pool)?;
        match place {
            BlockedOn::Unknown | BlockedOn::Thread | BlockedOn::Elsewhere => Some(longest),
            BlockedOn::Branches(stuck_in) => {
                let deadlines = self.pool.deadlines();
                let of = |id: &BranchId| deadlines.iter().find(|(branch, _)| branch.id == *id);
                stuck_in.iter().filter_map(of).map(|(_, deadline)| *deadline).min()
            }
        }
    }

    /// Returns the first branch with a deadline that the open files are on.
    fn branch_of(&self, handle: HandleId, other: Option<HandleId>) -> Option<Arc<Branch>> {
        ops::branch_deadlines::deadline_of(&self.pool, handle)
            .or_else(|| ops::branch_deadlines::deadline_of(&self.pool, other?))
    }

    /// Returns whether a branch does not answer, or is gone.
    fn is_silent(&self, branch: BranchId) -> bool {
        !ops::settings::branches(&self.pool).iter().any(|known| known.id == branch && !known.is_silent())
    }

    /// Makes the kernel revalidate, and list again, what an operation has changed after its caller was given an error.
    fn invalidate(&self, request: &Request<'_>) {
        let (node, notifier) = (request.header.node, &self.notifier);
        match Operation::of(request).changes {
            Changes::Nothing => return,
            Changes::Attributes => {}
            Changes::Makes(name) | Changes::Removes(name) => {
                let _ = notifier.expire_entry(node, name.as_cstr());
                let _ = notifier.inval_inode(node, 0, 0);
            }
            Changes::Renames { from, to: (newdir, newname) } => {
                let _ = notifier.expire_entry(node, from.as_cstr());
                let _ = notifier.expire_entry(newdir, newname.as_cstr());
                let _ = notifier.inval_inode(node, 0, 0);
                let _ = notifier.inval_inode(newdir, 0, 0);
            }
        }
        let _ = notifier.inval_attributes_now(node);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_tells_what_a_request_may_block_on() {
        let (one, two) = (HandleId(1), HandleId(u64::MAX));
        for may in [
            MayBlockOn::Nothing,
            MayBlockOn::Names { long: false },
            MayBlockOn::Names { long: true },
            MayBlockOn::Files { handle: one, other: None, long: false },
            MayBlockOn::Files { handle: two, other: Some(one), long: true },
            MayBlockOn::Close(BranchId(0)),
            MayBlockOn::Close(BranchId(u32::MAX)),
        ] {
            assert_eq!(MayBlockOn::from_note(may.note()), may);
        }
    }
}
