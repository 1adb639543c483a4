//! Everyday programs with the library preloaded.

use super::rig::Bed;
use canopy_testkit::cmd::run;
use canopy_testkit::files::text;
use canopy_testkit::{LoopFs, Tree, TreeSpec, populate};
use std::fs;
use std::path::Path;

#[test]
fn cp_both_ways() {
    let bed = Bed::new("");
    // Each program compares the file it opened with its earlier stat.
    fs::write(bed.at("f"), "content").unwrap();
    assert_eq!(
        bed.shell("cp f g; cp -p g h; mv h i; cat f g i; cmp f i; tail -c 3 f"),
        "contentcontentcontentent"
    );
    assert_eq!(text(bed.on(0, "g")), "content");
    bed.end();
}

#[test]
fn python_opens() {
    let bed = Bed::new("cache.attr=0");
    let output = bed.shell(
        r#"exec python3 -c '
import os, shutil, tempfile
with open("f", "w") as file: file.write("text" * 1000)
with open("f", "r+b") as file:
    print(os.readlink("/proc/self/fd/%d" % file.fileno()) == os.path.abspath("f"))
    print(os.path.samestat(os.stat("f"), os.fstat(file.fileno())))
    file.seek(0, 2); file.write(b"end"); file.truncate()
shutil.copyfile("f", "g"); shutil.copy2("g", "h")
print(open("h").read()[-7:], os.stat("h").st_size)
with tempfile.NamedTemporaryFile(dir=".") as file: file.write(b"x")
with tempfile.TemporaryFile(dir=".") as file: file.write(b"x"); file.seek(0); print(file.read())
'"#,
    );
    assert_eq!(output, "False\nTrue\ntextend 4003\nb'x'\n");
    bed.end();
}

/// SQLite locks a file, and writes to it only while its name still leads to it.
#[test]
fn sqlite_in_both_journal_modes() {
    for mode in ["delete", "wal"] {
        let bed = Bed::new("cache.attr=0");
        bed.shell(&format!("sqlite3 db 'pragma journal_mode={mode}; create table t(x integer)' >/dev/null"));
        bed.shell(
            "for job in 1 2 3; do
                (for turn in 1 2 3 4 5 6 7 8 9 10; do sqlite3 -cmd '.timeout 60000' db 'insert into t values(1)'; done) &
                jobs=\"${jobs-} $!\"
            done
            for job in $jobs; do wait $job; done",
        );
        assert_eq!(
            bed.shell("sqlite3 db 'select count(*) from t; pragma integrity_check'"),
            "30\nok\n",
            "{mode}"
        );
        bed.end();
    }
}

#[test]
fn git_from_init_to_clone() {
    // git reads a file's size by name right after writing the file.
    let bed = Bed::new("cache.attr=0");
    bed.shell(
        "export GIT_CONFIG_GLOBAL=/dev/null GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
        git init -q -b main one; cd one
        for n in 1 2 3 4 5 6 7 8 9 10; do seq $n 300 >file$n; done
        git add .; git commit -qm first
        git checkout -q -b side; seq 5 >file1; git commit -qam second
        git checkout -q main; seq 500 >file2; git commit -qam third
        git merge -q -m merged side
        git gc -q; git fsck --strict 2>&1
        cd ..; git clone -q one two; diff -r -x .git one two
        cd two; [ -z \"$(git status --porcelain)\" ]",
    );
    assert_eq!(text(bed.on(0, "two/file1")), "1\n2\n3\n4\n5\n");
    bed.end();
}

#[test]
fn a_tree_copied_in_and_out() {
    let bed = Bed::new("cache.attr=0");
    let plain = LoopFs::tmpfs(256 << 20);
    let (source, back) = (plain.path().join("source"), plain.path().join("back"));
    fs::create_dir(&source).unwrap();
    populate(&source, &TreeSpec::new(31, 400));
    let copy = |from: &Path, to: &Path| {
        bed.run_ok("cp", ["-a".as_ref(), from.as_os_str(), to.as_os_str()]);
    };
    copy(&source, &bed.at("tree"));
    copy(&bed.at("tree"), &back);
    Tree::capture(&source).assert_same(&Tree::capture(&back));
    run("rm", ["-r".as_ref(), bed.at("tree").as_os_str()]);
    bed.end();
}
