//! What is known: directories by their paths, each with its names. What is told here makes some of it unknown, what is learnt
//! makes more of it known.

use super::log::Log;
use super::room::{DirRows, Hot};
use super::rows::{Facts, Row, Rows, name_hash};
use super::store::Store;
use super::{Found, Handles, Listed, MAX_ROWS, Page, Reported, Rules, handle_hash};
use smallvec::SmallVec;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fs::File;
use std::ops::Bound;
use std::sync::Arc;

/// The most directories. Beyond, all is forgotten.
pub(super) const MAX_DIRS: usize = 1 << 20;
/// The most names of a directory that are in doubt. Beyond, its rows are forgotten.
const MAX_DOUBTS: usize = 1024;

pub(super) struct State {
    pub(super) rules: Rules,
    pub(super) store: Store,
    pub(super) log: Log,
    pub(super) dirs: BTreeMap<Arc<[u8]>, Known>,
    pub(super) by_handle: HashMap<u64, SmallVec<[Arc<[u8]>; 1]>>,
    /// The directories whose rows are unpacked, in the order in which that ends, and how many rows these are.
    pub(super) hot: VecDeque<Arc<[u8]>>,
    pub(super) hot_rows: usize,
}

pub(super) struct Known {
    pub(super) handles: Handles,
    pub(super) rows: DirRows,
    /// Names that have come or gone, as hashes.
    pub(super) doubts: Vec<u64>,
    /// The rows are all there are.
    pub(super) is_listed: bool,
}

impl State {
    pub(super) fn new(file: File, bound: u64, rules: Rules) -> State {
        State {
            rules,
            store: Store::new(file, bound),
            log: Log::new(),
            dirs: BTreeMap::new(),
            by_handle: HashMap::new(),
            hot: VecDeque::new(),
            hot_rows: 0,
        }
    }

    pub(super) fn changed(&mut self, change: Reported<'_>, now: u64) {
        if let Some(target) = change.target {
            self.log.touch(handle_hash(target), now);
        }
        let Some((dir, name)) = change.entry else { return };
        let dir = handle_hash(dir);
        if change.names || name == b"." {
            self.log.touch(dir, now);
        }
        if !change.names {
            return;
        }
        let paths = self.by_handle.get(&dir).cloned().unwrap_or_default();
        if change.on_dir {
            self.log.moved = now;
            for path in &paths {
                self.forget_tree(&below(path, name));
            }
            // It is below a known directory. But to forget needlessly does no harm.
            for path in
                change.target.and_then(|it| self.by_handle.get(&handle_hash(it)).cloned()).unwrap_or_default()
            {
                self.forget_tree(&path);
            }
        }
        let hash = name_hash(name);
        for path in paths {
            let Some(known) = self.dirs.get_mut(&path) else { continue };
            known.is_listed = false;
            if !matches!(known.rows, DirRows::No) && !known.doubts.contains(&hash) {
                known.doubts.push(hash);
            }
            if known.doubts.len() > MAX_DOUBTS {
                self.forget_rows(&path);
            }
        }
    }

    pub(super) fn clear(&mut self, now: u64) {
        self.log.cleared = now;
        self.log.moved = now;
        self.log.writing.clear();
        self.dirs.clear();
        self.by_handle.clear();
        self.hot.clear();
        self.hot_rows = 0;
        self.store.clear();
    }

    /// Forgets a directory and all below it.
    pub(super) fn forget_tree(&mut self, path: &[u8]) {
        let (first, last) = ([path, b"/"].concat(), [path, &[b'/' + 1]].concat());
        let within = self
            .dirs
            .range::<[u8], _>((Bound::Included(&*first), Bound::Excluded(&*last)))
            .map(|(path, _)| Arc::clone(path));
        let gone: Vec<Arc<[u8]>> =
            within.chain(self.dirs.get_key_value(path).map(|(path, _)| Arc::clone(path))).collect();
        for path in gone {
            self.forget_rows(&path);
            for handle in self.dirs.remove(&path).map(|known| known.handles).unwrap_or_default() {
                self.forget_handle(handle, &path);
            }
        }
    }

    pub(super) fn forget_handle(&mut self, handle: u64, path: &[u8]) {
        if let Some(paths) = self.by_handle.get_mut(&handle) {
            paths.retain(|other| **other != *path);
            if paths.is_empty() {
                self.by_handle.remove(&handle);
            }
        }
    }

    /// Forgets the names of a directory. That it is there stays known.
    pub(super) fn forget_rows(&mut self, path: &[u8]) {
        let Some(known) = self.dirs.get_mut(path) else { return };
        known.doubts.clear();
        known.is_listed = false;
        match std::mem::replace(&mut known.rows, DirRows::No) {
            DirRows::No => {}
            DirRows::Stored(extent) => self.store.remove(extent),
            DirRows::Hot(hot) => {
                self.hot_rows -= hot.rows.list().len();
                hot.stored.into_iter().for_each(|extent| self.store.remove(extent));
            }
        }
    }

    pub(super) fn find(&mut self, dir: &[u8], name: &[u8]) -> Found {
        let Some((known, rows, log)) = self.rows_of(dir) else { return Found::Unknown };
        if known.doubts.contains(&name_hash(name)) {
            return Found::Unknown;
        }
        match rows.get(name) {
            None => Found::Absent,
            Some(Row { facts: Some(facts), .. }) if log.may_rely_on(facts) => Found::There(facts.clone()),
            Some(_) => Found::Unknown,
        }
    }

    pub(super) fn page(
        &mut self,
        dir: &[u8],
        position: u64,
        mut room: impl FnMut(&[u8]) -> bool,
    ) -> Option<Page> {
        let (_, rows, log) = self.rows_of(dir).filter(|(known, ..)| known.is_listed)?;
        let first = if position == 0 { 0 } else { rows.after(position)? };
        let relied = |row: &Row| {
            let facts = row.facts.as_ref().filter(|facts| log.may_rely_on(facts)).cloned();
            Row { name: row.name.clone(), facts, ..*row }
        };
        Some(Page {
            rows: rows.list()[first..].iter().take_while(|row| room(&row.name)).map(relied).collect(),
        })
    }
    pub(super) fn learn_names(&mut self, listed: Listed, now: u64) {
        let Listed { path, handles, mut rows, above, since } = listed;
        if self.log.moved > since || !self.log.all_unchanged(&handles, since) || rows.len() > MAX_ROWS {
            return;
        }
        if self.dirs.len() + above.len() >= MAX_DIRS {
            return self.clear(now);
        }
        for (path, handles) in above {
            self.know(&path, handles);
        }
        if super::above(&path).any(|above| !self.dirs.contains_key(above)) {
            return;
        }
        if self.dirs.get(&path).is_some_and(|known| known.handles != handles) {
            // As it seems, something has changed that nobody has told of.
            self.forget_tree(&path);
        }
        // What a name leads to may be known from before.
        if let Some((known, old, _)) = self.rows_of(&path) {
            for row in rows.iter_mut().filter(|row| row.facts.is_none()) {
                if let Some(before) = old.get(&row.name).filter(|before| before.kind == row.kind)
                    && !known.doubts.contains(&name_hash(&row.name))
                {
                    row.facts.clone_from(&before.facts);
                }
            }
        }
        let Some(rows) = Rows::new(rows) else { return };
        self.forget_rows(&path);
        self.know(&path, handles);
        if let Some(known) = self.dirs.get_mut(&path) {
            known.is_listed = true;
        }
        self.keep(&path, Hot { rows, stored: None, used: true });
    }

    /// Records that a directory is there.
    pub(super) fn know(&mut self, path: &Arc<[u8]>, handles: Handles) {
        if self.dirs.contains_key(path) {
            return;
        }
        for handle in &handles {
            let paths = self.by_handle.entry(*handle).or_default();
            if !paths.contains(path) {
                paths.push(Arc::clone(path));
            }
        }
        let known = Known { handles, rows: DirRows::No, doubts: Vec::new(), is_listed: false };
        self.dirs.insert(Arc::clone(path), known);
    }

    pub(super) fn learn(&mut self, dir: &[u8], name: &[u8], facts: Facts) {
        let Some((known, _, log)) = self.rows_of(dir) else { return };
        if !log.all_unchanged(&known.handles, facts.since) || !log.may_rely_on(&facts) {
            return;
        }
        let Some(known) = self.dirs.get_mut(dir) else { return };
        let DirRows::Hot(hot) = &mut known.rows else { return };
        let kind = facts.attr.dirent_type();
        let Some(row) = hot.rows.get_mut(name).filter(|row| row.kind == kind) else { return };
        row.facts = Some(Box::new(facts));
        known.doubts.retain(|doubt| *doubt != name_hash(name));
        hot.stored.take().into_iter().for_each(|extent| self.store.remove(extent));
    }

    pub(super) fn facts_mut(&mut self, dir: &[u8], name: &[u8]) -> Option<&mut Facts> {
        match self.find(dir, name) {
            Found::There(_) => {}
            Found::Absent | Found::Unknown => return None,
        }
        let DirRows::Hot(hot) = &mut self.dirs.get_mut(dir)?.rows else { return None };
        hot.stored.take().into_iter().for_each(|extent| self.store.remove(extent));
        hot.rows.get_mut(name)?.facts.as_deref_mut()
    }
}

/// Returns the path of a name in a directory.
fn below(dir: &[u8], name: &[u8]) -> Vec<u8> {
    if dir.is_empty() { name.to_vec() } else { [dir, b"/", name].concat() }
}
