//! A directory is changed directly on a branch, and the very next operation through the pool must see it. The pool has
//! used the directory just before, so whatever it remembers of it is wrong now.

use super::rig::{BINARY, builder};
use canopy_testkit::{Kind, LoopFs, Pool, PoolBed, PoolBuilder};
use rustix::fs::RenameFlags;
use std::collections::BTreeSet;
use std::fs::{self, File, FileTimes};
use std::io::ErrorKind;
use std::path::Path;
use std::time::{Duration, SystemTime};

const BRANCHES: usize = 3;

/// Mounts a pool over three filesystems, with and without a watch on them, and runs `test` on each.
fn on_both(test: impl Fn(&PoolBed)) {
    let unwatched = Pool::builder(BINARY).option("minfreespace=0,category.create=ff,cache.coherence=timeout");
    for builder in [builder(""), unwatched] {
        test(&mount(builder, BRANCHES));
    }
}

fn mount(builder: PoolBuilder, count: usize) -> PoolBed {
    let disks: Vec<LoopFs> = (0..count).map(|_| LoopFs::new(Kind::Tmpfs, 64 << 20)).collect();
    PoolBed::mount(builder, disks)
}

/// Makes the pool use a directory in each of the ways that make it remember something of it.
fn use_often(dir: &Path) {
    for round in 0..20 {
        assert!(!dir.join(format!("missing{round}")).exists());
    }
    let file = dir.join("used");
    fs::write(&file, "x").expect("a file");
    fs::rename(&file, dir.join("used2")).expect("a rename");
    fs::create_dir(dir.join("useddir")).expect("mkdir");
    fs::rename(dir.join("useddir"), dir.join("useddir2")).expect("a rename of a directory");
    fs::remove_dir(dir.join("useddir2")).expect("rmdir");
    fs::remove_file(dir.join("used2")).expect("unlink");
}

fn names(dir: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(dir).expect("a listing");
    entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8")).collect()
}

fn mkdir_on(bed: &PoolBed, branch: usize, path: &str) {
    fs::create_dir_all(bed.on(branch, path)).expect("a directory");
}

#[test]
fn a_renamed_directory_takes_along_the_copy_that_has_just_appeared() {
    on_both(|bed| {
        let w = bed.at("w");
        mkdir_on(bed, 0, "w/a");
        use_often(&w);
        use_often(&w.join("a"));
        for round in 0..10 {
            let new = format!("new{round}");
            mkdir_on(bed, 2, "w/a");
            fs::write(bed.on(2, "w/a").join(&new), "x").expect("a file");
            fs::rename(w.join("a"), w.join("b")).expect("a rename");
            assert!(
                bed.on(2, "w/b").join(&new).exists(),
                "{round}: the copy on the other branch was moved too"
            );
            assert_eq!(fs::read(w.join("b").join(&new)).expect("the file"), b"x", "{round}");
            assert!(!w.join("a").exists(), "{round}");
            fs::rename(w.join("b"), w.join("a")).expect("a rename back");
            // Gone from the branch again: the next rename moves one copy.
            fs::remove_dir_all(bed.on(2, "w/a")).expect("removal");
        }
    });
}

#[test]
fn a_rename_finds_that_its_directories_have_moved() {
    on_both(|bed| {
        let w = bed.at("w");
        for branch in 0..BRANCHES {
            mkdir_on(bed, branch, "w/old");
            mkdir_on(bed, branch, "w/new");
        }
        fs::create_dir(w.join("old/d")).expect("mkdir");
        use_often(&w.join("old"));
        use_often(&w.join("new"));
        // Another process moves the parent on one branch, and the name with it.
        fs::rename(bed.on(0, "w/old"), bed.on(0, "w/away")).expect("a rename");
        let error = fs::rename(w.join("old/d"), w.join("new/d")).expect_err("no branch has the name there");
        assert_eq!(error.kind(), ErrorKind::NotFound);
        fs::rename(w.join("away/d"), w.join("new/d")).expect("a rename from where it is now");
        assert!(bed.on(0, "w/new/d").is_dir() && !bed.on(0, "w/away/d").exists());
        // The target's parent leaves a branch: it is made there again, at its path.
        fs::rename(bed.on(0, "w/new"), bed.on(0, "w/newer")).expect("a rename");
        fs::rename(w.join("newer/d"), w.join("new/d")).expect("a rename into a directory of other branches");
        assert!(bed.on(0, "w/new/d").is_dir() && !bed.on(0, "w/newer/d").exists());
    });
}

#[test]
fn what_is_below_a_renamed_directory_is_used_where_it_is_now() {
    on_both(|bed| {
        let w = bed.at("w");
        for branch in 0..BRANCHES {
            mkdir_on(bed, branch, "w/a/sub/deep");
            fs::write(bed.on(branch, &format!("w/a/sub/deep/f{branch}")), "x").expect("a file");
        }
        mkdir_on(bed, 1, "w/side");
        use_often(&w.join("a/sub/deep"));
        use_often(&w.join("side"));
        let (mut from, mut to) = (w.join("a"), w.join("b"));
        for round in 0..6 {
            fs::rename(&from, &to).expect("a rename");
            fs::write(to.join("sub/deep/made"), "x").expect("a file below");
            assert_eq!(names(&to.join("sub/deep")).len(), BRANCHES + 1, "{round}");
            // A new directory takes over the old name; nothing from before shows in it.
            fs::create_dir_all(from.join("sub/deep")).expect("a directory");
            assert_eq!(names(&from.join("sub/deep")), BTreeSet::new(), "{round}");
            fs::write(from.join("sub/deep/other"), "x").expect("a file");
            assert!(!to.join("sub/deep/other").exists(), "{round}");
            fs::remove_dir_all(&from).expect("removal");
            fs::remove_file(to.join("sub/deep/made")).expect("removal");
            // An exchange moves both.
            let side = w.join("side");
            let flags = RenameFlags::EXCHANGE;
            rustix::fs::renameat_with(rustix::fs::CWD, &to, rustix::fs::CWD, &side, flags)
                .expect("an exchange");
            assert_eq!(names(&side.join("sub/deep")).len(), BRANCHES, "{round}");
            assert_eq!(names(&to), BTreeSet::new(), "{round}");
            rustix::fs::renameat_with(rustix::fs::CWD, &to, rustix::fs::CWD, &side, flags)
                .expect("an exchange");
            std::mem::swap(&mut from, &mut to);
        }
    });
}

#[test]
fn a_directory_that_another_process_has_filled_is_not_removed() {
    on_both(|bed| {
        let w = bed.at("w");
        fs::create_dir(&w).expect("mkdir");
        for round in 0..10 {
            fs::create_dir(w.join("a")).expect("mkdir");
            use_often(&w.join("a"));
            mkdir_on(bed, 2, "w/a");
            fs::write(bed.on(2, "w/a/new"), "x").expect("a file");
            let error = fs::remove_dir(w.join("a")).expect_err("it is not empty");
            assert_eq!(error.kind(), ErrorKind::DirectoryNotEmpty, "{round}");
            assert_eq!(names(&w.join("a")), BTreeSet::from(["new".to_owned()]), "{round}");
            fs::remove_file(bed.on(2, "w/a/new")).expect("removal");
            fs::remove_dir(w.join("a")).expect("it is empty on all branches");
            assert!((0..BRANCHES).all(|branch| !bed.on(branch, "w/a").exists()), "{round}");
        }
    });
}

#[test]
fn a_link_or_rename_finds_the_name_that_has_just_been_taken() {
    on_both(|bed| {
        let w = bed.at("w");
        mkdir_on(bed, 0, "w/d");
        mkdir_on(bed, 2, "w/d");
        fs::write(bed.on(0, "w/file"), "x").expect("a file");
        use_often(&w.join("d"));
        for round in 0..10 {
            let name = format!("taken{round}");
            assert!(!w.join("d").join(&name).exists(), "the kernel may remember that");
            fs::write(bed.on(2, &format!("w/d/{name}")), "other").expect("a file");
            let error =
                fs::hard_link(w.join("file"), w.join("d").join(&name)).expect_err("the name is taken");
            assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{round}");
            let taken = format!("dir{round}");
            assert!(!w.join("d").join(&taken).exists(), "the kernel may remember that");
            mkdir_on(bed, 2, &format!("w/d/{taken}"));
            let (from, to) = (w.join("file"), w.join("d").join(&taken));
            let error = fs::rename(&from, &to).expect_err("a directory has the name");
            assert_eq!(error.kind(), ErrorKind::IsADirectory, "{round}");
            fs::create_dir(w.join("mine")).expect("mkdir");
            fs::write(bed.on(2, &format!("w/d/{taken}/x")), "x").expect("a file");
            let error = fs::rename(w.join("mine"), &to).expect_err("the directory is not empty");
            assert_eq!(error.kind(), ErrorKind::DirectoryNotEmpty, "{round}");
            fs::remove_dir(w.join("mine")).expect("rmdir");
        }
    });
}

#[test]
fn the_latest_time_of_a_directory_is_that_of_the_copy_that_has_just_changed() {
    on_both(|bed| {
        let w = bed.at("w");
        for branch in 0..BRANCHES {
            mkdir_on(bed, branch, "w");
        }
        use_often(&w);
        let shown = || fs::metadata(&w).expect("attributes").modified().expect("a time");
        let future = SystemTime::now() + Duration::from_secs(1000);
        for round in 0..10 {
            // Names are made on the first branch. After that, the kernel asks for the attributes again.
            fs::create_dir(w.join("x")).expect("mkdir");
            shown();
            let time = future + Duration::from_secs(round);
            let copy = File::open(bed.on(1 + round as usize % 2, "w")).expect("the directory on the branch");
            // Both times: nothing reports that one alone was set.
            copy.set_times(FileTimes::new().set_accessed(time).set_modified(time)).expect("times");
            fs::remove_dir(w.join("x")).expect("rmdir");
            assert_eq!(shown(), time, "{round}");
        }
    });
}

#[test]
fn a_directory_that_is_cloned_for_a_new_file_keeps_all_its_names() {
    // Each file goes to another branch, and its directory with it.
    let builder = builder("category.create=rand");
    let bed = mount(builder, 8);
    for tree in 0..4 {
        let dir = bed.at(&format!("w{tree}/x/y"));
        fs::create_dir_all(&dir).expect("directories");
        let mut expected = BTreeSet::new();
        for round in 0..60 {
            let name = format!("f{round}");
            fs::write(dir.join(&name), "x").expect("a file");
            expected.insert(name);
            // Another process makes names, in a directory that the pool has just made or not.
            let on_branch = bed.on(round % 8, &format!("w{tree}/x/y"));
            if on_branch.is_dir() {
                let name = format!("direct{round}");
                fs::write(on_branch.join(&name), "x").expect("a file");
                expected.insert(name);
            }
            assert!(expected.iter().all(|name| dir.join(name).exists()), "{tree}, {round}");
            assert!(!dir.join(format!("missing{round}")).exists());
        }
        assert_eq!(names(&dir), expected);
    }
}
