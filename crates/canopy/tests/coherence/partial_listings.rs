//! Long listings: a change between two parts of a listing shows in the later part.

use super::rig::two_disks;
use canopy_testkit::PoolBed;
use canopy_testkit::cmd::wait_until;
use canopy_testkit::{Kind, PATIENCE, Rng};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, RawDir, XattrFlags, setxattr};
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{BufRead, BufReader, Write};
use std::mem::MaybeUninit;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

const DIR: &str = "d";
/// A part is one 32 KiB reply to the kernel: about 190 names.
const FILES: usize = 1500;

/// Creates a directory of `files` entries, of which every tenth is a directory.
fn fill_dir(dir: &Path, files: usize) {
    fs::create_dir(dir).expect("mkdir");
    for n in 0..files {
        let path = dir.join(format!("name-{n:05}"));
        match n % 10 {
            7 => fs::create_dir(path).expect("mkdir"),
            _ => drop(File::create(path).expect("a file")),
        }
    }
}

fn open(dir: &Path) -> OwnedFd {
    rustix::fs::open(dir, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .expect("a directory")
}

/// Returns the names from one getdents64(2) call; none at the end.
fn part(dir: &OwnedFd) -> Vec<String> {
    let mut buffer = vec![MaybeUninit::uninit(); 32 << 10];
    let mut entries = RawDir::new(dir, &mut buffer);
    let mut names = Vec::new();
    while let Some(entry) = entries.next() {
        let name = entry.expect("an entry").file_name().to_str().expect("text").to_owned();
        if name != "." && name != ".." {
            names.push(name);
        }
        if entries.is_buffer_empty() {
            break;
        }
    }
    names
}

/// Stats the names as `ls -l` does; otherwise the kernel switches to plain READDIR.
fn look_at(dir: &Path, names: &[String]) {
    for name in names {
        let _ = fs::symlink_metadata(dir.join(name));
    }
}

/// Returns the attributes of a name that must agree between pool and branch. Directories are merged from the branches,
/// so their sizes and link counts differ. With the writeback cache the kernel keeps the times of files itself.
fn attributes(path: &Path, times: bool) -> Option<Vec<i64>> {
    let meta = fs::symlink_metadata(path).ok()?;
    let mut attributes = vec![i64::from(meta.mode())];
    if times {
        attributes.extend([meta.mtime(), meta.mtime_nsec()]);
    }
    if times && !meta.is_dir() {
        attributes.extend([meta.ctime(), meta.ctime_nsec()]);
    }
    if !meta.is_dir() {
        attributes.extend([meta.size() as i64, meta.nlink() as i64]);
    }
    Some(attributes)
}

/// A process that has a file of the pool mapped but not open.
struct Mapped(Child, BufReader<ChildStdout>);

impl Mapped {
    fn new(path: &Path) -> Mapped {
        // Python's own mmap keeps a descriptor.
        let script = "import ctypes, os, sys\n\
                      mmap = ctypes.CDLL(None).mmap\n\
                      mmap.restype = ctypes.c_void_p\n\
                      f = os.open(sys.argv[1], os.O_RDWR)\n\
                      at = mmap(None, ctypes.c_size_t(4096), 3, 1, f, ctypes.c_long(0))\n\
                      os.close(f)\n\
                      print('done', flush=True)\n\
                      sys.stdin.readline()\n\
                      ctypes.memset(at, 7, 1)\n\
                      print('done', flush=True)\n\
                      sys.stdin.readline()";
        let mut python = Command::new("python3");
        python.args(["-c", script]).arg(path).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = python.spawn().expect("python3");
        let out = BufReader::new(child.stdout.take().expect("its output"));
        let mut mapped = Mapped(child, out);
        mapped.done();
        mapped
    }

    fn done(&mut self) {
        let mut line = String::new();
        self.1.read_line(&mut line).expect("a line");
        assert_eq!(line, "done\n");
    }

    fn write(&mut self) {
        self.0.stdin.as_mut().expect("its input").write_all(b"\n").expect("a line");
        self.done();
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// Invalidates the listing that the kernel has cached.
fn invalidate_listing(dir: &Path) {
    File::create(dir.join("marker")).expect("a file");
    fs::remove_file(dir.join("marker")).expect("removed");
}

fn append(path: &Path) {
    OpenOptions::new().append(true).open(path).expect("a file").write_all(b"more").expect("written");
}

type Change = (&'static str, fn(&Path));

/// Changes to a file by path, in the pool or on a branch.
const OF_FILES: [Change; 9] = [
    ("unlink", |path| fs::remove_file(path).expect("removed")),
    ("unlink and create", |path| {
        fs::remove_file(path).expect("removed");
        fs::write(path, "new").expect("a file");
    }),
    ("rename", |path| fs::rename(path, path.with_extension("other")).expect("a rename")),
    ("replace", |path| {
        fs::write(path.with_extension("aside"), "something else").expect("a file");
        fs::rename(path.with_extension("aside"), path).expect("a rename");
    }),
    ("chmod", |path| fs::set_permissions(path, Permissions::from_mode(0o600)).expect("chmod")),
    ("append", append),
    ("link", |path| fs::hard_link(path, path.with_extension("link")).expect("a link")),
    ("xattr", |path| setxattr(path, "user.x", b"y", XattrFlags::empty()).expect("an attribute")),
    ("mkdir", |path| {
        fs::remove_file(path).expect("removed");
        fs::create_dir(path).expect("mkdir");
    }),
];

const OF_DIRS: [Change; 3] = [
    ("rmdir", |path| fs::remove_dir(path).expect("removed")),
    ("create in a directory", |path| fs::write(path.join("f"), "").expect("a file")),
    ("chmod of a directory", |path| {
        fs::set_permissions(path, Permissions::from_mode(0o700)).expect("chmod");
    }),
];

const BUSY: &str = "on a busy pool";

/// Reads some parts of a listing, changes a name of the next part, and reads that part: all attributes must be current.
/// The kernel is notified of changes on a branch after a moment (docs/caching.md). `before` is applied to the name
/// before the listing starts.
fn changed_in_between<T>(
    bed: &PoolBed,
    what: &str,
    options: &str,
    dirs: bool,
    before: impl FnOnce(&Path) -> T,
    change: impl FnOnce(&mut T, &Path, &Path),
) {
    let (pool, branch) = (bed.at(DIR), bed.on(0, DIR));
    let what = format!("{what}, {options}");
    let times = !options.contains("writeback");
    let on_branch = open(&branch);
    let parts = std::iter::from_fn(|| Some(part(&on_branch)).filter(|names| !names.is_empty()));
    let order: Vec<String> = parts.flatten().collect();
    let suits = |name: &String| {
        let meta = fs::symlink_metadata(branch.join(name)).expect("a name");
        let empty = || fs::read_dir(branch.join(name)).expect("a listing").next().is_none();
        meta.is_dir() == dirs && if dirs { empty() } else { meta.nlink() == 1 }
    };
    let place = (FILES * 4 / 5..).find(|&place| suits(&order[place])).expect("a name for it");
    let victim = &order[place];
    let mut state = before(&pool.join(victim));
    invalidate_listing(&pool);
    let listing = open(&pool);
    let (mut read, mut last) = (0, 0);
    // Plain READDIR returns larger parts.
    while read + usize::max(last, 200) < place {
        let names = part(&listing);
        look_at(&pool, &names);
        last = names.len();
        read += last;
    }
    // Keeps the pool so busy that the daemon lets events from the branches accumulate for some milliseconds.
    let begun = Instant::now();
    while what.contains(BUSY) && begun.elapsed() < Duration::from_millis(20) {
        invalidate_listing(bed.pool.path());
    }
    change(&mut state, &pool.join(victim), &branch.join(victim));
    let mut names = part(&listing);
    let is = attributes(&branch.join(victim), times);
    let same = |name: &str| attributes(&pool.join(name), times) == attributes(&branch.join(name), times);
    if what.contains("on the branch") || is.is_none() {
        wait_until(PATIENCE, || same(victim));
    }
    assert_eq!(attributes(&pool.join(victim), times), is, "{what}: {victim}");
    let mut listed = BTreeSet::new();
    while !names.is_empty() {
        names.iter().for_each(|name| assert!(same(name), "{what}: {name}"));
        read += names.len();
        listed.extend(names);
        names = part(&listing);
    }
    // An entry that disappears or appears before its name is read from the branch need not be listed.
    let untouched =
        !["unlink", "rename", "replace", "mkdir", "rmdir"].iter().any(|change| what.contains(change));
    assert!(!untouched || listed.contains(victim), "{what}: {victim} is not listed");
    assert!(read.abs_diff(order.len()) <= 2, "{what}: {read} names listed, of {}", order.len());
}

#[test]
fn a_change_between_two_parts_shows_in_the_later_one() {
    for (kind, options) in [
        (Kind::Ext4, "passthrough.io=rw"),
        (Kind::Ext4, "cache.writeback=true"),
        (Kind::Tmpfs, "cache.files=off,passthrough.io=off"),
    ] {
        let bed = two_disks(kind, options);
        fill_dir(&bed.on(0, DIR), FILES);
        // On a branch: before the kernel is notified, and after.
        for (pause, when) in [(0, BUSY), (10, "with the kernel notified")] {
            for (dirs, changes) in [(false, &OF_FILES[..]), (true, &OF_DIRS)] {
                for (what, change) in changes {
                    let through = format!("{what} through the pool");
                    changed_in_between(&bed, &through, options, dirs, |_| (), |(), pool, _| change(pool));
                    // With the writeback cache the kernel uses its own sizes and times.
                    if !options.contains("writeback") {
                        let direct = format!("{what} on the branch, {when}");
                        changed_in_between(
                            &bed,
                            &direct,
                            options,
                            dirs,
                            |_| (),
                            |(), _, branch| {
                                change(branch);
                                thread::sleep(Duration::from_millis(pause));
                            },
                        );
                    }
                }
            }
            let other = |path: &Path| {
                let other = bed.at("other");
                let _ = fs::remove_file(&other);
                fs::hard_link(path, &other).expect("a link");
            };
            let chmod = |mode| Permissions::from_mode(mode);
            changed_in_between(&bed, "through another link", options, false, other, |(), _, _| {
                fs::set_permissions(bed.at("other"), chmod(0o640)).expect("chmod");
            });
            changed_in_between(
                &bed,
                &format!("through another link on the branch, {when}"),
                options,
                false,
                other,
                |(), _, _| {
                    fs::set_permissions(bed.on(0, "other"), chmod(0o640)).expect("chmod");
                    thread::sleep(Duration::from_millis(pause));
                },
            );
            let write = |path: &Path| OpenOptions::new().write(true).open(path).expect("a file");
            changed_in_between(
                &bed,
                "truncate",
                options,
                false,
                |_| (),
                |(), pool, _| write(pool).set_len(5000).expect("truncate"),
            );
            changed_in_between(&bed, "utimes", options, false, write, |file, _, _| {
                let then = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
                file.set_modified(then).expect("utimes");
            });
            if !options.contains("writeback") {
                let opened = |file: &mut Option<File>, pool: &Path, _: &Path| {
                    file.insert(write(pool)).write_all(b"more").expect("written");
                };
                changed_in_between(&bed, "open and write", options, false, |_| None, opened);
                changed_in_between(
                    &bed,
                    "write through an open handle",
                    options,
                    false,
                    write,
                    |file, _, _| {
                        file.write_all(b"more").expect("written");
                    },
                );
            }
        }
        // With passthrough, mappings are of the branch's own file.
        if options == "passthrough.io=rw" {
            let map = |path: &Path| {
                fs::write(path, vec![0; 4096]).expect("a file");
                Mapped::new(path)
            };
            changed_in_between(&bed, "write to a mapping", options, false, map, |mapped, _, branch| {
                let before = attributes(branch, true);
                mapped.write();
                assert_ne!(attributes(branch, true), before, "the write did not change the times");
            });
        }
        bed.pool.umount();
    }
}

/// Several clients list more directories at once than the pool keeps cursors for: each gets every name once.
#[test]
fn each_of_many_concurrent_listings_returns_every_name_once() {
    let bed = two_disks(Kind::Tmpfs, "");
    let dir = bed.at(DIR);
    fill_dir(&bed.on(0, DIR), FILES);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut listings: Vec<(OwnedFd, Vec<String>)> =
                    (0..40).map(|_| (open(&dir), Vec::new())).collect();
                for _ in 0..FILES {
                    let mut done = true;
                    for (listing, names) in &mut listings {
                        let more = part(listing);
                        look_at(&dir, &more);
                        done &= more.is_empty();
                        names.extend(more);
                    }
                    if done {
                        break;
                    }
                }
                for (_, mut names) in listings {
                    names.sort();
                    assert_eq!(names.len(), FILES);
                    assert!(names.iter().enumerate().all(|(n, name)| *name == format!("name-{n:05}")));
                }
            });
        }
    });
    bed.pool.umount();
}

/// Files only grow, through all kinds of writers: no listing shows a size smaller than when its part was requested.
#[test]
fn a_listing_shows_no_outdated_size_of_a_growing_file() {
    let bed = two_disks(Kind::Ext4, "passthrough.io=rw");
    let (dir, branch) = (bed.at(DIR), bed.on(0, DIR));
    fs::create_dir(&branch).expect("mkdir");
    let name = |n: usize| format!("name-{n:05}");
    (0..FILES).for_each(|n| drop(File::create(branch.join(name(n))).expect("a file")));
    let grown: Vec<AtomicU64> = (0..FILES).map(|_| AtomicU64::new(0)).collect();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for writer in 0..3 {
            let (dir, branch, grown, stop) = (&dir, &branch, &grown, &stop);
            scope.spawn(move || {
                let rng = &mut Rng::new(writer as u64);
                let file = |n| OpenOptions::new().append(true).open(dir.join(name(n))).expect("a file");
                // Each writer has its own files, so that their sizes are known.
                let own = |n: usize| n * 3 + writer;
                // At most one in three parts contains a file that is open for writing.
                let mut held = file(own(157));
                while !stop.load(SeqCst) {
                    let n = match rng.below(3) {
                        0 => {
                            held.write_all(b"more").expect("written");
                            own(157)
                        }
                        1 => {
                            let n = own(rng.index(FILES / 3));
                            append(&dir.join(name(n)));
                            n
                        }
                        _ => {
                            let n = own(rng.index(FILES / 3));
                            append(&branch.join(name(n)));
                            n
                        }
                    };
                    grown[n].fetch_add(4, SeqCst);
                    thread::sleep(Duration::from_micros(rng.below(120_000)));
                }
            });
        }
        let wrong = (0..120).find_map(|round| {
            invalidate_listing(&dir);
            let listing = open(&dir);
            loop {
                let least: Vec<u64> = grown.iter().map(|size| size.load(SeqCst)).collect();
                let names = part(&listing);
                if names.is_empty() {
                    return None;
                }
                for name in names {
                    let n: usize = name[5..].parse().expect("a number");
                    let size = fs::symlink_metadata(dir.join(&name)).expect("a file").len();
                    if size < least[n] {
                        return Some((round, name, size, least[n]));
                    }
                }
            }
        });
        stop.store(true, SeqCst);
        assert_eq!(wrong, None, "round, name, the size shown, and the size before");
    });
    bed.pool.umount();
}
