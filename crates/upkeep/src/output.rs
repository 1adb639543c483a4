//! What the commands print.

use crate::pool_link::PoolLink;
use crate::survey::FileCopy;
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
    for link in pool.branches.iter().filter(|link| link.is_missing) {
        complain(&format!("{} is missing; its names stay (canopy lost)", link.path.shown()));
    }
    let stays = |path: &Path| pool.branches.iter().any(|link| link.is_missing && link.path == path);
    for path in pool.missing().filter(|path| !stays(path)) {
        complain(&format!("{} is gone or failing, so it was skipped (canopy status)", path.shown()));
    }
}

/// Reports how many files do not go to a branch because they would lose something there.
pub(crate) fn report_lossy<'f>(pool: &PoolLink, files: impl Iterator<Item = &'f FileCopy>) {
    let mut would_lose = vec![0_u64; pool.branches.len()];
    let mut all = 0_u64;
    for file in files {
        all += 1;
        let losing = pool.losing(&file.stat).into_iter().filter(|branch| *branch != file.branch);
        losing.for_each(|branch| would_lose[branch] += 1);
    }
    for (branch, count) in pool.branches.iter().zip(would_lose) {
        if let (Some(loses), true) = (branch.loses, branch.takes() && count > 0) {
            let (path, what) = (branch.path.shown(), loses.what);
            complain(&format!(
                "{path} cannot store {what}: {count} of {all} files would lose something there, and do not \
                 go there (--lossy sends them all the same)"
            ));
        }
    }
}

/// Returns lines that give each branch the number that stands for it in columns.
pub(crate) fn legend(pool: &PoolLink) -> String {
    pool.branches.iter().enumerate().fold(String::new(), |mut text, (index, branch)| {
        let _ = writeln!(text, "{:>3}  {}", index + 1, shown(&branch.path));
        text
    })
}
