//! Finds branches that do not answer, and tells it.
//!
//! Operations that wait for a branch are reported to [`Stalls`]. While there are any, the branch is asked whether it
//! answers (`probe`), and what is found is logged and can be queried ([`Liveness::conditions`]).
//!
//! A branch with a deadline (`branch-timeout`) that does not answer is left out (`Pool::set_silent`). A branch on a disk
//! is asked only while operations wait, because a question wakes the disk. It is back when the disk answers. A branch
//! without a disk is asked all the time. It is back when it answers and every operation that was stuck on it has ended.

use super::condition::{Answers, Condition, DiskHistory, HANGS_AFTER, Signs};
use super::crowded::{Crowded, line_of};
use super::probe::{ProbeState, Question};
use super::stalls::{Stalls, Waiting};
use crate::lock_rank as rank;
use canopy_base::lock::ranked::Mutex;
use canopy_branch::branch::{Branch, BranchId};
use canopy_branch::tend;
use canopy_fuse::transport::Lines;
use canopy_pool::Pool;
use canopy_pool::ops;
use canopy_sys::shown::Show as _;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

pub(crate) struct Liveness {
    me: Weak<Liveness>,
    pool: Arc<Pool>,
    stalls: Stalls,
    crowded: Crowded,
    /// Where requests wait without a worker.
    lines: Lines,
    probes: Mutex<HashMap<BranchId, Arc<Probe>>, rank::Probes>,
    silent: AtomicUsize,
    /// How many questions were asked.
    questions: AtomicU64,
    /// How branches answer that have let operations wait, as last checked.
    conditions: Mutex<HashMap<BranchId, Condition>, rank::Leaf>,
    /// Called every second while there are such branches, and once when there are none any more.
    publish: OnceLock<Publish>,
}

/// Publishes the status of the pool, or that there is nothing to report (`false`).
type Publish = Box<dyn Fn(bool) + Send + Sync>;

struct Probe {
    branch: Arc<Branch>,
    question: Question,
    state: Mutex<ProbeState, rank::ProbeState>,
}

/// After an operation has waited for this long, its branch is asked whether it answers; earlier with a short deadline.
const ASK_AFTER: Duration = Duration::from_millis(500);
/// The time between two questions to a branch on which operations wait.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// The time between two attempts to bring a branch up to date that has answered again.
const TRY_AGAIN_AFTER: Duration = Duration::from_secs(10);
/// A branch that has not answered for this long gets a line in the log.
const TELL_AFTER: Duration = Duration::from_secs(10);
/// How often the status is published while branches do not answer well.
const PUBLISH_EVERY: Duration = Duration::from_secs(1);
/// How often the counters of all disks are read, to know which of them may sleep.
const LOOK_AT_DISKS_EVERY: Duration = Duration::from_secs(20);

impl Liveness {
    /// Also begins to check the branches, which ends with the value.
    pub(crate) fn start(pool: &Arc<Pool>, lines: Lines) -> Arc<Liveness> {
        let liveness = Arc::new_cyclic(|me| Liveness {
            me: Weak::clone(me),
            pool: Arc::clone(pool),
            stalls: Stalls::new(pool),
            crowded: Crowded::default(),
            lines,
            probes: Mutex::default(),
            silent: AtomicUsize::new(0),
            questions: AtomicU64::new(0),
            conditions: Mutex::default(),
            publish: OnceLock::new(),
        });
        let (weak, mut memory) = (Arc::downgrade(&liveness), Memory::default());
        // A report of a request that is stuck ends the pause.
        let waker = tend::repeat(Duration::ZERO, move || Some(weak.upgrade()?.check(&mut memory)));
        liveness.stalls.set_looker(waker);
        liveness
    }
}

/// What a check remembers for the next.
#[derive(Default)]
struct Memory {
    disks: DiskHistory,
    looked_at_disks: Option<Instant>,
    /// Branches that the log calls hung, and since when they are.
    told: HashMap<BranchId, Instant>,
    /// When the status was last published, if it still is.
    published: Option<Instant>,
}

impl Liveness {
    /// Sets what publishes the status of the pool while branches do not answer well.
    pub(crate) fn set_publish(&self, publish: impl Fn(bool) + Send + Sync + 'static) {
        let _ = self.publish.set(Box::new(publish));
    }

    /// Returns whether every branch answers.
    pub(crate) fn all_answer(&self) -> bool {
        self.silent.load(Ordering::Relaxed) == 0
    }

    /// Returns the requests whose workers are stuck.
    pub(crate) fn stalls(&self) -> &Stalls {
        &self.stalls
    }

    /// Returns the branches that too many requests are stuck in.
    pub(crate) fn crowded(&self) -> &Crowded {
        &self.crowded
    }

    /// Returns how those branches answer that have let operations wait. Does not touch any branch.
    pub(crate) fn conditions(&self) -> HashMap<BranchId, Condition> {
        self.conditions.lock().clone()
    }

    /// Records that an operation on the branch did not finish by the deadline.
    pub(crate) fn operation_stuck(&self, branch: BranchId) {
        let Some(probe) = self.probes.lock().get(&branch).cloned() else { return };
        let mut state = probe.state.lock();
        state.stuck_operations += 1;
        state.stuck_since.get_or_insert_with(Instant::now);
        self.update(&probe, &mut state);
    }

    /// Records that such an operation has ended after all.
    pub(crate) fn operation_ended(&self, branch: BranchId) {
        let Some(probe) = self.probes.lock().get(&branch).cloned() else { return };
        let mut state = probe.state.lock();
        state.stuck_operations = state.stuck_operations.saturating_sub(1);
        if state.stuck_operations == 0 {
            state.stuck_since = None;
        }
    }

    /// Records that a worker has come out of a request that was stuck.
    pub(crate) fn resumed(&self, unique: u64) {
        self.stalls.resumed(unique);
        // Another of the line may take its place at once.
        if self.crowded.any() {
            self.limit_lines(&self.stalls.waiting());
        }
    }

    /// Tells the transport how many of each line may go on.
    fn limit_lines(&self, waiting: &HashMap<BranchId, Waiting>) {
        let branches = ops::settings::branches(&self.pool);
        let answers = |id| branches.by_id(id).is_some_and(|branch| !branch.is_silent());
        let limits = self.crowded.update(waiting, self.lines.bound(), |id| !answers(id));
        self.lines.limit(limits);
    }

    /// Checks all branches. Returns the time until the next check.
    fn check(self: &Arc<Self>, memory: &mut Memory) -> Duration {
        let now = Instant::now();
        let mut pause = self.stalls.look().unwrap_or(Duration::from_secs(1));
        let waiting = self.stalls.waiting();
        self.limit_lines(&waiting);
        if memory.looked_at_disks.is_none_or(|last| now.duration_since(last) >= LOOK_AT_DISKS_EVERY) {
            memory.looked_at_disks = Some(now);
            let branches = ops::settings::branches(&self.pool);
            for disk in branches.iter().flat_map(|branch| branch.disks()) {
                memory.disks.look(&disk);
            }
            memory.disks.forget_old(now);
        }
        let mut found = HashMap::new();
        for probe in self.choose_probes(&waiting) {
            let of_branch = waiting.get(&probe.branch.id);
            self.ask_if_needed(&probe, of_branch, now);
            let mut state = probe.state.lock();
            if let Some(deadline) = state.deadline {
                pause = pause.min(deadline / 20);
                // With a question every eighth of the deadline, this notices a silent branch before an operation on it
                // has waited for the whole deadline.
                let share =
                    if probe.question.disks().is_empty() { deadline / 4 * 3 } else { deadline / 8 * 7 };
                let waits = state.asked_at.is_some_and(|asked_at| asked_at.elapsed() >= share);
                // A question to a disk is asked because of an operation, which then has waited for longer.
                let operation_waits = probe.question.disks().is_empty()
                    || of_branch.is_some_and(|waiting| waiting.since.elapsed() >= deadline);
                if waits && operation_waits {
                    state.unanswered = true;
                }
                self.update(&probe, &mut state);
            }
            if state.asked_at.is_some() && of_branch.is_some() {
                pause = pause.min(Duration::from_millis(200));
            }
            let signs = self.signs(&probe, &state, of_branch, &memory.disks);
            let (silent, deadline) = (state.silent, state.deadline);
            drop(state);
            if signs.answers() > Answers::Promptly {
                let disks = probe.question.disks().iter().map(|disk| memory.disks.look(disk)).collect();
                let condition = Condition {
                    answers: signs.answers(),
                    quiet: signs.quiet(),
                    requests: of_branch.map_or(0, |waiting| waiting.requests)
                        + self.lines.waiting(line_of(probe.branch.id)),
                    deadline,
                    disks,
                };
                if !silent {
                    tell_hung(memory, &probe.branch, &condition);
                }
                found.insert(probe.branch.id, condition);
            }
        }
        memory.told.retain(|id, since| {
            let stays = found.contains_key(id);
            if !stays && let Some(branch) = ops::settings::branches(&self.pool).by_id(*id) {
                let seconds = since.elapsed().as_secs();
                tracing::warn!("branch {} has answered, after {seconds} s", branch.path.shown());
            }
            stays
        });
        let is_due = match memory.published {
            None => !found.is_empty(),
            Some(last) => found.is_empty() || now.saturating_duration_since(last) >= PUBLISH_EVERY,
        };
        let any = !found.is_empty();
        *self.conditions.lock() = found;
        if let Some(publish) = self.publish.get().filter(|_| is_due) {
            publish(any);
            memory.published = any.then_some(now);
        }
        pause.max(Duration::from_millis(20))
    }

    /// Starts and ends probes, and returns them: those of branches with a deadline, of branches that operations wait for,
    /// and of those that still owe an answer.
    fn choose_probes(self: &Arc<Self>, waiting: &HashMap<BranchId, Waiting>) -> Vec<Arc<Probe>> {
        let deadlines: HashMap<BranchId, Duration> =
            self.pool.deadlines().into_iter().map(|(branch, deadline)| (branch.id, deadline)).collect();
        let branches = ops::settings::branches(&self.pool);
        let mut probes = self.probes.lock();
        probes.retain(|id, probe| {
            let mut state = probe.state.lock();
            state.deadline = deadlines.get(id).copied();
            let is_wanted = state.deadline.is_some() || waiting.contains_key(id) || state.asked_at.is_some();
            let stays = is_wanted && branches.by_id(*id).is_some();
            if !stays || state.deadline.is_none() {
                (state.unanswered, state.stuck_operations, state.stuck_since) = (false, 0, None);
                state.removed = !stays;
                self.update(probe, &mut state);
            }
            stays
        });
        for branch in branches.iter() {
            let deadline = deadlines.get(&branch.id).copied();
            if probes.contains_key(&branch.id) || deadline.is_none() && !waiting.contains_key(&branch.id) {
                continue;
            }
            let probe = Arc::new(Probe {
                branch: Arc::clone(branch),
                question: Question::for_branch(branch),
                state: Mutex::new(ProbeState::new(deadline)),
            });
            probes.insert(branch.id, probe);
        }
        probes.values().cloned().collect()
    }

    /// Asks a branch if operations wait for it or it is left out. One without a disk that has a deadline is asked all the time.
    fn ask_if_needed(self: &Arc<Self>, probe: &Arc<Probe>, waiting: Option<&Waiting>, now: Instant) {
        {
            let mut state = probe.state.lock();
            if state.asked_at.is_some() {
                return;
            }
            let share = |time: Duration| state.deadline.map_or(time, |deadline| time.min(deadline / 8));
            let always = state.deadline.filter(|_| probe.question.disks().is_empty());
            let (after, every) =
                (share(ASK_AFTER), always.map_or(share(ASK_EVERY), |deadline| deadline / 16));
            let waits = always.is_some()
                || waiting.is_some_and(|waiting| now.saturating_duration_since(waiting.since) >= after);
            let recently =
                state.last_answer().is_some_and(|last| now.saturating_duration_since(last) < every);
            if !(waits || state.silent) || recently {
                return;
            }
            state.asked_at = Some(now);
        }
        let (liveness, their_probe) = (Arc::downgrade(self), Arc::clone(probe));
        tend::apart((c"canopy-ask", probe.branch.id.0.into()), move || ask(&liveness, &their_probe));
    }

    fn signs(
        &self,
        probe: &Probe,
        state: &ProbeState,
        waiting: Option<&Waiting>,
        disks: &DiskHistory,
    ) -> Signs {
        let oldest = waiting.map(|waiting| waiting.since.elapsed());
        let returned = self.stalls.returned(probe.branch.id);
        // Without operations that wait, a branch without a disk is asked all the time.
        let is_wanted = oldest.is_some() || state.silent || !probe.question.disks().is_empty();
        Signs {
            oldest,
            asked: state.asked_at.filter(|_| is_wanted).map(|asked_at| asked_at.elapsed()),
            since_life: state.last_answer().max(returned).map(|last| last.elapsed()),
            last_took: state.answered.map(|(_, took)| took),
            silent: state.silent,
            answers_prove_little: probe.question.disks().is_empty() || state.unreadable,
            slept: probe.question.disks().iter().any(|disk| {
                disk.is_suspended()
                    || disk.spins()
                        && disks.may_have_slept(&disk.name, oldest.unwrap_or_default().max(HANGS_AFTER))
            }),
        }
    }

    /// Updates whether a branch counts as silent.
    fn update(&self, probe: &Arc<Probe>, state: &mut ProbeState) {
        // A disk that has answered since operations got stuck works: they are stuck for another reason.
        let has_answered = |since: Instant| {
            !probe.question.disks().is_empty() && state.last_answer().is_some_and(|last| last > since)
        };
        let stuck = state.stuck_operations > 0 && !state.stuck_since.is_some_and(has_answered);
        let silent = !state.removed && state.deadline.is_some() && (state.unanswered || stuck);
        if state.silent == silent {
            return;
        }
        if !silent && ops::owed::may_have_missed(&self.pool, probe.branch.id) {
            return self.bring_up_to_date(probe, state);
        }
        self.set_silent(probe, state, silent);
        ops::branch_deadlines::set_silent(&self.pool, probe.branch.id, silent);
    }

    fn set_silent(&self, probe: &Probe, state: &mut ProbeState, silent: bool) {
        state.silent = silent;
        let path = probe.branch.path.shown();
        if silent {
            self.silent.fetch_add(1, Ordering::Relaxed);
            tracing::warn!("branch {path} does not answer: it is left out until it does");
        } else {
            self.silent.fetch_sub(1, Ordering::Relaxed);
            tracing::warn!("branch {path} answers again");
        }
    }

    /// Has a branch brought up to date, which then is back. Its disk may hang again meanwhile: it stays left out.
    fn bring_up_to_date(&self, probe: &Arc<Probe>, state: &mut ProbeState) {
        if state.returning || state.stayed_out.is_some_and(|then| then.elapsed() < TRY_AGAIN_AFTER) {
            return;
        }
        let (liveness, their_probe) = (self.me.clone(), Arc::clone(probe));
        state.returning = true;
        tend::apart((c"canopy-rejoin", probe.branch.id.0.into()), move || {
            let Some(liveness) = liveness.upgrade() else { return };
            let is_back = ops::owed::take_back(&liveness.pool, their_probe.branch.id);
            let mut state = their_probe.state.lock();
            state.returning = false;
            state.stayed_out = (!is_back).then(Instant::now);
            if is_back {
                liveness.set_silent(&their_probe, &mut state, false);
                liveness.update(&their_probe, &mut state);
            }
        });
    }
}

/// Logs once that a branch hangs that is not left out.
fn tell_hung(memory: &mut Memory, branch: &Branch, condition: &Condition) {
    if condition.quiet < TELL_AFTER || memory.told.contains_key(&branch.id) {
        return;
    }
    let now = Instant::now();
    memory.told.insert(branch.id, now.checked_sub(condition.quiet).unwrap_or(now));
    let path = branch.path.shown();
    let disks: Vec<String> = condition.disks.iter().map(|disk| format!("; {disk}")).collect();
    let outlook = match condition.deadline {
        None => "With branch-timeout=SECONDS requests fail instead of waiting".to_owned(),
        Some(deadline) => format!("Requests fail after {} s (branch-timeout)", deadline.as_secs()),
    };
    tracing::warn!(
        "branch {path} has not answered for {} s, and {} requests wait for it{}. Look at the disk or its network \
         (dmesg | tail; smartctl -a). {outlook}",
        condition.quiet.as_secs(),
        condition.requests,
        disks.concat()
    );
}

/// Asks a branch and waits for the answer.
fn ask(liveness: &Weak<Liveness>, probe: &Arc<Probe>) {
    let Some(number) = liveness.upgrade().map(|it| it.questions.fetch_add(1, Ordering::Relaxed)) else {
        return;
    };
    let could_ask = probe.question.ask(&probe.branch, number);
    let Some(liveness) = liveness.upgrade() else { return };
    let mut state = probe.state.lock();
    state.unreadable = !could_ask;
    if let Some(asked_at) = state.asked_at.take()
        && could_ask
    {
        state.answered = Some((asked_at, asked_at.elapsed()));
    }
    state.unanswered = false;
    liveness.update(probe, &mut state);
}
