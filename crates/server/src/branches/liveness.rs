//! Finds branches that do not answer.
//!
//! Every branch with a deadline has a probe thread, which repeatedly does what operations do: it reads the attributes
//! and entries of the root, a name that does not exist, and the free space. Another thread checks how long each probe
//! has been waiting. A branch whose probe waits too long is left out (`Pool::set_silent`) until it answers again and
//! every operation that is stuck on it has ended. Probe threads may get stuck too; nothing waits for them.

use crate::lock_rank as rank;
use canopy_pool::Pool;
use canopy_pool::branch::{Branch, BranchId};
use canopy_pool::lock::ranked::Mutex;
use rustix::fs::{AtFlags, Mode, OFlags, RawDir, StatxFlags};
use rustix::io::Errno;
use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

pub(crate) struct Liveness {
    pool: Arc<Pool>,
    probes: Mutex<HashMap<BranchId, Arc<Probe>>, rank::Probes>,
    silent: AtomicUsize,
}

struct Probe {
    branch: Arc<Branch>,
    state: Mutex<State, rank::ProbeState>,
}

struct State {
    deadline: Duration,
    /// When the probe began to wait for an answer.
    asked_at: Option<Instant>,
    /// The probe has waited too long.
    unanswered: bool,
    /// Operations on files of the branch that are stuck and whose callers have been given an error.
    stuck_operations: usize,
    /// The conclusion from both.
    silent: bool,
    /// The branch was removed, or its deadline.
    removed: bool,
}

impl Liveness {
    /// Also starts the thread that checks the probes, which ends with the value.
    pub(crate) fn start(pool: &Arc<Pool>) -> std::io::Result<Arc<Liveness>> {
        let liveness = Arc::new(Liveness {
            pool: Arc::clone(pool),
            probes: Mutex::default(),
            silent: AtomicUsize::new(0),
        });
        let weak = Arc::downgrade(&liveness);
        std::thread::Builder::new().name("canopy-probes".into()).spawn(move || run_checks(&weak))?;
        Ok(liveness)
    }
}

fn run_checks(liveness: &Weak<Liveness>) {
    while let Some(liveness) = liveness.upgrade() {
        let pause = liveness.check();
        drop(liveness);
        std::thread::sleep(pause);
    }
}

impl Liveness {
    /// Returns whether every branch answers.
    pub(crate) fn all_answer(&self) -> bool {
        self.silent.load(Ordering::Relaxed) == 0
    }

    /// Records that an operation on a file of the branch did not finish by the deadline.
    pub(crate) fn operation_stuck(&self, branch: BranchId) {
        let Some(probe) = self.probes.lock().get(&branch).cloned() else { return };
        let mut state = probe.state.lock();
        state.stuck_operations += 1;
        self.update(&probe, &mut state);
    }

    /// Records that such an operation has ended after all. The branch counts as answering again with the next answer to
    /// its probe.
    pub(crate) fn operation_ended(&self, branch: BranchId) {
        let Some(probe) = self.probes.lock().get(&branch).cloned() else { return };
        let mut state = probe.state.lock();
        state.stuck_operations = state.stuck_operations.saturating_sub(1);
    }

    /// Starts and ends probes as branches get and lose deadlines, and finds those that do not answer. Returns the
    /// time until the next check.
    fn check(self: &Arc<Self>) -> Duration {
        let wanted = self.pool.deadlines();
        let mut probes = self.probes.lock();
        probes.retain(|id, probe| {
            let stays = wanted.iter().any(|(branch, _)| branch.id == *id);
            if !stays {
                let mut state = probe.state.lock();
                (state.removed, state.unanswered, state.stuck_operations) = (true, false, 0);
                self.update(probe, &mut state);
            }
            stays
        });
        for (branch, deadline) in &wanted {
            if let Some(probe) = probes.get(&branch.id) {
                probe.state.lock().deadline = *deadline;
                continue;
            }
            let state = State {
                deadline: *deadline,
                asked_at: None,
                unanswered: false,
                stuck_operations: 0,
                silent: false,
                removed: false,
            };
            let probe = Arc::new(Probe { branch: Arc::clone(branch), state: Mutex::new(state) });
            let (liveness, their_probe) = (Arc::downgrade(self), Arc::clone(&probe));
            let thread = std::thread::Builder::new().name("canopy-probe".into());
            match thread.spawn(move || run_probe(&liveness, &their_probe)) {
                Ok(_) => drop(probes.insert(branch.id, probe)),
                Err(why) => {
                    tracing::error!("cannot watch whether branch {} answers: {why}", branch.path.display())
                }
            }
        }
        let running: Vec<Arc<Probe>> = probes.values().cloned().collect();
        drop(probes);
        let mut pause = Duration::from_secs(1);
        for probe in running {
            let mut state = probe.state.lock();
            pause = pause.min(state.deadline / 20);
            // With a probe every eighth of the deadline, this notices a silent branch before an operation on it has
            // waited for the whole deadline.
            let waits = state.asked_at.is_some_and(|asked_at| asked_at.elapsed() >= state.deadline / 4 * 3);
            if waits && !state.unanswered {
                state.unanswered = true;
                self.update(&probe, &mut state);
            }
        }
        pause.max(Duration::from_millis(20))
    }

    /// Updates whether a branch counts as silent.
    fn update(&self, probe: &Probe, state: &mut State) {
        let silent = !state.removed && (state.unanswered || state.stuck_operations > 0);
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

/// Probes a branch for as long as it has a deadline.
fn run_probe(liveness: &Weak<Liveness>, probe: &Probe) {
    for number in 0_u64.. {
        let pause = {
            let mut state = probe.state.lock();
            if state.removed {
                return;
            }
            state.asked_at = Some(Instant::now());
            state.deadline / 8
        };
        // An error is an answer.
        let _ = probe_branch(&probe.branch, number);
        let Some(liveness) = liveness.upgrade() else { return };
        {
            let mut state = probe.state.lock();
            (state.asked_at, state.unanswered) = (None, false);
            liveness.update(probe, &mut state);
        }
        drop(liveness);
        std::thread::sleep(pause);
    }
}

fn probe_branch(branch: &Branch, number: u64) -> Result<(), Errno> {
    // AT_STATX_FORCE_SYNC in include/uapi/linux/fcntl.h: not from a cache.
    let sync = AtFlags::EMPTY_PATH | AtFlags::from_bits_retain(0x2000);
    rustix::fs::statx(branch.root(), c"", sync, StatxFlags::BASIC_STATS)?;
    rustix::fs::fstatvfs(branch.root())?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = rustix::fs::openat(branch.root(), c".", flags, Mode::empty())?;
    let mut buffer = [MaybeUninit::uninit(); 1024];
    if let Some(entry) = RawDir::new(&dir, &mut buffer).next() {
        entry?;
    }
    // A new name each time, because a missing name may be cached.
    let name = format!("{}{number}", String::from_utf8_lossy(&canopy_pool::temporary_name()));
    match rustix::fs::statx(branch.root(), name.as_str(), AtFlags::SYMLINK_NOFOLLOW, StatxFlags::TYPE) {
        Err(errno) if errno != Errno::NOENT => Err(errno),
        _ => Ok(()),
    }
}
