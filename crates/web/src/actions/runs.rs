//! Actions that were asked for: what each would do, whether it runs, what it says, and how it ended.

use super::child::{self, End, Order};
use super::record::{Line, Record};
use super::{Action, Hidden, Undo};
use crate::data::command::command_line;
use std::collections::VecDeque;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// How many commands of actions, and of their plans, run at once.
const AT_ONCE: usize = 6;
/// How many are remembered with what they said.
const MOST: usize = 60;
/// Of what a command says, the last lines are kept.
const LINES: usize = 400;
/// A plan that is older is made again before it is followed: a pool changes.
const PLAN_VALID: Duration = Duration::from_secs(15 * 60);
/// A plan that takes longer is given up.
const PLAN_DEADLINE: Duration = Duration::from_secs(30 * 60);
/// How long the program waits at its own end for commands that it has asked to stop.
const FAREWELL: Duration = Duration::from_secs(10);

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum State {
    /// The command that shows the plan runs.
    Planning,
    /// It waits for a yes.
    Ready,
    /// There is no plan, for this reason.
    Impossible(String),
    Running,
    Paused,
    /// It was asked to stop.
    Stopping,
    /// It has ended: well or not, in words.
    Over(bool, String),
    /// Nobody wants it any more.
    Dropped,
}

impl State {
    pub fn has_child(&self) -> bool {
        matches!(self, State::Planning) || self.acts()
    }

    pub fn acts(&self) -> bool {
        matches!(self, State::Running | State::Paused | State::Stopping)
    }
}

/// The last lines of what a command said.
#[derive(Clone, Debug, Default)]
pub struct Said {
    pub lines: VecDeque<String>,
    pub count: u64,
}

impl Said {
    fn push(&mut self, line: &str) {
        self.count += 1;
        self.lines.push_back(line.to_owned());
        if self.lines.len() > LINES {
            self.lines.pop_front();
        }
    }
}

#[derive(Clone, Debug)]
pub struct Run {
    pub id: u64,
    pub action: Arc<Action>,
    pub state: State,
    pub plan: Said,
    pub output: Said,
    /// The session that asked for it.
    pub by: String,
    asked: Instant,
    began: Option<Instant>,
    ended: Option<Instant>,
    orders: Option<Sender<Order>>,
}

impl Run {
    pub fn command(&self) -> String {
        command_line(&self.action.argv)
    }

    /// How long it has run, without the fraction of a second.
    pub fn seconds(&self) -> u64 {
        let end = self.ended.unwrap_or_else(Instant::now);
        self.began.map_or(0, |began| end.saturating_duration_since(began).as_secs())
    }
}

#[derive(Debug, Default)]
struct All {
    last: u64,
    runs: VecDeque<Run>,
}

impl All {
    fn get(&mut self, id: u64) -> Option<&mut Run> {
        self.runs.iter_mut().find(|run| run.id == id)
    }

    fn children(&self) -> usize {
        self.runs.iter().filter(|run| run.state.has_child()).count()
    }

    fn forget_old(&mut self) {
        while self.runs.len() >= MOST {
            let Some(old) = self.runs.iter().position(|run| !run.state.has_child()) else { return };
            self.runs.remove(old);
        }
    }
}

#[derive(Debug)]
pub struct Runs {
    program: PathBuf,
    record: Record,
    all: Mutex<All>,
}

impl Runs {
    pub fn new(program: PathBuf, state: &Path) -> Runs {
        Runs { program, record: Record::open(state), all: Mutex::default() }
    }

    fn all(&self) -> MutexGuard<'_, All> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers an action that somebody asks for, has its plan made, and returns its number.
    ///
    /// # Errors
    /// If too much runs.
    pub fn ask(self: &Arc<Runs>, action: Action, by: &str) -> Result<u64, String> {
        let plan = action.plan.clone();
        let input = action.input.clone();
        let mut all = self.all();
        if plan.is_some() && all.children() >= AT_ONCE {
            return Err(busy());
        }
        all.forget_old();
        all.last += 1;
        let id = all.last;
        let (orders, receiver) = channel(4);
        all.runs.push_back(Run {
            id,
            action: Arc::new(action),
            state: if plan.is_some() { State::Planning } else { State::Ready },
            plan: Said::default(),
            output: Said::default(),
            by: by.to_owned(),
            asked: Instant::now(),
            began: None,
            ended: None,
            orders: plan.is_some().then_some(orders),
        });
        drop(all);
        if let Some(plan) = plan {
            tokio::spawn(Arc::clone(self).make_plan(id, plan, input, receiver));
        }
        Ok(id)
    }

    async fn make_plan(
        self: Arc<Runs>,
        id: u64,
        plan: Vec<OsString>,
        input: Hidden,
        orders: Receiver<Order>,
    ) {
        let tell = |line: &str| self.change(id, |run| run.plan.push(line));
        let making = child::run(&self.program, &plan, &input.0, orders, tell);
        let deadline = tokio::time::sleep(PLAN_DEADLINE);
        let end = tokio::select! {
            end = making => end,
            () = deadline => End { well: false, said_anything: false, words: "the plan takes too long".into() },
        };
        self.change(id, |run| {
            run.orders = None;
            run.asked = Instant::now();
            if run.state != State::Planning {
                return;
            }
            // Something may be left undone, which the plan says. One that says nothing is none.
            run.state = if end.well || (end.said_anything && !end.words.starts_with("ended by")) {
                State::Ready
            } else {
                let last = run.plan.lines.back().map(|line| line.trim_start_matches("canopy: ").to_owned());
                State::Impossible(last.unwrap_or(end.words))
            };
        });
    }

    /// Begins what was asked for. Only whoever has asked can say yes.
    ///
    /// # Errors
    /// If that is not possible now.
    pub fn confirm(self: &Arc<Runs>, id: u64, by: &str, sure: bool) -> Result<(), String> {
        let mut all = self.all();
        let children = all.children();
        let run = all.get(id).ok_or("this action is no longer known")?;
        if run.by != by {
            return Err("another session has asked for this: ask for it yourself".into());
        }
        if run.state != State::Ready {
            return Err("this action does not wait for a yes".into());
        }
        if run.asked.elapsed() > PLAN_VALID {
            run.state = State::Dropped;
            return Err("this plan is too old: ask for it again".into());
        }
        if matches!(run.action.undo, Undo::Never(_)) && !sure {
            return Err("this cannot be undone: say that you know it".into());
        }
        if children >= AT_ONCE {
            return Err(busy());
        }
        let action = Arc::clone(&run.action);
        let other = all.runs.iter().find(|other| other.state.acts() && other.action.pool == action.pool);
        if let Some(other) = other {
            let line = format!(
                "“{}” (number {}) runs in the same place: wait for it, or stop it",
                other.action.title, other.id
            );
            return Err(line);
        }
        let (orders, receiver) = channel(4);
        if let Some(run) = all.get(id) {
            run.state = State::Running;
            run.began = Some(Instant::now());
            run.orders = Some(orders);
        }
        drop(all);
        self.record.note(by, &command_line(&action.argv), "begun");
        tokio::spawn(Arc::clone(self).act(id, action, by.to_owned(), receiver));
        Ok(())
    }

    async fn act(self: Arc<Runs>, id: u64, action: Arc<Action>, by: String, orders: Receiver<Order>) {
        let tell = |line: &str| self.change(id, |run| run.output.push(line));
        let end = child::run(&self.program, &action.argv, &action.input.0, orders, tell).await;
        self.record.note(&by, &command_line(&action.argv), &end.words);
        self.change(id, |run| {
            run.orders = None;
            run.ended = Some(Instant::now());
            let stopped = run.state == State::Stopping;
            let words = if stopped { format!("stopped ({})", end.words) } else { end.words };
            run.state = State::Over(end.well, words);
        });
    }

    /// Pauses, continues or stops a command.
    ///
    /// # Errors
    /// If it does not run.
    pub fn order(&self, id: u64, order: Order) -> Result<(), String> {
        let mut all = self.all();
        let run = all.get(id).ok_or("this action is no longer known")?;
        let next = match (&run.state, order) {
            (State::Running, Order::Pause) => State::Paused,
            (State::Paused, Order::GoOn) => State::Running,
            (State::Running | State::Paused, Order::Stop) => State::Stopping,
            (State::Stopping, Order::Kill) => State::Stopping,
            (State::Planning, Order::Stop) => State::Dropped,
            _ => return Err("this is not possible now: the action is in another state".into()),
        };
        // The channel has room unless the command is about to end.
        let sent = run.orders.as_ref().is_some_and(|orders| orders.try_send(order).is_ok());
        if !sent {
            return Err("the action is about to end".into());
        }
        run.state = next;
        Ok(())
    }

    /// Forgets what nobody has said yes to.
    ///
    /// # Errors
    /// If it is not one that waits.
    pub fn drop_it(&self, id: u64) -> Result<(), String> {
        match self.all().get(id) {
            Some(run) if matches!(run.state, State::Ready | State::Impossible(_)) => {
                run.state = State::Dropped
            }
            _ => return Err("this action does not wait for a yes".into()),
        }
        Ok(())
    }

    pub fn get(&self, id: u64) -> Option<Run> {
        self.all().get(id).cloned()
    }

    /// Returns what is remembered, the newest first, without what the commands said.
    pub fn list(&self) -> Vec<Run> {
        let bare = |run: &Run| Run { plan: Said::default(), output: Said::default(), ..run.clone() };
        self.all().runs.iter().rev().map(bare).collect()
    }

    pub fn record(&self) -> Vec<Line> {
        self.record.newest()
    }

    /// Stops all commands, and waits for their ends for a while: no command goes on without anybody who sees it.
    pub async fn end_all(&self) {
        for id in self.list().iter().filter(|run| run.state.has_child()).map(|run| run.id) {
            let _ = self.order(id, Order::Stop);
        }
        let deadline = Instant::now() + FAREWELL;
        while Instant::now() < deadline && self.all().runs.iter().any(|run| run.orders.is_some()) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    fn change(&self, id: u64, change: impl FnOnce(&mut Run)) {
        if let Some(run) = self.all().get(id) {
            change(run);
        }
    }
}

fn busy() -> String {
    format!("{AT_ONCE} commands run already: wait for one of them, or stop it")
}
