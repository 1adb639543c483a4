//! Deadlines: a layer around a handler that answers `ETIMEDOUT` when a branch does not respond in time.
//!
//! A thread in a system call on a hung disk cannot be called back, and there are few workers. So where a branch has a
//! deadline (`branch-timeout`), a worker copies a request that may have to wait for such a branch, hands it to an
//! offload thread, and waits for the answer until the deadline. Then it answers `ETIMEDOUT` itself. The offload
//! thread may still finish one day; its answer is discarded, and what the answer held is released. Workers themselves
//! read and write files on branches without a deadline. A pool without any deadline pays one atomic load per request.
//!
//! There are as many offload threads as requests wait at once. Idle ones are kept for later requests.

use crate::branches::liveness::Liveness;
use crate::control;
use crate::lock_rank as rank;
use crate::translate::operation::{Changes, Operation, Waits};
use canopy_fuse::notify::Notifier;
use canopy_fuse::request::OwnedRequest;
use canopy_fuse::transport::DetachedReply;
use canopy_fuse::{Handler, NodeId as WireNode, Replied, Reply, Request, Undelivered};
use canopy_pool::branch::BranchId;
use canopy_pool::lock::ranked::{Condvar, Mutex};
use canopy_pool::{HandleId, NodeId, Pool};
use canopy_sys::sched;
use rustix::io::Errno;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// The most idle offload threads that are kept.
const MAX_IDLE: usize = 32;
/// The most requests that may be stuck at once. Each holds a stack and whatever its answer needs.
const MAX_STUCK: usize = 512;

/// The layer around `inner`.
pub(crate) struct Deadline<H> {
    inner: Arc<H>,
    pool: Arc<Pool>,
    liveness: Arc<Liveness>,
    notifier: Notifier,
    /// One sender per idle offload thread. Dropping them, with the layer, ends the threads.
    idle: Arc<Mutex<Vec<Sender<Job<H>>>, rank::IdleThreads>>,
}

struct Job<H> {
    inner: Arc<H>,
    pool: Arc<Pool>,
    liveness: Arc<Liveness>,
    notifier: Notifier,
    request: OwnedRequest,
    handover: Arc<Handover>,
}

/// Passes an answer from an offload thread to the worker.
#[derive(Default)]
struct Handover {
    state: Mutex<State, rank::Handover>,
    changed: Condvar,
}

#[derive(Default)]
enum State {
    #[default]
    Waiting,
    /// The answer; `None` if there was no memory for it.
    Answered(Option<DetachedReply>),
    /// The worker has given up and answered by itself.
    Abandoned(BlockedOn),
}

/// What a request blocks on.
#[derive(Clone, Copy)]
enum BlockedOn {
    /// Any branch, while it holds locks on names.
    Names,
    /// The branch of an open file.
    File(BranchId),
}

/// How a request is handled.
enum Route {
    /// By the worker.
    Direct,
    /// Not at all: it would wait for a branch that does not answer.
    Refused,
    Offload {
        blocked_on: BlockedOn,
        /// It may take long on a healthy branch, too.
        long: bool,
        /// The worker does not wait for the answer.
        detached: bool,
    },
}

impl<H: Handler> Handler for Deadline<H> {
    fn handle(&self, request: Request<'_>, reply: Reply<'_>) -> Replied {
        let Some(deadline) = self.pool.patience() else { return self.inner.handle(request, reply) };
        let (blocked_on, long, detached) = match self.route(&request) {
            Route::Direct => return self.inner.handle(request, reply),
            Route::Refused => return reply.error(Errno::TIMEDOUT.raw_os_error()),
            Route::Offload { blocked_on, long, detached } => (blocked_on, long, detached),
        };
        let Some(owned) = OwnedRequest::of(&request) else { return self.inner.handle(request, reply) };
        let handover = Arc::new(Handover::default());
        self.send(Job {
            inner: Arc::clone(&self.inner),
            pool: Arc::clone(&self.pool),
            liveness: Arc::clone(&self.liveness),
            notifier: self.notifier.clone(),
            request: owned,
            handover: Arc::clone(&handover),
        });
        if detached {
            handover.abandon(&self.pool, &self.liveness, blocked_on);
            return reply.ok();
        }
        match self.wait(&handover, blocked_on, deadline, long) {
            Some(Some(answer)) => reply.detached(answer),
            Some(None) => reply.error(Errno::NOMEM.raw_os_error()),
            None => reply.error(Errno::TIMEDOUT.raw_os_error()),
        }
    }

    fn thread_start(&self, worker: usize) {
        self.inner.thread_start(worker);
    }

    fn known_files(&self) -> Vec<WireNode> {
        self.inner.known_files()
    }

    fn undelivered(&self, what: Undelivered) {
        self.inner.undelivered(what);
    }
}

impl<H: Handler> Deadline<H> {
    pub(crate) fn new(inner: Arc<H>, pool: Arc<Pool>, liveness: Arc<Liveness>, notifier: Notifier) -> Self {
        Deadline { inner, pool, liveness, notifier, idle: Arc::default() }
    }

    fn route(&self, request: &Request<'_>) -> Route {
        let pool = &self.pool;
        let node = NodeId(request.header.node.0);
        if request.header.node == control::NODE || control::refusal(request).is_some() {
            return Route::Direct;
        }
        let names = |long| Route::Offload { blocked_on: BlockedOn::Names, long, detached: false };
        let file = |handle: u64, long: bool| match pool.deadline_of(HandleId(handle)) {
            None => Route::Direct,
            Some(branch) if branch.is_silent() => Route::Refused,
            Some(branch) => Route::Offload { blocked_on: BlockedOn::File(branch.id), long, detached: false },
        };
        match Operation::of(request).waits {
            Waits::Nothing => Route::Direct,
            Waits::AllBranches => names(false),
            Waits::Names { handle, other, long } => {
                let any_silent = pool.is_silent(node, handle.map(HandleId))
                    || other.is_some_and(|other| pool.is_silent(NodeId(other.0), None));
                if any_silent || pool.stuck() >= MAX_STUCK { Route::Refused } else { names(long) }
            }
            Waits::File { handle, other, long } => match (file(handle, long), other) {
                (Route::Direct, Some(other)) => file(other, long),
                (route, _) => route,
            },
            Waits::Close { handle } => match pool.deadline_of(HandleId(handle)) {
                None => Route::Direct,
                Some(branch) => {
                    let (blocked_on, detached) = (BlockedOn::File(branch.id), branch.is_silent());
                    Route::Offload { blocked_on, long: true, detached }
                }
            },
        }
    }

    /// Sends a job to an idle offload thread or a new one; runs it on this thread if none can be started.
    fn send(&self, mut job: Job<H>) {
        loop {
            let Some(thread) = self.idle.lock().pop() else { break };
            match thread.send(job) {
                Ok(()) => return,
                Err(ended) => job = ended.0,
            }
        }
        let idle = Arc::downgrade(&self.idle);
        let job_slot = Arc::new(Mutex::<_, rank::IdleThreads>::new(Some(job)));
        let their_slot = Arc::clone(&job_slot);
        let run = move || {
            sched::unpin();
            let first = their_slot.lock().take();
            if let Some(job) = first {
                run_jobs(job, &idle);
            }
        };
        if let Err(why) = std::thread::Builder::new().name("canopy-offload".into()).spawn(run) {
            tracing::error!("cannot start an offload thread: {why}");
            let job = job_slot.lock().take();
            if let Some(job) = job {
                job.run();
            }
        }
    }

    /// Waits for the answer; returns `None` if the worker gives up.
    fn wait(
        &self,
        handover: &Handover,
        blocked_on: BlockedOn,
        deadline: Duration,
        long: bool,
    ) -> Option<Option<DetachedReply>> {
        let mut until = Instant::now() + deadline;
        let mut state = handover.state.lock();
        loop {
            if let State::Answered(answer) = &mut *state {
                return Some(answer.take());
            }
            if !handover.changed.wait_until(&mut state, until).timed_out() {
                continue;
            }
            if matches!(*state, State::Answered(_)) {
                continue;
            }
            // Moving a file to another branch takes time too, and other requests may wait for it.
            if (long || self.pool.is_moving()) && self.liveness.all_answer() {
                until = Instant::now() + deadline / 4;
                continue;
            }
            drop(state);
            return handover.abandon(&self.pool, &self.liveness, blocked_on);
        }
    }
}

/// The main loop of an offload thread.
fn run_jobs<H: Handler>(mut job: Job<H>, idle: &Weak<Mutex<Vec<Sender<Job<H>>>, rank::IdleThreads>>) {
    loop {
        job.run();
        let (sender, receiver) = channel();
        {
            let Some(idle) = idle.upgrade() else { return };
            let mut idle = idle.lock();
            if idle.len() >= MAX_IDLE {
                return;
            }
            idle.push(sender);
        }
        match receiver.recv() {
            Ok(next) => job = next,
            Err(_) => return,
        }
    }
}

impl<H: Handler> Job<H> {
    fn run(self) {
        let answer = DetachedReply::make(&self.request, &*self.inner)
            .inspect_err(|why| tracing::error!("no memory for an answer: {why}"))
            .ok();
        let mut state = self.handover.state.lock();
        let State::Abandoned(blocked_on) = *state else {
            *state = State::Answered(answer);
            self.handover.changed.notify_one();
            return;
        };
        drop(state);
        if let Some(answer) = answer {
            answer.discard(&*self.inner);
        }
        self.invalidate();
        match blocked_on {
            BlockedOn::Names => self.pool.count_stuck(false),
            BlockedOn::File(branch) => self.liveness.operation_ended(branch),
        }
    }

    /// Makes the kernel revalidate what the operation has changed after its caller was given an error.
    fn invalidate(&self) {
        let request = self.request.request();
        let (node, notifier) = (request.header.node, &self.notifier);
        match Operation::of(&request).changes {
            Changes::Nothing => return,
            Changes::Attributes => {}
            Changes::Makes(name) | Changes::Removes(name) => {
                let _ = notifier.expire_entry(node, name.as_cstr());
            }
            Changes::Renames { from, to: (newdir, newname) } => {
                let _ = notifier.expire_entry(node, from.as_cstr());
                let _ = notifier.expire_entry(newdir, newname.as_cstr());
                let _ = notifier.inval_attributes_now(newdir);
            }
        }
        let _ = notifier.inval_attributes_now(node);
    }
}

impl Handover {
    /// Gives up waiting, unless the answer has arrived at this moment.
    fn abandon(
        &self,
        pool: &Pool,
        liveness: &Liveness,
        blocked_on: BlockedOn,
    ) -> Option<Option<DetachedReply>> {
        let mut state = self.state.lock();
        if let State::Answered(answer) = &mut *state {
            return Some(answer.take());
        }
        // Counted before the offload thread can take it back.
        match blocked_on {
            BlockedOn::Names => pool.count_stuck(true),
            BlockedOn::File(branch) => liveness.operation_stuck(branch),
        }
        *state = State::Abandoned(blocked_on);
        None
    }
}
