//! `canopy complete`, which the shells call: what the last word of a command line can be.
//!
//! A line for each possibility: the whole word, and after a tab what it means. Lines that begin with a colon say that it can
//! also be a file or a directory. Whatever fails is silent: nobody wants messages in the middle of a line.

use super::options::entries;
use super::status::{self, StatusArgs};
use crate::cli::complete::{Place, at, value_name};
use crate::cli::definition;
use crate::terminal::print;
use canopy_config::source::named;
use canopy_pool::config::Func;
use canopy_sys::mountinfo;
use clap::Args;
use std::ffi::OsString;
use std::path::PathBuf;

#[derive(Args, Debug)]
pub struct CompleteArgs {
    /// The words after the name of the program; the last one is to be completed
    #[arg(last = true)]
    pub words: Vec<OsString>,
}

/// Values of which the help speaks in a sentence.
const VALUES: &[(&str, &str, &[&str])] = &[
    ("init", "way", &["spread", "most-free", "together", "fill"]),
    ("init", "boot", &["fstab", "unit", "nothing"]),
    ("dedup", "keep", &["first", "newest", "oldest", "largest", "emptiest"]),
];

const FILES: &str = ":files";
const DIRECTORIES: &str = ":directories";

/// A word, and what it means.
type Word = (String, String);

pub fn run(args: &CompleteArgs) {
    let words: Vec<String> = args.words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let last = words.last().cloned().unwrap_or_default();
    let fits = |(word, _): &Word| word.starts_with(':') || word.starts_with(&last);
    let text: String = possible(&words, &last)
        .into_iter()
        .filter(fits)
        // A name with a line break would be taken for two.
        .filter(|(word, _)| !word.contains(['\n', '\t']))
        .map(
            |(word, meaning)| {
                if meaning.is_empty() { format!("{word}\n") } else { format!("{word}\t{meaning}\n") }
            },
        )
        .collect();
    print(&text);
}

fn possible(words: &[String], last: &str) -> Vec<Word> {
    let mut definition = definition();
    definition.build();
    let first_line = |text: Option<&clap::builder::StyledStr>| {
        text.map(ToString::to_string)
            .and_then(|text| text.lines().next().map(str::to_owned))
            .unwrap_or_default()
    };
    match at(&definition, words) {
        Place::Nothing => Vec::new(),
        Place::Command => {
            let shown = definition.get_subcommands().filter(|command| !command.is_hide_set());
            shown.map(|command| (command.get_name().to_owned(), first_line(command.get_about()))).collect()
        }
        Place::Switch(command) => {
            let shown = command.get_arguments().filter(|arg| !arg.is_hide_set());
            let long =
                shown.filter_map(|arg| Some((format!("--{}", arg.get_long()?), first_line(arg.get_help()))));
            long.collect()
        }
        Place::Value { command, arg, before, pool } => {
            let typed = last.strip_prefix(&before).unwrap_or(last);
            let values = values(command.get_name(), arg, typed, pool.as_deref());
            let whole = |(word, meaning): Word| match word.starts_with(':') {
                true => (word, meaning),
                false => (format!("{before}{word}"), meaning),
            };
            values.into_iter().map(whole).collect()
        }
    }
}

fn values(command: &str, arg: &clap::Arg, typed: &str, pool: Option<&str>) -> Vec<Word> {
    let plain =
        |words: &[&str]| words.iter().map(|word| ((*word).to_owned(), String::new())).collect::<Vec<_>>();
    let mut found = match VALUES.iter().find(|(of, id, _)| *of == command && *id == arg.get_id().as_str()) {
        Some((.., words)) => plain(words),
        None => {
            let known = arg.get_possible_values().into_iter().filter(|value| !value.is_hide_set());
            known.map(|value| (value.get_name().to_owned(), String::new())).collect()
        }
    };
    if command == "dedup" && arg.get_id() == "keep" {
        found.extend(branches(pool));
    }
    if !found.is_empty() {
        return found;
    }
    match (command, value_name(arg)) {
        (_, "POOL") => pools(),
        ("mount", "PATH") => names().chain(plain(&[FILES])).collect(),
        ("add", "BRANCH") | (_, "DIR" | "NEW") => plain(&[DIRECTORIES]),
        (_, "BRANCH" | "OLD") => branches(pool),
        (_, "OP") => plain(Func::WORDS),
        (_, "KEY") => {
            entries().into_iter().filter(|one| !one.ignored).map(|one| (one.name, one.help)).collect()
        }
        (_, "KEY=VALUE") => pairs(typed, true),
        (_, "OPTIONS") => in_list(typed),
        (_, "PATH" | "FILE" | "PLACE" | "PATH|COMMAND") => plain(&[FILES]),
        _ => Vec::new(),
    }
}

/// Returns mountpoints of pools, and names.
fn pools() -> Vec<Word> {
    let mounted = mountinfo::list().unwrap_or_default().into_iter().filter(mountinfo::MountEntry::is_pool);
    let mut found: Vec<Word> =
        mounted.map(|pool| (pool.mountpoint.to_string_lossy().into_owned(), String::new())).collect();
    found.extend(names());
    found.sort();
    found.dedup();
    found
}

fn names() -> impl Iterator<Item = Word> {
    named::all().into_iter().map(|pool| (pool.name, pool.file.to_string_lossy().into_owned()))
}

/// Returns the branches of a pool. One that does not answer is waited for no longer than `canopy status` waits.
fn branches(pool: Option<&str>) -> Vec<Word> {
    let Some(pool) = pool else { return Vec::new() };
    let mount = Some(PathBuf::from(pool));
    let args = StatusArgs { mount, json: true, verbose: false, fstab_file: PathBuf::from("/etc/fstab") };
    let found = status::look(&args).map(|status| status.pools).unwrap_or_default();
    let branches = found.into_iter().flat_map(|pool| pool.branches);
    let word = |path: PathBuf| path.to_string_lossy().into_owned();
    branches.map(|branch| (word(branch.path.to_path()), branch.mode.unwrap_or_default())).collect()
}

/// Returns options with an equals sign; behind one, the values of the option.
fn pairs(typed: &str, live: bool) -> Vec<Word> {
    let options = entries().into_iter().filter(|option| !option.ignored && (option.runtime || !live));
    let Some((name, _)) = typed.split_once('=') else {
        let pair = |option: super::options::OptionEntry| {
            let equals = if option.accepts.is_some() { "=" } else { "" };
            (format!("{}{equals}", option.name), option.help)
        };
        return options.map(pair).collect();
    };
    let bare = name.replace('_', "-");
    let mut named = options.filter(|option| option.name == bare || option.aliases.contains(&bare.as_str()));
    let accepted = named.next().and_then(|option| option.accepts).unwrap_or_default();
    fixed(&accepted).into_iter().map(|value| (format!("{name}={value}"), String::new())).collect()
}

/// The same for the last of some options that commas separate.
fn in_list(typed: &str) -> Vec<Word> {
    let (before, last) =
        typed.rsplit_once(',').map_or(("", typed), |(before, _)| typed.split_at(before.len() + 1));
    let joined = |(word, meaning): Word| (format!("{before}{word}"), meaning);
    pairs(last, false).into_iter().map(joined).collect()
}

/// Returns the words of a sentence such as `auto, off or a number`.
fn fixed(accepted: &str) -> Vec<String> {
    let parts = accepted.split(", ").flat_map(|part| part.split(" or "));
    let mut words = Vec::new();
    for part in parts {
        let word = part.split('[').next().unwrap_or_default();
        match part {
            "a policy" => words.extend(policies()),
            _ if !word.is_empty()
                && word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-') =>
            {
                words.push(word.to_owned());
            }
            _ => {}
        }
    }
    words
}

fn policies() -> Vec<String> {
    let create = entries().into_iter().find(|option| option.name == "category.create");
    create.and_then(|option| option.accepts).map(|accepted| fixed(&accepted)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let last = words.last().cloned().unwrap_or_default();
        let found = possible(&words, &last).into_iter().map(|(word, _)| word);
        found.filter(|word| word.starts_with(':') || word.starts_with(&last)).collect()
    }

    #[test]
    fn what_is_known_is_completed() {
        for (line, expected) in [
            ("stat", &["status"][..]),
            ("help umo", &["umount"]),
            ("drain --dry", &["--dry-run"]),
            ("init --way ", &["spread", "most-free", "together", "fill"]),
            ("init --boot=f", &["--boot=fstab"]),
            ("add /p ", &[":directories"]),
            ("mode /p /d R", &["RW", "RO"]),
            ("set /p category.cr", &["category.create="]),
            ("set /p category.create=pf", &["category.create=pfrd"]),
            ("set /p moveonenospc=mf", &["moveonenospc=mfs"]),
            ("set /p cache.files=o", &["cache.files=off"]),
            ("mount -o ro,cache.files=par", &["ro,cache.files=partial"]),
            ("mount -o branches-mount-timeout-fail=t", &["branches-mount-timeout-fail=true"]),
            ("explain renam", &["rename"]),
            ("get /p minfree", &["minfreespace"]),
            ("which ", &[":files"]),
            ("balance --to ", &[]),
            ("complet", &[]),
        ] {
            assert_eq!(words(line), expected, "{line}");
        }
        // At the mount, all options can be given; later, those that can be changed.
        assert!(words("mount -o fsn") == ["fsname="] && words("set /p fsn").is_empty());
        assert!(words("").len() > 20 && words("drain --").len() > 10);
    }
}
