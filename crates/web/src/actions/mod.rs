//! What pages do: an action is a command line, what it will do in words, and whether that can be undone. Each is first shown, with
//! what the command itself says that it would do, and runs when whoever asked for it has confirmed it.

pub mod build;
pub mod child;
pub mod kinds;
pub mod record;
pub mod rows;
pub mod runs;

use std::ffi::OsString;
use std::path::PathBuf;

/// Whether an action can be taken back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Undo {
    /// There is nothing to take back.
    Nothing,
    /// It can, in these words.
    By(&'static str),
    /// It cannot, for this reason.
    Never(&'static str),
}

/// What a command reads, which nobody sees.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Hidden(pub Vec<u8>);

impl std::fmt::Debug for Hidden {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_empty() { "nothing" } else { "hidden" })
    }
}

/// An action with all that it needs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Action {
    pub title: String,
    /// The pool that it is about.
    pub pool: Option<PathBuf>,
    pub words: String,
    pub undo: Undo,
    /// The command line that shows what would be done, without doing it.
    pub plan: Option<Vec<OsString>>,
    /// The command line that does it.
    pub argv: Vec<OsString>,
    /// What both commands read.
    pub input: Hidden,
    /// What is done next: its title, and the address of its form.
    pub next: Option<(&'static str, String)>,
}
