//! Telling the kernel, and telling it again.
//!
//! A notification finds only what the kernel has. An answer that was given before something changed, and that its
//! reader processes after the notification, may bring the old state back: where the kernel looks up again a name that it
//! knows, it takes the answer's time as it comes; attributes of a node that it did not know yet, likewise. So what was
//! told of late (`fresh`) is notified again, within the time in which changes are to be seen, and once more later.

use crate::coherence::Coherence;
use canopy_pool::NodeId;
use std::collections::{HashMap, HashSet};
use std::ffi::CString;
use std::time::{Duration, Instant};

/// What the kernel must forget.
#[derive(Default)]
pub(crate) struct Notices {
    names: HashSet<(NodeId, Box<[u8]>)>,
    /// Nodes, and whether their listings as well.
    nodes: HashMap<NodeId, bool>,
    pub(crate) all: bool,
}

/// What is to be told now, and what again.
#[derive(Default)]
pub(crate) struct Round {
    pub(crate) now: Notices,
    /// Soon.
    pub(crate) written: Notices,
    pub(crate) again: Notices,
}

/// More than this at once is as good as everything.
const MANY: usize = 100_000;

impl Notices {
    pub(crate) fn name(&mut self, dir: NodeId, name: &[u8]) {
        self.names.insert((dir, name.into()));
    }

    pub(crate) fn node(&mut self, node: NodeId, listing: bool) {
        *self.nodes.entry(node).or_default() |= listing;
    }

    fn is_empty(&self) -> bool {
        !self.all && self.names.is_empty() && self.nodes.is_empty()
    }

    pub(crate) fn add(&mut self, other: Notices) {
        self.all |= other.all || self.names.len() + self.nodes.len() > MANY;
        if self.all {
            self.names.clear();
            self.nodes.clear();
            return;
        }
        self.names.extend(other.names);
        for (node, listing) in other.nodes {
            self.node(node, listing);
        }
    }

    pub(crate) fn send(&self, coherence: &Coherence) {
        if self.all {
            return coherence.invalidate_everything();
        }
        for (dir, name) in &self.names {
            if let Ok(name) = CString::new(&**name) {
                // Not more than that it is looked up again: else what is mounted on it would be detached, and whoever
                // stands in it would not know where he is.
                coherence.expire_name(*dir, &name);
            }
        }
        for (&node, &listing) in &self.nodes {
            coherence.expire_node(node, listing);
        }
    }
}

/// When things are told again: between once and twice such a time after they were told before, for what gathers in
/// one stretch is told at the end of the next.
const WAITS: [Duration; 3] =
    [Duration::from_millis(10), Duration::from_millis(30), Duration::from_millis(1000)];

#[derive(Default)]
pub(crate) struct Repeats([Stage; WAITS.len()]);

#[derive(Default)]
struct Stage {
    gathering: Notices,
    waiting: Notices,
    /// When `waiting` is told and `gathering` waits.
    turn: Option<Instant>,
}

impl Repeats {
    pub(crate) fn add(&mut self, now: Instant, again: Notices) {
        self.enter(0, now, again);
    }

    fn enter(&mut self, stage: usize, now: Instant, again: Notices) {
        if let Some(stage) = self.0.get_mut(stage).map(|found| (found, WAITS[stage]))
            && !again.is_empty()
        {
            let (stage, wait) = stage;
            stage.gathering.add(again);
            stage.turn.get_or_insert(now + wait);
        }
    }

    /// When there is something to be told.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.0.iter().filter_map(|stage| stage.turn).min()
    }

    pub(crate) fn send_due(&mut self, now: Instant, coherence: &Coherence) {
        for stage in 0..WAITS.len() {
            if let Some(due) = self.take_due(stage, now) {
                due.send(coherence);
                self.enter(stage + 1, now, due);
            }
        }
    }

    fn take_due(&mut self, index: usize, now: Instant) -> Option<Notices> {
        let stage = &mut self.0[index];
        if stage.turn.is_none_or(|turn| turn > now) {
            return None;
        }
        let due = std::mem::replace(&mut stage.waiting, std::mem::take(&mut stage.gathering));
        stage.turn = (!stage.waiting.is_empty()).then(|| now + WAITS[index]);
        Some(due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn about(node: u64) -> Notices {
        let mut notices = Notices::default();
        notices.name(NodeId(node), b"f");
        notices.node(NodeId(node), false);
        notices
    }

    #[test]
    fn what_is_told_again_waits_its_time_in_each_stage() {
        let begun = Instant::now();
        let mut repeats = Repeats::default();
        assert!(repeats.next().is_none() && repeats.take_due(0, begun).is_none());
        repeats.add(begun, about(1));
        let turn = repeats.next().unwrap();
        assert_eq!(turn, begun + WAITS[0]);
        // Just before the turn: it must not be told together with what has waited.
        repeats.add(turn - Duration::from_millis(1), about(2));
        assert!(repeats.take_due(0, turn).unwrap().is_empty());
        repeats.add(turn, about(3));
        let due = repeats.take_due(0, turn + WAITS[0]).unwrap();
        let nodes: HashSet<u64> = due.nodes.keys().map(|node| node.0).collect();
        assert_eq!(nodes, HashSet::from([1, 2]));
        let due = repeats.take_due(0, turn + 2 * WAITS[0]).unwrap();
        assert_eq!((due.names.len(), due.nodes.contains_key(&NodeId(3))), (1, true));
        assert!(repeats.next().is_none(), "nothing is left");
    }

    #[test]
    fn the_second_time_is_within_the_promise() {
        assert!(2 * (WAITS[0] + WAITS[1]) < Duration::from_millis(100));
    }

    #[test]
    fn too_much_becomes_everything() {
        let mut notices = about(1);
        for node in 0..=MANY as u64 {
            notices.node(NodeId(node), false);
        }
        notices.add(about(2));
        assert!(notices.all && notices.names.is_empty() && notices.nodes.is_empty());
    }
}
