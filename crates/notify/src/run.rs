//! The loop of `canopy notify`: looks, tells, remembers.

use crate::deliver;
use crate::error::{Error, Result};
use crate::event::{Condition, Event, Phase, Seen, Severity, Subject};
use crate::history::History;
use crate::message::Message;
use crate::outbox::Outbox;
use crate::target::Target;
use crate::tracker::Tracker;
use canopy_base::text::os_error;
use canopy_config::state::keep;
use canopy_sys::shown::Show as _;
use canopy_terminal::{Priority, journal_line};
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::Path;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How often pools are looked at while events gather, and at most so many seconds apart.
const LOOKS: i64 = 10;
const APART: i64 = 5;

/// What is kept over a restart.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Memory {
    tracker: Tracker,
    outbox: Outbox,
}

/// Looks at pools again and again, until a signal arrives. Events gather for so many seconds.
/// Who is told is read again each time, so that a change of the files counts from then on.
pub(crate) fn watch(
    read: &dyn Fn() -> Result<Vec<Target>>,
    state: &Path,
    gather: i64,
    look: &dyn Fn() -> Result<Seen, String>,
) -> Result<()> {
    let ended = canopy_terminal::ends().map_err(Error::system("cannot wait for signals"))?;
    let mut targets = read()?;
    let mut mistake = String::new();
    let mut memory = recall(state);
    let mut history = History::beside(state);
    if targets.is_empty() {
        say(Severity::Notice, "nobody is told of anything; canopy notify events shows what happens");
    }
    memory.outbox.keep(|id| targets.iter().any(|target| target.id == id));
    let every = Duration::from_secs((gather / LOOKS).clamp(1, APART).unsigned_abs());
    let mut blind = false;
    loop {
        let now = now();
        match read() {
            Ok(new) => {
                mistake.clear();
                if new != targets {
                    targets = new;
                    memory.outbox.keep(|id| targets.iter().any(|target| target.id == id));
                    say(Severity::Notice, "who is told has changed");
                }
            }
            // Those who were told go on to be told.
            Err(why) if mistake != why.to_string() => {
                mistake = why.to_string();
                say(Severity::Problem, &format!("who is told stays as it was: {mistake}"));
            }
            Err(_) => {}
        }
        match look() {
            Ok(seen) => {
                blind = false;
                let events = memory.tracker.observe(now, seen, gather);
                events.iter().for_each(log);
                if let Err(why) = history.add(now, &events) {
                    say(Severity::Warning, &format!("events cannot be kept: {}", os_error(&why)));
                }
                for target in &targets {
                    if let Some(message) = message_for(target, now, &events) {
                        memory.outbox.put(&target.id, message);
                    }
                }
            }
            // What was seen last lasts.
            Err(why) if !blind => {
                blind = true;
                say(Severity::Problem, &format!("pools cannot be looked at: {why}"));
            }
            Err(_) => {}
        }
        // So that no message is sent again by the next one, should this one be killed: at worst a message is sent twice.
        remember(state, &memory)?;
        let turns = memory.outbox.send(now, |id, message| {
            let target = targets.iter().find(|target| target.id == id);
            target.map_or(Ok(()), |target| deliver::send(target, message))
        });
        for (target, turn) in &turns {
            match turn {
                Err(why) => say(
                    Severity::Problem,
                    &format!("a message by {target} was not sent, and will be tried again: {why}"),
                ),
                Ok(()) => say(Severity::Notice, &format!("messages by {target} are sent again")),
            }
        }
        remember(state, &memory)?;
        match ended.recv_timeout(every) {
            Err(RecvTimeoutError::Timeout) => {}
            _ => return Ok(()),
        }
    }
}

/// Sends a message to each target, to try them. Returns how many could not be sent.
pub(crate) fn test(targets: &[Target]) -> Result<()> {
    let subject = Subject { pool: "canopy notify test".into(), code: "test".into(), branch: String::new() };
    let condition = Condition {
        subject,
        severity: Severity::Warning,
        text: "this is a trial, and nothing is wrong".into(),
        fix: String::new(),
    };
    let event = Event { phase: Phase::Happened, condition, since: now(), comes_and_goes: false };
    let message = Message { host: host(), at: now(), events: vec![event], test: true, lost: 0 };
    let mut failed = 0;
    for target in targets {
        match deliver::send(target, &message) {
            Ok(()) => canopy_terminal::print(&format!("{}: sent\n", target.id)),
            Err(why) => {
                failed += 1;
                canopy_terminal::print(&format!("{}: not sent: {why}\n", target.id));
            }
        }
    }
    if failed == 0 { Ok(()) } else { Err(Error::NotSent(failed, targets.len())) }
}

/// Returns what a target is told of these events, if anything.
fn message_for(target: &Target, now: i64, events: &[Event]) -> Option<Message> {
    let is_told = |event: &&Event| {
        // Who has heard of the beginning hears of the end.
        let severity = if event.phase == Phase::Ends { event.condition.severity } else { event.severity() };
        target.is_for(&event.condition.subject.pool)
            && severity >= target.least
            && (target.repeats || event.phase != Phase::Lasts)
    };
    let events: Vec<Event> = events.iter().filter(is_told).cloned().collect();
    (!events.is_empty()).then(|| Message { host: host(), at: now, events, test: false, lost: 0 })
}

fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

fn log(event: &Event) {
    let condition = &event.condition;
    let over = if event.phase == Phase::Ends { "over: " } else { "" };
    say(event.severity(), &format!("{}: {over}{}", condition.subject.pool, condition.text));
}

fn say(severity: Severity, line: &str) {
    let priority = match severity {
        Severity::Problem => Priority::Error,
        Severity::Warning => Priority::Warning,
        Severity::Notice => Priority::Notice,
    };
    journal_line(priority, line);
}

/// Reads what was kept. What cannot be read is begun anew, so that people are told once too often rather than never.
fn recall(state: &Path) -> Memory {
    let read = fs::read(state);
    match read.map(|bytes| serde_json::from_slice(&bytes)) {
        Ok(Ok(memory)) => memory,
        Ok(Err(why)) => {
            say(Severity::Warning, &format!("{} is damaged, and is begun anew: {why}", state.shown()));
            Memory::default()
        }
        Err(why) => {
            if why.kind() != std::io::ErrorKind::NotFound {
                say(Severity::Warning, &format!("{}: {}", state.shown(), os_error(&why)));
            }
            Memory::default()
        }
    }
}

/// Keeps it, for root alone: messages that wait may have what only root knows.
fn remember(state: &Path, memory: &Memory) -> Result<()> {
    let bytes = serde_json::to_vec(memory).unwrap_or_default();
    keep(state, &bytes, 0o600).map_err(|why| Error::File { file: state.to_owned(), why })
}
