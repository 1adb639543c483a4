//! Files that are being written on the branches, by programs that use the pool (passthrough) or do not, or by this process.
//!
//! The first write after a read of the queue is reported (`FAN_MODIFY`); to report each would cost each a microsecond. So a
//! file that goes on being written is marked: its writes are not reported, and its attributes are not cached
//! ([`WrittenFiles`]) until it is closed, which is reported and ends the mark. Another program may go on writing then: its
//! next writes are reported again.
//!
//! In this order, so that a write is reported or the attributes are not cached: a file is added to [`WrittenFiles`], told to
//! have changed, marked; and the mark ends, the file is removed, and told to have changed.

use crate::coherence::{WRITTEN_FILES, WrittenFiles};
use canopy_branch::fs::stat::{self, FileKey};
use canopy_branch::relocate::lease;
use canopy_sys::fanotify::{self, Target};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::collections::HashMap;
use std::sync::Arc;

/// A file: its filesystem, and its file handle there.
type Handle = (u64, Box<[u8]>);

enum Stage {
    /// So many writes were reported.
    Reported(u8),
    /// The writes are not reported.
    Marked(FileKey),
}

/// So many writes of a file are reported before it is marked. Most files are written at once, have their times set, and are
/// closed; to mark one costs some ten microseconds.
const FEW: u8 = 3;

/// The files that are being written, as far as it is known. Files beyond [`WRITTEN_FILES`] make all be forgotten.
pub(super) struct Writers {
    written: Arc<WrittenFiles>,
    files: HashMap<Handle, Stage>,
}

fn handle(file: Target<'_>) -> Handle {
    (file.fsid, file.handle.into())
}

impl Writers {
    pub(super) fn new(written: Arc<WrittenFiles>) -> Writers {
        Writers { written, files: HashMap::new() }
    }

    /// Records that a write was reported, and no close since. Returns whether the file should be marked.
    pub(super) fn wrote(&mut self, file: Target<'_>) -> bool {
        match self.files.entry(handle(file)).or_insert(Stage::Reported(0)) {
            Stage::Reported(times) => {
                *times = times.saturating_add(1);
                *times > FEW
            }
            Stage::Marked(_) => false,
        }
    }

    /// Returns whether writes of a file on the filesystem with this device number are not reported.
    pub(super) fn any_marked(&self, dev: u64) -> bool {
        self.files.values().any(|stage| matches!(stage, Stage::Marked(key) if key.dev == dev))
    }

    /// Returns whether there are too many files, so that [`Writers::forget`] is due.
    pub(super) fn is_full(&mut self) -> bool {
        if self.files.len() < WRITTEN_FILES {
            return false;
        }
        // Most of them were truncated by name, or are gone: nobody closes them.
        self.files.retain(|_, stage| matches!(stage, Stage::Marked(_)));
        self.files.len() > WRITTEN_FILES / 2
    }

    /// Prepares to mark a file, if it is open for writing: otherwise nobody would tell when it is closed. The caller tells
    /// that it has changed, then calls [`Writers::mark`].
    pub(super) fn prepare(&mut self, file: Target<'_>, opened: BorrowedFd<'_>) -> bool {
        let Some(attr) = stat::of(opened).ok().filter(|attr| !attr.is_dir()) else { return false };
        // To open a pipe or a device would do something to it, and only who has it open writes it.
        if attr.is_regular() && !lease::is_written_now(opened) {
            self.files.remove(&handle(file));
            return false;
        }
        self.written.add(attr.key());
        self.files.insert(handle(file), Stage::Marked(attr.key()));
        true
    }

    /// Marks a file that was prepared.
    pub(super) fn mark(&mut self, group: BorrowedFd<'_>, file: Target<'_>, opened: BorrowedFd<'_>) {
        if let Err(why) = fanotify::ignore_writes(group, opened, true) {
            tracing::debug!("all writes of a file are reported: {why}");
            self.end(file);
        }
    }

    /// Records that a file was closed. Returns whether it was marked; the caller then tells that it has changed.
    pub(super) fn closed(
        &mut self,
        group: BorrowedFd<'_>,
        file: Target<'_>,
        open: impl FnOnce() -> Option<OwnedFd>,
    ) -> bool {
        if self.files.is_empty() {
            return false;
        }
        let marked = matches!(self.files.get(&handle(file)), Some(Stage::Marked(_)));
        // If it is gone, so is its mark.
        if let Some(opened) = marked.then(open).flatten() {
            let _ = fanotify::ignore_writes(group, opened.as_fd(), false);
        }
        self.end(file);
        marked
    }

    fn end(&mut self, file: Target<'_>) {
        if let Some(Stage::Marked(key)) = self.files.remove(&handle(file)) {
            self.written.remove(key);
        }
    }

    /// Forgets all files, and ends all marks. The caller tells that whatever answers in progress contain may have changed.
    pub(super) fn forget(&mut self, group: Option<BorrowedFd<'_>>) {
        if self.files.is_empty() {
            return;
        }
        if let Some(group) = group {
            fanotify::ignore_nothing(group);
        }
        for stage in std::mem::take(&mut self.files).into_values() {
            if let Stage::Marked(key) = stage {
                self.written.remove(key);
            }
        }
    }
}
