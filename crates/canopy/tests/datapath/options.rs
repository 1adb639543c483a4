//! The other options of the data path.

use super::files::{Aligned, BLOCK, open, read_at, size, write_at, xfs_io};
use super::passthrough_fallback::Overlay;
use super::rig::{CACHES, Disks, LISTED, Mode, builder, log_count, pages_limit};
use super::{checks, direct_io};
use canopy_testkit::cmd::{run, wait_until};
use canopy_testkit::{LoopFs, PATIENCE, proc};
use rustix::fs::OFlags;
use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

/// A read with `nullrw` must not return whatever the buffer held before.
#[test]
fn nullrw_reads_zeros_and_writes_nothing() {
    let disks = Disks::new();
    for mode in [Mode::new("auto", "off"), Mode::new("off", "off"), Mode::new("off", "full")] {
        let pool = disks.pool(&format!("{mode},nullrw=true"));
        let dir = disks.ext4(&pool);
        let secret = dir.file("secret", &vec![b's'; 3 * BLOCK]);
        let new = dir.pool.join("new");
        let fd = open(&new, OFlags::RDWR | OFlags::CREATE);
        write_at(&fd, 0, &vec![b'w'; 2 << 20]);
        drop(fd);
        assert_eq!(fs::metadata(dir.branch.join("new")).expect("the branch").len(), 0, "{mode}");
        let fd = open(&secret.pool, OFlags::RDWR);
        // Large enough to reach transport buffers that have held other data.
        assert_eq!(read_at(&fd, 0, 3 * BLOCK), [0; 3 * BLOCK], "{mode}");
        write_at(&fd, 0, b"other");
        drop(fd);
        assert_eq!(fs::read(&secret.branch).expect("the branch"), [b's'; 3 * BLOCK], "{mode}");
        let excluded = usize::from(mode.passthrough == "auto");
        assert_eq!(log_count(&pool, "nullrw=true excludes passthrough"), excluded, "{}", pool.log());
        pool.umount();
    }
}

/// If an option overrides another, the daemon logs so once and requests matching features in INIT.
#[test]
fn an_overridden_option_is_logged_once() {
    let disks = Disks::new();
    let writeback = "excludes cache.writeback: it is false";
    let auto_full = "needs the page cache: cache.files is auto-full";
    let yields = "cache.writeback=true excludes passthrough: passthrough.io is off";
    for (options, words, has_writeback, has_passthrough) in [
        ("passthrough.io=rw,cache.writeback=true", vec![writeback], false, true),
        ("passthrough.io=ro,cache.files=off", vec![auto_full], false, true),
        ("passthrough.io=wo,cache.files=off,cache.writeback=true", vec![auto_full, writeback], false, true),
        ("cache.writeback=true", vec![yields], true, false),
        ("passthrough.io=off,cache.writeback=true,cache.files=full", vec![], true, false),
        ("passthrough.io=off,cache.writeback=true,cache.files=off", vec![auto_full], true, false),
        ("passthrough.io=off,cache.writeback=true,cache.files=per-process", vec![auto_full], true, false),
        ("", vec![], false, true),
    ] {
        let pool = disks.pool(options);
        let dir = disks.ext4(&pool);
        for round in 0..3 {
            fs::write(dir.pool.join("f"), round.to_string()).expect("a write");
        }
        let log = pool.log();
        for word in [writeback, auto_full, yields] {
            assert_eq!(
                log_count(&pool, word),
                usize::from(words.contains(&word)),
                "{options}: {word}\n{log}"
            );
        }
        assert_eq!(log_count(&pool, "WARN"), words.len(), "{options}\n{log}");
        let negotiated = negotiated(&log);
        assert_eq!(negotiated.contains("writeback_cache"), has_writeback, "{options}: {negotiated}");
        assert_eq!(negotiated.contains("passthrough"), has_passthrough, "{options}: {negotiated}");
        pool.umount();
    }
}

/// make(1), rsync(1) and backups rely on the modification time. With the writeback cache the kernel maintains it.
#[test]
fn a_write_updates_the_modification_time() {
    let disks = Disks::new();
    let passed = ["auto", "rw"].map(|passthrough| Mode::new(passthrough, "auto-full"));
    let served = CACHES.map(|cache| Mode::new("off", cache));
    let written_back = served.map(|mode| Mode { writeback: true, ..mode });
    for mode in passed.into_iter().chain(served).chain(written_back) {
        // Waiting for every pool's descriptors to be released would take a minute; other tests check for leaks.
        let pool = disks.builder(&mode.to_string()).forgive_descriptors().mount();
        // Setting the option at run time makes no difference.
        let later = (mode.writeback && mode.cache == "full").then_some("off");
        for cache in [Some(mode.cache), later].into_iter().flatten() {
            if cache != mode.cache {
                let point = pool.path().to_str().unwrap();
                let done = pool.command(["set", point, &format!("cache.files={cache}")]);
                assert!(done.success(), "{}", done.describe());
            }
            for flags in [OFlags::WRONLY, OFlags::RDWR, OFlags::RDWR | OFlags::DIRECT] {
                let file = disks.ext4(&pool).file("f", &[b'.'; 2 * BLOCK]);
                let old = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(5);
                let fd = fs::File::from(open(&file.pool, flags));
                fd.set_modified(old).expect("a time");
                write_at(&fd, 0, Aligned::filled(BLOCK, b'w').get());
                let updated = |meta: io::Result<fs::Metadata>| meta.unwrap().modified().unwrap() > old;
                let what = format!("{mode}, now {cache}, {flags:?}");
                assert!(updated(fd.metadata()), "{what}: unchanged while the file is open");
                drop(fd);
                assert!(updated(fs::metadata(&file.pool)), "{what}: unchanged after the close");
            }
        }
        pool.umount();
    }
}

/// Returns the negotiated flags from the log's only line about INIT.
#[track_caller]
fn negotiated(log: &str) -> &str {
    let mut lines = log.lines().filter(|line| line.contains("FUSE 7."));
    let line = lines.next().expect("a line about INIT");
    assert_eq!(lines.next(), None);
    line.split("; not offered").next().expect("a first part")
}

/// Messages of any size carry the same data. A size above the system's limit raises the limit.
#[test]
fn messages_of_any_size_carry_the_same_data() {
    const LIMIT: &str = "/proc/sys/fs/fuse/max_pages_limit";
    struct Restore(Option<String>);
    impl Drop for Restore {
        fn drop(&mut self) {
            if let Some(limit) = &self.0 {
                let _ = fs::write(LIMIT, limit);
            }
        }
    }
    let disks = Disks::new();
    let _limit = pages_limit();
    let before = Restore(fs::read_to_string(LIMIT).ok());
    let now = || fs::read_to_string(LIMIT).ok().and_then(|text| text.trim().parse::<u64>().ok());
    let larger = now().map(|pages| pages + 256);
    let most = larger.unwrap_or(256);
    for (size, pages) in [("4K".to_owned(), 1), ("128K".to_owned(), 32), (most.to_string(), most)] {
        for mode in [Mode::new("off", "off"), Mode::new("off", "full")] {
            let pool = disks.pool(&format!("{mode},fuse-msg-size={size}"));
            let log = pool.log();
            let limits = format!("max_write {} KiB, max_pages {pages}", pages * 4);
            assert!(negotiated(&log).contains(&limits), "{size}: {log}");
            let file = disks.ext4(&pool).file("f", b"");
            let content: Vec<u8> = (0..5_000_001_u32).map(|index| (index / 999) as u8).collect();
            fs::write(&file.pool, &content).expect("a write");
            assert!(fs::read(&file.branch).expect("the branch") == content, "{size}");
            assert!(fs::read(&file.pool).expect("the pool") == content, "{size}");
            direct_io::aligned(&disks.ext4(&pool));
            pool.umount();
        }
    }
    assert_eq!(now(), larger);
    drop(before);
}

/// Without parallel writes, asynchronous reads and threads the pool is only slower.
#[test]
fn data_is_correct_without_parallelism() {
    let disks = Disks::new();
    for cache in ["off", "full"] {
        let mode = Mode::new("off", cache);
        let pool = disks.pool(&format!("{mode},parallel-direct-writes=false,async-read=false,threads=1"));
        let log = pool.log();
        assert!(!negotiated(&log).contains("async_read"), "{log}");
        let dir = disks.ext4(&pool);
        checks::open_orders(&dir.dir("orders"));
        checks::threads(&dir.dir("threads"));
        checks::fifty_handles(&dir.dir("fifty"));
        checks::appending(&dir.dir("append"));
        direct_io::aligned(&dir.dir("direct"));
        pool.umount();
    }
}

/// Shared mappings of uncached files work if `direct-io-allow-mmap` allows them, and fail otherwise.
#[test]
fn shared_mappings_of_uncached_files_depend_on_direct_io_allow_mmap() {
    let disks = Disks::new();
    for allowed in [true, false] {
        let mode = Mode::new("off", "off");
        let pool = disks.pool(&format!("{mode},direct-io-allow-mmap={allowed}"));
        let file = disks.ext4(&pool).file("f", &[b'x'; BLOCK]);
        let path = file.pool.display();
        let lines = [format!("open {path}"), "mmap -rw 0 4096".into(), "mread -v 0 16".into()];
        if allowed {
            assert!(xfs_io(&lines).contains("78 78 78"));
        } else {
            let refused = std::panic::catch_unwind(|| xfs_io(&lines)).expect_err("no mapping");
            let text = refused.downcast_ref::<String>().expect("a message");
            assert!(text.contains("No such device"), "{text}");
        }
        pool.umount();
    }
}

/// A writer's close sends FLUSH if the branch's filesystem acts on it, as overlayfs does, or if the file may move to
/// such a branch.
#[test]
fn flush_on_close_decides_which_closes_send_flush() {
    let (without_flush, overlay) = (LoopFs::ext4(256 << 20), Overlay::new());
    let (without_flush, with_flush) = (without_flush.path(), overlay.merged.as_path());
    for (branches, moving, flushed) in [
        (&[without_flush][..], "true", false),
        (&[with_flush], "false", true),
        (&[without_flush, with_flush], "true", true),
        (&[without_flush, with_flush], "false", false),
    ] {
        for (option, reading, writing) in
            [("never", false, false), ("opened-for-write", false, flushed), ("always", true, true)]
        {
            let options = format!("flush-on-close={option},moveonenospc={moving}");
            flushes(branches, &options, reading, writing);
        }
    }
}

fn flushes(branches: &[&Path], options: &str, reading: bool, writing: bool) {
    const TIMES: usize = 20;
    let trace = tempfile::NamedTempFile::new().expect("a file");
    let traced = format!("debug=true,log.file={}", trace.path().display());
    let pool = builder(branches, &format!("{traced},{options}")).option("category.create=ff").mount();
    let path = pool.path().join("f");
    // By a process of its own: one that another test starts meanwhile shares this process' descriptors until it has
    // executed its program, and closes them, too.
    let times = |mode: &str| {
        let program = format!("for (1..{TIMES}) {{ open(F, '{mode}', $ARGV[0]) or die $!; close(F) }}");
        run("perl", ["-e".as_ref(), program.as_ref(), path.as_os_str()]);
    };
    times(">>");
    let count = || fs::read_to_string(trace.path()).expect("a trace").matches(" FLUSH unique=").count();
    for (mode, flushed) in [("<", reading), (">>", writing)] {
        let before = count();
        times(mode);
        // close(2) waits for the reply, which the daemon sends after logging the line.
        assert_eq!(count() - before, if flushed { TIMES } else { 0 }, "{options}, {mode}");
    }
    pool.umount();
}

#[test]
fn dropcacheonclose_drops_the_pages_at_close() {
    let disks = Disks::new();
    for dropped in [true, false] {
        let pool = disks.pool(&format!("passthrough.io=off,dropcacheonclose={dropped}"));
        let file = disks.ext4(&pool).file("f", b"");
        let fd = open(&file.pool, OFlags::RDWR);
        write_at(&fd, 0, &[1; 64 * BLOCK]);
        rustix::fs::fsync(&fd).expect("fsync");
        let pages = || {
            let path = file.branch.as_os_str();
            let output = run("fincore", ["-n".as_ref(), "-o".as_ref(), "PAGES".as_ref(), path]);
            output.trim().parse::<u32>().expect("a number")
        };
        assert_eq!(pages(), 64);
        drop(fd);
        let patience = if dropped { PATIENCE } else { Duration::ZERO };
        assert_eq!(wait_until(patience, || pages() == 0), dropped);
        pool.umount();
    }
}

#[test]
fn readahead_is_set_on_the_mount_and_the_device() {
    let disk = LoopFs::ext4(32 << 20);
    let pool = builder(&[disk.path()], "readahead=384").mount();
    let of = |path: &str| fs::read_to_string(path).expect("a figure").trim().to_owned();
    let mount = proc::mount_at(pool.path()).expect("the mount");
    let device = disk.device().and_then(|device| device.file_name()).expect("a device").display().to_string();
    for path in [
        format!("/sys/class/bdi/{}:{}/read_ahead_kb", mount.major, mount.minor),
        format!("/sys/block/{device}/queue/read_ahead_kb"),
    ] {
        // The value is set after the pool starts to answer requests.
        wait_until(PATIENCE, || of(&path) == "384");
        assert_eq!(of(&path), "384", "{path}");
    }
    pool.umount();
}

/// Some modes keep data cached between opens; changes on the branch invalidate it.
#[test]
fn changes_on_the_branch_invalidate_cached_data() {
    const SIZE: usize = 1 << 20;
    let disks = Disks::new();
    for (cache, again) in
        [("off", true), ("partial", true), ("full", false), ("auto-full", false), ("per-process", true)]
    {
        let mode = Mode::new("off", cache);
        // The kernel asks for attributes at every open, so that it notices changes on the branch.
        let pool = disks.pool(&format!("{mode},cache.attr=0,cache.files.process-names={LISTED}"));
        let file = disks.ext4(&pool).file("f", &[1; SIZE]);
        let read = || {
            let fd = open(&file.pool, OFlags::RDONLY);
            read_at(&fd, 0, SIZE)
        };
        // auto-full keeps the cache only if it has seen the file before.
        assert!(read() == [1; SIZE] && read() == [1; SIZE]);
        let (bytes, content) = pool.bytes_moved(read);
        assert!(content == [1; SIZE]);
        assert_eq!(bytes >= SIZE as u64, again, "{mode}: {bytes} bytes");
        if cache != "full" {
            fs::write(&file.branch, [2; SIZE]).expect("a write");
            assert!(read() == [2; SIZE], "{mode}: stale");
        }
        fs::write(&file.branch, [3; 10]).expect("a write");
        let fd = open(&file.pool, OFlags::RDONLY);
        assert_eq!((size(&fd), read_at(&fd, 0, 20)), (10, vec![3; 10]), "{mode}");
        drop(fd);
        pool.umount();
    }
}
