//! Where `unsafe` may be.

use crate::fault::Faults;
use crate::source::scan::Scan;
use crate::table::Table;
use crate::workspace::{Package, TextFile, Workspace};
use std::path::Path;

/// Checks that a file has no `unsafe` unless its crate may. Tests, examples, benches and fuzz targets are crates of their
/// own, for which a library's `forbid(unsafe_code)` does not count, so this looks for the word.
pub(crate) fn check_file(
    workspace: &Workspace,
    table: &Table,
    file: &TextFile,
    scan: &Scan,
    faults: &mut Faults,
) {
    let owner = workspace.packages.iter().find(|package| Path::new(&file.path).starts_with(&package.dir));
    if owner.is_some_and(|package| allows_unsafe(table, package)) {
        return;
    }
    for &line in &scan.unsafe_lines {
        faults.add(
            &file.path,
            line,
            format!("unsafe code: only {} may have it; move it there", allowed(table)),
        );
    }
}

/// Checks that the libraries and programs of all other crates forbid unsafe code.
pub(crate) fn check_targets(workspace: &Workspace, table: &Table, faults: &mut Faults) {
    for package in workspace.packages.iter().filter(|package| !allows_unsafe(table, package)) {
        for target in &package.targets {
            let text = workspace.text(&target.file).unwrap_or_default();
            if !text.lines().any(|line| line.starts_with("#![forbid(unsafe_code)]")) {
                faults.add(&target.file, 1, "lacks #![forbid(unsafe_code)]: add it");
            }
        }
    }
}

fn allows_unsafe(table: &Table, package: &Package) -> bool {
    table.crates.get(&package.name).is_some_and(|entry| entry.allows_unsafe)
}

fn allowed(table: &Table) -> String {
    let crates = table.crates.iter().filter(|(_, entry)| entry.allows_unsafe);
    crates.map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(" and ")
}
