//! `pin-threads`: which processors each worker runs on.
//!
//! The strategies distinguish threads that read requests (R) and threads that process them (P). Here a worker does
//! both. It counts as a reader, unless processing threads were asked for: then there are as many workers as such
//! threads, and they count as these.

use canopy_config::Threads;
use canopy_config::values::PinThreads;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::collections::BTreeMap;
use std::fs;

pub(crate) struct Affinity {
    strategy: PinThreads,
    /// The workers count as processing threads.
    processing: bool,
    /// The processors that this process may use, grouped by core.
    cores: Vec<Vec<usize>>,
}

impl Affinity {
    pub(crate) fn new(threads: &Threads) -> Affinity {
        let cores = if threads.pin == PinThreads::None { Vec::new() } else { usable_cores() };
        Affinity { strategy: threads.pin, processing: threads.process != -1, cores }
    }

    /// Binds the calling thread, which is worker number `worker`.
    pub(crate) fn bind(&self, worker: usize) {
        let Some(cpus) = processors_for(self.strategy, self.processing, &self.cores, worker) else { return };
        let mut set = CpuSet::new();
        cpus.iter().for_each(|&cpu| set.set(cpu));
        if let Err(errno) = sched_setaffinity(None, &set) {
            tracing::warn!("pin-threads={}: cannot bind a worker: {errno}", self.strategy);
        }
    }
}

/// Returns the processors for a worker; `None` if it may run on any.
fn processors_for(
    strategy: PinThreads,
    processing: bool,
    cores: &[Vec<usize>],
    worker: usize,
) -> Option<Vec<usize>> {
    let mut logical = cores.concat();
    logical.sort_unstable();
    let (first, last) = (*logical.first()?, *logical.last()?);
    let others = if cores.len() > 1 { &cores[1..] } else { cores };
    let cpus = match (strategy, processing) {
        (PinThreads::None, _) | (PinThreads::R1L | PinThreads::R1P, true) => return None,
        (PinThreads::R1L | PinThreads::R1LP1L, false) | (PinThreads::RP1L, _) => vec![first],
        (PinThreads::R1P | PinThreads::R1PP1P | PinThreads::R1PPSP, false) | (PinThreads::RP1P, _) => {
            cores[0].clone()
        }
        (PinThreads::R1LP1L, true) => vec![last],
        (PinThreads::R1PP1P, true) => others[0].clone(),
        (PinThreads::RPSL, _) => vec![logical[logical.len() - 1 - worker % logical.len()]],
        (PinThreads::RPSP, _) => cores[worker % cores.len()].clone(),
        (PinThreads::R1PPSP, true) => others[worker % others.len()].clone(),
    };
    Some(cpus)
}

fn usable_cores() -> Vec<Vec<usize>> {
    let Ok(set) = sched_getaffinity(None) else { return Vec::new() };
    let mut cores: BTreeMap<(u32, u32), Vec<usize>> = BTreeMap::new();
    for cpu in (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)) {
        let of = |file: &str| {
            let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/{file}");
            fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok())
        };
        // Cores of different sockets may have the same number. A processor without known topology is a core of its
        // own.
        let place = (of("physical_package_id").unwrap_or(0), of("core_id").unwrap_or(cpu as u32));
        cores.entry(place).or_default().push(cpu);
    }
    cores.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two cores of two threads each, numbered as Linux does, three single-threaded cores, and a single processor.
    #[test]
    fn every_strategy_binds_to_its_processors() {
        let two = [vec![0, 2], vec![1, 3]];
        let three = [vec![0], vec![1], vec![2]];
        let any: &[usize] = &[];
        // Strategy; then for `two` and for `three`, the first three workers as readers and as processing threads.
        type Rows = [[&'static [usize]; 3]; 2];
        let table: [(PinThreads, Rows, Rows); 10] = [
            (PinThreads::None, [[any; 3]; 2], [[any; 3]; 2]),
            (PinThreads::R1L, [[&[0]; 3], [any; 3]], [[&[0]; 3], [any; 3]]),
            (PinThreads::R1P, [[&[0, 2]; 3], [any; 3]], [[&[0]; 3], [any; 3]]),
            (PinThreads::RP1L, [[&[0]; 3]; 2], [[&[0]; 3]; 2]),
            (PinThreads::RP1P, [[&[0, 2]; 3]; 2], [[&[0]; 3]; 2]),
            (PinThreads::R1LP1L, [[&[0]; 3], [&[3]; 3]], [[&[0]; 3], [&[2]; 3]]),
            (PinThreads::R1PP1P, [[&[0, 2]; 3], [&[1, 3]; 3]], [[&[0]; 3], [&[1]; 3]]),
            (PinThreads::RPSL, [[&[3], &[2], &[1]]; 2], [[&[2], &[1], &[0]]; 2]),
            (PinThreads::RPSP, [[&[0, 2], &[1, 3], &[0, 2]]; 2], [[&[0], &[1], &[2]]; 2]),
            (PinThreads::R1PPSP, [[&[0, 2]; 3], [&[1, 3]; 3]], [[&[0]; 3], [&[1], &[2], &[1]]]),
        ];
        for (strategy, on_two, on_three) in table {
            for (cores, rows) in [(&two[..], on_two), (&three[..], on_three)] {
                for (processing, row) in [false, true].into_iter().zip(rows) {
                    for (worker, expected) in row.into_iter().enumerate() {
                        let got = processors_for(strategy, processing, cores, worker).unwrap_or_default();
                        assert_eq!(got, expected, "{strategy} {processing} {worker}");
                    }
                }
            }
            let alone = processors_for(strategy, false, &[vec![5]], 7);
            assert_eq!(alone, (strategy != PinThreads::None).then(|| vec![5]), "{strategy}");
            assert_eq!(processors_for(strategy, true, &[], 0), None);
        }
    }
}
