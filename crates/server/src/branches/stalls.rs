//! Requests whose workers are stuck, and the branches that they are stuck in.
//!
//! The transport reports a request once its worker has been in it for some ticks. Which branch the worker waits for
//! shows in the system call that it is blocked in ([`blocked_call`]): the call has a descriptor, and the descriptor a
//! mount. Of a call that has none, as close(2), or where the kernel does not say, the worker's own word counts, which it gave at
//! the [`gate`]. [`Stalls::look`] finds that out on another thread, because with `landlock` the transport's threads cannot
//! read /proc. None of this touches a branch.

use crate::lock_rank as rank;
use canopy_base::lock::ranked::Mutex;
use canopy_branch::branch::health::contact::Waiting;
use canopy_branch::branch::{BranchId, Branches, gate};
use canopy_branch::tend::Waker;
use canopy_pool::Pool;
use canopy_pool::ops;
use canopy_sys::mountinfo;
use canopy_sys::thread::blocked_call::{self, BlockedCall, Target};
use rustix::process::Pid;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

pub(crate) struct Stalls {
    pool: Arc<Pool>,
    /// The stuck requests, by their numbers.
    requests: Mutex<HashMap<u64, StuckRequest>, rank::Leaf>,
    /// Has `look` called.
    looker: OnceLock<Waker>,
}

#[derive(Clone)]
struct StuckRequest {
    thread: Pid,
    began: Instant,
    /// Answered in the worker's place.
    answered: bool,
    /// The branch of the file that the request has open.
    file: Option<BranchId>,
    /// The call that `place` was found by.
    call: Option<BlockedCall>,
    place: BlockedOn,
    /// When it was last seen to wait for a branch.
    at_branch: Option<Instant>,
}

impl StuckRequest {
    fn is_at_branch(&self, since: Instant) -> bool {
        matches!(self.place, BlockedOn::Branches(_)) || self.at_branch.is_some_and(|at| at >= since)
    }
}

/// What a worker waits for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum BlockedOn {
    /// Nothing at this moment: it runs, or waits for a processor. Or not known yet.
    Unknown,
    /// Another thread, which holds a lock.
    Thread,
    /// Usually one branch. Two for a call that reads one and writes the other.
    Branches(Vec<BranchId>),
    /// No branch, or the kernel does not say.
    Elsewhere,
}

impl Stalls {
    pub(crate) fn new(pool: &Arc<Pool>) -> Stalls {
        Stalls { pool: Arc::clone(pool), requests: Mutex::default(), looker: OnceLock::new() }
    }

    /// Sets what has [`Self::look`] called, so that the first report does.
    pub(super) fn set_looker(&self, looker: Waker) {
        let _ = self.looker.set(looker);
    }

    /// Records that a worker has been in a request for this long. `thread` is the worker's, as gettid(2) returns it;
    /// `file` the branch of the file that the request has open; `answered` whether it was answered in the worker's place.
    pub(crate) fn stalled(
        &self,
        unique: u64,
        thread: i32,
        age: Duration,
        file: Option<BranchId>,
        answered: bool,
    ) {
        let Some(thread) = Pid::from_raw(thread) else { return };
        let mut requests = self.requests.lock();
        if let Some(known) = requests.get_mut(&unique) {
            known.answered = answered;
            return;
        }
        let now = Instant::now();
        let began = now.checked_sub(age).unwrap_or(now);
        let request = StuckRequest {
            thread,
            began,
            answered,
            file,
            call: None,
            place: BlockedOn::Unknown,
            at_branch: None,
        };
        requests.insert(unique, request);
        drop(requests);
        if let Some(looker) = self.looker.get() {
            looker.wake();
        }
    }

    /// Records that the worker has come out of the request.
    pub(crate) fn resumed(&self, unique: u64) {
        let ended = self.requests.lock().remove(&unique);
        if let Some(ended) = ended {
            has_returned(&ops::settings::branches(&self.pool), &ended.place);
        }
    }

    /// Returns what the worker of a request waits for.
    pub(crate) fn place(&self, unique: u64) -> BlockedOn {
        self.requests.lock().get(&unique).map_or(BlockedOn::Unknown, |request| request.place.clone())
    }

    /// Finds out where the stuck workers are. Returns after how long to look again, if there is reason to.
    pub(super) fn look(&self) -> Option<Duration> {
        let stuck: Vec<(u64, StuckRequest)> =
            self.requests.lock().iter().map(|(unique, request)| (*unique, request.clone())).collect();
        let mut pause = None;
        if stuck.is_empty() {
            return pause;
        }
        let branches = ops::settings::branches(&self.pool);
        for (unique, request) in stuck {
            let found = find(&branches, &request);
            let mut requests = self.requests.lock();
            let known = matches!(found, None | Some((_, BlockedOn::Branches(_) | BlockedOn::Elsewhere)));
            let again = if known { KNOWN_PAUSE } else { UNKNOWN_PAUSE };
            pause = Some(pause.map_or(again, |pause: Duration| pause.min(again)));
            // It may have ended meanwhile.
            let (Some((call, place)), Some(request)) = (found, requests.get_mut(&unique)) else {
                continue;
            };
            request.call = call;
            let before = std::mem::replace(&mut request.place, place);
            if [&before, &request.place].iter().any(|place| matches!(place, BlockedOn::Branches(_))) {
                request.at_branch = Some(Instant::now());
            }
            drop(requests);
            has_returned(&branches, &before);
        }
        pause
    }

    /// Returns what waits for each branch.
    pub(super) fn waiting(&self) -> HashMap<BranchId, Waiting> {
        let mut found: HashMap<BranchId, Waiting> = HashMap::new();
        for request in self.requests.lock().values() {
            let BlockedOn::Branches(branches) = &request.place else { continue };
            for branch in branches {
                let of_branch = found.entry(*branch).or_insert(Waiting { requests: 0, since: request.began });
                of_branch.requests += usize::from(!request.answered);
                of_branch.since = of_branch.since.min(request.began);
            }
        }
        found
    }

    /// Returns whether there are stuck requests, and each whose caller waits has waited for a branch since then, or waits for
    /// another thread while one waits for a branch.
    pub(crate) fn all_wait_for_branches(&self, since: Instant) -> bool {
        let requests = self.requests.lock();
        let any = requests.values().any(|request| request.is_at_branch(since));
        any && requests
            .values()
            .filter(|request| !request.answered)
            .all(|request| request.is_at_branch(since) || request.place == BlockedOn::Thread)
    }
}

/// How soon to look again: while a place is not known, and to see calls return.
const UNKNOWN_PAUSE: Duration = Duration::from_millis(20);
const KNOWN_PAUSE: Duration = Duration::from_millis(100);

/// Records that a call at this place has returned.
fn has_returned(branches: &Branches, place: &BlockedOn) {
    if let BlockedOn::Branches(ids) = place {
        let now = Instant::now();
        for branch in ids.iter().filter_map(|id| branches.by_id(*id)) {
            branch.health.contact(|contact| contact.call_returned(now));
        }
    }
}

/// Finds out what a worker waits for, and by which call; `None` if that is as before, as far as can be told.
fn find(branches: &Branches, request: &StuckRequest) -> Option<(Option<BlockedCall>, BlockedOn)> {
    // RELEASE closes what it has open after it has left the gate.
    let said = || {
        let branch = gate::of_thread(request.thread).or(request.file);
        branch.map_or(BlockedOn::Elsewhere, |branch| BlockedOn::Branches(vec![branch]))
    };
    let call = match blocked_call::of(request.thread) {
        Ok(Some(call)) => call,
        // It runs, or waits for a processor. What it waited for before has answered.
        Ok(None) => return (request.place != BlockedOn::Unknown).then_some((None, BlockedOn::Unknown)),
        Err(_) => return (request.place == BlockedOn::Unknown).then(|| (None, said())),
    };
    if request.call.as_ref() == Some(&call) {
        return None;
    }
    if call.waits_for_a_thread() {
        return Some((Some(call), BlockedOn::Thread));
    }
    let mut found: Vec<BranchId> = Vec::new();
    for branch in call.targets().iter().flat_map(|target| branches_of(branches, target)) {
        if !found.contains(&branch) {
            found.push(branch);
        }
    }
    // If it has gone on, a descriptor may be of another file by now.
    if blocked_call::of(request.thread).ok().flatten().as_ref() != Some(&call) {
        return Some((None, BlockedOn::Unknown));
    }
    Some((Some(call), if found.is_empty() { said() } else { BlockedOn::Branches(found) }))
}

/// Returns the branches that a file may be on: none or one, as a rule. Branches on one mount are told apart by paths, as
/// far as those are known.
fn branches_of(branches: &Branches, target: &Target) -> Vec<BranchId> {
    let by_path = |path: &Path, among: &[BranchId]| {
        let holding = branches.iter().filter(|branch| path.starts_with(&branch.path));
        let holding = holding.filter(|branch| among.is_empty() || among.contains(&branch.id));
        holding.max_by_key(|branch| branch.path.components().count()).map(|branch| branch.id)
    };
    match target {
        Target::Path(path) => by_path(Path::new(OsStr::from_bytes(path)), &[]).into_iter().collect(),
        Target::Descriptor(number) => {
            let Ok(mount) = mountinfo::id_of_number(*number) else { return Vec::new() };
            let on_mount: Vec<BranchId> =
                branches.iter().filter(|branch| branch.is_on_mount(mount)).map(|branch| branch.id).collect();
            if on_mount.len() == 1 {
                return on_mount;
            }
            // A filesystem that is mounted below a branch, or branches that share one.
            let path = std::fs::read_link(format!("/proc/self/fd/{number}")).ok();
            path.and_then(|path| by_path(&path, &on_mount)).map_or(on_mount, |branch| vec![branch])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use canopy_branch::branch::{BranchList, FileSystem};
    use canopy_pool::config::Config;
    use rustix::fs::{Mode, OFlags};
    use std::fs::File;
    use std::sync::mpsc::channel;

    fn pool_of(paths: &[&Path]) -> Arc<Pool> {
        let list: Vec<&str> = paths.iter().map(|path| path.to_str().unwrap()).collect();
        let list = BranchList::parse(std::ffi::OsStr::new(&list.join(":")), &FileSystem).unwrap();
        Arc::new(Pool::new(Config::default(), Branches::open(&list).unwrap()))
    }

    /// A thread that opens a FIFO is stuck in the branch of the FIFO, until somebody opens the other end.
    #[test]
    fn a_stuck_worker_is_found_in_its_branch() {
        let home = tempfile::tempdir().unwrap();
        let dirs = ["a", "b"].map(|name| home.path().join(name));
        dirs.iter().for_each(|dir| std::fs::create_dir(dir).unwrap());
        let fifo = dirs[1].join("fifo");
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, Mode::RWXU).unwrap();
        let pool = pool_of(&[&dirs[0], &dirs[1]]);
        let branch = ops::settings::branches(&pool)[1].clone();
        let stalls = Stalls::new(&pool);
        assert_eq!((stalls.look(), stalls.place(7)), (None, BlockedOn::Unknown));

        let (send, receive) = channel();
        let root = rustix::io::dup(branch.root()).unwrap();
        let worker = std::thread::spawn(move || {
            send.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
            drop(rustix::fs::openat(root, "fifo", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).unwrap());
        });
        let thread = receive.recv().unwrap();
        stalls.stalled(7, thread, Duration::from_secs(5), None, false);
        // The same worker, as if it had been answered for.
        stalls.stalled(8, thread, Duration::from_secs(9), None, true);
        let began = Instant::now();
        while stalls.place(7) != BlockedOn::Branches(vec![branch.id]) {
            assert!(!stalls.all_wait_for_branches(began));
            assert!(began.elapsed() < Duration::from_secs(60), "{:?}", stalls.place(7));
            assert!(stalls.look().is_some());
            std::thread::sleep(Duration::from_millis(1));
        }
        stalls.look();
        assert!(stalls.all_wait_for_branches(Instant::now()));
        let waiting = stalls.waiting();
        assert_eq!(waiting.keys().collect::<Vec<_>>(), [&branch.id]);
        assert_eq!(waiting[&branch.id].requests, 1);
        assert!(waiting[&branch.id].since.elapsed() >= Duration::from_secs(9));
        let last_life = || branch.health.contact(|contact| contact.last_life());
        assert_eq!(last_life(), None);

        drop(File::options().write(true).open(&fifo).unwrap());
        worker.join().unwrap();
        stalls.resumed(8);
        stalls.resumed(7);
        assert!(last_life().is_some_and(|at| at >= began));
        assert!(!stalls.all_wait_for_branches(began));
        assert!(stalls.waiting().is_empty());
        assert_eq!(stalls.look(), None);
    }

    /// poll(2) names its files in memory, where nobody looks.
    #[test]
    fn a_worker_says_itself_where_a_call_does_not() {
        let home = tempfile::tempdir().unwrap();
        let pool = pool_of(&[home.path()]);
        let branch = ops::settings::branches(&pool)[0].clone();
        let stalls = Stalls::new(&pool);
        for at_the_gate in [true, false] {
            let (id, (read, write)) = (branch.id, rustix::pipe::pipe().unwrap());
            let (send, receive) = channel();
            let branch = branch.clone();
            let worker = std::thread::spawn(move || {
                send.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
                let wait = || {
                    let mut files = [rustix::event::PollFd::new(&read, rustix::event::PollFlags::IN)];
                    rustix::event::poll(&mut files, None)
                };
                if at_the_gate { branch.reads(wait) } else { wait() }
            });
            stalls.stalled(9, receive.recv().unwrap(), Duration::ZERO, None, false);
            let expected = if at_the_gate { BlockedOn::Branches(vec![id]) } else { BlockedOn::Elsewhere };
            let began = Instant::now();
            while stalls.place(9) != expected {
                assert!(began.elapsed() < Duration::from_secs(60), "{:?}", stalls.place(9));
                stalls.look();
                std::thread::sleep(Duration::from_millis(1));
            }
            drop(write);
            worker.join().unwrap().unwrap();
            stalls.resumed(9);
        }
    }

    #[test]
    fn where_the_kernel_does_not_say_the_open_file_tells_the_branch() {
        let home = tempfile::tempdir().unwrap();
        let pool = pool_of(&[home.path()]);
        let branch = ops::settings::branches(&pool)[0].id;
        let stalls = Stalls::new(&pool);
        // There is no such thread.
        stalls.stalled(1, i32::MAX, Duration::ZERO, Some(branch), false);
        stalls.stalled(2, i32::MAX, Duration::ZERO, None, false);
        stalls.look();
        assert_eq!(stalls.place(1), BlockedOn::Branches(vec![branch]));
        assert_eq!(stalls.place(2), BlockedOn::Elsewhere);
        assert!(!stalls.all_wait_for_branches(Instant::now()));
        stalls.resumed(2);
        assert!(stalls.all_wait_for_branches(Instant::now()));
    }
}
