//! One operation over and over, by several at once, each in a directory of its own.

use super::meta::{BYTES, Each, Ready};
use super::{Fault, Place, Sample, Work};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

pub(crate) struct Crowd {
    pub key: &'static str,
    pub each: Each,
    /// Operations of all together.
    pub count: usize,
    pub threads: usize,
}

impl Crowd {
    fn dir(&self, thread: usize, round: usize) -> String {
        let (files, key) = (self.each.files(), self.key);
        format!("full.{files}.{key}-{}.{thread}-{round}", self.threads)
    }

    fn share(&self) -> usize {
        self.count.div_ceil(self.threads)
    }
}

impl Work for Crowd {
    fn prepare(&self, place: &Place, round: usize) -> Result<(), Fault> {
        let dirs: Vec<String> = (0..self.threads).map(|thread| self.dir(thread, round)).collect();
        dirs.iter().try_for_each(|dir| place.fill(dir, self.each.files(), BYTES))?;
        dirs.iter().try_for_each(|dir| self.each.prepare(place, dir, self.share()))
    }

    fn measure(&self, place: &Place, round: usize) -> Result<Sample, Fault> {
        let ready: Result<Vec<_>, Fault> = (0..self.threads)
            .map(|thread| self.each.ready(place, &self.dir(thread, round), self.share()))
            .collect();
        let took = together(ready?, |work| work.iter().try_for_each(Ready::run))?;
        Ok(Sample::of_operations(took, self.share() * self.threads))
    }

    fn is_alone(&self) -> bool {
        false
    }

    fn tidy(&self, place: &Place, round: usize) -> Result<(), Fault> {
        (0..self.threads).try_for_each(|thread| place.clear(&self.dir(thread, round)))
    }
}

/// Everybody's work at the same time: how long until the last is done. One alone stays on this thread.
pub(super) fn together<T: Send>(
    works: Vec<T>,
    run: impl Fn(T) -> Result<(), Fault> + Sync,
) -> Result<Duration, Fault> {
    let gate = Barrier::new(works.len());
    let one = |work| {
        gate.wait();
        let start = Instant::now();
        run(work).map(|()| (start, Instant::now()))
    };
    let times: Result<Vec<(Instant, Instant)>, Fault> = if works.len() == 1 {
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
