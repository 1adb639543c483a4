//! Carrying out several small tasks at once. Moving a small file is mostly waiting until a disk has written a few blocks: waits of
//! several files at once share what the filesystem writes.

use super::mover::{NotMoved, Task};
use crate::stop::Stop;
use canopy_sys::thread::interrupt::interrupt;
use rustix::thread::{Pid, gettid};
use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

/// Files up to this size are small, in bytes. Of larger ones, writing the data takes most of the time.
const SMALL: u64 = 1 << 20;
/// How many tasks are carried out at once.
const AT_ONCE: usize = 8;
/// The most tasks of a batch: so many are begun between two looks at whether the command may go on.
const LONGEST: usize = 64;
/// How long a signal waits until the threads learn of it.
const NAP: Duration = Duration::from_millis(50);

/// Returns how many tasks at the front are carried out at once: one at least. Tasks of one file, which gets several copies, follow one
/// another.
pub(super) fn batch(tasks: &[Task]) -> usize {
    let mut files = HashSet::new();
    let ends = |task: &Task| task.comes_after || task.bytes > SMALL;
    let end = tasks.iter().take(LONGEST).position(|task| ends(task) || !files.insert(&task.names[0]));
    end.unwrap_or(LONGEST).clamp(1, tasks.len())
}

/// Carries out tasks in any order, and returns in theirs what has become of them. Those that are not begun when a signal arrives are
/// `Stopped`.
pub(super) fn carry_out(
    tasks: &[Task],
    stop: &Stop,
    one: &(impl Fn(&Task) -> Result<(), NotMoved> + Sync),
) -> Vec<Result<(), NotMoved>> {
    let mut results: Vec<_> = tasks.iter().map(|_| Err(NotMoved::Stopped)).collect();
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        let (begins, threads) = channel::<Pid>();
        let (ends, done) = channel();
        for _ in 0..AT_ONCE.min(tasks.len()) {
            let (begins, ends, next) = (begins.clone(), ends.clone(), &next);
            scope.spawn(move || {
                let _ = begins.send(gettid());
                while !stop.is_set() {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(task) = tasks.get(index) else { return };
                    let _ = ends.send((index, one(task)));
                }
            });
        }
        drop((begins, ends));
        let mut working = Vec::new();
        loop {
            match done.recv_timeout(NAP) {
                Ok((index, result)) => results[index] = result,
                Err(RecvTimeoutError::Disconnected) => break,
                // The kernel gives a signal to one thread: this one, which passes it on.
                Err(RecvTimeoutError::Timeout) if stop.is_set() => {
                    working.extend(threads.try_iter());
                    for thread in &working {
                        let _ = interrupt(*thread);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    });
    results
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;
    use std::sync::Barrier;

    fn task(bytes: u64) -> Task {
        Task::copying(vec![PathBuf::from(bytes.to_string())], 0, 1, bytes)
    }

    #[test]
    fn small_files_go_together_and_what_comes_after_them_alone() {
        let dir = Task::moving_dir(PathBuf::from("d"), 0, 1);
        let tasks = [task(1), task(0), task(SMALL), dir.clone(), dir, task(SMALL + 1), task(2)];
        let mut sizes = Vec::new();
        let mut rest = &tasks[..];
        while !rest.is_empty() {
            sizes.push(batch(rest));
            rest = &rest[batch(rest)..];
        }
        assert_eq!(sizes, [3, 1, 1, 1, 1]);
        assert_eq!(batch(&[task(1), task(2), task(1)]), 2, "of one file");
        let many: Vec<Task> = (0..200).map(task).collect();
        assert_eq!(batch(&many), LONGEST);
    }

    #[test]
    fn each_result_is_its_tasks_own() {
        let (tasks, stop) = ((0..100).map(task).collect::<Vec<_>>(), Stop::never());
        // All threads are at work at once, or this waits for ever.
        let all = Barrier::new(AT_ONCE);
        let one = |task: &Task| {
            if task.bytes < AT_ONCE as u64 {
                all.wait();
            }
            if task.bytes.is_multiple_of(7) { Err(NotMoved::Stays(task.bytes.to_string())) } else { Ok(()) }
        };
        for (number, result) in carry_out(&tasks, &stop, &one).into_iter().enumerate() {
            match result {
                Ok(()) => assert!(!number.is_multiple_of(7)),
                Err(NotMoved::Stays(why)) => assert_eq!(why, number.to_string()),
                Err(_) => panic!("{number}: it is begun"),
            }
        }
    }

    #[test]
    fn nothing_is_begun_after_a_signal() {
        let (tasks, stop) = ((0..100).map(task).collect::<Vec<_>>(), Stop::never());
        let one = |_: &Task| {
            stop.set();
            Ok(())
        };
        let results = carry_out(&tasks, &stop, &one);
        let made = results.iter().filter(|result| result.is_ok()).count();
        assert!((1..=AT_ONCE).contains(&made), "{made}");
        assert!(results.iter().all(|result| matches!(result, Ok(()) | Err(NotMoved::Stopped))));
    }
}
