//! What changes on the branches behind the pool's back, so that the kernel may rely on names as long as nobody
//! changes them.
//!
//! The filesystems of the branches are watched whole (fanotify(7)); `filesystems` knows which those are and turns a
//! directory on one of them into its path in the pool; `events` turns what happened there into what the kernel must
//! forget; `notifications` tells the kernel, and tells it again where an answer may have been under way. One thread does
//! all of it.
//!
//! A branch that cannot be watched, and what another filesystem covers below a branch, is as it is without watching:
//! the kernel asks again after a short time.

mod case_folding;
mod events;
mod filesystems;
mod notifications;

use crate::coherence::{CacheTtl, Coherence};
use arc_swap::ArcSwap;
use canopy_config::Config;
use canopy_config::values::Coherence as Mode;
use canopy_pool::Pool;
use canopy_pool::branch::Branches;
use canopy_pool::config::{FollowSymlinks, Func};
use canopy_pool::policy;
use canopy_sys::sched;
use events::{Left, Reader};
use filesystems::Filesystems;
pub(crate) use filesystems::Unwatched;
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, ioctl_fionread};
use rustix::time::Timespec;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// What the answers of a pool are given by, and where changes are watched for.
pub(crate) struct Watch {
    pool: Arc<Pool>,
    coherence: Arc<Coherence>,
    /// Held over a change of the times to live, and while events are worked on.
    state: Mutex<State>,
    waiting: Arc<Waiting>,
}

/// Is there anything that has happened on the branches and was not worked on?
pub(crate) struct Waiting {
    group: Option<Arc<OwnedFd>>,
    /// All branches are watched.
    all: AtomicBool,
    /// Events that were read are being worked on.
    working: AtomicBool,
    /// The pool has changed something itself, of which it is told as of everything: there is no need to ask whether there
    /// is anything.
    own: AtomicBool,
    /// Of branches that are not watched, those of which that is worth telling. Not in the state, which may be held for as
    /// long as a disk takes to answer.
    unwatched: ArcSwap<Vec<Unwatched>>,
}

impl Waiting {
    /// False where not all is watched, and where there is something in all likelihood.
    pub(crate) fn nothing(&self) -> bool {
        // In this order: what is not in the queue any more was read by somebody who had said so.
        self.all.load(Ordering::Acquire)
            && !(self.own.load(Ordering::Relaxed) && self.own.swap(false, Ordering::Relaxed))
            && self.group.as_ref().is_some_and(|group| ioctl_fionread(group).is_ok_and(|bytes| bytes == 0))
            && !self.working.load(Ordering::Acquire)
    }
}

struct State {
    filesystems: Filesystems,
    reader: Reader,
    waiting: Arc<Waiting>,
    /// As it was settled last.
    config: Config,
    /// All names can be forgotten at once, those that are missing included.
    forgets_all: bool,
    /// Told already, so as not to tell again.
    told: Vec<String>,
}

impl Watch {
    /// Begins to watch the branches as far as that is wanted and can be done, and sets the times to live that follow.
    pub(crate) fn start(
        config: &Config,
        pool: Arc<Pool>,
        coherence: Arc<Coherence>,
        forgets_all: bool,
    ) -> Watch {
        let filesystems = Filesystems::open();
        let [all, working, own] = [const { AtomicBool::new(false) }; 3];
        let waiting = Arc::new(Waiting {
            group: filesystems.group(),
            all,
            working,
            own,
            unwatched: ArcSwap::default(),
        });
        let mut state = State {
            filesystems,
            reader: Reader::new(),
            waiting: Arc::clone(&waiting),
            config: config.clone(),
            forgets_all,
            told: Vec::new(),
        };
        state.filesystems.set(wanted(config, &pool.branches()));
        coherence.set_ttl(state.ttl());
        Watch { pool, coherence, state: Mutex::new(state), waiting }
    }

    /// The branches that are not watched, though they could be as it seems, or somebody has asked for it.
    pub(crate) fn unwatched(&self) -> Arc<Vec<Unwatched>> {
        self.waiting.unwatched.load_full()
    }

    pub(crate) fn waiting(&self) -> Arc<Waiting> {
        Arc::clone(&self.waiting)
    }

    /// The pool is about to change something on a branch.
    pub(crate) fn changing(&self) {
        if !self.waiting.own.load(Ordering::Relaxed) {
            self.waiting.own.store(true, Ordering::Relaxed);
        }
    }

    /// Has everything been worked on that has happened by now? For who cannot wait: no lock may be held.
    pub(crate) fn caught_up(&self) -> bool {
        self.waiting.nothing() || self.catch_up()
    }

    /// Works on what is waiting, if nobody else does and it is not much; true when nothing is left.
    pub(crate) fn catch_up(&self) -> bool {
        let Some(group) = self.waiting.group.as_ref().filter(|_| self.waiting.all.load(Ordering::Acquire))
        else {
            return false;
        };
        let Some(mut state) = self.state.try_lock() else { return self.waiting.nothing() };
        // What cannot be read is told to the thread that watches.
        matches!(self.work(&mut state, group.as_fd(), Some(HANDFUL)), Ok(Left::Nothing))
    }

    /// Works on what has happened by now, at most on so many bytes of it at once.
    fn work(&self, state: &mut State, group: BorrowedFd<'_>, most: Option<usize>) -> Result<Left, Errno> {
        self.waiting.working.store(true, Ordering::SeqCst);
        let to = (&*self.pool, &*self.coherence);
        let result = state.reader.work(to, group, &mut state.filesystems, most);
        self.waiting.working.store(false, Ordering::Release);
        result
    }

    /// Another configuration, and perhaps other branches, are about to be in force. The kernel has to forget all names
    /// once they are.
    pub(crate) fn settle(&self, config: &Config, branches: &Branches) {
        let mut state = self.state.lock();
        state.config = config.clone();
        state.filesystems.set(wanted(config, branches));
        self.apply(&mut state);
    }

    /// Something was mounted or unmounted somewhere.
    fn mounts_changed(&self) {
        let mut state = self.state.lock();
        if state.filesystems.look_at_mounts() {
            self.apply(&mut state);
            drop(state);
            self.coherence.invalidate_everything();
        }
    }

    /// Nothing can be watched any more.
    fn give_up(&self, errno: Errno) {
        tracing::error!("changes on the branches are not watched any more: {errno}");
        let mut state = self.state.lock();
        state.filesystems.give_up(errno);
        self.apply(&mut state);
        drop(state);
        self.coherence.invalidate_everything();
    }

    /// Sets the times to live that follow from what is watched now.
    fn apply(&self, state: &mut State) {
        let ttl = state.ttl();
        self.pool.changes_missed();
        self.coherence.set_ttl(ttl);
    }
}

/// Bytes of events that who serves a request works on: some tens of events.
const HANDFUL: usize = 4096;

/// The branches to be watched.
fn wanted<'a>(config: &Config, branches: &'a Branches) -> Option<&'a Branches> {
    (config.coherence != Mode::Timeout).then_some(branches)
}

impl State {
    /// What is remembered of directories is to be forgotten after this, for the pool may not have been told of all.
    fn ttl(&mut self) -> CacheTtl {
        let blindness = self.blindness();
        let asked = self.config.coherence == Mode::Watch;
        let worth_telling = |one: &&Unwatched| asked || one.local && self.filesystems.group().is_some();
        let unwatched = self.filesystems.unwatched().iter().filter(worth_telling).cloned().collect();
        self.waiting.unwatched.store(Arc::new(unwatched));
        self.waiting.all.store(blindness.is_none(), Ordering::Release);
        let told = match blindness {
            Some(lines) => lines,
            None => {
                tracing::debug!("changes on all branches are watched");
                return CacheTtl::new(&self.config, Some((self.filesystems.blind(), self.forgets_all)));
            }
        };
        for line in &told {
            if self.config.coherence == Mode::Watch {
                tracing::warn!("{line}");
            } else if !self.told.contains(line) {
                tracing::info!("{line}");
            }
        }
        self.told = told;
        CacheTtl::new(&self.config, None)
    }

    /// Why names cannot be relied upon for long; `None` if they can.
    fn blindness(&self) -> Option<Vec<String>> {
        let pool = &self.config.pool;
        if self.config.coherence == Mode::Timeout {
            return Some(Vec::new());
        }
        let mut lines: Vec<String> = Vec::new();
        if pool.follow_symlinks != FollowSymlinks::Never {
            lines.push("symlinks are followed, to where nothing is watched: names are kept briefly".into());
        }
        if pool.symlinkify {
            lines.push("symlinkify shows files by their age: names are kept briefly".into());
        }
        let shows = pool.policies.get(Func::Getattr);
        if !policy::shows_by_copies(shows) {
            lines.push(format!("func.getattr={shows} shows one copy or another: names are kept briefly"));
        }
        lines.extend(self.filesystems.unwatched().iter().map(|Unwatched { branch, why, .. }| {
            format!("changes on branch {} are not watched, names are kept briefly: {why}", branch.display())
        }));
        (!lines.is_empty()).then_some(lines)
    }
}

/// The thread that watches; its end ends it.
pub(crate) struct Watching {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Watching {
    pub(crate) fn start(watch: Arc<Watch>) -> io::Result<Watching> {
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name("canopy-watch".into()).spawn(move || {
            sched::raise_priority();
            if let Err(errno) = run(&watch, &stopped) {
                watch.give_up(errno);
            }
        })?;
        Ok(Watching { stop, thread: Some(thread) })
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        let _ = rustix::io::write(&*self.stop, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(watch: &Watch, stop: &OwnedFd) -> Result<(), Errno> {
    // Without a group there is nothing to be told, now or later.
    let Some(group) = watch.state.lock().filesystems.group() else { return Ok(()) };
    // It becomes ready when the list has changed since it was last polled (proc_pid_mountinfo(5)).
    let mounts =
        File::open("/proc/self/mountinfo").map_err(|why| Errno::from_io_error(&why).unwrap_or(Errno::IO))?;
    // What was mounted between the first look and this one.
    watch.mounts_changed();
    loop {
        let mut ready = [
            PollFd::from_borrowed_fd(stop.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(mounts.as_fd(), PollFlags::PRI),
            PollFd::from_borrowed_fd(group.as_fd(), PollFlags::IN),
        ];
        // Who makes an event has nobody to wake while nobody waits for it.
        let (rest, pause) = watch.state.lock().reader.rest();
        let polled = if rest { &mut ready[..2] } else { &mut ready[..] };
        match poll(polled, pause.map(timespec).as_ref()) {
            Err(Errno::INTR) => continue,
            result => result.map(drop)?,
        }
        let [stopped, mounted, _] = ready.map(|fd| !fd.revents().is_empty());
        if stopped {
            return Ok(());
        }
        if mounted {
            watch.mounts_changed();
        }
        watch.work(&mut watch.state.lock(), group.as_fd(), None)?;
    }
}

fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: time.as_secs().cast_signed(), tv_nsec: i64::from(time.subsec_nanos()) as _ }
}
