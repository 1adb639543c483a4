//! Nodes and attributes that a listing gives to the kernel (READDIRPLUS), and how long the kernel uses these
//! attributes.

use super::Node;
use super::nodes::Nodes;
use canopy_base::ids::NodeId;
use canopy_branch::branch::Branch;
use canopy_branch::fs::stat::FileKey;
use rustix::time::{ClockId, clock_gettime};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How many nodes are handed out under one lock of the table: enough to make it cheap, few enough not to keep others
/// waiting.
const BATCH: usize = 64;

impl Nodes {
    /// Hands a reference to the kernel for each file found in a directory: name, branch, identity, and whether it is
    /// shown as a symlink. Calls `give` with an index in `files` and the node; leaves out files whose directory is
    /// gone.
    pub(crate) fn hand_out_files<'n>(
        &self,
        parent: NodeId,
        files: impl Iterator<Item = Option<(&'n [u8], &'n Branch, FileKey, bool)>>,
        mut give: impl FnMut(usize, Arc<Node>),
    ) {
        let mut files = files.enumerate().filter_map(|(at, file)| Some((at, file?))).peekable();
        let mut freed = Vec::new();
        let mut nodes = Vec::with_capacity(BATCH);
        while files.peek().is_some() {
            let mut table = self.table.write();
            for (at, (name, branch, key, symlinkified)) in files.by_ref().take(BATCH) {
                let shown = (key, symlinkified);
                if let Ok(node) = self.file_under(&mut table, parent, name, Some(branch), shown, &mut freed) {
                    nodes.push((at, node));
                }
            }
            drop(table);
            freed.clear();
            nodes.drain(..).for_each(|(at, node)| give(at, node));
        }
    }

    /// Returns for each name in a directory whether the kernel still uses attributes from an earlier listing, so that
    /// they need not be sent again.
    pub(crate) fn are_relied_on<'n>(
        &self,
        parent: NodeId,
        names: impl Iterator<Item = &'n [u8]>,
    ) -> Vec<bool> {
        let (table, current_tick) = (self.table.read(), current_tick());
        let dir = table.slot(parent);
        let relied = |name: &[u8]| {
            let node = table.at(table.child_slot(dir?, name)?)?;
            // try_lock, because an open takes this lock before that of the table.
            let open = || {
                let open = node.open_if_any().map(|slot| slot.try_lock().map(|slot| slot.upgrade()));
                open.is_some_and(|open| open.is_none_or(|file| file.is_some_and(|file| file.is_written())))
            };
            let given =
                node.relied.load(Ordering::SeqCst) > current_tick && node.lookups.load(Ordering::Relaxed) > 0;
            // If the file is open for writing, or mapped so by passthrough, its attributes may have changed.
            Some(given && !node.mapped.load(Ordering::Relaxed) && !open())
        };
        names.map(|name| relied(name).unwrap_or(false)).collect()
    }

    /// Records that no attributes given to the kernel are valid any more.
    pub(crate) fn rely_on_nothing(&self) {
        self.table.read().records.iter().for_each(|(_, record)| record.node.changed());
    }
}

impl Node {
    /// Records that attributes of the node are about to be sent to the kernel.
    pub(crate) fn offer(&self) {
        self.relied.store(OFFERED, Ordering::SeqCst);
    }

    /// Records that the attributes have been sent, with this validity. Does nothing if they changed since `offer`.
    pub(crate) fn rely(&self, time: Duration) {
        let until = if time.is_zero() { 0 } else { until(time) };
        let _ = self.relied.compare_exchange(OFFERED, until, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// Records that the node's attributes are no longer those that the kernel was given.
    pub(crate) fn changed(&self) {
        self.relied.store(0, Ordering::SeqCst);
    }

    /// Records that the kernel was given attributes of entries of this directory, with this validity at most.
    pub(crate) fn rely_on_entries(&self, time: Duration) {
        if !time.is_zero() {
            self.dir().relied_below.store(until(time), Ordering::Relaxed);
        }
    }

    /// Returns true if the kernel may still use attributes of some of the entries.
    pub(crate) fn has_relied_on_entries(&self) -> bool {
        self.dir_if_any().is_some_and(|dir| dir.relied_below.load(Ordering::Relaxed) > current_tick())
    }
}

/// Returns the tick at which attributes are sent again: after half of their validity, because it may be a while until
/// the kernel needs them.
fn until(time: Duration) -> u32 {
    current_tick()
        .saturating_add(u32::try_from(time.as_millis() / 2 / TICK).unwrap_or(u32::MAX / 2))
        .min(OFFERED - 1)
}

/// Attributes are being sent.
const OFFERED: u32 = u32::MAX;

/// Milliseconds per tick.
const TICK: u128 = 64;

/// Returns the time in ticks; never 0.
fn current_tick() -> u32 {
    let time = clock_gettime(ClockId::MonotonicCoarse);
    ((time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000) as u128 / TICK) as u32 + 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::nodes::tests::branch;

    fn key(ino: u64) -> FileKey {
        FileKey { dev: 1, ino, birth: (0, 0) }
    }

    /// Enough files for several batches; some cannot be found, and every tenth is another name of the first.
    #[test]
    fn every_file_gets_the_same_node_as_by_a_lookup() {
        let (nodes, branch) = (Nodes::new(1), branch());
        let known = nodes.hand_out_file(NodeId::ROOT, b"f7", &branch, key(7), false).unwrap();
        let names: Vec<String> = (0..3 * BATCH).map(|n| format!("f{n}")).collect();
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
        // One reference for each name, and the one from before.
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
    fn files_of_a_directory_that_is_gone_get_no_nodes() {
        let (nodes, branch) = (Nodes::new(1), branch());
        let files = [Some((&b"f"[..], &*branch, key(2), false))];
        nodes.hand_out_files(NodeId(99), files.into_iter(), |_, _| panic!("there is no such directory"));
        assert_eq!(nodes.len(), 1);
    }
}
