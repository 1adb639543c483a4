//! Where files of a branch lie whose filesystem cannot tell: found by walking it.

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

/// Who asks after a restart asks for many: what a walk has seen is remembered until nobody has asked for so long.
const UNUSED: Duration = Duration::from_secs(30);

/// Names that are remembered, at about 20 bytes each.
const NAMES: usize = 4 << 20;

/// Only one walk goes on at a time. Who has waited so long for it gives up.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Default)]
pub(crate) struct InodeSearch(Arc<Mutex<Option<SeenInodes>, rank::InodeSearch>>);

/// What the last walk has seen.
struct SeenInodes {
    branch: BranchId,
    begun: Instant,
    /// It has not seen more than is remembered.
    complete: bool,
    dirs: Vec<PoolPath>,
    /// By inode number, one of the directories that name it.
    places: HashMap<u64, u32>,
    used: bool,
}

impl InodeSearch {
    /// A path on a branch that leads to an inode number, and that `is_it` takes.
    ///
    /// Errors: `ETIMEDOUT` when somebody else's walk does not come to its end.
    pub(crate) fn path(
        &self,
        branch: &Branch,
        ino: u64,
        mut is_it: impl FnMut(&[u8]) -> bool,
    ) -> Result<Option<PoolPath>, Errno> {
        let asked = Instant::now();
        let mut slot = self.0.try_lock_for(PATIENCE).ok_or(Errno::TIMEDOUT)?;
        if let Some(seen) = slot.as_mut().filter(|seen| seen.branch == branch.id) {
            seen.used = true;
            let found = seen.path(branch, ino, &mut is_it);
            if found.is_some() || seen.complete && seen.begun > asked {
                return Ok(found);
            }
        }
        let (seen, found) = SeenInodes::by_walking(branch, ino, is_it)?;
        let replaced = slot.replace(seen);
        if replaced.is_none() {
            let weak = Arc::downgrade(&self.0);
            let thread = std::thread::Builder::new().name("walks".into());
            if thread.spawn(move || forget(&weak)).is_err() {
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
        mut is_it: impl FnMut(&[u8]) -> bool,
    ) -> Result<(SeenInodes, Option<PoolPath>), Errno> {
        let mut seen = SeenInodes {
            branch: branch.id,
            begun: Instant::now(),
            complete: true,
            dirs: Vec::new(),
            places: HashMap::default(),
            used: true,
        };
        let mut found = None;
        walk(branch.root(), branch.dev, |visited| {
            if found.is_none() && visited.ino == ino {
                let path = join(visited.dir, visited.name);
                found = is_it(&path).then_some(path);
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
        if self.places.len() >= NAMES {
            self.complete = false;
            return;
        }
        if self.dirs.last().is_none_or(|dir| dir.as_slice() != visited.dir) {
            self.dirs.push(PoolPath::from_slice(visited.dir));
        }
        self.places.insert(visited.ino, self.dirs.len() as u32 - 1);
    }

    fn path(&self, branch: &Branch, ino: u64, is_it: &mut impl FnMut(&[u8]) -> bool) -> Option<PoolPath> {
        let dir = &self.dirs[*self.places.get(&ino)? as usize];
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
        let opened = beneath::open(branch.root(), dir, flags).ok()?;
        let mut buffer = [MaybeUninit::uninit(); 32768];
        let mut entries = RawDir::new(&opened, &mut buffer);
        while let Some(Ok(entry)) = entries.next() {
            if entry.ino() == ino {
                let path = join(dir, entry.file_name().to_bytes());
                if is_it(&path) {
                    return Some(path);
                }
            }
        }
        None
    }
}

fn forget(seen: &Weak<Mutex<Option<SeenInodes>, rank::InodeSearch>>) {
    sched::unpin();
    loop {
        std::thread::sleep(UNUSED);
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
