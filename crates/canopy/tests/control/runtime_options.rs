//! The effect of every option that can be changed while a pool runs.

use super::rig::{BINARY, Connections};
use super::{nfsopenhack, policies, readdir_policy};
use canopy_sys::thread::ioprio::IoPriority;
use canopy_testkit::cmd::{run, wait_until};
use canopy_testkit::files::is_opened;
use canopy_testkit::{LoopFs, PATIENCE, Pool, proc, require_root};
use canopy_testkit::{Paused, PoolBed};
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Mounts a pool over an ext4 with little room, and a tmpfs with more.
fn live() -> PoolBed {
    let builder = Pool::builder(BINARY)
        // With watched branches, a change would also invalidate what is cached.
        .option("minfreespace=0,category.create=ff,cache.attr=0,cache.entry=0,cache.coherence=timeout")
        // The tests count requests as reads of /dev/fuse.
        .option("io-uring=off")
        .env("CANOPY_TEST_RESTS", "1000");
    PoolBed::mount(builder, [LoopFs::ext4(64 << 20), LoopFs::tmpfs(128 << 20)])
}

const MIB: usize = 1 << 20;

fn bytes_moved(bed: &PoolBed, work: impl FnOnce()) -> u64 {
    bed.pool.bytes_moved(work).0
}

/// Asserts that one of several attempts succeeds, since another process may drop caches at any time.
#[track_caller]
fn assert_eventually(what: &str, attempt: impl FnMut() -> bool) {
    assert!(wait_until(PATIENCE, attempt), "never: {what}");
}

/// Options, what their test observes, and the test.
type Row = (&'static [&'static str], &'static str, fn(&PoolBed));

pub(super) const ROWS: &[Row] = &[
    (&["branches"], "names that appear and disappear with a branch", |live| {
        fs::write(live.on(1, "f"), "b").expect("a file");
        live.pool.set("branches", "->");
        assert!(!live.at("f").exists());
        live.pool.set("branches", &format!("+{}", live.on(1, "").display()));
        assert!(live.at("f").exists());
    }),
    (&["keep"], "what canopy move plans", |live| {
        fs::write(live.on(0, "large.keep"), vec![1; MIB]).expect("a file");
        let (file, to) = (live.at("large.keep"), live.on(1, ""));
        let words = ["move".as_ref(), live.pool.path().as_os_str(), file.as_os_str(), "--to".as_ref()];
        let is_planned = || {
            let done = live.pool.command(words.into_iter().chain([to.as_os_str(), "--dry-run".as_ref()]));
            done.stdout.contains(" -> ")
        };
        assert!(is_planned());
        live.pool.set("keep", "*.keep");
        assert!(!is_planned());
        live.pool.set("keep", "");
        fs::remove_file(live.on(0, "large.keep")).expect("a file");
    }),
    (&["branch-timeout"], "the branches that are asked whether they answer", |live| {
        let asked = || [0, 1].into_iter().filter(|branch| is_opened(&live.on(*branch, ""))).count();
        assert_eventually("no branch is asked", || asked() == 0);
        // A branch on a disk, here the ext4, is asked only while operations wait for it.
        for (value, branches) in [("8", 1), ("0", 0), ("8", 1), ("auto", 0)] {
            live.pool.set("branch-timeout", value);
            assert_eventually("each branch without a disk that has a deadline is asked", || {
                asked() == branches
            });
        }
    }),
    (&["minfreespace"], "the branch that gets a new file", |live| {
        live.pool.set("minfreespace", "100M");
        fs::write(live.at("roomy"), "").expect("a file");
        live.pool.set("minfreespace", "0");
        fs::write(live.at("tight"), "").expect("a file");
        assert!(live.on(1, "roomy").exists() && live.on(0, "tight").exists());
    }),
    (&["tiers", "rules"], "the branch that gets a new file", |live| {
        live.pool.set("tiers", &format!("second={}", live.on(1, "").display()));
        live.pool.set("rules", &format!("*.first={}", live.on(0, "").display()));
        ["tiered", "a.first"].iter().for_each(|name| fs::write(live.at(name), "").expect("a file"));
        ["rules", "tiers"].iter().for_each(|option| live.pool.set(option, ""));
        fs::write(live.at("plain"), "").expect("a file");
        assert!(live.on(1, "tiered").exists());
        assert!(live.on(0, "a.first").exists() && live.on(0, "plain").exists());
    }),
    (&["trash"], "what is kept of a file that is removed", |live| {
        let kept = || {
            let done = live.pool.command(["trash".as_ref(), "list".as_ref(), live.pool.path().as_os_str()]);
            done.stdout.matches("rubbish").count()
        };
        for (value, expected) in [("", 0), ("**=1 day|except *.tmp|alarm 1000 in a minute", 1), ("", 1)] {
            live.pool.set("trash", value);
            fs::write(live.at("rubbish"), "text").expect("a file");
            fs::remove_file(live.at("rubbish")).expect("removed");
            assert_eq!(kept(), expected, "trash={value}");
        }
        let kept = (0..2).map(|branch| live.on(branch, ".canopy-trash")).filter(|trash| trash.exists());
        kept.for_each(|trash| fs::remove_dir_all(trash).expect("removed"));
    }),
    (&["read-cache"], "the directory for copies", |live| {
        let ssd = live.on(0, "ssd");
        fs::create_dir(&ssd).expect("a directory");
        live.pool.set("read-cache", &format!("{}=**|when read 9 times in 1 day", ssd.display()));
        assert_eventually("the directory is used", || ssd.join(".canopy-cache").exists());
        assert!(!live.at("ssd/.canopy-cache").exists());
        live.pool.set("read-cache", "");
        fs::remove_dir_all(ssd).expect("removed");
    }),
    (&["cache.memory"], "the kernel forgets a file when others come", |live| {
        let names: Vec<String> = (0..200).map(|number| format!("file{number}")).collect();
        names.iter().for_each(|name| drop(File::create(live.on(0, name)).expect("a file")));
        let walk = || assert!(names.iter().all(|name| live.at(name).exists()));
        // Then it asks for each file once.
        ["cache.entry", "cache.attr"].iter().for_each(|option| live.pool.set(option, "600"));
        walk();
        let usual = bytes_moved(live, walk);
        live.pool.set("cache.memory", "0");
        // Each FORGET comes over /dev/fuse, with a header of 40 bytes if it comes alone, and 16 of its own.
        assert_eventually("forgotten files", || bytes_moved(live, walk) > usual + 16 * names.len() as u64);
        live.pool.set("cache.memory", "auto");
    }),
    (&["cache.statfs"], "a full branch is noticed late, or at once", |live| {
        live.pool.set("minfreespace", "30M");
        live.pool.set("cache.statfs", "3600");
        fs::write(live.at("before"), "").expect("a file");
        let filler = File::create(live.on(0, "filler")).expect("a file");
        rustix::fs::fallocate(&filler, rustix::fs::FallocateFlags::empty(), 0, 40 << 20).expect("room");
        fs::write(live.at("remembered"), "").expect("a file");
        live.pool.set("cache.statfs", "0");
        fs::write(live.at("asked"), "").expect("a file");
        assert!(
            live.on(0, "before").exists()
                && live.on(0, "remembered").exists()
                && live.on(1, "asked").exists()
        );
    }),
    (&["statfs", "statfs-ignore"], "figures of statvfs", |live| {
        fs::create_dir(live.on(0, "only")).expect("mkdir");
        let figures = |path: &str| rustix::fs::statvfs(live.at(path)).expect("statvfs");
        let whole = figures("only");
        live.pool.set("statfs", "full");
        assert!(figures("only").f_blocks * figures("only").f_frsize < 64 << 20);
        live.pool.set("statfs", "base");
        assert_eq!(figures("only").f_blocks, whole.f_blocks);
        live.pool
            .set("branches", &format!("{}=RW:{}=NC", live.on(0, "").display(), live.on(1, "").display()));
        for (ignored, more) in [("none", true), ("nc", false), ("ro", false)] {
            live.pool.set("statfs-ignore", ignored);
            let free = figures("").f_bavail * figures("").f_frsize;
            assert_eq!(free > 100 << 20, more, "{ignored}: {free}");
        }
    }),
    (&["ignorepponrename"], "a rename makes a directory on another branch, or EXDEV", |live| {
        live.pool.set("func.create", "epff");
        fs::create_dir(live.on(1, "dir")).expect("mkdir");
        for (ignored, cloned) in [("false", false), ("true", true)] {
            live.pool.set("ignorepponrename", ignored);
            fs::write(live.on(0, "f"), "").expect("a file");
            let renamed = fs::rename(live.at("f"), live.at("dir/f"));
            assert_eq!(renamed.is_ok(), cloned, "{ignored}: {renamed:?}");
            assert_eq!(live.on(0, "dir/f").exists(), cloned, "{ignored}");
        }
    }),
    (&["func.readdir"], "branches that are read concurrently", |live| {
        for index in 0..50 {
            fs::write(live.on(0, &format!("a{index}")), "").expect("a file");
            fs::write(live.on(1, &format!("b{index}")), "").expect("a file");
        }
        for value in ["cor", "cosr:2", "cor:4:8", "seq"] {
            live.pool.set("func.readdir", value);
            assert_eq!(live.pool.get("func.readdir"), value);
            assert_eq!(fs::read_dir(live.at("")).expect("a listing").count(), 100, "{value}");
        }
        readdir_policy::branches_are_read_in_sequence_or_concurrently();
    }),
    (&["passthrough.io"], "bytes that move through the daemon", |live| {
        fs::write(live.at("f"), vec![1; MIB]).expect("a file");
        live.pool.set("cache.files", "partial");
        for (value, moves, read, write) in [
            ("rw", "true", false, false),
            ("off", "true", true, true),
            ("ro", "true", false, true),
            ("wo", "true", true, false),
            // On so small a disk a passthrough writer could get ENOSPC, and a passthrough reader would keep a file that moves.
            ("auto", "true", true, true),
            ("auto", "false", false, false),
        ] {
            live.pool.set("moveonenospc", moves);
            live.pool.set("passthrough.io", value);
            let reading = bytes_moved(live, || drop(fs::read(live.at("f")).expect("a read")));
            let writing = bytes_moved(live, || fs::write(live.at("f"), vec![2; MIB]).expect("a write"));
            assert_eq!(
                (reading >= MIB as u64, writing >= MIB as u64),
                (read, write),
                "{value}: {reading}, {writing}"
            );
        }
    }),
    (
        &["cache.files", "cache.files.process-names"],
        "bytes that a second read moves through the daemon",
        |live| {
            live.pool.set("passthrough.io", "off");
            fs::write(live.at("f"), vec![1; MIB]).expect("a file");
            let again = |cached: bool, what: &str| {
                assert_eventually(what, || {
                    let mut file = File::open(live.at("f")).expect("open");
                    let mut read = || {
                        file.rewind().expect("rewind");
                        file.read_exact(&mut vec![0; MIB]).expect("a read");
                    };
                    read();
                    (bytes_moved(live, read) < MIB as u64) == cached
                });
            };
            for (value, cached) in [
                ("off", false),
                ("partial", true),
                ("full", true),
                ("per-process", false),
                ("auto-full", true),
            ] {
                live.pool.set("cache.files", value);
                again(cached, value);
            }
            let comm = fs::read_to_string("/proc/thread-self/comm").expect("a name");
            live.pool.set("cache.files", "per-process");
            live.pool.set("cache.files.process-names", &format!("other|{}", comm.trim_end()));
            again(true, "a listed name");
            live.pool.set("cache.files.process-names", "other");
            again(false, "a name that is not listed");
        },
    ),
    (&["cache.attr"], "a change on the branch shows late, or at once", |live| {
        fs::write(live.on(0, "f"), "").expect("a file");
        let mode = || fs::metadata(live.at("f")).expect("stat").mode() & 0o777;
        let change =
            |mode| fs::set_permissions(live.on(0, "f"), fs::Permissions::from_mode(mode)).expect("chmod");
        live.pool.set("cache.entry", "3600");
        live.pool.set("cache.attr", "3600");
        assert_eventually("the attributes are cached", || {
            change(0o600);
            live.pool.set("cmd.invalidate-all-nodes", "");
            let before = mode();
            change(0o644);
            before == 0o600 && mode() == 0o600
        });
        live.pool.set("cache.attr", "0");
        for expected in [0o640, 0o600, 0o644] {
            change(expected);
            assert_eq!(mode(), expected);
        }
    }),
    (&["cache.entry", "cache.negative-entry"], "a name on the branch shows late, or at once", |live| {
        let there = || live.at("f").exists();
        live.pool.set("cache.attr", "3600");
        live.pool.set("cache.entry", "3600");
        live.pool.set("cache.negative-entry", "3600");
        assert_eventually("the dentries are cached", || {
            let _ = fs::remove_file(live.on(0, "f"));
            live.pool.set("cmd.invalidate-all-nodes", "");
            let missing = !there();
            fs::write(live.on(0, "f"), "").expect("a file");
            let negative = missing && !there();
            live.pool.set("cmd.invalidate-all-nodes", "");
            let found = there();
            fs::remove_file(live.on(0, "f")).expect("removal");
            negative && found && there()
        });
        live.pool.set("cache.entry", "0");
        assert!(!there());
        live.pool.set("cache.negative-entry", "0");
        fs::write(live.on(0, "f"), "").expect("a file");
        assert!(there());
        fs::remove_file(live.on(0, "f")).expect("removal");
        assert!(!there());
    }),
    (&["cache.coherence"], "a new name is found at once, or not for an hour", |live| {
        let there = || live.at("f").exists();
        for key in ["cache.attr", "cache.entry", "cache.negative-entry"] {
            live.pool.set(key, "3600");
        }
        let follows = |patience: Duration| {
            let _ = fs::remove_file(live.on(0, "f"));
            live.pool.set("cmd.invalidate-all-nodes", "");
            let missing = !there();
            fs::write(live.on(0, "f"), "").expect("a file");
            missing && wait_until(patience, there)
        };
        for value in ["auto", "timeout", "watch"] {
            live.pool.set("cache.coherence", value);
            let followed = value != "timeout";
            assert_eventually(value, || {
                follows(if followed { PATIENCE } else { Duration::ZERO }) == followed
            });
        }
    }),
    (&["cache.readdir"], "a new entry is listed late, or at once", |live| {
        fs::create_dir(live.on(0, "dir")).expect("mkdir");
        let count = || fs::read_dir(live.at("dir")).expect("a listing").count();
        live.pool.set("cache.attr", "3600");
        live.pool.set("cache.entry", "3600");
        live.pool.set("cache.readdir", "true");
        let mut made = 0;
        assert_eventually("the listing is cached", || {
            live.pool.set("cmd.invalidate-all-nodes", "");
            let before = (count(), count()).1;
            made += 1;
            fs::write(live.on(0, &format!("dir/{made}")), "").expect("a file");
            count() == before
        });
        live.pool.set("cache.readdir", "false");
        for _ in 0..3 {
            made += 1;
            fs::write(live.on(0, &format!("dir/{made}")), "").expect("a file");
            assert_eq!(count(), made);
        }
    }),
    (&["dropcacheonclose"], "cached pages of the branch's file", |live| {
        for (value, dropped) in [("true", true), ("false", false)] {
            live.pool.set("dropcacheonclose", value);
            let mut file = File::create(live.at("f")).expect("a file");
            file.write_all(&vec![1; MIB]).expect("a write");
            file.sync_all().expect("fsync");
            drop(file);
            let pages = || {
                let path = live.on(0, "f").into_os_string();
                run("fincore", ["-n".into(), "-o".into(), "PAGES".into(), path])
                    .trim()
                    .parse::<u32>()
                    .expect("a number")
            };
            if dropped {
                assert_eventually("the pages are dropped", || pages() == 0);
            } else {
                assert_eventually("the pages stay", || {
                    drop(fs::read(live.at("f")).expect("a read"));
                    pages() > 0
                });
            }
        }
    }),
    (&["parallel-direct-writes"], "concurrent writes of several threads", |live| {
        live.pool.set("passthrough.io", "off");
        live.pool.set("cache.files", "off");
        // Programs that other tests start close copies of the descriptor, which would wait, too.
        live.pool.set("flush-on-close", "never");
        let connections = Connections::new();
        for (value, parallel) in [("false", false), ("true", true)] {
            live.pool.set("parallel-direct-writes", value);
            let file = File::create(live.at("f")).expect("a file");
            file.set_len(4 * MIB as u64).expect("a size");
            let paused = Paused::new(live.pool.pid());
            std::thread::scope(|scope| {
                for part in 0..4_u8 {
                    let file = &file;
                    let at = u64::from(part) * MIB as u64;
                    scope.spawn(move || file.write_all_at(&[part; MIB], at).expect("a write"));
                }
                let several = || connections.waiting(&live.pool) > 1;
                let patience = if parallel { PATIENCE } else { Duration::from_millis(200) };
                let seen = wait_until(patience, several);
                drop(paused);
                assert_eq!(seen, parallel, "{value}");
            });
            let content = fs::read(live.on(0, "f")).expect("the branch");
            assert!(content.chunks(MIB).zip(0_u8..).all(|(chunk, part)| chunk == [part; MIB]), "{value}");
        }
    }),
    (&["flush-on-close"], "requests per close", |live| {
        live.pool.set("cache.entry", "3600");
        live.pool.set("cache.attr", "3600");
        fs::write(live.at("f"), "").expect("a file");
        let trace = tempfile::NamedTempFile::new().expect("a file");
        live.pool.set("log.file", &trace.path().display().to_string());
        live.pool.set("debug", "true");
        let flushes = || {
            let count =
                || fs::read_to_string(trace.path()).expect("a trace").matches(" FLUSH unique=").count();
            let before = count();
            // Not for both: what may be stored into through a mapping is flushed.
            for writing in [false, true, true] {
                drop(File::options().read(!writing).write(writing).open(live.at("f")).expect("open"));
            }
            count() - before
        };
        // A written file is flushed only if the branch's filesystem acts on close, as overlayfs does.
        let quiet = live.on(0, "f");
        let quiet = rustix::fs::statfs(&quiet).expect("statfs").f_type as u64 & u64::from(u32::MAX);
        let written = if [0xEF53, 0x5846_5342, 0x9123_683E, 0x0102_1994].contains(&quiet) { 0 } else { 2 };
        for (value, count) in [("never", 0), ("always", 3), ("opened-for-write", written)] {
            live.pool.set("flush-on-close", value);
            assert_eq!(flushes(), count, "{value}");
        }
        live.pool.set("log.file", "");
    }),
    (&["inodecalc"], "inode numbers, to the bit", |live| {
        fs::write(live.on(0, "f"), "").expect("a file");
        let own = fs::metadata(live.on(0, "f")).expect("stat").ino();
        let shown = || fs::metadata(live.at("f")).expect("stat").ino();
        // The kernel knows the directory from before, and holds it.
        fs::create_dir(live.on(0, "numbered")).expect("a directory");
        let dir_own = fs::metadata(live.on(0, "numbered")).expect("stat").ino();
        let held = fs::File::open(live.at("numbered")).expect("a directory");
        for value in [
            "passthrough",
            "path-hash",
            "path-hash32",
            "devino-hash",
            "devino-hash32",
            "hybrid-hash",
            "hybrid-hash32",
            "oldest-hash",
            "oldest-hash32",
        ] {
            live.pool.set("inodecalc", value);
            let calc: canopy_base::inode_number::InodeCalc = value.parse().expect("a name");
            assert_eq!(
                shown(),
                calc.inode(live.disks[0].path().as_os_str().as_encoded_bytes(), b"f", own, false),
                "{value}"
            );
            // By its only copy, which is the oldest.
            let branch = live.disks[0].path().as_os_str().as_encoded_bytes();
            let expected = calc.inode(branch, b"numbered", dir_own, !value.starts_with("oldest"));
            let listed = fs::read_dir(live.at("")).expect("a listing").map(|entry| entry.expect("an entry"));
            let listed = listed
                .filter(|entry| entry.file_name() == "numbered")
                .map(|entry| std::os::unix::fs::DirEntryExt::ino(&entry));
            assert_eq!(listed.collect::<Vec<_>>(), [expected], "{value}");
            assert_eq!(fs::metadata(live.at("numbered")).expect("stat").ino(), expected, "{value}");
            assert_eq!(held.metadata().expect("stat").ino(), expected, "{value}: held");
        }
    }),
    (&["xattr"], "the errno of xattr calls", |live| {
        fs::write(live.on(0, "f"), "").expect("a file");
        let put = || rustix::fs::setxattr(live.at("f"), "user.x", b"1", XattrFlags::empty());
        let mut value = [0; 16];
        let mut take = || rustix::fs::getxattr(live.at("f"), "user.x", &mut value[..]);
        assert_eq!((put(), take()), (Ok(()), Ok(1)));
        live.pool.set("xattr", "noattr");
        assert_eq!((put(), take()), (Err(Errno::NODATA), Err(Errno::NODATA)));
        live.pool.set("xattr", "passthrough");
        assert_eq!((put(), take()), (Ok(()), Ok(1)));
        // After this the kernel does not ask again until the pool is unmounted.
        live.pool.set("xattr", "nosys");
        assert_eq!((put(), take()), (Err(Errno::OPNOTSUPP), Err(Errno::OPNOTSUPP)));
    }),
    (&["security-capability"], "file capabilities, or ENODATA", |live| {
        fs::write(live.on(0, "f"), "").expect("a file");
        let name = "security.capability";
        let capability = [&[0, 0, 0, 2][..], &[1; 4], &[0; 12]].concat();
        rustix::fs::setxattr(live.on(0, "f"), name, &capability, XattrFlags::empty()).expect("a capability");
        let mut value = [0; 64];
        let mut take = || rustix::fs::getxattr(live.at("f"), name, &mut value[..]);
        assert_eq!(take(), Ok(20));
        live.pool.set("security-capability", "false");
        assert_eq!(take(), Err(Errno::NODATA));
        live.pool.set("security-capability", "true");
        assert_eq!(take(), Ok(20));
    }),
    (&["config"], "the values of the file are in force", |live| {
        let file = live.on(1, "setting");
        fs::write(&file, "category.create=mfs\n").expect("a config file");
        live.pool.set("config", &file.display().to_string());
        assert_eq!(live.pool.get("category.create"), "mfs");
        fs::write(live.at("f"), "").expect("a file");
        assert!(live.on(1, "f").exists() && !live.on(0, "f").exists());
    }),
    (&["link-exdev", "rename-exdev"], "a symlink in place of EXDEV", |live| {
        // The directory is on one branch only, and the policy creates none on the other.
        fs::create_dir(live.on(1, "d")).expect("a directory");
        live.pool.set("category.create", "epff");
        fs::write(live.at("f"), "f").expect("a file");
        let refused = |result: std::io::Result<()>| {
            result.is_err_and(|why| why.raw_os_error() == Some(Errno::XDEV.raw_os_error()))
        };
        assert!(refused(fs::hard_link(live.at("f"), live.at("d/l"))));
        live.pool.set("link-exdev", "rel-symlink");
        fs::hard_link(live.at("f"), live.at("d/l")).expect("a symlink in place of a link");
        assert_eq!(fs::read_link(live.at("d/l")).expect("a symlink"), PathBuf::from("../f"));
        assert!(refused(fs::rename(live.at("f"), live.at("d/r"))));
        live.pool.set("rename-exdev", "rel-symlink");
        fs::rename(live.at("f"), live.at("d/r")).expect("a symlink in place of a rename");
        assert_eq!(fs::read_to_string(live.at("d/r")).expect("read"), "f");
    }),
    (&["moveonenospc"], "the branch of a file that outgrows its own", |live| {
        live.pool.set("passthrough.io", "off");
        let free = rustix::fs::statvfs(live.on(0, "")).expect("statvfs");
        let filler = File::create(live.on(0, "filler")).expect("a file");
        let most = free.f_bfree * free.f_frsize - (8 << 20);
        rustix::fs::fallocate(&filler, rustix::fs::FallocateFlags::empty(), 0, most).expect("room");
        for (value, shown, moves) in [
            ("false", "false", false),
            ("true", "pfrd", true),
            ("epff", "epff", true),
            ("erofs", "erofs", false),
        ] {
            live.pool.set("moveonenospc", value);
            assert_eq!(live.pool.get("moveonenospc"), shown);
            let mut file = File::create(live.at("f")).expect("a file");
            assert_eq!(file.write_all(&vec![7; 16 * MIB]).is_ok(), moves, "{value}");
            assert_eq!((live.on(0, "f").exists(), live.on(1, "f").exists()), (!moves, moves), "{value}");
            fs::remove_file(live.at("f")).expect("removal");
        }
    }),
    (&["link-cow"], "the content of the other name after a write", |live| {
        let text = |name: &str| fs::read_to_string(live.at(name)).expect("a file");
        fs::write(live.on(0, "one"), "1").expect("a file");
        for (value, shared) in [("false", true), ("true", false), ("false", true)] {
            live.pool.set("link-cow", value);
            fs::hard_link(live.on(0, "one"), live.on(0, "two")).expect("a link");
            let before = text("one");
            File::options().append(true).open(live.at("two")).expect("open").write_all(b"2").expect("write");
            assert_eq!(text("two"), format!("{before}2"));
            assert_eq!(text("one") == text("two"), shared, "{value}");
            fs::remove_file(live.at("two")).expect("removal");
        }
    }),
    (&["prefer-awake"], "where a file is made while the first disk has nothing to do", |live| {
        let chosen = || {
            let words =
                ["explain".as_ref(), "create".as_ref(), live.pool.path().as_os_str(), "--json".as_ref()];
            let answer = canopy_testkit::cmd::json(&live.pool.command(words));
            (0..2).find(|branch| answer["chosen"][0] == live.disks[*branch].path().to_str().expect("a name"))
        };
        live.pool.set("prefer-awake", "true");
        assert_eventually("the second branch, which is in memory", || chosen() == Some(1));
        fs::write(live.at("f"), "f").expect("a file");
        assert!(live.on(1, "f").exists());
        live.pool.set("prefer-awake", "false");
        assert_eq!(chosen(), Some(0));
    }),
    (&["nfsopenhack"], "an unprivileged daemon opens a read-only file for writing", |_| {
        nfsopenhack::every_value_live()
    }),
    (&["symlinkify", "symlinkify-timeout"], "the type of a name", |live| {
        fs::write(live.on(0, "f"), "f").expect("a file");
        fs::set_permissions(live.on(0, "f"), fs::Permissions::from_mode(0o444)).expect("chmod");
        let is_link = || fs::symlink_metadata(live.at("f")).expect("stat").is_symlink();
        for (timeout, on, link) in [("3600", "true", false), ("-1", "true", true), ("-1", "false", false)] {
            live.pool.set("symlinkify-timeout", timeout);
            live.pool.set("symlinkify", on);
            assert_eq!(is_link(), link, "{timeout} {on}");
        }
    }),
    (&["proxy-ioprio"], "the I/O priority of the daemon's threads", |live| {
        live.pool.set("passthrough.io", "off");
        live.pool.set("cache.files", "off");
        fs::write(live.at("f"), vec![1; MIB]).expect("a file");
        let idle = || {
            let threads = live.pool.threads();
            threads.iter().filter(|thread| IoPriority::of(thread.id as u32) == Ok(IoPriority::IDLE)).count()
        };
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                IoPriority::IDLE.apply().expect("ioprio_set");
                let file = File::open(live.at("f")).expect("open");
                let mut rounds = 0;
                while !stop.load(Ordering::Relaxed) {
                    file.read_exact_at(&mut [0; 4096], 0).expect("a read");
                    rounds += 1;
                }
                rounds
            });
            let watch = || (0..100).map(|_| idle()).max();
            let before = watch();
            live.pool.set("proxy-ioprio", "true");
            let seen = wait_until(PATIENCE, || idle() > 0);
            live.pool.set("proxy-ioprio", "false");
            // Each worker resets its priority at its next request.
            let given_back = wait_until(PATIENCE, || {
                std::thread::scope(|others| {
                    (0..8).for_each(|_| drop(others.spawn(|| fs::metadata(live.at("f")).expect("stat"))));
                });
                idle() == 0
            });
            let after = watch();
            stop.store(true, Ordering::Relaxed);
            assert!(reader.join().expect("the reader") > 0);
            assert_eq!((before, seen, given_back, after), (Some(0), true, true, Some(0)));
        });
    }),
    (&["debug", "log.file"], "the lines in the file", |live| {
        let file = live.on(1, "trace");
        live.pool.set("log.file", &file.display().to_string());
        for (value, traced) in [("false", false), ("true", true)] {
            live.pool.set("debug", value);
            assert!(!live.at(value).exists());
            let text = fs::read_to_string(&file).expect("a trace");
            assert_eq!(text.contains(&format!(" name=\"{value}\"")), traced);
        }
        live.pool.set("log.file", "");
    }),
    (&["uid", "gid", "umask"], "attributes that override those on the branch", |live| {
        live.pool.set("cache.attr", "3600");
        live.pool.set("cache.entry", "3600");
        fs::create_dir(live.on(0, "d")).expect("mkdir");
        fs::write(live.on(0, "d/f"), "").expect("a file");
        fs::set_permissions(live.on(0, "d/f"), fs::Permissions::from_mode(0o4640)).expect("chmod");
        let shown = || {
            let meta = fs::metadata(live.at("d/f")).expect("stat");
            (meta.uid(), meta.gid(), meta.mode())
        };
        assert_eq!(shown(), (0, 0, 0o104_640));
        live.pool.set("uid", "1234");
        assert_eq!(shown(), (1234, 0, 0o104_640));
        live.pool.set("gid", "4321");
        // 0o027
        live.pool.set("umask", "23");
        assert_eq!(shown(), (1234, 4321, 0o100_750));
        assert_eq!(fs::metadata(live.at("d")).expect("stat").mode(), 0o040_750);
        assert_eq!(
            fs::metadata(live.at(".mergerfs")).expect("stat").uid(),
            0,
            "the control file keeps its owner"
        );
        for key in ["uid", "gid", "umask"] {
            live.pool.set(key, "-1");
        }
        assert_eq!(shown(), (0, 0, 0o104_640));
    }),
    (
        &["lazy-umount-mountpoint"],
        "no effect while mounted, by design: the key returns the given value, in force at the next mount",
        |live| {
            // A mounted pool has nothing to detach. The tests of mounting cover the effect at the next mount.
            live.pool.set("lazy-umount-mountpoint", "true");
            assert_eq!(live.pool.get("lazy-umount-mountpoint"), "true");
        },
    ),
    (&["readahead"], "the read-ahead of the devices of pool and branch", |live| {
        let mount = proc::mount_at(live.pool.path()).expect("a mount");
        let disk = live.disks[0]
            .device()
            .and_then(|device| device.file_name())
            .expect("a disk")
            .display()
            .to_string();
        let paths = [
            format!("/sys/class/bdi/{}:{}/read_ahead_kb", mount.major, mount.minor),
            format!("/sys/block/{disk}/queue/read_ahead_kb"),
        ];
        for value in ["384", "512", "0"] {
            live.pool.set("readahead", value);
            // 0 changes nothing.
            let expected = if value == "0" { "512" } else { value };
            for path in &paths {
                assert_eq!(fs::read_to_string(path).expect("a figure").trim_end(), expected, "{path}");
            }
        }
    }),
    (&["follow-symlinks"], "the type of a name", |live| {
        fs::write(live.on(0, "f"), "f").expect("a file");
        std::os::unix::fs::symlink("f", live.on(0, "l")).expect("a symlink");
        let kind = || fs::symlink_metadata(live.at("l")).expect("stat").file_type();
        assert!(kind().is_symlink());
        live.pool.set("follow-symlinks", "regular");
        assert!(kind().is_file());
        live.pool.set("follow-symlinks", "never");
        assert!(kind().is_symlink());
    }),
];

#[test]
fn every_live_option_takes_effect_on_a_running_pool() {
    require_root();
    for (names, _, test) in ROWS {
        let live = live();
        println!("{}", names.join(", "));
        test(&live);
        live.pool.umount();
    }
}

#[test]
fn every_policy_takes_effect_on_a_running_pool() {
    require_root();
    let live = live();
    policies::all(&live);
    live.pool.umount();
}
