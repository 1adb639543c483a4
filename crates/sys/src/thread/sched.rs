//! Scheduling: the priority of threads and the processors they run on. rustix does not wrap sched_setscheduler(2).

use rustix::io::Errno;
use rustix::process::{getpid, getpriority_process, setpriority_process};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The lowest real-time priority.
const PRIORITY: libc::c_int = 1;
/// How far the nice value is lowered when real-time scheduling is not permitted, and its lowest value.
const NICE_STEP: i32 = 10;
const NICE_MIN: i32 = -20;

/// Makes the calling thread run as soon as it is woken, even on a busy machine: with real-time priority if permitted,
/// otherwise with a lower nice value. For threads that do little work, on behalf of threads that wait for it.
pub fn raise_priority() {
    let parameters = libc::sched_param { sched_priority: PRIORITY };
    // SAFETY: the kernel reads the structure, which outlives the call. 0 means the calling thread.
    let done = unsafe { libc::sched_setscheduler(0, libc::SCHED_RR, &raw const parameters) };
    if done < 0 {
        let nice = getpriority_process(None).map_or(0, |now| (now - NICE_STEP).max(NICE_MIN));
        let _ = setpriority_process(None, nice);
    }
}

/// Sets whether a thread of this process runs only while its processor has nothing else to do (`SCHED_IDLE`, sched(7)), or
/// as others do. `thread` is its id in this PID namespace, 0 for the calling thread.
///
/// A thread that such a thread wakes takes its processor at once, and stays there: a processor that runs only such threads
/// counts as idle (kernel/sched/fair.c, `sched_idle_cpu`).
///
/// # Errors
/// `EPERM` to set it back without `CAP_SYS_NICE` or a limit that permits it (`RLIMIT_NICE`); `ESRCH` when there is no such
/// thread.
pub fn set_idle_only(thread: i32, on: bool) -> Result<(), Errno> {
    let parameters = libc::sched_param { sched_priority: 0 };
    let policy = if on { libc::SCHED_IDLE } else { libc::SCHED_OTHER };
    // SAFETY: the kernel reads the structure, which outlives the call.
    let done = unsafe { libc::sched_setscheduler(thread, policy, &raw const parameters) };
    if done < 0 { Err(crate::errno::last_errno()) } else { Ok(()) }
}

/// Returns whether a thread of this process runs or waits for a processor, rather than for something to happen.
#[must_use]
pub fn is_runnable(thread: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap_or_default();
    // The state comes after the name (proc_pid_stat(5)), which may contain anything.
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('R'))
}

/// Returns whether a thread of this process that runs only on idle processors can be set back. Tries it out, with a thread
/// of its own.
#[must_use]
pub fn can_leave_idle_only() -> bool {
    let attempt = || set_idle_only(0, true).and_then(|()| set_idle_only(0, false)).is_ok();
    let thread = std::thread::Builder::new().name("canopy-try".into()).spawn(attempt);
    thread.is_ok_and(|thread| thread.join().unwrap_or(false))
}

/// Binds the calling thread to one processor.
///
/// # Errors
/// `EINVAL` when the processor does not exist, is offline, or the process may not use it.
pub fn pin_to(processor: usize) -> Result<(), Errno> {
    if processor >= CpuSet::MAX_CPU {
        return Err(Errno::INVAL);
    }
    let mut set = CpuSet::new();
    set.set(processor);
    sched_setaffinity(None, &set)
}

/// Returns the processors that the main thread may use. The calling thread may be bound to fewer.
fn process_affinity() -> Option<CpuSet> {
    sched_getaffinity(Some(getpid())).ok()
}

/// Returns how many processors the process may use.
#[must_use]
pub fn available_cpus() -> usize {
    process_affinity().map_or(1, |set| set.count() as usize)
}

/// Undoes what the calling thread has inherited from a worker that started it: its processor and its priority.
pub fn start_afresh() {
    unpin();
    // SAFETY: takes and returns plain integers; 0 means the calling thread.
    if unsafe { libc::sched_getscheduler(0) } == libc::SCHED_IDLE {
        let _ = set_idle_only(0, false);
    }
}

/// Lets the calling thread run on all processors that the process may use. A thread inherits the binding of the thread
/// that starts it.
pub fn unpin() {
    if let Some(set) = process_affinity() {
        let _ = sched_setaffinity(None, &set);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unpinned_thread_may_use_all_processors_of_the_process() {
        let mine = || sched_getaffinity(None).unwrap();
        let pinned = move || {
            let first = (0..).find(|&cpu| mine().is_set(cpu)).unwrap();
            pin_to(first).unwrap();
            let inherited = std::thread::spawn(move || {
                let before = mine();
                unpin();
                (before.is_set(first), before.count(), mine().count() as usize)
            });
            inherited.join().unwrap()
        };
        let (same, before, after) = std::thread::spawn(pinned).join().unwrap();
        assert_eq!((same, before, after), (true, 1, available_cpus()));
        assert_eq!(pin_to(CpuSet::MAX_CPU), Err(Errno::INVAL));
    }

    #[test]
    fn a_thread_that_runs_on_idle_processors_only_can_be_set_back() {
        let policy = || {
            // SAFETY: takes and returns plain integers; 0 means the calling thread.
            unsafe { libc::sched_getscheduler(0) }
        };
        if !rustix::process::geteuid().is_root() {
            return;
        }
        assert!(can_leave_idle_only());
        let seen = std::thread::spawn(move || {
            set_idle_only(0, true).unwrap();
            let started = std::thread::spawn(move || {
                let inherited = policy();
                start_afresh();
                (inherited, policy())
            });
            let (own, started) = (policy(), started.join().unwrap());
            set_idle_only(0, false).unwrap();
            (own, started, policy())
        });
        let (idle, other) = (libc::SCHED_IDLE, libc::SCHED_OTHER);
        assert_eq!(seen.join().unwrap(), (idle, (idle, other), other));
        assert_eq!(set_idle_only(i32::MAX, true), Err(Errno::SRCH));
    }

    #[test]
    fn a_thread_that_waits_is_not_runnable() {
        let me = || rustix::thread::gettid().as_raw_nonzero().get();
        let main = me();
        assert!(is_runnable(main));
        let (seen, asked) = std::sync::mpsc::channel();
        let other = std::thread::spawn(move || {
            while is_runnable(main) {
                std::thread::yield_now();
            }
            seen.send(()).unwrap();
        });
        asked.recv().unwrap();
        other.join().unwrap();
        assert!(!is_runnable(i32::MAX));
    }

    #[test]
    fn a_raised_priority_is_real_time_or_a_lower_nice_value() {
        let run = || {
            raise_priority();
            std::fs::read_to_string("/proc/thread-self/stat").unwrap()
        };
        let stat = std::thread::spawn(run).join().unwrap();
        // The fields from the third on (proc_pid_stat(5)). The name before them may contain anything.
        let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
        let (nice, policy) = (fields[19 - 3].parse::<i32>().unwrap(), fields[41 - 3].parse::<i32>().unwrap());
        let ahead = policy == libc::SCHED_RR || nice < 0;
        assert!(ahead || !rustix::process::geteuid().is_root(), "{stat}");
    }
}
