//! When threads run, and where. For sched_setscheduler(2) rustix has no function.

use rustix::io::Errno;
use rustix::process::{getpid, getpriority_process, setpriority_process};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The lowest there is in real time.
const PRIORITY: libc::c_int = 1;
/// Else by how much nicer to this thread than to the others the scheduler shall be.
const AHEAD: i32 = 10;
const FIRST: i32 = -20;

/// Has the calling thread run as soon as it is woken, also on a busy machine: in real time where that is permitted, else
/// with a lower nice value. To be used where the work is little, and made by others who do not run meanwhile.
pub fn raise_priority() {
    let parameters = libc::sched_param { sched_priority: PRIORITY };
    // SAFETY: the kernel reads the structure, which outlives the call. 0 is the calling thread.
    let done = unsafe { libc::sched_setscheduler(0, libc::SCHED_RR, &raw const parameters) };
    if done < 0 {
        let nice = getpriority_process(None).map_or(0, |now| (now - AHEAD).max(FIRST));
        let _ = setpriority_process(None, nice);
    }
}

/// Has the calling thread run on this processor alone.
///
/// Errors: `EINVAL` when there is no such processor, it is not running, or the process may not use it.
pub fn pin_to(processor: usize) -> Result<(), Errno> {
    if processor >= CpuSet::MAX_CPU {
        return Err(Errno::INVAL);
    }
    let mut set = CpuSet::new();
    set.set(processor);
    sched_setaffinity(None, &set)
}

/// Where the process may run: where its first thread may. The calling one may be bound to less.
fn everywhere() -> Option<CpuSet> {
    sched_getaffinity(Some(getpid())).ok()
}

/// How many processors the process may run on.
#[must_use]
pub fn available_cpus() -> usize {
    everywhere().map_or(1, |set| set.count() as usize)
}

/// Has the calling thread run wherever the process may. For one that was started by a thread which is bound to a processor: it
/// would be bound to the same.
pub fn unpin() {
    if let Some(set) = everywhere() {
        let _ = sched_setaffinity(None, &set);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unpinned_thread_may_run_where_the_process_may() {
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
    fn a_thread_with_raised_priority_runs_before_others() {
        let run = || {
            raise_priority();
            std::fs::read_to_string("/proc/thread-self/stat").unwrap()
        };
        let stat = std::thread::spawn(run).join().unwrap();
        // From the third on (proc_pid_stat(5)): the name may hold anything.
        let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
        let (nice, policy) = (fields[19 - 3].parse::<i32>().unwrap(), fields[41 - 3].parse::<i32>().unwrap());
        let ahead = policy == libc::SCHED_RR || nice < 0;
        assert!(ahead || !rustix::process::geteuid().is_root(), "{stat}");
    }
}
