//! Many nodes at once, for listings.

use super::{Node, Nodes};
use crate::stat::FileKey;
use crate::{NodeId, Pool};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// So many are handed out in one turn of the table's lock: enough to make it cheap, few enough for those who wait.
const TURN: usize = 64;

impl Nodes {
    /// Hands a reference to the kernel for each file found in a directory: name, key, and whether it is shown as a
    /// symlink. `give` is told which of `files` and its node, without those whose directory has gone.
    pub(crate) fn hand_out_files<'n>(
        &self,
        parent: NodeId,
        files: impl Iterator<Item = Option<(&'n [u8], FileKey, bool)>>,
        mut give: impl FnMut(usize, Arc<Node>),
    ) {
        let mut files = files.enumerate().filter_map(|(at, file)| Some((at, file?))).peekable();
        let mut freed = Vec::new();
        let mut nodes = Vec::with_capacity(TURN);
        while files.peek().is_some() {
            let mut table = self.table.write();
            for (at, (name, key, disguised)) in files.by_ref().take(TURN) {
                if let Ok(node) = self.file_under(&mut table, parent, name, (key, disguised), &mut freed) {
                    nodes.push((at, node));
                }
            }
            drop(table);
            freed.clear();
            nodes.drain(..).for_each(|(at, node)| give(at, node));
        }
    }
}

impl Pool {
    /// May any of these be written without a request that says so: being open for writing, or mapped past the daemon by
    /// somebody who has closed it since?
    pub fn written_unseen(&self, nodes: &[NodeId]) -> bool {
        let table = self.nodes.table.read();
        let mut known = nodes.iter().filter_map(|id| table.records.get(id));
        known.any(|record| {
            let node = &record.node;
            // Who opens a file takes its lock before the table's: where it is taken, the file is as good as open.
            let written = || match node.open.try_lock() {
                Some(slot) => slot.upgrade().is_some_and(|file| file.is_written()),
                None => true,
            };
            node.mapped.load(Ordering::Relaxed) || written()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(ino: u64) -> FileKey {
        FileKey { dev: 1, ino, birth: (0, 0) }
    }

    /// As many as take several turns; some are not to be had, and each tenth is another name of the first.
    #[test]
    fn every_file_gets_the_node_that_a_lookup_gives() {
        let nodes = Nodes::new(1, false);
        let known = nodes.hand_out_file(NodeId::ROOT, b"f7", key(7), false).unwrap();
        let names: Vec<String> = (0..3 * TURN).map(|n| format!("f{n}")).collect();
        let of = |n: usize| key(if n.is_multiple_of(10) { 0 } else { n as u64 });
        let files =
            names.iter().enumerate().map(|(n, name)| (n % 7 != 3).then(|| (name.as_bytes(), of(n), false)));
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
    fn a_directory_that_has_gone_gets_nothing() {
        let nodes = Nodes::new(1, false);
        let files = [Some((&b"f"[..], key(2), false))];
        nodes.hand_out_files(NodeId(99), files.into_iter(), |_, _| panic!("there is no such directory"));
        assert_eq!(nodes.len(), 1);
    }
}
