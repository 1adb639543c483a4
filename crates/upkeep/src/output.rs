//! What the commands print.

use crate::pool_link::PoolLink;
use canopy_base::text::one_line;
use canopy_sys::shown::Show as _;
pub(crate) use canopy_terminal::{print, print_json};
use std::fmt::Write as _;
use std::path::Path;

/// Writes a line to stderr.
pub(crate) fn complain(line: &str) {
    canopy_terminal::eprint_line(&one_line(line));
}

/// Returns a path on one line.
pub(crate) fn shown(path: &Path) -> String {
    path.shown().to_string()
}

/// Reports the branches that are left out.
pub(crate) fn report_missing(pool: &PoolLink) {
    for path in pool.missing() {
        complain(&format!("{} is gone or failing, so it was skipped (canopy status)", path.shown()));
    }
}

/// Reports the branches that get no files because these would lose something there, or only those that lose nothing.
pub(crate) fn report_lossy(pool: &PoolLink, gets: &str) {
    for branch in &pool.branches {
        if let Some(what) = branch.loses.filter(|_| !branch.is_named) {
            let path = branch.path.shown();
            complain(&format!(
                "{path} gets {gets}, because its filesystem cannot store {what} (--lossy uses it for all)"
            ));
        }
    }
}

/// What lossy branches get from most commands, and where nothing else has room.
pub(crate) const NO_FILES: &str = "no files";
pub(crate) const WHAT_IT_CAN_STORE: &str = "only files that lose nothing there, if no other has room";

/// Returns lines that give each branch the number that stands for it in columns.
pub(crate) fn legend(pool: &PoolLink) -> String {
    pool.branches.iter().enumerate().fold(String::new(), |mut text, (index, branch)| {
        let _ = writeln!(text, "{:>3}  {}", index + 1, shown(&branch.path));
        text
    })
}
