//! How long files, functions and crates, and how full folders may get.

use crate::fault::Faults;
use crate::source::scan::Scan;
use crate::table::{Limits, TABLE, Table};
use crate::workspace::{TextFile, Workspace};
use std::collections::BTreeMap;
use std::path::Path;

/// Checks the length of a file and of its functions.
pub(crate) fn check_file(file: &TextFile, scan: &Scan, limits: &Limits, faults: &mut Faults) {
    let lines = file.text.lines().count() - scan.test_lines;
    if lines > limits.file {
        let without = if scan.test_lines > 0 { " without its test modules" } else { "" };
        let limit = limits.file;
        faults.add(
            &file.path,
            1,
            format!("the file has {lines} lines{without}, {limit} is the limit: split it"),
        );
    }
    for function in scan.functions.iter().filter(|function| function.lines > limits.function) {
        let (name, lines, limit) = (&function.name, function.lines, limits.function);
        faults.add(
            &file.path,
            function.line,
            format!("fn {name} has {lines} lines, {limit} is the limit: split it"),
        );
    }
}

/// Checks how many Rust files lie directly in each folder.
pub(crate) fn check_folders(workspace: &Workspace, limits: &Limits, faults: &mut Faults) {
    let mut folders: BTreeMap<&Path, usize> = BTreeMap::new();
    for folder in workspace.files.iter().filter_map(|file| Path::new(&file.path).parent()) {
        *folders.entry(folder).or_default() += 1;
    }
    for (folder, files) in folders.into_iter().filter(|(_, files)| *files > limits.folder) {
        let text =
            format!("the folder has {files} files, {} is the limit: group some in a folder", limits.folder);
        faults.add(&folder.to_string_lossy(), 1, text);
    }
}

/// Checks the length of the crates that have a limit: every line of `src`, tests too.
pub(crate) fn check_crates(workspace: &Workspace, table: &Table, faults: &mut Faults) {
    for package in &workspace.packages {
        let Some(entry) = table.crates.get(&package.name) else { continue };
        let Some(limit) = entry.lines else { continue };
        let source = Path::new(&package.dir).join("src");
        let files = workspace.files.iter().filter(|file| Path::new(&file.path).starts_with(&source));
        let lines: usize = files.map(|file| file.text.lines().count()).sum();
        if lines > limit {
            let text = format!(
                "the crate {} has {lines} lines of src, {limit} is the limit ({TABLE})",
                package.name
            );
            faults.add(
                &source.to_string_lossy(),
                1,
                format!("{text}: move a part of it to a crate of its own"),
            );
        }
    }
}
