//! Instructions that change the branches of a running pool: `+`, `+<`, `+>`, `-`, `-<`, `->`, `=`.

use super::rig::{BINARY, Dirs};
use canopy_testkit::Paused;
use canopy_testkit::cmd::wait_until;
use canopy_testkit::{PATIENCE, Pool, Submount};
use rustix::fs::Dir;
use rustix::io::Errno;
use std::fs::{self, File};
use std::time::Duration;

/// Each row is an instruction, the resulting branches, and the result of the call. `@` stands for the directory that
/// contains the branches.
const CHANGES: &[(&str, &str, Result<&str, Errno>)] = &[
    ("+@c", "a b c", Ok("")),
    ("+>@c", "a b c", Ok("")),
    ("+>@c:@d=NC", "a b c d=NC", Ok("")),
    ("+<@c:@d", "c d a b", Ok("")),
    ("-@*", "", Ok("")),
    ("-*", "", Ok("")),
    ("-", "a b", Ok("")),
    ("-/x/*:@b", "a", Ok("")),
    ("-@[ab]", "", Ok("")),
    ("-@c", "a b", Ok("")),
    ("->", "a", Ok("")),
    ("-<", "b", Ok("")),
    ("->whatever follows", "a", Ok("")),
    ("=", "", Ok("")),
    ("", "", Ok("")),
    ("@a=RO,1234:@b=NC,4321", "a=RO,1234 b=NC,4321", Ok("")),
    ("@a=RW,1k", "a=RW,1K", Ok("")),
    ("=@a=RW,1536", "a=RW,1536", Ok("")),
    ("@a=RW,1048576:@b=RW,0", "a=RW,1M b=RW,0", Ok("")),
    ("@{c,d}", "c d", Ok("")),
    ("@a=rw", "", Err(Errno::INVAL)),
    ("@a=XX", "", Err(Errno::INVAL)),
    ("@a=", "", Err(Errno::INVAL)),
    ("@a=RW,-1", "", Err(Errno::INVAL)),
    ("@a=RW,x", "", Err(Errno::INVAL)),
    ("@a=RW,1,2", "", Err(Errno::INVAL)),
    ("@a::@b", "", Err(Errno::INVAL)),
    ("@a:", "", Err(Errno::INVAL)),
    ("++@a", "", Err(Errno::INVAL)),
    ("+-@a", "", Err(Errno::INVAL)),
    ("<", "", Err(Errno::INVAL)),
    (">", "", Err(Errno::INVAL)),
    ("+@c:@d=ro", "", Err(Errno::INVAL)),
    ("@a=RW,16777216T", "", Err(Errno::OVERFLOW)),
    ("@with=equals=RW", "with=equals=RW", Ok("")),
    ("@with=equals", "", Err(Errno::INVAL)),
];

#[test]
fn every_instruction_takes_effect() {
    instructions("", "cache.negative-entry=3600");
}

/// Before Linux 6.16 the pool invalidates dentries one by one, which does not cover negative dentries.
#[test]
fn every_instruction_takes_effect_on_an_older_kernel() {
    instructions("minor:43", "");
}

/// A single thread must not deadlock with itself: here it resolves patterns that lead through the pool, and invalidates
/// names while clients hold their locks.
#[test]
fn a_single_thread_does_not_deadlock() {
    for kernel in ["", "minor:43"] {
        let dirs = Dirs::new();
        let pool =
            dirs.builder("threads=1,cache.attr=0,cache.entry=0").env("CANOPY_TEST_KERNEL", kernel).mount();
        fs::create_dir(pool.path().join("inner")).expect("mkdir");
        std::os::unix::fs::symlink(pool.path().join("inner"), dirs.path("link")).expect("a symlink");
        for pattern in ["link", "li*", "link/../*n*er"] {
            let value = format!("+{}", dirs.text(pattern));
            assert_eq!(pool.try_set("branches", &value), Err(Errno::INVAL), "{value}");
        }
        let around = format!("+{}/*", pool.path().parent().expect("a parent").display());
        assert_eq!(pool.try_set("branches", &around), Err(Errno::INVAL));
        std::thread::scope(|scope| {
            for worker in 0..4 {
                let pool = &pool;
                scope.spawn(move || {
                    for round in 0..100 {
                        let dir = pool.path().join(format!("w{worker}-{round}"));
                        fs::create_dir(&dir).expect("mkdir");
                        fs::remove_dir(&dir).expect("rmdir");
                    }
                });
            }
            for _ in 0..100 {
                pool.set("cmd.invalidate-all-nodes", "");
            }
        });
        pool.umount();
    }
}

fn instructions(kernel: &str, options: &str) {
    let dirs = Dirs::new();
    fs::create_dir(dirs.path("with=equals")).expect("mkdir");
    for name in ["a", "b", "c", "d", "with=equals"] {
        fs::write(dirs.path(name).join(format!("in-{name}")), name).expect("a file");
    }
    let pool = dirs
        .builder("cache.entry=3600,cache.attr=3600")
        .option(options)
        .env("CANOPY_TEST_KERNEL", kernel)
        .mount();
    let home = dirs.text("");
    let start = "@a=RW:@b=RW".replace('@', &home);
    for (value, result, expected) in CHANGES {
        pool.set("branches", &start);
        // The kernel caches positive and negative dentries before the change.
        let shown = |name: &str| match fs::symlink_metadata(pool.path().join(format!("in-{name}"))) {
            Ok(_) => true,
            Err(why) if why.kind() == std::io::ErrorKind::NotFound => false,
            Err(why) => panic!("{value}: in-{name}: {why}"),
        };
        assert!(shown("a") && shown("b") && !shown("c") && !shown("d"), "{value}");
        let got = pool.try_set("branches", &value.replace('@', &home));
        assert_eq!(got, expected.map(|_| ()), "{value}");
        let listed = match expected {
            Ok(_) => result
                .split_whitespace()
                .map(|word| format!("{home}{word}{}", if word.contains('=') { "" } else { "=RW" }))
                .collect::<Vec<_>>()
                .join(":"),
            Err(_) => start.clone(),
        };
        assert_eq!(pool.get("branches"), listed, "{value}");
        let paths: Vec<&str> = listed
            .split(':')
            .filter(|entry| !entry.is_empty())
            .map(|entry| entry.rsplit_once('=').expect("a mode").0)
            .collect();
        assert_eq!(pool.get("srcmounts"), paths.join(":"), "{value}");
        for name in ["a", "b", "c", "d", "with=equals"] {
            let there = paths.contains(&format!("{home}{name}").as_str());
            assert_eq!(shown(name), there, "{value}: in-{name}");
        }
        if paths.is_empty() {
            for instruction in ["->", "-<"] {
                assert_eq!(pool.try_set("branches", instruction), Err(Errno::NOENT));
            }
        }
    }
    pool.set("branches", &start);
    pool.umount();
}

/// A change of branches invalidates the listings in the kernel's cache, at any depth.
#[test]
fn cached_listings_follow_the_branches() {
    for kernel in ["", "minor:43"] {
        let dirs = Dirs::new();
        for name in ["a", "b"] {
            fs::create_dir_all(dirs.path(name).join("x/y")).expect("mkdir");
            fs::write(dirs.path(name).join(format!("x/y/in-{name}")), "").expect("a file");
            // The equal mtimes do not reveal that the listing has changed.
            let dir = fs::File::open(dirs.path(name).join("x/y")).expect("open");
            dir.set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000))
                .expect("a time");
        }
        let options = "cache.readdir=true,cache.entry=3600,cache.attr=3600";
        let pool = dirs.builder(options).env("CANOPY_TEST_KERNEL", kernel).mount();
        let dir = pool.path().join("x/y");
        let count = || fs::read_dir(&dir).expect("a listing").count();
        for _ in 0..3 {
            assert_eq!((count(), count()), (2, 2));
            pool.set("branches", "->");
            assert_eq!((count(), count()), (1, 1));
            pool.set("branches", &format!("+{}", dirs.text("b")));
        }
        pool.umount();
    }
}

/// A mount on a directory of the pool survives changes of the branches, although the kernel looks up every name again.
#[test]
fn mounts_within_the_pool_survive_branch_changes() {
    let dirs = Dirs::new();
    fs::create_dir_all(dirs.path("a/x/y")).expect("mkdir");
    fs::create_dir(dirs.path("third")).expect("mkdir");
    fs::write(dirs.path("third/comes"), "").expect("a file");
    let pool = dirs.pool("cache.negative-entry=3600,cache.entry=3600");
    let point = pool.path().join("x/y");
    let nested = Submount::tmpfs(point);
    let third = dirs.text("third");
    for round in 0..3 {
        assert!(!pool.path().join("comes").exists(), "round {round}");
        pool.set("branches", &format!("+{third}"));
        assert!(nested.file().exists() && pool.path().join("comes").exists(), "round {round}");
        pool.set("branches", &format!("-{third}"));
        assert!(nested.file().exists(), "round {round}");
    }
    drop(nested);
    pool.umount();
}

/// A branch path that does not exist yet is listed, and joins the pool as soon as it exists.
#[test]
fn a_missing_branch_joins_once_it_exists() {
    let dirs = Dirs::new();
    fs::write(dirs.path("a/f"), "").expect("a file");
    let pool = dirs.pool("category.create=ff,cache.entry=3600,cache.attr=3600,cache.negative-entry=3600");
    let (a, b, later, never) = (dirs.text("a"), dirs.text("b"), dirs.text("later"), dirs.text("never"));
    let count = || fs::read_dir(pool.path()).expect("a listing").count();
    pool.set("branches", &format!("+<{later}=RW,1K:{never}=NC"));
    assert_eq!(pool.get("branches"), format!("{later}=RW,1K:{never}=NC:{a}=RW:{b}=RW"));
    assert_eq!(pool.get("srcmounts"), format!("{later}:{never}:{a}:{b}"));
    assert!(pool.log().contains(&format!("branch {later} does not exist")), "{}", pool.log());
    // Until then the pool works without it.
    fs::write(pool.path().join("before"), "").expect("a file");
    assert!(dirs.path("a/before").exists() && !pool.path().join("late").exists());
    assert_eq!(count(), 2);
    fs::create_dir(dirs.path("unseen")).expect("mkdir");
    fs::write(dirs.path("unseen/late"), "late").expect("a file");
    fs::rename(dirs.path("unseen"), &later).expect("a rename");
    assert!(wait_until(PATIENCE, || pool.path().join("late").exists()));
    assert_eq!(count(), 3);
    // The branch keeps its place in the list, its mode and its minfreespace.
    fs::write(pool.path().join("after"), "").expect("a file");
    assert!(dirs.path("later/after").exists());
    assert_eq!(pool.get("branches"), format!("{later}=RW,1K:{never}=NC:{a}=RW:{b}=RW"));
    // A path that turns out to be the pool itself does not join.
    std::os::unix::fs::symlink(pool.path(), &never).expect("a symlink");
    std::thread::sleep(Duration::from_millis(2500));
    assert_eq!((count(), pool.is_alive()), (4, true));
    pool.set("branches", &format!("-{never}"));
    // No branch exists.
    let (x, y) = (dirs.text("x"), dirs.text("y"));
    pool.set("branches", &format!("={x}:{y}"));
    assert!(!pool.path().join("f").exists());
    for name in ["x", "y"] {
        fs::create_dir(dirs.path(name)).expect("mkdir");
        fs::write(dirs.path(name).join(format!("in-{name}")), "").expect("a file");
        assert!(wait_until(PATIENCE, || pool.path().join(format!("in-{name}")).exists()), "{name}");
    }
    assert_eq!(count(), 2);
    // A missing branch can be removed again.
    pool.set("branches", &format!("+{}", dirs.text("z")));
    pool.set("branches", "->");
    assert_eq!(pool.get("srcmounts"), format!("{x}:{y}"));
    pool.umount();
}

/// A hung branch can be removed, also while a client waits for it with a directory open.
#[test]
fn a_hung_branch_can_be_removed() {
    let dirs = Dirs::new();
    fs::write(dirs.path("a/f"), "").expect("a file");
    let hung = Pool::builder(BINARY).branch(dirs.path("c")).mount();
    let pool = dirs.pool("cache.entry=60,cache.attr=60");
    let place = hung.path().display().to_string();
    pool.set("branches", &format!("+{place}=RO"));
    // A partly read listing. The kernel may still be reading it, as far as the pool can tell.
    let open = || Dir::read_from(File::open(pool.path()).expect("open")).expect("a directory");
    let mut held = open();
    assert!(held.read().is_some());
    let mut hanging = open();
    let paused = Paused::new(hung.pid());
    std::thread::scope(|scope| {
        let listing = scope.spawn(|| std::iter::from_fn(|| hanging.read()).filter_map(Result::ok).count());
        let changing = scope.spawn(|| pool.set("branches", &format!("-{place}")));
        let changed = wait_until(PATIENCE, || changing.is_finished());
        let alone = wait_until(PATIENCE, || {
            pool.get("srcmounts") == format!("{}:{}", dirs.text("a"), dirs.text("b"))
        });
        let works = alone && fs::read_dir(pool.path()).expect("a listing").count() == 1;
        drop(paused);
        listing.join().expect("a listing");
        changing.join().expect("a change");
        assert!(changed && works, "{changed} {works}");
    });
    drop((held, hanging));
    pool.umount();
    hung.umount();
}

/// A branch's mode can change in place. The next operation follows the new mode.
#[test]
fn modes_change_in_place() {
    let dirs = Dirs::new();
    let pool = dirs.pool("category.create=ff");
    let (a, b) = (dirs.text("a"), dirs.text("b"));
    let made = |name: &str| fs::write(pool.path().join(name), name).map_err(|why| Errno::from_io_error(&why));
    assert_eq!(made("one"), Ok(()));
    pool.set("branches", &format!("{a}=NC:{b}=RW"));
    assert_eq!(made("two"), Ok(()));
    assert_eq!(made("one"), Ok(()));
    pool.set("branches", &format!("{a}=RO:{b}=RO"));
    assert_eq!(made("three"), Err(Some(Errno::ROFS)));
    assert_eq!(
        fs::remove_file(pool.path().join("one")).map_err(|w| Errno::from_io_error(&w)),
        Err(Some(Errno::ROFS))
    );
    pool.set("branches", &format!("{b}=RW:{a}=RW"));
    assert_eq!(made("three"), Ok(()));
    for (branch, name) in [("a", "one"), ("b", "two"), ("b", "three")] {
        assert_eq!(fs::read_to_string(dirs.path(branch).join(name)).expect("a file"), name);
    }
    pool.umount();
}

/// A mount only warns of duplicate branches, but a running pool refuses them. Different paths of a directory count as the
/// same branch.
#[test]
fn a_duplicate_branch_is_refused() {
    let dirs = Dirs::new();
    std::os::unix::fs::symlink(dirs.path("a"), dirs.path("link")).expect("a symlink");
    rustix::mount::mount_bind(dirs.path("a"), dirs.path("d")).expect("a bind mount");
    let pool = dirs.builder("").mount();
    let before = pool.get("branches");
    for value in ["+@a", "+<@b=RO", "+>@link", "+@d", "@a:@a", "+@c:@c", "+@none:@none", "+@[ab]"] {
        let value = value.replace('@', &dirs.text(""));
        assert_eq!(pool.try_set("branches", &value), Err(Errno::EXIST), "{value}");
        assert_eq!(pool.get("branches"), before, "{value}");
    }
    for (value, culprit) in
        [("+@a", "a is already a branch of pool"), ("+@d", "d is already a branch of pool")]
    {
        let pair = format!("branches={}", value.replace('@', &dirs.text("")));
        let done = pool.command(["set".as_ref(), pool.path().as_os_str(), pair.as_ref()]);
        assert!(!done.success() && done.stderr.lines().count() == 1, "{}", done.describe());
        assert!(done.stderr.contains(culprit), "{}", done.stderr);
    }
    // A change of mode, of order, or of the path of a branch adds no duplicate.
    for value in ["@a=RO:@b", "@b:@a", "@d:@b", "@c"] {
        pool.set("branches", &value.replace('@', &dirs.text("")));
    }
    pool.umount();
    // Duplicates that the pool was mounted with do not prevent other changes.
    let pool = Pool::builder(BINARY).branch(dirs.path("a")).branch(dirs.path("a")).mount();
    pool.set("branches", &format!("+{}", dirs.text("c")));
    pool.umount();
    rustix::mount::unmount(dirs.path("d"), rustix::mount::UnmountFlags::DETACH).expect("umount");
}
