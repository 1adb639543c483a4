//! The help of the program: all commands in groups, `canopy help COMMAND`, and where a usage error leads.

use clap::error::{ContextKind, ContextValue};
use std::ffi::OsString;
use std::fmt::Write as _;

/// The groups of commands, in the order of a pool's life. Each command that is not hidden is in one of them.
const GROUPS: &[(&str, &[&str])] = &[
    ("Set up and mount", &["init", "migrate", "doctor", "mount", "umount", "sync", "upgrade"]),
    (
        "Look",
        &["status", "disks", "top", "metrics", "notify", "log", "web", "explain", "bench", "collect-info"],
    ),
    ("Change", &["add", "remove", "replace", "forget", "mode", "set", "get", "list", "options"]),
    (
        "Files",
        &["which", "ls", "du", "lost", "trash", "cache", "move", "balance", "drain", "consolidate", "tier"],
    ),
    ("Copies and checks", &["copies", "dup", "dedup", "verify", "fsck", "jobs"]),
];

const END: &str = "\
canopy help COMMAND shows examples; canopy options lists the mount options.
";

/// What other programs call what a command does.
const ELSEWHERE: &[(&str, &str)] = &[
    ("check", "doctor"),
    ("cp", "dup"),
    ("create", "init"),
    ("delete", "remove"),
    ("find", "which"),
    ("info", "status"),
    ("locate", "which"),
    ("mv", "move"),
    ("new", "init"),
    ("rebalance", "balance"),
    ("restore", "trash"),
    ("rm", "remove"),
    ("schedule", "jobs"),
    ("scrub", "verify"),
    ("show", "status"),
    ("start", "mount"),
    ("stop", "umount"),
    ("undelete", "trash"),
    ("unmount", "umount"),
    ("usage", "du"),
];

/// Returns the definition with the template that shows the groups.
pub(super) fn grouped(definition: clap::Command) -> clap::Command {
    let mut text = "{about-with-newline}{usage-heading} {usage}\n".to_owned();
    for (title, names) in GROUPS {
        let _ = writeln!(text, "\n{title}:");
        for command in names.iter().filter_map(|name| definition.find_subcommand(name)) {
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            let _ = writeln!(text, "  {:<12}  {about}", command.get_name());
        }
    }
    let _ = write!(text, "\nOptions:\n{{options}}\n\n{END}");
    definition.help_template(text)
}

/// Turns `canopy help [COMMAND]` into the option that does the same.
pub(super) fn as_option(args: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let args: Vec<OsString> = args.into_iter().collect();
    if args.get(1).is_none_or(|word| word != "help") {
        return args;
    }
    let asked = args.get(2).filter(|word| *word != "help").cloned();
    args.into_iter().take(1).chain(asked).chain([OsString::from("--help")]).collect()
}

/// Returns the command whose help explains a mistake in this command line.
pub(super) fn command_of(definition: &clap::Command, args: &[OsString]) -> String {
    let named = args.get(1).and_then(|word| word.to_str()).and_then(|word| definition.find_subcommand(word));
    match named.filter(|command| !command.is_hide_set()) {
        Some(command) => format!("canopy {} --help", command.get_name()),
        None => "canopy --help".into(),
    }
}

/// Returns what a misspelt command, option or value most likely means.
pub(super) fn meant(commands: Option<&clap::Command>, error: &clap::Error) -> Option<String> {
    if let Some(ContextValue::String(asked)) = error.get(ContextKind::InvalidSubcommand)
        && let Some((_, name)) = ELSEWHERE.iter().find(|(word, _)| word == asked)
    {
        return Some(format!("did you mean '{name}'?"));
    }
    let command = |word: &str| commands.and_then(|commands| commands.find_subcommand(word));
    let is_shown = |word: &&String| !command(word).is_some_and(clap::Command::is_hide_set);
    let kinds = [ContextKind::SuggestedSubcommand, ContextKind::SuggestedArg, ContextKind::SuggestedValue];
    let word = kinds.into_iter().find_map(|kind| match error.get(kind)? {
        ContextValue::String(word) => Some(word).filter(is_shown).cloned(),
        ContextValue::Strings(words) => words.iter().rev().find(is_shown).cloned(),
        _ => None,
    })?;
    Some(format!("did you mean '{word}'?"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::definition;

    #[test]
    fn each_command_is_in_one_group() {
        let mut grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        let whole = definition();
        let shown = whole.get_subcommands().filter(|command| !command.is_hide_set());
        let mut commands: Vec<&str> = shown.map(clap::Command::get_name).collect();
        grouped.sort_unstable();
        commands.sort_unstable();
        assert_eq!(grouped, commands);
    }

    #[test]
    fn what_other_programs_call_a_command_leads_to_it() {
        let whole = definition();
        for (word, name) in ELSEWHERE {
            assert!(whole.find_subcommand(word).is_none(), "{word} is a command");
            let command = whole.find_subcommand(name).unwrap_or_else(|| panic!("{name} is no command"));
            assert!(!command.is_hide_set(), "{name}");
        }
        for (word, hint) in [
            ("schedule", Some("did you mean 'jobs'?")),
            ("start", Some("did you mean 'mount'?")),
            ("stauts", Some("did you mean 'status'?")),
            // `complete` is for shells.
            ("complet", Some("did you mean 'copies'?")),
        ] {
            let error = definition().try_get_matches_from(["canopy", word]).unwrap_err();
            assert_eq!(meant(Some(&whole), &error).as_deref(), hint, "{word}");
        }
    }
}
