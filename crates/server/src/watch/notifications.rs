//! Sends notifications to the kernel, and repeats them where an answer may have been in flight.
//!
//! A notification affects only what the kernel has cached. An answer with the old state that the kernel processes
//! after the notification brings the old state back: if it revalidates a name it knows, it takes the TTL of the
//! answer as it is; and so for attributes of a node that it did not know. So whatever was recently given out
//! (`freshness`) is notified again within the promised time, and once more later.

use crate::coherence::Coherence;
use canopy_base::ids::NodeId;
use std::collections::{HashMap, HashSet};
use std::ffi::CString;
use std::time::{Duration, Instant};

/// A set of names and nodes that the kernel must revalidate.
#[derive(Default)]
pub(crate) struct Notifications {
    names: HashSet<(NodeId, Box<[u8]>)>,
    /// Nodes, and whether their listings are affected too.
    nodes: HashMap<NodeId, bool>,
    pub(crate) all: bool,
}

/// The notifications that a batch of events causes.
#[derive(Default)]
pub(crate) struct Outgoing {
    pub(crate) now: Notifications,
    pub(crate) repeat: Notifications,
}

/// Beyond this number everything is invalidated instead.
const MAX_ITEMS: usize = 100_000;

impl Notifications {
    pub(crate) fn name(&mut self, dir: NodeId, name: &[u8]) {
        self.names.insert((dir, name.into()));
    }

    pub(crate) fn node(&mut self, node: NodeId, listing: bool) {
        *self.nodes.entry(node).or_default() |= listing;
    }

    fn is_empty(&self) -> bool {
        !self.all && self.names.is_empty() && self.nodes.is_empty()
    }

    pub(crate) fn add(&mut self, other: Notifications) {
        self.all |= other.all || self.names.len() + self.nodes.len() > MAX_ITEMS;
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
                // Expired, not invalidated: that would unmount what is mounted on it, and make it unreachable for
                // processes with a working directory there.
                coherence.expire_name(*dir, &name);
            }
        }
        for (&node, &listing) in &self.nodes {
            coherence.expire_node(node, listing);
        }
    }
}

/// How long notifications wait until they are repeated. The actual wait is between one and two times as long, because
/// what is added during one period is sent at the end of the next.
const REPEAT_DELAYS: [Duration; 3] =
    [Duration::from_millis(10), Duration::from_millis(30), Duration::from_millis(1000)];

#[derive(Default)]
pub(crate) struct RepeatQueue([Stage; REPEAT_DELAYS.len()]);

#[derive(Default)]
struct Stage {
    filling: Notifications,
    waiting: Notifications,
    /// When `waiting` is sent and `filling` starts to wait.
    due_at: Option<Instant>,
}

impl RepeatQueue {
    pub(crate) fn add(&mut self, now: Instant, repeat: Notifications) {
        self.enter(0, now, repeat);
    }

    fn enter(&mut self, stage: usize, now: Instant, repeat: Notifications) {
        if let Some(stage) = self.0.get_mut(stage).map(|found| (found, REPEAT_DELAYS[stage]))
            && !repeat.is_empty()
        {
            let (stage, wait) = stage;
            stage.filling.add(repeat);
            stage.due_at.get_or_insert(now + wait);
        }
    }

    /// Returns when the next notifications are due.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        self.0.iter().filter_map(|stage| stage.due_at).min()
    }

    pub(crate) fn send_due(&mut self, now: Instant, coherence: &Coherence) {
        for stage in 0..REPEAT_DELAYS.len() {
            if let Some(due) = self.take_due(stage, now) {
                due.send(coherence);
                self.enter(stage + 1, now, due);
            }
        }
    }

    fn take_due(&mut self, index: usize, now: Instant) -> Option<Notifications> {
        let stage = &mut self.0[index];
        if stage.due_at.is_none_or(|due_at| due_at > now) {
            return None;
        }
        let due = std::mem::replace(&mut stage.waiting, std::mem::take(&mut stage.filling));
        stage.due_at = (!stage.waiting.is_empty()).then(|| now + REPEAT_DELAYS[index]);
        Some(due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notifications_for(node: u64) -> Notifications {
        let mut notifications = Notifications::default();
        notifications.name(NodeId(node), b"f");
        notifications.node(NodeId(node), false);
        notifications
    }

    #[test]
    fn repeated_notifications_wait_in_each_stage() {
        let begun = Instant::now();
        let mut queue = RepeatQueue::default();
        assert!(queue.next_due().is_none() && queue.take_due(0, begun).is_none());
        queue.add(begun, notifications_for(1));
        let due_at = queue.next_due().unwrap();
        assert_eq!(due_at, begun + REPEAT_DELAYS[0]);
        // Just before the due time: it must not be sent together with those that have waited.
        queue.add(due_at - Duration::from_millis(1), notifications_for(2));
        assert!(queue.take_due(0, due_at).unwrap().is_empty());
        queue.add(due_at, notifications_for(3));
        let due = queue.take_due(0, due_at + REPEAT_DELAYS[0]).unwrap();
        let nodes: HashSet<u64> = due.nodes.keys().map(|node| node.0).collect();
        assert_eq!(nodes, HashSet::from([1, 2]));
        let due = queue.take_due(0, due_at + 2 * REPEAT_DELAYS[0]).unwrap();
        assert_eq!((due.names.len(), due.nodes.contains_key(&NodeId(3))), (1, true));
        assert!(queue.next_due().is_none(), "nothing is left");
    }

    #[test]
    fn the_second_repetition_is_within_the_promised_time() {
        assert!(2 * (REPEAT_DELAYS[0] + REPEAT_DELAYS[1]) < Duration::from_millis(100));
    }

    #[test]
    fn too_many_items_become_everything() {
        let mut notifications = notifications_for(1);
        for node in 0..=MAX_ITEMS as u64 {
            notifications.node(NodeId(node), false);
        }
        notifications.add(notifications_for(2));
        assert!(notifications.all && notifications.names.is_empty() && notifications.nodes.is_empty());
    }
}
