//! The work that is counted, in the order of the table in docs/requests.md.

/// The tree has this many directories with this many files each.
pub(super) const DIRS: usize = 5;
pub(super) const FILES: usize = 20;
/// Files and directories of the tree, with its top.
const ENTRIES: usize = 1 + DIRS + DIRS * FILES;

/// A kind of work.
pub(super) struct Row {
    pub(super) name: &'static str,
    /// A script that prepares it, and is not counted.
    pub(super) before: &'static str,
    /// Whether the kernel forgets the pool's names and attributes before the work.
    pub(super) cold: bool,
    pub(super) work: &'static str,
    /// The number of things that the requests are divided by.
    pub(super) of: usize,
}

const fn row(name: &'static str, before: &'static str, work: &'static str) -> Row {
    Row { name, before, cold: false, work, of: ENTRIES }
}

const fn cold(name: &'static str, before: &'static str, work: &'static str) -> Row {
    Row { cold: true, ..row(name, before, work) }
}

/// Prepares a copy of the tree.
const TREE: &str = "tar -xf \"$OUTSIDE/tree.tar\"";

pub(super) const ROWS: &[Row] = &[
    row("tar x", "", "tar -xf \"$OUTSIDE/tree.tar\""),
    cold("tar c, first", TREE, "tar -cf - tree | cat > /dev/null"),
    row(
        "tar c, again",
        "tar -xf \"$OUTSIDE/tree.tar\"; tar -cf - tree | cat > /dev/null",
        "tar -cf - tree | cat > /dev/null",
    ),
    row("cp -r into the pool", "", "cp -r \"$OUTSIDE/tree\" tree"),
    row("cp -a into the pool", "", "cp -a \"$OUTSIDE/tree\" tree"),
    row("cp -a within the pool", TREE, "cp -a tree copy"),
    row("cp -a out of the pool", TREE, "cp -a tree \"$OUTSIDE/out/tree\""),
    row("rsync -a into the pool", "", "rsync -a \"$OUTSIDE/tree/\" tree/"),
    row(
        "rsync -a, nothing to do",
        "rsync -a \"$OUTSIDE/tree/\" tree/; rsync -a \"$OUTSIDE/tree/\" tree/",
        "rsync -a \"$OUTSIDE/tree/\" tree/",
    ),
    row("rsync -aAX into the pool", "", "rsync -aAX \"$OUTSIDE/tree/\" tree/"),
    row(
        "shutil.copytree within the pool",
        TREE,
        "python3 -c 'import shutil; shutil.copytree(\"tree\", \"copy\")'",
    ),
    cold("ls -lR, first", TREE, "ls -lR tree > /dev/null"),
    row("ls -lR, again", "tar -xf \"$OUTSIDE/tree.tar\"; ls -lR tree > /dev/null", "ls -lR tree > /dev/null"),
    row(
        "ls -lR of an absolute path, again",
        "tar -xf \"$OUTSIDE/tree.tar\"; ls -lR tree > /dev/null",
        "ls -lR \"$HERE/tree\" > /dev/null",
    ),
    cold("find, first", TREE, "find tree > /dev/null"),
    row(
        "find, again",
        "tar -xf \"$OUTSIDE/tree.tar\"; find tree > /dev/null; find tree > /dev/null",
        "find tree > /dev/null",
    ),
    row(
        "find -newer, again",
        "tar -xf \"$OUTSIDE/tree.tar\"; find tree -newer /etc/passwd > /dev/null",
        "find tree -newer /etc/passwd > /dev/null",
    ),
    row("chmod -R", TREE, "chmod -R g+w tree"),
    row("chgrp -R", TREE, "chgrp -R \"$(id -g)\" tree"),
    row(
        "mv of files to another directory",
        "tar -xf \"$OUTSIDE/tree.tar\"; for d in tree/*; do mkdir ${d#tree/}; done",
        "for d in tree/*; do mv $d/* ${d#tree/}/; done",
    ),
    row("rm -rf", TREE, "rm -rf tree"),
    row("git clone", "", "git clone -q \"$OUTSIDE/repo\" clone"),
    cold(
        "git status, first",
        "git clone -q \"$OUTSIDE/repo\" clone; cd clone; sleep 1; git status -s",
        "cd clone; git status -s",
    ),
    row(
        "git status, again",
        "git clone -q \"$OUTSIDE/repo\" clone; cd clone; sleep 1; git status -s",
        "cd clone; git status -s",
    ),
    Row {
        of: 50,
        ..row(
            "SQLite, rollback journal",
            "sqlite3 db 'create table t(x)'",
            "for i in $(seq 50); do echo \"insert into t values($i);\"; done | sqlite3 db",
        )
    },
    Row {
        of: 50,
        ..row(
            "SQLite, WAL",
            "sqlite3 db 'pragma journal_mode=wal; create table t(x)' > /dev/null",
            "for i in $(seq 50); do echo \"insert into t values($i);\"; done | sqlite3 db",
        )
    },
    Row {
        of: 50,
        ..row(
            "write a file anew and rename it",
            "touch doc",
            "python3 -c '
import os
for i in range(50):
    f = os.open(\"doc.tmp\", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    os.write(f, b\"x\"); os.fsync(f); os.close(f); os.rename(\"doc.tmp\", \"doc\")
'",
        )
    },
    Row {
        of: 50,
        ..row(
            "open by an absolute path, read, close",
            "echo x > doc; cat doc",
            "python3 -c '
import os
for i in range(50):
    f = os.open(os.environ[\"HERE\"] + \"/doc\", os.O_RDONLY)
    os.read(f, 10); os.close(f)
'",
        )
    },
    Row {
        of: 50,
        ..row(
            "stat of an absolute path",
            "echo x > doc",
            "python3 -c '
import os
for i in range(50): os.stat(os.environ[\"HERE\"] + \"/doc\")
'",
        )
    },
];
