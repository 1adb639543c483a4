//! What a process looks at again and again, and calls that may wait for ever.
//!
//! One thread looks at everything ([`repeat`], [`sweep`]), so nothing that it runs may wait: neither for a branch nor for a lock
//! that somebody holds who waits for one. It hands such calls on ([`apart`]). Each call has a thread as long as it takes, and a
//! thread whose call has returned takes another one. Calls in one [line](Line) run one after the other, so as many threads as
//! there are lines may wait for a disk that hangs, and no other line waits for them.
//!
//! New threads are started by the one that looks, so that they have its rights, and not those of a worker that is confined or
//! serves a caller.

use canopy_base::lock::rank;
use canopy_base::lock::ranked::Mutex;
use canopy_sys::thread::sched;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::OwnedFd;
use rustix::process::{Pid, getpid};
use std::collections::{HashMap, VecDeque};
use std::ffi::CStr;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::{Duration, Instant};

/// Calls that run one after the other: what they do, which is also the name of their thread, and for what.
pub type Line = (&'static CStr, u64);

type Call = Box<dyn FnOnce() + Send>;
/// Is told whether its source has something to say, and returns after how long to look again; `None` at its end.
type Look = Box<dyn FnMut(bool) -> Option<Duration> + Send>;

/// How long a thread waits for another call.
const KEPT: Duration = Duration::from_secs(10);
/// After how long to try again to start a thread.
const RETRY: Duration = Duration::from_secs(1);
/// The names of the thread that looks, and of those that wait for a call.
const LOOKS: &str = "canopy-tend";
const WAITS: &CStr = c"canopy-idle";

static TENDER: LazyLock<Tender> = LazyLock::new(Tender::new);

struct Tender {
    state: Mutex<State, rank::Leaf>,
    /// Readable if there is news. `None`, where no descriptor is left: then news wait for the next look.
    news: Option<OwnedFd>,
}

#[derive(Default)]
struct State {
    /// The process in which the thread runs that looks: not in a process that was forked from it.
    started: Option<Pid>,
    new: Vec<Task>,
    /// What waits in each line. A line is here as long as it has a thread, or is to have one.
    lines: HashMap<Line, VecDeque<Call>>,
    /// Lines that have no thread yet.
    wanted: Vec<Line>,
    /// Threads that have nothing to do.
    idle: Vec<(thread::ThreadId, Sender<Line>)>,
}

struct Task {
    look: Look,
    /// `None`: not before it is woken.
    due: Option<Instant>,
    woken: Arc<AtomicBool>,
    /// Looks at once when this has exceptional data.
    source: Option<OwnedFd>,
}

/// Has a task look at once.
#[derive(Clone)]
pub struct Waker(Arc<AtomicBool>);

impl Waker {
    pub fn wake(&self) {
        self.0.store(true, Ordering::SeqCst);
        TENDER.tell();
    }
}

/// Looks after this time, and then as often as `look` says; [`Duration::MAX`] for not before it is [woken](Waker), `None` for
/// never again. It must not wait.
pub fn repeat(after: Duration, mut look: impl FnMut() -> Option<Duration> + Send + 'static) -> Waker {
    TENDER.add(after, None, Box::new(move |_| look()))
}

/// As [`repeat`], from now on, and also when `source` has exceptional data, which `look` is told.
pub fn repeat_at(
    source: Option<OwnedFd>,
    look: impl FnMut(bool) -> Option<Duration> + Send + 'static,
) -> Waker {
    TENDER.add(Duration::ZERO, source, Box::new(look))
}

/// Looks at `of` every so often, until that returns false or it is gone.
pub fn sweep<T: Send + Sync + 'static>(
    every: Duration,
    line: Line,
    of: &Arc<T>,
    look: impl Fn(&Arc<T>) -> bool + Send + 'static,
) {
    let of = Arc::downgrade(of);
    repeat(every, move || {
        let of = of.upgrade()?;
        let more = look(&of);
        // What it holds open is not closed here.
        if let Some(last) = Arc::into_inner(of) {
            apart(line, move || drop(last));
            return None;
        }
        more.then_some(every)
    });
}

/// Returns what tells the lines of a value from those of others.
pub fn of<T>(value: &Arc<T>) -> u64 {
    Arc::as_ptr(value).addr() as u64
}

/// Runs a call that may wait, after those in its line.
pub fn apart(line: Line, call: impl FnOnce() + Send + 'static) {
    TENDER.run(line, Box::new(call), true);
}

/// Runs a call that may wait, unless its line has not come to its end. Returns whether it does.
pub fn apart_if_free(line: Line, call: impl FnOnce() + Send + 'static) -> bool {
    TENDER.run(line, Box::new(call), false)
}

/// Starts the thread that looks, which has the rights of the calling one. Otherwise the first call starts it.
///
/// # Errors
/// That of starting a thread.
pub fn start() -> io::Result<()> {
    TENDER.start()
}

impl Tender {
    fn new() -> Tender {
        let news = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let news = news.inspect_err(|errno| tracing::error!("branches are looked at late: {errno}")).ok();
        Tender { state: Mutex::default(), news }
    }

    fn start(&'static self) -> io::Result<()> {
        let mut state = self.state.lock();
        if state.started == Some(getpid()) {
            return Ok(());
        }
        thread::Builder::new().name(LOOKS.into()).spawn(|| self.tend())?;
        state.started = Some(getpid());
        Ok(())
    }

    /// Has the thread look whether there is anything to do.
    fn tell(&'static self) {
        if let Err(why) = self.start() {
            tracing::error!("nothing is looked at: cannot start a thread: {why}");
        }
        if let Some(news) = &self.news {
            let _ = rustix::io::write(news, &1_u64.to_ne_bytes());
        }
    }

    fn add(&'static self, after: Duration, source: Option<OwnedFd>, look: Look) -> Waker {
        let woken = Arc::new(AtomicBool::new(false));
        let task = Task { look, due: Instant::now().checked_add(after), woken: Arc::clone(&woken), source };
        self.state.lock().new.push(task);
        self.tell();
        Waker(woken)
    }

    fn run(&'static self, line: Line, call: Call, queues: bool) -> bool {
        let mut state = self.state.lock();
        if let Some(queue) = state.lines.get_mut(&line) {
            if queues {
                queue.push_back(call);
            }
            return queues;
        }
        state.lines.insert(line, VecDeque::from([call]));
        let taken = state.idle.pop().is_some_and(|(_, thread)| thread.send(line).is_ok());
        if !taken {
            state.wanted.push(line);
            drop(state);
            self.tell();
        }
        true
    }

    fn tend(&'static self) {
        // It may have been started by a worker, in a test.
        sched::start_afresh();
        let mut tasks: Vec<Task> = Vec::new();
        loop {
            tasks.append(&mut self.state.lock().new);
            let ready = self.wait(&tasks);
            let now = Instant::now();
            let mut index = 0;
            tasks.retain_mut(|task| {
                let told = ready.get(index).copied().unwrap_or(false);
                index += 1;
                let woken = task.woken.swap(false, Ordering::SeqCst);
                if !(told || woken || task.due.is_some_and(|due| due <= now)) {
                    return true;
                }
                let pause = catch_unwind(AssertUnwindSafe(|| (task.look)(told))).unwrap_or(Some(RETRY));
                task.due = pause.and_then(|pause| Instant::now().checked_add(pause));
                pause.is_some()
            });
            self.start_wanted();
        }
    }

    /// Waits until a task is due, or there is news. Returns whose sources have something to say.
    fn wait(&self, tasks: &[Task]) -> Vec<bool> {
        let state = self.state.lock();
        let begins = !state.new.is_empty() || tasks.iter().any(|task| task.woken.load(Ordering::SeqCst));
        let retry = (!state.wanted.is_empty() || self.news.is_none()).then(|| Instant::now() + RETRY);
        drop(state);
        let due = tasks.iter().filter_map(|task| task.due).chain(retry).min();
        let pause = due.map(|due| due.saturating_duration_since(Instant::now()));
        let pause = if begins { Some(Duration::ZERO) } else { pause };
        let timeout = pause.and_then(|pause| Timespec::try_from(pause).ok());
        let sources = tasks.iter().filter_map(|task| task.source.as_ref());
        let news = self.news.iter().map(|news| PollFd::new(news, PollFlags::IN));
        let mut polled: Vec<PollFd<'_>> =
            sources.map(|source| PollFd::new(source, PollFlags::PRI)).chain(news).collect();
        if poll(&mut polled, timeout.as_ref()).is_err() {
            return Vec::new();
        }
        if let Some(news) = &self.news {
            let _ = rustix::io::read(news, &mut [0; 8]);
        }
        let mut told = polled.iter().map(|source| !source.revents().is_empty());
        tasks.iter().map(|task| task.source.is_some() && told.next().unwrap_or(false)).collect()
    }

    /// Starts the threads of the lines that have none.
    fn start_wanted(&'static self) {
        loop {
            let Some(line) = self.state.lock().wanted.pop() else { return };
            let started = thread::Builder::new().name(LOOKS.into()).spawn(move || self.serve(line));
            if let Err(why) = started {
                tracing::error!("cannot look at branches: {why}");
                self.state.lock().wanted.push(line);
                return;
            }
        }
    }

    /// Runs the calls of a line, and then those of others.
    fn serve(&self, mut line: Line) {
        let (me, (send, receive)) = (thread::current().id(), channel());
        loop {
            let _ = rustix::thread::set_name(line.0);
            while let Some(call) = self.next(line) {
                // The panic has told its reason.
                let _ = catch_unwind(AssertUnwindSafe(call));
            }
            let _ = rustix::thread::set_name(WAITS);
            self.state.lock().idle.push((me, send.clone()));
            let next = receive.recv_timeout(KEPT).ok().or_else(|| {
                let mut state = self.state.lock();
                let index = state.idle.iter().position(|(thread, _)| *thread == me);
                index.map(|index| state.idle.swap_remove(index));
                drop(state);
                // Who has taken it out has something to do.
                if index.is_some() { None } else { receive.recv().ok() }
            });
            match next {
                Some(next) => line = next,
                None => return,
            }
        }
    }

    /// Returns the next call of a line, or ends it.
    fn next(&self, line: Line) -> Option<Call> {
        let mut state = self.state.lock();
        let call = state.lines.get_mut(&line).and_then(VecDeque::pop_front);
        if call.is_none() {
            state.lines.remove(&line);
        }
        call
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    const SOON: Duration = Duration::from_secs(60);

    #[test]
    fn a_line_that_hangs_holds_up_no_other() {
        const HANGS: Line = (c"test-hangs", 1);
        let (release, hangs) = channel::<()>();
        let (tell, told) = channel();
        let say = |what: &'static str| {
            let tell = tell.clone();
            move || tell.send((what, thread::current().id())).unwrap()
        };
        apart(HANGS, move || assert!(hangs.recv().is_err()));
        apart(HANGS, say("second"));
        assert!(!apart_if_free(HANGS, say("never")));
        for _ in 0..3 {
            apart((c"test-hangs", 2), say("other"));
            assert_eq!(told.recv_timeout(SOON).unwrap().0, "other");
        }
        assert!(told.try_recv().is_err());
        drop(release);
        assert_eq!(told.recv_timeout(SOON).unwrap().0, "second");
        let again = || apart_if_free(HANGS, say("again"));
        while !again() {
            thread::yield_now();
        }
        assert_eq!(told.recv_timeout(SOON).unwrap().0, "again");
    }

    #[test]
    fn a_call_that_panics_ends_its_line_and_no_thread() {
        const PANICS: Line = (c"test-panics", 1);
        let (tell, told) = channel();
        apart(PANICS, || panic!("on purpose"));
        apart(PANICS, move || tell.send(()).unwrap());
        told.recv_timeout(SOON).unwrap();
    }

    #[test]
    fn a_task_is_looked_at_when_it_is_due_or_woken_and_ends() {
        let (tell, told) = channel();
        let mut pauses = [Some(Duration::ZERO), Some(Duration::MAX), None].into_iter();
        let waker = repeat(Duration::from_millis(20), move || {
            tell.send(()).unwrap();
            pauses.next().flatten()
        });
        (0..2).for_each(|_| told.recv_timeout(SOON).unwrap());
        assert!(told.recv_timeout(Duration::from_millis(50)).is_err(), "it rests");
        waker.wake();
        told.recv_timeout(SOON).unwrap();
        assert_eq!(told.recv_timeout(SOON), Err(std::sync::mpsc::RecvTimeoutError::Disconnected));
        waker.wake();
    }

    #[test]
    fn a_sweep_ends_with_what_it_looks_at() {
        struct Last(Sender<String>);
        impl Drop for Last {
            fn drop(&mut self) {
                let _ = self.0.send(std::fs::read_to_string("/proc/thread-self/comm").unwrap());
            }
        }
        let (tell, told) = channel();
        let (begun, looked) = (Arc::new(AtomicUsize::new(0)), Arc::new(Last(tell)));
        let (count, held) = (Arc::clone(&begun), std::sync::Mutex::new(Some(Arc::clone(&looked))));
        sweep(Duration::from_millis(1), (c"test-drops", 1), &looked, move |_| {
            // So that the sweep has the last one.
            drop(held.lock().unwrap().take());
            count.fetch_add(1, Ordering::SeqCst) < 1000
        });
        drop(looked);
        assert_eq!(told.recv_timeout(SOON).unwrap(), "test-drops\n");
        assert_eq!(begun.load(Ordering::SeqCst), 1);
    }
}
