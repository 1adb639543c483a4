use super::*;
use crate::fs::stat::Attr;
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use std::os::unix::fs::symlink;
use std::time::Duration;

fn root(path: &Path) -> OwnedFd {
    rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap()
}

struct Bed {
    _home: tempfile::TempDir,
    branch: PathBuf,
    file: PathBuf,
}

impl Bed {
    /// A branch with a few files, and where its record is to be.
    fn new() -> Bed {
        let home = tempfile::tempdir().unwrap();
        let (branch, file) = (home.path().join("branch"), home.path().join("state/branch.names"));
        fs::create_dir_all(branch.join("films/old")).unwrap();
        fs::write(branch.join("films/one.mkv"), "12345").unwrap();
        symlink("one.mkv", branch.join("films/link")).unwrap();
        fs::write(branch.join("films/old/two.mkv"), "").unwrap();
        Bed { _home: home, branch, file }
    }

    /// Begins a record, and waits until it has all.
    fn kept(&self) -> Arc<Record> {
        let record = Arc::new(Record::begin(&self.file, &self.branch).unwrap());
        record.keep(root(&self.branch)).unwrap();
        until(|| record.extent().whole);
        record
    }

    /// Tells of an event in a directory, as the watch does.
    fn event(&self, record: &Record, dir: &str, deep: bool) {
        let dir = root(&self.branch.join(dir));
        record.changed(&scan::handle(&dir).unwrap(), deep);
    }

    fn loaded(&self) -> Record {
        Record::load(&self.file, &self.branch).unwrap()
    }
}

#[track_caller]
fn until(is: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is() {
        assert!(begun.elapsed() < Duration::from_secs(20), "it takes too long");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn names(known: Known<Arc<Listing>>) -> Vec<String> {
    let Known::Yes(listing) = known else { panic!("{known:?}") };
    listing.rows.iter().map(|row| String::from_utf8_lossy(&row.name).into_owned()).collect()
}

#[test]
fn what_was_there_is_known_by_another_process() {
    let bed = Bed::new();
    let record = bed.kept();
    record.freeze();
    fs::remove_dir_all(bed.branch.join("films")).unwrap();
    for record in [&*record, &bed.loaded()] {
        assert_eq!(names(record.dir(b"")), ["films"]);
        assert_eq!(names(record.dir(b"films")), ["link", "old", "one.mkv"]);
        assert_eq!(names(record.dir(b"films/old")), ["two.mkv"]);
        assert_eq!((record.dir(b"music"), record.dir(b"films/one.mkv")), (Known::No, Known::No));
        let Known::Yes(row) = record.name(b"films", b"one.mkv") else { panic!() };
        assert_eq!((row.attr.size, row.attr.is_regular()), (5, true));
        let Known::Yes(row) = record.name(b"films", b"link") else { panic!() };
        assert_eq!(row.link.as_deref(), Some(&b"one.mkv"[..]));
        assert_eq!(record.extent(), Extent { directories: 3, names: 5, stale: 0, whole: true });
    }
    assert!(Record::load(&bed.file.with_extension("other"), &bed.branch).is_none());
}

#[test]
fn what_changes_is_unknown_until_it_has_been_read() {
    let bed = Bed::new();
    let record = bed.kept();
    fs::write(bed.branch.join("films/three.mkv"), "").unwrap();
    bed.event(&record, "films", false);
    // As after a kill at this moment.
    for record in [&*record, &bed.loaded()] {
        assert_eq!(record.dir(b"films"), Known::Unknown);
        assert_eq!(record.name(b"films", b"one.mkv"), Known::Unknown);
        assert_eq!(names(record.dir(b"films/old")), ["two.mkv"], "nothing has happened there");
    }
    until(|| record.dir(b"films") != Known::Unknown);
    for record in [&*record, &bed.loaded()] {
        assert_eq!(names(record.dir(b"films")), ["link", "old", "one.mkv", "three.mkv"]);
    }
    // Frozen at this moment, it stays unknown.
    bed.event(&record, "films", false);
    record.freeze();
    assert_eq!((record.dir(b"films"), bed.loaded().dir(b"films")), (Known::Unknown, Known::Unknown));
}

#[test]
fn directories_that_move_take_along_what_is_known_below_them() {
    let bed = Bed::new();
    let record = bed.kept();
    let at = |path: &str| bed.branch.join(path);
    fs::rename(at("films/old"), at("aside")).unwrap();
    fs::create_dir_all(at("films/old/new")).unwrap();
    bed.event(&record, "films", true);
    assert_eq!(record.dir(b"films/old"), Known::Unknown, "what was below may be elsewhere");
    bed.event(&record, "", true);
    until(|| record.dir(b"films/old/new") == Known::Yes(Arc::default()) || record.extent().stale == 0);
    for record in [&*record, &bed.loaded()] {
        assert_eq!(names(record.dir(b"aside")), ["two.mkv"]);
        assert_eq!(names(record.dir(b"films/old")), ["new"]);
        assert_eq!(names(record.dir(b"")), ["aside", "films"]);
    }
    fs::remove_dir_all(at("films")).unwrap();
    bed.event(&record, "", true);
    until(|| record.extent().stale == 0 && names(record.dir(b"")) == ["aside"]);
    assert_eq!(bed.loaded().dir(b"films/old/new"), Known::No);
    record.freeze();
}

#[test]
fn lost_events_make_everything_unknown_for_a_while() {
    let bed = Bed::new();
    let record = bed.kept();
    fs::remove_file(bed.branch.join("films/one.mkv")).unwrap();
    record.missed_events();
    assert_eq!(bed.loaded().dir(b"films"), Known::Unknown);
    until(|| record.extent().whole);
    assert_eq!(names(bed.loaded().dir(b"films")), ["link", "old"]);
    record.freeze();
}

#[test]
fn a_damaged_record_is_not_believed() {
    let bed = Bed::new();
    bed.kept().freeze();
    let whole = fs::read(&bed.file).unwrap();
    let unknown =
        |record: &Record| record.dir(b"") == Known::Unknown && record.dir(b"films") == Known::Unknown;
    for at in [0, 20, whole.len() / 2, whole.len() - 1] {
        let mut damaged = whole.clone();
        damaged[at] ^= 1;
        fs::write(&bed.file, &damaged).unwrap();
        assert!(unknown(&bed.loaded()), "byte {at}");
    }
    fs::write(&bed.file, &whole).unwrap();
    assert!(!unknown(&bed.loaded()));
    let other = Record::load(&bed.file, Path::new("/elsewhere")).unwrap();
    assert!(unknown(&other), "it is another branch's");
    // Cut off anywhere, it says less, never other things.
    for length in (0..whole.len()).step_by(7) {
        fs::write(&bed.file, &whole[..length]).unwrap();
        let cut = bed.loaded();
        if let Known::Yes(films) = cut.dir(b"films") {
            assert_eq!(films.rows.len(), 3);
        }
        assert_ne!(cut.dir(b""), Known::No);
    }
}

#[test]
fn a_record_without_a_disk_to_be_kept_on_says_nothing() {
    let bed = Bed::new();
    let record = bed.kept();
    record.inner.lock().file = Some(File::open(&bed.file).unwrap());
    bed.event(&record, "films", false);
    assert_eq!(record.dir(b""), Known::Unknown);
    record.freeze();
}

#[test]
fn what_is_forgotten_is_missed_by_nobody() {
    let bed = Bed::new();
    let record = bed.kept();
    record.remove(b"films/old");
    for record in [&*record, &bed.loaded()] {
        assert_eq!((record.dir(b"films/old"), record.name(b"films", b"old")), (Known::No, Known::No));
    }
    record.forget().unwrap();
    for record in [&*record, &bed.loaded()] {
        assert!(record.is_forgotten());
        assert_eq!((record.dir(b""), record.name(b"", b"films")), (Known::No, Known::No));
    }
}

#[test]
fn a_file_that_says_little_any_more_is_written_anew() {
    let bed = Bed::new();
    let record = bed.kept();
    {
        // As if much had been written in vain.
        let mut inner = record.inner.lock();
        let end = inner.end;
        let frame = Frame::Drop(vec![b'x'; 8 << 20].into());
        record.append(&mut inner, &frame);
        assert!(inner.end > end);
    }
    bed.event(&record, "films", false);
    until(|| fs::metadata(&bed.file).unwrap().len() < 1 << 20);
    until(|| record.extent().stale == 0);
    record.freeze();
    let loaded = bed.loaded();
    assert_eq!(names(loaded.dir(b"films")), ["link", "old", "one.mkv"]);
    assert_eq!(loaded.extent(), record.extent());
}

#[test]
fn of_several_missing_branches_the_first_counts() {
    let (one, other) = (Bed::new(), Bed::new());
    fs::write(other.branch.join("films/one.mkv"), "1").unwrap();
    fs::write(other.branch.join("films/only"), "1").unwrap();
    let records = [one.kept(), other.kept()];
    records.iter().for_each(|record| record.freeze());
    let branch = |record: &Arc<Record>| MissingBranch::new(record.branch(), Some(Arc::clone(record)));
    let missing = Missing::new(records.iter().map(branch).collect(), &Missing::default());
    let names = missing.names(b"films");
    let found: Vec<_> = names.found.iter().map(|(name, found)| (&**name, found.row.attr.size)).collect();
    let sizes = |found: &[(&[u8], u64)]| {
        found.iter().map(|(_, size)| *size).filter(|size| *size < 8).collect::<Vec<_>>()
    };
    assert_eq!((found.len(), names.exists, names.unknown), (4, true, false));
    assert_eq!(sizes(&found), [7, 5, 1], "the link, and the first of two files");
    let Known::Yes(root) = missing.path(b"") else { panic!() };
    assert!(root.row.attr.is_dir() && root.branch.path == one.branch);
    assert_eq!(Attr::default().size, 0);
    // One that was never read has no names, but its directories are not known.
    let never = Missing::new(vec![MissingBranch::new(Path::new("/never"), None)], &Missing::default());
    assert!(matches!(never.name(b"", b"any"), Known::No));
    assert!(never.names(b"").unread);
}
