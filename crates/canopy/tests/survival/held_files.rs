//! Files that clients have open while the process that serves the pool dies.

use crate::rig::Rig;
use rustix::fs::FlockOperation;
use rustix::process::Signal;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt};

/// Over both ways that data travels.
fn over_each(check: impl Fn(&Rig)) {
    for passthrough in ["passthrough.io=off", "passthrough.io=rw"] {
        let rig = Rig::new(&["a", "b"], passthrough);
        check(&rig);
        drop(rig);
    }
}

#[test]
fn open_files_are_read_and_written_on() {
    over_each(|rig| {
        fs::write(rig.path("read"), b"0123456789").unwrap();
        let mut reads = File::open(rig.path("read")).unwrap();
        let mut begun = [0; 4];
        reads.read_exact(&mut begun).unwrap();
        let mut both =
            OpenOptions::new().read(true).write(true).create_new(true).open(rig.path("both")).unwrap();
        both.write_all(b"before").unwrap();
        let number = both.metadata().unwrap().ino();
        for round in 0..3 {
            rig.kill(Signal::KILL);
            let mut rest = String::new();
            reads.read_to_string(&mut rest).unwrap();
            assert_eq!(rest, if round == 0 { "456789" } else { "" });
            both.write_all(b", after").unwrap();
            both.sync_all().unwrap();
        }
        let text = b"before, after, after, after";
        let mut found = vec![0; text.len()];
        both.read_exact_at(&mut found, 0).unwrap();
        assert_eq!((found.as_slice(), both.metadata().unwrap().ino()), (&text[..], number));
        assert_eq!((fs::read(rig.path("both")).unwrap().as_slice(), rig.takeovers()), (&text[..], 3));
        assert_eq!(fs::metadata(rig.path("both")).unwrap().ino(), number);
    });
}

#[test]
fn an_unlinked_file_stays_until_it_is_closed() {
    over_each(|rig| {
        let mut file =
            OpenOptions::new().read(true).write(true).create_new(true).open(rig.path("gone")).unwrap();
        file.write_all(b"secret").unwrap();
        fs::remove_file(rig.path("gone")).unwrap();
        rig.kill(Signal::KILL);
        assert_eq!(file.metadata().unwrap().nlink(), 0);
        file.write_all(b"s").unwrap();
        rig.kill(Signal::KILL);
        let mut text = String::new();
        file.seek(SeekFrom::Start(0)).unwrap();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "secrets");
        assert!(!rig.path("gone").exists());
        fs::write(rig.path("gone"), b"another").unwrap();
        assert_eq!(file.metadata().unwrap().len(), 7);
        assert_eq!(fs::read(rig.path("gone")).unwrap(), b"another");
    });
}

#[test]
fn appends_go_to_the_end() {
    over_each(|rig| {
        let mut log = OpenOptions::new().append(true).create(true).open(rig.path("log")).unwrap();
        log.write_all(b"one ").unwrap();
        rig.kill(Signal::KILL);
        log.write_all(b"two ").unwrap();
        OpenOptions::new().append(true).open(rig.path("log")).unwrap().write_all(b"three ").unwrap();
        rig.kill(Signal::KILL);
        log.write_all(b"four").unwrap();
        assert_eq!(fs::read_to_string(rig.path("log")).unwrap(), "one two three four");
    });
}

#[test]
fn locks_are_held_on() {
    let rig = Rig::new(&["a"], "");
    let held = File::create(rig.path("lock")).unwrap();
    rustix::fs::flock(&held, FlockOperation::LockExclusive).unwrap();
    rig.kill(Signal::KILL);
    let other = File::open(rig.path("lock")).unwrap();
    let try_lock = || rustix::fs::flock(&other, FlockOperation::NonBlockingLockExclusive);
    assert!(try_lock().is_err());
    rustix::fs::flock(&held, FlockOperation::Unlock).unwrap();
    try_lock().unwrap();
}

/// A listing that is half read goes on where it was, and the current directory stays one.
#[test]
fn listings_and_current_directories_go_on() {
    let rig = Rig::new(&["a", "b"], "");
    fs::create_dir(rig.path("dir")).unwrap();
    let names: Vec<String> = (0..3000).map(|number| format!("a file with number {number:04}")).collect();
    names.iter().for_each(|name| fs::write(rig.path("dir").join(name), name).unwrap());
    let dir = File::open(rig.path("dir")).unwrap();
    let mut listing = fs::read_dir(rig.path("dir")).unwrap();
    let mut seen: Vec<String> =
        listing.by_ref().take(10).map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    rig.kill(Signal::KILL);
    seen.extend(listing.map(|entry| entry.unwrap().file_name().into_string().unwrap()));
    seen.sort();
    assert_eq!(seen, names);
    let flags = rustix::fs::OFlags::RDONLY;
    let below = rustix::fs::openat(&dir, names[7].as_str(), flags, rustix::fs::Mode::empty()).unwrap();
    let mut text = String::new();
    File::from(below).read_to_string(&mut text).unwrap();
    assert_eq!(text, names[7]);
}

/// What is closed after a death is closed in the pool too: `Pool` finds descriptors that stay open on the branches.
#[test]
fn closed_files_leave_nothing_open() {
    let rig = Rig::new(&["a", "b"], "passthrough.io=off");
    let files: Vec<File> =
        (0..50).map(|number| File::create(rig.path(&number.to_string())).unwrap()).collect();
    rig.kill(Signal::KILL);
    drop(files);
    let more: Vec<File> = (0..50).map(|number| File::open(rig.path(&number.to_string())).unwrap()).collect();
    rig.kill(Signal::KILL);
    drop(more);
    drop(rig);
}
