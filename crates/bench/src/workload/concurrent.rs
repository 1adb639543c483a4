//! One operation repeated by several threads, each in its own directory.

use super::ops::{BYTES, FileOp, PreparedOp};
use super::{Error, Sample, Target, Workload};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

pub(crate) struct MultiThread {
    pub key: &'static str,
    pub op: FileOp,
    /// Operations of all threads together.
    pub count: usize,
    pub threads: usize,
}

impl MultiThread {
    fn dir(&self, thread: usize, round: usize) -> String {
        let (files, key) = (self.op.files(self.share()), self.key);
        format!("full.{files}.{key}-{}.{thread}-{round}", self.threads)
    }

    fn share(&self) -> usize {
        self.count.div_ceil(self.threads)
    }
}

impl Workload for MultiThread {
    fn prepare(&self, target: &Target, round: usize) -> Result<(), Error> {
        let dirs: Vec<String> = (0..self.threads).map(|thread| self.dir(thread, round)).collect();
        dirs.iter().try_for_each(|dir| target.fill(dir, self.op.files(self.share()), BYTES))?;
        dirs.iter().try_for_each(|dir| self.op.prepare(target, dir, self.share()))
    }

    fn measure(&self, target: &Target, round: usize) -> Result<Sample, Error> {
        let ready: Result<Vec<_>, Error> = (0..self.threads)
            .map(|thread| self.op.prepared_ops(target, &self.dir(thread, round), self.share()))
            .collect();
        let elapsed = run_concurrently(ready?, |work| work.iter().try_for_each(PreparedOp::run))?;
        Ok(Sample::of_operations(elapsed, self.share() * self.threads))
    }

    fn is_single_threaded(&self) -> bool {
        false
    }

    fn clean_up(&self, target: &Target, round: usize) -> Result<(), Error> {
        (0..self.threads).try_for_each(|thread| target.clear(&self.dir(thread, round)))
    }
}

/// Runs all items at the same time, each in its own thread, and returns the time until the last is done. A single item
/// runs on this thread.
pub(super) fn run_concurrently<T: Send>(
    works: Vec<T>,
    run: impl Fn(T) -> Result<(), Error> + Sync,
) -> Result<Duration, Error> {
    let gate = Barrier::new(works.len());
    let one = |work| {
        gate.wait();
        let start = Instant::now();
        run(work).map(|()| (start, Instant::now()))
    };
    let times: Result<Vec<(Instant, Instant)>, Error> = if works.len() == 1 {
        works.into_iter().map(one).collect()
    } else {
        thread::scope(|scope| {
            let one = &one;
            let all: Vec<_> = works.into_iter().map(|work| scope.spawn(move || one(work))).collect();
            all.into_iter()
                .map(|thread| thread.join().unwrap_or_else(|why| std::panic::resume_unwind(why)))
                .collect()
        })
    };
    let times = times?;
    let first = times.iter().map(|(start, _)| *start).min();
    let last = times.iter().map(|(_, end)| *end).max();
    Ok(first.zip(last).map_or(Duration::ZERO, |(first, last)| last - first))
}
