//! Which branches answer.
//!
//! Every branch with a deadline has a thread that asks it, again and again, what operations ask: its root's attributes and
//! entries, a name that it does not hold, its free space. Another thread looks how long each of them has been waiting:
//! whoever waits too long, his branch is left out (`Pool::set_silent`) until it answers again, and until whatever else waits
//! for it has come to an end. These threads may be lost; nobody waits for them.

use canopy_pool::Pool;
use canopy_pool::branch::{Branch, BranchId};
use parking_lot::Mutex;
use rustix::fs::{AtFlags, Mode, OFlags, RawDir, StatxFlags};
use rustix::io::Errno;
use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Lock order: the list before a branch's own.
pub(crate) struct Liveness {
    pool: Arc<Pool>,
    list: Mutex<HashMap<BranchId, Arc<Probe>>>,
    silent: AtomicUsize,
}

struct Probe {
    branch: Arc<Branch>,
    state: Mutex<State>,
}

struct State {
    deadline: Duration,
    /// Since when the thread waits for an answer.
    asked: Option<Instant>,
    /// The branch does not answer, to go by that.
    unanswered: bool,
    /// Operations on its files that nobody waits for any more.
    blamed: usize,
    /// What has been made of both.
    silent: bool,
    /// The branch has been taken away, or its deadline.
    over: bool,
}

impl Liveness {
    /// Starts the thread that looks after the others. It ends with the value.
    pub(crate) fn start(pool: &Arc<Pool>) -> std::io::Result<Arc<Liveness>> {
        let liveness = Arc::new(Liveness {
            pool: Arc::clone(pool),
            list: Mutex::default(),
            silent: AtomicUsize::new(0),
        });
        let weak = Arc::downgrade(&liveness);
        std::thread::Builder::new().name("canopy-probes".into()).spawn(move || run(&weak))?;
        Ok(liveness)
    }
}

fn run(liveness: &Weak<Liveness>) {
    while let Some(liveness) = liveness.upgrade() {
        let pause = liveness.look();
        drop(liveness);
        std::thread::sleep(pause);
    }
}

impl Liveness {
    /// Does every branch answer?
    pub(crate) fn all_answer(&self) -> bool {
        self.silent.load(Ordering::Relaxed) == 0
    }

    /// An operation on a file of the branch has waited in vain, or has come to an end after all.
    pub(crate) fn blame(&self, branch: BranchId, in_vain: bool) {
        let Some(probe) = self.list.lock().get(&branch).cloned() else { return };
        let mut state = probe.state.lock();
        match in_vain {
            true => state.blamed += 1,
            false => state.blamed = state.blamed.saturating_sub(1),
        }
        // It is taken back by the next answer of the branch itself.
        if in_vain {
            self.settle(&probe, &mut state);
        }
    }

    /// Takes on the branches that have a deadline by now, and finds those that do not answer. Gives the time until it is
    /// to be done again.
    fn look(self: &Arc<Self>) -> Duration {
        let wanted = self.pool.deadlines();
        let mut list = self.list.lock();
        list.retain(|id, probe| {
            let stays = wanted.iter().any(|(branch, _)| branch.id == *id);
            if !stays {
                let mut state = probe.state.lock();
                (state.over, state.unanswered, state.blamed) = (true, false, 0);
                self.settle(probe, &mut state);
            }
            stays
        });
        for (branch, deadline) in &wanted {
            if let Some(probe) = list.get(&branch.id) {
                probe.state.lock().deadline = *deadline;
                continue;
            }
            let state = State {
                deadline: *deadline,
                asked: None,
                unanswered: false,
                blamed: 0,
                silent: false,
                over: false,
            };
            let probe = Arc::new(Probe { branch: Arc::clone(branch), state: Mutex::new(state) });
            let (liveness, asking) = (Arc::downgrade(self), Arc::clone(&probe));
            let thread = std::thread::Builder::new().name("canopy-probe".into());
            match thread.spawn(move || ask(&liveness, &asking)) {
                Ok(_) => drop(list.insert(branch.id, probe)),
                Err(why) => tracing::error!("nobody looks whether {} answers: {why}", branch.path.display()),
            }
        }
        let probes: Vec<Arc<Probe>> = list.values().cloned().collect();
        drop(list);
        let mut pause = Duration::from_secs(1);
        for probe in probes {
            let mut state = probe.state.lock();
            pause = pause.min(state.deadline / 20);
            // Asked every eighth of the deadline, it is found out before an operation that has met it has waited for as long.
            let waits = state.asked.is_some_and(|asked| asked.elapsed() >= state.deadline / 4 * 3);
            if waits && !state.unanswered {
                state.unanswered = true;
                self.settle(&probe, &mut state);
            }
        }
        pause.max(Duration::from_millis(20))
    }

    /// Makes of a branch what is known of it.
    fn settle(&self, probe: &Probe, state: &mut State) {
        let silent = !state.over && (state.unanswered || state.blamed > 0);
        if std::mem::replace(&mut state.silent, silent) == silent {
            return;
        }
        let path = probe.branch.path.display();
        if silent {
            self.silent.fetch_add(1, Ordering::Relaxed);
            tracing::warn!("branch {path} does not answer: it is left out until it does");
        } else {
            self.silent.fetch_sub(1, Ordering::Relaxed);
            tracing::warn!("branch {path} answers again");
        }
        self.pool.set_silent(probe.branch.id, silent);
    }
}

/// Asks a branch for as long as it has a deadline.
fn ask(liveness: &Weak<Liveness>, probe: &Probe) {
    for number in 0_u64.. {
        let pause = {
            let mut state = probe.state.lock();
            if state.over {
                return;
            }
            state.asked = Some(Instant::now());
            state.deadline / 8
        };
        // An error is an answer.
        let _ = question(&probe.branch, number);
        let Some(liveness) = liveness.upgrade() else { return };
        {
            let mut state = probe.state.lock();
            (state.asked, state.unanswered) = (None, false);
            liveness.settle(probe, &mut state);
        }
        drop(liveness);
        std::thread::sleep(pause);
    }
}

fn question(branch: &Branch, number: u64) -> Result<(), Errno> {
    // AT_STATX_FORCE_SYNC in include/uapi/linux/fcntl.h: not what is remembered of it.
    let sync = AtFlags::EMPTY_PATH | AtFlags::from_bits_retain(0x2000);
    rustix::fs::statx(branch.root(), c"", sync, StatxFlags::BASIC_STATS)?;
    rustix::fs::fstatvfs(branch.root())?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = rustix::fs::openat(branch.root(), c".", flags, Mode::empty())?;
    let mut buffer = [MaybeUninit::uninit(); 1024];
    if let Some(entry) = RawDir::new(&dir, &mut buffer).next() {
        entry?;
    }
    // Another name each time, which nobody remembers to be missing.
    let name = format!("{}{number}", String::from_utf8_lossy(&canopy_pool::temporary_name()));
    match rustix::fs::statx(branch.root(), name.as_str(), AtFlags::SYMLINK_NOFOLLOW, StatxFlags::TYPE) {
        Err(errno) if errno != Errno::NOENT => Err(errno),
        _ => Ok(()),
    }
}
