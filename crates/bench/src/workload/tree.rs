//! The tree of files that programs work on.

use super::process::{is_installed, run};
use super::{Error, ErrorContext, Target, create, forget_names};
use std::fs;
use std::path::{Path, PathBuf};

/// Directories nested to a depth of three, each with a few files.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TreeShape {
    /// Subdirectories of a directory, at each depth.
    pub dirs: [usize; 3],
    /// Files of a directory.
    pub files: usize,
}

impl TreeShape {
    /// Returns the paths of the directories, parents first.
    fn paths(self) -> Vec<String> {
        let mut all = Vec::new();
        let mut level = vec![String::new()];
        for count in self.dirs {
            let below = |parent: &String| (0..count).map(|n| format!("{parent}d{n}/")).collect::<Vec<_>>();
            level = level.iter().flat_map(below).collect();
            all.extend(level.iter().cloned());
        }
        all
    }

    /// Returns the number of directories and files.
    pub(crate) fn entries(self) -> usize {
        self.paths().len() * (1 + self.files)
    }

    /// Returns an upper bound of the space that a copy occupies, in bytes.
    pub(crate) fn bytes(self) -> u64 {
        self.entries() as u64 * 5000
    }
}

/// The name of the tree in a target.
pub(super) const TREE: &str = "tree";

/// Makes the tree on the branch that is the slowest to search, unless another row has.
pub(super) fn provide(target: &Target, shape: TreeShape) -> Result<(), Error> {
    let beneath = target.last_branch_dir().unwrap_or(&target.root).join(TREE);
    if !beneath.exists() {
        fill(&beneath, shape)?;
        if target.last_branch_dir().is_none() {
            forget_names();
        }
    }
    Ok(())
}

/// Creates the tree, as a git repository if git is installed.
fn fill(tree: &Path, shape: TreeShape) -> Result<(), Error> {
    fs::create_dir_all(tree).context("make", tree)?;
    for dir in shape.paths() {
        let dir = tree.join(dir);
        fs::create_dir(&dir).context("make", &dir)?;
        for number in 0..shape.files {
            let path: PathBuf = dir.join(format!("f{number}"));
            let file = create(&path)?;
            // A few different files only, so that git has few objects to store.
            let text = vec![b'a' + number as u8; 300 * (number + 1)];
            rustix::io::write(&file, &text).context("fill", &path)?;
        }
    }
    if is_installed("git") {
        run(&["git", "init", "-q", "--template="], tree)?;
        run(&["git", "add", "-A"], tree)?;
        run(&["git", "commit", "-q", "-m", "tree"], tree)?;
        run(&["git", "repack", "-a", "-d", "-q"], tree)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::walk::Program;
    use super::*;
    use std::process::Command;

    #[test]
    fn a_tree_has_the_entries_of_its_shape() {
        let dir = tempfile::tempdir().unwrap();
        let (tree, shape) = (dir.path().join(TREE), TreeShape { dirs: [2, 3, 2], files: 4 });
        fill(&tree, shape).unwrap();
        assert_eq!(shape.entries(), (2 + 6 + 12) * 5);
        let mut find = Command::new("find");
        find.args([".", "-path", "./.git", "-prune", "-o", "-print"]).current_dir(&tree);
        let found = find.output().unwrap().stdout;
        // And the tree itself.
        assert_eq!(String::from_utf8(found).unwrap().lines().count(), shape.entries() + 1);
        for program in Program::ALL.into_iter().filter(|program| is_installed(program.name())) {
            run(program.words(), &tree).unwrap();
        }
    }
}
