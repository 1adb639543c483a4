//! Finding files by inode number on filesystems that cannot open them by number: by walking the branch.
//!
//! Anybody may ask for an id that leads nowhere, and for as many of them as he likes. So one thread walks, one branch at a
//! time, for all that are wanted there, and nobody waits for it in a worker: who asks is told to come again
//! ([`Cause::Walk`]). Between two walks the thread rests as long as the last one took.

use super::StableTarget;
use canopy_base::error::{Cause, Error, Result};
use canopy_base::hash::HashMap;
use canopy_base::ids::{BranchId, NodeId};
use canopy_base::lock::rank;
use canopy_base::lock::ranked::Mutex;
use canopy_base::path::{PoolPath, join, split};
use canopy_branch::branch::Branch;
use canopy_branch::fs::walk::{Visited, walk};
use canopy_branch::fs::{beneath, stat};
use canopy_sys::thread::sched;
use rustix::fs::{OFlags, RawDir};
use rustix::io::Errno;
use std::mem::MaybeUninit;
use std::ops::ControlFlow;
use std::sync::{Arc, Weak};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// A client that asks after a restart asks for many files: the result of a walk is dropped after this time without a
/// use.
const KEEP_UNUSED: Duration = Duration::from_secs(30);

/// The most names that are remembered, at about 20 bytes each.
const MAX_NAMES: usize = 4 << 20;

/// The most ids that are searched for at once.
const MAX_WANTED: usize = 1024;

/// How long the end of a search is remembered. An id says when its file was born, so one that leads nowhere does not lead
/// to a file later; and who is told to come again comes sooner.
const REMEMBERED: Duration = Duration::from_secs(20);
/// How many are remembered.
const MAX_ENDED: usize = 16 * MAX_WANTED;

/// The longest rest between two walks.
const LONGEST_REST: Duration = Duration::from_secs(5);

/// The walking thread gives way to those that serve requests.
const NICE: i32 = 10;

#[derive(Default)]
pub(crate) struct InodeSearch(Arc<Mutex<Searches, rank::Leaf>>);

/// What a search is for.
type Wanted = (BranchId, NodeId);

#[derive(Default)]
struct Searches {
    wanted: HashMap<Wanted, Wish>,
    ended: HashMap<Wanted, Ended>,
    /// The thread that walks, while there is one.
    thread: Option<Thread>,
}

struct Wish {
    branch: Arc<Branch>,
    target: StableTarget,
    since: Instant,
}

struct Ended {
    at: Instant,
    found: Result<Option<PoolPath>, Errno>,
}

impl InodeSearch {
    /// Returns a path on a branch that leads to a file; `None` if the file is not there.
    ///
    /// Errors: [`Error::Wait`] until it has been searched for; `ETIMEDOUT` if too many are.
    pub(crate) fn path(&self, branch: &Arc<Branch>, target: StableTarget) -> Result<Option<PoolPath>> {
        let wanted = (branch.id, target.id);
        let known = self.0.lock().ended.get(&wanted).and_then(Ended::recent);
        match known {
            Some(Ok(None)) => return Ok(None),
            Some(Ok(Some(path))) if leads_to(branch, &path, target) => return Ok(Some(path)),
            // It has moved since.
            Some(Ok(Some(_))) => drop(self.0.lock().ended.remove(&wanted)),
            Some(Err(errno)) => {
                self.0.lock().ended.remove(&wanted);
                return Err(errno.into());
            }
            None => {}
        }
        let mut searches = self.0.lock();
        if searches.wanted.len() >= MAX_WANTED && !searches.wanted.contains_key(&wanted) {
            return Err(Errno::TIMEDOUT.into());
        }
        let wish = || Wish { branch: Arc::clone(branch), target, since: Instant::now() };
        searches.wanted.entry(wanted).or_insert_with(wish);
        match &searches.thread {
            Some(thread) => thread.unpark(),
            None => {
                let weak = Arc::downgrade(&self.0);
                let thread = std::thread::Builder::new().name("inode-search".into());
                let started = thread.spawn(move || search(&weak)).map_err(|_| Errno::AGAIN)?;
                searches.thread = Some(started.thread().clone());
            }
        }
        Err(Error::Wait(Cause::Walk(branch.id)))
    }
}

impl Ended {
    fn recent(&self) -> Option<Result<Option<PoolPath>, Errno>> {
        (self.at.elapsed() < REMEMBERED).then(|| self.found.clone())
    }
}

impl Searches {
    /// Returns what is wanted of the branch for which something has been wanted longest.
    fn round(&self) -> Option<(Arc<Branch>, Vec<StableTarget>, Instant)> {
        let first = self.wanted.values().min_by_key(|wish| wish.since)?;
        let of_branch = || self.wanted.values().filter(|wish| wish.branch.id == first.branch.id);
        let latest = of_branch().map(|wish| wish.since).max()?;
        Some((Arc::clone(&first.branch), of_branch().map(|wish| wish.target).collect(), latest))
    }

    fn end(&mut self, branch: BranchId, target: StableTarget, found: Result<Option<PoolPath>, Errno>) {
        let now = Instant::now();
        if self.ended.len() >= MAX_ENDED {
            self.ended.retain(|_, ended| now.duration_since(ended.at) < REMEMBERED);
        }
        // Else the oldest would have to go, before those who asked have come again.
        if self.ended.len() < MAX_ENDED {
            self.ended.insert((branch, target.id), Ended { at: now, found });
        }
        self.wanted.remove(&(branch, target.id));
    }
}

/// Searches until nothing has been wanted for a while.
fn search(searches: &Weak<Mutex<Searches, rank::Leaf>>) {
    sched::start_afresh();
    // Without it, the thread only competes on equal terms.
    let _ = rustix::process::setpriority_process(None, NICE);
    let mut seen: Option<SeenInodes> = None;
    let mut rests_until = Instant::now();
    loop {
        let Some(shared) = searches.upgrade() else { return };
        let round = shared.lock().round();
        let Some((branch, mut targets, latest)) = round else {
            drop(shared);
            let began = Instant::now();
            std::thread::park_timeout(KEEP_UNUSED);
            let Some(shared) = searches.upgrade() else { return };
            let mut state = shared.lock();
            if state.wanted.is_empty() && began.elapsed() >= KEEP_UNUSED {
                state.thread = None;
                state.ended = HashMap::default();
                return;
            }
            continue;
        };
        let end = |target, found| shared.lock().end(branch.id, target, found);
        if let Some(seen) = seen.as_ref().filter(|seen| seen.branch == branch.id) {
            for (target, path) in seen.find(&branch, &targets) {
                targets.retain(|other| *other != target);
                end(target, Ok(Some(path)));
            }
            if seen.complete && seen.started_at > latest {
                targets.drain(..).for_each(|target| end(target, Ok(None)));
            }
        }
        if targets.is_empty() {
            continue;
        }
        std::thread::sleep(rests_until.saturating_duration_since(Instant::now()));
        let walked = SeenInodes::by_walking(&branch, &targets);
        let (walked, mut found) = match walked {
            Ok((walked, found)) => (&*seen.insert(walked), found),
            Err(errno) => {
                targets.drain(..).for_each(|target| end(target, Err(errno)));
                continue;
            }
        };
        rests_until = Instant::now() + walked.started_at.elapsed().min(LONGEST_REST);
        targets.drain(..).for_each(|target| end(target, Ok(found.remove(&target.id))));
    }
}

/// What the last walk has seen.
struct SeenInodes {
    branch: BranchId,
    started_at: Instant,
    /// Every name has been remembered.
    complete: bool,
    dirs: Vec<PoolPath>,
    /// For each inode number, the index of a directory that has a name for it.
    places: HashMap<u64, u32>,
}

impl SeenInodes {
    /// Walks over a branch. Returns what was seen, and the paths of the wanted files that were.
    fn by_walking(
        branch: &Branch,
        targets: &[StableTarget],
    ) -> Result<(SeenInodes, HashMap<NodeId, PoolPath>), Errno> {
        let mut seen = SeenInodes {
            branch: branch.id,
            started_at: Instant::now(),
            complete: true,
            dirs: Vec::new(),
            places: HashMap::default(),
        };
        let wanted = by_number(targets);
        let mut found = HashMap::default();
        walk(branch.root(), branch.dev, |visited| {
            for target in wanted.get(&visited.ino).into_iter().flatten() {
                let path = || join(visited.dir, visited.name);
                if !found.contains_key(&target.id) && leads_to(branch, &path(), *target) {
                    found.insert(target.id, path());
                }
            }
            seen.remember(visited);
            if seen.complete || found.len() < targets.len() {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
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

    /// Returns the paths of those of the files that were seen and are still there. Reads each directory once.
    fn find(&self, branch: &Branch, targets: &[StableTarget]) -> Vec<(StableTarget, PoolPath)> {
        let mut by_dir: HashMap<u32, Vec<StableTarget>> = HashMap::default();
        for target in targets {
            if let Some(dir) = self.places.get(&target.ino) {
                by_dir.entry(*dir).or_default().push(*target);
            }
        }
        let mut found = Vec::new();
        for (dir, targets) in by_dir {
            let (dir, wanted) = (&self.dirs[dir as usize], by_number(&targets));
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
            let Ok(opened) = beneath::open(branch.root(), dir, flags) else { continue };
            let mut buffer = [MaybeUninit::uninit(); 32768];
            let mut entries = RawDir::new(&opened, &mut buffer);
            while let Some(Ok(entry)) = entries.next() {
                for target in wanted.get(&entry.ino()).into_iter().flatten() {
                    let path = join(dir, entry.file_name().to_bytes());
                    if leads_to(branch, &path, *target) {
                        found.push((*target, path));
                    }
                }
            }
        }
        found
    }
}

fn by_number(targets: &[StableTarget]) -> HashMap<u64, Vec<StableTarget>> {
    let mut wanted: HashMap<u64, Vec<StableTarget>> = HashMap::default();
    targets.iter().for_each(|target| wanted.entry(target.ino).or_default().push(*target));
    wanted
}

/// Returns whether a path on a branch leads to a file.
fn leads_to(branch: &Branch, path: &[u8], target: StableTarget) -> bool {
    let (dir, name) = split(path);
    let attr = beneath::dir(branch.root(), dir).and_then(|dir| stat::at(dir, name));
    attr.is_ok_and(|attr| target.is(branch, attr.key()).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use canopy_branch::branch;
    use canopy_branch::branch::Branches;
    use canopy_branch::branch::list::{BranchList, BranchSpec};
    use std::fs;
    use std::os::unix::fs::MetadataExt as _;

    /// Asks again until there is an answer, as the transport does.
    fn path(search: &InodeSearch, branch: &Arc<Branch>, target: StableTarget) -> Option<PoolPath> {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            match search.path(branch, target) {
                Err(Error::Wait(Cause::Walk(id))) if id == branch.id && Instant::now() < until => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                other => return other.unwrap(),
            }
        }
    }

    #[test]
    fn one_thread_searches_for_all_and_remembers_what_is_not_there() {
        let home = tempfile::tempdir().unwrap();
        fs::create_dir_all(home.path().join("a/b")).unwrap();
        fs::write(home.path().join("a/b/file"), "").unwrap();
        let spec = BranchSpec { path: home.path().to_owned(), mode: branch::Mode::Rw, min_free: None };
        let branches = Branches::open(&std::iter::once(spec).collect::<BranchList>()).unwrap();
        let branch = branches.iter().next().unwrap();
        if !branch.stable_inodes {
            return;
        }
        let search = InodeSearch::default();
        let key = stat::at(branch.root(), b"a/b/file").unwrap().key();
        let id = super::super::StableId::of(branch, key).unwrap().id;
        let target = StableTarget::of(id).unwrap();
        let first = search.path(branch, target);
        assert_eq!(first, Err(Error::Wait(Cause::Walk(branch.id))));
        assert_eq!(path(&search, branch, target).unwrap().as_slice(), b"a/b/file");
        // Moved since: what was remembered is not trusted.
        fs::rename(home.path().join("a/b/file"), home.path().join("a/other")).unwrap();
        assert_eq!(path(&search, branch, target).unwrap().as_slice(), b"a/other");
        // Another file with this number, and a number that nothing has: both lead nowhere, and are not searched for again.
        let ino = fs::metadata(home.path().join("a/other")).unwrap().ino();
        for made_up in [NodeId(id.0 ^ 1), NodeId(id.0 ^ (ino << 13) ^ ((ino ^ (1 << 38)) << 13))] {
            let made_up = StableTarget::of(made_up).unwrap();
            assert_eq!(path(&search, branch, made_up), None);
            assert_eq!(search.path(branch, made_up), Ok(None));
        }
        // A flood is bounded.
        let flood =
            (0..2 * MAX_WANTED as u64).map(|n| StableTarget::of(NodeId(id.0 ^ (n + 2) << 20)).unwrap());
        let bounded = |found| found == Err(Error::Branch(Errno::TIMEDOUT));
        let refused = flood.filter(|target| bounded(search.path(branch, *target))).count();
        assert!(search.0.lock().wanted.len() <= MAX_WANTED, "{refused}");
    }
}
