//! Tells people what goes wrong with pools: `canopy notify`.
//!
//! A look at all pools gives conditions (`event`), which `tracker` compares with those before. What has begun or ended is
//! worded (`message`, `mail`), waits in the `outbox` of each `target`, and is handed to what carries it (`deliver`). The
//! program that serves a pool has no part in it.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod deliver;
mod edit;
mod error;
pub mod event;
mod history;
mod list;
mod mail;
mod message;
mod outbox;
mod run;
mod target;
mod tracker;

pub use error::{Error, Result};

use canopy_config::source::named;
use canopy_config::source::tables::Change;
use canopy_config::state::{self, DISKS};
use clap::{Args, ValueEnum};
use event::Seen;
use std::path::PathBuf;

/// Send a message when something goes wrong with a pool
#[derive(Args, Debug)]
#[command(after_help = NOTES)]
pub struct NotifyArgs {
    /// What to do
    #[arg(value_enum, value_name = "run|test|events|list|set|drop", hide_possible_values = true)]
    pub action: Action,
    /// Of set: NAME KEY=VALUE...; of drop: NAME
    #[arg(value_name = "WORD")]
    pub words: Vec<String>,
    /// Only show what set or drop would change
    #[arg(short = 'n', long)]
    pub dry_run: bool,
    /// Read more KEY=VALUE lines, such as secrets
    #[arg(long)]
    pub stdin: bool,
    /// Who is told [default: /etc/canopy/notify.toml]
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// What was told [default: /var/lib/canopy/notify.json]
    #[arg(long, value_name = "FILE")]
    pub state: Option<PathBuf>,
    /// How long events gather into one message
    #[arg(long, value_name = "SECONDS", default_value_t = 40, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub gather: u32,
    /// Print a list or events as JSON, for programs
    #[arg(long)]
    pub json: bool,
    /// The fstab to look at
    #[arg(long, value_name = "FILE", default_value = "/etc/fstab")]
    pub fstab_file: PathBuf,
    /// What is known of disks
    #[arg(long, value_name = "FILE", default_value = DISKS, hide = true)]
    pub disks_file: PathBuf,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum, Debug)]
pub enum Action {
    /// Look at all pools again and again, and tell.
    Run,
    /// Send a message to everybody who is told, to try it.
    Test,
    /// Show what has happened.
    Events,
    /// Show who is told.
    List,
    /// Change what the file says of one who is told, or add one.
    Set,
    /// Tell somebody no longer.
    Drop,
}

const NOTES: &str = "\
'run' looks at all pools until it is stopped, as canopy-notify.service does, and
sends what 'canopy status' warns of: once when it begins, once when it is over.
'test' sends a trial to everybody. 'events' shows the last 1,000 that 'run' has
seen, 'list' who is told. 'set' changes what the file says of one of them, or
adds one, 'drop' takes one away; KEY= takes a key away. 'run' notices it.
docs/messages.md explains it all.

/etc/canopy/notify.toml (or the file of a pool, for that pool alone):
  [[notify]]
  name = \"me\"                    # what set and drop call it
  mail = \"me@example.org\"        # by sendmail; smtp = \"smtps://host:465\"
  [[notify]]
  ntfy = \"https://ntfy.sh/TOPIC\" # or gotify, webhook, command
  least = \"problem\"              # or warning (default), notice
  repeat = \"daily\"               # again each day while it lasts

Examples:
  canopy notify set me mail=me@example.org repeat=daily
  canopy notify test
  canopy notify events
  systemctl enable --now canopy-notify";

/// Runs the command. `look` looks at all pools.
///
/// # Errors
/// A mistake in a file; if nobody is to be told; if a test message could not be sent.
pub fn notify(args: &NotifyArgs, look: &dyn Fn() -> Result<Seen, String>) -> Result<()> {
    let state = args.state.clone().unwrap_or_else(|| state::directory().join(state::TOLD));
    let file = args.file.clone().unwrap_or_else(named::notify_file);
    let targets = || target::all(&file);
    let change = |name: &str, change: &Change| edit::change(&file, name, change, args.dry_run);
    match (args.action, &args.words[..]) {
        (Action::Set, [name, words @ ..]) => change(name, &edit::of_words(words, args.stdin)?),
        (Action::Drop, [name]) => change(name, &Change::Drop),
        (Action::Set | Action::Drop, _) => Err(Error::Usage(
            "say who: 'canopy notify set NAME KEY=VALUE' or 'canopy notify drop NAME' (canopy notify list shows \
             the names)"
                .into(),
        )),
        (_, [word, ..]) => {
            Err(Error::Usage(format!("'{word}' is too much: only set and drop take names (canopy notify --help)")))
        }
        (Action::Run, _) => {
            // What happens is kept, even if nobody is told.
            let targets = || match targets() {
                Err(Error::NoTargets(_)) => Ok(Vec::new()),
                found => found,
            };
            run::watch(&targets, &state, i64::from(args.gather), look)
        }
        (Action::Test, _) => run::test(&targets()?),
        (Action::List, _) => list::list(targets(), &file, args.json),
        (Action::Events, _) => {
            let failed = |why| Error::File { file: state.clone(), why };
            history::History::beside(&state).show(args.json).map_err(failed)
        }
    }
}
