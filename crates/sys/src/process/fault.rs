//! What a process does when it has gone wrong (SIGSEGV, SIGABRT and the like) and another is to go on for it: it notes the
//! signal, and ends. Where it has something to hand over first, a thread of its own is told ([`Watch`]), and what has met the
//! fault stays in the handler, on the stack that each thread has for that: its own may be full.

use super::fork::{fatal_signal, handle};
use std::os::raw::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use std::time::Duration;

/// The signals of a process that has gone wrong.
const FATAL_SIGNALS: [c_int; 7] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGABRT, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGSYS];

/// How long a thread that has met a fault waits for the process to end. Who watches may wait for a lock that it has.
const LONGEST: Duration = Duration::from_secs(20);

/// The last fatal signal, for the thread that waits for one.
static SIGNAL: AtomicU32 = AtomicU32::new(0);
/// Whether there is such a thread.
static WATCHED: AtomicBool = AtomicBool::new(false);
/// The threads that have met a fault and stay in it; 0 where there is none. More end the process.
static FAULTY: [AtomicI32; 16] = [const { AtomicI32::new(0) }; 16];

/// Handles fatal signals.
pub(super) fn handle_fatal_signals() {
    for signal in FATAL_SIGNALS {
        // SAFETY: all zeros are a valid value, which blocks no other signal.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = on_fatal_signal as *const () as libc::sighandler_t;
        action.sa_flags = libc::SA_ONSTACK | libc::SA_SIGINFO;
        // SAFETY: the handler makes atomic operations and system calls alone.
        unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
    }
}

/// Has fatal signals dump core again, as they do without a process that takes over.
pub fn dump_core_again() {
    FATAL_SIGNALS.into_iter().for_each(|signal| handle(signal, libc::SIG_DFL));
}

/// Ends the process without a core dump, which would wait for all threads, one of which may wait for a client, which waits for
/// the next process. If there is a [`Watch`], leaves that to it.
extern "C" fn on_fatal_signal(signal: c_int, info: *const libc::siginfo_t, _: *mut c_void) {
    if let Some(word) = fatal_signal() {
        let _ = word.compare_exchange(0, signal.cast_unsigned().into(), Ordering::Relaxed, Ordering::Relaxed);
    }
    // SAFETY: getpid and gettid have no conditions.
    let (own, thread) = unsafe { (libc::getpid(), libc::gettid()) };
    // SAFETY: the kernel has filled it in, for signals that processes send, too.
    let from_outside = unsafe { (*info).si_code <= 0 && (*info).si_pid() != own };
    if WATCHED.load(Ordering::Acquire) && (from_outside || enter(thread)) {
        SIGNAL.store(signal.cast_unsigned(), Ordering::Release);
        // SAFETY: the word is valid and aligned.
        unsafe { libc::syscall(libc::SYS_futex, SIGNAL.as_ptr(), libc::FUTEX_WAKE, 1) };
        if from_outside {
            // The thread has met no fault, and serves on until the process has handed over.
            return;
        }
        stay();
        end(signal);
        return;
    }
    // SAFETY: ends this process.
    unsafe { libc::kill(own, libc::SIGKILL) };
}

/// Waits for the process to end, as long as that may take.
fn stay() {
    let mut until = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the time is valid, and written.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut until) };
    until.tv_sec += LONGEST.as_secs().cast_signed();
    let none = std::ptr::null_mut();
    // SAFETY: the time is valid. A signal interrupts the wait.
    while unsafe { libc::clock_nanosleep(libc::CLOCK_MONOTONIC, libc::TIMER_ABSTIME, &raw const until, none) }
        == libc::EINTR
    {}
}

/// Ends the process by a signal, with a core dump. In its handler, as soon as that returns.
fn end(signal: c_int) {
    dump_core_again();
    // SAFETY: sends a signal to the calling thread.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), libc::gettid(), signal) };
}

/// Enters a thread among those that stay in a fault. Returns false if it is there already, or there are too many.
fn enter(thread: i32) -> bool {
    !is_faulty(thread)
        && FAULTY
            .iter()
            .any(|place| place.compare_exchange(0, thread, Ordering::AcqRel, Ordering::Relaxed).is_ok())
}

/// Returns whether a thread has met a fault. It executes nothing any more, and leaves locked what it has locked.
#[must_use]
pub fn is_faulty(thread: i32) -> bool {
    thread != 0 && FAULTY.iter().any(|place| place.load(Ordering::Acquire) == thread)
}

/// A process that hands over after a fault before it ends. Only one at a time.
#[derive(Debug)]
pub struct Watch(());

impl Watch {
    /// Fatal signals leave it to this watch to end the process from now on.
    #[must_use]
    pub fn begin() -> Watch {
        handle_fatal_signals();
        WATCHED.store(true, Ordering::Release);
        Watch(())
    }

    /// Waits for a fatal signal.
    pub fn wait(&self) {
        while SIGNAL.load(Ordering::Acquire) == 0 {
            let none = std::ptr::null::<libc::timespec>();
            // SAFETY: the word is valid and aligned.
            unsafe { libc::syscall(libc::SYS_futex, SIGNAL.as_ptr(), libc::FUTEX_WAIT, 0, none) };
        }
    }

    /// Ends the process as it would have ended without this watch.
    pub fn give_up(self) {
        end(SIGNAL.load(Ordering::Acquire).cast_signed());
    }
}
