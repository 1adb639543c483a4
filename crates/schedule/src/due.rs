//! Whether a job is to run now.

use crate::record::Record;
use crate::table::Job;
use jiff::{Timestamp, Zoned};

/// A job that begins so much later was missed, in seconds: the machine was off, or nobody ran its jobs.
const LATE: i64 = 10 * 60;
/// How often a job is begun anew that was cut off each time: it may be what ends the machine.
const ATTEMPTS: u32 = 3;
/// After how many seconds a job that has not begun is overdue: at least, and at most.
const LEAST: i64 = 15 * 60;
const MOST: i64 = 24 * 60 * 60;

/// What to do about a job that does not run now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Decision {
    Nothing,
    /// It is new, has new words, or the clock was wrong: it runs the next time.
    Since(i64),
    /// It was missed, and is not to catch up.
    Skip(i64),
    /// It is to run, for this time.
    Run(i64),
    /// It was cut off too often.
    GiveUp,
}

pub(crate) fn decide(job: &Job, record: Option<&Record>, now: &Zoned, was_due: bool) -> Decision {
    let at = now.timestamp().as_second();
    let latest = job.when.latest(now).map_or(at, |time| time.timestamp().as_second());
    let Some(record) = record.filter(|record| record.when == job.when.to_string()) else {
        return Decision::Since(latest);
    };
    // The clock was ahead by more than the time to the next run. Otherwise that would not come for years.
    let next = job.when.next(now).map_or(i64::MAX, |time| time.timestamp().as_second());
    if record.due > next {
        return Decision::Since(latest);
    }
    if record.is_cut_off() && job.catches_up {
        return if record.cut_off >= ATTEMPTS {
            Decision::GiveUp
        } else {
            Decision::Run(record.due.max(latest))
        };
    }
    if latest <= record.due {
        Decision::Nothing
    } else if !job.catches_up && !was_due && at - latest > LATE {
        Decision::Skip(latest)
    } else {
        Decision::Run(latest)
    }
}

/// Returns since when a job should have run, if that is too long ago. Its file has told of it since `known`.
pub(crate) fn overdue(job: &Job, record: Option<&Record>, now: &Zoned, known: i64) -> Option<i64> {
    let record = record.filter(|record| record.when == job.when.to_string());
    let dealt_with = Timestamp::from_second(record.map_or(known, |record| record.due)).ok()?;
    // The first that was missed: the latest is never old where a job has missed many.
    let missed = job.when.next(&dealt_with.to_zoned(now.time_zone().clone()))?.timestamp().as_second();
    let half = i64::try_from(job.when.interval(now).as_secs() / 2).unwrap_or(MOST);
    let grace = half.clamp(LEAST, MOST);
    (now.timestamp().as_second() - missed > grace).then_some(missed)
}

/// Returns up to which time a run that has ended now has dealt with: what came meanwhile is not run behind it.
pub(crate) fn dealt_with(job: &Job, due: i64, now: &Zoned) -> i64 {
    job.when.latest(now).map_or(due, |time| time.timestamp().as_second().max(due))
}

/// Returns a time of the record as a person reads it.
pub(crate) fn shown(at: i64, now: &Zoned) -> String {
    let time = Timestamp::from_second(at).map(|time| time.to_zoned(now.time_zone().clone()));
    time.map_or_else(|_| "never".into(), |time| time.strftime("%Y-%m-%d %H:%M").to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Outcome, Run};
    use crate::table::Table;
    use jiff::civil::DateTime;
    use jiff::tz::TimeZone;
    use std::path::Path;

    fn job(more: &str) -> Job {
        let text = format!("[[schedule]]\ndo = 'verify'\nwhen = 'every night at 03:00'\n{more}");
        Table::parse(Path::new("/f"), &text, &|_| Ok(())).unwrap().jobs.remove(0)
    }

    fn at(text: &str) -> Zoned {
        text.parse::<DateTime>().unwrap().to_zoned(TimeZone::UTC).unwrap()
    }

    fn seconds(text: &str) -> i64 {
        at(text).timestamp().as_second()
    }

    fn record(due: &str) -> Record {
        Record { when: job("").when.to_string(), due: seconds(due), ..Record::default() }
    }

    #[test]
    fn a_job_runs_once_for_each_of_its_times() {
        let job = job("");
        let decide = |record: Option<&Record>, now: &str| decide(&job, record, &at(now), false);
        // A new one waits for its first time.
        assert_eq!(decide(None, "2026-11-27T22:00"), Decision::Since(seconds("2026-11-27T03:00")));
        let known = record("2026-11-27T03:00");
        assert_eq!(decide(Some(&known), "2026-11-28T02:59"), Decision::Nothing);
        assert_eq!(decide(Some(&known), "2026-11-28T03:00"), Decision::Run(seconds("2026-11-28T03:00")));
        let ran = record("2026-11-28T03:00");
        assert_eq!(decide(Some(&ran), "2026-11-28T03:00:30"), Decision::Nothing);
        // Off for a week: once, not seven times.
        assert_eq!(decide(Some(&ran), "2026-12-05T12:00"), Decision::Run(seconds("2026-12-05T03:00")));
        // Other words begin anew.
        let other = Record { when: "every month".into(), ..ran };
        assert_eq!(decide(Some(&other), "2026-12-05T12:00"), Decision::Since(seconds("2026-12-05T03:00")));
    }

    #[test]
    fn what_was_missed_is_skipped_where_the_job_says_so() {
        let job = job("missed = 'skip'");
        let ran = record("2026-11-28T03:00");
        let decide = |now: &str, was_due| decide(&job, Some(&ran), &at(now), was_due);
        let tonight = seconds("2026-11-29T03:00");
        assert_eq!(decide("2026-11-29T03:05", false), Decision::Run(tonight));
        assert_eq!(decide("2026-11-29T03:11", false), Decision::Skip(tonight));
        // It was there in time, and has waited for an idle pool since.
        assert_eq!(decide("2026-11-29T07:00", true), Decision::Run(tonight));
    }

    #[test]
    fn a_clock_that_jumps_neither_repeats_a_job_nor_keeps_it_for_years() {
        let job = job("");
        let decide = |record: &Record, now: &str| decide(&job, Some(record), &at(now), false);
        // Back by an hour, after the run.
        let ran = record("2026-11-28T03:00");
        assert_eq!(decide(&ran, "2026-11-28T02:05"), Decision::Nothing);
        assert_eq!(decide(&ran, "2026-11-28T03:00"), Decision::Nothing);
        // A run in 2099 was none.
        let future = record("2099-01-01T03:00");
        assert_eq!(decide(&future, "2026-11-28T12:00"), Decision::Since(seconds("2026-11-28T03:00")));
        // A machine that begins in 1970, and learns the time later.
        let early = record("1970-01-01T03:00");
        assert_eq!(decide(&early, "2026-11-28T12:00"), Decision::Run(seconds("2026-11-28T03:00")));
    }

    #[test]
    fn what_was_cut_off_is_begun_anew_a_few_times() {
        let run = |outcome, ended| Run {
            command: "x".into(),
            began: 1,
            ended,
            outcome,
            text: String::new(),
            by_hand: false,
        };
        let mut cut = record("2026-11-28T03:00");
        let due = Decision::Run(seconds("2026-11-28T03:00"));
        let now = at("2026-11-28T08:00");
        for last in [run(None, None), run(Some(Outcome::CutOff), Some(2))] {
            cut.last = Some(last);
            assert_eq!(decide(&job(""), Some(&cut), &now, false), due);
            assert_eq!(decide(&job("missed = 'skip'"), Some(&cut), &now, false), Decision::Nothing);
        }
        cut.cut_off = ATTEMPTS;
        assert_eq!(decide(&job(""), Some(&cut), &now, false), Decision::GiveUp);
        // One that somebody has begun is theirs.
        cut.last = Some(Run { by_hand: true, ..run(None, None) });
        assert_eq!(decide(&job(""), Some(&cut), &now, false), Decision::Nothing);
    }

    #[test]
    fn what_does_not_begin_is_overdue() {
        let job = job("");
        let ran = record("2026-11-28T03:00");
        let overdue =
            |record: Option<&Record>, now: &str, known: &str| overdue(&job, record, &at(now), seconds(known));
        let tonight = Some(seconds("2026-11-29T03:00"));
        assert_eq!(overdue(Some(&ran), "2026-11-29T14:00", "2026-11-01T00:00"), None);
        assert_eq!(overdue(Some(&ran), "2026-11-29T16:00", "2026-11-01T00:00"), tonight);
        // At any time of day, if it has missed several.
        for hour in ["04:00", "14:00", "16:00"] {
            assert_eq!(overdue(Some(&ran), &format!("2026-12-01T{hour}"), "2026-11-01T00:00"), tonight);
        }
        // Nobody has ever run it.
        let first = Some(seconds("2026-11-01T03:00"));
        assert_eq!(overdue(None, "2026-11-29T16:00", "2026-11-01T00:00"), first);
        assert_eq!(overdue(None, "2026-11-29T16:00", "2026-11-29T12:00"), None);
    }

    #[test]
    fn a_run_that_takes_longer_than_a_day_is_not_run_behind_itself() {
        let due = seconds("2026-11-28T03:00");
        let ended = dealt_with(&job(""), due, &at("2026-11-29T09:00"));
        assert_eq!(ended, seconds("2026-11-29T03:00"));
        // A clock that was put back takes nothing away.
        assert_eq!(dealt_with(&job(""), due, &at("2026-11-28T02:00")), due);
    }
}
