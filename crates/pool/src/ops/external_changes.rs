//! Reports of changes, by the watcher of the branches and by those who serve clients.

use crate::coherence::catalogue::Catalogue;
use crate::coherence::changes::{Change, Changes, Client, Item};
use crate::node::known_tree::KnownTree;
use crate::paths::Uses;
use crate::pool::{Pool, State};
use canopy_base::ids::NodeId;
use canopy_branch::remember::Record;
use std::sync::Arc;

/// Tells of a change, after it was made on a branch and before the kernel learns of it.
pub fn tell(pool: &Pool, change: Change<'_>, by: Client) {
    // What is remembered goes first: who takes a ticket after the change must not find it.
    if by == Client::Outside {
        forget_what_changed(pool, change);
    }
    match change {
        Change::Holders { dir, name } | Change::Name { dir, name } => {
            pool.changes.record(Item::name(dir, name));
        }
        Change::Names(node) | Change::Attributes(node) => pool.changes.record(Item::node(node)),
        Change::Answers => pool.changes.record(Item::ANSWERS),
        Change::Listings => pool.changes.record(Item::LISTINGS),
        Change::Missed => [Item::ANSWERS, Item::LISTINGS].iter().for_each(|all| pool.changes.record(*all)),
        Change::Places => {}
    }
}

fn forget_what_changed(pool: &Pool, change: Change<'_>) {
    // Of a file that loses a name, the directory is told.
    if !matches!(change, Change::Attributes(_) | Change::Answers | Change::Listings | Change::Places) {
        pool.read_cache.names_changed();
    }
    match change {
        Change::Holders { dir, name } => {
            if let Ok(dir) = pool.nodes.get(dir) {
                dir.with_cached(|cached| cached.names.any_may_hold(name));
            }
        }
        Change::Names(node) | Change::Attributes(node) => {
            if let Ok(node) = pool.nodes.get(node) {
                node.changed();
                node.copies_changed();
                if let Some(open) = node.opened() {
                    open.leave_copy();
                }
            }
        }
        Change::Places => pool.dir_cache.places_changed(),
        Change::Missed => {
            pool.nodes.rely_on_nothing();
            pool.dir_cache.clear();
            pool.catalogue.clear();
            pool.nested.clear();
        }
        // The pool remembers neither answers nor what a name shows.
        Change::Name { .. } | Change::Answers | Change::Listings => {}
    }
}

/// Returns what is known of the branches.
pub fn catalogue(pool: &Pool) -> &Catalogue {
    &pool.catalogue
}

/// Has events be told to these records from now on.
pub fn keep_records(pool: &Pool, records: Vec<Arc<Record>>) {
    pool.records.store(Arc::new(records));
}

/// Returns the records of the branches that are there.
pub fn records(pool: &Pool) -> Arc<Vec<Arc<Record>>> {
    pool.records.load_full()
}

/// Returns what has changed so far.
pub fn changes(pool: &Pool) -> &Arc<Changes> {
    &pool.changes
}

/// Returns the names and nodes that the pool knows.
pub fn known<'p>(pool: &'p State) -> KnownTree<'p> {
    KnownTree(&pool.nodes)
}

/// Returns a few files that the kernel knows, open ones first. Reads only tables in memory, and never
/// becomes the last user of a file, who would close it.
pub fn some_files(pool: &Pool) -> Vec<NodeId> {
    const SOME: usize = 16;
    let mut files: Vec<NodeId> = pool.files.some(SOME, |handle| handle.node.id);
    files.extend(pool.nodes.some_files(SOME));
    files
}

/// Runs `look` while no directory can be renamed through the pool, so that paths on the branches and in the node
/// table agree. `look` receives the number of such renames so far. It must not call an operation of the pool.
pub fn with_tree_locked<R>(pool: &Pool, look: impl FnOnce(u64) -> R) -> R {
    let _held = pool.paths.using(Uses::EVERYTHING, &pool.nodes);
    look(pool.paths.moves())
}
