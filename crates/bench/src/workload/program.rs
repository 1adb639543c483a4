//! Programs that make, change and remove files, as a whole: their start and end are part of the time.

use super::process::run;
use super::tree::{TREE, TreeShape, provide};
use super::{Error, ErrorContext, Sample, Target, Workload};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::Instant;

/// What a program does with the tree, or with files of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Work {
    Unpack,
    Copy,
    GitClone,
    Remove,
    RsyncAgain,
    Compile,
    SqliteWal,
    SqliteDelete,
}

/// What several rows use, made once in each target.
const ARCHIVE: &str = "tree.tar";
const COPY: &str = "copy";
const SOURCES: &str = "sources";

impl Work {
    pub(crate) const ALL: [Work; 8] = [
        Work::Unpack,
        Work::Copy,
        Work::GitClone,
        Work::Remove,
        Work::RsyncAgain,
        Work::Compile,
        Work::SqliteWal,
        Work::SqliteDelete,
    ];

    pub(crate) fn title(self) -> &'static str {
        match self {
            Work::Unpack => "tar x",
            Work::Copy => "cp -a",
            Work::GitClone => "git clone",
            Work::Remove => "rm -rf",
            Work::RsyncAgain => "rsync -a again",
            Work::Compile => "make",
            Work::SqliteWal => "sqlite3, WAL",
            Work::SqliteDelete => "sqlite3, rollback journal",
        }
    }

    /// Returns the programs that it needs.
    pub(crate) fn programs(self) -> &'static [&'static str] {
        match self {
            Work::Unpack => &["tar"],
            Work::Copy | Work::Remove => &["cp", "rm"],
            Work::GitClone => &["git"],
            Work::RsyncAgain => &["cp", "rsync"],
            Work::Compile => &["make", "cc"],
            Work::SqliteWal | Work::SqliteDelete => &["sqlite3"],
        }
    }
}

/// Runs a program once a round, in the target.
pub(crate) struct WholeProgram {
    pub work: Work,
    pub shape: TreeShape,
    /// Files that make(1) compiles.
    pub sources: usize,
    /// Transactions of SQLite.
    pub commits: usize,
}

impl WholeProgram {
    /// Returns the name of what the program makes or removes in a round.
    fn output(&self, round: usize) -> String {
        // No name is used again, so that nothing is left of it in a cache.
        format!("{:?}{round}", self.work)
    }
}

impl Workload for WholeProgram {
    fn prepare(&self, target: &Target, round: usize) -> Result<(), Error> {
        let (root, output) = (&target.root, self.output(round));
        if !matches!(self.work, Work::Compile | Work::SqliteWal | Work::SqliteDelete) {
            provide(target, self.shape)?;
        }
        match self.work {
            Work::Unpack => {
                if !root.join(ARCHIVE).exists() {
                    run(&["tar", "--exclude=.git", "-cf", ARCHIVE, TREE], root)?;
                }
                make_dir(&root.join(output))
            }
            Work::Copy | Work::GitClone => Ok(()),
            Work::Remove => run(&["cp", "-a", TREE, &output], root),
            Work::RsyncAgain if root.join(COPY).exists() => Ok(()),
            Work::RsyncAgain => run(&["cp", "-a", TREE, COPY], root),
            Work::Compile => {
                if !root.join(SOURCES).exists() {
                    write_sources(&root.join(SOURCES), self.sources)?;
                }
                make_dir(&root.join(output))
            }
            Work::SqliteWal => write_script(&root.join(output), "WAL", self.commits),
            Work::SqliteDelete => write_script(&root.join(output), "DELETE", self.commits),
        }
    }

    fn measure(&self, target: &Target, round: usize) -> Result<Sample, Error> {
        let (root, output) = (&target.root, self.output(round));
        let out_variable = format!("OUT=../{output}");
        let start = Instant::now();
        match self.work {
            Work::Unpack => run(&["tar", "-xf", ARCHIVE, "-C", &output], root),
            Work::Copy => run(&["cp", "-a", TREE, &output], root),
            // Without links to the objects of the other repository, as from another machine.
            Work::GitClone => run(&["git", "clone", "-q", "--no-hardlinks", TREE, &output], root),
            Work::Remove => run(&["rm", "-rf", &output], root),
            Work::RsyncAgain => run(&["rsync", "-a", "tree/", "copy/"], root),
            Work::Compile => run(&["make", "-s", "-C", SOURCES, &out_variable], root),
            Work::SqliteWal | Work::SqliteDelete => {
                run(&["sqlite3", "-bail", "data.db", ".read script.sql"], &root.join(&output))
            }
        }?;
        Ok(Sample::of_operations(start.elapsed(), 1))
    }

    fn clean_up(&self, target: &Target, round: usize) -> Result<(), Error> {
        target.clear(&self.output(round))
    }
}

fn make_dir(path: &Path) -> Result<(), Error> {
    fs::create_dir(path).context("make", path)
}

fn write(path: &Path, text: &str) -> Result<(), Error> {
    fs::write(path, text).context("write", path)
}

/// Writes a program of `count` small files.
fn write_sources(dir: &Path, count: usize) -> Result<(), Error> {
    make_dir(dir)?;
    write(&dir.join("common.h"), "#include <stdio.h>\n#include <string.h>\n")?;
    for number in 0..count {
        let text = format!("#include \"common.h\"\nint f{number}(int x) {{ return x + {number}; }}\n");
        write(&dir.join(format!("f{number}.c")), &text)?;
    }
    write(&dir.join("main.c"), "#include \"common.h\"\nint main(void) { return 0; }\n")?;
    let makefile = "\
OBJECTS := $(patsubst %.c,$(OUT)/%.o,$(wildcard *.c))
$(OUT)/program: $(OBJECTS)\n\tcc -o $@ $^
$(OUT)/%.o: %.c common.h\n\tcc -c -o $@ $<
";
    write(&dir.join("Makefile"), makefile)
}

/// Writes the statements of `commits` transactions, each of them durable.
fn write_script(dir: &Path, journal: &str, commits: usize) -> Result<(), Error> {
    make_dir(dir)?;
    let mut text = format!("PRAGMA journal_mode = {journal};\nPRAGMA synchronous = FULL;\n");
    text.push_str("CREATE TABLE entries (number INTEGER PRIMARY KEY, words TEXT);\n");
    for number in 0..commits {
        let words = "w".repeat(100 + number % 200);
        // A String takes everything.
        let _ = writeln!(text, "INSERT INTO entries VALUES ({number}, '{words}');");
    }
    write(&dir.join("script.sql"), &text)
}

#[cfg(test)]
mod tests {
    use super::super::TargetKind;
    use super::super::process::missing;
    use super::*;

    #[test]
    fn every_program_does_its_work() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().to_owned();
        let target = Target {
            name: "branch".into(),
            kind: TargetKind::Branch,
            branch_dirs: vec![root.clone()],
            data: root.clone(),
            root: root.clone(),
            branch_data: None,
            process: None,
        };
        let shape = TreeShape { dirs: [2, 2, 1], files: 2 };
        for work in Work::ALL.into_iter().filter(|work| missing(work.programs()).is_none()) {
            let whole = WholeProgram { work, shape, sources: 2, commits: 3 };
            let output = root.join(whole.output(7));
            whole.prepare(&target, 7).unwrap();
            whole.measure(&target, 7).unwrap();
            let made = match work {
                Work::Unpack => output.join("tree/d1/d0/d0/f1").exists(),
                Work::Copy | Work::GitClone => output.join("d1/d0/d0/f1").exists(),
                Work::Remove => !output.exists(),
                Work::RsyncAgain => root.join(COPY).join("d1/d0/d0/f1").exists(),
                Work::Compile => output.join("program").exists(),
                Work::SqliteWal | Work::SqliteDelete => {
                    fs::metadata(output.join("data.db")).unwrap().len() > 0
                }
            };
            assert!(made, "{work:?}");
            whole.clean_up(&target, 7).unwrap();
            assert!(!output.exists(), "{work:?}");
        }
    }
}
