//! Circles of files in different folders.

use super::{Imports, graph, listed};
use crate::fault::Faults;
use crate::workspace::Workspace;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Checks that files which import each other in a circle lie in one folder.
pub(crate) fn check(workspace: &Workspace, imports: &Imports<'_>, faults: &mut Faults) {
    let folders: Vec<PathBuf> = imports.files.iter().map(|file| folder(&workspace.root, file)).collect();
    let mut next = vec![Vec::new(); imports.files.len()];
    for &(from, to) in imports.arrows.keys() {
        next[from].push(to);
    }
    for circle in graph::circles(&next) {
        let between: BTreeSet<&PathBuf> = circle.iter().map(|&file| &folders[file]).collect();
        let mut ties = Vec::new();
        for (&(from, to), arrow) in &imports.arrows {
            if circle.contains(&from) && circle.contains(&to) && folders[from] != folders[to] {
                ties.push((&imports.files[from], arrow.line, &imports.files[to], listed(&arrow.names)));
            }
        }
        ties.sort();
        let text = format!(
            "{} files of {} folders import each other in a circle: cut arrows between the folders until it is open",
            circle.len(),
            between.len()
        );
        // Within one folder a circle is allowed.
        let Some(&(file, line, ..)) = ties.first() else { continue };
        let details =
            ties.iter().map(|(from, line, to, names)| format!("{from}:{line} -> {to} ({names})")).collect();
        faults.add_with(file, line, text, details);
    }
}

/// Returns the folder that a file belongs to: for `a.rs` beside a folder `a`, that folder.
fn folder(root: &Path, file: &str) -> PathBuf {
    let path = Path::new(file);
    let inner = path.with_extension("");
    if root.join(&inner).is_dir() { inner } else { path.parent().unwrap_or(Path::new("")).to_owned() }
}
