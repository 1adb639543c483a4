//! `canopy complete`, which the shells call: what the last word of a command line can be.
//!
//! A line for each possibility: the whole word, and after a tab what it means. Lines that begin with a colon say that it can
//! also be a file or a directory. Whatever fails is silent: nobody wants messages in the middle of a line.

mod place;

use canopy_config::options::{Changes, Spec, table};
use canopy_config::source::named;
use canopy_sys::mountinfo;
use canopy_terminal::print;
use clap::Args;
use place::{CompletionPlace, at, value_name};
use std::ffi::OsString;

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
pub type Word = (String, String);

/// What the program says of itself.
#[allow(missing_debug_implementations, reason = "a closure")]
pub struct Program<'p> {
    pub definition: clap::Command,
    /// The functions that have policies.
    pub functions: &'p [&'p str],
    /// Returns the branches of a pool, each with its mode.
    pub branches: &'p dyn Fn(&str) -> Vec<Word>,
}

pub fn run(args: &CompleteArgs, program: &Program<'_>) {
    let words: Vec<String> = args.words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let last = words.last().cloned().unwrap_or_default();
    let fits = |(word, _): &Word| word.starts_with(':') || word.starts_with(&last);
    let text: String = possible(program, &words, &last)
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

fn possible(program: &Program<'_>, words: &[String], last: &str) -> Vec<Word> {
    let mut definition = program.definition.clone();
    definition.build();
    let first_line = |text: Option<&clap::builder::StyledStr>| {
        text.map(ToString::to_string)
            .and_then(|text| text.lines().next().map(str::to_owned))
            .unwrap_or_default()
    };
    match at(&definition, words) {
        CompletionPlace::Nothing => Vec::new(),
        CompletionPlace::Command => {
            let shown = definition.get_subcommands().filter(|command| !command.is_hide_set());
            shown.map(|command| (command.get_name().to_owned(), first_line(command.get_about()))).collect()
        }
        CompletionPlace::Switch(command) => {
            let shown = command.get_arguments().filter(|arg| !arg.is_hide_set());
            let long =
                shown.filter_map(|arg| Some((format!("--{}", arg.get_long()?), first_line(arg.get_help()))));
            long.collect()
        }
        CompletionPlace::Value { command, arg, before, pool } => {
            let typed = last.strip_prefix(&before).unwrap_or(last);
            let branches = || pool.as_deref().map(|pool| (program.branches)(pool)).unwrap_or_default();
            let values = values(program, (command.get_name(), arg), typed, &branches);
            let whole = |(word, meaning): Word| {
                if word.starts_with(':') { (word, meaning) } else { (format!("{before}{word}"), meaning) }
            };
            values.into_iter().map(whole).collect()
        }
    }
}

fn values(
    program: &Program<'_>,
    (command, arg): (&str, &clap::Arg),
    typed: &str,
    branches: &dyn Fn() -> Vec<Word>,
) -> Vec<Word> {
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
        found.extend(branches());
    }
    if !found.is_empty() {
        return found;
    }
    match (command, value_name(arg)) {
        (_, "POOL") => pools(),
        ("mount", "PATH") => names().chain(plain(&[FILES])).collect(),
        ("add", "BRANCH") | (_, "DIR" | "NEW") => plain(&[DIRECTORIES]),
        (_, "BRANCH" | "OLD") => branches(),
        (_, "OP") => plain(program.functions),
        (_, "KEY") => options().map(|one| (one.name.to_string(), one.help.to_string())).collect(),
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

fn options() -> impl Iterator<Item = &'static Spec> {
    table().iter().filter(|option| !option.hidden)
}

/// Returns options with an equals sign; behind one, the values of the option.
fn pairs(typed: &str, live: bool) -> Vec<Word> {
    let options = options().filter(|option| option.changes == Changes::Live || !live);
    let Some((name, _)) = typed.split_once('=') else {
        let pair = |option: &Spec| {
            let equals = if option.accepted().is_some() { "=" } else { "" };
            (format!("{}{equals}", option.name), option.help.to_string())
        };
        return options.map(pair).collect();
    };
    let bare = name.replace('_', "-");
    let mut named = options.filter(|option| option.name == bare || option.aliases.contains(&bare.as_str()));
    let accepted = named.next().and_then(Spec::accepted).unwrap_or_default();
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
    let create = options().find(|option| option.name == "category.create");
    create.and_then(Spec::accepted).map(|accepted| fixed(&accepted)).unwrap_or_default()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use clap::{Arg, ArgAction, Command};

    /// Commands with each kind of argument.
    pub(in crate::complete) fn definition() -> Command {
        let own = |name: &'static str, value: &'static str| Arg::new(name).value_name(value);
        let long = |name: &'static str, value: &'static str| own(name, value).long(name);
        let switch = |name: &'static str| Arg::new(name).long(name).action(ArgAction::SetTrue);
        let pool = || own("pool", "POOL").required(true);
        let option = || own("options", "OPTIONS").short('o').action(ArgAction::Append);
        let dry_run = || switch("dry-run").short('n');
        Command::new("canopy").subcommands([
            Command::new("status").arg(own("mount", "POOL")),
            Command::new("umount").arg(pool()),
            Command::new("drain").args([dry_run(), long("bwlimit", "RATE"), pool(), own("branch", "BRANCH")]),
            Command::new("move").args([long("to", "BRANCH"), pool(), own("paths", "PATH").num_args(1..)]),
            Command::new("balance").args([long("to", "PERCENT"), pool()]),
            Command::new("mount").args([
                Arg::new("foreground").short('f').action(ArgAction::SetTrue),
                option(),
                own("paths", "PATH").num_args(0..),
            ]),
            Command::new("set").args([pool(), own("pair", "KEY=VALUE")]),
            Command::new("get").args([pool(), own("key", "KEY")]),
            Command::new("add").args([pool(), own("branches", "BRANCH").num_args(1..)]),
            Command::new("mode").args([
                pool(),
                own("branch", "BRANCH"),
                own("mode", "MODE").value_parser(["RW", "RO", "NC"]),
            ]),
            Command::new("fsck")
                .args([long("check-size", "BOOL").num_args(0..=1).require_equals(true), own("path", "PATH")]),
            Command::new("init").args([long("way", "WAY"), long("boot", "BY")]),
            Command::new("explain").args([own("op", "OP"), own("path", "PATH")]),
            Command::new("which").arg(own("paths", "PATH").num_args(1..)),
            Command::new("dedup").args([pool(), long("keep", "COPY")]),
            Command::new("complete").hide(true),
        ])
    }

    fn words(line: &str) -> Vec<String> {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let last = words.last().cloned().unwrap_or_default();
        let branches = |pool: &str| vec![(format!("{pool}/disk"), "RW".to_owned())];
        let program =
            Program { definition: definition(), functions: &["create", "rename"], branches: &branches };
        let found = possible(&program, &words, &last).into_iter().map(|(word, _)| word);
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
            ("drain /p ", &["/p/disk"]),
            ("dedup /p --keep o", &["oldest"]),
            ("balance --to ", &[]),
            ("complet", &[]),
        ] {
            assert_eq!(words(line), expected, "{line}");
        }
        // At the mount, all options can be given; later, those that can be changed.
        assert!(words("mount -o fsn") == ["fsname="] && words("set /p fsn").is_empty());
        assert!(words("").len() > 10 && words("drain --").len() > 1);
    }
}
