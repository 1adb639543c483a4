//! What a job does: a command of canopy with its options, or one of snapraid.

use canopy_base::text::one_line;
use canopy_config::state;
use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;
use toml_edit::{Item, Value};

/// Commands that are no job: those that stay, ask, take the pool away, or begin a job themselves.
const NO_JOBS: [&str; 13] = [
    "mount",
    "umount",
    "init",
    "migrate",
    "jobs",
    "notify",
    "top",
    "log",
    "web",
    "help",
    "complete",
    "probe",
    "bench-floor",
];
/// What a command that nobody watches is given, unless one of the others is there: to do its work once, and to ask nobody. What
/// removes files is only shown, unless the job says yes.
const GIVEN: [(&str, &str, &[&str]); 3] = [
    ("verify", "--yes", &["--yes", "-y", "--dry-run", "-n"]),
    ("tier", "--once", &["--once", "--dry-run", "-n"]),
    ("dedup", "--dry-run", &["--yes", "-y", "--write", "--dry-run", "-n"]),
];
/// The commands of snapraid that end by themselves, and need nobody.
const SNAPRAID: [&str; 6] = ["sync", "scrub", "check", "diff", "status", "touch"];

/// What a job does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Work {
    /// A command and its arguments, without the pool.
    Canopy(Vec<String>),
    /// The command of snapraid, and its arguments.
    Snapraid(Vec<String>),
    /// Empties a branch.
    Drain(String),
}

impl Work {
    /// Returns what a value of `do` means.
    ///
    /// # Errors
    /// One line: what is wrong.
    pub(crate) fn of(item: &Item) -> Result<Work, String> {
        let wrong = || {
            "do must be a command, such as 'verify' or 'snapraid sync', or the list of its words".to_owned()
        };
        let words: Vec<String> = match (item.as_str(), item.as_array()) {
            (Some(text), _) if text.contains(['\'', '"', '\\']) => {
                return Err(
                    "do has a quote, and no shell reads it (write a list of words: do = ['move', 'two words'])".into()
                );
            }
            (Some(text), _) => text.split_whitespace().map(str::to_owned).collect(),
            (_, Some(list)) => {
                let words: Option<Vec<&str>> = list.iter().map(Value::as_str).collect();
                words.ok_or_else(wrong)?.into_iter().map(str::to_owned).collect()
            }
            _ => return Err(wrong()),
        };
        if words.iter().any(|word| word.contains(char::is_control)) {
            return Err("do has control characters".into());
        }
        Work::from_words(words).ok_or_else(wrong)?
    }

    fn from_words(mut words: Vec<String>) -> Option<Result<Work, String>> {
        if words.first().is_some_and(|word| word == "canopy") {
            words.remove(0);
        }
        let first = words.first()?.clone();
        if first == "snapraid" {
            words.remove(0);
            let command = words.first().map_or("", String::as_str);
            return Some(if SNAPRAID.contains(&command) {
                Ok(Work::Snapraid(words))
            } else {
                Err(format!(
                    "'snapraid {}' cannot be a job (snapraid can: {})",
                    one_line(command),
                    SNAPRAID.join(", ")
                ))
            });
        }
        if NO_JOBS.contains(&first.as_str()) || first.starts_with('-') {
            return Some(Err(format!(
                "'{}' cannot be a job (such as verify, balance, dedup, tier or 'snapraid sync')",
                one_line(&first)
            )));
        }
        if let Some((_, given, others)) = GIVEN.iter().find(|(name, ..)| *name == first)
            && !words.iter().any(|word| others.contains(&word.as_str()))
        {
            words.insert(1, (*given).to_owned());
        }
        Some(Ok(Work::Canopy(words)))
    }

    /// Returns the name of a job that has none.
    pub(crate) fn name(&self) -> String {
        match self {
            Work::Canopy(words) => words[0].clone(),
            Work::Snapraid(words) => format!("snapraid-{}", words[0]),
            Work::Drain(branch) => drain_name(branch),
        }
    }

    /// Returns the program, and its arguments.
    pub(crate) fn command(&self, pool: &Path) -> (&'static str, Vec<OsString>) {
        let words = |words: &[String]| words.iter().map(OsString::from).collect::<Vec<_>>();
        match self {
            Work::Canopy(all) => {
                let mut all = words(all);
                // The pool is the first argument, but for `canopy trash ACTION POOL`.
                let before = if all[0] == "trash" { 2.min(all.len()) } else { 1 };
                all.insert(before, pool.into());
                ("canopy", all)
            }
            Work::Snapraid(all) => ("snapraid", words(all)),
            Work::Drain(branch) => {
                let mut all = words(&["drain".into(), "--yes".into(), "--".into()]);
                all.extend([pool.into(), branch.into()]);
                ("canopy", all)
            }
        }
    }

    /// Returns the command line as a person would type it.
    pub(crate) fn shown(&self, pool: &Path) -> String {
        let (program, words) = self.command(pool);
        let words = words.iter().map(|word| one_line(&word.to_string_lossy()));
        std::iter::once(program.to_owned()).chain(words).collect::<Vec<_>>().join(" ")
    }

    /// Lets a check of the whole pool go on where it was stopped, and stop by itself after this time. Returns whether it does.
    pub(crate) fn goes_on(&mut self, at_most: Option<Duration>) -> bool {
        let Work::Canopy(words) = self else { return false };
        let mut rest = words.iter().skip(1);
        while let Some(word) = rest.next() {
            match word.as_str() {
                "--yes" | "-y" | "--quiet" | "-q" | "--eager" => {}
                word if word.starts_with("--bwlimit=") => {}
                "--bwlimit" => _ = rest.next(),
                _ => return false,
            }
        }
        if words[0] != "verify" {
            return false;
        }
        words.push("--resume".into());
        words.extend(at_most.map(|time| format!("--for={}s", time.as_secs())));
        true
    }

    /// Has what waits in the trash for a sync go with it, if it is one: `canopy trash sync` runs it then.
    pub(crate) fn with_trash(self) -> Work {
        match self {
            Work::Snapraid(mut words) if words.first().is_some_and(|word| word == "sync") => {
                words.splice(..1, ["trash", "sync", "--"].map(str::to_owned));
                Work::Canopy(words)
            }
            other => other,
        }
    }

    /// Returns whether what was deleted by mistake would be lost by it for good.
    pub(crate) fn is_sync(&self) -> bool {
        matches!(self, Work::Snapraid(words) if words[0] == "sync")
    }
}

/// What the names of jobs begin with that empty a disk.
pub(crate) const DRAIN: &str = "drain-";

/// Returns the name of the job that empties a branch. No two branches have the same.
fn drain_name(branch: &str) -> String {
    let branch = branch.strip_prefix('/').unwrap_or(branch);
    format!("{DRAIN}{}", state::name_of(Path::new(branch)))
}

/// Returns the branch that a job of this name empties.
pub(crate) fn drained(name: &str) -> Option<String> {
    let mut rest = name.strip_prefix(DRAIN)?;
    let mut bytes = vec![b'/'];
    while let Some(first) = rest.bytes().next() {
        let length = match first {
            b'%' => {
                bytes.push(u8::from_str_radix(rest.get(1..3)?, 16).ok()?);
                3
            }
            b'-' => {
                bytes.push(b'/');
                1
            }
            other => {
                bytes.push(other);
                1
            }
        };
        rest = rest.get(length..)?;
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<String, String> {
        let document = toml_edit::Document::parse(text.to_owned()).unwrap();
        Work::of(document.get("do").unwrap()).map(|work| work.shown(Path::new("/mnt/pool")))
    }

    #[test]
    fn a_command_gets_its_pool_and_asks_nobody() {
        for (text, shown) in [
            ("verify", "canopy verify /mnt/pool --yes"),
            ("canopy verify --dry-run", "canopy verify /mnt/pool --dry-run"),
            ("tier", "canopy tier /mnt/pool --once"),
            ("dedup", "canopy dedup /mnt/pool --dry-run"),
            ("dedup --keep newest --yes", "canopy dedup /mnt/pool --keep newest --yes"),
            ("balance --to 5", "canopy balance /mnt/pool --to 5"),
            ("trash empty --before 30d --yes", "canopy trash empty /mnt/pool --before 30d --yes"),
            ("snapraid sync", "snapraid sync"),
            ("snapraid scrub -p 10", "snapraid scrub -p 10"),
        ] {
            assert_eq!(parsed(&format!("do = '{text}'")).as_deref(), Ok(shown));
        }
        assert_eq!(
            parsed("do = ['move', '--to', '/mnt/a b', 'x']").as_deref(),
            Ok("canopy move /mnt/pool --to /mnt/a b x")
        );
    }

    #[test]
    fn a_sync_is_that_of_the_trash_where_it_waits_for_one() {
        let of = |text: &str| {
            let work = Work::from_words(text.split(' ').map(str::to_owned).collect()).unwrap().unwrap();
            work.with_trash().shown(Path::new("/p"))
        };
        assert_eq!(of("snapraid sync -c /etc/x.conf"), "canopy trash sync /p -- -c /etc/x.conf");
        for text in ["snapraid scrub -p 5", "canopy balance /p"] {
            assert_eq!(of(&text.replace(" /p", "")), text);
        }
    }

    #[test]
    fn a_check_of_all_goes_on_where_it_was_stopped() {
        let of = |text: &str, most| {
            let mut work = Work::from_words(text.split(' ').map(str::to_owned).collect()).unwrap().unwrap();
            let goes_on = work.goes_on(most);
            (goes_on, work.shown(Path::new("/p")))
        };
        let hour = Some(Duration::from_secs(3600));
        assert_eq!(of("verify", None), (true, "canopy verify /p --yes --resume".into()));
        assert_eq!(
            of("verify --bwlimit 50M -q", hour),
            (true, "canopy verify /p --yes --bwlimit 50M -q --resume --for=3600s".into())
        );
        for text in
            ["verify films --yes", "verify --dry-run", "verify --older 2d --yes", "balance", "snapraid sync"]
        {
            assert!(!of(text, hour).0, "{text}");
        }
    }

    #[test]
    fn what_is_no_job_is_refused() {
        for (text, part) in [
            ("do = 'mount'", "'mount' cannot be a job"),
            ("do = 'jobs run x'", "'jobs' cannot be a job"),
            ("do = 'snapraid fix'", "'snapraid fix' cannot be a job (snapraid can: sync, scrub"),
            ("do = 'snapraid'", "'snapraid ' cannot be a job"),
            ("do = ''", "do must be a command"),
            ("do = 7", "do must be a command"),
            ("do = [7]", "do must be a command"),
            ("do = \"move 'a b'\"", "do has a quote"),
            ("do = ['move', \"a\\u0007\"]", "do has control characters"),
        ] {
            let why = parsed(text).unwrap_err();
            assert!(why.contains(part), "{text}: {why}");
        }
    }

    #[test]
    fn the_name_of_a_drain_is_its_branch() {
        for branch in ["/mnt/disk2", "/mnt-disk2", "/mnt/a b%", "/mnt/\u{e4}/.x_y", "/"] {
            let name = Work::Drain(branch.into()).name();
            assert!(!name.contains('/'), "{name}");
            assert_eq!(drained(&name).as_deref(), Some(branch));
        }
        assert_eq!(Work::Drain("/mnt/disk2".into()).name(), "drain-mnt-disk2");
        for name in ["verify", "drain-%", "drain-%zz", "drain-%ff"] {
            assert_eq!(drained(name), None, "{name}");
        }
    }
}
