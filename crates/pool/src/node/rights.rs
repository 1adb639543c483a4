//! Who may make the copies of a file differ, and who may claim that they are equal: never both at once.
//!
//! Every copy is on some branch, so a right is one to a set of files. Two rights to the same file exclude each other, whichever
//! node or name their holders know it by.

use canopy_base::lock::rank;
use canopy_base::lock::ranked::{Condvar, Hold, Mutex};
use canopy_branch::fs::stat::FileKey;
use smallvec::SmallVec;

/// The files to which somebody has a right now.
#[derive(Default)]
pub(crate) struct Rights {
    held: Mutex<SmallVec<[FileKey; 8]>, rank::Leaf>,
    freed: Condvar,
}

/// The right to change the data of one copy, so that it differs from all others. It is held until they are known to be out of
/// date, and for the change itself where no open descriptor keeps the mover away.
pub(crate) struct WriteRight<'r> {
    _held: HeldFiles<'r>,
}

/// The right to claim that copies are equal: to change all of them, or to make one.
pub(crate) struct CopyRight<'r> {
    _held: HeldFiles<'r>,
}

struct HeldFiles<'r> {
    _order: Hold<rank::CopyRight>,
    rights: &'r Rights,
    files: SmallVec<[FileKey; 2]>,
}

impl Rights {
    /// Waits until nobody has a right to the file. The thread has none.
    pub(crate) fn to_write(&self, file: FileKey) -> WriteRight<'_> {
        WriteRight { _held: self.hold(std::iter::once(file)) }
    }

    /// Waits until nobody has a right to any of the files. The thread has none.
    pub(crate) fn to_copy(&self, files: impl IntoIterator<Item = FileKey>) -> CopyRight<'_> {
        CopyRight { _held: self.hold(files.into_iter()) }
    }

    /// All at once, so nobody who waits keeps others waiting.
    fn hold(&self, files: impl Iterator<Item = FileKey>) -> HeldFiles<'_> {
        let order = Hold::take();
        let files: SmallVec<[FileKey; 2]> = files.collect();
        let mut held = self.held.lock();
        while files.iter().any(|file| held.contains(file)) {
            self.freed.wait(&mut held);
        }
        held.extend(files.iter().copied());
        HeldFiles { _order: order, rights: self, files }
    }
}

impl Drop for HeldFiles<'_> {
    fn drop(&mut self) {
        self.rights.held.lock().retain(|file| !self.files.contains(file));
        self.rights.freed.notify_all();
    }
}
