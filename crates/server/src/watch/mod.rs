//! Watches the branches for changes behind the pool's back, so that the kernel may cache names until they change.
//!
//! The filesystems of the branches are watched as a whole (fanotify(7)). `filesystems` knows which are, and maps a
//! directory on one of them to its path in the pool. `events` turns events into what the kernel must revalidate.
//! `notifications` notifies the kernel, and does so again where an answer may have been in flight. One thread does
//! all of it.
//!
//! Where changes cannot be watched, on some branches and on filesystems mounted below branches, TTLs are short, as
//! without watching. Where a branch comes before all that are not watched, what it holds is still known, if the first branch
//! in the order decides what the pool shows; what is missing, and the listings and times of directories, are not.

mod case_folding;
pub(crate) mod catalogue_file;
mod events;
mod filesystems;
pub(crate) mod keeper;
mod kept_file;
mod notifications;
pub(crate) mod revisit;
mod writers;

use crate::coherence::{CacheTtl, Coherence, Watched};
use crate::lock_rank as rank;
use crate::probes::Findings;
use arc_swap::ArcSwap;
use canopy_base::lock::ranked::{Mutex, MutexGuard};
use canopy_branch::branch::Branches;
use canopy_config::Config;
use canopy_config::values::Coherence as Mode;
use canopy_policy as policy;
use canopy_pool::Pool;
use canopy_pool::coherence::changes::{Change, Client};
use canopy_pool::config::{FollowSymlinks, Func};
use canopy_pool::ops;
use canopy_sys::shown::Show as _;
use canopy_sys::thread::sched;
use events::{EventReader, Remaining};
use filesystems::Filesystems;
pub(crate) use filesystems::Unwatched;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, ioctl_fionread};
use rustix::time::Timespec;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Watches the branches and sets the TTLs that follow from that.
pub(crate) struct Watch {
    pool: Arc<Pool>,
    coherence: Arc<Coherence>,
    /// Held while the TTLs change and while events are processed.
    state: Mutex<State, rank::WatchState>,
    pending_events: Arc<PendingEvents>,
    /// Whoever holds `state` takes longer than a request waits. Cleared when events are processed again.
    takes_long: AtomicBool,
}

/// Whether there are events on the branches that have not been processed.
pub(crate) struct PendingEvents {
    group: Option<Arc<OwnedFd>>,
    /// All branches are watched.
    all_watched: AtomicBool,
    /// Events that were read are being processed.
    processing: AtomicBool,
    /// The pool has changed something itself. It gets events for its own changes too, so there is no need to ask the
    /// queue.
    own_changes: AtomicBool,
    /// The unwatched branches that are worth reporting. Not in `State`, whose lock may be held for as long as a disk
    /// takes to answer.
    unwatched: ArcSwap<Vec<Unwatched>>,
    /// Branches are watched, but the kernel reports no write before the file is closed.
    unreported_writes: AtomicBool,
}

impl PendingEvents {
    /// Returns true if all branches are watched and there are no unprocessed events. May return false without need.
    pub(crate) fn is_empty(&self) -> bool {
        // In this order: a thread sets `processing` before it takes events from the queue.
        self.all_watched.load(Ordering::Acquire)
            && !(self.own_changes.load(Ordering::Relaxed) && self.own_changes.swap(false, Ordering::Relaxed))
            && self.group.as_ref().is_some_and(|group| ioctl_fionread(group).is_ok_and(|bytes| bytes == 0))
            && !self.processing.load(Ordering::Acquire)
    }
}

struct State {
    filesystems: Filesystems,
    reader: EventReader,
    pending_events: Arc<PendingEvents>,
    /// The configuration that was applied last.
    config: Config,
    /// What the kernel does when it is notified.
    kernel: Findings,
    /// Lines logged already, so as not to repeat them.
    logged: Vec<String>,
}

impl Watch {
    /// Begins to watch the branches, as far as that is wanted and possible, and sets the TTLs accordingly.
    pub(crate) fn start(
        config: &Config,
        pool: Arc<Pool>,
        coherence: Arc<Coherence>,
        kernel: Findings,
    ) -> Watch {
        let filesystems = Filesystems::open();
        let [all_watched, processing, own_changes, unreported_writes] = [const { AtomicBool::new(false) }; 4];
        let pending_events = Arc::new(PendingEvents {
            group: filesystems.group(),
            all_watched,
            processing,
            own_changes,
            unwatched: ArcSwap::default(),
            unreported_writes,
        });
        let mut state = State {
            filesystems,
            reader: EventReader::new(coherence.written_files()),
            pending_events: Arc::clone(&pending_events),
            config: config.clone(),
            kernel,
            logged: Vec::new(),
        };
        state.filesystems.watch(branches_to_watch(config, &ops::settings::branches(&pool)));
        coherence.set_ttl(state.new_ttl());
        allow_catalogue(&pool, &pending_events);
        Watch {
            pool,
            coherence,
            state: Mutex::new(state),
            pending_events,
            takes_long: AtomicBool::new(false),
        }
    }

    /// Returns the branches that are not watched although they seem to be able to, or although that was asked for.
    pub(crate) fn unwatched(&self) -> Arc<Vec<Unwatched>> {
        self.pending_events.unwatched.load_full()
    }

    /// Returns whether changes on a branch are watched. May wait for a disk.
    pub(crate) fn is_watched(&self, branch: &Path) -> bool {
        let state = self.state.lock();
        state.config.coherence != Mode::Timeout
            && state.filesystems.group().is_some()
            && state.filesystems.unwatched().iter().all(|one| one.branch != branch)
    }

    /// Returns whether changes on all branches are watched, so that much may be cached.
    pub(crate) fn watches_all(&self) -> bool {
        self.pending_events.all_watched.load(Ordering::Acquire)
    }

    /// Returns whether the kernel reports no write on the branches before the file is closed, though all are watched.
    pub(crate) fn misses_writes(&self) -> bool {
        self.pending_events.unreported_writes.load(Ordering::Relaxed)
    }

    /// Returns the paths in the pool at and below which another filesystem is mounted on a branch.
    pub(crate) fn covered(&self) -> Vec<Vec<u8>> {
        self.state.lock().filesystems.covered()
    }

    pub(crate) fn pending_events(&self) -> Arc<PendingEvents> {
        Arc::clone(&self.pending_events)
    }

    /// Records that the pool is about to change something on a branch.
    pub(crate) fn note_own_change(&self) {
        if !self.pending_events.own_changes.load(Ordering::Relaxed) {
            self.pending_events.own_changes.store(true, Ordering::Relaxed);
        }
    }

    /// Returns whether all events so far have been processed; processes a few itself if necessary. Waits for no branch.
    /// The caller must not hold any lock.
    pub(crate) fn caught_up(&self) -> bool {
        self.pending_events.is_empty() || self.catch_up()
    }

    /// Processes all events so far, and returns whether that succeeded, and whatever is changed on the filesystem with this device
    /// number is told. For a thread that may wait, and holds no lock.
    pub(crate) fn is_settled(&self, dev: u64) -> bool {
        let Some(group) = &self.pending_events.group else { return false };
        for _ in 0..MAX_READS {
            let mut state = self.state.lock();
            match self.process(&mut state, group.as_fd(), None) {
                Ok(Remaining::Nothing) => {
                    return state.filesystems.reports_writes() && !state.reader.is_written(dev);
                }
                Ok(_) => {}
                Err(_) => return false,
            }
        }
        false
    }

    /// Processes the events in the queue, unless there are many, or another thread does and takes long. Returns whether none
    /// is left.
    /// A request may call this only before it reads anything for its answer.
    pub(crate) fn catch_up(&self) -> bool {
        let Some(group) = self
            .pending_events
            .group
            .as_ref()
            .filter(|_| self.pending_events.all_watched.load(Ordering::Acquire))
        else {
            return false;
        };
        let Some(mut state) = self.state_soon() else { return self.pending_events.is_empty() };
        // An operation on a directory that many branches have causes many events. More of the pool's own are cheaper than
        // asking all branches. The watch thread will meet the same error and handle it.
        let mut reads =
            (0..MAX_INLINE_READS).map(|_| self.process(&mut state, group.as_fd(), Some(MAX_INLINE_BYTES)));
        let last = reads.find(|read| !matches!(read, Ok(Remaining::MaybeMoreOwn)));
        drop(state);
        self.coherence.caught_up();
        matches!(last, Some(Ok(Remaining::Nothing)))
    }

    /// Waits for whoever processes events. To ask all branches instead would make the caller wait for a disk that it does not
    /// need. If they themselves wait for a disk, one request finds that out for all that come until they continue.
    fn state_soon(&self) -> Option<MutexGuard<'_, State, rank::WatchState>> {
        if let Some(state) = self.state.try_lock() {
            return Some(state);
        }
        if self.takes_long.load(Ordering::Relaxed) {
            return None;
        }
        // To process some events takes less than to sleep and be woken.
        for _ in 0..SPINS {
            std::hint::spin_loop();
            if let Some(state) = self.state.try_lock() {
                return Some(state);
            }
        }
        let state = self.state.try_lock_for(PATIENCE);
        if state.is_none() {
            self.takes_long.store(true, Ordering::Relaxed);
        }
        state
    }

    /// Processes the events so far, at most `most` bytes of them in one read.
    fn process(
        &self,
        state: &mut State,
        group: BorrowedFd<'_>,
        most: Option<usize>,
    ) -> Result<Remaining, Errno> {
        self.takes_long.store(false, Ordering::Relaxed);
        self.pending_events.processing.store(true, Ordering::SeqCst);
        let to = (&*self.pool, &*self.coherence);
        let result = state.reader.process(to, group, &mut state.filesystems, most);
        self.pending_events.processing.store(false, Ordering::Release);
        result
    }

    /// Prepares for another configuration, and perhaps other branches, which are about to be in force. Once they are,
    /// the caller must invalidate all names.
    pub(crate) fn reconfigure(&self, config: &Config, branches: &Branches) {
        let mut state = self.state.lock();
        state.config = config.clone();
        let group = state.filesystems.group();
        state.reader.forget_writers(group);
        state.filesystems.watch(branches_to_watch(config, branches));
        self.apply(&mut state);
    }

    /// Handles a change of the mount table.
    fn mounts_changed(&self) {
        let mut state = self.state.lock();
        if state.filesystems.update_covered() {
            self.apply(&mut state);
            drop(state);
            self.coherence.invalidate_everything();
        }
    }

    /// Stops watching after an error.
    fn stop_watching(&self, errno: Errno) {
        tracing::error!("changes on the branches are not watched any more: {errno}");
        let mut state = self.state.lock();
        state.reader.forget_writers(None);
        state.filesystems.stop_watching(errno);
        ops::external_changes::records(&self.pool).iter().for_each(|record| record.distrust());
        self.apply(&mut state);
        drop(state);
        self.coherence.invalidate_everything();
    }

    /// Sets the TTLs that follow from what is watched now.
    fn apply(&self, state: &mut State) {
        let ttl = state.new_ttl();
        self.coherence.tell(Change::Missed, Client::Outside);
        self.coherence.set_ttl(ttl);
        allow_catalogue(&self.pool, &self.pending_events);
    }
}

/// Lets what the branches hold be known if all changes on them are reported, writes included.
fn allow_catalogue(pool: &Pool, events: &PendingEvents) {
    let all = events.all_watched.load(Ordering::Acquire) && !events.unreported_writes.load(Ordering::Relaxed);
    ops::external_changes::catalogue(pool).allow(all);
}

/// How often a request looks whether others have processed events before it sleeps: for some tens of microseconds.
const SPINS: usize = 2000;
/// How long a request waits for others that process events.
const PATIENCE: Duration = Duration::from_millis(50);
/// The bytes of events that a request processes itself: some tens of events.
const MAX_INLINE_BYTES: usize = 4096;
/// How often a thread reads some hundreds of events that wants to have read all.
const MAX_READS: usize = 256;
/// How often it reads as much, as long as only the pool itself has caused these events.
const MAX_INLINE_READS: usize = 16;

/// Returns the branches to watch.
fn branches_to_watch<'a>(config: &Config, branches: &'a Branches) -> Option<&'a Branches> {
    (config.coherence != Mode::Timeout).then_some(branches)
}

impl State {
    /// Returns the TTLs that follow from what is watched now. Afterwards the pool must forget what it has cached of
    /// directories, because it may have missed events.
    fn new_ttl(&mut self) -> CacheTtl {
        let Extent { watched, all, lines } = self.extent();
        let explicit = self.config.coherence == Mode::Watch;
        let worth_reporting = |one: &&Unwatched| explicit || one.local && self.filesystems.group().is_some();
        let unwatched = self.filesystems.unwatched().iter().filter(worth_reporting).cloned().collect();
        self.pending_events.unwatched.store(Arc::new(unwatched));
        self.pending_events.all_watched.store(all, Ordering::Release);
        let misses_writes = watched.is_some() && !self.filesystems.reports_writes();
        self.pending_events.unreported_writes.store(misses_writes, Ordering::Relaxed);
        if misses_writes {
            tracing::info!(
                "the kernel reports a write on a branch when the file is closed (before Linux 6.0), so attributes are cached for \
                 10 s"
            );
        }
        for line in &lines {
            if explicit {
                tracing::warn!("{line}");
            } else if !self.logged.contains(line) {
                tracing::info!("{line}");
            }
        }
        self.logged = lines;
        CacheTtl::new(&self.config, watched)
    }

    /// Returns what the kernel may be given for long.
    fn extent(&self) -> Extent {
        let mut lines = self.reasons_against_caching();
        let none_at_all = self.config.coherence == Mode::Timeout || !lines.is_empty();
        let leading = self.filesystems.leading();
        let all = !none_at_all && self.filesystems.unwatched().is_empty();
        // What comes first in the order of the branches is shown whatever the others hold; of copies by a rule, the newest is.
        let pool = &self.config.pool;
        let first_counts = policy::first_only(pool.policies.get(Func::Getattr), policy::Category::Search)
            && !pool.placement.knows_copies();
        let some = !none_at_all && !all && first_counts && !leading.is_empty();
        if self.config.coherence != Mode::Timeout {
            let what = if some {
                "so missing names, listings, and what is on it or on a branch after it are cached briefly"
            } else {
                "so names are cached briefly"
            };
            lines.extend(self.filesystems.unwatched().iter().map(|Unwatched { branch, why, .. }| {
                format!("changes on branch {} are not watched, {what}: {why}", branch.shown())
            }));
        }
        let watched = (all || some).then(|| Watched {
            except: self.filesystems.covered(),
            only: some.then(|| leading.to_vec()),
            kernel: self.kernel,
            writes: self.filesystems.reports_writes(),
        });
        Extent { watched, all, lines }
    }

    /// Returns why no name may be cached for long, whatever is watched.
    fn reasons_against_caching(&self) -> Vec<String> {
        let pool = &self.config.pool;
        let mut lines: Vec<String> = Vec::new();
        if self.config.coherence == Mode::Timeout {
            return lines;
        }
        if pool.follow_symlinks != FollowSymlinks::Never {
            lines.push(
                "symlinks are followed to places that are not watched, so names are cached briefly".into(),
            );
        }
        if pool.symlinkify {
            lines.push("symlinkify shows files by their age, so names are cached briefly".into());
        }
        let shows = pool.policies.get(Func::Getattr);
        if !policy::shows_by_copies(shows) {
            lines.push(format!(
                "func.getattr={shows} may show one copy or another, so names are cached briefly"
            ));
        }
        lines
    }
}

/// How far what is watched reaches.
struct Extent {
    /// `None` if nothing may be cached for long.
    watched: Option<Watched>,
    /// All branches are watched, and nothing speaks against relying on that.
    all: bool,
    /// What to log: why not everything may be.
    lines: Vec<String>,
}

/// The thread that watches the branches. Dropping the value stops it.
pub(crate) struct WatchThread {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl WatchThread {
    pub(crate) fn start(watch: Arc<Watch>) -> io::Result<WatchThread> {
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name("canopy-watch".into()).spawn(move || {
            sched::raise_priority();
            if let Err(errno) = run(&watch, &stopped) {
                watch.stop_watching(errno);
            }
        })?;
        Ok(WatchThread { stop, thread: Some(thread) })
    }
}

impl Drop for WatchThread {
    fn drop(&mut self) {
        let _ = rustix::io::write(&*self.stop, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(watch: &Watch, stop: &OwnedFd) -> Result<(), Errno> {
    // Without a fanotify group there will never be events.
    let Some(group) = watch.state.lock().filesystems.group() else { return Ok(()) };
    // It becomes ready when the mount table has changed since it was last polled (proc_pid_mountinfo(5)).
    let mounts =
        File::open("/proc/self/mountinfo").map_err(|why| Errno::from_io_error(&why).unwrap_or(Errno::IO))?;
    // For mounts made since the table was read at the start.
    watch.mounts_changed();
    loop {
        let mut ready = [
            PollFd::from_borrowed_fd(stop.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(mounts.as_fd(), PollFlags::PRI),
            PollFd::from_borrowed_fd(group.as_fd(), PollFlags::IN),
        ];
        // While nothing polls the group, a thread that causes an event does not have to wake this one.
        let (skip_group, pause) = watch.state.lock().reader.next_pause();
        let polled = if skip_group { &mut ready[..2] } else { &mut ready[..] };
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
        watch.process(&mut watch.state.lock(), group.as_fd(), None)?;
    }
}

fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: time.as_secs().cast_signed(), tv_nsec: i64::from(time.subsec_nanos()) as _ }
}
