//! Threads that others wait for and that have little to do: sched_setscheduler(2), for which rustix has no function.

use rustix::process::{getpriority_process, setpriority_process};

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

#[cfg(test)]
mod tests {
    use super::*;

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
