//! Finding files by inode number on filesystems that cannot open them by number: by walking the branch.

use crate::branch::Branch;
use crate::fs::beneath;
use crate::fs::walk::{Visited, walk};
use crate::hash::HashMap;
use crate::ids::BranchId;
use crate::lock::rank;
use crate::lock::ranked::Mutex;
use crate::path::{PoolPath, join};
use canopy_sys::sched;
use rustix::fs::{OFlags, RawDir};
use rustix::io::Errno;
use std::mem::MaybeUninit;
use std::ops::ControlFlow;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// A client that asks after a restart asks for many files: the result of a walk is dropped after this time without a
/// use.
const KEEP_UNUSED: Duration = Duration::from_secs(30);

/// The most names that are remembered, at about 20 bytes each.
const MAX_NAMES: usize = 4 << 20;

/// One walk runs at a time. How long a thread waits for another thread's walk.
const MAX_WAIT: Duration = Duration::from_secs(60);

#[derive(Default)]
pub(crate) struct InodeSearch(Arc<Mutex<Option<SeenInodes>, rank::InodeSearch>>);

/// What the last walk has seen.
struct SeenInodes {
    branch: BranchId,
    started_at: Instant,
    /// Every name has been remembered.
    complete: bool,
    dirs: Vec<PoolPath>,
    /// For each inode number, the index of a directory that has a name for it.
    places: HashMap<u64, u32>,
    used: bool,
}

impl InodeSearch {
    /// Returns a path on a branch that leads to an inode number and that `accept` confirms.
    ///
    /// Errors: `ETIMEDOUT` if another thread's walk does not end in time.
    pub(crate) fn path(
        &self,
        branch: &Branch,
        ino: u64,
        mut accept: impl FnMut(&[u8]) -> bool,
    ) -> Result<Option<PoolPath>, Errno> {
        let requested_at = Instant::now();
        let mut slot = self.0.try_lock_for(MAX_WAIT).ok_or(Errno::TIMEDOUT)?;
        if let Some(seen) = slot.as_mut().filter(|seen| seen.branch == branch.id) {
            seen.used = true;
            let found = seen.path(branch, ino, &mut accept);
            if found.is_some() || seen.complete && seen.started_at > requested_at {
                return Ok(found);
            }
        }
        let (seen, found) = SeenInodes::by_walking(branch, ino, accept)?;
        let replaced = slot.replace(seen);
        if replaced.is_none() {
            let weak = Arc::downgrade(&self.0);
            let thread = std::thread::Builder::new().name("inode-search".into());
            if thread.spawn(move || drop_unused(&weak)).is_err() {
                *slot = None;
            }
        }
        drop(slot);
        drop(replaced);
        Ok(found)
    }
}

impl SeenInodes {
    fn by_walking(
        branch: &Branch,
        ino: u64,
        mut accept: impl FnMut(&[u8]) -> bool,
    ) -> Result<(SeenInodes, Option<PoolPath>), Errno> {
        let mut seen = SeenInodes {
            branch: branch.id,
            started_at: Instant::now(),
            complete: true,
            dirs: Vec::new(),
            places: HashMap::default(),
            used: true,
        };
        let mut found = None;
        walk(branch.root(), branch.dev, |visited| {
            if found.is_none() && visited.ino == ino {
                let path = join(visited.dir, visited.name);
                found = accept(&path).then_some(path);
            }
            seen.remember(visited);
            match seen.complete || found.is_none() {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        })?;
        Ok((seen, found))
    }

    fn remember(&mut self, visited: &Visited<'_>) {
        if self.places.len() >= MAX_NAMES {
            self.complete = false;
            return;
        }
        if self.dirs.last().is_none_or(|dir| dir.as_slice() != visited.dir) {
            self.dirs.push(PoolPath::from_slice(visited.dir));
        }
        self.places.insert(visited.ino, self.dirs.len() as u32 - 1);
    }

    fn path(&self, branch: &Branch, ino: u64, accept: &mut impl FnMut(&[u8]) -> bool) -> Option<PoolPath> {
        let dir = &self.dirs[*self.places.get(&ino)? as usize];
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
        let opened = beneath::open(branch.root(), dir, flags).ok()?;
        let mut buffer = [MaybeUninit::uninit(); 32768];
        let mut entries = RawDir::new(&opened, &mut buffer);
        while let Some(Ok(entry)) = entries.next() {
            if entry.ino() == ino {
                let path = join(dir, entry.file_name().to_bytes());
                if accept(&path) {
                    return Some(path);
                }
            }
        }
        None
    }
}

fn drop_unused(seen: &Weak<Mutex<Option<SeenInodes>, rank::InodeSearch>>) {
    sched::start_afresh();
    loop {
        std::thread::sleep(KEEP_UNUSED);
        let Some(seen) = seen.upgrade() else { return };
        let mut slot = seen.lock();
        let used = slot.as_mut().is_some_and(|seen| std::mem::take(&mut seen.used));
        if !used {
            let unused = slot.take();
            drop(slot);
            drop(unused);
            return;
        }
    }
}
