//! Which crate may depend on which.

use crate::fault::Faults;
use crate::table::{TABLE, Table};
use crate::workspace::Workspace;

/// Checks the dependencies among the workspace's crates and returns their number.
pub(crate) fn check(workspace: &Workspace, table: &Table, faults: &mut Faults) -> usize {
    let is_member = |name: &str| workspace.packages.iter().any(|package| package.name == name);
    let mut arrows = 0;
    for package in &workspace.packages {
        let manifest = format!("{}/Cargo.toml", package.dir);
        let Some(entry) = table.crates.get(&package.name) else {
            let text = format!("{0} has no entry: add [crate.{0}] to {TABLE}", package.name);
            faults.add(&manifest, 1, text);
            continue;
        };
        for dependency in package.dependencies.iter().filter(|dependency| is_member(&dependency.name)) {
            arrows += 1;
            let name = &dependency.name;
            if entry.uses.contains(name) || (dependency.for_tests && entry.tests_use.contains(name)) {
                continue;
            }
            let line = line_of(workspace, &manifest, name);
            let text = if entry.tests_use.contains(name) {
                format!(
                    "only the tests of {} may depend on {name}: move it to [dev-dependencies]",
                    package.name
                )
            } else {
                format!("{} may not depend on {name}: move what it needs down, or its user up", package.name)
            };
            faults.add(&manifest, line, text);
        }
    }
    for (name, entry) in &table.crates {
        if !is_member(name) {
            faults.add(
                TABLE,
                entry.line,
                format!("no crate of the workspace is called {name}: remove its entry"),
            );
        }
    }
    arrows
}

/// Returns the line of a manifest that begins with a name.
fn line_of(workspace: &Workspace, manifest: &str, name: &str) -> usize {
    let text = std::fs::read_to_string(workspace.root.join(manifest)).unwrap_or_default();
    text.lines().position(|line| line.starts_with(name)).map_or(1, |index| index + 1)
}
