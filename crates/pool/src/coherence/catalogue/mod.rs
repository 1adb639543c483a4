//! What the branches hold, as far as it is known: directories with their names, attributes, link targets, and that there are
//! no extended attributes. It makes no system call on a branch: it answers, or the branches must be asked.
//!
//! It knows only by what it has been told: by operations, what they have seen on the branches (`learn`), and by
//! the watch, what has changed there ([`Catalogue::changed`]), whoever did it. Whoever relies on it has processed all events
//! so far ([`Kernel::caught_up`](crate::kernel::Kernel::caught_up)).
//!
//! Changes are numbered. What is learnt comes with the number of the latest change before it was looked at, and is dropped
//! if it has changed since. An event that comes later than what it tells of makes something known needlessly unknown, and
//! no more. Files and directories are identified by the hashes of their file handles, which events carry; they share slots
//! with the number of the latest change. So something may seem to have changed when something else has: too much, never too
//! little.
//!
//! A directory is known by its path, so all directories above it are known, too, with the file handles of all their
//! copies: whatever makes another directory appear at the path, or this one vanish, is an event in one of those.

mod kept;
mod rows;
mod store;

pub use kept::Home;
pub(crate) use rows::{Copy, Facts, Row};

use canopy_base::hash;
use canopy_base::lock::rank;
use canopy_base::lock::ranked::Mutex;
use canopy_branch::fs::magic;
use rows::{Rows, name_hash};
use rustix::time::{ClockId, clock_gettime};
use smallvec::SmallVec;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::fs::File;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use store::{Extent, Store};

/// The number of slots for changes: 8 MiB, of which those are used that were touched.
const SLOTS: usize = 1 << 20;
/// The most rows that are kept unpacked: some 30 MiB.
const MAX_HOT: usize = 1 << 16;
/// The most directories. Beyond, all is forgotten.
const MAX_DIRS: usize = 1 << 20;
/// The most names of a directory that are in doubt. Beyond, its rows are forgotten.
const MAX_DOUBTS: usize = 1024;
/// The most names of a directory.
pub(crate) const MAX_ROWS: usize = 1 << 18;
/// How long the attributes of a file are known at least, if nothing is told of it. Those of one that has rested for longer, as
/// long again.
const LEAST: i64 = 86_400;

/// The handles of a directory's copies, as hashes.
pub(crate) type Handles = SmallVec<[u64; 2]>;

/// Returns the hash by which a file is identified here. It is the same in the next process.
pub(crate) fn handle_hash(handle: &[u8]) -> u64 {
    hash::keyed(0, handle)
}

/// A change on a branch, as it is reported.
#[derive(Clone, Copy, Debug)]
pub struct Reported<'a> {
    /// The handle of the directory, and a name in it; `.` if it is about the directory itself.
    pub entry: Option<(&'a [u8], &'a [u8])>,
    /// The handle of what the name leads, or led, to.
    pub target: Option<&'a [u8]>,
    /// A name has come or gone.
    pub names: bool,
    /// It leads, or led, to a directory.
    pub on_dir: bool,
}

/// What is known of a name.
#[derive(Clone, Debug)]
pub(crate) enum Found {
    /// The branches must be asked.
    Unknown,
    Absent,
    There(Box<Facts>),
}

/// A part of a listing.
#[derive(Debug)]
pub(crate) struct Page {
    /// Facts are there if they may be relied on.
    pub(crate) rows: Vec<Row>,
}

/// What has been seen of a directory by listing it.
pub(crate) struct Listed {
    pub(crate) path: Arc<[u8]>,
    pub(crate) handles: Handles,
    pub(crate) rows: Vec<Row>,
    /// The directories above it that were not known, with the handles of their copies.
    pub(crate) above: Vec<(Arc<[u8]>, Handles)>,
    /// The number of the latest change before the listing began.
    pub(crate) since: u64,
}

/// How much is known.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Extents {
    pub directories: u64,
    /// In the store, without what is unpacked.
    pub bytes: u64,
    /// Of questions, so many were answered, and so many were not.
    pub answered: u64,
    pub asked: u64,
}

/// How old what is learnt must be.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// The attributes of a file are not learnt before it has rested for so long: what changes it unseen is likely to do so again.
    pub rested: Duration,
    /// Of one with data: until these are written back, which may take more blocks, or fewer, and is no event.
    pub written_back: Duration,
    /// As that, on XFS, which trims twice in ten minutes what it has allocated beyond the ends of files
    /// (fs.xfs.speculative_prealloc_lifetime).
    pub trimmed: Duration,
}

impl Default for Rules {
    fn default() -> Rules {
        let [rested, written_back, trimmed] = [10, 60, 660].map(Duration::from_secs);
        Rules { rested, written_back, trimmed }
    }
}

#[derive(Default)]
pub struct Catalogue {
    on: AtomicBool,
    /// The number of changes so far.
    told: AtomicU64,
    answered: AtomicU64,
    asked: AtomicU64,
    /// How often something was learnt.
    learnt: AtomicU64,
    state: Mutex<Option<Box<State>>, rank::Catalogue>,
}

struct State {
    rules: Rules,
    store: Store,
    log: Log,
    dirs: BTreeMap<Arc<[u8]>, Known>,
    by_handle: HashMap<u64, SmallVec<[Arc<[u8]>; 1]>>,
    /// The directories whose rows are unpacked, in the order in which that ends, and how many rows these are.
    hot: VecDeque<Arc<[u8]>>,
    hot_rows: usize,
}

/// What has changed.
struct Log {
    /// For each slot, the number of the latest change.
    slots: Vec<u64>,
    /// The latest change of a directory's place, and of everything.
    moved: u64,
    cleared: u64,
    /// Files that change without being reported.
    writing: HashSet<u64>,
}

struct Known {
    handles: Handles,
    rows: DirRows,
    /// Names that have come or gone, as hashes.
    doubts: Vec<u64>,
    /// The rows are all there are.
    is_listed: bool,
}

enum DirRows {
    No,
    Hot(Hot),
    Stored(Extent),
}

struct Hot {
    rows: Rows,
    /// Where the same is stored.
    stored: Option<Extent>,
    used: bool,
}

impl Catalogue {
    /// Prepares to keep what is known, in a file that nothing else uses. Nothing is known before that is allowed.
    pub fn open(&self, file: File, bound: u64, rules: Rules) {
        let state = State {
            rules,
            store: Store::new(file, bound),
            log: Log { slots: vec![0; SLOTS], moved: 0, cleared: 0, writing: HashSet::new() },
            dirs: BTreeMap::new(),
            by_handle: HashMap::new(),
            hot: VecDeque::new(),
            hot_rows: 0,
        };
        *self.state.lock() = Some(Box::new(state));
    }

    /// Sets whether all changes are reported, so that anything may be known.
    pub fn allow(&self, allowed: bool) {
        let mut state = self.state.lock();
        let Some(state) = state.as_deref_mut() else { return };
        if self.on.swap(allowed, Ordering::AcqRel) != allowed {
            let now = self.told.load(Ordering::Relaxed) + 1;
            state.clear(now);
            self.told.store(now, Ordering::Release);
        }
    }

    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Acquire)
    }

    fn with<R>(&self, act: impl FnOnce(&mut State) -> R) -> Option<R> {
        if !self.is_on() {
            return None;
        }
        self.state.lock().as_deref_mut().map(act)
    }

    /// Returns how much is known; `None` if nothing is kept.
    pub fn extents(&self) -> Option<Extents> {
        self.state.lock().as_deref().map(|state| Extents {
            directories: state.dirs.len() as u64,
            bytes: state.store.bytes(),
            answered: self.answered.load(Ordering::Relaxed),
            asked: self.asked.load(Ordering::Relaxed),
        })
    }

    /// Returns the number of the latest change that was told. Taken before anything is looked at.
    pub fn now(&self) -> u64 {
        self.told.load(Ordering::Acquire)
    }

    /// Records a change.
    pub fn changed(&self, change: Reported<'_>) {
        self.with(|state| {
            let now = self.told.load(Ordering::Relaxed) + 1;
            state.changed(change, now);
            self.told.store(now, Ordering::Release);
        });
    }

    /// Records that a file changes without being reported from now on, or no longer does. Called before that begins, and
    /// after it has ended.
    pub fn unreported(&self, handle: &[u8], begins: bool) {
        self.with(|state| {
            let (handle, now) = (handle_hash(handle), self.told.load(Ordering::Relaxed) + 1);
            if begins {
                state.log.writing.insert(handle);
            } else {
                state.log.writing.remove(&handle);
            }
            state.log.touch(handle, now);
            self.told.store(now, Ordering::Release);
        });
    }

    /// Records that all changes of files are reported from now on.
    pub fn all_reported(&self) {
        self.with(|state| {
            let now = self.told.load(Ordering::Relaxed) + 1;
            for handle in std::mem::take(&mut state.log.writing) {
                state.log.touch(handle, now);
            }
            self.told.store(now, Ordering::Release);
        });
    }

    /// Forgets everything, and whatever is being looked at.
    pub fn clear(&self) {
        self.with(|state| {
            let now = self.told.load(Ordering::Relaxed) + 1;
            state.clear(now);
            self.told.store(now, Ordering::Release);
        });
    }

    /// Returns what is known of a name in a directory.
    pub(crate) fn find(&self, dir: &[u8], name: &[u8]) -> Found {
        let found = self.with(|state| state.find(dir, name)).unwrap_or(Found::Unknown);
        self.count(!matches!(found, Found::Unknown));
        found
    }

    /// Returns the part of a listing that begins at a position, as long as there is `room`. `None` if the branches must be
    /// asked.
    pub(crate) fn page(&self, dir: &[u8], position: u64, room: impl FnMut(&[u8]) -> bool) -> Option<Page> {
        let page = self.with(|state| state.page(dir, position, room)).flatten();
        self.count(page.is_some());
        page
    }

    fn count(&self, answered: bool) {
        if self.is_on() {
            let counter = if answered { &self.answered } else { &self.asked };
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the directories from the root to the one above a path that are not known.
    pub(crate) fn unknown_above(&self, path: &[u8]) -> Vec<Arc<[u8]>> {
        let unknown = |state: &mut State| {
            above(path).filter(|above| !state.dirs.contains_key(*above)).map(Arc::from).collect()
        };
        self.with(unknown).unwrap_or_default()
    }

    /// Records the names of a directory.
    pub(crate) fn learn_names(&self, listed: Listed) {
        self.with(|state| state.learn_names(listed, self.told.load(Ordering::Relaxed) + 1));
        self.learnt.fetch_add(1, Ordering::Relaxed);
    }

    /// Records what a name in a known directory leads to.
    pub(crate) fn learn(&self, dir: &[u8], name: &[u8], facts: Facts) {
        self.with(|state| state.learn(dir, name, facts));
        self.learnt.fetch_add(1, Ordering::Relaxed);
    }

    /// Adds to what is known of a name.
    pub(crate) fn add(&self, dir: &[u8], name: &[u8], add: impl FnOnce(&mut Facts)) {
        self.with(|state| {
            if let Some(facts) = state.facts_mut(dir, name) {
                add(facts);
            }
        });
        self.learnt.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns until when attributes that were seen now are known; `None` if they are not to be learnt. `rested`: for how many
    /// seconds the file has not changed. `data_on`: the type of the filesystem that its data are on, if it has any.
    pub(crate) fn lasting(&self, rested: i64, data_on: Option<u64>) -> Option<i64> {
        let rules = self.with(|state| state.rules)?;
        let least = match data_on {
            None => rules.rested,
            Some(magic::XFS) => rules.trimmed,
            Some(_) => rules.written_back,
        };
        (rested >= least.as_secs().cast_signed()).then(|| seconds() + rested.max(LEAST))
    }
}

/// Returns the paths of the root and the directories down to the one above a path.
fn above(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
    (!path.is_empty()).then_some(0).into_iter().chain(ends).map(|end| &path[..end])
}

/// Returns the seconds of a clock that nobody sets.
fn seconds() -> i64 {
    clock_gettime(ClockId::Boottime).tv_sec
}

impl Log {
    fn touch(&mut self, handle: u64, now: u64) {
        self.slots[handle as usize % SLOTS] = now;
    }

    fn unchanged(&self, handle: u64, since: u64) -> bool {
        self.slots[handle as usize % SLOTS] <= since && self.cleared <= since
    }

    fn all_unchanged(&self, handles: &Handles, since: u64) -> bool {
        handles.iter().all(|handle| self.unchanged(*handle, since))
    }

    fn may_rely_on(&self, facts: &Facts) -> bool {
        let rests =
            |copy: &Copy| self.unchanged(copy.handle, facts.since) && !self.writing.contains(&copy.handle);
        facts.copies.iter().all(rests) && seconds() < facts.until
    }
}

impl State {
    fn changed(&mut self, change: Reported<'_>, now: u64) {
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

    fn clear(&mut self, now: u64) {
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
    fn forget_tree(&mut self, path: &[u8]) {
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

    fn forget_handle(&mut self, handle: u64, path: &[u8]) {
        if let Some(paths) = self.by_handle.get_mut(&handle) {
            paths.retain(|other| **other != *path);
            if paths.is_empty() {
                self.by_handle.remove(&handle);
            }
        }
    }

    /// Forgets the names of a directory. That it is there stays known.
    fn forget_rows(&mut self, path: &[u8]) {
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

    fn find(&mut self, dir: &[u8], name: &[u8]) -> Found {
        let Some((known, rows, log)) = self.load(dir) else { return Found::Unknown };
        if known.doubts.contains(&name_hash(name)) {
            return Found::Unknown;
        }
        match rows.get(name) {
            None => Found::Absent,
            Some(Row { facts: Some(facts), .. }) if log.may_rely_on(facts) => Found::There(facts.clone()),
            Some(_) => Found::Unknown,
        }
    }

    fn page(&mut self, dir: &[u8], position: u64, mut room: impl FnMut(&[u8]) -> bool) -> Option<Page> {
        let (_, rows, log) = self.load(dir).filter(|(known, ..)| known.is_listed)?;
        let first = if position == 0 { 0 } else { rows.after(position)? };
        let relied = |row: &Row| {
            let facts = row.facts.as_ref().filter(|facts| log.may_rely_on(facts)).cloned();
            Row { name: row.name.clone(), facts, ..*row }
        };
        Some(Page {
            rows: rows.list()[first..].iter().take_while(|row| room(&row.name)).map(relied).collect(),
        })
    }

    /// Returns a directory with its rows, unpacked, and what has changed; `None` if there are no rows.
    fn load(&mut self, dir: &[u8]) -> Option<(&Known, &Rows, &Log)> {
        let stored = match &mut self.dirs.get_mut(dir)?.rows {
            DirRows::No => return None,
            DirRows::Hot(hot) => {
                hot.used = true;
                None
            }
            DirRows::Stored(extent) => Some(*extent),
        };
        if let Some(extent) = stored {
            let Some(rows) = self.store.read(extent).and_then(|bytes| Rows::decode(&bytes)) else {
                self.forget_rows(dir);
                return None;
            };
            self.keep(dir, Hot { rows, stored: Some(extent), used: true });
        }
        let known = self.dirs.get(dir)?;
        match &known.rows {
            DirRows::Hot(hot) => Some((known, &hot.rows, &self.log)),
            _ => None,
        }
    }

    /// Keeps unpacked rows, and packs others if these are too many.
    fn keep(&mut self, dir: &[u8], hot: Hot) {
        let Some((path, _)) = self.dirs.get_key_value(dir) else { return };
        self.hot.push_back(Arc::clone(path));
        self.hot_rows += hot.rows.list().len();
        if let Some(known) = self.dirs.get_mut(dir) {
            known.rows = DirRows::Hot(hot);
        }
        let mut chances = 2 * self.hot.len();
        while self.hot_rows > MAX_HOT && chances > 0 {
            chances -= 1;
            let Some(oldest) = self.hot.pop_front() else { return };
            match self.dirs.get_mut(&oldest).map(|known| &mut known.rows) {
                Some(DirRows::Hot(hot)) if *oldest == *dir || hot.used => {
                    hot.used = false;
                    self.hot.push_back(oldest);
                }
                Some(DirRows::Hot(_)) => self.pack(&oldest),
                _ => {}
            }
        }
    }

    /// Stores the rows of a directory, instead of keeping them unpacked.
    fn pack(&mut self, dir: &Arc<[u8]>) {
        let Some(known) = self.dirs.get_mut(dir) else { return };
        let DirRows::Hot(hot) = std::mem::replace(&mut known.rows, DirRows::No) else { return };
        self.hot_rows -= hot.rows.list().len();
        let stored = match hot.stored {
            Some(extent) if !self.store.is_old(extent) => Some(extent),
            stored => {
                stored.into_iter().for_each(|extent| self.store.remove(extent));
                let (stored, gone) = self.store.write(dir, &hot.rows.encode());
                gone.iter().for_each(|owner| self.lost(owner));
                stored
            }
        };
        if let Some(known) = self.dirs.get_mut(dir) {
            match stored {
                Some(extent) => known.rows = DirRows::Stored(extent),
                None => {
                    known.doubts.clear();
                    known.is_listed = false;
                }
            }
        }
    }

    /// Records that what was stored has made room.
    fn lost(&mut self, dir: &[u8]) {
        let Some(known) = self.dirs.get_mut(dir) else { return };
        match &mut known.rows {
            DirRows::Hot(hot) => hot.stored = None,
            DirRows::Stored(_) => {
                known.rows = DirRows::No;
                known.doubts.clear();
                known.is_listed = false;
            }
            DirRows::No => {}
        }
    }

    fn learn_names(&mut self, listed: Listed, now: u64) {
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
        if self::above(&path).any(|above| !self.dirs.contains_key(above)) {
            return;
        }
        if self.dirs.get(&path).is_some_and(|known| known.handles != handles) {
            // As it seems, something has changed that nobody has told of.
            self.forget_tree(&path);
        }
        // What a name leads to may be known from before.
        if let Some((known, old, _)) = self.load(&path) {
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
    fn know(&mut self, path: &Arc<[u8]>, handles: Handles) {
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

    fn learn(&mut self, dir: &[u8], name: &[u8], facts: Facts) {
        let Some((known, _, log)) = self.load(dir) else { return };
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

    fn facts_mut(&mut self, dir: &[u8], name: &[u8]) -> Option<&mut Facts> {
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

#[cfg(test)]
mod tests {
    use super::rows::tests::row;
    use super::*;

    const DIR: u64 = 77;

    fn open(bound: u64) -> Catalogue {
        let catalogue = Catalogue::default();
        catalogue.open(tempfile::tempfile().unwrap(), bound, Rules::default());
        catalogue.allow(true);
        catalogue
    }

    fn handle(number: u64) -> [u8; 8] {
        number.to_le_bytes()
    }

    fn hash(number: u64) -> u64 {
        handle_hash(&handle(number))
    }

    /// Tells of a name in a directory, or of its target alone.
    fn change(
        catalogue: &Catalogue,
        entry: Option<(u64, &str)>,
        target: Option<u64>,
        names: bool,
        on_dir: bool,
    ) {
        let (dir, file) = (entry.map(|(dir, _)| handle(dir)), target.map(handle));
        let entry = dir.as_ref().zip(entry).map(|(dir, (_, name))| (&dir[..], name.as_bytes()));
        catalogue.changed(Reported { entry, target: file.as_ref().map(|file| &file[..]), names, on_dir });
    }

    /// Learns of a directory at a path, in directories with the numbers that follow its own, with files of these numbers.
    fn learn(catalogue: &Catalogue, path: &str, dir: u64, files: &[u64], since: u64) {
        let file = |number: &u64| row(&format!("f{number}"), 100 + number, since, &[hash(*number)]);
        let above = catalogue.unknown_above(path.as_bytes());
        catalogue.learn_names(Listed {
            path: path.as_bytes().into(),
            handles: Handles::from_slice(&[hash(dir)]),
            rows: files.iter().map(file).collect(),
            above: above
                .into_iter()
                .zip(dir + 1..)
                .map(|(path, dir)| (path, Handles::from_slice(&[hash(dir)])))
                .collect(),
            since,
        });
    }

    fn is_there(catalogue: &Catalogue, path: &str, name: &str) -> Option<bool> {
        match catalogue.find(path.as_bytes(), name.as_bytes()) {
            Found::Unknown => None,
            Found::Absent => Some(false),
            Found::There(_) => Some(true),
        }
    }

    #[test]
    fn what_was_learnt_is_known_until_it_changes() {
        let catalogue = open(1 << 20);
        assert_eq!(is_there(&catalogue, "a", "f1"), None);
        learn(&catalogue, "a", DIR, &[1, 2, 3], catalogue.now());
        let known = |name: &str| is_there(&catalogue, "a", name);
        assert_eq!((known("f1"), known("f4")), (Some(true), Some(false)));
        assert!(catalogue.page(b"a", 0, |_| true).is_some_and(|page| page.rows.len() == 3));
        assert!(catalogue.page(b"a", 102, |_| true).is_some_and(|page| &*page.rows[0].name == b"f3"));
        assert!(catalogue.page(b"a", 5, |_| true).is_none(), "a position of another listing");
        // By whatever name a file is changed.
        change(&catalogue, Some((9, "elsewhere")), Some(1), false, false);
        assert_eq!((known("f1"), known("f2"), known("f4")), (None, Some(true), Some(false)));
        assert!(catalogue.page(b"a", 0, |_| true).unwrap().rows[0].facts.is_none());
        change(&catalogue, Some((DIR, "f4")), Some(4), true, false);
        assert_eq!((known("f4"), known("f2"), known("f5")), (None, Some(true), Some(false)));
        assert!(catalogue.page(b"a", 0, |_| true).is_none());
        // A name that was removed is asked for, and so is one that was made again.
        change(&catalogue, Some((DIR, "f2")), Some(2), true, false);
        assert_eq!(known("f2"), None);
        let Some(facts) = row("f2", 2, catalogue.now(), &[hash(20)]).facts else { unreachable!() };
        let is_file = |facts: &Facts| Facts {
            attr: canopy_branch::fs::stat::Attr { mode: 0o100_000, ..facts.attr },
            ..facts.clone()
        };
        catalogue.learn(b"a", b"f2", is_file(&facts));
        assert_eq!(known("f2"), Some(true));
        catalogue.clear();
        assert_eq!(known("f3"), None);
    }

    #[test]
    fn what_changes_while_it_is_looked_at_is_not_learnt() {
        for change_meanwhile in [
            &(|it: &Catalogue| change(it, Some((DIR, "new")), Some(5), true, false)) as &dyn Fn(&Catalogue),
            &|it| change(it, Some((1000, "dir")), Some(6), true, true),
            &Catalogue::clear,
        ] {
            let catalogue = open(1 << 20);
            let since = catalogue.now();
            change_meanwhile(&catalogue);
            learn(&catalogue, "a", DIR, &[1], since);
            assert_eq!(is_there(&catalogue, "a", "f1"), None);
            learn(&catalogue, "a", DIR, &[1], catalogue.now());
            assert_eq!(is_there(&catalogue, "a", "f1"), Some(true));
        }
    }

    #[test]
    fn a_directory_that_comes_or_goes_makes_all_below_unknown() {
        let catalogue = open(1 << 20);
        for name in ["b", "x"] {
            learn(&catalogue, "a", 10, &[1], catalogue.now());
            learn(&catalogue, "a/b", 20, &[2], catalogue.now());
            learn(&catalogue, "a/b/c", 30, &[3], catalogue.now());
            learn(&catalogue, "a/bc", 40, &[4], catalogue.now());
            change(&catalogue, Some((10, name)), None, true, true);
            let stays = (name == "x").then_some(true);
            assert_eq!(is_there(&catalogue, "a/b", "f2"), stays);
            assert_eq!(is_there(&catalogue, "a/b/c", "f3"), stays);
            assert_eq!(is_there(&catalogue, "a/bc", "f4"), Some(true));
            assert_eq!(is_there(&catalogue, "a", "f1"), Some(true));
        }
    }

    #[test]
    fn a_file_that_changes_unreported_is_asked_for() {
        let catalogue = open(1 << 20);
        let known = || is_there(&catalogue, "", "f1");
        catalogue.unreported(&handle(1), true);
        learn(&catalogue, "", DIR, &[1, 2], catalogue.now());
        assert_eq!((known(), is_there(&catalogue, "", "f2")), (None, Some(true)));
        for ends in [&(|| catalogue.unreported(&handle(1), false)) as &dyn Fn(), &|| catalogue.all_reported()]
        {
            ends();
            assert_eq!(known(), None, "it has changed");
            learn(&catalogue, "", DIR, &[1, 2], catalogue.now());
            assert_eq!(known(), Some(true));
            catalogue.unreported(&handle(1), true);
            assert_eq!(known(), None);
        }
    }

    #[test]
    fn where_not_all_is_reported_nothing_is_known() {
        let catalogue = open(1 << 20);
        learn(&catalogue, "", DIR, &[1], catalogue.now());
        catalogue.allow(true);
        assert_eq!(is_there(&catalogue, "", "f1"), Some(true));
        catalogue.allow(false);
        assert_eq!(is_there(&catalogue, "", "f1"), None);
        catalogue.allow(true);
        assert_eq!(is_there(&catalogue, "", "f1"), None);
    }

    #[test]
    fn attributes_are_learnt_when_no_more_blocks_come_or_go_unseen() {
        let catalogue = open(1 << 20);
        for (rested, data_on, learnt) in [
            (9, None, false),
            (10, None, true),
            (59, Some(magic::EXT), false),
            (60, Some(magic::BTRFS), true),
            (659, Some(magic::XFS), false),
            (660, Some(magic::XFS), true),
            (-1, None, false),
        ] {
            assert_eq!(catalogue.lasting(rested, data_on).is_some(), learnt, "{rested} {data_on:?}");
        }
        catalogue.allow(false);
        assert_eq!(catalogue.lasting(10_000, None), None);
    }

    /// With more rows than are kept unpacked, and more than the store has room for: what was used last is known, and what is
    /// known is right.
    #[test]
    fn what_is_not_used_makes_room() {
        const DIRS: u64 = 200;
        const FILES: u64 = 1000;
        let catalogue = open(4 << 20);
        let files = |dir: u64| (dir * FILES..(dir + 1) * FILES).collect::<Vec<_>>();
        for dir in 0..DIRS {
            learn(&catalogue, &format!("d{dir}"), 10_000_000 + 10 * dir, &files(dir), catalogue.now());
            assert_eq!(is_there(&catalogue, "d0", "f7"), Some(true), "it is used all the time");
        }
        let known = (0..DIRS).filter(|dir| {
            let name = format!("d{dir}");
            match is_there(&catalogue, &name, &format!("f{}", dir * FILES + 5)) {
                None => false,
                Some(there) => {
                    assert!(there && is_there(&catalogue, &name, "f9999999") == Some(false));
                    true
                }
            }
        });
        let known = known.count() as u64;
        assert!((40..DIRS).contains(&known), "{known}");
        let extents = catalogue.extents().unwrap();
        assert!(extents.directories == DIRS + 1 && extents.bytes <= 4 << 20, "{extents:?}");
    }
}
