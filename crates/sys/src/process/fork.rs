//! A fork(2) whose child has the same table of descriptors, not a copy: what either opens, both have, and nothing is
//! closed when one of them ends (`CLONE_FILES`, clone(2)).
//!
//! The parent learns when the child is killed even if one of its threads cannot end, because it waits for a lock or a disk
//! uninterruptibly. A wait for the process (wait(2), SIGCHLD, pidfds since Linux 6.15) would last as long. But the kernel
//! clears a word of the child's memory as soon as its first thread ends (`CLONE_CHILD_CLEARTID`), which is shared here.
//! Signals change the same word, so that one wait for it misses nothing.

use super::clone::Clone;
use super::exec::exec;
use super::fault;
use super::shared_words::SharedWords;
use crate::errno::last_errno;
use rustix::io::Errno;
use rustix::process::{Pid, WaitOptions, waitpid};
use std::ffi::{CStr, CString};
use std::io;
use std::os::raw::c_int;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Who returns from [`Forker::fork`].
#[derive(Debug)]
pub enum Forked {
    /// The caller, with its child.
    Parent(Child),
    /// The child, with a copy of the caller's memory.
    Child,
}

/// A process that shares its descriptors with this one.
#[derive(Debug)]
pub struct Child(Pid);

/// How a child has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// By exit(3), with this status.
    Exited(i32),
    /// By this signal.
    Killed(i32),
}

/// What a parent waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// All threads of the child have ended.
    Ended(Ended),
    /// Its first thread has ended: it is being killed, or exits.
    Ending,
    /// This process was asked to stop (SIGTERM, SIGINT, SIGQUIT).
    Stop,
    /// The time is over.
    Timeout,
}

/// First the word with the thread id of the child's first thread, which the kernel clears, and above it [`SIGNALLED`]. Then
/// the fatal signal that the child has caught.
static FIRST_THREAD: OnceLock<SharedWords> = OnceLock::new();
/// Set by signals. Ids of threads have 22 bits.
const SIGNALLED: u32 = 1 << 31;
/// The signals by which this process was asked to stop.
static STOPS: AtomicU32 = AtomicU32::new(0);

const STOP_SIGNALS: [c_int; 3] = [libc::SIGTERM, libc::SIGINT, libc::SIGQUIT];
/// Forks children, one at a time. This process handles signals from then on, its children do not.
#[derive(Debug)]
pub struct Forker(());

fn first_thread() -> Option<&'static AtomicU32> {
    let word = FIRST_THREAD.get()?.first()?;
    // SAFETY: the word is valid as long as the program runs, aligned, and accessed as this type alone, by the kernel too.
    Some(unsafe { AtomicU32::from_ptr(word.as_ptr().cast()) })
}

extern "C" fn on_signal(signal: c_int) {
    if STOP_SIGNALS.contains(&signal) {
        STOPS.fetch_add(1, Ordering::Relaxed);
    }
    if let Some(word) = first_thread() {
        word.fetch_or(SIGNALLED, Ordering::Release);
    }
}

/// Where a child notes the fatal signal that it has caught.
pub(super) fn fatal_signal() -> Option<&'static AtomicU64> {
    FIRST_THREAD.get()?.get(1)
}

/// Blocks a signal in this thread, or lets it through: one that a parent sends may arrive before its child has a handler.
pub fn block_signal(signal: i32, block: bool) {
    let how = if block { libc::SIG_BLOCK } else { libc::SIG_UNBLOCK };
    let mut set = std::mem::MaybeUninit::uninit();
    // SAFETY: sigemptyset initializes the set, and the others use it.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), signal);
        libc::pthread_sigmask(how, set.as_ptr(), std::ptr::null_mut());
    }
}

fn block_stop_signals(block: bool) {
    STOP_SIGNALS.into_iter().for_each(|signal| block_signal(signal, block));
}

pub(super) fn handle(signal: c_int, handler: libc::sighandler_t) {
    // SAFETY: the handlers here do nothing but atomic operations. One that is not set is not called.
    unsafe { libc::signal(signal, handler) };
}

extern "C" fn do_nothing(_: c_int) {}

/// Has this process survive these signals, and system calls go on after them. Those that do not exist, or that the C library
/// keeps to itself, are left alone. Unlike ignored signals, these have their default again in programs that it executes.
pub fn catch_signals(signals: impl IntoIterator<Item = i32>) {
    signals.into_iter().for_each(|signal| handle(signal, do_nothing as *const () as libc::sighandler_t));
}

/// How long threads may take to end that have nothing left to do, on a busy machine.
const LAST_STEPS: Duration = Duration::from_secs(5);

impl Forker {
    /// # Errors
    /// `EBUSY` if this process goes on to have other threads, which a child would not have while their locks stayed locked in
    /// it; `ENOMEM`; `ENOENT` without /proc.
    pub fn new() -> io::Result<Forker> {
        let until = Instant::now() + LAST_STEPS;
        // A thread that has given its result, or has even been joined, is there until the kernel has run it once more.
        while std::fs::read_dir("/proc/self/task")?.count() != 1 {
            if Instant::now() >= until {
                return Err(Errno::BUSY.into());
            }
            std::thread::sleep(LAST_STEPS / 1000);
        }
        let words = SharedWords::new(2)?;
        FIRST_THREAD.set(words).map_err(|_| io::Error::from(Errno::BUSY))?;
        for signal in STOP_SIGNALS.into_iter().chain([libc::SIGCHLD]) {
            handle(signal, on_signal as *const () as libc::sighandler_t);
        }
        block_stop_signals(false);
        Ok(Forker(()))
    }

    /// Replaces the program of this process by one that makes a `Forker`, too. A signal that asks to stop waits for that.
    /// Returns only if that fails: `EINTR` if this process was asked to stop already.
    #[must_use]
    pub fn exec(&self, program: &CStr, args: &[CString], environment: &[CString]) -> Errno {
        block_stop_signals(true);
        let asked = STOPS.load(Ordering::Relaxed) > 0;
        let errno = if asked { Errno::INTR } else { exec(program, args, environment) };
        block_stop_signals(false);
        errno
    }

    /// Forks a child that shares the table of descriptors. `execve` gives either a table of its own again.
    ///
    /// # Errors
    /// `EAGAIN` and `ENOMEM` (clone(2)).
    pub fn fork(&self) -> io::Result<Forked> {
        let word = first_thread().ok_or(Errno::INVAL)?;
        // Children whose last threads have ended since.
        while let Ok(Some(_)) = waitpid(None, WaitOptions::NOHANG) {}
        if let Some(fatal) = fatal_signal() {
            fatal.store(0, Ordering::Relaxed);
        }
        let clone = Clone {
            flags: libc::CLONE_FILES | libc::CLONE_PARENT_SETTID | libc::CLONE_CHILD_CLEARTID,
            exit_signal: libc::SIGCHLD,
            thread_id: Some(word),
        };
        // SAFETY: without CLONE_VM the child continues here on a copy of this stack, like after fork(2). There is no
        // other thread, so no lock of the C library or of Rust is held by one that the child lacks. (The C library's
        // atfork handlers do not run; they take and release such locks.) The word outlives both processes.
        match unsafe { clone.start() }? {
            None => {
                for signal in STOP_SIGNALS.into_iter().chain([libc::SIGCHLD]) {
                    handle(signal, libc::SIG_DFL);
                }
                fault::handle_fatal_signals();
                Ok(Forked::Child)
            }
            Some(child) => Ok(Forked::Parent(Child(child))),
        }
    }
}

impl Child {
    /// Waits for the next event. Once the first thread has ended, that is an event only if there is no `timeout`.
    pub fn wait(&self, timeout: Option<Duration>) -> Event {
        let Some(word) = first_thread() else { return Event::Timeout };
        loop {
            // Before the child is looked at, so that a signal after that is not missed.
            let now = word.fetch_and(!SIGNALLED, Ordering::AcqRel) & !SIGNALLED;
            if STOPS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |stops| stops.checked_sub(1)).is_ok()
            {
                return Event::Stop;
            }
            if let Some(ended) = self.end() {
                return Event::Ended(ended);
            }
            if now == 0 && timeout.is_none() {
                return Event::Ending;
            }
            if sleep(word, now, timeout) == Err(Errno::TIMEDOUT) {
                return self.end().map_or(Event::Timeout, Event::Ended);
            }
        }
    }

    /// Returns how it has ended; `None` if it has not.
    fn end(&self) -> Option<Ended> {
        match waitpid(Some(self.0), WaitOptions::NOHANG) {
            Ok(None) => None,
            Err(_) => Some(Ended::Exited(1)),
            Ok(Some((_, status))) => status
                .exit_status()
                .map(Ended::Exited)
                .or_else(|| status.terminating_signal().map(|signal| self.killed_by(signal))),
        }
    }

    /// Returns how it has ended if it was killed by this signal: after a fatal one it kills itself.
    fn killed_by(&self, signal: i32) -> Ended {
        let fatal = fatal_signal().map_or(0, |word| word.load(Ordering::Relaxed) as i32);
        Ended::Killed(if signal == libc::SIGKILL && fatal != 0 { fatal } else { signal })
    }

    /// Returns how it is ending if one of its threads cannot.
    #[must_use]
    pub fn ending(&self) -> Ended {
        self.killed_by(libc::SIGKILL)
    }

    /// Returns whether it still has a thread whose name begins with none of these.
    #[must_use]
    pub fn has_threads_but(&self, names: &[&str]) -> bool {
        let Ok(threads) = std::fs::read_dir(format!("/proc/{}/task", self.0)) else { return false };
        threads.flatten().any(|thread| {
            let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
            // The name is in parentheses, and the state follows (proc_pid_stat(5)).
            let named = stat.split_once('(').and_then(|(_, rest)| rest.rsplit_once(") "));
            named.is_some_and(|(known, rest)| {
                !names.iter().any(|name| known.starts_with(name)) && !rest.starts_with(['Z', 'X'])
            })
        })
    }

    /// Sends it a signal, a real-time one perhaps.
    pub fn send(&self, signal: i32) {
        // SAFETY: sends a signal to another process.
        unsafe { libc::kill(self.0.as_raw_nonzero().get(), signal) };
    }
}

/// Sleeps until the word changes, a signal arrives, or the time is over (`ETIMEDOUT`).
fn sleep(word: &AtomicU32, now: u32, timeout: Option<Duration>) -> Result<(), Errno> {
    let timeout = timeout.map(|timeout| libc::timespec {
        tv_sec: timeout.as_secs() as libc::time_t,
        tv_nsec: timeout.subsec_nanos().into(),
    });
    let timeout = timeout.as_ref().map_or(std::ptr::null(), |timeout| &raw const *timeout);
    // SAFETY: the word and the timeout are valid during the call.
    let slept = unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, now, timeout) };
    if slept == 0 { Ok(()) } else { Err(last_errno()) }
}
