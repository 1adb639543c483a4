//! Empties a disk that fails, where the pool's file asks for it:
//!
//! ```toml
//! [health]
//! drain = true
//! ```
//!
//! `canopy drain` does the work, as if somebody had typed it. What no other disk has room for stays, and is tried again the
//! next day.

use crate::error::{Error, Result};
use crate::event::{Condition, Counter, Severity, Subject};
use canopy_base::text::os_error;
use canopy_config::source::{named, toml};
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use toml_edit::Item;

/// As `canopy status` calls a disk that fails.
const FAILING: &str = "disk-failing";
/// After how many seconds a drain that has ended is tried again, as long as the disk is said to fail.
const AGAIN: i64 = 24 * 60 * 60;

/// When a drain ended, as far as that matters still. It is kept over a restart; one that was cut off is begun anew.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Ended(Vec<(Subject, i64)>);

/// The drains of this process.
pub(crate) struct Drains {
    /// The pools that ask for it, by mountpoint.
    pools: Vec<PathBuf>,
    running: Vec<(Subject, Child)>,
}

impl Drains {
    /// Reads the files of pools.
    ///
    /// # Errors
    /// The first mistake in one of them.
    pub(crate) fn of_pools() -> Result<Drains> {
        let mut pools = Vec::new();
        for pool in named::all() {
            let text = fs::read_to_string(&pool.file);
            let text = text.map_err(|why| Error::File { file: pool.file.clone(), why })?;
            if is_wanted(&pool.file, &text)? {
                pools.extend(pool.mountpoint());
            }
        }
        Ok(Drains { pools, running: Vec::new() })
    }

    /// Returns whether no pool asks for it.
    pub(crate) fn is_empty(&self) -> bool {
        self.pools.is_empty()
    }

    /// Notes which drains have ended, and begins those that are due: one at a time for each pool. Returns what there is to log.
    pub(crate) fn go_on(
        &mut self,
        now: i64,
        conditions: &[Condition],
        ended: &mut Ended,
    ) -> Vec<(Severity, String)> {
        let mut lines = Vec::new();
        self.running.retain_mut(|(subject, child)| {
            let Ok(Some(status)) = child.try_wait() else { return true };
            let Subject { pool, branch, .. } = &*subject;
            lines.push(if status.success() {
                (Severity::Notice, format!("{pool}: the files of {branch} are on other disks now"))
            } else {
                let why =
                    format!("{pool}: files of {branch} had to stay (canopy drain {pool} {branch} --dry-run)");
                (Severity::Problem, why)
            });
            ended.0.push((subject.clone(), now));
            false
        });
        // Forgotten once the disk is no longer said to fail: another one at its place is new.
        let fails = |subject: &Subject| conditions.iter().any(|condition| condition.subject == *subject);
        ended.0.retain(|(subject, at)| now - at < AGAIN && fails(subject));
        for Condition { subject, .. } in
            conditions.iter().filter(|condition| condition.subject.code == FAILING)
        {
            let is_busy = self.running.iter().any(|(other, _)| other.pool == subject.pool);
            let is_done = ended.0.iter().any(|(other, _)| other == subject);
            if is_busy || is_done || !self.pools.iter().any(|pool| pool.as_path() == Path::new(&subject.pool))
            {
                continue;
            }
            let mut drain = Command::new("/proc/self/exe");
            drain.args(["drain", "--yes", "--", &subject.pool, &subject.branch]);
            match drain.stdin(Stdio::null()).stdout(Stdio::null()).spawn() {
                Ok(child) => {
                    let line =
                        format!("{}: moving the files of {} to other disks", subject.pool, subject.branch);
                    lines.push((Severity::Warning, line));
                    self.running.push((subject.clone(), child));
                }
                Err(why) => {
                    let line =
                        format!("{}: canopy drain cannot be started: {}", subject.pool, os_error(&why));
                    lines.push((Severity::Problem, line));
                    ended.0.push((subject.clone(), now));
                }
            }
        }
        lines
    }

    /// Returns how often drains have ended, as something that happens.
    pub(crate) fn counters(&self, ended: &Ended) -> Vec<Counter> {
        let of = |subject: &Subject, count| {
            let text = format!("canopy drain has moved what it could from {}", subject.branch);
            Counter { subject: Subject { code: "disk-drained".into(), ..subject.clone() }, count, text }
        };
        let running = self.running.iter().map(|(subject, _)| of(subject, 0));
        running.chain(ended.0.iter().map(|(subject, _)| of(subject, 1))).collect()
    }
}

/// Returns whether a pool's file asks for it.
fn is_wanted(file: &Path, text: &str) -> Result<bool> {
    let mistake = |line: usize, what: String| Error::Mistake { file: file.to_owned(), line, what };
    let document = toml::document(text).map_err(|(line, what)| mistake(line, what))?;
    let Some(item) = document.get(toml::HEALTH) else { return Ok(false) };
    let at = item.span().map_or(0, |span| span.start);
    let mistake = |what: String| mistake(toml::line_of(text.as_bytes(), at), what);
    let Some(table) = item.as_table_like() else {
        return Err(mistake("health is a table: write [health] above it".into()));
    };
    if let Some((key, _)) = table.iter().find(|(key, _)| *key != "drain") {
        return Err(mistake(format!("unknown key '{key}' of [health] (it has drain)")));
    }
    match table.get("drain").map(Item::as_bool) {
        None => Ok(false),
        Some(Some(wanted)) => Ok(wanted),
        Some(None) => Err(mistake("drain of [health] is true or false".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_name_their_line() {
        let wanted =
            |text: &str| is_wanted(Path::new("/etc/canopy/p.toml"), text).map_err(|error| error.to_string());
        assert_eq!(wanted("branches = ['/a']\n"), Ok(false));
        assert_eq!(wanted("[health]\n"), Ok(false));
        assert_eq!(wanted("[health]\ndrain = true\n"), Ok(true));
        assert_eq!(wanted("health = { drain = false }\n"), Ok(false));
        for (text, told) in [
            ("\n[health]\ndrian = true\n", ":2: unknown key 'drian' of [health] (it has drain)"),
            ("[health]\ndrain = 'yes'\n", ":1: drain of [health] is true or false"),
            ("health = true\n", ":1: health is a table: write [health] above it"),
        ] {
            assert_eq!(wanted(text), Err(format!("/etc/canopy/p.toml{told}")), "{text}");
        }
    }

    #[test]
    fn what_is_over_is_forgotten() {
        let subject =
            |branch: &str| Subject { pool: "/p".into(), code: FAILING.into(), branch: branch.into() };
        let condition = |branch: &str| Condition {
            subject: subject(branch),
            severity: Severity::Problem,
            text: String::new(),
            fix: String::new(),
        };
        let mut drains = Drains { pools: Vec::new(), running: Vec::new() };
        let mut ended = Ended(vec![(subject("/a"), 0), (subject("/b"), 0)]);
        drains.go_on(10, &[condition("/a")], &mut ended);
        assert_eq!(ended, Ended(vec![(subject("/a"), 0)]));
        drains.go_on(AGAIN, &[condition("/a")], &mut ended);
        assert_eq!(ended, Ended::default(), "a day later it is tried again");
    }
}
