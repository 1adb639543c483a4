//! Threads that may be lost for a while: they answer the requests that may have to wait for a branch that hangs.
//!
//! A thread in a system call on a hung disk cannot be called back, and there are few workers. So where a branch has a
//! deadline (`branch-timeout`), a worker leaves such a request, copied, to a deputy, and waits for it no longer than the
//! deadline; then it answers `ETIMEDOUT` by itself. The deputy may come to an end one day. Nobody has its answer then,
//! and what that held is given back. Data of files on branches without a deadline is read and written by the workers;
//! pools that have no branch with one pay a load for each request.
//!
//! There are as many deputies as requests wait at once. Idle ones are kept for the next request.

use crate::dispatch::Dispatch;
use canopy_fuse::request::{Name, Owned};
use canopy_fuse::transport::Aside;
use canopy_fuse::{Op, Replied, Reply, Request};
use canopy_pool::branch::BranchId;
use canopy_pool::{HandleId, NodeId};
use canopy_sys::sched;
use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use std::cell::Cell;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Idle ones beyond these end.
const IDLE: usize = 32;
/// So many may be lost at once. More are not risked: each holds a stack and what its answer needs.
const LOST: usize = 512;

thread_local! {
    static DEPUTY: Cell<bool> = const { Cell::new(false) };
}

#[derive(Default)]
pub(crate) struct Deputies {
    /// Each waits for what is sent to it. Gone with the pool, which ends them.
    idle: Arc<Mutex<Vec<Sender<Job>>>>,
}

struct Job {
    serving: Arc<Dispatch>,
    request: Owned,
    desk: Arc<Desk>,
}

/// Where a worker and its deputy meet.
#[derive(Default)]
struct Desk {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
enum State {
    #[default]
    Waiting,
    /// The answer; none when there was no memory for it.
    Made(Option<Aside>),
    /// The worker has answered by itself.
    Left(Concern),
}

/// What a request may wait for.
#[derive(Clone, Copy)]
enum Concern {
    /// Any branch; it holds locks over names meanwhile.
    Names,
    /// The branch of an open file.
    File(BranchId),
}

/// What is to become of a request.
enum Course {
    /// A worker does it.
    Direct,
    /// It would wait for a branch that does not answer.
    Refused,
    Deputy {
        concern: Concern,
        /// It takes long on a branch that is well, too.
        long: bool,
        /// It is done by whom nobody waits for.
        unattended: bool,
    },
}

/// Answers a request that may have to wait for a branch with a deadline. Gives the reply back for any other.
pub(crate) fn answer<'b>(
    serving: &Dispatch,
    request: &Request<'_>,
    reply: Reply<'b>,
) -> Result<Replied, Reply<'b>> {
    let Some(patience) = serving.pool.patience().filter(|_| !DEPUTY.get()) else { return Err(reply) };
    let (concern, long, unattended) = match course(serving, request) {
        Course::Direct => return Err(reply),
        Course::Refused => return Ok(reply.error(Errno::TIMEDOUT.raw_os_error())),
        Course::Deputy { concern, long, unattended } => (concern, long, unattended),
    };
    let (Some(owned), Some(own)) = (Owned::of(request), serving.own.upgrade()) else { return Err(reply) };
    let desk = Arc::new(Desk::default());
    serving.deputies.send(Job { serving: own, request: owned, desk: Arc::clone(&desk) });
    if unattended {
        desk.leave(serving, concern);
        return Ok(reply.ok());
    }
    match desk.wait(serving, concern, patience, long) {
        Some(Some(made)) => Ok(reply.aside(made)),
        Some(None) => Ok(reply.error(Errno::NOMEM.raw_os_error())),
        None => Ok(reply.error(Errno::TIMEDOUT.raw_os_error())),
    }
}

fn course(serving: &Dispatch, request: &Request<'_>) -> Course {
    let pool = &serving.pool;
    let node = NodeId(request.header.node.0);
    let file = |handle: u64, long: bool| match pool.deadline_of(HandleId(handle)) {
        None => Course::Direct,
        Some(branch) if branch.is_silent() => Course::Refused,
        Some(branch) => Course::Deputy { concern: Concern::File(branch.id), long, unattended: false },
    };
    let names = |handle: Option<u64>, long: bool| match pool.is_silent(node, handle.map(HandleId)) {
        true => Course::Refused,
        false if pool.stuck() >= LOST => Course::Refused,
        false => Course::Deputy { concern: Concern::Names, long, unattended: false },
    };
    match request.op {
        Op::Read(io) => file(io.handle, false),
        Op::Write(io) => file(io.handle, false),
        Op::Lseek { handle, .. } => file(handle, false),
        Op::Getattr { handle: Some(handle) } | Op::Statx { handle: Some(handle), .. } => file(handle, false),
        // What was written goes to the disk; these take as long as that does.
        Op::Flush { handle, .. } | Op::Fsync { handle, .. } | Op::Fallocate { handle, .. } => {
            file(handle, true)
        }
        Op::CopyFileRange(copy) => match file(copy.handle_in, true) {
            Course::Direct => file(copy.handle_out, true),
            other => other,
        },
        // A file is closed in any case.
        Op::Release { handle, .. } => match file(handle, true) {
            Course::Refused => match pool.deadline_of(HandleId(handle)) {
                Some(branch) => {
                    Course::Deputy { concern: Concern::File(branch.id), long: true, unattended: true }
                }
                None => Course::Direct,
            },
            other => other,
        },
        Op::Setattr(set) => names(set.handle, set.size.is_some()),
        Op::Fsyncdir { .. } | Op::Syncfs => names(None, true),
        Op::Ioctl { cmd: canopy_sys::trim::FITRIM, .. } => names(None, true),
        Op::Link { old, .. } if pool.is_silent(NodeId(old.0), None) => Course::Refused,
        // These touch no branch, or are for nobody to wait for.
        Op::Init(_)
        | Op::Forget { .. }
        | Op::BatchForget(_)
        | Op::Opendir { .. }
        | Op::Releasedir { .. }
        | Op::Getlk(_)
        | Op::Setlk(_)
        | Op::Setlkw(_)
        | Op::Interrupt { .. }
        | Op::Poll { .. }
        | Op::Bmap { .. }
        | Op::Destroy
        | Op::NotifyReply { .. }
        | Op::SetupMapping(_)
        | Op::RemoveMapping { .. }
        | Op::CuseInit(_)
        | Op::Unknown(_) => Course::Direct,
        // How much room there is does not depend on the file that it is asked of.
        Op::Statfs => Course::Deputy { concern: Concern::Names, long: false, unattended: false },
        _ => names(None, false),
    }
}

impl Deputies {
    /// To a deputy that is idle, or to a new one; done here and now where none can be made.
    fn send(&self, mut job: Job) {
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
            sched::anywhere();
            DEPUTY.set(true);
            let first = mine.lock().take();
            if let Some(job) = first {
                work(job, &idle);
            }
        };
        if let Err(why) = std::thread::Builder::new().name("canopy-deputy".into()).spawn(run) {
            tracing::error!("cannot start a thread for what may hang: {why}");
            let job = handed.lock().take();
            if let Some(job) = job {
                let was = DEPUTY.replace(true);
                job.work();
                DEPUTY.set(was);
            }
        }
    }
}

fn work(mut job: Job, idle: &Weak<Mutex<Vec<Sender<Job>>>>) {
    loop {
        job.work();
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

impl Job {
    fn work(self) {
        let made = Aside::make(&self.request, &*self.serving)
            .inspect_err(|why| tracing::error!("no memory for an answer: {why}"))
            .ok();
        let mut state = self.desk.state.lock();
        let State::Left(concern) = *state else {
            *state = State::Made(made);
            self.desk.changed.notify_one();
            return;
        };
        drop(state);
        if let Some(made) = made {
            made.discard(&*self.serving);
        }
        self.forget();
        match concern {
            Concern::Names => self.serving.pool.count_stuck(false),
            Concern::File(branch) => self.serving.probes.blame(&self.serving.pool, branch, false),
        }
    }

    /// What has been done after its caller was told that it failed, the kernel must look at again.
    fn forget(&self) {
        let request = self.request.request();
        let (node, notifier) = (request.header.node, &self.serving.notifier);
        let name = |parent, name: Name<'_>| {
            let _ = notifier.expire_entry(parent, name.as_cstr());
        };
        match request.op {
            Op::Symlink { name: made, .. }
            | Op::Mknod { name: made, .. }
            | Op::Mkdir { name: made, .. }
            | Op::Link { name: made, .. }
            | Op::Unlink { name: made }
            | Op::Rmdir { name: made } => name(node, made),
            Op::Create(create) => name(node, create.name),
            Op::Rename { name: from, newdir, newname, .. } => {
                name(node, from);
                name(newdir, newname);
                let _ = notifier.forget_attributes(newdir);
            }
            Op::Write(_) | Op::Setattr(_) | Op::Fallocate { .. } | Op::CopyFileRange(_) | Op::Open { .. } => {
            }
            _ => return,
        }
        let _ = notifier.forget_attributes(node);
    }
}

impl Desk {
    /// Waits for the answer; none when it is not waited for any longer.
    fn wait(
        &self,
        serving: &Dispatch,
        concern: Concern,
        patience: Duration,
        long: bool,
    ) -> Option<Option<Aside>> {
        let mut until = Instant::now() + patience;
        let mut state = self.state.lock();
        loop {
            if let State::Made(made) = &mut *state {
                return Some(made.take());
            }
            if !self.changed.wait_until(&mut state, until).timed_out() {
                continue;
            }
            if matches!(*state, State::Made(_)) {
                continue;
            }
            // A file that moves to another branch takes its time too, and so may those who wait for it.
            if (long || serving.pool.is_moving()) && serving.probes.all_answer() {
                until = Instant::now() + patience / 4;
                continue;
            }
            drop(state);
            return self.leave(serving, concern);
        }
    }

    /// Waits no longer, unless the answer has come in this moment.
    fn leave(&self, serving: &Dispatch, concern: Concern) -> Option<Option<Aside>> {
        let mut state = self.state.lock();
        if let State::Made(made) = &mut *state {
            return Some(made.take());
        }
        // Before the deputy can take it back.
        match concern {
            Concern::Names => serving.pool.count_stuck(true),
            Concern::File(branch) => serving.probes.blame(&serving.pool, branch, true),
        }
        *state = State::Left(concern);
        None
    }
}
