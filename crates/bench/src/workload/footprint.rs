//! What a name takes in the memory of a server that knows it.

use super::process::run;
use super::tree::{TREE, TreeShape, provide};
use super::walk::Program;
use super::{Error, ErrorContext, Sample, Target, Workload};
use std::cell::RefCell;
use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

/// How much the processes of the server grow with the names of a tree. Comes before other rows that walk it.
pub(crate) struct Memory {
    pub shape: TreeShape,
    /// What they had before, by the root of the target.
    before: RefCell<HashMap<PathBuf, u64>>,
}

impl Memory {
    pub(crate) fn of(shape: TreeShape) -> Memory {
        Memory { shape, before: RefCell::default() }
    }
}

impl Workload for Memory {
    fn prepare(&self, target: &Target, _round: usize) -> Result<(), Error> {
        provide(target, self.shape)?;
        if !self.before.borrow().contains_key(&target.root) {
            let bytes = memory(target)?;
            self.before.borrow_mut().insert(target.root.clone(), bytes);
        }
        Ok(())
    }

    fn measure(&self, target: &Target, _round: usize) -> Result<Sample, Error> {
        run(Program::LsRecursive.words(), &target.root.join(TREE))?;
        let before = self.before.borrow().get(&target.root).copied().unwrap_or_default();
        let bytes = memory(target)?.saturating_sub(before);
        Ok(Sample { elapsed: Duration::ZERO, operations: self.shape.entries() as u64, bytes })
    }

    fn is_single_threaded(&self) -> bool {
        false
    }
}

/// Returns what the server's processes have for themselves, in bytes.
fn memory(target: &Target) -> Result<u64, Error> {
    let Some(process) = target.process else { return Ok(0) };
    let mut processes = vec![process];
    let children = PathBuf::from(format!("/proc/{process}/task/{process}/children"));
    let text = fs::read_to_string(&children).context("read", &children)?;
    processes.extend(text.split_whitespace().filter_map(|child| child.parse::<u32>().ok()));
    let mut bytes = 0;
    for process in processes {
        let path = PathBuf::from(format!("/proc/{process}/smaps_rollup"));
        let text = fs::read_to_string(&path).context("read", &path)?;
        let own = text.lines().filter_map(|line| line.strip_prefix("Anonymous:"));
        bytes +=
            own.filter_map(|rest| rest.split_whitespace().next()?.parse::<u64>().ok()).sum::<u64>() << 10;
    }
    Ok(bytes)
}
