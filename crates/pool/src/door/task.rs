//! What `/proc` shows of a task.

use std::fs;
use std::sync::OnceLock;

/// Flags of a task (include/linux/sched.h): a worker of io_uring, and a kernel thread.
const PF_IO_WORKER: u64 = 0x10;
const PF_KTHREAD: u64 = 0x0020_0000;

/// The status of a task, a thread or a process.
pub(crate) struct Task(String);

impl Task {
    /// Reads it. `None` for a task that the daemon does not see, and where `/proc` is that of another pid namespace, in which
    /// the number is another's.
    pub(crate) fn read(pid: u32) -> Option<Task> {
        static OURS: OnceLock<bool> = OnceLock::new();
        let ours = || {
            let own = fs::read_to_string("/proc/self/status");
            // One number for each namespace from that of /proc to the process's own (since Linux 4.1).
            own.is_ok_and(|own| {
                field(&own, "NSpid:").is_none_or(|ids| ids.split_ascii_whitespace().count() == 1)
            })
        };
        let seen = pid != 0 && *OURS.get_or_init(ours);
        seen.then(|| fs::read_to_string(format!("/proc/{pid}/status")).ok()).flatten().map(Task)
    }

    fn process(&self, pid: u32) -> u32 {
        numbers(&self.0, "Tgid:").next().unwrap_or(pid)
    }

    /// Returns the name of the program; of a thread, that of its process.
    fn program(&self, pid: u32) -> Vec<u8> {
        let leader = self.process(pid);
        let name = fs::read(format!("/proc/{leader}/comm")).unwrap_or_default();
        name.strip_suffix(b"\n").unwrap_or(&name).to_vec()
    }

    // Real, effective, saved, filesystem.
    pub(crate) fn fsuid(&self) -> Option<u32> {
        numbers(&self.0, "Uid:").nth(3)
    }

    pub(crate) fn fsgid(&self) -> Option<u32> {
        numbers(&self.0, "Gid:").nth(3)
    }

    pub(crate) fn groups(&self) -> impl Iterator<Item = u32> {
        numbers(&self.0, "Groups:")
    }

    /// Returns its effective capabilities, which are those in its user namespace.
    pub(crate) fn capabilities(&self) -> Option<u64> {
        u64::from_str_radix(field(&self.0, "CapEff:")?.trim(), 16).ok()
    }
}

/// Returns the user and the program of a task, as far as they are known: the user that the request names counts.
pub(crate) fn program_of(pid: u32, uid: u32) -> (Option<u32>, Vec<u8>) {
    let task = Task::read(pid);
    let uid = Some(uid).filter(|uid| *uid != u32::MAX).or_else(|| task.as_ref()?.fsuid());
    (uid, task.map(|task| task.program(pid)).unwrap_or_default())
}

/// Returns the process of a task and the name of its program: 0 and nothing if it cannot be seen.
pub fn process_of(pid: u32) -> (u32, Vec<u8>) {
    Task::read(pid).map(|task| (task.process(pid), task.program(pid))).unwrap_or_default()
}

/// Returns whether a task does what it does with the credentials that `/proc` shows.
pub(crate) fn acts_for_itself(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !works_for_others(&stat))
}

fn works_for_others(stat: &str) -> bool {
    // The name may contain anything (proc_pid_stat(5)). After it: state, ppid, pgrp, session, tty_nr, tpgid, flags.
    let flags =
        stat.rsplit_once(')').and_then(|(_, rest)| rest.split_ascii_whitespace().nth(6)?.parse().ok());
    flags.is_none_or(|flags: u64| flags & (PF_IO_WORKER | PF_KTHREAD) != 0)
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name))
}

fn numbers(status: &str, name: &str) -> impl Iterator<Item = u32> {
    field(status, name).unwrap_or_default().split_ascii_whitespace().filter_map(|number| number.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_that_work_for_others_are_recognized() {
        for (stat, for_others) in [
            ("12 (sh) S 1 12 12 0 -1 4194560 1 2", false),
            ("12 (a) S 1 ) S 1 12 12 0 -1 4194560 1 2", false),
            ("2 (kthreadd) S 0 0 0 0 -1 2129984 0 0", true),
            ("13 (iou-wrk-12) S 1 12 12 0 -1 4210768 1 2", true),
            ("12 (sh) S 1 12", true),
            ("", true),
        ] {
            assert_eq!(works_for_others(stat), for_others, "{stat}");
        }
        assert!(acts_for_itself(std::process::id()) && !acts_for_itself(0));
    }
}
