use super::*;
use crate::branch::{BranchList, BranchSpec, Branches, Mode};
use crate::fs::stat;
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

struct Disk {
    home: tempfile::TempDir,
    branches: Branches,
    trash: Trash,
}

fn who(program: &str) -> Who {
    Who { uid: Some(7), program: program.into() }
}

impl Disk {
    fn new() -> Disk {
        let home = tempfile::tempdir().unwrap();
        let spec = BranchSpec { path: home.path().to_owned(), mode: Mode::Rw, min_free: None };
        let branches = Branches::open(&std::iter::once(spec).collect::<BranchList>()).unwrap();
        Disk { home, branches, trash: Trash::default() }
    }

    fn branch(&self) -> &Branch {
        &self.branches[0]
    }

    fn at(&self, path: &str) -> PathBuf {
        self.home.path().join(path)
    }

    fn put(&self, path: &str, text: &str) {
        fs::create_dir_all(self.at(path).parent().unwrap()).unwrap();
        fs::write(self.at(path), text).unwrap();
    }

    fn remove(&self, path: &str, program: &str) -> Result<Gone, Errno> {
        let (dir, name) = canopy_base::path::split(path.as_bytes());
        let opened = crate::fs::beneath::dir(self.branch().root(), dir)?;
        let attr = stat::at(opened.as_fd(), name)?;
        self.trash.remove(self.branch(), (opened.as_fd(), dir, name), &attr, &who(program))
    }

    /// What is in the trash: program, number of the batch, path.
    fn kept(&self) -> Vec<String> {
        let mut all = Vec::new();
        let swept = sweep::sweep(self.branch().root(), &mut |found| {
            let program = String::from_utf8(found.batch.who.program.clone()).unwrap();
            let path = String::from_utf8(found.path.to_vec()).unwrap();
            let dir = if found.attr.is_dir() { "/" } else { "" };
            all.push(format!("{program} {} {path}{dir}", found.batch.number));
            Verdict::Stays
        });
        assert!(swept.unwrap().whole);
        all.sort();
        all
    }

    fn trash_dir(&self) -> PathBuf {
        self.at(".canopy-trash")
    }

    fn batches(&self) -> Vec<PathBuf> {
        let mut all: Vec<PathBuf> =
            fs::read_dir(self.trash_dir()).unwrap().map(|entry| entry.unwrap().path()).collect();
        all.sort();
        all
    }
}

#[test]
fn a_file_keeps_its_path_and_what_is_above_it_its_attributes() {
    let disk = Disk::new();
    disk.put("d/e/f", "text");
    fs::set_permissions(disk.at("d"), fs::Permissions::from_mode(0o751)).unwrap();
    fs::set_permissions(disk.at("d/e/f"), fs::Permissions::from_mode(0o640)).unwrap();
    let old = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000);
    fs::File::open(disk.at("d")).unwrap().set_modified(old).unwrap();
    fs::File::open(disk.at("d/e")).unwrap().set_modified(old).unwrap();
    assert_eq!(disk.remove("d/e/f", "rm"), Ok(Gone::Kept));
    assert!(!disk.at("d/e/f").exists());
    let batch = &disk.batches()[0];
    assert_eq!(fs::read_to_string(batch.join("d/e/f")).unwrap(), "text");
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
    assert_eq!(mode(&disk.trash_dir()), 0o700);
    assert_eq!((mode(&batch.join("d")), mode(&batch.join("d/e/f"))), (0o751, 0o640));
    let mtime = |path: PathBuf| fs::metadata(path).unwrap().mtime();
    assert_eq!((mtime(batch.join("d")), mtime(batch.join("d/e"))), (1_000_000, 1_000_000));
    assert_eq!(disk.kept(), ["rm 0 d/e/f"]);
    assert!(disk.trash.bytes(disk.branch().id) >= 4);
    assert!(batch.file_name().unwrap().to_str().unwrap().contains(".7.0.rm"), "{batch:?}");
}

#[test]
fn a_name_that_is_taken_in_a_batch_goes_to_the_next() {
    let disk = Disk::new();
    for text in ["1", "2", "3"] {
        disk.put("d/f", text);
        assert_eq!(disk.remove("d/f", "rm"), Ok(Gone::Kept));
    }
    disk.put("d/g", "other");
    disk.remove("d/g", "smbd").unwrap();
    // A directory where a file was, and the other way round.
    fs::remove_dir(disk.at("d")).unwrap();
    disk.put("d", "a file now");
    disk.remove("d", "rm").unwrap();
    disk.put("d/f/x", "below what was a file");
    disk.remove("d/f/x", "rm").unwrap();
    assert_eq!(disk.kept(), ["rm 0 d/f", "rm 1 d/f", "rm 2 d/f", "rm 3 d", "rm 4 d/f/x", "smbd 0 d/g"]);
    let texts: Vec<String> = (0..3)
        .map(|number| {
            let of = |path: &&PathBuf| path.to_str().unwrap().ends_with(&format!(".{number}.rm"));
            fs::read_to_string(disk.batches().iter().find(of).unwrap().join("d/f")).unwrap()
        })
        .collect();
    assert_eq!(texts, ["1", "2", "3"]);
}

#[test]
fn only_the_last_name_of_a_file_is_kept() {
    let disk = Disk::new();
    disk.put("f", "text");
    fs::hard_link(disk.at("f"), disk.at("g")).unwrap();
    assert_eq!(disk.remove("f", "rm"), Ok(Gone::Removed));
    assert_eq!(disk.remove("g", "rm"), Ok(Gone::Kept));
    assert_eq!(disk.kept(), ["rm 0 g"]);
    // Both at once: one of them is the last.
    for round in 0..50 {
        let [one, other] = ["a", "b"].map(|name| format!("{name}{round}"));
        disk.put(&one, "text");
        fs::hard_link(disk.at(&one), disk.at(&other)).unwrap();
        let gone = std::thread::scope(|scope| {
            let threads = [&one, &other].map(|name| scope.spawn(|| disk.remove(name, "rm").unwrap()));
            threads.map(|thread| thread.join().unwrap())
        });
        assert!(gone.contains(&Gone::Kept) && gone.contains(&Gone::Removed), "{gone:?}");
    }
    assert_eq!(disk.kept().len(), 51);
}

#[test]
fn what_has_no_contents_is_not_kept() {
    let disk = Disk::new();
    let fifo = disk.at("fifo");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &fifo,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    std::os::unix::fs::symlink("nowhere", disk.at("link")).unwrap();
    assert_eq!(disk.remove("fifo", "rm"), Ok(Gone::Removed));
    assert_eq!(disk.remove("link", "rm"), Ok(Gone::Kept));
    assert_eq!(disk.remove("none", "rm"), Err(Errno::NOENT));
    assert_eq!(disk.kept(), ["rm 0 link"]);
}

#[test]
fn a_replaced_file_stays_linked_only_if_it_was_replaced() {
    let disk = Disk::new();
    let link = || {
        let attr = stat::at(disk.branch().root(), b"f").unwrap();
        let place = (disk.branch().root(), &b"f"[..]);
        disk.trash.link(disk.branch(), place, (b"", b"f"), &attr, &who("cp")).unwrap()
    };
    disk.put("f", "old");
    let linked = link();
    disk.trash.settle_link(disk.branch(), &linked);
    assert!(disk.kept().is_empty(), "the rename has failed");
    let linked = link();
    disk.put("new", "new");
    fs::rename(disk.at("new"), disk.at("f")).unwrap();
    disk.trash.settle_link(disk.branch(), &linked);
    assert_eq!(disk.kept(), ["cp 0 f"]);
    // One that a process has left which ended before the rename goes with the next start.
    let _left = link();
    assert_eq!(disk.kept().len(), 2);
    disk.trash.age(disk.branch(), 0, |_| None).unwrap();
    assert_eq!(disk.kept().len(), 2, "the rename is under way");
    let next = Trash { began: Time { sec: i64::MAX, nsec: 0 }, ..Trash::default() };
    next.age(disk.branch(), 0, |_| None).unwrap();
    assert_eq!(disk.kept(), ["cp 0 f"]);
    assert_eq!(fs::read_to_string(disk.at("f")).unwrap(), "new");
}

#[test]
fn what_is_over_goes_and_directories_with_it() {
    let disk = Disk::new();
    for name in ["a/1", "a/2", "b/1"] {
        disk.put(name, name);
        disk.remove(name, "rm").unwrap();
    }
    fs::create_dir_all(disk.at("empty/e")).unwrap();
    let above = fs::File::open(disk.at("empty")).unwrap();
    let going = super::RemovedDir::of(disk.branch(), above.as_fd(), b"e").unwrap();
    fs::remove_dir(disk.at("empty/e")).unwrap();
    disk.trash.keep_dir(disk.branch(), (b"empty", b"e"), &going, &who("rm"));
    assert_eq!(disk.kept(), ["rm 0 a/1", "rm 0 a/2", "rm 0 b/1", "rm 0 empty/e/"]);
    let now =
        super::batch::Batch::parse(disk.batches()[0].file_name().unwrap().as_encoded_bytes()).unwrap().began;
    let keep = |path: &[u8]| Some(if path == b"b/1" { 1000 } else { 10 });
    disk.trash.age(disk.branch(), now + 5, keep).unwrap();
    assert_eq!(disk.kept().len(), 4);
    disk.trash.age(disk.branch(), now + 600, keep).unwrap();
    assert_eq!(disk.kept(), ["rm 0 b/1"]);
    disk.trash.age(disk.branch(), now + 2000, keep).unwrap();
    assert!(disk.batches().is_empty());
    assert_eq!(disk.trash.bytes(disk.branch().id), 0);
    // The directories that were in use are gone.
    disk.put("a/1", "again");
    assert_eq!(disk.remove("a/1", "rm"), Ok(Gone::Kept));
    assert_eq!(disk.kept(), ["rm 0 a/1"]);
}

#[test]
fn the_oldest_makes_room() {
    let disk = Disk::new();
    for name in ["1", "2"] {
        disk.put(name, name);
        disk.remove(name, name).unwrap();
    }
    // The batch of 2 began earlier.
    let batches = disk.batches();
    let of_two = batches.iter().find(|path| path.to_str().unwrap().ends_with(".2")).unwrap();
    fs::rename(of_two, disk.trash_dir().join("20000101T000000Z.7.0.2")).unwrap();
    let avail = Space::of(disk.branch().root()).unwrap().avail;
    assert_eq!(disk.trash.make_room(disk.branch(), 0), Ok(false), "there is room");
    assert_eq!(disk.kept().len(), 2);
    let mut seen = Vec::new();
    sweep::sweep(disk.branch().root(), &mut |found| {
        seen.push(found.path.to_vec());
        Verdict::Stays
    })
    .unwrap();
    assert_eq!(seen, [b"2", b"1"]);
    assert_eq!(disk.trash.make_room(disk.branch(), avail * 2), Ok(true));
    assert!(disk.kept().is_empty());
}

#[test]
fn a_trash_that_others_could_fill_is_not_used() {
    let disk = Disk::new();
    disk.put("f", "text");
    fs::create_dir(disk.trash_dir()).unwrap();
    fs::set_permissions(disk.trash_dir(), fs::Permissions::from_mode(0o777)).unwrap();
    assert_eq!(disk.remove("f", "rm"), Ok(Gone::Removed));
    assert!(disk.batches().is_empty());
    let swept = sweep::sweep(disk.branch().root(), &mut |_| Verdict::Goes);
    assert_eq!(swept, Err(Errno::PERM));
}

#[test]
fn what_is_removed_from_a_directory_that_was_closed_comes_back_into_a_closed_one() {
    let disk = Disk::new();
    for name in ["d/e/x", "d/e/y", "d/e/z"] {
        disk.put(name, "text");
    }
    let close = |dir: &str| fs::set_permissions(disk.at(dir), fs::Permissions::from_mode(0o700)).unwrap();
    fs::set_permissions(disk.at("d"), fs::Permissions::from_mode(0o755)).unwrap();
    disk.remove("d/e/x", "rm").unwrap();
    close("d");
    disk.remove("d/e/y", "rm").unwrap();
    close("d/e");
    disk.remove("d/e/z", "rm").unwrap();
    assert_eq!(disk.kept(), ["rm 0 d/e/x", "rm 1 d/e/y", "rm 2 d/e/z"]);
    let modes = disk
        .batches()
        .into_iter()
        .map(|batch| ["d", "d/e"].map(|dir| fs::metadata(batch.join(dir)).unwrap().mode() & 0o777));
    assert_eq!(modes.collect::<Vec<_>>(), [[0o755, 0o755], [0o700, 0o755], [0o700, 0o700]]);
}

#[test]
fn what_lies_too_deep_is_not_kept() {
    let disk = Disk::new();
    for (depth, gone) in [(100, Gone::Kept), (129, Gone::Removed)] {
        let path = format!("{}f", "d/".repeat(depth));
        disk.put(&path, "text");
        assert_eq!(disk.remove(&path, "rm"), Ok(gone), "{depth}");
    }
}

/// The directories above what did not come to the trash would be told as removed ones.
#[test]
fn what_fails_leaves_no_directory_behind() {
    let disk = Disk::new();
    disk.put("a/b/c/f", "x");
    let link = |name: &str| {
        let dir = crate::fs::beneath::dir(disk.branch().root(), b"a/b/c").unwrap();
        let attr = stat::at(dir.as_fd(), b"f").unwrap();
        let to = (&b"a/b/c"[..], name.as_bytes());
        disk.trash.link(disk.branch(), (dir.as_fd(), name.as_bytes()), to, &attr, &who("mv"))
    };
    assert!(link("gone").is_none());
    assert_eq!(disk.kept(), Vec::<String>::new());
    // What was open of it is not used again.
    assert!(link("f").is_some());
    assert_eq!(disk.kept(), ["mv 0 a/b/c/f"]);
    assert!(link("gone").is_none());
    assert_eq!(disk.kept(), ["mv 0 a/b/c/f"]);
}
