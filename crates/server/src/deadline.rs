//! Deadlines: a layer around a handler that answers `ETIMEDOUT` where a branch does not.
//!
//! A thread in a system call on a hung disk cannot be called back, and there are few workers. So where a branch has a
//! deadline (`branch-timeout`), a worker leaves a request that may have to wait for such a branch, copied, to another
//! thread, a deputy, and waits for it no longer than the deadline; then it answers `ETIMEDOUT` by itself. The deputy may
//! come to an end one day. Nobody has its answer then, and what that held is given back. Data of files on branches without
//! a deadline is read and written by the workers; pools that have no branch with one pay a load for each request.
//!
//! There are as many deputies as requests wait at once. Idle ones are kept for the next request.

use crate::branches::liveness::Liveness;
use crate::control;
use crate::translate::operation::{Changes, Operation, Waits};
use canopy_fuse::notify::Notifier;
use canopy_fuse::request::OwnedRequest;
use canopy_fuse::transport::DetachedReply;
use canopy_fuse::{Handler, NodeId as WireNode, Replied, Reply, Request, Undelivered};
use canopy_pool::branch::BranchId;
use canopy_pool::{HandleId, NodeId, Pool};
use canopy_sys::sched;
use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Idle deputies beyond these end.
const IDLE: usize = 32;
/// So many may be lost at once. More are not risked: each holds a stack and what its answer needs.
const LOST: usize = 512;

/// The layer.
pub(crate) struct Deadline<H> {
    inner: Arc<H>,
    pool: Arc<Pool>,
    liveness: Arc<Liveness>,
    notifier: Notifier,
    /// Each waits for what is sent to it. Gone with the layer, which ends them.
    idle: Arc<Mutex<Vec<Sender<Job<H>>>>>,
}

struct Job<H> {
    inner: Arc<H>,
    pool: Arc<Pool>,
    liveness: Arc<Liveness>,
    notifier: Notifier,
    request: OwnedRequest,
    handover: Arc<Handover>,
}

/// Where a worker and its deputy meet.
#[derive(Default)]
struct Handover {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
enum State {
    #[default]
    Waiting,
    /// The answer; none when there was no memory for it.
    Made(Option<DetachedReply>),
    /// The worker has answered by itself.
    Left(Concern),
}

/// What a request waits for.
#[derive(Clone, Copy)]
enum Concern {
    /// Any branch; it holds locks over names meanwhile.
    Names,
    /// The branch of an open file.
    File(BranchId),
}

/// What is to become of a request.
enum Course {
    /// The worker answers it.
    Direct,
    /// It would wait for a branch that does not answer.
    Refused,
    Deputy {
        concern: Concern,
        /// It takes long on a branch that is well, too.
        long: bool,
        /// The worker does not wait for it.
        unattended: bool,
    },
}

impl<H: Handler> Handler for Deadline<H> {
    fn handle(&self, request: Request<'_>, reply: Reply<'_>) -> Replied {
        let Some(patience) = self.pool.patience() else { return self.inner.handle(request, reply) };
        let (concern, long, unattended) = match self.course(&request) {
            Course::Direct => return self.inner.handle(request, reply),
            Course::Refused => return reply.error(Errno::TIMEDOUT.raw_os_error()),
            Course::Deputy { concern, long, unattended } => (concern, long, unattended),
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
        if unattended {
            handover.leave(&self.pool, &self.liveness, concern);
            return reply.ok();
        }
        match self.wait(&handover, concern, patience, long) {
            Some(Some(made)) => reply.detached(made),
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

    fn course(&self, request: &Request<'_>) -> Course {
        let pool = &self.pool;
        let node = NodeId(request.header.node.0);
        if request.header.node == control::NODE || control::refuses(request).is_some() {
            return Course::Direct;
        }
        let names = |long| Course::Deputy { concern: Concern::Names, long, unattended: false };
        let file = |handle: u64, long: bool| match pool.deadline_of(HandleId(handle)) {
            None => Course::Direct,
            Some(branch) if branch.is_silent() => Course::Refused,
            Some(branch) => Course::Deputy { concern: Concern::File(branch.id), long, unattended: false },
        };
        match Operation::of(request).waits {
            Waits::Nothing => Course::Direct,
            Waits::AllBranches => names(false),
            Waits::Names { handle, other, long } => {
                let silent = pool.is_silent(node, handle.map(HandleId))
                    || other.is_some_and(|other| pool.is_silent(NodeId(other.0), None));
                if silent || pool.stuck() >= LOST { Course::Refused } else { names(long) }
            }
            Waits::File { handle, other, long } => match (file(handle, long), other) {
                (Course::Direct, Some(other)) => file(other, long),
                (course, _) => course,
            },
            Waits::Close { handle } => match pool.deadline_of(HandleId(handle)) {
                None => Course::Direct,
                Some(branch) => {
                    let (concern, unattended) = (Concern::File(branch.id), branch.is_silent());
                    Course::Deputy { concern, long: true, unattended }
                }
            },
        }
    }

    /// Sends a job to a deputy that is idle, or to a new one; does it here and now where none can be made.
    fn send(&self, mut job: Job<H>) {
        loop {
            let Some(deputy) = self.idle.lock().pop() else { break };
            match deputy.send(job) {
                Ok(()) => return,
                Err(ended) => job = ended.0,
            }
        }
        let idle = Arc::downgrade(&self.idle);
        let handed = Arc::new(Mutex::new(Some(job)));
        let mine = Arc::clone(&handed);
        let run = move || {
            sched::unpin();
            let first = mine.lock().take();
            if let Some(job) = first {
                serve(job, &idle);
            }
        };
        if let Err(why) = std::thread::Builder::new().name("canopy-deputy".into()).spawn(run) {
            tracing::error!("cannot start a thread for what may hang: {why}");
            let job = handed.lock().take();
            if let Some(job) = job {
                job.answer();
            }
        }
    }

    /// Waits for the answer; none when it is not waited for any longer.
    fn wait(
        &self,
        handover: &Handover,
        concern: Concern,
        patience: Duration,
        long: bool,
    ) -> Option<Option<DetachedReply>> {
        let mut until = Instant::now() + patience;
        let mut state = handover.state.lock();
        loop {
            if let State::Made(made) = &mut *state {
                return Some(made.take());
            }
            if !handover.changed.wait_until(&mut state, until).timed_out() {
                continue;
            }
            if matches!(*state, State::Made(_)) {
                continue;
            }
            // A file that moves to another branch takes its time too, and so may those who wait for it.
            if (long || self.pool.is_moving()) && self.liveness.all_answer() {
                until = Instant::now() + patience / 4;
                continue;
            }
            drop(state);
            return handover.leave(&self.pool, &self.liveness, concern);
        }
    }
}

/// What a deputy does: one job after the other.
fn serve<H: Handler>(mut job: Job<H>, idle: &Weak<Mutex<Vec<Sender<Job<H>>>>>) {
    loop {
        job.answer();
        let (sender, receiver) = channel();
        {
            let Some(idle) = idle.upgrade() else { return };
            let mut idle = idle.lock();
            if idle.len() >= IDLE {
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
    fn answer(self) {
        let made = DetachedReply::make(&self.request, &*self.inner)
            .inspect_err(|why| tracing::error!("no memory for an answer: {why}"))
            .ok();
        let mut state = self.handover.state.lock();
        let State::Left(concern) = *state else {
            *state = State::Made(made);
            self.handover.changed.notify_one();
            return;
        };
        drop(state);
        if let Some(made) = made {
            made.discard(&*self.inner);
        }
        self.expire();
        match concern {
            Concern::Names => self.pool.count_stuck(false),
            Concern::File(branch) => self.liveness.blame(branch, false),
        }
    }

    /// What has been done after its caller was told that it failed, the kernel must look at again.
    fn expire(&self) {
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
    /// Waits no longer, unless the answer has come in this moment.
    fn leave(&self, pool: &Pool, liveness: &Liveness, concern: Concern) -> Option<Option<DetachedReply>> {
        let mut state = self.state.lock();
        if let State::Made(made) = &mut *state {
            return Some(made.take());
        }
        // Before the deputy can take it back.
        match concern {
            Concern::Names => pool.count_stuck(true),
            Concern::File(branch) => liveness.blame(branch, true),
        }
        *state = State::Left(concern);
        None
    }
}
