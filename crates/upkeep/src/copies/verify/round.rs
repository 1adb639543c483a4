//! A round through a pool that several runs of `verify --resume` make: each goes on where the one before has stopped.
//!
//! Files are read in the order of their paths, so the path of the next one says how far a round is. Losing it costs a round
//! that begins anew.

use super::collect::Unit;
use super::report::Report;
use canopy_base::text::{date, os_error};
use canopy_config::state;
use canopy_control::OsText;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How often it is kept how far a round is.
const KEEP: Duration = Duration::from_secs(60);

/// How far a round is, and what it has found.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(super) struct Round {
    /// Seconds since 1970.
    pub(super) began: i64,
    /// The first file that is still to be read; null if all are read.
    pub(super) next: Option<OsText>,
    /// What it has found so far.
    pub(super) files: u64,
    pub(super) damaged: u64,
    pub(super) differing: u64,
}

/// The round that this run goes on with.
#[derive(Debug)]
pub(super) struct Rounds {
    file: PathBuf,
    before: Round,
    kept: Instant,
    until: Option<Instant>,
}

impl Rounds {
    /// Goes on with the round of a pool, for so long at most.
    pub(super) fn of(mountpoint: &Path, most: Option<Duration>) -> Rounds {
        let name = format!("{}.json", state::name_of(mountpoint));
        Rounds::at(state::directory().join("verify").join(name), most)
    }

    fn at(file: PathBuf, most: Option<Duration>) -> Rounds {
        let kept = fs::read(&file).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |age| age.as_secs());
        let anew = || Round { began: i64::try_from(now).unwrap_or(i64::MAX), ..Round::default() };
        let until = most.and_then(|most| Instant::now().checked_add(most));
        Rounds { file, before: kept.unwrap_or_else(anew), kept: Instant::now(), until }
    }

    /// Takes out what earlier runs have read.
    pub(super) fn skip(&self, units: &mut Vec<Unit>) {
        if let Some(next) = self.before.next.as_ref().map(OsText::to_path) {
            units.retain(|unit| name(unit) >= next.as_path());
        }
    }

    /// Returns whether its time is up.
    pub(super) fn is_over(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() >= until)
    }

    /// Returns how far the round is when `next` is to be read next.
    pub(super) fn now(&self, report: &Report, next: Option<&Unit>) -> Round {
        Round {
            began: self.before.began,
            next: next.map(|unit| OsText::from(name(unit))),
            files: self.before.files + report.files.files - report.not_begun.files,
            damaged: self.before.damaged + report.damaged.files - report.fixed.files,
            differing: self.before.differing + report.differing,
        }
    }

    /// Keeps now and then how far the round is, in case this is killed.
    pub(super) fn reach(&mut self, report: &Report, next: &Unit) {
        if self.kept.elapsed() >= KEEP {
            self.kept = Instant::now();
            let _ = self.keep(&self.now(report, Some(next)));
        }
    }

    /// Keeps how far the round is at the end of this run. The next one begins anew if all was read.
    ///
    /// Errors: a sentence.
    pub(super) fn keep(&self, round: &Round) -> Result<(), String> {
        let done = if round.next.is_some() {
            let bytes = serde_json::to_vec(round).unwrap_or_default();
            state::keep(&self.file, &bytes, 0o600)
        } else {
            fs::remove_file(&self.file).or_else(|why| match why.kind() {
                std::io::ErrorKind::NotFound => Ok(()),
                _ => Err(why),
            })
        };
        done.map_err(|why| format!("how far it is cannot be kept: {}", os_error(&why)))
    }
}

impl Round {
    pub(super) fn text(&self) -> String {
        let day = date(self.began);
        let day = day.split('T').next().unwrap_or_default();
        let files = format!("{} files, {} damaged", self.files, self.damaged);
        match &self.next {
            None => format!("round since {day}: {files}; all are read\n"),
            Some(next) => format!("round since {day}: {files}; the next run begins at {}\n", next.one_line()),
        }
    }
}

/// Units are in the order of these.
fn name(unit: &Unit) -> &Path {
    unit.items.first().map_or(Path::new(""), |item| item.names[0].as_path())
}

#[cfg(test)]
mod tests {
    use super::super::collect::Item;
    use super::*;
    use crate::survey::FileCopy;

    fn unit(name: &str) -> Unit {
        let copy = FileCopy { branch: 0, stat: rustix::fs::stat("/proc/self/exe").expect("stat") };
        Unit { items: vec![Item { copy, names: vec![name.into()] }], shared: Vec::new() }
    }

    #[test]
    fn a_round_goes_on_at_its_next_file_also_if_that_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("below/round.json");
        let rounds = Rounds::at(file.clone(), None);
        let names = ["a/z", "a-b", "b", "c/d", "e"];
        let left = |rounds: &Rounds| {
            let mut units: Vec<Unit> = names.iter().map(|name| unit(name)).collect();
            rounds.skip(&mut units);
            units.iter().map(|unit| name(unit).display().to_string()).collect::<Vec<_>>()
        };
        assert_eq!(left(&rounds), names);
        let round = Round {
            next: Some(OsText::Text("b/gone".into())),
            files: 3,
            damaged: 1,
            ..rounds.before.clone()
        };
        rounds.keep(&round).unwrap();
        let next = Rounds::at(file.clone(), None);
        assert_eq!((left(&next), &next.before), (vec!["c/d".to_owned(), "e".to_owned()], &round));
        // At its end it is forgotten, also twice.
        next.keep(&Round { next: None, ..round }).unwrap();
        next.keep(&Round::default()).unwrap();
        assert_eq!(left(&Rounds::at(file.clone(), None)), names);
        fs::write(&file, "{").unwrap();
        assert_eq!(left(&Rounds::at(file, Some(Duration::ZERO))), names);
    }

    #[test]
    fn its_time_is_up_when_it_says_so() {
        let of = |most| Rounds::at("/no-such/file".into(), most).is_over();
        assert!(of(Some(Duration::ZERO)) && !of(None) && !of(Some(Duration::MAX)));
    }
}
