//! What clients know by its inode number, while the process dies that told the number. One that changes looks to find(1),
//! fts(3) and getcwd(3) like another directory.

use crate::rig::Rig;
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::DirEntryExt;
use std::path::Path;
use std::process::Command;

/// So that the kernel asks the pool (statx(2)).
const FORCE_SYNC: AtFlags = AtFlags::from_bits_retain(0x2000);

fn number(path: &Path) -> u64 {
    let found = statx(CWD, path, FORCE_SYNC, StatxFlags::INO);
    found.unwrap_or_else(|error| panic!("{}: {error}", path.display())).stx_ino
}

/// The numbers of all that is below, by path. What a listing tells is the same.
fn numbers(root: &Path, dir: &Path, found: &mut BTreeMap<String, u64>) {
    for entry in fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let (path, listed) = (entry.path(), entry.ino());
        let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
        assert_eq!(listed, number(&path), "{name} in a listing and by itself");
        found.insert(name, listed);
        if path.is_dir() {
            numbers(root, &path, found);
        }
    }
}

fn all(rig: &Rig) -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    numbers(rig.pool.path(), rig.pool.path(), &mut found);
    found
}

#[test]
fn known_directories_keep_their_numbers() {
    for calc in ["oldest-hash", "oldest-hash32", "hybrid-hash", "path-hash32", "devino-hash", "passthrough"] {
        // The kernel looks names up each time, or comes back to the nodes that it knows.
        for caches in ["cache.entry=0,cache.attr=0,cache.readdir=false", "cache.entry=3600,cache.attr=3600"] {
            let rig = Rig::new(&["a", "b"], &format!("inodecalc={calc},category.create=ff,{caches}"));
            // Of the number, nothing is left in the name under which the directory and what is below are found again.
            fs::create_dir_all(rig.path("once/below/deep")).unwrap();
            let known = all(&rig);
            fs::rename(rig.path("once"), rig.path("now")).unwrap();
            // This one would have the number that the renamed one has.
            fs::create_dir_all(rig.path("once/below")).unwrap();
            // The first branch, which answers, had no copy when the number was told.
            fs::create_dir_all(rig.branch("b").join("both/below")).unwrap();
            let both = number(&rig.path("both"));
            fs::create_dir_all(rig.branch("a").join("both")).unwrap();
            fs::write(rig.path("now/file"), b"data").unwrap();
            if calc != "path-hash32" {
                fs::hard_link(rig.path("now/file"), rig.path("now/below/link")).unwrap();
            }
            let held = ["now", "now/below", "now/below/deep", "once", "once/below", "both", "both/below"]
                .map(|name| (name, File::open(rig.path(name)).unwrap()));
            let before = all(&rig);
            let what = format!("{calc}, {caches}");
            assert_eq!(
                (before["now/below/deep"], before["both"]),
                (known["once/below/deep"], both),
                "{what}"
            );
            rig.each_end(|how| {
                for (name, dir) in &held {
                    let found = statx(dir, "", AtFlags::EMPTY_PATH | FORCE_SYNC, StatxFlags::INO);
                    let found = found.unwrap_or_else(|error| panic!("{name} {how}, {what}: {error}"));
                    assert_eq!(found.stx_ino, before[*name], "{name} {how}, {what}");
                }
                assert_eq!(all(&rig), before, "{how}, {what}");
            });
            // The copy that answers goes, and the one whose number was told answers again.
            fs::remove_dir(rig.branch("a").join("both")).unwrap();
            rig.kill(Signal::KILL);
            assert_eq!(number(&rig.path("both")), both, "{what}");
            drop(held);
        }
    }
}

/// Walks a tree with fts(3) and getcwd(3), which look at numbers again, while processes end.
#[test]
fn a_walk_and_a_current_directory_go_on_in_a_renamed_tree() {
    let rig = Rig::build(&["a", "b"], |builder| {
        builder.option("category.create=rand,cache.attr=0").env("CANOPY_TEST_DEATHS", "5000")
    });
    fs::create_dir_all(rig.path("was/x/y")).unwrap();
    for number in 0..200 {
        fs::create_dir_all(rig.path(&format!("was/x/y/{number}/deeper"))).unwrap();
    }
    fs::rename(rig.path("was"), rig.path("is")).unwrap();
    fs::create_dir_all(rig.path("was/x/y")).unwrap();
    let script = "cd is/x/y; want=$(/bin/pwd -P)
        while read -r line; do
            [ \"$(/bin/pwd -P)\" = \"$want\" ]; [ \"$(find . -type d | wc -l)\" = 401 ]; echo done
        done; chmod -R u+x ../..; du -s . >/dev/null; rm -r ../../../is";
    let mut client = Command::new("sh")
        .args(["-euc", script])
        .current_dir(rig.pool.path())
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut orders = client.stdin.take().unwrap();
    let mut answers = std::io::BufRead::lines(std::io::BufReader::new(client.stdout.take().unwrap()));
    for round in 0..crate::storm::kills() {
        // Under way while the process ends.
        std::io::Write::write_all(&mut orders, b"\n").unwrap();
        match round % 2 {
            0 => rig.kill(Signal::KILL),
            _ => rig.upgrade().unwrap(),
        }
        assert_eq!(answers.next().unwrap().unwrap(), "done", "round {round}\n{}", rig.pool.log());
    }
    drop(orders);
    assert!(client.wait().unwrap().success(), "{}", rig.pool.log());
    assert!(!rig.path("is").exists() && !rig.branch("a").join("is").exists());
}
