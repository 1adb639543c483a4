//! Finds branches that do not answer, and tells it.
//!
//! Operations that wait for a branch are reported to [`Stalls`]. While there are any, the branch is asked whether it
//! answers (`probe`), and what is found is logged and can be queried ([`Liveness::conditions`]).
//!
//! A branch with a deadline (`branch-timeout`) that does not answer is left out (`Pool::set_silent`). A branch on a disk
//! is asked only while operations wait, because a question wakes the disk. It is back when the disk answers. A branch
//! without a disk is asked all the time. It is back when it answers and every operation that was stuck on it has ended.

use super::condition::{Condition, DiskHistory, HANGS_AFTER, Signs};
use super::crowded::{Crowded, line_of};
use super::probe;
use super::stalls::Stalls;
use crate::lock_rank as rank;
use crate::test_switches;
use canopy_base::lock::ranked::Mutex;
use canopy_branch::branch::health::contact::{Contact, Waiting};
use canopy_branch::branch::state::{BranchState, Turn};
use canopy_branch::branch::{Branch, BranchId, Branches, rest};
use canopy_branch::tend;
use canopy_fuse::transport::Lines;
use canopy_pool::Pool;
use canopy_pool::ops;
use canopy_sys::shown::Show as _;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

pub(crate) struct Liveness {
    me: Weak<Liveness>,
    pool: Arc<Pool>,
    stalls: Stalls,
    crowded: Crowded,
    /// Where requests wait without a worker.
    lines: Lines,
    /// Held to decide whether a branch is left out and to do it.
    settling: Mutex<(), rank::Settling>,
    /// How many questions were asked.
    questions: AtomicU64,
    /// How branches answer that have let operations wait, as last checked.
    conditions: Mutex<HashMap<BranchId, Condition>, rank::Leaf>,
    /// Called every second while there are such branches, and once when there are none any more.
    publish: OnceLock<Publish>,
}

/// Publishes the status of the pool, or that there is nothing to report (`false`).
type Publish = Box<dyn Fn(bool) + Send + Sync>;

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
            settling: Mutex::default(),
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
    /// When the status was last published, if it still is.
    published: Option<Instant>,
}

impl Liveness {
    /// Sets what publishes the status of the pool while branches do not answer well.
    pub(crate) fn set_publish(&self, publish: impl Fn(bool) + Send + Sync + 'static) {
        let _ = self.publish.set(Box::new(publish));
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
        if let Some(branch) = ops::settings::branches(&self.pool).by_id(branch) {
            branch.health.contact(|contact| contact.operation_stuck(Instant::now()));
            self.settle(branch);
        }
    }

    /// Records that such an operation has ended after all.
    pub(crate) fn operation_ended(&self, branch: BranchId) {
        if let Some(branch) = ops::settings::branches(&self.pool).by_id(branch) {
            branch.health.contact(Contact::operation_ended);
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
    fn check(&self, memory: &mut Memory) -> Duration {
        let now = Instant::now();
        let mut pause = self.stalls.look().unwrap_or(Duration::from_secs(1));
        let waiting = self.stalls.waiting();
        self.limit_lines(&waiting);
        let branches = ops::settings::branches(&self.pool);
        memory.look_at_disks(&branches, now);
        let deadlines: HashMap<BranchId, Duration> =
            self.pool.deadlines().into_iter().map(|(branch, deadline)| (branch.id, deadline)).collect();
        let mut found = HashMap::new();
        for branch in branches.iter() {
            let (deadline, waits) = (deadlines.get(&branch.id).copied(), waiting.get(&branch.id).copied());
            let ask = branch.health.contact(|contact| {
                contact.look(now, deadline, waits, || branch.disks());
                contact.ask(now)
            });
            if ask.is_some() {
                let (liveness, branch) = (Weak::clone(&self.me), Arc::clone(branch));
                tend::apart((c"canopy-ask", branch.id.0.into()), move || ask_branch(&liveness, &branch));
            }
            self.settle(branch);
            pause = deadline.map_or(pause, |deadline| pause.min(deadline / 20));
            let asked = branch.health.contact(|contact| contact.open_question());
            if asked.is_some() && waits.is_some() {
                pause = pause.min(Duration::from_millis(200));
            }
            match self.condition(branch, memory) {
                Some(condition) => _ = found.insert(branch.id, condition),
                None => tell_well(branch),
            }
        }
        self.publish(memory, found, now);
        pause.max(Duration::from_millis(20))
    }

    /// Returns how a branch answers, unless promptly.
    fn condition(&self, branch: &Branch, memory: &mut Memory) -> Option<Condition> {
        let (signs, disks, waiting, deadline) = branch.health.contact(|contact| {
            let disks = contact.disks.clone()?;
            Some((signs(contact, &memory.disks), disks, contact.waiting, contact.deadline))
        })?;
        if signs.answers() == BranchState::Up {
            return None;
        }
        let condition = Condition {
            answers: signs.answers(),
            quiet: signs.quiet(),
            requests: waiting.map_or(0, |waiting| waiting.requests) + self.lines.waiting(line_of(branch.id)),
            deadline,
            disks: disks.iter().map(|disk| memory.disks.look(disk)).collect(),
        };
        if !signs.silent {
            tell_hung(branch, &condition);
        }
        Some(condition)
    }

    /// Makes known how branches answer.
    fn publish(&self, memory: &mut Memory, found: HashMap<BranchId, Condition>, now: Instant) {
        let any = !found.is_empty();
        let is_due = match memory.published {
            None => any,
            Some(last) => !any || now.saturating_duration_since(last) >= PUBLISH_EVERY,
        };
        *self.conditions.lock() = found;
        if let Some(publish) = self.publish.get().filter(|_| is_due) {
            publish(any);
            memory.published = any.then_some(now);
        }
    }

    /// Leaves a branch out that does not answer, and takes it back when it does.
    fn settle(&self, branch: &Branch) {
        let _settling = self.settling.lock();
        let id = branch.id;
        match branch.health.contact(|contact| contact.wants(Instant::now())) {
            Some(Turn::TakeBack) if ops::owed::may_have_missed(&self.pool, id) => {
                // Its disk may hang again meanwhile: it stays left out.
                branch.health.turn(Turn::Return);
                let liveness = Weak::clone(&self.me);
                tend::apart((c"canopy-rejoin", id.0.into()), move || bring_up_to_date(&liveness, id));
            }
            Some(Turn::TakeBack) => {
                if ops::branch_deadlines::set_silent(&self.pool, id, false) {
                    tell_back(branch);
                }
            }
            Some(Turn::LeaveOut) => {
                if ops::branch_deadlines::set_silent(&self.pool, id, true) {
                    let path = branch.path.shown();
                    tracing::warn!("branch {path} does not answer: it is left out until it does");
                }
            }
            Some(Turn::Return | Turn::StayOut | Turn::Go) | None => {}
        }
    }
}

impl Memory {
    /// Reads the counters of all disks, if that is due.
    fn look_at_disks(&mut self, branches: &Branches, now: Instant) {
        let rests_after = test_switches::rests_after();
        let every = LOOK_AT_DISKS_EVERY.min(rests_after / 2);
        if self.looked_at_disks.is_some_and(|last| now.duration_since(last) < every) {
            return;
        }
        self.looked_at_disks = Some(now);
        for disk in branches.iter().flat_map(|branch| branch.disks()) {
            self.disks.look(&disk);
        }
        self.disks.forget_old(now);
        rest::look(branches, rests_after);
    }
}

fn signs(contact: &Contact, history: &DiskHistory) -> Signs {
    let oldest = contact.waiting.map(|waiting| waiting.since.elapsed());
    let slept = contact.disks.iter().flat_map(|disks| disks.iter()).any(|disk| {
        disk.is_suspended()
            || disk.spins() && history.may_have_slept(&disk.name, oldest.unwrap_or_default().max(HANGS_AFTER))
    });
    Signs {
        oldest,
        asked: contact.open_question().map(|asked| asked.elapsed()),
        since_life: contact.last_life().map(|last| last.elapsed()),
        last_took: contact.answered.map(|(_, took)| took),
        silent: contact.is_out(),
        answers_prove_little: contact.answers_prove_little(),
        slept,
    }
}

/// Asks a branch and waits for the answer.
fn ask_branch(liveness: &Weak<Liveness>, branch: &Branch) {
    let number = liveness.upgrade().map(|liveness| liveness.questions.fetch_add(1, Ordering::Relaxed));
    let Some((number, disks)) = number.zip(branch.health.contact(|contact| contact.disks.clone())) else {
        return;
    };
    let could_ask = probe::ask(branch, &disks, number);
    branch.health.contact(|contact| contact.answer(Instant::now(), could_ask));
    if let Some(liveness) = liveness.upgrade() {
        liveness.settle(branch);
    }
}

/// Brings a branch up to date that answers again, which then is back.
fn bring_up_to_date(liveness: &Weak<Liveness>, id: BranchId) {
    let Some(liveness) = liveness.upgrade() else { return };
    let is_back = ops::owed::take_back(&liveness.pool, id);
    let Some(branch) = ops::settings::branches(&liveness.pool).by_id(id).cloned() else { return };
    if is_back {
        tell_back(&branch);
        // It may hang again.
        liveness.settle(&branch);
    } else {
        branch.health.turn(Turn::StayOut);
    }
}

fn tell_back(branch: &Branch) {
    tracing::warn!("branch {} answers again", branch.path.shown());
}

/// Logs once that a branch hangs that is not left out.
fn tell_hung(branch: &Branch, condition: &Condition) {
    let now = Instant::now();
    let is_new = branch.health.contact(|contact| {
        let is_new = condition.quiet >= TELL_AFTER && contact.told.is_none();
        if is_new {
            contact.told = Some(now.checked_sub(condition.quiet).unwrap_or(now));
        }
        is_new
    });
    if !is_new {
        return;
    }
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

/// Logs that a branch has answered which the log calls hung.
fn tell_well(branch: &Branch) {
    if let Some(since) = branch.health.contact(|contact| contact.told.take()) {
        let seconds = since.elapsed().as_secs();
        tracing::warn!("branch {} has answered, after {seconds} s", branch.path.shown());
    }
}
