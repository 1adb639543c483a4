//! No path leads out of a branch, whatever another process concurrently does to the branch: it exchanges directories and
//! files with symlinks that lead outside, moves directories, also out of the branch and back, and adds and removes bind
//! mounts. Clients do every operation that takes a path. Afterwards, the files outside are bit for bit unchanged, and
//! no client has seen any of them.
//!
//! `CANOPY_ESCAPE_SECONDS` sets the duration (default 6). Needs root.
//!
//! A mount that root makes in a branch is part of it, so the bind mounts here are of directories of the branch. A file
//! that was opened before its directory moves out of the branch stays open, so the directories that move out come from
//! the branch too.

#![forbid(unsafe_code)]

use canopy_testkit::{LoopFs, PATIENCE, Pool, Rng};
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, RenameFlags, ResolveFlags, StatxFlags, Timespec,
    Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, mount_bind, unmount};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const SECRET: &[u8] = b"SECRET";
/// The size of the secret files; no client creates a file of this size.
const SIZE: usize = 54_321;
const DIRS: u64 = 4;
const FILES: u64 = 4;
const KINDS: usize = 18;

struct Disks {
    disk: LoopFs,
    other: LoopFs,
}

impl Disks {
    fn new() -> Disks {
        let disks = Disks { disk: LoopFs::ext4(256 << 20), other: LoopFs::tmpfs(64 << 20) };
        for dir in ["branch", "outside", "away"] {
            fs::create_dir(disks.at(dir)).unwrap();
        }
        for dir in 0..DIRS {
            for (top, text) in [("branch", &b"inside"[..]), ("outside", SECRET)] {
                let at = disks.at(&format!("{top}/d{dir}/e"));
                fs::create_dir_all(&at).unwrap();
                for file in 0..FILES {
                    for dir in [at.parent().unwrap(), &at] {
                        fs::write(dir.join(format!("f{file}")), text).unwrap();
                    }
                }
            }
            // A client can recognize a secret file by its name, size or attributes.
            let secret = disks.at(&format!("outside/d{dir}"));
            fs::write(secret.join("secret-name"), SECRET.repeat(SIZE / SECRET.len() + 1)).unwrap();
            for name in ["f0", "f1", "e/f0"] {
                fs::write(secret.join(name), &SECRET.repeat(SIZE)[..SIZE]).unwrap();
                rustix::fs::setxattr(secret.join(name), "user.x", SECRET, XattrFlags::empty()).unwrap();
            }
            // The symlinks that an attack exchanges with directories and files.
            symlink(&secret, disks.at(&format!("branch/.link{dir}"))).unwrap();
            symlink(format!("../outside/d{dir}"), disks.at(&format!("branch/.rel{dir}"))).unwrap();
            symlink(secret.join("f0"), disks.at(&format!("branch/.file{dir}"))).unwrap();
        }
        disks
    }

    fn at(&self, path: &str) -> PathBuf {
        self.disk.path().join(path)
    }
}

/// Returns everything about a tree except its access times.
fn snapshot(top: &Path) -> BTreeMap<PathBuf, String> {
    let mut seen = BTreeMap::new();
    let mut todo = vec![top.to_owned()];
    while let Some(path) = todo.pop() {
        let meta = fs::symlink_metadata(&path).unwrap();
        let times = [(meta.mtime(), meta.mtime_nsec()), (meta.ctime(), meta.ctime_nsec())];
        let ids = (meta.ino(), meta.mode(), meta.uid(), meta.gid(), meta.nlink(), meta.len());
        let content = if meta.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
        let mut value = [0; 64];
        let attribute =
            rustix::fs::lgetxattr(&path, "user.x", &mut value[..]).map(|len| value[..len].to_vec());
        let mut names = [0; 256];
        let names = rustix::fs::llistxattr(&path, &mut names[..]);
        seen.insert(path.clone(), format!("{ids:?} {times:?} {content:?} {attribute:?} {names:?}"));
        if meta.is_dir() {
            todo.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
    }
    seen
}

/// Changes one directory of the branch, and changes it back. The attack itself follows no symlinks.
fn attack(disks: &Disks, taken: &[Mutex<()>], number: u64, rng: &mut Rng) {
    let index = rng.below(DIRS);
    // One attack on a directory at a time: two exchanges of one entry would leave a symlink there.
    let Some(_own) = taken[index as usize].try_lock().ok() else { return };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = |path: &Path| rustix::fs::open(path, flags, Mode::empty()).expect("a directory of the branch");
    let branch = open(&disks.at("branch"));
    let name = format!("d{index}");
    let dir = open(&disks.at(&format!("branch/{name}")));
    let pause = || (0..20).for_each(|_| thread::yield_now());
    let swap = |at: &OwnedFd, name: &str, link: &str| {
        let swapped =
            || rustix::fs::renameat_with(at, name, &branch, format!("{link}{index}"), RenameFlags::EXCHANGE);
        if swapped().is_ok() {
            pause();
            // A client may have removed the entry; then the directory stays under the other name.
            let _ = swapped();
        }
    };
    match number {
        0 => swap(&branch, &name, ".link"),
        1 => swap(&branch, &name, ".rel"),
        2 => swap(&dir, if rng.chance(500) { "e" } else { "f1" }, ".rel"),
        3 => swap(&dir, "f0", ".file"),
        4 => {
            // Move the directory out of the branch and back, or up and down in it.
            let away = open(&disks.at("away"));
            let place = [(&away, name.as_str()), (&branch, ".moved")][rng.index(2)];
            rustix::fs::renameat(&branch, &name, place.0, place.1).expect("the directory moves away");
            pause();
            // The pool may have cloned the directory from the other branch, to create an entry in it.
            if rustix::fs::renameat(place.0, place.1, &branch, &name).is_err() {
                let flags = RenameFlags::EXCHANGE;
                rustix::fs::renameat_with(place.0, place.1, &branch, &name, flags)
                    .expect("the directory moves back");
                let other = disks.at(if place.1 == name { "away" } else { "branch" }).join(place.1);
                // Clients may still work in the directory.
                let gone = || fs::remove_dir_all(&other).is_ok() || !other.exists();
                assert!(canopy_testkit::cmd::wait_until(PATIENCE, gone), "rm -r");
            }
        }
        _ => {
            let from = disks.at(&format!("branch/d{}", rng.below(DIRS)));
            let Ok(from) = rustix::fs::open(from, flags, Mode::empty()) else { return };
            let named = |fd: &OwnedFd| format!("/proc/self/fd/{}", fd.as_raw_fd());
            if let Err(errno) = mount_bind(named(&from), named(&dir)) {
                // Another thread removed it meanwhile.
                assert_eq!(errno, Errno::NOENT, "mount --bind");
                return;
            }
            pause();
            while let Some(at) = bound(disks) {
                unmount(&at, UnmountFlags::DETACH).expect("umount");
            }
        }
    }
}

/// Returns the current path of a bind mount.
fn bound(disks: &Disks) -> Option<PathBuf> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let top = format!("{}/", disks.disk.path().display());
    let mut places = table.lines().filter_map(|line| line.split(' ').nth(4));
    let place = places.rfind(|place| place.starts_with(&top))?;
    Some(PathBuf::from(place.replace("//deleted", "")))
}

/// Checks that a client did not see the secret.
#[track_caller]
fn check_no_secret(bytes: &[u8], what: &str) {
    assert!(!bytes.windows(SECRET.len()).any(|part| part == SECRET), "{what} revealed the secret");
}

/// Does one operation through the pool. It follows no symlink that the pool shows, because a client that does so leaves
/// the pool by itself.
fn act(pool: &OwnedFd, kind: usize, rng: &mut Rng) -> Result<(), Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let open = |dir: &OwnedFd, path: &str, flags: OFlags| {
        let mode = if flags.contains(OFlags::CREATE) { 0o644 } else { 0 };
        rustix::fs::openat2(dir, path, flags | OFlags::CLOEXEC, Mode::from_raw_mode(mode), resolve)
    };
    let dir = |rng: &mut Rng| {
        let inner = if rng.chance(500) { "/e" } else { "" };
        open(pool, &format!("d{}{inner}", rng.below(DIRS)), OFlags::PATH | OFlags::DIRECTORY)
    };
    let file = |rng: &mut Rng| format!("f{}", rng.below(FILES));
    let (at, name) = (dir(rng)?, file(rng));
    let name = name.as_str();
    let link = format!("/proc/self/fd/{}/{name}", at.as_raw_fd());
    match kind {
        0 | 1 => {
            let fd = open(&at, name, OFlags::RDONLY)?;
            let mut bytes = vec![0; 4096];
            let len = rustix::io::pread(&fd, &mut bytes, 0)?;
            check_no_secret(&bytes[..len], "a read");
        }
        2 => {
            let fd = open(&at, name, OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC)?;
            rustix::io::write(&fd, b"client")?;
        }
        3 => {
            let fd = open(&at, name, OFlags::RDWR | OFlags::APPEND)?;
            rustix::io::write(&fd, b"+")?;
            let mut bytes = vec![0; 4096];
            let len = rustix::io::pread(&fd, &mut bytes, 0)?;
            check_no_secret(&bytes[..len], "an append");
        }
        4 => drop(open(&at, name, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL)?),
        5 => rustix::fs::unlinkat(&at, name, AtFlags::empty())?,
        6 => rustix::fs::mkdirat(&at, format!("n{}", rng.below(3)), Mode::from_raw_mode(0o755))?,
        7 => rustix::fs::unlinkat(&at, format!("n{}", rng.below(3)), AtFlags::REMOVEDIR)?,
        8 => {
            let (to, new) = (dir(rng)?, file(rng));
            rustix::fs::renameat(&at, name, &to, new)?;
        }
        9 => {
            let to = dir(rng)?;
            rustix::fs::linkat(&at, name, &to, format!("f{}", rng.below(FILES)), AtFlags::empty())?;
        }
        10 => {
            let _ = rustix::fs::unlinkat(&at, name, AtFlags::empty());
            rustix::fs::mknodat(&at, name, FileType::RegularFile, Mode::from_raw_mode(0o600), 0)?;
        }
        11 => {
            let fd = open(&at, name, OFlags::RDONLY)?;
            rustix::fs::fchmod(&fd, Mode::from_raw_mode(0o600 | rng.below(0o100) as u32))?;
        }
        12 => {
            let ids = (Uid::from_raw(rng.below(9) as u32), Gid::from_raw(rng.below(9) as u32));
            rustix::fs::chownat(&at, name, Some(ids.0), Some(ids.1), AtFlags::SYMLINK_NOFOLLOW)?;
        }
        13 => {
            let time = Timespec { tv_sec: rng.below(1 << 30).cast_signed(), tv_nsec: 0 };
            let times = Timestamps { last_access: time, last_modification: time };
            rustix::fs::utimensat(&at, name, &times, AtFlags::SYMLINK_NOFOLLOW)?;
        }
        14 => rustix::fs::lsetxattr(&link, "user.x", b"client", XattrFlags::empty())?,
        15 => {
            let mut value = [0; 64];
            let len = rustix::fs::lgetxattr(&link, "user.x", &mut value[..])?;
            check_no_secret(&value[..len], "an attribute");
        }
        16 => {
            let stat = rustix::fs::statx(&at, name, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BASIC_STATS)?;
            assert!(stat.stx_size != SIZE as u64, "statx revealed the secret");
        }
        _ => {
            let fd = open(&at, ".", OFlags::RDONLY | OFlags::DIRECTORY)?;
            for entry in Dir::read_from(&fd)? {
                let entry = entry?;
                assert!(
                    !entry.file_name().to_bytes().starts_with(b"secret"),
                    "a listing revealed the secret"
                );
            }
        }
    }
    Ok(())
}

fn race(disks: &Disks, options: &str, lasts: Duration, seed: u64) {
    let pool = Pool::builder(env!("CARGO_BIN_EXE_canopy"))
        .branch(disks.at("branch"))
        .branch(disks.other.path())
        .option("minfreespace=0")
        .option(options)
        .forgive_descriptors()
        .mount();
    let root = rustix::fs::open(pool.path(), OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
    let outside = snapshot(&disks.at("outside"));
    let (done, swaps) = (AtomicBool::new(false), AtomicU64::new(0));
    let taken = [const { Mutex::new(()) }; DIRS as usize];
    let succeeded = [const { AtomicU64::new(0) }; KINDS];
    let failed = thread::scope(|scope| {
        for number in 0..6 {
            let (done, swaps, taken) = (&done, &swaps, &taken);
            scope.spawn(move || {
                let mut rng = Rng::new(seed + 100 + number);
                while !done.load(Ordering::Relaxed) {
                    attack(disks, taken, number, &mut rng);
                    swaps.fetch_add(1, Ordering::Relaxed);
                    // Leave the clients time for their operations.
                    thread::sleep(Duration::from_micros(rng.below(300)));
                }
            });
        }
        let clients: Vec<_> = (0..3)
            .map(|number| {
                let (done, root, succeeded) = (&done, &root, &succeeded);
                scope.spawn(move || {
                    let mut rng = Rng::new(seed + number);
                    while !done.load(Ordering::Relaxed) {
                        let kind = rng.below(KINDS as u64) as usize;
                        if act(root, kind, &mut rng).is_ok() {
                            succeeded[kind].fetch_add(1, Ordering::Relaxed);
                        }
                    }
                })
            })
            .collect();
        let begun = Instant::now();
        // Some kinds seldom succeed under attack.
        let is_missing = || succeeded.iter().any(|times| times.load(Ordering::Relaxed) == 0);
        let goes_on = || begun.elapsed() < lasts || (is_missing() && begun.elapsed() < PATIENCE);
        while goes_on() && clients.iter().all(|client| !client.is_finished()) {
            thread::sleep(Duration::from_millis(20));
        }
        done.store(true, Ordering::Relaxed);
        clients.into_iter().any(|client| client.join().is_err())
    });
    let counts = succeeded.map(AtomicU64::into_inner);
    eprintln!("{options}: {} attacks, operations that succeeded: {counts:?}", swaps.into_inner());
    assert!(!failed, "{options}: a client panicked, see above");
    let now = snapshot(&disks.at("outside"));
    let changed: Vec<_> = now.iter().filter(|(path, what)| outside.get(*path) != Some(what)).collect();
    assert!(changed.is_empty() && now.len() == outside.len(), "{options}: changed outside: {changed:?}");
    assert!(
        counts.iter().all(|&times| times > 0),
        "{options}: a kind of operation never succeeded: {counts:?}"
    );
    assert!(pool.is_alive() && !pool.log().contains("ERROR"), "{}", pool.log());
    drop(root);
    pool.umount();
}

#[test]
fn no_operation_reaches_files_outside_the_branches() {
    canopy_testkit::require_root();
    let seconds = std::env::var("CANOPY_ESCAPE_SECONDS").ok().and_then(|text| text.parse().ok());
    let seconds: u64 = seconds.unwrap_or(6);
    let modes = [
        "cache.files=auto-full",
        "passthrough.io=off,cache.files=full,cache.entry=60,cache.attr=60,io-uring=off",
        "cache.coherence=timeout,cache.entry=0,cache.attr=0,link-cow=true",
    ];
    let each = Duration::from_millis(seconds * 1000 / modes.len() as u64);
    for (seed, options) in (1..).zip(modes) {
        race(&Disks::new(), options, each, seed * 1000);
    }
}

/// The pool does not follow a directory that was opened through it to a place outside the branch.
#[test]
fn a_directory_that_left_the_branch_is_not_used() {
    let disks = Disks::new();
    let pool = Pool::builder(env!("CARGO_BIN_EXE_canopy"))
        .branch(disks.at("branch"))
        .option("minfreespace=0,cache.entry=60,cache.attr=60")
        .mount();
    let open = |path: &str| {
        rustix::fs::open(
            pool.path().join(path),
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )
    };
    for round in 0..20 {
        let name = format!("d{}", round % DIRS);
        // Use the directory twice, so that every cache has it.
        let dir = open(&name).unwrap();
        for file in ["made", "made"] {
            fs::write(pool.path().join(&name).join(file), "x").unwrap();
            fs::remove_file(pool.path().join(&name).join(file)).unwrap();
        }
        let away = disks.at("away").join(&name);
        fs::rename(disks.at("branch").join(&name), &away).unwrap();
        let before = snapshot(&away);
        let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
        for target in [dir.as_fd(), CWD] {
            let path = if target.as_raw_fd() == dir.as_raw_fd() {
                PathBuf::from("made")
            } else {
                pool.path().join(&name).join("made")
            };
            let made = rustix::fs::openat(target, &path, flags, Mode::from_raw_mode(0o644));
            assert!(made.is_err(), "a file was created in a directory outside the branch, round {round}");
            assert!(rustix::fs::mkdirat(target, &path, Mode::from_raw_mode(0o755)).is_err());
        }
        assert_eq!(snapshot(&away), before);
        drop(dir);
        fs::rename(&away, disks.at("branch").join(&name)).unwrap();
        assert!(canopy_testkit::cmd::wait_until(PATIENCE, || open(&name).is_ok()));
        assert_eq!(
            fs::metadata(pool.path().join(&name).join("e")).unwrap().permissions().mode() & 0o777,
            0o755
        );
    }
    pool.umount();
}
