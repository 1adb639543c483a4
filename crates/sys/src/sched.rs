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
pub fn prompt() {
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
pub fn processors() -> usize {
    everywhere().map_or(1, |set| set.count() as usize)
}

/// Has the calling thread run wherever the process may. For one that was started by a thread which is bound to a processor: it
/// would be bound to the same.
pub fn anywhere() {
    anywhere_but(None);
}

/// The same, but not on this processor, unless there is no other.
pub fn anywhere_but(processor: Option<usize>) {
    let Some(mut set) = everywhere() else { return };
    if let Some(processor) = processor
        && set.count() > 1
    {
        set.unset(processor);
    }
    let _ = sched_setaffinity(None, &set);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_of_one_that_is_bound_may_run_elsewhere() {
        let mine = || sched_getaffinity(None).unwrap();
        let bound = move || {
            let first = (0..).find(|&cpu| mine().is_set(cpu)).unwrap();
            let mut one = CpuSet::new();
            one.set(first);
            sched_setaffinity(None, &one).unwrap();
            let started = std::thread::spawn(move || {
                anywhere();
                let all = mine();
                anywhere_but(Some(first));
                (all.count() as usize, mine().count() as usize, mine().is_set(first))
            });
            started.join().unwrap()
        };
        let (all, others, first) = std::thread::spawn(bound).join().unwrap();
        assert_eq!(all, processors());
        assert_eq!((others, first), if all > 1 { (all - 1, false) } else { (1, true) });
    }

    #[test]
    fn a_prompt_thread_goes_before_others_where_that_is_permitted() {
        let run = || {
            prompt();
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
