//! The checks.

mod circles;
mod crates;
mod floors;
mod graph;
mod limits;
mod unsafe_code;

use crate::fault::Faults;
use crate::source::Modules;
use crate::source::arrows::{Arrows, arrows};
use crate::source::scan::Scan;
use crate::table::Table;
use crate::workspace::{Package, Workspace};

/// What has been looked at.
pub(crate) struct Counts {
    pub(crate) crate_arrows: usize,
    pub(crate) file_arrows: usize,
    pub(crate) files: usize,
}

/// The imports of a package.
struct Imports<'a> {
    package: &'a Package,
    files: Vec<String>,
    arrows: Arrows,
}

/// Runs every check.
pub(crate) fn run(workspace: &Workspace, table: &Table, faults: &mut Faults) -> Result<Counts, String> {
    let crate_arrows = crates::check(workspace, table, faults);
    for file in &workspace.files {
        let scan = Scan::of(&file.text).map_err(|error| format!("{}: {error}", file.path))?;
        limits::check_file(file, &scan, &table.limits, faults);
        unsafe_code::check_file(workspace, table, file, &scan, faults);
    }
    limits::check_folders(workspace, &table.limits, faults);
    limits::check_crates(workspace, table, faults);
    unsafe_code::check_targets(workspace, table, faults);

    let mut file_arrows = 0;
    for package in &workspace.packages {
        let modules = Modules::read(workspace, package)?;
        let imports = Imports { package, arrows: arrows(&modules), files: modules.files };
        file_arrows += imports.arrows.len();
        circles::check(workspace, &imports, faults);
        floors::check(&imports, table, faults);
    }
    Ok(Counts { crate_arrows, file_arrows, files: workspace.files.len() })
}

impl Imports<'_> {
    /// Returns a file's path below `src` without `.rs` or `/mod.rs`, as rooms are named.
    fn place<'a>(&self, file: &'a str) -> &'a str {
        let inside = file.strip_prefix(&self.package.dir).unwrap_or(file).trim_start_matches('/');
        let inside = inside.strip_prefix("src/").unwrap_or(inside);
        let inside = inside.strip_suffix(".rs").unwrap_or(inside);
        inside.strip_suffix("/mod").unwrap_or(inside)
    }
}

/// Returns names in a line, shortened when they are many.
fn listed<'a>(names: impl IntoIterator<Item = &'a String>) -> String {
    const SHOWN: usize = 6;
    let names: Vec<&str> = names.into_iter().map(String::as_str).collect();
    match names.len().checked_sub(SHOWN) {
        None | Some(0) => names.join(", "),
        Some(more) => format!("{} and {more} more", names[..SHOWN].join(", ")),
    }
}
