//! Files that clients have open while the process that serves the pool dies.

use crate::rig::{Rig, send, server};
use canopy_sys::lease;
use canopy_testkit::{PATIENCE, cmd};
use rustix::fd::AsFd;
use rustix::fs::FlockOperation;
use rustix::process::Signal;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

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

/// The kernel asks for no name on the way to what is held: it has to be told of what happened while nobody served.
#[test]
fn what_changed_while_nobody_served_shows_by_what_is_held() {
    for with_file in [true, false] {
        let rig = Rig::new(&["a"], "");
        let on = rig.branch("a").join("dir/sub");
        fs::create_dir_all(&on).unwrap();
        fs::write(on.join("f"), "x").unwrap();
        let dir = File::open(rig.path("dir/sub")).unwrap();
        // By its file, a directory becomes known again.
        let file = with_file.then(|| File::open(rig.path("dir/sub/f")).unwrap());
        let seen = || {
            let len = file.as_ref().map(|file| file.metadata().unwrap().len());
            (dir.metadata().unwrap().permissions().mode() & 0o777, len)
        };
        assert_eq!(seen(), (0o755, with_file.then_some(1)));
        // Until the last notification of what was made on the branch.
        thread::sleep(Duration::from_millis(2300));
        seen();
        send(server(&rig.pool), Signal::STOP);
        fs::set_permissions(&on, fs::Permissions::from_mode(0o700)).unwrap();
        fs::write(on.join("f"), "longer").unwrap();
        rig.kill(Signal::KILL);
        let right = (0o700, with_file.then_some(6));
        assert!(cmd::wait_until(PATIENCE, || seen() == right), "{:?}", seen());
    }
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

/// A lease tells whether anybody has a file open, also the kernel for passthrough. The process that mounts has descriptors of
/// its own, which it closes later: what has their numbers then belongs to clients.
#[test]
fn what_nobody_has_open_is_open_nowhere_after_deaths() {
    over_each(|rig| {
        let (stop, branches) = (AtomicBool::new(false), ["a", "b"].map(|name| rig.branch(name)));
        // The first to be opened gets the lowest number, and its descriptor outlives the handle.
        fs::write(rig.path("early"), b"0123456789").unwrap();
        let both = || OpenOptions::new().read(true).write(true).open(rig.path("early")).unwrap();
        let (first, second) = (both(), both());
        drop(first);
        thread::scope(|scope| {
            for client in 0..3 {
                let (stop, path) = (&stop, move |number: u64| rig.path(&format!("{client}-{number}")));
                scope.spawn(move || {
                    for number in (0..4).cycle().take_while(|_| !stop.load(Ordering::Relaxed)) {
                        fs::write(path(number), b"data").unwrap();
                        assert_eq!(fs::read(path(number)).unwrap(), b"data");
                        let held = File::open(path(number)).unwrap();
                        fs::remove_file(path(number)).unwrap();
                        fs::write(path(number), b"more").unwrap();
                        drop(held);
                    }
                });
            }
            for _ in 0..4 {
                thread::sleep(Duration::from_millis(30));
                rig.kill(Signal::KILL);
            }
            stop.store(true, Ordering::Relaxed);
        });
        second.write_all_at(b"x", 0).unwrap();
        drop(second);
        let files: Vec<_> = branches
            .iter()
            .flat_map(|branch| fs::read_dir(branch).unwrap())
            .map(|it| it.unwrap().path())
            .collect();
        assert!(files.len() > 3, "{files:?}");
        for path in &files {
            let file = File::open(path).unwrap();
            let alone = || lease::take_alone(file.as_fd()).is_ok();
            assert!(
                cmd::wait_until(PATIENCE, alone),
                "{} is open: {:?}",
                path.display(),
                rig.pool.branch_descriptors()
            );
        }
        let rig_names =
            |held: Vec<PathBuf>| held.into_iter().filter(|path| !path.is_dir()).collect::<Vec<_>>();
        let none = || rig_names(rig.pool.branch_descriptors()).is_empty();
        assert!(cmd::wait_until(PATIENCE, none), "{:?}", rig.pool.branch_descriptors());
    });
}
