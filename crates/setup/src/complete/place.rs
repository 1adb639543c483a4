//! What may stand at the end of a command line, by its definition alone.

use clap::{Arg, Command};

/// What a shell asks for.
#[derive(Debug)]
pub(super) enum CompletionPlace<'d> {
    /// The name of a command.
    Command,
    /// An option of a command.
    Switch(&'d Command),
    /// A value of an option, or a word of its own.
    Value {
        command: &'d Command,
        arg: &'d Arg,
        /// What stands before the value in the same word, such as `--to=`.
        before: String,
        /// The pool that the command line names.
        pool: Option<String>,
    },
    Nothing,
}

/// Returns what the last of some words can be. The name of the program is not one of them.
pub(super) fn at<'d>(definition: &'d Command, words: &[String]) -> CompletionPlace<'d> {
    let Some((last, before)) = words.split_last() else { return CompletionPlace::Command };
    let Some((name, before)) = before.split_first() else { return CompletionPlace::Command };
    if name == "help" {
        return if before.is_empty() { CompletionPlace::Command } else { CompletionPlace::Nothing };
    }
    let Some(command) = definition.find_subcommand(name) else { return CompletionPlace::Nothing };
    let (mut own, mut pending, mut ended) = (Vec::new(), None, false);
    for word in before {
        match word.as_str() {
            _ if pending.take().is_some() => {}
            "--" if !ended => ended = true,
            option if !ended && option.starts_with('-') && option.len() > 1 => {
                pending = awaiting(command, option);
            }
            _ => own.push(word.clone()),
        }
    }
    let positionals: Vec<&Arg> = command.get_positionals().collect();
    let names_pool = positionals.first().is_some_and(|arg| value_name(arg) == "POOL");
    let pool = own.first().filter(|_| names_pool).cloned();
    let value = |arg, before: &str| CompletionPlace::Value {
        command,
        arg,
        before: before.to_owned(),
        pool: pool.clone(),
    };
    if let Some(arg) = pending {
        return value(arg, "");
    }
    if !ended && last.starts_with('-') {
        let inline = last.split_once('=').and_then(|(option, _)| Some((long(command, option)?, option)));
        return match inline {
            Some((arg, option)) => value(arg, &format!("{option}=")),
            None => CompletionPlace::Switch(command),
        };
    }
    // The last one may be repeated.
    let own_place = positionals.get(own.len()).or(positionals.last().filter(|arg| repeats(arg)));
    own_place.map_or(CompletionPlace::Nothing, |arg| value(arg, ""))
}

/// Returns the option whose value is the next word.
fn awaiting<'d>(command: &'d Command, word: &str) -> Option<&'d Arg> {
    if word.starts_with("--") {
        return long(command, word).filter(|arg| !arg.is_require_equals_set());
    }
    // Of joined letters, the first that takes a value takes the rest.
    let letters: Vec<char> = word.chars().skip(1).collect();
    let takes = |letter: &char| {
        let mut args = command.get_arguments();
        args.find(|arg| arg.get_short() == Some(*letter) && arg.get_action().takes_values())
    };
    let (at, arg) = letters.iter().enumerate().find_map(|(at, letter)| Some((at, takes(letter)?)))?;
    (at + 1 == letters.len() && !arg.is_require_equals_set()).then_some(arg)
}

fn long<'d>(command: &'d Command, word: &str) -> Option<&'d Arg> {
    let name = word.strip_prefix("--")?;
    command.get_arguments().find(|arg| arg.get_long() == Some(name) && arg.get_action().takes_values())
}

fn repeats(arg: &Arg) -> bool {
    matches!(arg.get_action(), clap::ArgAction::Append)
        || arg.get_num_args().is_some_and(|range| range.max_values() > 1)
}

/// Returns the name of a value in the help.
pub(super) fn value_name(arg: &Arg) -> &str {
    arg.get_value_names()
        .and_then(|names| names.first())
        .map_or_else(|| arg.get_id().as_str(), |name| name.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::complete::tests::definition;

    #[test]
    fn places_are_found() {
        let mut definition = definition();
        definition.build();
        for (line, expected) in [
            ("", "command"),
            ("st", "command"),
            ("help st", "command"),
            ("status ", "POOL"),
            ("status /p ", "nothing"),
            ("frob ", "nothing"),
            ("drain /p ", "BRANCH of /p"),
            ("drain --dry-run /p ", "BRANCH of /p"),
            ("drain --bwlimit 20M /p ", "BRANCH of /p"),
            ("drain -n /p --", "switch"),
            ("move /p --to ", "BRANCH of /p"),
            ("move /p --to=/d", "BRANCH of /p"),
            ("move /p a b ", "PATH of /p"),
            ("mount -fo ", "OPTIONS"),
            ("mount -o ro ", "PATH"),
            ("mount -oro ", "PATH"),
            ("mount -- -", "PATH"),
            ("set /p ca", "KEY=VALUE of /p"),
            ("fsck --check-size ", "PATH"),
            ("init --way ", "WAY"),
        ] {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            let found = match at(&definition, &words) {
                CompletionPlace::Command => "command".to_owned(),
                CompletionPlace::Switch(_) => "switch".to_owned(),
                CompletionPlace::Nothing => "nothing".to_owned(),
                CompletionPlace::Value { arg, pool: None, .. } => value_name(arg).to_owned(),
                CompletionPlace::Value { arg, pool: Some(pool), .. } => {
                    format!("{} of {pool}", value_name(arg))
                }
            };
            assert_eq!(found, expected, "{line}");
        }
    }
}
