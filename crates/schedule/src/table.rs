//! What a pool's file says of jobs: the tables `[[schedule]]`, and `drain` of `[health]`.

use crate::error::{Error, Result};
use crate::when::When;
use crate::work::{DRAIN, Work};
use canopy_config::options::closest;
use canopy_config::source::named::{self, NamedPool};
use canopy_config::source::toml;
use canopy_config::units;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;
use toml_edit::{Item, TableLike, Value};

const KEYS: [&str; 9] =
    ["name", "do", "when", "idle", "awake-only", "missed", "deletions", "nice", "at-most"];
/// How nice a job is that does not say (nice(1)).
const NICE: u8 = 10;
/// After how many deletions snapraid does not sync, unless a job says so.
const DELETIONS: u64 = 100;

/// Says whether the program takes these arguments, or in one line why not.
pub type Check<'c> = &'c dyn Fn(&[std::ffi::OsString]) -> Result<(), String>;

/// Something that is to be done again and again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Job {
    pub(crate) name: String,
    pub(crate) when: When,
    pub(crate) work: Work,
    /// It waits while clients keep the pool busy, and on battery.
    pub(crate) idle: bool,
    /// It waits while a disk of the pool sleeps.
    pub(crate) awake_only: bool,
    /// It runs later if the machine was off.
    pub(crate) catches_up: bool,
    /// After how many deletions it does not begin.
    pub(crate) deletions: Option<u64>,
    pub(crate) nice: u8,
    /// How long it may run.
    pub(crate) at_most: Option<Duration>,
    /// What the file says of it, as text by key.
    pub(crate) says: BTreeMap<String, String>,
}

impl Job {
    /// Returns a job that is not in the file, and begins when something happens.
    pub(crate) fn once(name: String, work: Work) -> Job {
        Job {
            name,
            when: When::daily(),
            work,
            idle: false,
            awake_only: false,
            catches_up: true,
            deletions: None,
            nice: NICE,
            at_most: None,
            says: BTreeMap::new(),
        }
    }
}

/// What a pool's file says.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Table {
    pub(crate) jobs: Vec<Job>,
    /// Disks that fail are emptied.
    pub(crate) drains: bool,
}

impl Table {
    pub(crate) fn is_empty(&self) -> bool {
        self.jobs.is_empty() && !self.drains
    }

    /// Returns what the file of a pool says.
    ///
    /// # Errors
    /// The first mistake.
    pub(crate) fn of(pool: &NamedPool, check: Check<'_>) -> Result<Table> {
        let text = fs::read_to_string(&pool.file).map_err(Error::file(&pool.file))?;
        // Most files have neither, and are read often.
        if !text.contains(toml::SCHEDULE) && !text.contains(toml::HEALTH) {
            return Ok(Table::default());
        }
        Table::parse(&pool.file, &text, check)
    }

    pub(crate) fn parse(file: &Path, text: &str, check: Check<'_>) -> Result<Table> {
        let at_line = |line: usize, what: String| Error::Mistake { file: file.to_owned(), line, what };
        let mistake = |at: usize, what: String| at_line(toml::line_of(text.as_bytes(), at), what);
        let document = toml::document(text).map_err(|(line, what)| at_line(line, what))?;
        let start = |item: &Item| item.span().map_or(0, |span| span.start);
        let mut found = Table::default();
        if let Some(item) = document.get(toml::HEALTH) {
            found.drains = drains(item).map_err(|what| mistake(start(item), what))?;
        }
        match document.get(toml::SCHEDULE) {
            None => {}
            Some(Item::ArrayOfTables(tables)) => {
                for table in tables {
                    let at = table.span().map_or(0, |span| span.start);
                    let job = job(table, check).map_err(|what| mistake(at, what))?;
                    if found.jobs.iter().any(|other| other.name == job.name) {
                        let what = format!(
                            "two jobs are called '{0}' (give this one another: name = '{0}-2')",
                            job.name
                        );
                        return Err(mistake(at, what));
                    }
                    found.jobs.push(job);
                }
            }
            Some(item) => {
                let what = "schedule is a list of tables: write [[schedule]] above each";
                return Err(mistake(start(item), what.into()));
            }
        }
        Ok(found)
    }
}

/// Returns the pools of this machine that have something to do.
pub(crate) fn all(check: Check<'_>) -> Vec<(NamedPool, Result<Table>)> {
    let tables = named::all().into_iter().map(|pool| {
        let table = Table::of(&pool, check);
        (pool, table)
    });
    tables.filter(|(_, table)| !table.as_ref().is_ok_and(Table::is_empty)).collect()
}

fn drains(item: &Item) -> Result<bool, String> {
    let table = item.as_table_like().ok_or("health is a table: write [health] above it")?;
    if let Some((key, _)) = table.iter().find(|(key, _)| *key != "drain") {
        return Err(format!("unknown key '{key}' of [health] (it has drain)"));
    }
    truth(table, "drain").map_err(|_| "drain of [health] is true or false".into())
}

fn truth(table: &dyn TableLike, key: &str) -> Result<bool, String> {
    let value =
        table.get(key).map(|item| item.as_bool().ok_or_else(|| format!("{key} must be true or false")));
    Ok(value.transpose()?.unwrap_or(false))
}

fn job(table: &dyn TableLike, check: Check<'_>) -> Result<Job, String> {
    if let Some((key, _)) = table.iter().find(|(key, _)| !KEYS.contains(key)) {
        let nearest = closest(key, KEYS.iter().map(|key| (*key).to_owned()));
        let fix = nearest.map_or_else(|| KEYS.join(", "), |key| format!("did you mean '{key}'?"));
        return Err(format!("unknown key '{key}' of [[schedule]] ({fix})"));
    }
    let text = |key: &str| match table.get(key) {
        None => Ok(None),
        Some(item) => item.as_str().map(Some).ok_or_else(|| format!("{key} must be a string")),
    };
    let number = |key: &str, most: u64| match table.get(key) {
        None => Ok(None),
        Some(item) => {
            let number = item.as_integer().and_then(|number| u64::try_from(number).ok());
            let number = number.filter(|number| *number <= most).map(Some);
            number.ok_or_else(|| format!("{key} must be a number from 0 to {most}"))
        }
    };
    let mut work = Work::of(table.get("do").ok_or("[[schedule]] needs do, such as do = 'verify'")?)?;
    let own_name = work.name();
    let mut at_most = match text("at-most")? {
        None => None,
        Some(text) => {
            let time = units::time(text).filter(|time| !time.is_zero());
            Some(time.ok_or("at-most must be a time, such as '5 hours'")?)
        }
    };
    if work.goes_on(at_most) {
        at_most = None;
    }
    if let Work::Canopy(_) = &work {
        let (_, words) = work.command(Path::new("/pool"));
        check(&words).map_err(|why| format!("do: {why}"))?;
    }
    let when = text("when")?.ok_or("[[schedule]] needs when, such as when = 'every Sunday at 03:00'")?;
    let name = text("name")?.map_or(own_name, str::to_owned);
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.len() > 60 || name.starts_with('.') || !name.chars().all(is_plain) {
        return Err("name must be a word of letters, digits, '-', '_' and '.'".into());
    }
    if name.starts_with(DRAIN) {
        return Err(format!("name must not begin with {DRAIN}, as jobs do that [health] begins"));
    }
    let deletions = number("deletions", u32::MAX.into())?;
    if deletions.is_some() && !work.is_sync() {
        return Err("deletions goes with do = 'snapraid sync'".into());
    }
    Ok(Job {
        when: When::parse(when)?,
        idle: truth(table, "idle")?,
        awake_only: truth(table, "awake-only")?,
        catches_up: match text("missed")? {
            None | Some("catch up") => true,
            Some("skip") => false,
            Some(_) => return Err("missed must be 'catch up' or 'skip'".into()),
        },
        deletions: deletions.or(work.is_sync().then_some(DELETIONS)),
        nice: number("nice", 19)?.map_or(NICE, |nice| u8::try_from(nice).unwrap_or(NICE)),
        at_most,
        name,
        work,
        says: table.iter().map(|(key, item)| (key.to_owned(), text_of(item))).collect(),
    })
}

/// Returns a value as text; of a list, its words.
fn text_of(item: &Item) -> String {
    match (item.as_str(), item.as_array()) {
        (Some(text), _) => text.to_owned(),
        (_, Some(list)) => list.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" "),
        _ => item.to_string().trim().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Table, String> {
        let check = |words: &[std::ffi::OsString]| {
            if words[0] == "frob" { Err("unrecognized subcommand 'frob'".to_owned()) } else { Ok(()) }
        };
        Table::parse(Path::new("/f"), text, &check).map_err(|error| error.to_string())
    }

    #[test]
    fn jobs_are_read() {
        let table = parsed(
            "branches = []\n[health]\ndrain = true\n[[schedule]]\ndo = 'verify'\nwhen = 'every month'\nidle = true\n\
             awake-only = true\nmissed = 'skip'\nnice = 0\nat-most = '5 hours'\n\
             [[schedule]]\nname = 'parity'\ndo = 'snapraid sync'\nwhen = 'every night'\n\
             [[schedule]]\ndo = 'snapraid sync'\nwhen = 'every hour'\ndeletions = 7\nat-most = '2 hours'\n",
        )
        .unwrap();
        assert!(table.drains);
        let [verify, parity, other] = &table.jobs[..] else { panic!("{table:?}") };
        assert_eq!((&*verify.name, verify.nice, verify.deletions), ("verify", 0, None));
        assert!(verify.idle && verify.awake_only && !verify.catches_up);
        assert_eq!(verify.at_most, None);
        assert_eq!(
            (&*verify.says["idle"], &*verify.says["nice"], &*verify.says["do"]),
            ("true", "0", "verify")
        );
        assert_eq!(verify.work.shown(Path::new("/p")), "canopy verify /p --yes --resume --for=18000s");
        assert_eq!((&*parity.name, parity.nice, parity.deletions), ("parity", NICE, Some(DELETIONS)));
        assert!(!parity.idle && !parity.awake_only && parity.catches_up);
        assert_eq!((&*other.name, other.deletions), ("snapraid-sync", Some(7)));
        assert_eq!(other.at_most, Some(Duration::from_secs(2 * 3600)));
        assert!(parsed("branches = []\n[health]\n").unwrap().is_empty());
    }

    #[test]
    fn a_mistake_names_its_line_and_the_mend() {
        let job = |more: &str| format!("\n[[schedule]]\ndo = 'verify'\nwhen = 'every month'\n{more}\n");
        let table = [
            (job("whne = 1"), "/f:2: unknown key 'whne' of [[schedule]] (did you mean 'when'?)"),
            (job("idle = 'yes'"), "/f:2: idle must be true or false"),
            (job("missed = 'never'"), "/f:2: missed must be 'catch up' or 'skip'"),
            (job("nice = 20"), "/f:2: nice must be a number from 0 to 19"),
            (job("nice = -1"), "/f:2: nice must be a number from 0 to 19"),
            (job("deletions = 1"), "/f:2: deletions goes with do = 'snapraid sync'"),
            (job("at-most = 'long'"), "/f:2: at-most must be a time, such as '5 hours'"),
            (job("name = 'a/b'"), "/f:2: name must be a word of letters, digits, '-', '_' and '.'"),
            (job("name = '.watch'"), "/f:2: name must be a word of letters, digits, '-', '_' and '.'"),
            (
                job("name = 'drain-x'"),
                "/f:2: name must not begin with drain-, as jobs do that [health] begins",
            ),
            (
                job("") + &job(""),
                "/f:7: two jobs are called 'verify' (give this one another: name = 'verify-2')",
            ),
            ("[[schedule]]\nwhen = 'every day'".into(), "/f:1: [[schedule]] needs do, such as do = 'verify'"),
            (
                "[[schedule]]\ndo = 'verify'".into(),
                "/f:1: [[schedule]] needs when, such as when = 'every Sunday at 03:00'",
            ),
            (
                "[[schedule]]\ndo = 'frob'\nwhen = 'every day'".into(),
                "/f:1: do: unrecognized subcommand 'frob'",
            ),
            ("schedule = 1".into(), "/f:1: schedule is a list of tables: write [[schedule]] above each"),
            ("\n[health]\ndrian = true\n".into(), "/f:2: unknown key 'drian' of [health] (it has drain)"),
            ("[health]\ndrain = 'yes'\n".into(), "/f:1: drain of [health] is true or false"),
            ("health = true\n".into(), "/f:1: health is a table: write [health] above it"),
        ];
        for (text, expected) in table {
            assert_eq!(parsed(&text).unwrap_err(), expected, "{text}");
        }
        let why = parsed("[[schedule]]\ndo = 'verify'\nwhen = 'sometimes'").unwrap_err();
        assert!(why.starts_with("/f:1: when 'sometimes' is not understood (write "), "{why}");
    }
}
