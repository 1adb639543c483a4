//! A plan in the making: where files have got to, whatever ways they took.

use super::model::{CopyAt, Disk, Going, Layout, Plan, Step, Why};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// Moves files in a layout, and says in the end how to get there. A file that has come to its place by several moves then takes
/// the direct way, and one that waits for the room of another goes after it.
pub(super) struct Draft<'l, 'p> {
    pub(super) layout: &'l mut Layout<'p>,
    /// The space before.
    disks: Vec<Disk>,
    /// The copies of files before their first move.
    before: BTreeMap<usize, Vec<CopyAt>>,
    /// Files that move, in the order of their first moves.
    order: Vec<usize>,
    staying: Vec<(usize, Why<'p>)>,
    /// How often something has moved.
    pub(super) moves: usize,
    heeds_reserve: bool,
}

impl<'l, 'p> Draft<'l, 'p> {
    pub(super) fn of(layout: &'l mut Layout<'p>) -> Draft<'l, 'p> {
        let disks = layout.disks.clone();
        Draft {
            layout,
            disks,
            before: BTreeMap::new(),
            order: Vec::new(),
            staying: Vec::new(),
            moves: 0,
            heeds_reserve: true,
        }
    }

    /// Lets files use what should stay free, because somebody has named the branch.
    pub(super) fn without_reserve(mut self) -> Self {
        self.heeds_reserve = false;
        self
    }

    pub(super) fn stays(&mut self, file: usize, why: Why<'p>) {
        self.staying.push((file, why));
    }

    /// Forgets what stays, to look again.
    pub(super) fn nothing_stays(&mut self) {
        self.staying.clear();
    }

    pub(super) fn fits(&self, disk: usize, bytes: u64) -> bool {
        fits(&self.layout.disks[disk], bytes, self.heeds_reserve)
    }

    /// Moves the copy of a file on a branch to another one.
    pub(super) fn shift(&mut self, file: usize, from: usize, to: usize) {
        let copies = &mut self.layout.files[file].copies;
        let Some(at) = copies.iter().position(|copy| copy.branch == from) else { return };
        if let Entry::Vacant(first) = self.before.entry(file) {
            first.insert(copies.clone());
            self.order.push(file);
        }
        copies[at].branch = to;
        self.moves += 1;
        let bytes = copies[at].bytes;
        let (from, to) = (self.layout.disk_of(from), self.layout.disk_of(to));
        exchange(&mut self.layout.disks, (from, to), bytes);
    }

    /// Returns the plan, and leaves the layout as its steps do.
    pub(super) fn finish(mut self) -> Plan<'p> {
        let mut plan = Plan { going: Vec::new(), staying: std::mem::take(&mut self.staying) };
        let mut waiting = std::mem::take(&mut self.order);
        loop {
            let before = waiting.len();
            waiting.retain(|file| {
                let steps = steps(&self.before[file], &self.layout.files[*file].copies);
                match self.after(&steps, &self.before[file]) {
                    Some(disks) => {
                        self.disks = disks;
                        if !steps.is_empty() {
                            plan.going.push(Going { file: *file, steps });
                        }
                        false
                    }
                    None => true,
                }
            });
            if waiting.len() == before {
                break;
            }
        }
        // Each of these waits for room that another one of them has.
        for file in waiting {
            plan.staying.push((file, Why::NoRoom));
            self.layout.files[file].copies = self.before[&file].clone();
        }
        self.layout.disks = self.disks;
        plan
    }

    /// Returns the space after some steps; `None` if one of them does not find room.
    fn after(&self, steps: &[Step], copies: &[CopyAt]) -> Option<Vec<Disk>> {
        let mut disks = self.disks.clone();
        for step in steps {
            let (from, to) = match *step {
                Step::Move { from, to } => (Some(from), Some(to)),
                Step::Copy { to, .. } => (None, Some(to)),
                Step::Drop { from } => (Some(from), None),
            };
            let source = match *step {
                Step::Move { from, .. } | Step::Copy { from, .. } | Step::Drop { from } => from,
            };
            let bytes = copies.iter().find(|copy| copy.branch == source).map_or(0, |copy| copy.bytes);
            let [from, to] = [from, to].map(|branch| branch.and_then(|branch| self.layout.disk_of(branch)));
            if to.is_some_and(|disk| from != to && !fits(&disks[disk], bytes, self.heeds_reserve)) {
                return None;
            }
            exchange(&mut disks, (from, to), bytes);
        }
        Some(disks)
    }
}

fn fits(disk: &Disk, bytes: u64, heeds_reserve: bool) -> bool {
    if heeds_reserve { disk.has_room(bytes) } else { disk.free >= bytes }
}

/// Within a disk, nothing changes.
fn exchange(disks: &mut [Disk], (from, to): (Option<usize>, Option<usize>), bytes: u64) {
    if from == to {
        return;
    }
    if let Some(disk) = from {
        disks[disk].free = disks[disk].free.saturating_add(bytes).min(disks[disk].size);
    }
    if let Some(disk) = to {
        disks[disk].free = disks[disk].free.saturating_sub(bytes);
    }
}

/// Returns the steps from some copies of a file to others. A copy is made before the one goes that it replaces.
fn steps(before: &[CopyAt], after: &[CopyAt]) -> Vec<Step> {
    let lacks = |copies: &[CopyAt], branch: usize| copies.iter().all(|copy| copy.branch != branch);
    let goes = before.iter().map(|copy| copy.branch).filter(|branch| lacks(after, *branch));
    let comes = after.iter().map(|copy| copy.branch).filter(|branch| lacks(before, *branch));
    goes.zip(comes)
        .flat_map(|(from, to)| match before {
            [_] => vec![Step::Move { from, to }],
            _ => vec![Step::Copy { from, to }, Step::Drop { from }],
        })
        .collect()
}
