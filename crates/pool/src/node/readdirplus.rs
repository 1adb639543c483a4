//! Nodes that a listing hands to the kernel with their attributes, and how long the kernel goes by these.

use super::Node;
use super::nodes::Nodes;
use crate::branch::Branch;
use crate::fs::stat::FileKey;
use crate::ids::NodeId;
use rustix::time::{ClockId, clock_gettime};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// So many are handed out in one turn of the table's lock: enough to make it cheap, few enough for those who wait.
const TURN: usize = 64;

impl Nodes {
    /// Hands a reference to the kernel for each file found in a directory: name, branch, key, and whether it is shown as
    /// a symlink. `give` is told which of `files` and its node, without those whose directory has gone.
    pub(crate) fn hand_out_files<'n>(
        &self,
        parent: NodeId,
        files: impl Iterator<Item = Option<(&'n [u8], &'n Branch, FileKey, bool)>>,
        mut give: impl FnMut(usize, Arc<Node>),
    ) {
        let mut files = files.enumerate().filter_map(|(at, file)| Some((at, file?))).peekable();
        let mut freed = Vec::new();
        let mut nodes = Vec::with_capacity(TURN);
        while files.peek().is_some() {
            let mut table = self.table.write();
            for (at, (name, branch, key, symlinkified)) in files.by_ref().take(TURN) {
                let shown = (key, symlinkified);
                if let Ok(node) = self.file_under(&mut table, parent, name, branch, shown, &mut freed) {
                    nodes.push((at, node));
                }
            }
            drop(table);
            freed.clear();
            nodes.drain(..).for_each(|(at, node)| give(at, node));
        }
    }

    /// Which of these names in a directory the kernel knows, with attributes that it was given in a listing and goes by
    /// still: it need not be given them again.
    pub(crate) fn are_relied_on<'n>(
        &self,
        parent: NodeId,
        names: impl Iterator<Item = &'n [u8]>,
    ) -> Vec<bool> {
        let (table, now) = (self.table.read(), now());
        let children = table.records.get(&parent).map(|record| &record.children);
        let relied = |name: &[u8]| {
            let node = &table.records.get(&children?.get(name)?.id)?.node;
            // Whoever opens a file takes its lock before the table's.
            let open = || {
                node.open.try_lock().is_none_or(|slot| slot.upgrade().is_some_and(|file| file.is_written()))
            };
            let given = node.relied.load(Ordering::SeqCst) > now && node.lookups.load(Ordering::Relaxed) > 0;
            // What is open for writing, or mapped so past the daemon, may have other attributes by now.
            Some(given && !node.mapped.load(Ordering::Relaxed) && !open())
        };
        names.map(|name| relied(name).unwrap_or(false)).collect()
    }

    /// No attributes that were given are good any more.
    pub(crate) fn rely_on_nothing(&self) {
        self.table.read().records.values().for_each(|record| record.node.changed());
    }
}

impl Node {
    /// The kernel is about to be given its attributes.
    pub(crate) fn offer(&self) {
        self.relied.store(OFFERED, Ordering::SeqCst);
    }

    /// What was offered has been given to the kernel, to go by it for so long.
    pub(crate) fn rely(&self, time: Duration) {
        let until = if time.is_zero() { 0 } else { until(time) };
        let _ = self.relied.compare_exchange(OFFERED, until, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// Its attributes are not what the kernel was given.
    pub(crate) fn changed(&self) {
        self.relied.store(0, Ordering::SeqCst);
    }

    /// The kernel was given attributes of names in this directory, to go by them for so long at most.
    pub(crate) fn rely_on_entries(&self, time: Duration) {
        if !time.is_zero() {
            self.relied_below.store(until(time), Ordering::Relaxed);
        }
    }

    /// May it still go by some of them?
    pub(crate) fn has_relied_on_entries(&self) -> bool {
        self.relied_below.load(Ordering::Relaxed) > now()
    }
}

/// Not up to the last moment: it may be a while until the kernel needs what it was given.
fn until(time: Duration) -> u32 {
    now().saturating_add(u32::try_from(time.as_millis() / 2 / TICK).unwrap_or(u32::MAX / 2)).min(OFFERED - 1)
}

/// Attributes are on their way.
const OFFERED: u32 = u32::MAX;

/// In milliseconds.
const TICK: u128 = 64;

/// In ticks; never 0.
fn now() -> u32 {
    let time = clock_gettime(ClockId::MonotonicCoarse);
    ((time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000) as u128 / TICK) as u32 + 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::branch::Branches;
    use crate::branch::list::{BranchSpec, Mode};

    /// One that no file is found on again.
    fn branch() -> Arc<Branch> {
        let spec = BranchSpec { path: "/proc".into(), mode: Mode::Ro, min_free: None };
        Branches::open(&[spec].into_iter().collect()).unwrap()[0].clone()
    }

    fn key(ino: u64) -> FileKey {
        FileKey { dev: 1, ino, birth: (0, 0) }
    }

    /// As many as take several turns; some are not to be had, and each tenth is another name of the first.
    #[test]
    fn every_file_gets_the_node_that_a_lookup_gives() {
        let (nodes, branch) = (Nodes::new(1), branch());
        let known = nodes.hand_out_file(NodeId::ROOT, b"f7", &branch, key(7), false).unwrap();
        let names: Vec<String> = (0..3 * TURN).map(|n| format!("f{n}")).collect();
        let of = |n: usize| key(if n.is_multiple_of(10) { 0 } else { n as u64 });
        let file = |(n, name)| (n % 7 != 3).then(|| (String::as_bytes(name), &*branch, of(n), false));
        let files = names.iter().enumerate().map(file);
        let mut given = vec![None; names.len()];
        nodes.hand_out_files(NodeId::ROOT, files, |at, node| given[at] = Some(node.id));
        assert_eq!(given[7], Some(known.id));
        for (n, name) in names.iter().enumerate() {
            assert_eq!(given[n].is_some(), n % 7 != 3, "{name}");
            let child = nodes.child(NodeId::ROOT, name.as_bytes()).map(|node| (node.id, node.key()));
            assert_eq!(child, given[n].map(|id| (id, Some(of(n)))), "{name}");
        }
        assert_eq!(given[0], given[20]);
        // One reference for each name, and those from before.
        nodes.forget(known.id, 1, |_| {});
        assert!(nodes.get(known.id).is_ok());
        nodes.forget(known.id, 1, |_| {});
        assert!(nodes.get(known.id).is_err());
        let links = given.iter().filter(|&&id| id == given[0]).count();
        let first = given[0].unwrap();
        nodes.forget(first, links as u64 - 1, |_| {});
        assert!(nodes.get(first).is_ok());
        nodes.forget(first, 1, |_| {});
        assert!(nodes.get(first).is_err() && nodes.child(NodeId::ROOT, b"f20").is_none());
    }

    #[test]
    fn a_removed_directory_gets_no_nodes() {
        let (nodes, branch) = (Nodes::new(1), branch());
        let files = [Some((&b"f"[..], &*branch, key(2), false))];
        nodes.hand_out_files(NodeId(99), files.into_iter(), |_, _| panic!("there is no such directory"));
        assert_eq!(nodes.len(), 1);
    }
}
