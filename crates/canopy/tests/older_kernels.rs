//! Older kernels: the pool works without the features that the kernel does not offer, logs what INIT negotiated, and
//! warns once about each missing feature.
//!
//! `CANOPY_TEST_KERNEL` makes the kernel look older. Needs root.

#![forbid(unsafe_code)]

use canopy_testkit::cmd::{run, run_within};
use canopy_testkit::{LoopFs, PATIENCE, Pool, Tree, User};
use rustix::fs::{FlockOperation, Mode, OFlags, XattrFlags};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;

const ENTRIES: usize = 5000;
/// Options that make the pool request every feature it knows.
const ALL: &str =
    "minfreespace=0,category.create=ff,posix-acl=true,cache.symlinks=true,cache.readdir=true,io-uring=auto";

/// Two branches, one with a large directory, for successive pools.
struct Branches([LoopFs; 2]);

impl Branches {
    #[track_caller]
    fn new() -> Self {
        let disks = [LoopFs::ext4(128 << 20), LoopFs::tmpfs(64 << 20)];
        for (number, disk) in disks.iter().enumerate() {
            fs::create_dir(disk.path().join("many")).expect("mkdir");
            for entry in (number..ENTRIES).step_by(2) {
                fs::write(disk.path().join(format!("many/{entry:05}")), []).expect("a file");
            }
        }
        // Both branches have this name.
        fs::write(disks[1].path().join("many/00000"), []).expect("a file");
        Branches(disks)
    }

    #[track_caller]
    fn pool(&self, kernel: &str, options: &str) -> Pool {
        Pool::builder(env!("CARGO_BIN_EXE_canopy"))
            .branch(self.0[0].path())
            .branch(self.0[1].path())
            .option(ALL)
            .option(options)
            .env("CANOPY_TEST_KERNEL", kernel)
            .mount()
    }
}

/// The content of the log line about INIT: the version, the flags in force, and the flags that the kernel does not
/// offer.
struct Negotiated {
    version: String,
    flags: BTreeSet<String>,
    missing: BTreeSet<String>,
}

impl Negotiated {
    #[track_caller]
    fn of(pool: &Pool) -> Self {
        let log = pool.log();
        let lines: Vec<&str> =
            log.lines().filter_map(|line| line.split_once("FUSE ")).map(|(_, l)| l).collect();
        assert_eq!(lines.len(), 1, "{log}");
        let (version, rest) = lines[0].split_once(": ").expect("a version");
        let set = |text: &str| {
            text.split(", ").filter(|word| *word != "none").map(|word| word.trim().to_owned()).collect()
        };
        let flags = set(rest.split(';').next().unwrap_or_default());
        let missing = set(rest.split_once("not offered: ").expect("the missing flags").1);
        Negotiated { version: version.to_owned(), flags, missing }
    }

    fn has(&self, flag: &str) -> bool {
        self.flags.contains(flag)
    }
}

fn count_in_log(pool: &Pool, text: &str) -> usize {
    pool.log().matches(text).count()
}

#[track_caller]
fn sh(user: &User<'_>, script: &str, path: &Path) -> String {
    let done = run_within(&mut user.shell(script, [path]), PATIENCE);
    assert!(done.success(), "{script}: {}", done.describe());
    done.stdout
}

/// Does a few operations of every kind.
#[track_caller]
fn smoke(pool: &Pool, acl: bool) {
    let dir = pool.path().join("smoke");
    fs::create_dir(&dir).expect("mkdir");
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o1777)).expect("chmod");
    names_and_data(&dir);
    large_and_mapped(&dir);
    attributes(&dir, acl);
    set_id_bits(&dir);
    let listed: Vec<String> = fs::read_dir(pool.path().join("many"))
        .expect("opendir")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("a name"))
        .collect();
    let names: BTreeSet<&str> = listed.iter().map(String::as_str).collect();
    assert_eq!((listed.len(), names.len()), (ENTRIES, ENTRIES), "entries twice, or missing");
    assert!(fs::metadata(pool.path().join("many/04999")).is_ok_and(|entry| entry.is_file()));
    let space = rustix::fs::statvfs(pool.path()).expect("statfs");
    assert!(space.f_blocks * space.f_frsize > 150 << 20 && space.f_bavail > 0);
    let before = Tree::capture(&dir);
    fs::rename(&dir, pool.path().join("moved")).expect("rename");
    before.assert_same(&Tree::capture(pool.path().join("moved")));
    fs::remove_dir_all(pool.path().join("moved")).expect("rm -r");
}

#[track_caller]
fn names_and_data(dir: &Path) {
    let (one, two) = (dir.join("one"), dir.join("two"));
    fs::write(&one, "content").expect("a write");
    fs::hard_link(&one, &two).expect("link");
    let both = [&one, &two].map(|path| fs::metadata(path).expect("stat"));
    assert!(both.iter().all(|meta| meta.nlink() == 2 && meta.ino() == both[0].ino()));
    let file = fs::OpenOptions::new().read(true).write(true).open(&one).expect("open");
    let again = fs::File::open(&two).expect("open during a write");
    file.write_all_at(b"C", 0).expect("pwrite");
    let mut seen = [0; 7];
    again.read_exact_at(&mut seen, 0).expect("pread");
    assert_eq!(&seen, b"Content");
    file.set_len(3).expect("truncate");
    assert_eq!((again.metadata().expect("fstat").len(), fs::read(&two).expect("read")), (3, b"Con".to_vec()));
    rustix::fs::flock(&file, FlockOperation::LockExclusive).expect("flock");
    let second = rustix::fs::flock(&again, FlockOperation::NonBlockingLockExclusive);
    assert_eq!(second, Err(Errno::WOULDBLOCK));
    fs::remove_file(&one).expect("unlink");
    assert_eq!(file.metadata().expect("fstat").nlink(), 1);
    drop((file, again));
    symlink("two", dir.join("link")).expect("symlink");
    for _ in 0..2 {
        assert_eq!(fs::read_link(dir.join("link")).expect("readlink"), Path::new("two"));
    }
    fs::rename(&two, &one).expect("rename");
    assert!(!two.exists() && fs::read(&one).expect("read") == b"Con");
    let kind = rustix::fs::RenameFlags::NOREPLACE;
    fs::write(&two, "").expect("a write");
    let refused = rustix::fs::renameat_with(rustix::fs::CWD, &one, rustix::fs::CWD, &two, kind);
    assert_eq!(refused, Err(Errno::EXIST));
    // The umask applies, whether the kernel or the branch applies it.
    let script = "umask 027; cd \"$1\"; mkdir by-user; touch by-user/f; stat -c %a-%u by-user by-user/f";
    let modes = sh(&User { uid: 2000, gid: 2000, groups: &[] }, script, dir);
    assert_eq!(modes, "750-2000\n640-2000\n");
}

#[track_caller]
fn large_and_mapped(dir: &Path) {
    let path = dir.join("large");
    let content: Vec<u8> = (0..3_000_001_u32).map(|index| (index / 777) as u8).collect();
    fs::write(&path, &content).expect("a large write");
    assert!(fs::read(&path).expect("a large read") == content);
    let script = format!(
        "printf '%s\\n' 'open {}' 'mmap -rw 0 8192' 'mwrite -S 0x41 0 4096' 'msync -s' | xfs_io",
        path.display()
    );
    assert_eq!(run("sh", ["-c", &script]).matches("rror").count(), 0);
    let seen = fs::read(&path).expect("read");
    assert!(seen[..4096] == [0x41; 4096] && seen[4096..] == content[4096..]);
    let direct = rustix::fs::open(&path, OFlags::RDWR | OFlags::DIRECT, Mode::empty()).expect("O_DIRECT");
    drop(direct);
    let holes = fs::File::create(dir.join("holes")).expect("a file");
    holes.write_all_at(b"data", 1 << 20).expect("pwrite");
    assert_eq!(rustix::fs::seek(&holes, rustix::fs::SeekFrom::Data(0)), Ok(1 << 20));
}

#[track_caller]
fn attributes(dir: &Path, acl: bool) {
    let path = dir.join("attributes");
    fs::write(&path, "").expect("a file");
    rustix::fs::setxattr(&path, c"user.one", b"1", XattrFlags::CREATE).expect("setxattr");
    let twice = rustix::fs::setxattr(&path, c"user.one", b"2", XattrFlags::CREATE);
    assert_eq!(twice, Err(Errno::EXIST));
    let mut value = [0; 8];
    assert_eq!(rustix::fs::getxattr(&path, c"user.one", &mut value), Ok(1));
    let mut list = [0_u8; 64];
    let len = rustix::fs::listxattr(&path, &mut list).expect("listxattr");
    assert_eq!(&list[..len], b"user.one\0");
    rustix::fs::removexattr(&path, c"user.one").expect("removexattr");
    assert_eq!(rustix::fs::getxattr(&path, c"user.one", &mut value), Err(Errno::NODATA));

    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("chmod");
    // Without the kernel's support, the ACL is stored all the same, and grants nothing.
    run("setfacl", ["-m".as_ref(), "u:2000:rw".as_ref(), path.as_os_str()]);
    let reading = User { uid: 2000, gid: 2000, groups: &[] };
    let read = run_within(reading.command("cat").arg(&path), PATIENCE);
    assert_eq!(read.success(), acl, "{}", read.describe());
}

/// Another user's write, truncation and fallocate, and a change of group by the owner, clear the set-id bits.
#[track_caller]
fn set_id_bits(dir: &Path) {
    // Not sticky: there, fs.protected_regular refuses the shell's O_CREAT of another user's file.
    let dir = &dir.join("for-all");
    fs::create_dir(dir).expect("mkdir");
    fs::set_permissions(dir, fs::Permissions::from_mode(0o777)).expect("chmod");
    let other = User { uid: 2000, gid: 2000, groups: &[] };
    for (script, left) in [
        ("cat \"$1\"", 0o6777),
        ("echo more >>\"$1\"", 0o777),
        (": >\"$1\"", 0o777),
        ("truncate -s 1 \"$1\"", 0o777),
        ("fallocate -l 5000 \"$1\"", 0o777),
    ] {
        let path = dir.join("set-id");
        fs::write(&path, "text").expect("a file");
        std::os::unix::fs::chown(&path, Some(1000), Some(1000)).expect("chown");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o6777)).expect("chmod");
        sh(&other, script, &path);
        assert_eq!(fs::metadata(&path).expect("stat").mode() & 0o7777, left, "after {script}");
    }
    let path = dir.join("group");
    fs::write(&path, "text").expect("a file");
    std::os::unix::fs::chown(&path, Some(1000), Some(1000)).expect("chown");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o6755)).expect("chmod");
    let owner = User { uid: 1000, gid: 1000, groups: &[3000] };
    sh(&owner, "chgrp 3000 \"$1\"", &path);
    assert_eq!(fs::metadata(&path).expect("stat").mode() & 0o7777, 0o755, "after chgrp");
}

#[test]
fn the_pool_works_with_every_protocol_version() {
    let branches = Branches::new();
    for minor in [31, 32, 33, 34, 36, 38, 39, 40, 41, 45] {
        let pool = branches.pool(&format!("minor:{minor}"), "");
        smoke(&pool, true);
        let negotiated = Negotiated::of(&pool);
        assert_eq!(negotiated.version, format!("7.{minor}"));
        for (flag, since) in [
            ("posix_acl", 26),
            ("handle_killpriv_v2", 33),
            ("setxattr_ext", 33),
            ("direct_io_allow_mmap", 39),
            ("passthrough", 40),
            ("allow_idmap", 41),
            ("over_io_uring", 42),
        ] {
            assert_eq!(negotiated.has(flag), minor >= since, "7.{minor}: {flag}");
            assert_eq!(negotiated.missing.contains(flag), minor < since, "7.{minor}: {flag}");
        }
        let warned = usize::from(minor < 40);
        assert_eq!(
            count_in_log(&pool, "passthrough is off: the kernel does not offer it"),
            warned,
            "{}",
            pool.log()
        );
        assert_eq!(count_in_log(&pool, "WARN"), warned, "{}", pool.log());
        pool.umount();
    }
}

#[test]
fn the_pool_works_without_any_single_flag_and_without_all() {
    let branches = Branches::new();
    let each = [
        "PASSTHROUGH",
        "DO_READDIRPLUS",
        "READDIRPLUS_AUTO",
        "DO_READDIRPLUS|READDIRPLUS_AUTO",
        "HANDLE_KILLPRIV_V2",
        "SETXATTR_EXT",
        "PARALLEL_DIROPS",
        "MAX_PAGES",
        "DIRECT_IO_ALLOW_MMAP",
        "POSIX_ACL",
        "EXPORT_SUPPORT",
        "ASYNC_DIO",
        "ASYNC_READ",
        "BIG_WRITES",
        "DONT_MASK",
        "CACHE_SYMLINKS",
        "ALLOW_IDMAP",
        "OVER_IO_URING",
        "INIT_EXT",
    ];
    let all = each.join("|");
    for masked in each.into_iter().chain([all.as_str()]) {
        let pool = branches.pool(&format!("mask:{masked}"), "");
        let words: Vec<String> = masked.split('|').map(str::to_lowercase).collect();
        smoke(&pool, !words.iter().any(|word| word == "posix_acl"));
        let negotiated = Negotiated::of(&pool);
        for word in &words {
            assert!(!negotiated.has(word), "{masked}: {word} is in force");
            // These two flags carry others, and the line does not report them.
            if !matches!(word.as_str(), "max_pages" | "init_ext") {
                assert!(negotiated.missing.contains(word), "{masked}: {word} is not reported as missing");
            }
        }
        let lost = |flag| words.iter().any(|word| word == flag);
        assert_eq!(negotiated.has("passthrough"), !lost("passthrough") && !lost("init_ext"), "{masked}");
        assert_eq!(count_in_log(&pool, "max_pages 32"), usize::from(lost("max_pages")), "{}", pool.log());
        let warned = usize::from(!negotiated.has("passthrough"));
        assert_eq!(
            count_in_log(&pool, "passthrough is off: the kernel does not offer it"),
            warned,
            "{}",
            pool.log()
        );
        pool.umount();
    }
}

/// The pool warns once about a missing feature that an option requests by name; the other options still apply.
#[test]
fn a_missing_requested_feature_is_warned_about_once() {
    let branches = Branches::new();
    for (kernel, options, warning) in [
        (
            "mask:WRITEBACK_CACHE",
            "cache.writeback=true",
            "cache.writeback is off: the kernel does not offer it",
        ),
        ("minor:39", "passthrough.io=rw", "passthrough is off: the kernel does not offer it"),
        ("mask:OVER_IO_URING", "io-uring=on", "io-uring=on has no effect: no io_uring"),
        ("minor:31", "passthrough.io=off,cache.files=full", ""),
        ("minor:31", "passthrough.io=ro,cache.files=partial", "passthrough is off"),
    ] {
        let pool = branches.pool(kernel, options);
        smoke(&pool, true);
        if !warning.is_empty() {
            assert_eq!(count_in_log(&pool, warning), 1, "{}", pool.log());
        }
        pool.umount();
    }
}

/// Requests come over io_uring if the kernel has it and no option turns it off, and the log names the transport.
#[test]
fn the_log_names_the_transport() {
    let branches = Branches::new();
    let offered = fs::exists("/sys/module/fuse/parameters/enable_uring").unwrap_or(false);
    let (ring, device) = ("requests over io_uring", "requests over /dev/fuse");
    for (kernel, options, carrier) in [
        ("", "io-uring=auto", if offered { ring } else { device }),
        ("", "io-uring=on", if offered { ring } else { device }),
        ("", "io-uring=off", device),
        ("mask:OVER_IO_URING", "io-uring=auto", device),
        // The kernel negotiates io_uring, and then refuses the queues.
        ("refuse:queues", "io-uring=auto", device),
        // The buffers are too small for every request to fit.
        ("", "fuse-msg-size=4", device),
    ] {
        let pool = branches.pool(kernel, options);
        smoke(&pool, true);
        let log = pool.log();
        // The log first names the negotiated transport.
        let lines = if kernel == "refuse:queues" && offered { 2 } else { 1 };
        assert_eq!(
            (count_in_log(&pool, carrier), count_in_log(&pool, "requests over")),
            (1, lines),
            "{options}: {log}"
        );
        let status = run(env!("CARGO_BIN_EXE_canopy"), ["status".as_ref(), pool.path().as_os_str()]);
        assert!(status.contains(if carrier == ring { "io-uring" } else { "/dev/fuse" }), "{status}");
        pool.umount();
    }
}
