//! Listings prepared ahead: while the kernel and its client work through one part of a long listing, another thread makes
//! the next.
//!
//! A prepared part is what the request would have been answered by a moment earlier, made by the same code
//! ([`Dispatch::readdirplus`]). It is given only if nothing can have changed since its making began; else it is thrown away,
//! its references are taken back, and the request is answered as ever. For the client may have made a change in between and
//! be entitled to see it, and the kernel guards only against what changes after it has asked: attributes that
//! it knows to be newer than its request (fs/fuse/inode.c fuse_change_attributes_i) and names in a directory that it keeps locked.
//! So, from before the first system call of its making until it is given:
//!
//! - No request that may change something is under way, or has been (`acts`). What is written to a file that is open for
//!   writing may not come to the daemon (passthrough), so nothing is given of a file that is so, or that was, such that a mapping
//!   may still be there (`Pool::written_unseen`); that is looked at when it has been made, and who opens a file later is
//!   a change.
//! - Nothing has happened on the branches. Parts are prepared only where all that the pool shows is watched; and before one is
//!   given, what has happened by then is worked on, as before an OPENDIR. Each event that concerns something known, each
//!   change that `young` finds, and each new set of branches or terms counts as a change in `fresh`. There must be none,
//!   about anything. So all that was told in it was told fresh, and may be relied upon for its time.
//! - Who notes a change in `fresh` after that look, finds that the part was told, to this asker, and notifies; these
//!   notes are older than those of an ordinary answer by no more than a part may be, a fiftieth of the time for which an answer is taken
//!   to be under way. Asked by another thread, a part is not given: its notes name the one it was made for.
//! - It does not count as an answer under way in `locking` while it waits. Who waits for answers with names of before
//!   (`forget`) has noted his change before, so that a request which he does not wait for is not answered by it; the request
//!   that it is given to is waited for as any other, and `listed` knows its directory.
//! - The listing of the handle is still the same: a READDIR, or a READDIRPLUS for anything but this part, gives it up.
//!
//! What is true of an ordinary answer as of its moment is true of a part as of a moment not longer ago than [`AGE`]: access
//! times, and what is being written on a branch by others, of which nothing tells at all.
//!
//! A part is prepared when the client comes back for a second one: the first is asked for with attributes whether it wants them or
//! not (fs/fuse/readdir.c fuse_use_readdirplus). When two in a row were in vain, that handle gets no more. Where a branch has
//! a deadline nothing is prepared: whoever waits for it would have to be a deputy.

use super::convert;
use super::dispatch::{Dispatch, Listing};
use super::fresh::{Answering, Asker};
use crate::serve::convert::Terms;
use canopy_fuse::request::{Extensions, FileIo, Header, Owned};
use canopy_fuse::transport::Aside;
use canopy_fuse::{Handler, NodeId, Op, Replied, Reply, Request};
use canopy_pool::HandleId;
use canopy_sys::sched;
use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use rustix::thread::sched_getcpu;
use std::collections::{HashMap, VecDeque};
use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread;
use std::time::{Duration, Instant};

/// A part is not given when its making began longer ago. A client takes about a millisecond for one.
const AGE: Duration = Duration::from_millis(40);
/// Handles for which parts are prepared at a time; each part takes the memory of one answer, 32 KiB as a rule.
const HANDLES: usize = 64;
/// Larger parts are not prepared, in bytes.
const LARGEST: u32 = 128 << 10;
/// So many parts in vain, and no more for that handle.
const IN_VAIN: u32 = 2;

pub(super) struct Ahead {
    handles: Mutex<HashMap<u64, Arc<Slot>>>,
    /// How many there are: most directories are listed in one or two answers.
    used: AtomicUsize,
    desk: Arc<Desk>,
}

/// Of one open directory.
#[derive(Default)]
struct Slot {
    part: Mutex<Part>,
    made: Condvar,
}

#[derive(Default)]
struct Part {
    state: State,
    /// In a row.
    in_vain: u32,
    given: u32,
    wasted: u32,
}

#[derive(Default)]
enum State {
    #[default]
    Nothing,
    Wanted(Task),
    /// Somebody makes it.
    Making {
        asks: Asks,
        wanted: bool,
    },
    Ready(Prepared),
}

/// Which request a part is for.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Asks {
    dir: NodeId,
    asker: Asker,
    offset: u64,
    size: u32,
}

struct Task {
    asks: Asks,
    request: Owned,
}

/// Whoever drops it gives back what it holds; not with a slot locked.
struct Prepared {
    asks: Asks,
    /// None once it has been given.
    made: Option<Aside>,
    serving: Weak<Dispatch>,
    next: Option<u64>,
    /// Before its making began: when that was, and what had changed by then.
    begun: Instant,
    acts: u64,
    changes: u64,
    terms: Arc<Terms>,
}

/// Where those who make parts get their work.
#[derive(Default)]
struct Desk {
    /// At most.
    threads: usize,
    work: Mutex<Work>,
    more: Condvar,
    idle: Condvar,
}

#[derive(Default)]
struct Work {
    jobs: VecDeque<Job>,
    /// Threads, and those of them that have something to do.
    threads: usize,
    busy: usize,
    ended: bool,
}

struct Job {
    serving: Weak<Dispatch>,
    what: What,
    /// The processor on which the request before was answered, as a rule its client's.
    processor: usize,
}

enum What {
    /// The next part of a listing.
    Part(Arc<Slot>),
    /// The names of a listing that has been begun.
    Names(HandleId),
}

/// Answers a READDIRPLUS, and has the next prepared.
pub(super) fn answer(
    serving: &Dispatch,
    header: &Header,
    reply: Reply<'_>,
    answering: &Answering<'_>,
    io: &FileIo,
) -> Replied {
    let asks = Asks { dir: header.node, asker: header.pid, offset: io.offset, size: io.size };
    let mut prepared = serving.ahead.take(serving, io.handle, asks, reply.limit());
    match prepared.as_mut().and_then(|prepared| Some((prepared.made.take()?, prepared.next))) {
        Some((made, next)) => {
            serving.ahead.want(serving, header, io, next);
            reply.prepared(made)
        }
        None => {
            let Listing { replied, next, unread, .. } =
                serving.readdirplus(reply, answering, convert::node(header.node), io);
            if unread {
                serving.ahead.read_on(serving, HandleId(io.handle));
            }
            serving.ahead.want(serving, header, io, next);
            replied
        }
    }
}

impl Ahead {
    pub(super) fn new() -> Ahead {
        // On a single processor there is nothing to be gained.
        let desk = Arc::new(Desk { threads: (sched::processors() / 2).min(4), ..Desk::default() });
        Ahead { handles: Mutex::default(), used: AtomicUsize::new(0), desk }
    }

    fn slot(&self, handle: u64) -> Option<Arc<Slot>> {
        // A handle has one request at a time: what its last one has put there is seen.
        if self.used.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.handles.lock().get(&handle).cloned()
    }

    /// What has been prepared for a request, if it still holds.
    fn take(&self, serving: &Dispatch, handle: u64, asks: Asks, room: usize) -> Option<Prepared> {
        let slot = self.slot(handle)?;
        let prepared = slot.take(Some(asks))?;
        let holds = prepared.asks == asks && prepared.asks.size as usize <= room && prepared.holds(serving);
        slot.part.lock().came_to(holds);
        holds.then_some(prepared)
    }

    /// A handle is read in a way that nothing was prepared for.
    pub(super) fn leave(&self, handle: u64) {
        if let Some(slot) = self.slot(handle) {
            slot.give_up();
        }
    }

    pub(super) fn closed(&self, serving: &Dispatch, handle: u64) {
        if self.used.load(Ordering::Acquire) == 0 {
            return;
        }
        let removed = {
            let mut handles = self.handles.lock();
            let removed = handles.remove(&handle);
            self.used.store(handles.len(), Ordering::Release);
            removed
        };
        if let Some(slot) = removed {
            slot.give_up();
            let part = slot.part.lock();
            tracing::debug!(
                "a listing: {} parts were given that had been prepared, {} were not; {} nodes are known",
                part.given,
                part.wasted,
                serving.pool.counts().0,
            );
        }
    }

    /// A request has been answered; the one that follows is about to come if its client goes on.
    fn want(&self, serving: &Dispatch, header: &Header, io: &FileIo, next: Option<u64>) {
        let Some(offset) = next.filter(|_| io.offset != 0 && io.size <= LARGEST) else { return };
        if self.desk.threads == 0 || !serving.terms.load().sees_all() || serving.pool.patience().is_some() {
            return;
        }
        let op = Op::Readdirplus(FileIo { offset, ..*io });
        let Some(request) = Owned::of(&Request { header: *header, op, ext: Extensions::default() }) else {
            return;
        };
        let asks = Asks { dir: header.node, asker: header.pid, offset, size: io.size };
        let (slot, left) = self.place(io.handle);
        left.iter().for_each(|slot| slot.give_up());
        let Some(slot) = slot else { return };
        {
            let mut part = slot.part.lock();
            if part.in_vain >= IN_VAIN || !matches!(part.state, State::Nothing) {
                return;
            }
            part.state = State::Wanted(Task { asks, request });
        }
        let processor = sched_getcpu();
        Desk::put(&self.desk, Job { serving: serving.own.clone(), what: What::Part(slot), processor });
    }

    /// A listing has been begun: all its names are read, without the client who waits for the first of them, if it can be.
    fn read_on(&self, serving: &Dispatch, handle: HandleId) {
        let job = Job { serving: serving.own.clone(), what: What::Names(handle), processor: sched_getcpu() };
        // Who reads a branch that has a deadline must be a deputy, as who does this is.
        if serving.pool.patience().is_some() || !Desk::put(&self.desk, job) {
            while serving.pool.read_on(handle) {}
        }
    }

    /// The place for what is prepared for a handle, if there is one; and those that made room for it: of handles of which
    /// nobody reads on.
    fn place(&self, handle: u64) -> (Option<Arc<Slot>>, Vec<Arc<Slot>>) {
        let mut handles = self.handles.lock();
        if let Some(slot) = handles.get(&handle) {
            return (Some(Arc::clone(slot)), Vec::new());
        }
        let mut left = Vec::new();
        if handles.len() >= HANDLES {
            left =
                handles.extract_if(|_, slot| !slot.part.lock().is_of_use()).map(|(_, slot)| slot).collect();
        }
        let slot = (handles.len() < HANDLES).then(Arc::<Slot>::default);
        handles.extend(slot.iter().map(|slot| (handle, Arc::clone(slot))));
        self.used.store(handles.len(), Ordering::Release);
        (slot, left)
    }

    /// Nothing is prepared any more, and nobody is at it when this returns. The session is over.
    pub(super) fn end(&self) {
        let mut work = self.desk.work.lock();
        work.end();
        self.desk.more.notify_all();
        while work.busy > 0 {
            self.desk.idle.wait(&mut work);
        }
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        // Perhaps by one of those threads: none is waited for.
        self.desk.work.lock().end();
        self.desk.more.notify_all();
    }
}

impl Slot {
    /// What has been prepared, for this request or not. Waits for what is being made if that is for this one; otherwise it
    /// is thrown away when it has been made.
    fn take(&self, asks: Option<Asks>) -> Option<Prepared> {
        let mut part = self.part.lock();
        loop {
            match mem::take(&mut part.state) {
                // Nobody has come to it yet: who asks is faster.
                State::Nothing | State::Wanted(_) => return None,
                State::Ready(prepared) => return Some(prepared),
                State::Making { asks: made, wanted: true } if Some(made) == asks => {
                    part.state = State::Making { asks: made, wanted: true };
                    self.made.wait(&mut part);
                }
                State::Making { asks, wanted } => {
                    part.state = State::Making { asks, wanted: false };
                    if wanted {
                        part.came_to(false);
                    }
                    return None;
                }
            }
        }
    }

    fn give_up(&self) {
        if let Some(_prepared) = self.take(None) {
            self.part.lock().came_to(false);
        }
    }

    /// Makes what is wanted, if it still is.
    fn work(&self, serving: &Arc<Dispatch>) {
        let task = {
            let mut part = self.part.lock();
            match mem::take(&mut part.state) {
                State::Wanted(task) => {
                    part.state = State::Making { asks: task.asks, wanted: true };
                    task
                }
                other => {
                    part.state = other;
                    return;
                }
            }
        };
        // A panic of the pool ends in there.
        let prepared = Prepared::make(serving, task);
        let mut part = self.part.lock();
        let wanted = matches!(mem::take(&mut part.state), State::Making { wanted: true, .. });
        let _unwanted = match prepared {
            Some(prepared) if wanted => {
                part.state = State::Ready(prepared);
                None
            }
            other => {
                if wanted {
                    part.came_to(false);
                }
                other
            }
        };
        self.made.notify_all();
        drop(part);
    }
}

impl Part {
    fn came_to(&mut self, given: bool) {
        self.in_vain = if given { 0 } else { self.in_vain + 1 };
        self.given += u32::from(given);
        self.wasted += u32::from(!given);
    }

    /// Will it be given yet?
    fn is_of_use(&self) -> bool {
        match &self.state {
            State::Nothing => false,
            State::Wanted(_) | State::Making { .. } => true,
            State::Ready(prepared) => prepared.begun.elapsed() <= AGE,
        }
    }
}

impl Prepared {
    /// None while something is being changed, of files that may be, and instead of an error.
    fn make(serving: &Arc<Dispatch>, task: Task) -> Option<Prepared> {
        let begun = Instant::now();
        let acts = serving.acts.quiet()?;
        let changes = serving.fresh.changes();
        let terms = serving.terms.load_full();
        let making = Making { serving: Arc::clone(serving), told: OnceLock::new() };
        let made = Aside::make(&task.request, &making).ok()?;
        let failed = made.failed();
        let (nodes, next) = making.told.into_inner().unwrap_or_default();
        let (asks, made, own) = (task.asks, Some(made), serving.own.clone());
        let prepared = Prepared { asks, made, serving: own, next, begun, acts, changes, terms };
        (!failed && !serving.pool.written_unseen(&nodes)).then_some(prepared)
    }

    /// Is it what the answer would be that began to be made now?
    fn holds(&self, serving: &Dispatch) -> bool {
        self.begun.elapsed() <= AGE
            && serving.acts.begun() == self.acts
            && Arc::ptr_eq(&serving.terms.load(), &self.terms)
            // What has happened is worked on first: that is told to `fresh`.
            && serving.watch.caught_up(serving)
            && serving.fresh.changes() == self.changes
    }
}

impl Drop for Prepared {
    fn drop(&mut self) {
        if let (Some(made), Some(serving)) = (self.made.take(), self.serving.upgrade()) {
            made.discard(&*serving);
        }
    }
}

/// Answers the request that has not come yet.
struct Making {
    serving: Arc<Dispatch>,
    /// Which nodes were named, and where the next begins.
    told: OnceLock<(Vec<canopy_pool::NodeId>, Option<u64>)>,
}

impl Handler for Making {
    fn handle(&self, request: Request<'_>, reply: Reply<'_>) -> Replied {
        let Op::Readdirplus(io) = request.op else { return reply.error(Errno::IO.raw_os_error()) };
        let answering = self.serving.fresh.begin(request.header.pid);
        let dir = convert::node(request.header.node);
        let Listing { replied, nodes, next, .. } = self.serving.readdirplus(reply, &answering, dir, &io);
        let _ = self.told.set((nodes, next));
        replied
    }
}

impl Work {
    fn end(&mut self) {
        self.ended = true;
        self.jobs.clear();
    }
}

impl Desk {
    /// False if nobody will come to it.
    fn put(desk: &Arc<Desk>, job: Job) -> bool {
        let mut work = desk.work.lock();
        // Nobody comes to them: a disk sleeps.
        if work.ended || desk.threads == 0 || work.jobs.len() >= HANDLES {
            return false;
        }
        if work.threads - work.busy <= work.jobs.len() && work.threads < desk.threads {
            let own = Arc::clone(desk);
            let started = thread::Builder::new().name("canopy-ahead".into()).spawn(move || own.run());
            match started {
                Ok(_) => work.threads += 1,
                Err(why) => tracing::debug!("cannot start a thread for what may be asked for next: {why}"),
            }
        }
        if work.threads == 0 {
            return false;
        }
        work.jobs.push_back(job);
        drop(work);
        desk.more.notify_one();
        true
    }

    fn run(&self) {
        // Its client would be driven from one processor to the other.
        let mut avoided = None;
        let mut work = self.work.lock();
        while !work.ended {
            let Some(Job { serving, what, processor }) = work.jobs.pop_front() else {
                self.more.wait(&mut work);
                continue;
            };
            work.busy += 1;
            drop(work);
            if avoided != Some(processor) {
                avoided = Some(processor);
                sched::anywhere_but(avoided);
            }
            let unread = match (&what, serving.upgrade()) {
                (What::Part(slot), Some(serving)) => {
                    slot.work(&serving);
                    false
                }
                (What::Names(handle), Some(serving)) => serving.pool.read_on(*handle),
                (_, None) => false,
            };
            let unread = unread.then_some(Job { serving, what, processor });
            work = self.work.lock();
            if let Some(job) = unread.filter(|_| !work.ended) {
                // After what others have asked for: a piece at a time.
                work.jobs.push_back(job);
            }
            work.busy -= 1;
            if work.ended {
                self.idle.notify_all();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asks(offset: u64) -> Asks {
        Asks { dir: NodeId(1), asker: 2, offset, size: 4096 }
    }

    fn task(offset: u64) -> Task {
        let header =
            Header { unique: 1, opcode: 44, node: NodeId(1), uid: 0, gid: 0, pid: 2, total_extlen: 0 };
        let request = Request { header, op: Op::Statfs, ext: Extensions::default() };
        Task { asks: asks(offset), request: Owned::of(&request).unwrap() }
    }

    #[test]
    fn so_many_handles_have_a_place_and_those_that_are_not_read_make_room() {
        let ahead = Ahead::new();
        let busy: Vec<_> = (0..HANDLES as u64).map(|handle| ahead.place(handle).0.unwrap()).collect();
        busy.iter().for_each(|slot| slot.part.lock().state = State::Wanted(task(5)));
        assert!(ahead.place(1000).0.is_none());
        assert!(ahead.place(3).0.is_some(), "its own");
        for slot in &busy[..2] {
            slot.part.lock().state = State::Nothing;
        }
        let (slot, left) = ahead.place(1000);
        assert!(slot.is_some() && left.len() == 2);
        assert_eq!(ahead.handles.lock().len(), HANDLES - 1);
    }

    #[test]
    fn what_is_being_made_for_another_request_is_not_waited_for() {
        let slot = Slot::default();
        let making = || State::Making { asks: asks(5), wanted: true };
        for other in [None, Some(asks(6)), Some(Asks { asker: 3, ..asks(5) })] {
            *slot.part.lock() = Part { state: making(), ..Part::default() };
            assert!(slot.take(other).is_none());
            let part = slot.part.lock();
            assert!(matches!(part.state, State::Making { wanted: false, .. }));
            assert_eq!((part.in_vain, part.wasted), (1, 1));
        }
        // Nor is what nobody has begun.
        *slot.part.lock() = Part { state: State::Wanted(task(5)), ..Part::default() };
        assert!(slot.take(Some(asks(5))).is_none());
        assert!(matches!(*slot.part.lock(), Part { state: State::Nothing, wasted: 0, .. }));
        // What comes to nothing is not waited for any longer than that.
        *slot.part.lock() = Part { state: making(), ..Part::default() };
        thread::scope(|scope| {
            let waits = scope.spawn(|| slot.take(Some(asks(5))).is_none());
            thread::sleep(Duration::from_millis(20));
            assert!(!waits.is_finished());
            slot.part.lock().state = State::Nothing;
            slot.made.notify_all();
            assert!(waits.join().unwrap());
        });
    }
}
