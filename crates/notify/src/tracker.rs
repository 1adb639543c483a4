//! Which conditions last, and which of them people know of. It does nothing but count: looks come in, events go out.

use crate::event::{Condition, Event, Phase, Seen, Severity, Subject};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// After how many seconds a condition that lasts may be told again.
const DAY: i64 = 24 * 60 * 60;
/// How often a condition may begin within an hour before it must be gone for `CALM` seconds to have ended.
const OFTEN: usize = 3;
const HOUR: i64 = 60 * 60;
const CALM: i64 = 30 * 60;

/// A condition that lasts.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Open {
    condition: Condition,
    since: i64,
    /// Since when it was not seen.
    absent: Option<i64>,
    /// When it was told last; `None` if never.
    told: Option<i64>,
}

/// What lasts, what has been told, and what gathers. It is kept over a restart.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Tracker {
    open: Vec<Open>,
    /// When conditions began within the last hour.
    begun: Vec<(Subject, i64)>,
    counts: Vec<(Subject, u64)>,
    happened: Vec<Event>,
}

impl Tracker {
    /// Takes in a look. Returns what is to be told now, the gravest first.
    ///
    /// Events gather for `gather` seconds, so that one disk that falls out gives one message. A condition that is not seen for
    /// as long has ended.
    pub(crate) fn observe(&mut self, now: i64, seen: Seen, gather: i64) -> Vec<Event> {
        self.begun.retain(|(_, at)| now - at < HOUR);
        let mut there: BTreeMap<Subject, Condition> =
            seen.conditions.into_iter().map(|condition| (condition.subject.clone(), condition)).collect();
        for open in &mut self.open {
            match there.remove(&open.condition.subject) {
                // Its text may have changed, as with the space that is left.
                Some(condition) => {
                    open.condition = condition;
                    if open.absent.take().is_some() {
                        self.begun.push((open.condition.subject.clone(), now));
                    }
                }
                None => _ = open.absent.get_or_insert(now),
            }
        }
        for (subject, condition) in there {
            self.begun.push((subject, now));
            self.open.push(Open { condition, since: now, absent: None, told: None });
        }
        for counter in seen.counters {
            let known = self.counts.iter_mut().find(|(subject, _)| *subject == counter.subject);
            let before = match known {
                Some((_, count)) => std::mem::replace(count, counter.count),
                None => {
                    self.counts.push((counter.subject.clone(), counter.count));
                    counter.count
                }
            };
            if counter.count > before {
                let condition = Condition {
                    subject: counter.subject,
                    severity: Severity::Notice,
                    text: counter.text,
                    fix: String::new(),
                };
                self.happened.push(Event {
                    phase: Phase::Happened,
                    condition,
                    since: now,
                    comes_and_goes: false,
                });
            }
        }
        let mut events = self.due(now, gather);
        events.sort_by_key(|event| std::cmp::Reverse(event.severity()));
        events
    }

    fn due(&mut self, now: i64, gather: i64) -> Vec<Event> {
        let mut events = Vec::new();
        let untold = self.open.iter().filter(|open| open.told.is_none()).map(|open| open.since);
        let oldest = untold.chain(self.happened.iter().map(|event| event.since)).min();
        let flush = oldest.is_some_and(|oldest| now - oldest >= gather);
        if flush {
            events.append(&mut self.happened);
        }
        let begun = &self.begun;
        let often = |subject: &Subject| begun.iter().filter(|(it, _)| it == subject).count() > OFTEN;
        self.open.retain_mut(|open| {
            let comes_and_goes = often(&open.condition.subject);
            let mut tell = |phase| {
                events.push(Event {
                    phase,
                    condition: open.condition.clone(),
                    since: open.since,
                    comes_and_goes,
                });
            };
            let gone_for = open.absent.map(|absent| now - absent);
            match (open.told, gone_for) {
                (None, _) if !flush => return true,
                (None, Some(_)) => {
                    // One that comes back all the time is told of once, and stays until it is calm.
                    tell(Phase::Brief);
                    return false;
                }
                (None, None) => tell(Phase::Begins),
                (Some(_), Some(gone)) if gone >= if comes_and_goes { CALM } else { gather } => {
                    tell(Phase::Ends);
                    return false;
                }
                (Some(told), None) if now - told >= DAY => tell(Phase::Lasts),
                (Some(_), _) => return true,
            }
            open.told = Some(now);
            true
        });
        events
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Counter;

    const GATHER: i64 = 50;

    fn subject(branch: &str) -> Subject {
        Subject { pool: "/pool".into(), code: "branch-gone".into(), branch: branch.into() }
    }

    fn seen(branches: &[&str]) -> Seen {
        let condition = |branch: &&str| Condition {
            subject: subject(branch),
            severity: Severity::Problem,
            text: format!("{branch} is gone"),
            fix: "look at the disk".into(),
        };
        Seen { conditions: branches.iter().map(condition).collect(), counters: Vec::new() }
    }

    /// Looks every 10 seconds from `from` on, for as long as `until` says, and returns what was told, and when.
    fn watch(tracker: &mut Tracker, from: i64, until: i64, branches: &[&str]) -> Vec<(i64, Phase, String)> {
        let mut told = Vec::new();
        for now in (from..until).step_by(10) {
            let events = tracker.observe(now, seen(branches), GATHER);
            told.extend(events.into_iter().map(|event| (now, event.phase, event.condition.subject.branch)));
        }
        told
    }

    #[test]
    fn a_condition_is_told_once_when_it_begins_and_once_when_it_ends() {
        let mut tracker = Tracker::default();
        assert_eq!(watch(&mut tracker, 0, 1000, &["a"]), [(50, Phase::Begins, "a".into())]);
        // As after a restart.
        let text = serde_json::to_string(&tracker).unwrap();
        let mut tracker: Tracker = serde_json::from_str(&text).unwrap();
        assert_eq!(watch(&mut tracker, 1000, 3000, &["a"]), []);
        assert_eq!(watch(&mut tracker, 3000, 9000, &[]), [(3050, Phase::Ends, "a".into())]);
    }

    #[test]
    fn what_happens_within_a_minute_is_one_message() {
        let mut tracker = Tracker::default();
        assert_eq!(watch(&mut tracker, 0, 30, &["a"]), []);
        let both = [(50, Phase::Begins, "a".into()), (50, Phase::Begins, "b".into())];
        assert_eq!(watch(&mut tracker, 30, 200, &["a", "b"]), both);
        // Away for less than a minute: nobody hears of it.
        assert_eq!(watch(&mut tracker, 200, 240, &["b"]), []);
        assert_eq!(watch(&mut tracker, 240, 900, &["a", "b"]), []);
        let mut tracker = Tracker::default();
        assert_eq!(watch(&mut tracker, 0, 10, &["a"]), []);
        assert_eq!(watch(&mut tracker, 10, 900, &[]), [(50, Phase::Brief, "a".into())]);
    }

    #[test]
    fn what_lasts_may_be_told_daily() {
        let mut tracker = Tracker::default();
        let told = watch(&mut tracker, 0, 2 * DAY + 200, &["a"]);
        let phases: Vec<Phase> = told.iter().map(|(_, phase, _)| *phase).collect();
        assert_eq!(phases, [Phase::Begins, Phase::Lasts, Phase::Lasts]);
        assert_eq!(told[1].0, DAY + 50);
    }

    #[test]
    fn what_comes_and_goes_makes_no_storm() {
        let mut tracker = Tracker::default();
        let mut told = Vec::new();
        for minute in 0..120 {
            let branches: &[&str] = if minute % 4 < 2 { &["a"] } else { &[] };
            told.extend(watch(&mut tracker, minute * 60, minute * 60 + 60, branches));
        }
        assert!(told.len() <= 2 * (OFTEN + 1), "{told:?}");
        let after = watch(&mut tracker, 120 * 60, 200 * 60, &[]);
        assert_eq!(after.iter().map(|(_, phase, _)| *phase).collect::<Vec<_>>(), [Phase::Ends]);
    }

    #[test]
    fn a_count_that_grows_is_told_and_the_first_is_not() {
        let mut tracker = Tracker::default();
        let count = |count| Seen {
            conditions: Vec::new(),
            counters: vec![Counter {
                subject: Subject { code: "taken-over".into(), ..subject("") },
                count,
                text: format!("{count} times"),
            }],
        };
        assert_eq!(tracker.observe(0, count(3), GATHER), []);
        assert_eq!(tracker.observe(10, count(4), GATHER), []);
        let told = tracker.observe(60, count(4), GATHER);
        assert_eq!(told.len(), 1);
        assert_eq!(
            (told[0].phase, &*told[0].condition.text, told[0].since),
            (Phase::Happened, "4 times", 10)
        );
        assert_eq!(tracker.observe(200, count(4), GATHER), []);
        // A pool that was mounted anew begins to count again.
        assert_eq!(tracker.observe(300, count(0), GATHER), []);
        assert_eq!(tracker.observe(400, count(0), GATHER), []);
    }
}
