//! Directories that clients have open, or as their current directory, whose oldest copy goes, which get an older one, or which
//! are removed: the next process finds none of them by its copies.

use crate::rig::Rig;
use rustix::fs::{Mode, OFlags, openat};
use rustix::process::Signal;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

const CACHES: [&str; 2] =
    ["cache.entry=0,cache.attr=0,cache.readdir=false", "cache.entry=3600,cache.attr=3600,cache.readdir=true"];

fn read_in(dir: &File, name: &str) -> io::Result<String> {
    let mut text = String::new();
    let file = openat(dir, name, OFlags::RDONLY, Mode::empty())?;
    File::from(file).read_to_string(&mut text)?;
    Ok(text)
}

fn listed(dir: &File) -> io::Result<Vec<String>> {
    let mut names: Vec<String> = rustix::fs::Dir::read_from(dir)?
        .map(|entry| entry.map(|entry| entry.file_name().to_str().unwrap_or("?").to_owned()))
        .collect::<Result<_, _>>()?;
    names.retain(|name| name != "." && name != "..");
    names.sort();
    Ok(names)
}

/// A pool whose directories have an older copy on `a` and the files on `b`, and `dir/sub` open.
fn with_open_dir(caches: &str) -> (Rig, File) {
    let rig = Rig::new(&["a", "b", "c"], &format!("category.create=epff,{caches}"));
    fs::create_dir_all(rig.branch("a").join("dir/sub")).unwrap();
    fs::create_dir_all(rig.branch("b").join("dir/sub")).unwrap();
    fs::write(rig.branch("b").join("dir/sub/f"), "on b").unwrap();
    let held = File::open(rig.path("dir/sub")).unwrap();
    assert_eq!(read_in(&held, "f").unwrap(), "on b");
    (rig, held)
}

fn is_whole(rig: &Rig, held: &File, at: &str, number: u64, when: &str) {
    let named = fs::metadata(rig.path(at)).unwrap().ino();
    let own = held.metadata().unwrap_or_else(|error| panic!("{when}: {error}"));
    assert_eq!((own.ino(), named), (number, number), "{when}");
    assert_eq!(listed(held).unwrap(), ["f"], "{when}");
    assert_eq!(read_in(held, "f").unwrap(), "on b", "{when}");
}

#[test]
fn a_directory_is_found_after_its_oldest_copy_has_gone() {
    for caches in CACHES {
        let (rig, held) = with_open_dir(caches);
        let number = held.metadata().unwrap().ino();
        rig.pool.set("branches", &format!("-{}", rig.branch("a").display()));
        rig.each_end(|how| is_whole(&rig, &held, "dir/sub", number, &format!("{caches}: {how}")));
        // What the next process does not know yet is renamed, and so is what is above it.
        rig.kill(Signal::KILL);
        fs::rename(rig.path("dir/sub"), rig.path("dir/now")).unwrap();
        fs::rename(rig.path("dir"), rig.path("moved")).unwrap();
        fs::create_dir_all(rig.path("dir/sub")).unwrap();
        rig.each_end(|how| is_whole(&rig, &held, "moved/now", number, &format!("{caches}: {how}, renamed")));
    }
}

#[test]
fn a_directory_is_found_after_it_has_got_an_older_copy() {
    for caches in CACHES {
        let (rig, _) = with_open_dir(caches);
        rig.pool.set("branches", &format!("-{}", rig.branch("a").display()));
        // It is known by the copy on `b` only.
        let held = File::open(rig.path("dir/sub")).unwrap();
        let number = held.metadata().unwrap().ino();
        rig.pool.set("branches", &format!("+<{}", rig.branch("a").display()));
        rig.each_end(|how| is_whole(&rig, &held, "dir/sub", number, &format!("{caches}: {how}")));
    }
}

/// By rmdir(2), and by a rename of another one.
#[test]
fn a_removed_directory_stays_until_it_is_closed() {
    for caches in CACHES {
        let rig = Rig::new(&["a", "b"], &format!("category.create=ff,{caches}"));
        for dir in ["removed", "replaced", "other"] {
            fs::create_dir(rig.path(dir)).unwrap();
            fs::create_dir(rig.branch("b").join(dir)).unwrap();
        }
        let held = ["removed", "replaced"].map(|dir| File::open(rig.path(dir)).unwrap());
        let shown = |held: &File| {
            let meta = held.metadata()?;
            Ok::<_, io::Error>((meta.ino(), meta.mode(), meta.uid(), listed(held)?))
        };
        fs::remove_dir(rig.path("removed")).unwrap();
        fs::rename(rig.path("other"), rig.path("replaced")).unwrap();
        let before = [0, 1].map(|at| shown(&held[at]).unwrap());
        fs::create_dir(rig.path("removed")).unwrap();
        rig.each_end(|how| {
            for (held, before) in held.iter().zip(&before) {
                let now = shown(held).unwrap_or_else(|error| panic!("{caches}: {how}: {error}"));
                assert_eq!(now, *before, "{caches}: {how}");
                let made = openat(held, "new", OFlags::CREATE | OFlags::WRONLY, Mode::RUSR);
                assert_eq!(made.err(), Some(rustix::io::Errno::NOENT), "{caches}: {how}");
            }
            let named = ["removed", "replaced"].map(|dir| fs::metadata(rig.path(dir)).unwrap().ino());
            assert!(named[0] != before[0].0 && named[1] != before[1].0, "{caches}: {how}");
        });
        drop(held);
        // Nothing keeps them on the branches.
        let server = crate::rig::server(&rig.pool);
        let kept = || {
            let open = fs::read_dir(format!("/proc/{server}/fd")).unwrap();
            open.filter_map(|fd| fs::read_link(fd.unwrap().path()).ok())
                .any(|target| target.ends_with(Path::new("removed (deleted)")))
        };
        assert!(canopy_testkit::cmd::wait_until(canopy_testkit::PATIENCE, || !kept()), "{caches}");
    }
}
