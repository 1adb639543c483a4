//! Checks of ordinary reads and writes that must hold in every mode.

use super::files::{BLOCK, TwoPaths, open, read_at, size, write_at};
use super::rig::{LISTED, Mode};
use canopy_testkit::{Pool, Rng};
use rustix::fd::OwnedFd;
use rustix::fs::OFlags;
use std::fs;
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, SystemTime};

const MIB: usize = 1 << 20;
/// Upper bound on the bytes of requests without data.
const OVERHEAD: u64 = 256 << 10;

/// Passthrough is used exactly where the mode says so; otherwise the daemon moves the data.
#[track_caller]
pub(super) fn served_by(pool: &Pool, mode: Mode, dir: &TwoPaths) {
    let content = vec![b'c'; MIB];
    for (access, flags) in [("r", OFlags::RDONLY), ("w", OFlags::WRONLY), ("rw", OFlags::RDWR)] {
        let file = dir.file(access, &content);
        // With `auto` and little free space, recently changed files are read through the daemon.
        let week_ago = SystemTime::now() - Duration::from_secs(7 * 24 * 60 * 60);
        fs::File::options()
            .append(true)
            .open(&file.branch)
            .and_then(|f| f.set_modified(week_ago))
            .expect("times");
        let (bytes, ()) = pool.bytes_moved(|| {
            let fd = open(&file.pool, flags);
            if flags != OFlags::WRONLY {
                assert_eq!(read_at(&fd, 0, MIB), content);
            }
            if flags != OFlags::RDONLY {
                write_at(&fd, 0, &content);
                // Writes back cached data now.
                rustix::fs::fsync(&fd).expect("fsync");
            }
        });
        let passed = bytes < OVERHEAD;
        assert_eq!(
            passed,
            mode.uses_passthrough(access),
            "{mode}: open for {access}: the daemon moved {bytes} bytes"
        );
        assert!(passed || bytes >= MIB as u64, "{mode}: {access}: {bytes} bytes");
        // The same for new files.
        let (bytes, _) = pool.bytes_moved(|| {
            let fd = open(&dir.pool.join(format!("new-{access}")), flags | OFlags::CREATE | OFlags::EXCL);
            if flags != OFlags::RDONLY {
                write_at(&fd, 0, &content);
                rustix::fs::fsync(&fd).expect("fsync");
            }
            fd
        });
        if flags != OFlags::RDONLY {
            assert_eq!(
                bytes < OVERHEAD,
                mode.uses_passthrough(access),
                "{mode}: created for {access}: {bytes} bytes"
            );
        }
    }
}

/// Up to three handles, opened in any order through either link with any flags and closed in any order: no open fails,
/// and all handles see the same data. In particular, a read-write open beside an open reader must not fail with EIO.
#[track_caller]
pub(super) fn open_orders(dir: &TwoPaths) {
    let plain = [OFlags::RDONLY, OFlags::WRONLY, OFlags::RDWR];
    let odd = [
        OFlags::WRONLY | OFlags::APPEND,
        OFlags::RDWR | OFlags::APPEND,
        OFlags::WRONLY | OFlags::TRUNC,
        OFlags::RDWR | OFlags::CREATE,
        OFlags::RDONLY,
        OFlags::WRONLY | OFlags::SYNC,
    ];
    let file = dir.file("f", b"");
    fs::hard_link(&file.branch, dir.branch.join("g")).expect("a second name");
    let names = [file.pool.clone(), dir.pool.join("g")];
    let mut rng = Rng::new(10);
    let mut orders: Vec<[OFlags; 3]> = Vec::new();
    for a in plain {
        for b in plain {
            orders.extend(plain.map(|c| [a, b, c]));
        }
    }
    let any = |rng: &mut Rng| *rng.pick(&odd);
    orders.extend((0..20).map(|_| [any(&mut rng), any(&mut rng), any(&mut rng)]));
    for (round, order) in orders.into_iter().enumerate() {
        // Through the pool, so that data cached in the previous round is replaced.
        let mut expected = vec![b'.'; 3 * 64];
        fs::write(&names[0], &expected).expect("a write");
        let mut handles: Vec<(OFlags, OwnedFd)> = Vec::new();
        for (step, flags) in order.into_iter().enumerate() {
            let name = &names[(round + step) % 2];
            let fd = if (round / 2 + step) % 2 == 0 { open(name, flags) } else { open_listed(name, flags) };
            handles.push((flags, fd));
            if flags.contains(OFlags::TRUNC) {
                expected.clear();
            }
            for (writer, (flags, fd)) in handles.iter().enumerate() {
                if flags.intersects(OFlags::WRONLY | OFlags::RDWR) {
                    let mark = format!("<{round}:{step}:{writer}>").into_bytes();
                    let at = if flags.contains(OFlags::APPEND) { expected.len() } else { 64 * writer };
                    write_at(fd, 64 * writer as u64, &mark);
                    expected.resize(expected.len().max(at + mark.len()), 0);
                    expected[at..at + mark.len()].copy_from_slice(&mark);
                }
                assert_all_see(&handles, &expected, &format!("{order:?}, step {step}, writer {writer}"));
            }
        }
        while !handles.is_empty() {
            handles.remove((rng.below(3) as usize).min(handles.len() - 1));
            assert_all_see(&handles, &expected, &format!("{order:?}, {} left open", handles.len()));
        }
    }
}

/// Opens the file under a thread name that `cache.files=per-process` caches for.
#[track_caller]
fn open_listed(path: &Path, flags: OFlags) -> OwnedFd {
    let opens = || open(path, flags);
    thread::scope(|scope| {
        let thread = thread::Builder::new().name(LISTED.into()).spawn_scoped(scope, opens);
        thread.expect("a thread").join().expect("open")
    })
}

#[track_caller]
fn assert_all_see(handles: &[(OFlags, OwnedFd)], expected: &[u8], what: &str) {
    for (index, (flags, fd)) in handles.iter().enumerate() {
        assert_eq!(size(fd), expected.len() as u64, "size by handle {index}: {what}");
        if !flags.contains(OFlags::WRONLY) {
            let seen = read_at(fd, 0, expected.len() + 64);
            assert!(seen == expected, "handle {index}: {what}\n {:?}\nnot {:?}", text(&seen), text(expected));
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Several threads open one file, write, read back through another handle, and close.
#[track_caller]
pub(super) fn threads(dir: &TwoPaths) {
    const EACH: usize = 40;
    let file = dir.file("f", &vec![0; 4 * BLOCK]);
    fs::hard_link(&file.branch, dir.branch.join("g")).expect("a second name");
    let names = [file.pool.clone(), dir.pool.join("g")];
    thread::scope(|scope| {
        for own in 0..4_usize {
            let names = &names;
            scope.spawn(move || {
                let mut rng = Rng::new(own as u64 + 1);
                for round in 0..EACH {
                    let mark = [(own * EACH + round) as u8 | 1; BLOCK];
                    let at = (own * BLOCK) as u64;
                    let writer = if rng.chance(500) { OFlags::WRONLY } else { OFlags::RDWR };
                    let reader = if rng.chance(500) { OFlags::RDONLY } else { OFlags::RDWR };
                    let early = rng.chance(500).then(|| open(&names[round % 2], reader));
                    let writing = open(&names[own % 2], writer);
                    write_at(&writing, at, &mark);
                    let reading = early.unwrap_or_else(|| open(&names[round % 2], reader));
                    if rng.chance(500) {
                        drop(writing);
                    }
                    assert!(read_at(&reading, at, BLOCK) == mark, "thread {own}, round {round}: stale");
                }
            });
        }
    });
    let content = fs::read(&file.branch).expect("the branch");
    let last = |own: usize| [(own * EACH + EACH - 1) as u8 | 1; BLOCK];
    assert!((0..4).all(|own| content[own * BLOCK..][..BLOCK] == last(own)), "the branch has other data");
}

/// Fifty threads open one file at once, and each writes its own part.
#[track_caller]
pub(super) fn fifty_handles(dir: &TwoPaths) {
    const PART: usize = 1000;
    let path = dir.pool.join("f");
    let start = Barrier::new(50);
    let parts: Vec<usize> = (0..50).collect();
    thread::scope(|scope| {
        for &part in &parts {
            let (path, start) = (&path, &start);
            scope.spawn(move || {
                start.wait();
                let fd = open(path, OFlags::RDWR | OFlags::CREATE);
                write_at(&fd, (part * PART) as u64, &[part as u8 + 1; PART]);
                assert_eq!(read_at(&fd, (part * PART) as u64, PART), [part as u8 + 1; PART]);
            });
        }
    });
    let expected: Vec<u8> = parts.iter().flat_map(|&part| [part as u8 + 1; PART]).collect();
    assert!(fs::read(&path).expect("the pool") == expected, "through the pool");
    assert!(fs::read(dir.branch.join("f")).expect("the branch") == expected, "on the branch");
}

/// Two threads append through two links: every record arrives whole, once, and in its writer's order.
#[track_caller]
pub(super) fn appending(dir: &TwoPaths) {
    const RECORDS: usize = 100;
    let file = dir.file("f", b"");
    fs::hard_link(&file.branch, dir.branch.join("g")).expect("a second name");
    thread::scope(|scope| {
        for name in ["f", "g"] {
            let path = dir.pool.join(name);
            scope.spawn(move || {
                let fd = open(&path, OFlags::WRONLY | OFlags::APPEND);
                for number in 0..RECORDS {
                    let record = format!("{name}{number:014}\n");
                    assert_eq!(rustix::io::write(&fd, record.as_bytes()).expect("write"), 16);
                }
            });
        }
    });
    let all = fs::read_to_string(&file.branch).expect("the branch");
    assert_eq!(all.len(), 2 * RECORDS * 16);
    for name in ["f", "g"] {
        let numbers: Vec<usize> =
            all.lines().filter_map(|line| line.strip_prefix(name)?.parse().ok()).collect();
        assert_eq!(numbers, (0..RECORDS).collect::<Vec<_>>());
    }
}

/// The kernel does not tell the daemon about fcntl(F_SETFL), but each later read and write obeys the new flags.
#[track_caller]
pub(super) fn changed_flags(mode: Mode, dir: &TwoPaths) {
    let set = |fd: &OwnedFd, flags| rustix::fs::fcntl_setfl(fd, flags).expect("F_SETFL");
    // As dd with oflag=direct does: it clears O_DIRECT for the last piece, which is not aligned.
    let file = dir.file("tail", b"");
    let block = super::files::Aligned::filled(BLOCK, b'a');
    let fd = open(&file.pool, OFlags::WRONLY | OFlags::DIRECT);
    write_at(&fd, 0, block.get());
    set(&fd, OFlags::empty());
    write_at(&fd, BLOCK as u64, b"tail");
    drop(fd);
    assert_eq!(fs::read(&file.branch).expect("the branch"), [block.get(), b"tail"].concat());

    let file = dir.file("gained", b"0123");
    let fd = open(&file.pool, OFlags::RDWR);
    set(&fd, OFlags::APPEND);
    assert_eq!(rustix::io::write(&fd, b"45").expect("write"), 2);
    set(&fd, OFlags::empty());
    write_at(&fd, 0, b"x");
    drop(fd);
    assert_eq!(fs::read(&file.branch).expect("the branch"), b"x12345");

    // With passthrough the backing file is open for appending, and that cannot be changed.
    if !mode.uses_passthrough("rw") {
        let file = dir.file("lost", b"0123");
        let fd = open(&file.pool, OFlags::RDWR | OFlags::APPEND);
        set(&fd, OFlags::empty());
        write_at(&fd, 0, b"x");
        drop(fd);
        assert_eq!(fs::read(&file.branch).expect("the branch"), b"x123");
    }
}

/// Truncation with concurrent readers: no error, and no byte from before the truncation.
#[track_caller]
pub(super) fn truncation(dir: &TwoPaths) {
    let file = dir.file("f", &vec![b'a'; 4 * BLOCK]);
    let (reader, writer) = (open(&file.pool, OFlags::RDONLY), open(&file.pool, OFlags::RDWR));
    assert_eq!(read_at(&reader, 0, 5 * BLOCK), vec![b'a'; 4 * BLOCK]);
    rustix::fs::ftruncate(&writer, 100).expect("shrink");
    assert_eq!(read_at(&reader, 0, 5 * BLOCK), [b'a'; 100]);
    rustix::fs::ftruncate(&writer, 2 * BLOCK as u64).expect("grow");
    let mut expected = vec![0; 2 * BLOCK];
    expected[..100].fill(b'a');
    assert!(read_at(&reader, 0, 5 * BLOCK) == expected, "truncated data came back");
    truncate_path(&file.pool, 7);
    assert_eq!((read_at(&reader, 0, BLOCK), size(&writer)), (b"aaaaaaa".to_vec(), 7));

    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let seen = read_at(&reader, 0, 4 * BLOCK);
                assert!(seen.iter().all(|&byte| byte == b'b' || byte == 0 || byte == b'a'));
            }
        });
        for round in 0..60_u64 {
            rustix::fs::ftruncate(&writer, round % 3 * 5000).expect("ftruncate");
            write_at(&writer, round % 5 * 2500, &[b'b'; 3000]);
        }
        done.store(true, Ordering::Relaxed);
    });
    rustix::fs::fsync(&writer).expect("fsync");
    assert!(read_at(&reader, 0, 8 * BLOCK) == fs::read(&file.branch).expect("the branch"));
}

#[track_caller]
fn truncate_path(path: &Path, size: u64) {
    fs::OpenOptions::new().write(true).open(path).and_then(|file| file.set_len(size)).expect("truncate");
}
