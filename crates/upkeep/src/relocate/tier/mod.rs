//! `canopy tier`: moves files between the tiers of a pool and to where rules want them, and makes the copies that rules want.

pub(super) mod copies;
mod copying;
mod pause;
mod record;
mod status;

pub use status::{BranchSpace, TierStatus};

use super::job::{MoveCandidate, Stays, collect};
use super::layout::NoRoom;
use super::mover::{Action, Outcome, Task};
use super::{Bound, Run, RunArgs, Told, file, layout};
use crate::consent::ConsentArgs;
use crate::error::{Error, Result};
use crate::output::print;
use crate::pool_link::PoolLink;
use crate::stop::Stop;
use canopy_policy::layout::{Now, is_time};
use canopy_policy::placement::Placement;
use canopy_sys::process::local_time::minute_of_day;
use clap::Args;
use copying::Copying;
use pause::IdleGate;
use record::Record;
use std::cell::RefCell;
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::mem;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

/// Move files between tiers, and apply rules: places and copies
#[derive(Args, Clone, Debug)]
#[command(after_help = NOTES)]
pub struct TierArgs {
    /// The pool's mountpoint or name
    pub pool: PathBuf,
    /// Do what is due now, and end
    #[arg(long)]
    pub once: bool,
    /// At any time of the day, whatever the tiers say
    #[arg(long)]
    pub now: bool,
    /// Plan as if this option were set (with --dry-run)
    #[arg(long, value_name = "KEY=VALUE", requires = "dry_run")]
    pub as_if: Vec<OsString>,
    #[command(flatten)]
    pub run: RunArgs,
}

const NOTES: &str = "\
Without --once it stays, and looks each minute (canopy-tier@.service). Moves
wait while clients keep the pool busy, and on battery, unless --eager is given.
Example: canopy tier /mnt/pool --once --dry-run --as-if 'rules=films/=slow'";

/// How often a mover that stays looks how full the tiers are.
const LOOK: Duration = Duration::from_secs(60);
/// How often it looks through the files for those that are old, large, or not where a rule wants them.
const WALK: Duration = Duration::from_secs(3600);

/// Runs the command.
pub fn tier(args: &TierArgs) -> Result<()> {
    let mut args = args.clone();
    // Who has set tiers and rules wants what they say; only one round is asked for like other commands.
    args.run.consent.yes |= !args.once && !args.run.consent.dry_run;
    let args = &args;
    let stop = Stop::on_signals()?;
    let pool = PoolLink::named(&args.pool)?.accepting_losses(args.run.lossy);
    let placement = pool.placement_as_if(&args.as_if)?;
    if placement.is_empty() {
        return Err(Error::NoTiers(pool.mountpoint));
    }
    // A dry run may look while a mover works.
    let record = if args.run.consent.dry_run { None } else { Some(Record::begin(&pool.mountpoint)?) };
    let (record, stuck) = (RefCell::new(record), RefCell::default());
    let mover = TierMover { args, stop, record, stuck, copying: RefCell::default() };
    if args.once || args.run.consent.dry_run {
        let done = mover.round(&pool, &placement).and_then(|round| round.told);
        mover.finish("has ended");
        return done;
    }
    // The branches are let go between two looks, so that their disks can be unmounted.
    drop(pool);
    mover.stay()
}

/// Shows what would move if `pair` were set, which gives tiers or rules.
///
/// # Errors
/// As [`tier`]; none if nothing can move, because there are neither tiers nor rules.
pub fn preview(pool: &Path, pair: &OsStr) -> Result<()> {
    let consent = ConsentArgs { dry_run: true, yes: false };
    let run = RunArgs { consent, ..RunArgs::default() };
    let as_if = vec![pair.to_owned()];
    match tier(&TierArgs { pool: pool.to_owned(), once: true, now: true, as_if, run }) {
        Err(Error::NoTiers(_)) => {
            print("Without tiers and rules, nothing moves.\n");
            Ok(())
        }
        // It is told.
        Err(Error::Left(..) | Error::NotCopied(_)) => Ok(()),
        done => done,
    }
}

/// What has become of a round.
struct Round {
    moved: bool,
    /// What the summary says.
    told: Result<()>,
}

const NO_ROOM: NoRoom<'_> = NoRoom {
    why: "no branch that may take it has room",
    of_whole: "no branch that may take it has room and can store its owner and mode (--lossy)",
};

/// How often a round plans again when a tier is still above its mark, because files stay.
const PLANS: usize = 3;

struct TierMover<'m> {
    args: &'m TierArgs,
    stop: Stop,
    record: RefCell<Option<Record>>,
    /// What could not move, by its path: other files make room first.
    stuck: RefCell<HashSet<PathBuf>>,
    copying: RefCell<Copying>,
}

impl TierMover<'_> {
    /// Looks again and again, until a signal arrives.
    fn stay(&self) -> Result<()> {
        let mut walked: Option<Instant> = None;
        let mut times: Vec<bool> = Vec::new();
        let mut patience = Duration::ZERO;
        let mut known = None;
        let mut is_said = self.args.run.manners.quiet || self.args.run.manners.json;
        while !self.stop.is_set() {
            let begun = Instant::now();
            let pool = PoolLink::named(&self.args.pool)?;
            let placement = pool.placement()?;
            let due: Vec<bool> = placement.tiers.iter().map(|tier| is_time(tier, self.now())).collect();
            let comes = due.len() != times.len() || due.iter().zip(&times).any(|(now, then)| *now && !*then);
            let is_due = match walked.map(|walked| walked.elapsed()) {
                None => true,
                Some(since) => {
                    comes || since >= WALK || since >= patience && !self.is_quiet(&pool, &placement)?
                }
            };
            times = due;
            // What has been lost with a branch is made again, and what comes back with one may be old.
            let branches: Vec<_> = pool.branches.iter().map(|it| (it.path.clone(), it.takes())).collect();
            let is_other = known.replace(branches.clone()).is_some_and(|before| before != branches);
            let is_due =
                is_due || copies::are_wanted(&placement) && (is_other || self.copying.borrow().is_lost());
            if walked.is_none_or(|walked| walked.elapsed() >= WALK) {
                self.stuck.borrow_mut().clear();
            }
            if is_due {
                let told = self.round(&pool, &placement).and_then(|round| {
                    patience = next_patience(patience, round.moved);
                    round.told
                });
                match told {
                    // What is in the way in one round may be gone in the next.
                    Ok(()) | Err(Error::Left(..) | Error::NotCopied(_)) => {}
                    Err(Error::Stopped) => break,
                    Err(error) => return Err(error),
                }
                walked = Some(Instant::now());
            }
            let daemon = pool.daemon.clone();
            drop(pool);
            self.finish(record::WAITS);
            if !mem::replace(&mut is_said, true) {
                print("Waiting for more to do. Ctrl-C ends it; with --once it ends by itself.\n");
            }
            self.copy_until(begun + LOOK, &daemon, &placement)?;
        }
        self.finish("has ended");
        Ok(())
    }

    fn finish(&self, state: &str) {
        if let Some(record) = &mut *self.record.borrow_mut() {
            record.finish(state);
        }
    }

    fn tell(&self, state: &str) {
        if let Some(record) = &mut *self.record.borrow_mut() {
            record.tell(state);
        }
    }

    fn is_quiet(&self, pool: &PoolLink, placement: &Placement) -> Result<bool> {
        Ok(layout(pool, Some(placement))?.is_quiet(self.now()))
    }

    fn now(&self) -> Now {
        let time = SystemTime::now();
        Now { time, minute: minute_of_day(time), any_time: self.args.now }
    }

    /// Plans and makes the moves that are due, and says what has become of them.
    fn round(&self, pool: &PoolLink, placement: &Placement) -> Result<Round> {
        // Copies come first: what has one only may be lost.
        let copied = if copies::are_wanted(placement) { self.copy_all(pool, placement)? } else { Ok(()) };
        if self.stop.is_set() || copies::are_all(placement) {
            return Ok(Round { moved: false, told: copied });
        }
        let round = self.move_round(pool, placement)?;
        Ok(Round { told: copied.and(round.told), ..round })
    }

    fn move_round(&self, pool: &PoolLink, placement: &Placement) -> Result<Round> {
        let run = Run::until(self.stop.clone(), Action::Move, pool, &self.args.run)?;
        let summary = run.summary_of("tier");
        let calm = IdleGate::new(pool, &self.stop);
        let (mut tasks, mut homeless, mut outcome) = (Vec::new(), Vec::new(), Outcome::default());
        for number in 0..PLANS {
            self.tell("looks at the pool");
            let (next, left) = self.plan(pool, placement, &run)?;
            // Rounds that find nothing are no news.
            let is_news =
                !next.is_empty() || !left.is_empty() || self.args.once || self.args.run.consent.dry_run;
            if number == 0 && !is_news {
                return Ok(Round { moved: false, told: Ok(()) });
            }
            homeless = left;
            if number == 0 || !next.is_empty() {
                summary.before(&next);
            }
            let made = if number > 0 || run.agrees(&next)? {
                run.mover().run_calmly(&next, &|| self.wait(pool, placement, &calm))?
            } else {
                Outcome::default()
            };
            self.count(pool, &made);
            let none_stays = made.stays.is_empty();
            tasks.extend(next);
            outcome = outcome + made;
            if none_stays || self.stop.is_set() || self.is_quiet(pool, placement)? {
                break;
            }
        }
        let told = summary.after(&tasks, &outcome, (&homeless, &Bound::default()), self.stop.is_set());
        Ok(Round { moved: outcome.moved.files > 0, told })
    }

    /// Returns what is to move now, and what should but has nowhere to go.
    fn plan(&self, pool: &PoolLink, placement: &Placement, run: &Run<'_>) -> Result<(Vec<Task>, Vec<Stays>)> {
        let gives = |branch: usize| pool.branches[branch].gives();
        let job = collect(pool, &[PathBuf::new()], &gives, &run.filter, &run.stop)?;
        let mut layout = layout(pool, Some(placement))?;
        let stuck = self.stuck.borrow();
        let file = |found| {
            let mut file = file(pool, found);
            file.used.stuck = stuck.contains(&found.names[0]);
            file
        };
        layout.hold(job.found.iter().map(file).collect());
        let plan = layout.apply_tiers(self.now());
        let found: Vec<&MoveCandidate> = job.found.iter().collect();
        let told = Told::of(&plan, &found, pool, NO_ROOM);
        Ok((told.tasks, told.stays))
    }

    fn count(&self, pool: &PoolLink, made: &Outcome) {
        let inside = |stay: &Stays| stay.path.strip_prefix(&pool.mountpoint).ok().map(PathBuf::from);
        self.stuck.borrow_mut().extend(made.stays.iter().filter_map(inside));
        if let Some(record) = &mut *self.record.borrow_mut() {
            record.report.files += made.moved.files;
            record.report.bytes += made.moved.bytes;
        }
    }

    /// Waits until nothing disturbs a move.
    fn wait(&self, pool: &PoolLink, placement: &Placement, calm: &IdleGate<'_>) {
        while !self.args.run.manners.eager
            && !self.stop.is_set()
            && !is_pressing(pool, placement)
            && let Some(why) = calm.disturbed()
        {
            self.tell(&format!("waits: {why}"));
        }
        self.tell("moves files");
    }
}

/// Returns how long to leave a tier alone that is above its mark, after a round that moved something or did not: what is left
/// may be open, or belong there.
fn next_patience(before: Duration, moved: bool) -> Duration {
    if moved { Duration::ZERO } else { (before * 2).clamp(LOOK * 2, WALK) }
}

/// Returns whether a tier has come half the way from its mark to being full. Then moves do not wait for anything.
fn is_pressing(pool: &PoolLink, placement: &Placement) -> bool {
    layout(pool, Some(placement)).is_ok_and(|layout| layout.is_pressing())
}
