//! Plays the steps on a world, and compares.

mod away;
mod branches;
mod clients;
mod races;
mod refusing;
mod serving;
mod settle;
mod trash;
mod upkeep;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::thread::sleep;
use std::time::Duration;

use crate::allowed::Conditions;
use crate::compare::{self, Paths};
use crate::plan::{Make, Plan};
use crate::script::Step;
use crate::server::Kill;
use crate::trash::Known;
use crate::watchdog::Watchdog;
use crate::weather::Weather;
use crate::world::World;
use away::Gone;
use refusing::Refusals;

/// After how many operations of clients the trees are compared.
const EVERY: usize = 25;

/// Where a storm failed, by the number of the step, and how.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    pub(crate) at: usize,
    pub(crate) what: String,
    /// The steps of clients that have changed nothing.
    pub(crate) idle: Vec<usize>,
}

pub(crate) struct Driver {
    idle: bool,
    pub(crate) world: World,
    gone: Option<Gone>,
    command: Option<(String, Child)>,
    kill: Option<Kill>,
    now: Conditions,
    direct: usize,
    kept: Known,
    /// Old trash has had to make room.
    littered: bool,
    refusals: Refusals,
}

/// What a person who watches has asked for.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Watched {
    /// Print each step.
    pub(crate) chatty: bool,
    /// After a failure, wait for SIGINT, so that one can look at the pool and its disks.
    pub(crate) hold: bool,
}

/// Set by SIGINT and SIGTERM: the storm ends after the step that runs.
pub(crate) static STOP: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

pub(crate) fn stopped() -> bool {
    STOP.load(Ordering::Relaxed)
}

/// Plays steps, which have numbers, on a new world.
pub(crate) fn play(plan: &Plan, steps: &[(usize, Step)], watched: Watched) -> Option<Failure> {
    let (mut at, mut idle) = (0, Vec::new());
    let whole = catch_unwind(AssertUnwindSafe(|| {
        let mut driver = Driver::new(plan);
        let watchdog = Watchdog::start(driver.world.pool().path());
        let outcome = driver.play(steps, (&mut at, &mut idle), &watchdog, watched.chatty);
        let outcome = outcome.and_then(|()| driver.nothing_was_apart(plan));
        let outcome = outcome.map_err(|what| format!("{what}{}", watchdog.said()));
        if let Err(what) = outcome {
            let log = driver.world.pool().log();
            let lines: Vec<&str> = log.lines().filter(|line| !line.contains(" INFO ")).collect();
            let what =
                format!("{what}\n--- the pool's log\n{}", lines[lines.len().saturating_sub(12)..].join("\n"));
            if watched.hold {
                println!(
                    "{what}\nstorm: all is left as it is in {}; Ctrl-C ends it",
                    driver.world.home().display()
                );
                while !stopped() {
                    sleep(Duration::from_millis(100));
                }
            }
            driver.abandon();
            return Some(what);
        }
        driver.end();
        None
    }));
    let what = match whole {
        Ok(outcome) => outcome?,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
        }
    };
    // What was cut off is no failure.
    (!stopped()).then_some(Failure { at, what, idle })
}

impl Driver {
    /// Fails if the pool has taken a copy that was only left behind for one that was changed on its disk alone: clients leave alone
    /// what the pool shows from another disk than the newest. A copy on a disk that failed in the middle of a write may be
    /// taken for one (docs/copies-at-once.md).
    fn nothing_was_apart(&self, plan: &Plan) -> Result<(), String> {
        let log = self.world.pool().log();
        let refused = self.refusals.times > 0;
        let failed = refused.then(|| self.world.disks[branches::DISK].path().display().to_string());
        let is_false = |line: &&str| {
            line.contains(" alone, and elsewhere without it")
                && !failed.as_ref().is_some_and(|disk| line.contains(disk.as_str()))
        };
        match log.lines().find(is_false) {
            Some(line) if !plan.weathers.has(Weather::Older) => {
                Err(format!("no disk was used alone: {line}"))
            }
            _ => Ok(()),
        }
    }

    fn new(plan: &Plan) -> Self {
        let now = Conditions {
            small: plan.small.is_some(),
            copies: plan.weathers.has(Weather::Copies),
            mirror: plan.disks.contains(&Make::Faulty),
            ..Conditions::default()
        };
        let world = World::new(plan);
        let now = Conditions { survives: world.survives(), ..now };
        Self {
            idle: false,
            world,
            gone: None,
            command: None,
            kill: None,
            now,
            direct: 0,
            kept: Known::default(),
            littered: false,
            refusals: Refusals::default(),
        }
    }

    fn play(
        &mut self,
        steps: &[(usize, Step)],
        (at, idle): (&mut usize, &mut Vec<usize>),
        watchdog: &Watchdog,
        chatty: bool,
    ) -> Result<(), String> {
        let mut clients = 0;
        for (number, step) in steps {
            if stopped() {
                return Err("interrupted".into());
            }
            *at = *number;
            watchdog.pat(*number);
            if chatty {
                eprintln!("step {number}: {step:?}");
            }
            self.idle = false;
            self.step(step).map_err(|what| format!("{step:?}: {what}"))?;
            if self.idle {
                idle.push(*number);
            }
            clients += usize::from(matches!(step, Step::Client(_)));
            if clients == EVERY {
                clients = 0;
                self.compare()?;
            }
        }
        Ok(())
    }

    fn step(&mut self, step: &Step) -> Result<(), String> {
        if self.kill.as_ref().is_some_and(Kill::is_done) {
            self.end_kill()?;
        }
        match *step {
            Step::Client(op) => self.client(&op),
            Step::Truncate { path, size } => self.truncate(path, size),
            Step::Map { path, offset, len, byte } => self.map(path, offset, len, byte),
            Step::BigAttribute { path, byte } => self.big_attribute(path, byte),
            Step::Settle => self.settle(),
            Step::Race { how, files } => self.race(how, files),
            Step::Kill { after } => self.kill(after),
            Step::Upgrade => self.upgrade(),
            Step::Remount => self.remount(),
            Step::Start { command, disk } => self.start(command, disk),
            Step::End { kill } => self.end_command(kill),
            Step::Dedup => self.dedup(),
            Step::Unruled { files } => self.unruled(files),
            Step::Reorder { seed } => self.reorder(seed),
            Step::Grow => self.grow(),
            Step::Drain { disk } => self.drain(disk),
            Step::Direct { what, choice } => self.directly(what, choice),
            Step::Full { full } => self.full(full),
            Step::Readonly { disk, on } => self.read_only(disk, on),
            Step::Unreadable { on } => self.unreadable(on),
            Step::Failing { on } => self.failing(on),
            Step::Refusing { what } => self.refusing(what),
            Step::Away { disk, how, settled } => self.away(disk, how, settled),
            Step::Back { front } => self.back(front),
            Step::Picture { disk } => self.picture(disk),
            Step::Older => self.older(),
            Step::Trash { what, choice } => self.trashing(what, choice),
        }
    }

    /// Compares the pool with the plain directory, unless it cannot be read.
    fn compare(&mut self) -> Result<(), String> {
        if self.now.is_sick() {
            return Ok(());
        }
        let hidden = self.hidden();
        compare::pool(&mut self.world, &hidden)
    }

    fn hidden(&self) -> Paths {
        self.gone.as_ref().map_or_else(Paths::new, |gone| gone.hidden.clone())
    }

    /// Waits for what runs beside the clients.
    fn calm(&mut self) -> Result<(), String> {
        self.end_command(false)?;
        self.end_kill()
    }

    /// Ends everything, with all checks.
    fn end(mut self) {
        if let Err(what) = self.calm() {
            panic!("at the end: {what}");
        }
        self.close();
        for disk in &mut self.world.disks {
            disk.heal();
            disk.put_back();
        }
        self.world.end();
    }

    /// Ends everything after a failure.
    fn abandon(mut self) {
        if let Some((_, child)) = &mut self.command {
            let _ = child.kill();
            let _ = child.wait();
        }
        self.world.abort();
        let world = AssertUnwindSafe(self.world);
        // Its guards complain of what the failure has left.
        let _ = catch_unwind(move || drop(world));
    }
}
