//! The commands over a pool that is served in this process: what they do to the files of the branches.

mod copies;
mod look;
mod moves;
mod on_disks;

use clap::{Args, Command};

/// Parses the words after the name of a command, as `canopy` does.
fn parsed<A: Args>(words: &[&str]) -> A {
    let command = A::augment_args(Command::new("command").no_binary_name(true));
    let matches = command.try_get_matches_from(words).unwrap_or_else(|error| panic!("{error}"));
    A::from_arg_matches(&matches).expect("what was parsed")
}
