//! Changes what a pool's file says of one job. Everything else keeps its order, its formatting and its comments.

use crate::due::shown;
use crate::error::{Error, Result};
use crate::table::{Check, Table};
use canopy_base::difference::difference;
use canopy_config::source::named::NamedPool;
use canopy_config::source::persist::Rewrite;
use canopy_config::source::tables::{self, Change, Tables, Unchanged};
use canopy_config::source::toml;
use canopy_sys::shown::Show as _;
use canopy_terminal::print;
use jiff::Zoned;
use toml_edit::Value;

const JOBS: Tables =
    Tables { key: toml::SCHEDULE, naming: &["do"], value: |key, text| Ok(value_of(key, text)) };

/// Reads `KEY=VALUE`.
pub(crate) fn pair(word: &str) -> Result<(String, String)> {
    tables::pair(word).ok_or_else(|| {
        Error::Usage(format!("'{word}' is not KEY=VALUE, such as 'when=every Sunday at 03:00'"))
    })
}

/// Changes the file of a pool, or shows only what would change.
///
/// # Errors
/// If the file cannot be read or written, or would have a mistake.
pub(crate) fn change(
    pool: &NamedPool,
    name: &str,
    change: &Change,
    dry_run: bool,
    check: Check<'_>,
) -> Result<()> {
    // Other writers of the file wait meanwhile.
    let (mut rewrite, text) = Rewrite::begin(&pool.file).map_err(Error::file(&pool.file))?;
    let text = String::from_utf8(text)
        .map_err(|_| Error::Usage(format!("{} is not UTF-8, as TOML must be", pool.file.shown())))?;
    let before = Table::parse(&pool.file, &text, check)?;
    let new = edited(&text, &before, name, change)?;
    let after = Table::parse(&pool.file, &new, check)?;
    print(&format!("{}:\n{}", pool.file.shown(), difference(&text, &new)));
    // A job may have got another name.
    let old = |name: &String| before.jobs.iter().any(|job| job.name == *name);
    let job =
        after.jobs.iter().find(|job| job.name == name).or(after.jobs.iter().find(|job| !old(&job.name)));
    let now = Zoned::now();
    if let Some((job, next)) = job.and_then(|job| Some((job, job.when.next(&now)?))) {
        let next = shown(next.timestamp().as_second(), &now);
        print(&format!("{} runs {}, next: {next}\n", job.name, job.when));
    }
    if dry_run {
        return Ok(());
    }
    rewrite.write_new(new.as_bytes()).map_err(Error::file(&pool.file))?;
    rewrite.commit().map_err(Error::file(&pool.file))
}

/// Returns the text with the change. `table` is what the text says.
fn edited(text: &str, table: &Table, name: &str, change: &Change) -> Result<String> {
    let names: Vec<&str> = table.jobs.iter().map(|job| &*job.name).collect();
    JOBS.changed(text, &names, name, change).map_err(|why| match why {
        Unchanged::NotToml(why) => Error::Usage(format!("not valid TOML: {why}")),
        Unchanged::NoTables => {
            Error::Usage("schedule is a list of tables: write [[schedule]] above each".into())
        }
        Unchanged::Value(why) => Error::Usage(why),
        Unchanged::NoSuchTable => Error::NoJob {
            name: name.to_owned(),
            known: names.iter().map(|&known| known.to_owned()).collect(),
        },
    })
}

/// Returns a value of the type that the key has; what is of no such type is told when the text is read again.
fn value_of(key: &str, text: &str) -> Value {
    match (key, text.parse::<bool>(), text.parse::<i64>()) {
        ("idle" | "awake-only", Ok(truth), _) => truth.into(),
        ("nice" | "deletions", _, Ok(number)) => number.into(),
        _ => text.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn changed(text: &str, name: &str, change: &Change) -> Result<String, String> {
        let check = |words: &[std::ffi::OsString]| {
            if words[0] == "frob" { Err("unrecognized subcommand 'frob'".to_owned()) } else { Ok(()) }
        };
        let parse =
            |text: &str| Table::parse(Path::new("/f"), text, &check).map_err(|error| error.to_string());
        let new = edited(text, &parse(text)?, name, change).map_err(|error| error.to_string())?;
        parse(&new).map(|_| new)
    }

    fn set_to(words: &[&str]) -> Change {
        Change::Set(words.iter().map(|word| pair(word).unwrap()).collect())
    }

    const FILE: &str = "branches = ['/a']\n\n# rot\n[[schedule]]\ndo = 'verify' # all\nwhen = 'every month'\n\n\
                        [[schedule]]\nname = 'even'\ndo = 'balance'\nwhen = 'every day'\n";

    #[test]
    fn one_job_changes_and_the_rest_stays() {
        let change = |name: &str, words: &[&str]| changed(FILE, name, &set_to(words)).unwrap();
        assert_eq!(
            change("verify", &["when=every Sunday", "idle=true", "nice=3"]),
            FILE.replace("'every month'", "\"every Sunday\"\nidle = true\nnice = 3")
        );
        // Another work, and the same name.
        let other = change("verify", &["do=verify films"]);
        assert!(
            other.contains("do = \"verify films\" # all\nwhen = 'every month'\nname = \"verify\"\n"),
            "{other}"
        );
        assert_eq!(change("even", &["name=odd"]), FILE.replace("'even'", "\"odd\""));
        assert_eq!(change("even", &["idle="]), FILE);
        let new = change("parity", &["do=snapraid sync", "when=every night at 04:00", "deletions=7"]);
        assert_eq!(
            new.strip_prefix(FILE),
            Some(
                "\n[[schedule]]\nname = \"parity\"\ndo = \"snapraid sync\"\nwhen = \"every night at 04:00\"\ndeletions = 7\n"
            )
        );
        let first =
            changed("branches = ['/a']\n", "verify", &set_to(&["do=verify", "when=every day"])).unwrap();
        assert!(first.starts_with("branches = ['/a']\n\n[[schedule]]\nname = \"verify\"\n"), "{first}");
    }

    #[test]
    fn a_job_goes() {
        let text = changed(FILE, "even", &Change::Drop).unwrap();
        assert!(text.contains("# rot") && !text.contains("balance"), "{text}");
        let none = changed(&text, "verify", &Change::Drop).unwrap();
        assert!(none.starts_with("branches = ['/a']\n") && !none.contains("schedule"), "{none}");
        assert!(changed(FILE, "frob", &Change::Drop).unwrap_err().contains("verify, even"));
    }

    #[test]
    fn what_would_be_a_mistake_is_refused() {
        for (name, words, why) in [
            ("new", &["when=every day"][..], "needs do"),
            ("new", &["do=verify"], "needs when"),
            ("verify", &["when=sometimes"], "'sometimes' is not understood"),
            ("verify", &["do=frob"], "unrecognized subcommand 'frob'"),
            ("verify", &["idle=maybe"], "idle must be true or false"),
            ("verify", &["nice=x"], "nice must be a number"),
            ("verify", &["frob=1"], "unknown key 'frob'"),
            ("verify", &["name=even"], "two jobs are called 'even'"),
            ("../x", &["do=verify", "when=every day"], "name must be a word"),
            ("verify", &["when="], "needs when"),
        ] {
            let error = changed(FILE, name, &set_to(words)).unwrap_err();
            assert!(error.contains(why), "{name} {words:?}: {error}");
        }
        for word in ["x", "=x", ""] {
            assert!(pair(word).is_err(), "{word}");
        }
    }
}
