//! The effect of every option that is fixed at the mount.

use super::mount_table;
use super::rig::{BINARY, Dirs};
use canopy_testkit::cmd::{run, run_within, wait_until};
use canopy_testkit::files::copy_program;
use canopy_testkit::{LoopFs, PATIENCE, Pool, as_user, proc};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const UNCACHED: &str = "passthrough.io=off,cache.files=off";

/// Options, what their test observes, and the test.
pub(super) type Row = (&'static [&'static str], &'static str, fn());

pub(super) const ROWS: &[Row] = &[
    (&["mountpoint"], "the pool appears there", mountpoint),
    (&["fsname"], "the source in the mount table", fsname),
    (
        &["branches-mount-timeout", "branches-mount-timeout-fail"],
        "a mount with a warning, or no mount, after waiting for a branch",
        branches_mount_timeout,
    ),
    (&["allow-missing-branches"], "a mount without a missing branch, or no mount", allow_missing_branches),
    (&["cache.writeback"], "small writes reach the branch with fsync, not before", writeback),
    (&["cache.symlinks"], "a second readlink sends no request", symlinks),
    (&["passthrough.max-stack-depth"], "files on an overlay use passthrough, or not", stack_depth),
    (&["direct-io-allow-mmap"], "a shared mapping of an uncached file, or ENODEV", allow_mmap),
    (&["async-read"], "what the kernel has agreed to", || agreed("async-read", "async_read")),
    (&["export-support"], "what the kernel has agreed to", || agreed("export-support", "export_support")),
    (&["allow-idmap"], "what the kernel has agreed to", || agreed("allow-idmap", "allow_idmap")),
    (&["handle-killpriv"], "a write clears setuid, and what the kernel has agreed to", || {
        killpriv("handle-killpriv");
    }),
    (&["handle-killpriv-v2"], "a write clears setuid, and what the kernel has agreed to", || {
        killpriv("handle-killpriv-v2");
    }),
    (&["fuse-msg-size"], "the number of requests for a large write", message_size),
    (&["nullrw"], "writes leave nothing on the branch, reads give zeros", nullrw),
    (&["posix-acl"], "a user named in an ACL may read", posix_acl),
    (
        &["kernel-permissions-check", "insecure-no-permission-checks", "default_permissions"],
        "another user is denied access, or not",
        permissions_check,
    ),
    (&["never-forget-nodes"], "no effect by design: a log line says so", never_forget),
    (&["read-thread-count", "process-thread-count"], "threads of the daemon", thread_counts),
    (&["process-thread-queue-depth"], "no effect by design: the key returns the given value", queue_depth),
    (&["pin-threads"], "processors that the threads may use", pin_threads),
    (&["io-uring"], "which threads serve: one for each queue entry, or readers of /dev/fuse", io_uring),
    (&["landlock"], "a branch outside those of the mount is accepted, or refused", landlock),
    (&["survive"], "an open file outlives the process that serves, or not", survive),
    (&["catalogue", "catalogue-size"], "a file without a name is open in the directory, or not", catalogue),
    (&["missing"], "a listing is not whole without a branch that was never read, or is", missing),
    (&["worker-priority"], "whether workers run only on idle processors", worker_priority),
    (&["scheduling-priority"], "the nice value of the threads", scheduling_priority),
    (&["allow_other"], "other users may enter a mount of a user", allow_other),
    (&["max_read"], "in force in the mount table", max_read),
    (
        &["context", "fscontext", "defcontext", "rootcontext"],
        "in force with SELinux; without it the kernel refuses them",
        contexts,
    ),
    (mount_table::NAMES, "flags in force in the mount table", mount_table::every_word),
];

/// Returns the log line about INIT.
fn init_line(pool: &Pool) -> String {
    let log = pool.log();
    let line = log.lines().find(|line| line.contains("FUSE 7.")).expect("a line about INIT");
    line.split("; not offered").next().unwrap_or(line).to_owned()
}

fn agreed(option: &str, flag: &str) {
    let dirs = Dirs::new();
    for on in [true, false] {
        let pool = dirs.pool(&format!("{option}={on}"));
        assert_eq!(init_line(&pool).contains(flag), on, "{option}={on}: {}", init_line(&pool));
        assert_eq!(pool.get(option), on.to_string());
        assert_eq!(pool.try_set(option, "true"), Err(Errno::ROFS));
        pool.umount();
    }
}

/// Mounts a pool that logs its requests to `trace`.
fn traced(dirs: &Dirs, options: &str) -> Pool {
    dirs.pool(&format!("{options},debug=true,log.file={}", dirs.text("trace")))
}

/// Returns how many requests of one kind arrive while `work` runs.
fn requests(dirs: &Dirs, opcode: &str, work: impl FnOnce()) -> usize {
    let count = || {
        let text = fs::read_to_string(dirs.path("trace")).expect("a trace");
        text.matches(&format!(" {opcode} unique=")).count()
    };
    let before = count();
    work();
    count() - before
}

/// Mounts a pool that reads /dev/fuse, with the number of threads that the options set. With io_uring there are threads for
/// each processor.
fn over_the_device(dirs: &Dirs, options: &str) -> Pool {
    dirs.builder(options).env("CANOPY_TEST_KERNEL", "mask:OVER_IO_URING").mount()
}

/// Asserts that one of several attempts succeeds, since another process may drop caches at any time.
#[track_caller]
fn assert_eventually(what: &str, attempt: impl FnMut() -> bool) {
    assert!(wait_until(PATIENCE, attempt), "never: {what}");
}

/// Returns the `/proc` status of each of the daemon's workers.
fn workers(pool: &Pool) -> Vec<String> {
    let threads = pool.threads().into_iter().filter(|thread| thread.name.starts_with("canopy-fuse-"));
    threads.map(|thread| thread.status).collect()
}

fn mountpoint() {
    let dirs = Dirs::new();
    for option in ["mountpoint", "mount"] {
        let options = format!("branches={},{option}={}", dirs.text("a"), dirs.text("c"));
        let done = run_within(Command::new(BINARY).args(["mount", "-o", &options]), PATIENCE);
        let mounted = proc::mount_at(&dirs.path("c")).is_some();
        let ended = run_within(Command::new(BINARY).args(["umount"]).arg(dirs.path("c")), PATIENCE);
        assert!(done.success() && mounted && ended.success(), "{} {}", done.describe(), ended.describe());
    }
}

fn fsname() {
    let dirs = Dirs::new();
    for (option, source) in [("fsname=mine", "mine"), ("", "a:b")] {
        let pool = dirs.pool(option);
        assert_eq!(proc::mount_at(pool.path()).expect("a mount").source, source);
        pool.umount();
    }
}

fn branches_mount_timeout() {
    let dirs = Dirs::new();
    let disk = LoopFs::tmpfs(1 << 20);
    let logged = format!("branch {} is not mounted within 1 s", dirs.text("a"));
    for fail in [false, true] {
        let options = format!("branches-mount-timeout=1,branches-mount-timeout-fail={fail}");
        let pool = Pool::builder(BINARY).branch(disk.path()).branch(dirs.path("a")).option(options);
        match pool.try_mount() {
            Ok(pool) => {
                assert!(!fail && pool.log().contains(&logged), "{}", pool.log());
                pool.umount();
            }
            Err(failed) => assert!(fail && failed.log.contains(&logged), "{}", failed.log),
        }
    }
}

fn allow_missing_branches() {
    let dirs = Dirs::new();
    for (value, mounted) in [("true", true), ("false", false)] {
        let pool = Pool::builder(BINARY).branch(dirs.path("a")).branch(dirs.path("none"));
        match pool.option(format!("allow-missing-branches={value}")).try_mount() {
            Ok(pool) => {
                assert!(mounted && pool.log().contains("/none is not there"), "{}", pool.log());
                pool.umount();
            }
            Err(failed) => assert!(!mounted && failed.log.contains("/none does not exist"), "{}", failed.log),
        }
    }
}

fn writeback() {
    let dirs = Dirs::new();
    for (options, gathered) in [("cache.writeback=true,cache.files=full", true), (UNCACHED, false)] {
        let pool = dirs.pool(&format!("{options},category.create=ff"));
        let mut file = File::create(pool.path().join("f")).expect("a file");
        let mut length = 0;
        let mut held_back = || {
            let before = fs::metadata(dirs.path("a").join("f")).expect("the branch").len();
            file.write_all(b"0123456789").expect("a write");
            length += 10;
            let at_once = fs::metadata(dirs.path("a").join("f")).expect("the branch").len();
            file.sync_all().expect("fsync");
            assert_eq!(fs::metadata(dirs.path("a").join("f")).expect("the branch").len(), length);
            at_once == before
        };
        if gathered {
            assert_eventually("a write is held back", held_back)
        } else {
            (0..5).for_each(|_| assert!(!held_back()))
        }
        drop(file);
        pool.umount();
        fs::remove_file(dirs.path("a").join("f")).expect("removal");
    }
}

fn symlinks() {
    let dirs = Dirs::new();
    std::os::unix::fs::symlink("target", dirs.path("a").join("link")).expect("a symlink");
    for on in [true, false] {
        let pool = traced(&dirs, &format!("cache.symlinks={on},cache.entry=3600,cache.attr=3600"));
        let read =
            || assert_eq!(fs::read_link(pool.path().join("link")).expect("a link"), Path::new("target"));
        let cost = || requests(&dirs, "READLINK", || (0..50).for_each(|_| read()));
        if on {
            assert_eventually("a link is remembered", || cost() == 0)
        } else {
            assert_eq!(cost(), 50)
        }
        pool.umount();
    }
}

fn stack_depth() {
    struct Overlay<'a>(&'a Path);
    impl Drop for Overlay<'_> {
        fn drop(&mut self) {
            run("umount", [self.0]);
        }
    }
    let (dirs, disk) = (Dirs::new(), LoopFs::ext4(64 << 20));
    for name in ["lower", "upper", "work"] {
        fs::create_dir(disk.path().join(name)).expect("a layer");
    }
    let layer = |name: &str| disk.path().join(name).display().to_string();
    let layers = format!("lowerdir={},upperdir={},workdir={}", layer("lower"), layer("upper"), layer("work"));
    let place = dirs.path("a");
    run("mount", ["-t", "overlay", "overlay", "-o", &layers, &dirs.text("a")]);
    let overlay = Overlay(&place);
    fs::write(place.join("f"), vec![1; 1 << 20]).expect("a file");
    let long_ago = std::time::SystemTime::UNIX_EPOCH;
    fs::File::options()
        .append(true)
        .open(place.join("f"))
        .and_then(|f| f.set_modified(long_ago))
        .expect("times");
    for (depth, passed) in [(1, false), (2, true)] {
        let pool = dirs.pool(&format!("passthrough.max-stack-depth={depth},cache.files=off"));
        let before = proc::io_counter(pool.pid(), "rchar");
        assert_eq!(fs::read(pool.path().join("f")).expect("a read").len(), 1 << 20);
        assert_eq!(
            proc::io_counter(pool.pid(), "rchar") - before < 1 << 20,
            passed,
            "{depth}: {}",
            pool.log()
        );
        pool.umount();
    }
    drop(overlay);
}

fn allow_mmap() {
    let dirs = Dirs::new();
    fs::write(dirs.path("a").join("f"), vec![b'x'; 4096]).expect("a file");
    let script = "import mmap, os, sys\nf = os.open(sys.argv[1], os.O_RDWR)\n\
                  try: print(mmap.mmap(f, 4096)[:1])\nexcept OSError as e: print(e.errno)";
    for (allowed, said) in
        [(true, "b'x'\n".to_owned()), (false, format!("{}\n", Errno::NODEV.raw_os_error()))]
    {
        let pool = dirs.pool(&format!("{UNCACHED},direct-io-allow-mmap={allowed}"));
        let path = pool.path().join("f");
        assert_eq!(run("python3", ["-c".as_ref(), script.as_ref(), path.as_os_str()]), said);
        pool.umount();
    }
}

fn killpriv(option: &str) {
    let dirs = Dirs::new();
    for on in [true, false] {
        let pool = dirs.pool(&format!("{option}={on},{UNCACHED},category.create=ff"));
        assert_eq!(
            init_line(&pool).contains("handle_killpriv_v2"),
            on,
            "{option}={on}: {}",
            init_line(&pool)
        );
        let path = pool.path().join("f");
        File::create(&path).expect("a file");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o4777)).expect("chmod");
        let done =
            run_within(as_user(4242, 4242, &[], "sh").args(["-c", "echo x >> \"$0\""]).arg(&path), PATIENCE);
        assert!(done.success(), "{}", done.describe());
        assert_eq!(
            fs::metadata(dirs.path("a").join("f")).expect("stat").mode() & 0o7777,
            0o777,
            "{option}={on}"
        );
        pool.umount();
    }
}

fn message_size() {
    let dirs = Dirs::new();
    // Unaligned data needs one more request.
    for (size, counts) in [("64K", 16..=17), ("1M", 1..=2)] {
        let pool = traced(&dirs, &format!("{UNCACHED},fuse-msg-size={size}"));
        let mut file = File::create(pool.path().join("f")).expect("a file");
        let cost = requests(&dirs, "WRITE", || file.write_all(&[1; 1 << 20]).expect("a write"));
        assert!(counts.contains(&cost), "{size}: {cost} requests");
        drop(file);
        pool.umount();
    }
}

fn nullrw() {
    let dirs = Dirs::new();
    fs::write(dirs.path("a").join("f"), "content").expect("a file");
    let pool = dirs.pool("nullrw=true,cache.files=off");
    let file = File::options().read(true).write(true).open(pool.path().join("f")).expect("open");
    let mut read = [1; 7];
    assert_eq!((file.read_at(&mut read, 0).expect("a read"), read), (7, [0; 7]));
    file.write_all_at(b"CONTENT", 0).expect("a write");
    drop(file);
    assert_eq!(fs::read_to_string(dirs.path("a").join("f")).expect("the branch"), "content");
    pool.umount();
}

fn reads(pool: &Pool, name: &str) -> bool {
    run_within(as_user(4242, 4242, &[], "cat").arg(pool.path().join(name)), PATIENCE).success()
}

fn posix_acl() {
    let disk = LoopFs::ext4(32 << 20);
    let file = disk.path().join("f");
    File::options().write(true).create(true).truncate(true).mode(0o600).open(&file).expect("a file");
    run("setfacl", ["-m".as_ref(), "u:4242:r".as_ref(), file.as_os_str()]);
    for on in [true, false] {
        let pool = Pool::builder(BINARY).branch(disk.path()).option(format!("posix-acl={on}")).mount();
        assert_eq!(reads(&pool, "f"), on, "posix-acl={on}");
        pool.umount();
    }
}

fn permissions_check() {
    let dirs = Dirs::new();
    let file = dirs.path("a").join("f");
    File::options().write(true).create(true).truncate(true).mode(0o600).open(&file).expect("a file");
    for (options, let_in) in [
        ("kernel-permissions-check=true", false),
        // The kernel keeps checking, since otherwise nothing would.
        ("kernel-permissions-check=false", false),
        ("kernel-permissions-check=false,posix-acl=true", false),
        ("kernel-permissions-check=false,allow_other", false),
        ("kernel-permissions-check=false,default_permissions", false),
        ("insecure-no-permission-checks=true", true),
        ("insecure-no-permission-checks=true,kernel-permissions-check=false,posix-acl=true", true),
    ] {
        let pool = dirs.pool(options);
        assert_eq!(reads(&pool, "f"), let_in, "{options}");
        let logged = pool.log().contains("every user");
        assert_eq!(
            logged,
            options != "kernel-permissions-check=true" && !options.contains("default_"),
            "{options}"
        );
        assert_eq!(pool.get("kernel-permissions-check"), (!let_in).to_string(), "{options}");
        pool.umount();
    }
}

fn never_forget() {
    let dirs = Dirs::new();
    for given in [true, false] {
        let pool = dirs.pool(&format!("never-forget-nodes={given}"));
        assert_eq!(pool.umount().contains("never-forget-nodes has no effect"), given);
    }
}

fn thread_counts() {
    let dirs = Dirs::new();
    for (options, count) in
        [("read-thread-count=3", 3), ("threads=5", 5), ("read-thread-count=2,process-thread-count=6", 6)]
    {
        let pool = over_the_device(&dirs, options);
        assert!(
            wait_until(PATIENCE, || workers(&pool).len() == count),
            "{options}: {}",
            workers(&pool).len()
        );
        pool.umount();
    }
}

fn queue_depth() {
    let dirs = Dirs::new();
    for (option, depth) in [("", "2"), ("process-thread-queue-depth=7", "7")] {
        let pool = dirs.pool(option);
        assert_eq!(pool.get("process-thread-queue-depth"), depth);
        pool.umount();
    }
}

fn pin_threads() {
    let dirs = Dirs::new();
    let pool = over_the_device(&dirs, "pin-threads=RP1L,read-thread-count=3");
    let alone = |status: &String| {
        let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:\t"));
        list.is_some_and(|list| list.parse::<u32>().is_ok())
    };
    assert!(wait_until(PATIENCE, || workers(&pool).iter().filter(|status| alone(status)).count() == 3));
    pool.umount();
}

fn io_uring() {
    let dirs = Dirs::new();
    let offered = fs::exists("/sys/module/fuse/parameters/enable_uring").unwrap_or(false);
    for (mode, rings) in [("auto", offered), ("on", offered), ("off", false)] {
        let pool = dirs.pool(&format!("io-uring={mode}"));
        let names = || -> Vec<String> { pool.threads().into_iter().map(|thread| thread.name).collect() };
        // A thread sets its name when it starts. With io_uring, one thread still reads the requests that stay on /dev/fuse.
        let as_asked = || {
            let names = names();
            let serving = |kind: &str| names.iter().filter(|name| name.starts_with(kind)).count();
            (serving("canopy-q") > 1) == rings && (serving("canopy-fuse-") == 1) == rings
        };
        assert!(wait_until(PATIENCE, as_asked), "{mode}: {:?}", names());
        pool.umount();
    }
}

fn landlock() {
    let dirs = Dirs::new();
    for (on, taken) in [("true", Err(Errno::XDEV)), ("false", Ok(()))] {
        let pool = dirs.pool(&format!("landlock={on}"));
        fs::write(pool.path().join("f"), "x").expect("a write");
        assert_eq!(pool.try_set("branches", &format!("+>{}", dirs.text("c"))), taken, "{on}");
        pool.umount();
    }
}

fn catalogue() {
    let dirs = Dirs::new();
    let store = dirs.text("store");
    for (options, keeps) in [
        (format!("catalogue={store}"), true),
        (format!("catalogue={store},catalogue-size=0"), false),
        ("catalogue=off".into(), false),
    ] {
        let pool = dirs.pool(&options);
        let open = fs::read_dir(format!("/proc/{}/fd", pool.pid())).expect("the daemon runs");
        let in_store =
            |link: PathBuf| link.starts_with(&store) && link.to_string_lossy().ends_with(" (deleted)");
        let kept = open.flatten().any(|entry| fs::read_link(entry.path()).is_ok_and(in_store));
        assert_eq!(kept, keeps, "{options}");
        pool.umount();
    }
}

fn missing() {
    let dirs = Dirs::new();
    for (value, whole) in [("remember", false), ("hide", true)] {
        let never = dirs.text("never");
        let options = format!("allow-missing-branches=true,missing={value},catalogue={}", dirs.text("store"));
        let pool = Pool::builder(env!("CARGO_BIN_EXE_canopy"))
            .option(options)
            .branch(dirs.text("a"))
            .branch(&never)
            .mount();
        let whole_listing = fs::read_dir(pool.path()).expect("a directory").all(|entry| entry.is_ok());
        assert_eq!(whole_listing, whole, "{value}");
        pool.umount();
    }
}

fn survive() {
    let dirs = Dirs::new();
    for on in [true, false] {
        let mut pool = dirs.pool(&format!("survive={on},{UNCACHED}"));
        // The mount is there a moment before another process would take over.
        assert!(wait_until(PATIENCE, || pool.log().contains(" is on ")), "{}", pool.log());
        fs::write(pool.path().join("f"), "x").expect("a write");
        let open = File::open(pool.path().join("f")).expect("a file");
        let survives = pool.status()["survival"].is_object();
        if survives {
            run("kill", ["-KILL", &pool.pid().to_string()]);
        } else {
            pool.kill();
        }
        assert_eq!((survives, open.read_at(&mut [0], 0).is_ok()), (on, on));
    }
}

fn worker_priority() {
    /// SCHED_IDLE (sched(7)), the 41st field of /proc/PID/stat.
    const IDLE: &str = "5";
    let is_low = |pool: &Pool, id: i32| {
        let stat = fs::read_to_string(format!("/proc/{}/task/{id}/stat", pool.pid())).unwrap_or_default();
        stat.rsplit_once(')').is_some_and(|(_, rest)| rest.split_whitespace().nth(38) == Some(IDLE))
    };
    let dirs = Dirs::new();
    for (word, low) in [("normal", false), ("auto", true)] {
        let pool = dirs.pool(&format!("worker-priority={word}"));
        let lowered = || {
            // A request now and then: it needs some, and room on the processors.
            fs::write(pool.path().join(word), "x").expect("a write");
            fs::remove_file(pool.path().join(word)).expect("a removal");
            pool.threads().iter().any(|thread| is_low(&pool, thread.id))
        };
        let idle = || {
            let stat = fs::read_to_string("/proc/stat").expect("/proc/stat");
            let figures = stat.lines().next().expect("a line").split_whitespace().skip(1);
            let figures: Vec<u64> = figures.map(|figure| figure.parse().expect("a number")).collect();
            (figures[3] + figures[4], figures.iter().sum::<u64>())
        };
        let before = idle();
        let found = wait_until(if low { PATIENCE } else { Duration::from_secs(1) }, lowered);
        let after = idle();
        // Without room on the processors, `auto` is as `normal`.
        let room = (after.0 - before.0) * 2 > after.1 - before.1;
        assert!(found == low || (low && !room), "{word}: {:?}", pool.threads());
        pool.umount();
    }
}

fn scheduling_priority() {
    let dirs = Dirs::new();
    for nice in [3, 7] {
        let pool = dirs.pool(&format!("scheduling-priority={nice}"));
        assert!(pool.threads().iter().all(|thread| thread.nice == nice), "{:?}", pool.threads());
        pool.umount();
    }
}

fn allow_other() {
    const SCRIPT: &str = r#"
        mkdir "$1/dev"; mount -t tmpfs none "$1/dev"; mknod "$1/dev/fuse" c 10 229; chmod 666 "$1/dev/fuse"
        mount --bind "$1/dev/fuse" /dev/fuse
        echo user_allow_other > "$1/fuse.conf"; mount --bind "$1/fuse.conf" /etc/fuse.conf
        for option in minfreespace=0 allow_other; do
            setpriv --reuid=65534 --regid=65534 --clear-groups "$1/canopy" mount -o $option "$1/a" "$1/b"
            if ls "$1/b" > "$1/listed" 2>&1; then echo $option in; else echo $option out; fi
            umount "$1/b"
        done"#;
    let dirs = Dirs::new();
    for name in ["a", "b"] {
        std::os::unix::fs::chown(dirs.path(name), Some(65534), Some(65534)).expect("chown");
    }
    copy_program(BINARY, dirs.path("canopy"));
    let mut command = Command::new("unshare");
    let done = run_within(command.args(["-m", "sh", "-euc", SCRIPT, "sh"]).arg(dirs.path("")), PATIENCE);
    assert_eq!(done.stdout, "minfreespace=0 out\nallow_other in\n", "{}", done.describe());
}

fn max_read() {
    let dirs = Dirs::new();
    let pool = dirs.pool("max_read=8192");
    assert!(
        mount_table::in_force(&pool).contains(&"max_read=8192".to_owned()),
        "{:?}",
        mount_table::in_force(&pool)
    );
    pool.umount();
}

fn contexts() {
    let dirs = Dirs::new();
    let selinux = Path::new("/sys/fs/selinux/enforce").exists();
    for word in ["context", "fscontext", "defcontext", "rootcontext"] {
        let context = format!("{word}=system_u:object_r:tmp_t:s0");
        match dirs.builder(&context).try_mount() {
            Ok(pool) => {
                assert!(
                    selinux && mount_table::in_force(&pool).iter().any(|option| option.starts_with(word)),
                    "{word}"
                );
                pool.umount();
            }
            Err(failed) => assert!(!selinux && failed.log.contains("Invalid argument"), "{}", failed.log),
        }
    }
}
