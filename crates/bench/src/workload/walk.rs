//! Programs that walk a tree which they have walked before.

use super::{Error, ErrorContext, Sample, Target, Workload, create, forget_names};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

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

/// A program that walks the tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Program {
    FindFiles,
    Du,
    FindNewer,
    Tar,
    GitStatus,
    LsRecursive,
}

impl Program {
    pub(crate) const ALL: [Program; 6] = [
        Program::FindFiles,
        Program::Du,
        Program::FindNewer,
        Program::Tar,
        Program::GitStatus,
        Program::LsRecursive,
    ];

    /// Returns the words of the command, which runs in the tree.
    fn words(self) -> &'static [&'static str] {
        match self {
            Program::FindFiles => &["find", ".", "-type", "f"],
            Program::Du => &["du", "-s", "."],
            Program::FindNewer => &["find", ".", "-newer", "d0/f0"],
            // GNU tar reads no file if the archive is /dev/null.
            Program::Tar => &["tar", "-cf", "/dev/null", "."],
            Program::GitStatus => &["git", "status"],
            Program::LsRecursive => &["ls", "-lR", "."],
        }
    }

    pub(crate) fn title(self) -> &'static str {
        match self {
            Program::FindFiles => "find -type f",
            Program::Du => "du -s",
            Program::FindNewer => "find -newer",
            Program::Tar => "tar c to /dev/null",
            Program::GitStatus => "git status",
            Program::LsRecursive => "second ls -lR",
        }
    }

    /// Returns the program's name if it is not installed.
    pub(crate) fn missing(self) -> Option<&'static str> {
        let name = self.words()[0];
        Some(name).filter(|name| !is_installed(name))
    }
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

/// A walk over names and attributes that the kernel has cached. The program's start and end are part of it.
pub(crate) struct Walk {
    pub program: Program,
    pub shape: TreeShape,
}

const TREE: &str = "tree";

/// How often a round walks the tree; the shortest time counts. While other processes use the processor, a walk of the
/// branch waits for them more often than one of a pool, which sleeps in between.
const TIMES: u32 = 3;

impl Workload for Walk {
    /// Makes the tree unless another row has.
    fn prepare(&self, target: &Target, _round: usize) -> Result<(), Error> {
        let beneath = target.last_branch_dir().unwrap_or(&target.root).join(TREE);
        if !beneath.exists() {
            fill(&beneath, self.shape)?;
            if target.last_branch_dir().is_none() {
                forget_names();
            }
        }
        Ok(())
    }

    fn warm_up(&self, target: &Target) -> Result<(), Error> {
        run(self.program.words(), &target.root.join(TREE))
    }

    fn measure(&self, target: &Target, _round: usize) -> Result<Sample, Error> {
        let tree = target.root.join(TREE);
        let mut best = Duration::MAX;
        for _ in 0..TIMES {
            let start = Instant::now();
            run(self.program.words(), &tree)?;
            best = best.min(start.elapsed());
        }
        Ok(Sample::of_operations(best * TIMES, TIMES as usize))
    }
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

/// Runs a program in a directory, without the user's settings.
fn run(words: &[&str], dir: &Path) -> Result<(), Error> {
    let failed = |why: String| Error::Program { program: words.join(" "), dir: dir.to_owned(), why };
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).current_dir(dir);
    command.env("LC_ALL", "C").env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_CONFIG_GLOBAL", "/dev/null");
    for (key, value) in [("GIT_AUTHOR", "bench"), ("GIT_COMMITTER", "bench")] {
        command.env(format!("{key}_NAME"), value).env(format!("{key}_EMAIL"), "bench@localhost");
    }
    for key in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "TAR_OPTIONS", "BLOCK_SIZE", "DU_BLOCK_SIZE"] {
        command.env_remove(key);
    }
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let done = command.spawn().and_then(std::process::Child::wait_with_output);
    let done = done.map_err(|error| failed(error.to_string()))?;
    if done.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&done.stderr);
    Err(failed(text.lines().next().map_or_else(|| done.status.to_string(), str::to_owned)))
}

#[cfg(test)]
mod tests {
    use super::*;

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
        for program in Program::ALL.into_iter().filter(|program| program.missing().is_none()) {
            run(program.words(), &tree).unwrap();
        }
    }

    #[test]
    fn a_failed_program_says_why() {
        let dir = tempfile::tempdir().unwrap();
        let error = run(&["ls", "missing"], dir.path()).unwrap_err().to_string();
        assert!(error.starts_with("ls missing in /") && error.contains("No such file"), "{error}");
        assert!(!is_installed("no-such-program-of-canopy"));
    }
}
