//! The program as people meet it: its mistakes, its start, its ends. Real mounts, so root is needed.

use canopy_testkit::cmd::{Finished, run_within, wait_until, wait_within};
use canopy_testkit::{ScratchDir, as_user, proc};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(20);

/// A directory with two branches and a mountpoint, and the promise that nothing of it is left in use.
struct Bed(ScratchDir);

impl std::ops::Deref for Bed {
    type Target = ScratchDir;
    fn deref(&self) -> &ScratchDir {
        &self.0
    }
}

impl Bed {
    fn new() -> Bed {
        Bed(ScratchDir::new("canopy-cli-", &["a", "b", "p"]))
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    /// `canopy ARGS`, where `@name` stands for a path of this bed.
    fn command(&self, args: &str) -> Command {
        let mut command = Command::new(binary());
        command.args(self.words(args));
        command.current_dir(self.dir()).env_remove("CANOPY_LOG").env_remove("RUST_LOG");
        command
    }

    #[track_caller]
    fn canopy(&self, args: &str) -> Finished {
        run_within(&mut self.command(args), SOON)
    }

    #[track_caller]
    fn ok(&self, args: &str) -> Finished {
        let done = self.canopy(args);
        assert!(done.success(), "canopy {args}: {}", done.describe());
        done
    }

    /// Runs what must fail, and returns its one line.
    #[track_caller]
    fn mistake(&self, args: &str) -> String {
        self.refused(&mut self.command(args))
    }

    #[track_caller]
    fn refused(&self, command: &mut Command) -> String {
        let before = self.mounts();
        let done = run_within(command, SOON);
        assert!(matches!(done.code(), Some(1 | 2)), "{command:?}: {}", done.describe());
        assert_eq!(done.stdout, "", "{command:?}");
        let lines: Vec<&str> = done.stderr.lines().collect();
        assert_eq!(lines.len(), 1, "{command:?}: {}", done.describe());
        assert!(lines[0].starts_with("canopy: "), "{}", lines[0]);
        assert_eq!(self.mounts(), before, "{command:?}");
        lines[0].to_owned()
    }

    fn mounts(&self) -> Vec<(PathBuf, u32)> {
        let below = |mount: &proc::Mount| mount.point.starts_with(self.dir());
        proc::mounts().into_iter().filter(below).map(|mount| (mount.point, mount.minor)).collect()
    }

    fn mounted(&self) -> bool {
        proc::mount_at(&self.path("p")).is_some()
    }

    /// The daemons that serve something of this bed.
    fn daemons(&self) -> Vec<i32> {
        let named = |process: &proc::Process| {
            process.name == "canopy"
                && (process
                    .args
                    .iter()
                    .any(|arg| arg.to_string_lossy().contains(self.dir().to_str().unwrap()))
                    || fs::read_link(format!("/proc/{}/cwd", process.pid)).is_ok_and(|cwd| cwd == self.dir()))
        };
        proc::processes().into_iter().filter(named).map(|process| process.pid).collect()
    }

    /// Starts a pool in the foreground, with its log in a file.
    #[track_caller]
    fn foreground(&self, args: &str) -> Child {
        let log = fs::File::create(self.path("log")).unwrap();
        let mut command = self.command(&format!("mount -f {args}"));
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap();
        let up = wait_until(SOON, || self.mounted() || child.try_wait().unwrap().is_some());
        assert!(up && self.mounted(), "{}", self.log());
        // Served, not only mounted.
        fs::metadata(self.path("p")).unwrap();
        child
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    #[track_caller]
    fn umount(&self) {
        self.ok("umount @p");
        assert!(!self.mounted());
        assert!(wait_until(SOON, || self.daemons().is_empty()), "{:?}", self.daemons());
    }
}

fn binary() -> PathBuf {
    canopy_testkit::program_under_test(env!("CARGO_BIN_EXE_canopy"))
}

fn signal(pid: u32, name: &str) {
    let done = run_within(Command::new("kill").args(["-s", name, &pid.to_string()]), SOON);
    assert!(done.success(), "{}", done.describe());
}

#[track_caller]
fn ends_well(child: &mut Child, within: Duration) {
    let status = wait_within(child, within);
    if status.is_none() {
        let _ = child.kill();
        let _ = child.wait();
    }
    assert_eq!(status.and_then(|status| status.code()), Some(0), "{status:?}");
}

fn shell(script: &str, args: &[&OsStr]) -> Command {
    let mut command = Command::new("sh");
    command.args(["-ec", script, "sh"]).args(args);
    command
}

#[test]
fn every_mistake_is_one_line_with_culprit_and_mend() {
    let bed = Bed::new();
    fs::write(bed.path("file"), "").unwrap();
    fs::create_dir(bed.path("a/inner")).unwrap();
    symlink(bed.path("p"), bed.path("link")).unwrap();
    let table: &[(&str, &[&str])] = &[
        ("frob", &["frob", "--help"]),
        ("mount --frob @a @p", &["--frob"]),
        ("umount", &["MOUNTPOINT"]),
        ("mount", &["no branch", "BRANCH"]),
        ("mount @p", &["no branch"]),
        ("mount -o branches=@a", &["no mountpoint"]),
        ("mount @none @p", &["/none does not exist", "mkdir -p"]),
        ("mount @a:@none @p", &["/none does not exist"]),
        ("mount @none* @p", &["branch", "/none* matches no directory"]),
        ("mount @file @p", &["/file is not a directory"]),
        ("mount @a:: @p", &["branches", "empty"]),
        ("mount @a=XX @p", &["XX", "RW, RO or NC"]),
        ("mount @a=RW,many @p", &["many", "size"]),
        ("mount @a @none", &["mountpoint", "/none does not exist", "mkdir -p"]),
        ("mount @a @file", &["mountpoint", "/file is not a directory"]),
        ("mount @a @a", &["is the mountpoint itself"]),
        ("mount @p @link", &["is the mountpoint itself"]),
        ("mount @a @a/inner", &["lies inside branch", "outside"]),
        ("mount @b:@a @a/inner", &["lies inside branch", "/a,"]),
        ("mount @a/inner @a", &["lies inside mountpoint", "another mountpoint"]),
        ("mount / @p", &["lies inside branch /"]),
        ("mount -o cache.file=off @a @p", &["unknown option 'cache.file'", "'cache.files'"]),
        ("mount -o auto_unmount @a @p", &["unknown option 'auto_unmount'"]),
        ("mount -o ro,cache.files=fulll @a @p", &["'fulll'", "per-process", "'full'"]),
        ("mount -o minfreespace=1P @a @p", &["minfreespace", "1P", "K, M, G or T"]),
        ("mount -o func.create=best @a @p", &["func.create", "best", "mfs"]),
        ("mount -o ro=1 @a @p", &["ro takes no value"]),
        ("mount -o max_read=a @a @p", &["max_read", "must be a number of bytes"]),
        ("mount -o context=x @a @p", &["Invalid argument", "SELinux", "fsname"]),
        ("mount -o nullrw @a @p", &["nullrw", "true or false"]),
        ("umount @p", &["/p is not mounted"]),
        ("umount @none", &["/none is not mounted"]),
        ("umount /proc", &["/proc", "proc", "umount"]),
    ];
    for (args, needles) in table {
        let line = bed.mistake(args);
        for needle in *needles {
            assert!(line.contains(needle), "canopy {args}: no {needle:?} in {line:?}");
        }
        // In the foreground it is no different.
        if let Some(rest) = args.strip_prefix("mount ") {
            assert_eq!(bed.mistake(&format!("mount -f {rest}")), line);
        }
    }
    for (variable, value) in [("CANOPY_LOG", "info,[["), ("CANOPY_TEST_KERNEL", "major:8")] {
        let line = bed.refused(bed.command("mount @a @p").env(variable, value));
        assert!(line.contains(variable) && line.contains(value), "{line}");
    }
}

#[test]
fn a_bind_mount_of_the_mountpoint_is_no_branch() {
    let bed = Bed::new();
    let script = r#"mount --bind "$1/p" "$1/a"; exec "$2" mount "$1/a" "$1/p""#;
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-ec", script, "sh"]).arg(bed.dir()).arg(binary());
    let line = bed.refused(&mut command);
    assert!(line.contains("is the mountpoint itself"), "{line}");
}

#[test]
fn a_loop_over_shared_mounts_is_seen() {
    let bed = Bed::new();
    let script = r#"mount -t tmpfs none "$1/a"; mount --make-shared "$1/a"; mkdir "$1/a/m"
        mount --bind "$1/a" "$1/b"; exec "$2" mount "$1/b" "$1/a/m""#;
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-ec", script, "sh"]).arg(bed.dir()).arg(binary());
    let line = bed.refused(&mut command);
    assert!(line.contains("lies inside branch"), "{line}");
}

#[test]
fn help_version_and_options_are_no_mistakes() {
    let bed = Bed::new();
    for (args, needle) in [
        ("--help", "mount"),
        ("mount --help", "BRANCH"),
        ("umount --help", "--lazy"),
        ("--version", env!("CARGO_PKG_VERSION")),
        ("options", "passthrough.io=auto"),
    ] {
        let done = bed.ok(args);
        assert!(done.stdout.contains(needle) && done.stderr.is_empty(), "{args}: {}", done.describe());
    }
}

#[test]
fn the_daemon_is_usable_when_the_command_returns() {
    let bed = Bed::new();
    for cycle in 0..20 {
        let done = bed.ok("mount -o minfreespace=0 @a:@b @p");
        assert_eq!((done.stdout.as_str(), done.stderr.as_str()), ("", ""), "cycle {cycle}");
        let name = format!("file{cycle}");
        fs::write(bed.path("p").join(&name), &name).unwrap_or_else(|error| panic!("cycle {cycle}: {error}"));
        bed.umount();
        let found: Vec<_> =
            ["a", "b"].iter().filter(|branch| bed.path(branch).join(&name).exists()).collect();
        assert_eq!(found.len(), 1, "cycle {cycle}");
        assert_eq!(fs::read_to_string(bed.path(found[0]).join(&name)).unwrap(), name);
    }
}

#[test]
fn the_daemon_has_left_everything_of_the_caller() {
    let bed = Bed::new();
    bed.ok("mount a:b p");
    let daemons = bed.daemons_of_relative();
    assert_eq!(daemons.len(), 1, "{daemons:?}");
    let pid = daemons[0];
    assert_eq!(fs::read_link(format!("/proc/{pid}/cwd")).unwrap(), Path::new("/"));
    for fd in 0..3 {
        assert_eq!(fs::read_link(format!("/proc/{pid}/fd/{fd}")).unwrap(), Path::new("/dev/null"), "{fd}");
    }
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let session: i32 = stat.rsplit_once(')').unwrap().1.split_whitespace().nth(3).unwrap().parse().unwrap();
    assert_eq!(session, pid, "a session of its own");
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    assert!(status.lines().any(|line| line == "Umask:\t0000"), "{status}");
    // Not every root may: a container can lack the capability.
    if shell("echo -990 > /proc/self/oom_score_adj", &[]).stderr(Stdio::null()).status().unwrap().success() {
        assert_eq!(fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap().trim(), "-990");
    }
    bed.ok("umount p");
    assert!(wait_until(SOON, || proc::process(pid).is_none()));
}

impl Bed {
    /// Daemons whose paths were relative are found by what they serve.
    fn daemons_of_relative(&self) -> Vec<i32> {
        let minor = proc::mount_at(&self.path("p")).map(|mount| mount.minor);
        let serves = |pid: i32| {
            fs::read_dir(format!("/proc/{pid}/fdinfo")).into_iter().flatten().flatten().any(|entry| {
                fs::read_to_string(entry.path()).is_ok_and(|info| {
                    info.lines()
                        .filter_map(|line| line.strip_prefix("fuse_connection:"))
                        .any(|number| number.trim().parse().ok() == minor)
                })
            })
        };
        proc::processes().into_iter().map(|process| process.pid).filter(|pid| serves(*pid)).collect()
    }
}

#[test]
fn every_way_to_end_a_pool_ends_it() {
    let bed = Bed::new();
    let point = bed.path("p");
    type Way<'a> = (&'a str, Box<dyn Fn(&Child) + 'a>);
    let run = |program: &'static str, args: &'static [&'static str]| {
        let point = point.clone();
        move |_: &Child| {
            let done = run_within(Command::new(program).args(args).arg(&point), SOON);
            assert!(done.success(), "{program}: {}", done.describe());
        }
    };
    let ways: Vec<Way<'_>> = vec![
        ("SIGTERM", Box::new(|child| signal(child.id(), "TERM"))),
        ("SIGINT", Box::new(|child| signal(child.id(), "INT"))),
        ("SIGQUIT", Box::new(|child| signal(child.id(), "QUIT"))),
        ("umount", Box::new(run("umount", &[]))),
        ("umount -l", Box::new(run("umount", &["-l"]))),
        ("fusermount3 -u", Box::new(run("fusermount3", &["-u"]))),
        ("canopy umount", Box::new(|_| drop(bed.ok("umount @p")))),
        ("canopy umount --lazy", Box::new(|_| drop(bed.ok("umount --lazy @p")))),
    ];
    for (name, end) in &ways {
        let mut child = bed.foreground("@a:@b @p");
        end(&child);
        eprintln!("{name}");
        ends_well(&mut child, SOON);
        assert!(!bed.mounted(), "{name}");
        // The same for a daemon, which nobody waits for.
        bed.ok("mount @a:@b @p");
        let daemons = bed.daemons();
        assert_eq!(daemons.len(), 1, "{name}");
        match name.strip_prefix("SIG") {
            Some(signal_name) => signal(u32::try_from(daemons[0]).unwrap(), signal_name),
            None => end(&child),
        }
        assert!(wait_until(SOON, || bed.daemons().is_empty()), "{name}");
        assert!(!bed.mounted(), "{name}");
    }
}

#[test]
fn other_signals_change_nothing() {
    let bed = Bed::new();
    let mut child = bed.foreground("@a:@b @p");
    let named =
        ["HUP", "USR1", "USR2", "PIPE", "XFSZ", "ALRM", "VTALRM", "PROF", "XCPU", "IO", "PWR", "STKFLT"];
    let real_time = (34..=64).map(|number| number.to_string());
    for name in named.map(str::to_owned).into_iter().chain(real_time) {
        signal(child.id(), &name);
    }
    std::thread::sleep(Duration::from_millis(200));
    assert!(child.try_wait().unwrap().is_none());
    fs::metadata(bed.path("p")).unwrap();
    signal(child.id(), "TERM");
    ends_well(&mut child, SOON);
}

/// Keeps the pool in use until it is dropped.
struct Inside(Child);

impl Inside {
    fn new(dir: &Path) -> Inside {
        let child = Command::new("sleep").arg("60").current_dir(dir).spawn().unwrap();
        Inside(child)
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_pool_in_use_is_not_taken_away_unless_asked() {
    let bed = Bed::new();
    let mut child = bed.foreground("@a:@b @p");
    let inside = Inside::new(&bed.path("p"));
    let line = bed.mistake("umount @p");
    assert!(line.contains("is in use") && line.contains("--lazy"), "{line}");
    assert!(bed.mounted());
    bed.ok("umount --lazy @p");
    assert!(!bed.mounted());
    assert!(child.try_wait().unwrap().is_none(), "it serves those who are inside");
    drop(inside);
    ends_well(&mut child, SOON);
}

#[test]
fn a_signal_ends_a_pool_in_use_after_a_grace() {
    let bed = Bed::new();
    let mut child = bed.foreground("@a:@b @p");
    let _inside = Inside::new(&bed.path("p"));
    let start = Instant::now();
    signal(child.id(), "TERM");
    assert!(wait_until(Duration::from_secs(3), || !bed.mounted()), "gone from the tree at once");
    ends_well(&mut child, Duration::from_secs(8));
    assert!(start.elapsed() > Duration::from_secs(3), "there was no grace: {:?}", start.elapsed());
    assert!(bed.log().contains("is in use"), "{}", bed.log());
}

#[test]
fn a_second_signal_does_not_wait() {
    let bed = Bed::new();
    let mut child = bed.foreground("@a:@b @p");
    let _inside = Inside::new(&bed.path("p"));
    signal(child.id(), "INT");
    assert!(wait_until(Duration::from_secs(3), || !bed.mounted()));
    signal(child.id(), "INT");
    ends_well(&mut child, Duration::from_secs(3));
}

#[test]
fn a_dead_mount_is_replaced() {
    let bed = Bed::new();
    bed.ok("mount @a:@b @p");
    for round in 0..2 {
        let daemons = bed.daemons();
        assert_eq!(daemons.len(), 1);
        signal(u32::try_from(daemons[0]).unwrap(), "KILL");
        assert!(wait_until(SOON, || bed.daemons().is_empty()));
        assert!(bed.mounted(), "the kernel keeps a mount without its server");
        let done = bed.ok("mount @a:@b @p");
        assert!(
            done.stderr.contains("dead mount") && done.stderr.lines().count() == 1,
            "{}",
            done.describe()
        );
        fs::read_dir(bed.path("p")).unwrap_or_else(|error| panic!("round {round}: {error}"));
        assert_eq!(bed.mounts().len(), 1);
    }
    bed.umount();
}

#[test]
fn a_dead_mount_can_be_unmounted_and_is_no_branch() {
    let bed = Bed::new();
    fs::create_dir(bed.path("q")).unwrap();
    bed.ok("mount @a:@b @p");
    signal(u32::try_from(bed.daemons()[0]).unwrap(), "KILL");
    assert!(wait_until(SOON, || bed.daemons().is_empty()));
    let line = bed.mistake("mount @p @q");
    assert!(line.contains("server is gone") && line.contains("umount -l"), "{line}");
    for asked in ["get @p category.create", "explain create @p/film", "explain getattr @p", "fsck @p"] {
        let done = run_within(&mut bed.command(asked), SOON);
        assert!(!done.success() && done.stderr.lines().count() == 1, "{}", done.describe());
        assert!(done.stderr.contains("has ended (canopy umount "), "{asked}: {}", done.stderr);
    }
    bed.umount();
}

#[test]
fn what_is_odd_is_told_and_still_mounted() {
    let bed = Bed::new();
    fs::create_dir(bed.path("a/inner")).unwrap();
    let table = [
        ("@a:@a", "given twice"),
        ("@a:@a/inner", "lies inside branch"),
        ("-o minfreespace=1000T @a:@b=RO", "so nothing can be created"),
        ("-o passthrough.io=rw,cache.writeback=true @a", "excludes cache.writeback"),
        ("-o threads=100000,fsname= @a", "there are 1024"),
    ];
    for (args, needle) in table {
        let done = bed.ok(&format!("mount {args} @p"));
        assert!(done.stderr.contains(needle) && done.stderr.lines().count() == 1, "{}", done.describe());
        bed.umount();
    }
}

#[test]
fn the_mount_shows_what_it_was_told() {
    let bed = Bed::new();
    let mount = |args: &str| {
        bed.ok(&format!("mount {args}"));
        let mount = proc::mount_at(&bed.path("p")).unwrap();
        bed.umount();
        mount
    };
    let plain = mount("@a:@b @p");
    assert_eq!((plain.kind.as_str(), plain.source.as_str()), ("fuse.canopy", "a:b"));
    for word in ["rw", "nosuid", "nodev"] {
        assert!(plain.options.split(',').any(|option| option == word), "{}", plain.options);
    }
    let told = mount("-o ro,suid,dev,noexec,noatime,fsname=mine,mountpoint=@p @a @b");
    assert_eq!(told.source, "mine");
    for word in ["ro", "noexec", "noatime"] {
        assert!(told.options.split(',').any(|option| option == word), "{}", told.options);
    }
    assert!(!told.options.contains("nosuid") && !told.options.contains("nodev"), "{}", told.options);
}

/// Their names together are longer than the kernel takes for the source of a mount.
#[test]
fn more_branches_than_the_mount_can_name() {
    let bed = Bed::new();
    for number in 1000..2500 {
        fs::create_dir_all(bed.path(&format!("many/disk{number}"))).unwrap();
    }
    fs::write(bed.path("many/disk2499/last"), "there").unwrap();
    bed.ok("mount @many/* @p");
    assert_eq!(fs::read_to_string(bed.path("p/last")).unwrap(), "there");
    let source = proc::mount_at(&bed.path("p")).unwrap().source;
    assert!(source.starts_with("1000:1001:") && source.ends_with(":..."), "{source}");
    bed.umount();
    let limited = r#"ulimit -n 64; exec "$1" mount "$2/many/*" "$2/p""#;
    let line = bed.refused(&mut shell(limited, &[binary().as_os_str(), bed.dir().as_os_str()]));
    assert!(line.contains("Too many open files") && line.ends_with("(ulimit -n)"), "{line}");
}

#[test]
fn the_foreground_log_tells_what_was_mounted() {
    let bed = Bed::new();
    let mut child = bed.foreground("-o cache.attr=7,use_ino @a=RO:@b=RW,1M @p");
    signal(child.id(), "TERM");
    ends_well(&mut child, SOON);
    let log = bed.log();
    for needle in ["/a=RO:", "/b=RW,1M", "cache.attr=7", "FUSE 7."] {
        assert!(log.contains(needle), "no {needle:?} in:\n{log}");
    }
    assert!(!log.contains("use-ino"), "{log}");
}

#[test]
fn an_older_kernel_can_be_pretended() {
    let bed = Bed::new();
    let log = fs::File::create(bed.path("log")).unwrap();
    let mut command = bed.command("mount -f @a @p");
    let mut child = command.env("CANOPY_TEST_KERNEL", "minor:31").stderr(log).spawn().unwrap();
    assert!(wait_until(SOON, || bed.log().contains("FUSE 7.31")), "{}", bed.log());
    signal(child.id(), "TERM");
    ends_well(&mut child, SOON);
}

/// `/dev/fuse` as udev makes it, whatever this machine's is like; in a mount namespace of its own.
const OPEN_DEVICE: &str = r#"
    mkdir "$1/dev"; mount -t tmpfs none "$1/dev"
    mknod "$1/dev/fuse" c 10 229; chmod 666 "$1/dev/fuse"; mount --bind "$1/dev/fuse" /dev/fuse
"#;

fn in_private_mounts(bed: &Bed, script: &str, args: &[&OsStr]) -> Finished {
    let mut command = Command::new("unshare");
    command
        .args(["-m", "sh", "-ec"])
        .arg(format!("{OPEN_DEVICE}\n{script}"))
        .arg("sh")
        .arg(bed.dir())
        .args(args);
    let done = run_within(&mut command, Duration::from_secs(60));
    let _ = fs::remove_dir(bed.path("dev"));
    done
}

/// A copy of the program where everybody may run it.
fn public_binary(bed: &Bed) -> PathBuf {
    let copy = bed.path("canopy");
    fs::copy(binary(), &copy).unwrap();
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).unwrap();
    copy
}

const NOBODY: u32 = 65534;

fn give_to_nobody(bed: &Bed) {
    for name in ["a", "b", "p"] {
        std::os::unix::fs::chown(bed.path(name), Some(NOBODY), Some(NOBODY)).unwrap();
    }
}

#[test]
fn an_ordinary_user_mounts_through_fusermount3() {
    let bed = Bed::new();
    give_to_nobody(&bed);
    let canopy = public_binary(&bed);
    let script = r#"exec setpriv --reuid 65534 --regid 65534 --clear-groups sh -ec '
        "$2" mount -o minfreespace=0 "$1/a:$1/b" "$1/p"
        echo hello > "$1/p/file"
        cat "$1/p/file"
        grep -c " $1/p .* fuse.canopy " /proc/self/mountinfo
        "$2" umount "$1/p"
        ! grep " $1/p " /proc/self/mountinfo
        # A signal ends it, too: the daemon has to ask the helper.
        "$2" mount -f "$1/a" "$1/p" 2> /dev/null & 
        until grep -q " $1/p " /proc/self/mountinfo; do sleep 0.02; done
        stat "$1/p" > /dev/null
        # Which is set-uid: workers could not run it, whoever unmounts can.
        until grep -q fuse-0 /proc/$!/task/*/comm; do sleep 0.02; done
        for task in /proc/$!/task/*; do
            case $(cat $task/comm) in
            canopy-q* | canopy-fuse-*) grep "NoNewPrivs:.*0" $task/status || true ;;
            canopy | signals) grep "NoNewPrivs:.*1" $task/status || true ;;
            esac
            grep "^CapEff:.*[1-9a-f]" $task/status || true
        done
        kill $!; wait $!
        ! grep " $1/p " /proc/self/mountinfo
        echo done' sh "$@""#;
    let done = in_private_mounts(&bed, script, &[canopy.as_os_str()]);
    assert!(done.success(), "{}", done.describe());
    assert_eq!(done.stdout, "hello\n1\ndone\n", "{}", done.describe());
    assert_eq!(done.stderr, "");
}

#[test]
fn an_ordinary_user_mounts_in_a_namespace_of_their_own() {
    let bed = Bed::new();
    give_to_nobody(&bed);
    let canopy = public_binary(&bed);
    let script = r#"exec setpriv --reuid 65534 --regid 65534 --clear-groups unshare -Urm sh -ec '
        "$2" mount -o minfreespace=0 "$1/a:$1/b" "$1/p"
        echo hello > "$1/p/file"
        cat "$1/p/file"
        "$2" umount "$1/p"
        ! grep " $1/p " /proc/self/mountinfo' sh "$@""#;
    let done = in_private_mounts(&bed, script, &[canopy.as_os_str()]);
    assert!(done.success(), "{}", done.describe());
    assert_eq!(done.stdout, "hello\n", "{}", done.describe());
}

#[test]
fn an_ordinary_user_without_the_helper_is_told_its_package() {
    let bed = Bed::new();
    give_to_nobody(&bed);
    let canopy = public_binary(&bed);
    let mut command = as_user(NOBODY, NOBODY, &[], "env");
    command.args(["PATH=/nonexistent", canopy.to_str().unwrap(), "mount", &bed.text("a"), &bed.text("p")]);
    let line = bed.refused(&mut command);
    assert!(line.contains("fusermount3") && line.contains("fuse3"), "{line}");
}

#[test]
fn an_ordinary_user_is_told_what_the_helper_refuses() {
    let bed = Bed::new();
    give_to_nobody(&bed);
    fs::create_dir(bed.path("roots")).unwrap();
    let canopy = public_binary(&bed);
    let script = r#"
        user() { ! setpriv --reuid 65534 --regid 65534 --clear-groups "$canopy" mount "$@" 2>&1 || exit 1; }
        dir=$1 canopy=$2
        user "$dir/a" "$dir/roots"
        user -o allow_other "$dir/a" "$dir/p"
        chmod 600 /dev/fuse
        user "$dir/a" "$dir/p"
        ! grep " $dir/[pr]" /proc/self/mountinfo"#;
    let done = in_private_mounts(&bed, script, &[canopy.as_os_str()]);
    assert!(done.success(), "{}", done.describe());
    let lines: Vec<_> = done.stdout.lines().collect();
    let [place, others, device] = lines[..] else { panic!("{}", done.describe()) };
    assert!(place.contains("/roots failed: ") && place.ends_with("or mount as root)"), "{place}");
    assert!(others.contains("user_allow_other") && others.contains("/etc/fuse.conf"), "{others}");
    assert!(device.contains("/dev/fuse: ") && device.ends_with("(as root: chmod 666 /dev/fuse)"), "{device}");
    assert_eq!(device.matches("fusermount3").count(), 1, "{device}");
}

#[test]
fn an_ordinary_user_is_told_of_a_branch_that_is_not_readable() {
    let bed = Bed::new();
    give_to_nobody(&bed);
    let canopy = public_binary(&bed);
    fs::set_permissions(bed.path("b"), fs::Permissions::from_mode(0o700)).unwrap();
    std::os::unix::fs::chown(bed.path("b"), Some(0), Some(0)).unwrap();
    let mut command = as_user(NOBODY, NOBODY, &[], &canopy);
    command.arg("mount").arg(format!("{}:{}", bed.text("a"), bed.text("b"))).arg(bed.path("p"));
    let line = bed.refused(&mut command);
    assert!(line.contains("/b cannot be read"), "{line}");
}

/// Collects what arrives at a socket while a script runs with it in the place of a log daemon.
fn logged(bed: &Bed, script: &str) -> String {
    let path = bed.path("socket");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let done = in_private_mounts(bed, script, &[binary().as_os_str()]);
    assert!(done.success(), "{}", done.describe());
    let mut text = String::new();
    let mut buffer = vec![0; 1 << 16];
    while let Ok(len) = socket.recv(&mut buffer) {
        text.push_str(&String::from_utf8_lossy(&buffer[..len]));
        text.push('\n');
    }
    text
}

const MOUNT_ONCE: &str =
    r#""$2" mount -o cache.attr=7 "$1/a:$1/b" "$1/p"; stat "$1/p" > /dev/null; "$2" umount "$1/p""#;

#[test]
fn a_daemon_logs_to_the_journal() {
    let bed = Bed::new();
    let script = format!(
        r#"mount -t tmpfs none /run; mkdir -p /run/systemd/journal; touch /run/systemd/journal/socket
        mount --bind "$1/socket" /run/systemd/journal/socket; {MOUNT_ONCE}"#
    );
    let log = logged(&bed, &script);
    assert!(log.contains("MESSAGE") && log.contains("cache.attr=7"), "{log}");
    assert!(log.contains("SYSLOG_IDENTIFIER"), "{log}");
}

#[test]
fn a_daemon_logs_to_syslog_where_there_is_no_journal() {
    let bed = Bed::new();
    let script = format!(
        r#"mount -t tmpfs none /run; mknod "$1/dev/null" c 1 3; chmod 666 "$1/dev/null"; touch "$1/dev/log"
        mount --bind "$1/socket" "$1/dev/log"; mount --rbind "$1/dev" /dev; {MOUNT_ONCE}"#
    );
    let log = logged(&bed, &script);
    assert!(log.contains("canopy[") && log.contains("cache.attr=7"), "{log}");
}

#[test]
fn a_command_that_is_killed_leaves_no_pool_behind() {
    let bed = Bed::new();
    // The moment differs from round to round; whatever it is, mount and daemon come together or not at all.
    for round in 0..12 {
        let mut command = bed.command("mount @a:@b @p");
        let mut child = command.stdin(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_micros(400 * round));
        let _ = child.kill();
        let finished = child.wait().unwrap().success();
        assert!(wait_until(SOON, || bed.mounted() != bed.daemons().is_empty()), "round {round}");
        if !finished {
            // Either it had been ready already, or nothing of it stays.
            std::thread::sleep(Duration::from_millis(100));
        }
        if bed.mounted() {
            fs::read_dir(bed.path("p")).unwrap();
            bed.umount();
        }
        assert!(wait_until(SOON, || bed.daemons().is_empty()), "round {round}");
    }
}

#[test]
fn shell_quoting_reaches_the_options() {
    let bed = Bed::new();
    fs::create_dir(bed.path("with space")).unwrap();
    let script = r#""$2" mount -o "branches=$1/a=RW\,1M,fsname=x\054y" "$1/with space" "$1/p"
        grep " $1/p " /proc/self/mountinfo | sed "s/.*fuse.canopy //"; "$2" umount "$1/p""#;
    let done = run_within(&mut shell(script, &[bed.dir().as_os_str(), binary().as_os_str()]), SOON);
    assert!(done.success() && done.stdout.starts_with("x,y "), "{}", done.describe());
}
