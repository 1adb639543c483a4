//! What the commands print.

use crate::pool_link::PoolLink;
use canopy_config::text::one_line;
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
        complain(&format!("branch {} is left out: the pool does not rely on it", path.shown()));
    }
}

/// Returns lines that give each branch the number that stands for it in columns.
pub(crate) fn legend(pool: &PoolLink) -> String {
    pool.branches.iter().enumerate().fold(String::new(), |mut text, (index, branch)| {
        let _ = writeln!(text, "{:>3}  {}", index + 1, shown(&branch.path));
        text
    })
}
