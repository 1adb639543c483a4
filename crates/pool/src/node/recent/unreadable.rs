//! Copies that their disk could not read while another one could be read: clients get the other, and these are to be made again.

use canopy_base::hash::HashMap;
use canopy_base::ids::BranchId;
use canopy_base::lock::rank;
use canopy_base::lock::ranked::Mutex;
use canopy_base::path::PoolPath;
use canopy_branch::fs::stat::FileKey;
use canopy_branch::journal::Change;
use std::sync::atomic::{AtomicBool, Ordering};

/// The most copies that are remembered. What is beyond is out of date on its disk all the same.
const MOST: usize = 1000;

#[derive(Default)]
pub(crate) struct Unreadable {
    /// Nobody looks at the list as long as it is empty.
    any: AtomicBool,
    copies: Mutex<HashMap<FileKey, Copy>, rank::Leaf>,
}

struct Copy {
    branch: BranchId,
    names: Vec<PoolPath>,
}

impl Unreadable {
    pub(crate) fn put(&self, file: FileKey, branch: BranchId, names: Vec<PoolPath>) {
        let mut copies = self.copies.lock();
        if copies.len() < MOST || copies.contains_key(&file) {
            copies.insert(file, Copy { branch, names });
            self.any.store(true, Ordering::Relaxed);
        }
    }

    fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    pub(crate) fn holds(&self, file: FileKey) -> bool {
        self.any() && self.copies.lock().contains_key(&file)
    }

    /// Returns how many copies a branch has that are still to be made again.
    pub(crate) fn count(&self, branch: BranchId) -> usize {
        if self.any() { self.copies.lock().values().filter(|copy| copy.branch == branch).count() } else { 0 }
    }

    /// Records that a file has got another copy.
    pub(crate) fn made_again(&self, names: &[PoolPath]) {
        self.update(|copy| !copy.names.iter().any(|name| names.contains(name)));
    }

    /// Records a change of names: it may take old copies away. Costs one load as a rule.
    pub(crate) fn changed(&self, change: impl FnOnce() -> Change) {
        if !self.any() {
            return;
        }
        let change = change();
        self.update(|copy| {
            match &change {
                Change::Clear(path) => copy.names.retain(|name| !is_within(name, path)),
                Change::Rename(from, to) => {
                    // A rename of a file takes only what is up to date along, and one of a directory all.
                    copy.names.retain(|name| name != from && !is_within(name, to));
                    copy.names.iter_mut().for_each(|name| rename(name, from, to));
                }
                Change::Exchange(one, other) => copy.names.iter_mut().for_each(|name| {
                    let (from, to) = if is_within(name, one) { (one, other) } else { (other, one) };
                    rename(name, from, to);
                }),
                Change::MakeDir(_) | Change::Link(..) | Change::Attributes(_) => {}
            }
            !copy.names.is_empty()
        });
    }

    fn update(&self, mut stays: impl FnMut(&mut Copy) -> bool) {
        if self.any() {
            let mut copies = self.copies.lock();
            copies.retain(|_, copy| stays(copy));
            self.any.store(!copies.is_empty(), Ordering::Relaxed);
        }
    }
}

/// Returns what follows a path in the name of something that is there or below.
fn below<'n>(name: &'n [u8], path: &[u8]) -> Option<&'n [u8]> {
    name.strip_prefix(path).filter(|rest| rest.is_empty() || rest[0] == b'/')
}

fn is_within(name: &[u8], path: &[u8]) -> bool {
    below(name, path).is_some()
}

fn rename(name: &mut PoolPath, from: &[u8], to: &[u8]) {
    if let Some(rest) = below(name, from) {
        *name = [to, rest].concat().into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(name: &str) -> PoolPath {
        PoolPath::from_slice(name.as_bytes())
    }

    fn key(ino: u64) -> FileKey {
        FileKey { dev: 1, ino, birth: (0, 0) }
    }

    #[test]
    fn a_copy_is_remembered_until_it_is_made_again_or_its_last_name_is_gone() {
        let all = Unreadable::default();
        let list = || [1, 2, 3].map(|ino| all.holds(key(ino)));
        all.put(key(1), BranchId(0), vec![path("d/a"), path("link")]);
        all.put(key(2), BranchId(0), vec![path("d/b")]);
        all.put(key(3), BranchId(1), vec![path("da")]);
        assert_eq!((list(), all.count(BranchId(0)), all.count(BranchId(1))), ([true; 3], 2, 1));
        all.changed(|| Change::Rename(path("d"), path("e")));
        all.changed(|| Change::Clear(path("e/a")));
        assert_eq!(list(), [true; 3], "it has another name");
        all.made_again(&[path("e/b")]);
        assert_eq!(list(), [true, false, true]);
        all.changed(|| Change::Clear(path("link")));
        all.changed(|| Change::Rename(path("x"), path("da")));
        assert_eq!(list(), [false; 3], "the last one was replaced");
        assert_eq!(all.count(BranchId(1)), 0);
    }

    #[test]
    fn a_rename_of_a_file_leaves_an_old_copy_behind_and_an_exchange_of_directories_takes_it_along() {
        let all = Unreadable::default();
        all.put(key(1), BranchId(0), vec![path("a")]);
        all.put(key(2), BranchId(0), vec![path("d/b")]);
        all.changed(|| Change::Rename(path("a"), path("c")));
        all.changed(|| Change::Exchange(path("d"), path("e")));
        all.made_again(&[path("d/b")]);
        assert_eq!([1, 2].map(|ino| all.holds(key(ino))), [false, true]);
        all.made_again(&[path("e/b")]);
        assert_eq!(all.count(BranchId(0)), 0);
    }
}
