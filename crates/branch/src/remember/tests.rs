use super::*;
use crate::fs::stat::Attr;
use canopy_base::lock::ranked::Mutex;
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

fn root(path: &Path) -> OwnedFd {
    rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap()
}

struct Bed {
    _home: tempfile::TempDir,
    branch: PathBuf,
    file: PathBuf,
    told: Arc<Told>,
}

/// What is said of the branch, whatever it is.
struct Told {
    state: Mutex<Result<&'static str, &'static str>, rank::Leaf>,
    covered: AtomicU64,
    quiet: AtomicU64,
    /// Called when the state is looked at.
    meanwhile: std::sync::Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

struct Fake(Arc<Told>);

impl Witness for Fake {
    fn state(&self, _flush: bool) -> Result<String, String> {
        let meanwhile = self.0.meanwhile.lock().unwrap().take();
        meanwhile.into_iter().for_each(|act| act());
        (*self.0.state.lock()).map(str::to_owned).map_err(str::to_owned)
    }

    fn covered(&self) -> u64 {
        self.0.covered.load(Ordering::Relaxed)
    }

    fn is_settled(&self) -> bool {
        true
    }

    fn quiet(&self) -> Duration {
        Duration::from_millis(self.0.quiet.load(Ordering::Relaxed))
    }
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
        let told = Arc::new(Told {
            state: Mutex::new(Ok("as it is")),
            covered: AtomicU64::new(0),
            quiet: AtomicU64::new(60_000),
            meanwhile: std::sync::Mutex::default(),
        });
        Bed { _home: home, branch, file, told }
    }

    /// Begins a record, and waits until it has all.
    fn kept(&self) -> Arc<Record> {
        self.keep(Record::begin(&self.file, &self.branch).unwrap())
    }

    /// Goes on with what was kept, and waits until it has all.
    fn taken_up(&self) -> Arc<Record> {
        self.keep(Record::take_up(&self.file, &self.branch).unwrap())
    }

    fn keep(&self, record: Record) -> Arc<Record> {
        let record = Arc::new(record);
        record.keep(root(&self.branch), Box::new(Fake(Arc::clone(&self.told)))).unwrap();
        until(|| record.extent().whole);
        record
    }

    /// Keeps a record, and ends it as a process does. Then adds a name, which only shows where the branch is read.
    fn ended(&self) -> Vec<u8> {
        let record = self.kept();
        end(&record);
        self.add_unseen();
        fs::read(&self.file).unwrap()
    }

    fn add_unseen(&self) {
        fs::write(self.branch.join("films/unseen"), "").unwrap();
    }

    /// Returns whether a process that goes on reads the branch. There must be a name that nobody has seen.
    #[track_caller]
    fn reads(&self) -> bool {
        let record = self.taken_up();
        record.freeze();
        let found = names(record.dir(b"films"));
        assert_eq!(found, names(self.loaded().dir(b"films")));
        assert_eq!(names(record.dir(b"films/old")), ["two.mkv"]);
        found.contains(&"unseen".into())
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

fn end(record: &Record) {
    if let Some(waits) = record.end_soon() {
        assert!(waits.recv_timeout(Duration::from_secs(20)).is_err(), "nothing is sent");
    }
    record.freeze();
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

#[test]
fn a_branch_in_the_same_state_is_not_read_again() {
    let bed = Bed::new();
    bed.ended();
    // As after several mounts.
    for _ in 0..3 {
        assert!(!bed.reads());
    }
    // What happens from now on is read as ever.
    let record = bed.taken_up();
    bed.event(&record, "films", false);
    for known in [&*record, &bed.loaded()] {
        assert_eq!(
            (known.dir(b"films"), names(known.dir(b"films/old"))),
            (Known::Unknown, vec!["two.mkv".into()])
        );
    }
    until(|| record.dir(b"films") != Known::Unknown);
    assert_eq!(names(record.dir(b"films")), ["link", "old", "one.mkv", "unseen"]);
    // Once that is noted as well, nothing is read.
    end(&record);
    fs::remove_file(bed.branch.join("films/unseen")).unwrap();
    assert!(bed.reads());
}

#[test]
fn a_branch_in_another_state_is_read_again() {
    for change in 0..5 {
        let bed = Bed::new();
        let whole = bed.ended();
        let last = bed.loaded();
        match change {
            0 => *bed.told.state.lock() = Ok("another"),
            1 => *bed.told.state.lock() = Err("nobody knows"),
            2 => bed.told.covered.store(7, Ordering::Relaxed),
            // Something was noted behind the state.
            3 => last.remove(b"films/other"),
            // Its file is cut off within the state: it says the rest.
            _ => {
                fs::write(&bed.file, &whole[..whole.len() - 1]).unwrap();
                assert_eq!(names(bed.loaded().dir(b"films")), ["link", "old", "one.mkv"]);
            }
        }
        assert!(bed.reads(), "{change}");
    }
}

#[test]
fn a_record_says_in_which_state_it_holds_only_while_it_does() {
    // A kill, and a program that knew no states.
    let bed = Bed::new();
    bed.kept().freeze();
    bed.add_unseen();
    assert!(bed.reads());
    // An event after the end.
    let bed = Bed::new();
    let record = bed.kept();
    end(&record);
    record.inner.lock().frozen = false;
    bed.event(&record, "films", false);
    bed.add_unseen();
    assert!(bed.reads());
    // What was mounted on it has changed since it was read, or nobody can tell.
    for covered in [true, false] {
        let bed = Bed::new();
        let record = bed.kept();
        if covered {
            bed.told.covered.store(7, Ordering::Relaxed);
        } else {
            *bed.told.state.lock() = Err("nobody knows");
        }
        end(&record);
        *bed.told.state.lock() = Ok("as it is");
        bed.add_unseen();
        assert!(bed.reads());
    }
    // Events while the state is taken.
    let bed = Bed::new();
    let record = bed.kept();
    let (other, handle) = (Arc::downgrade(&record), scan::handle(&root(&bed.branch.join("films"))).unwrap());
    let act = move || other.upgrade().unwrap().changed(&handle, false);
    *bed.told.meanwhile.lock().unwrap() = Some(Box::new(act));
    end(&record);
    assert_eq!(record.extent().stale, 0, "it has been read, and tried again");
    bed.add_unseen();
    assert!(!bed.reads());
}

#[test]
fn a_state_is_noted_when_nothing_has_happened_for_a_while() {
    let bed = Bed::new();
    bed.told.quiet.store(50, Ordering::Relaxed);
    let record = bed.kept();
    let is_noted = || {
        let inner = record.inner.lock();
        inner.state.as_ref().is_some_and(|(at, _)| *at == inner.end)
    };
    until(is_noted);
    let length = fs::metadata(&bed.file).unwrap().len();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(fs::metadata(&bed.file).unwrap().len(), length, "once is enough");
    bed.event(&record, "films", false);
    assert!(!is_noted());
    until(is_noted);
    // As after a kill.
    bed.add_unseen();
    let next = bed.taken_up();
    assert!(!names(next.dir(b"films")).contains(&"unseen".into()));
    [record, next].iter().for_each(|record| record.freeze());
}

#[test]
fn what_happens_while_a_state_is_compared_counts() {
    for lost in [false, true] {
        let bed = Bed::new();
        bed.ended();
        let record = Arc::new(Record::take_up(&bed.file, &bed.branch).unwrap());
        // A kill from here on leaves nothing that could be wrong.
        assert_eq!(bed.loaded().dir(b""), Known::Unknown);
        let (other, handle) =
            (Arc::downgrade(&record), scan::handle(&root(&bed.branch.join("films"))).unwrap());
        let file = bed.file.clone();
        let act = move || {
            let record = other.upgrade().unwrap();
            assert_eq!(record.dir(b"films/old"), Known::Unknown, "it is not proved yet");
            assert_eq!(Record::load(&file, record.branch()).unwrap().dir(b""), Known::Unknown);
            if lost { record.missed_events() } else { record.changed(&handle, false) }
        };
        *bed.told.meanwhile.lock().unwrap() = Some(Box::new(act));
        record.keep(root(&bed.branch), Box::new(Fake(Arc::clone(&bed.told)))).unwrap();
        until(|| record.extent().whole && record.extent().stale == 0);
        for record in [&*record, &bed.loaded()] {
            assert_eq!(names(record.dir(b"films")), ["link", "old", "one.mkv", "unseen"], "lost: {lost}");
        }
        record.freeze();
        assert!(!bed.file.with_extension("new").exists());
    }
}

#[test]
fn a_state_that_cannot_be_written_costs_a_scan_and_no_more() {
    let bed = Bed::new();
    let record = bed.kept();
    record.inner.lock().file = Some(File::open(&bed.file).unwrap());
    end(&record);
    for record in [&*record, &bed.loaded()] {
        assert_eq!(names(record.dir(b"films")), ["link", "old", "one.mkv"]);
    }
    bed.add_unseen();
    assert!(bed.reads());
}

/// As a pool that takes the place of another, while that one still ends.
#[test]
fn a_record_that_is_taken_up_is_not_written_by_the_one_before() {
    let bed = Bed::new();
    let before = bed.kept();
    before.end_soon().unwrap().recv().unwrap_err();
    let after = bed.taken_up();
    bed.event(&before, "films", false);
    bed.event(&before, "films/old", true);
    end(&before);
    assert_eq!(bed.loaded().extent(), after.extent());
    assert_eq!(names(after.dir(b"films/old")), ["two.mkv"]);
    end(&after);
    bed.add_unseen();
    assert!(!bed.reads());
}
