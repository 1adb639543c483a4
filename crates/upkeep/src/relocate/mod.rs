//! The commands that move files: `canopy move`, `balance`, `consolidate`, `drain` and `tier`. Moving for others: copies are made in
//! the same way.

mod balance;
mod batch;
mod consolidate;
mod drain;
mod drop_copy;
mod job;
mod layout;
mod mode;
mod mover;
mod several;
mod summary;
mod tier;
mod transfer;

pub use balance::{BalanceArgs, balance};
pub use consolidate::{ConsolidateArgs, consolidate};
pub use drain::{DrainArgs, Remove, drain};
pub use tier::{BranchSpace, TierArgs, TierStatus, preview, tier};
pub use transfer::{MoveArgs, move_files};

use crate::consent::{Alone, Consent, ConsentArgs};
use crate::error::{Error, Result};
use crate::filter::Filter;
use crate::held::NotTouched;
use crate::manners::ThrottleArgs;
use crate::pool_link::PoolLink;
use crate::stop::Stop;
pub(crate) use balance::percent;
use clap::Args;
pub(crate) use job::{BELOW_ANOTHER, MoveCandidate, Stays};
pub(crate) use layout::{Bound, NO_ROOM, RulesArgs, Told, file, layout, placement};
pub(crate) use mover::{Action, FILES, Sum, Task, Unit, adds_up};
pub(crate) use several::collect as collect_with_copies;
pub(crate) use transfer::apart;

use mover::{Manner, Mover, Outcome};
use summary::Summary;

/// How a command moves or copies files.
#[derive(Args, Clone, Debug, Default)]
pub struct RunArgs {
    #[command(flatten)]
    pub consent: ConsentArgs,
    /// Also where owners or modes get lost, as on NTFS
    #[arg(long)]
    pub lossy: bool,
    #[command(flatten)]
    pub manners: ThrottleArgs,
}

/// What all commands of this kind share while they run.
pub(crate) struct Run<'r> {
    pool: &'r PoolLink,
    args: &'r RunArgs,
    action: Action,
    consent: Consent,
    pub(crate) stop: Stop,
    pub(crate) filter: Filter,
}

impl<'r> Run<'r> {
    pub(crate) fn new(pool: &'r PoolLink, args: &'r RunArgs) -> Result<Run<'r>> {
        Run::of(Action::Move, pool, args)
    }

    pub(crate) fn of(action: Action, pool: &'r PoolLink, args: &'r RunArgs) -> Result<Run<'r>> {
        Run::until(Stop::on_signals()?, action, pool, args)
    }

    /// As `of`, until this stop.
    fn until(stop: Stop, action: Action, pool: &'r PoolLink, args: &'r RunArgs) -> Result<Run<'r>> {
        if pool.is_read_only {
            return Err(Error::PoolReadOnly(pool.mountpoint.clone()));
        }
        crate::output::report_missing(pool);
        let consent = Consent::of(args.consent, Alone::Acts, &args.manners);
        Ok(Run { pool, args, action, consent, stop, filter: Filter::new(&args.manners.filter)? })
    }

    fn mover(&self) -> Mover<'_> {
        let manners = &self.args.manners;
        let manner = Manner {
            rate: manners.bwlimit.unwrap_or(0),
            idle: !manners.eager,
            quiet: manners.quiet || manners.json,
            action: self.action,
        };
        Mover::new(self.pool, manner, &self.stop)
    }

    /// For what nobody needs to see.
    fn silent_mover(&self) -> Mover<'_> {
        let manner = Manner { idle: !self.args.manners.eager, quiet: true, ..Manner::default() };
        Mover::new(self.pool, manner, &self.stop)
    }

    /// Asks whether a plan that has been shown is carried out, if the user decides.
    fn agrees(&self, tasks: &[Task]) -> Result<bool> {
        self.consent.agrees(self.action.question(), tasks.is_empty(), &self.stop)
    }

    /// Says what will be done, does it if that is agreed to, and says what has become of it.
    pub(crate) fn carry_out(&self, command: &str, tasks: &[Task], stays: &[Stays]) -> Result<()> {
        self.carry_out_within(command, tasks, stays, &Bound::default())
    }

    /// The same, where rules and tiers have kept something back.
    pub(crate) fn carry_out_within(
        &self,
        command: &str,
        tasks: &[Task],
        stays: &[Stays],
        bound: &Bound,
    ) -> Result<()> {
        let summary = self.summary_of(command);
        summary.before(tasks);
        let outcome = if self.agrees(tasks)? { self.mover().run(tasks)? } else { Outcome::default() };
        summary.after(tasks, &outcome, (stays, bound), self.stop.is_set())
    }

    fn summary_of<'s>(&'s self, command: &'s str) -> Summary<'s> {
        Summary {
            command,
            action: self.action,
            pool: self.pool,
            json: self.args.manners.json,
            quiet: self.args.manners.quiet,
            dry_run: self.args.consent.dry_run,
            rate: self.args.manners.bwlimit.unwrap_or(0),
        }
    }
}

/// Has the daemon take a file off a branch, with all its names, because others hold the same.
pub(crate) fn drop_one(pool: &PoolLink, stop: &Stop, task: &Task) -> std::result::Result<(), NotTouched> {
    Mover::new(pool, Manner::default(), stop).drop_one(task)
}
