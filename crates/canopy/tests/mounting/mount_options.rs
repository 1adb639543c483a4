//! Options that have their effect when the pool comes to be: what is waited for, what is taken away, and
//! how the daemon runs. Real mounts, so root is needed.

use canopy_testkit::cmd::{Finished, run_unless_busy, run_within, wait_until, wait_within};
use canopy_testkit::{ScratchDir, proc};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(20);

struct Bed(ScratchDir);

impl std::ops::Deref for Bed {
    type Target = ScratchDir;
    fn deref(&self) -> &ScratchDir {
        &self.0
    }
}

impl Bed {
    fn new() -> Bed {
        Bed(ScratchDir::new("canopy-at-mount-", &["a", "b", "p"]))
    }

    fn command(&self, args: &str) -> Command {
        let binary = canopy_testkit::program_under_test(env!("CARGO_BIN_EXE_canopy"));
        let mut command = Command::new(binary);
        command.args(self.words(args));
        command.env_remove("CANOPY_LOG").env_remove("RUST_LOG");
        command
    }

    fn canopy(&self, args: &str) -> Finished {
        run_within(&mut self.command(args), SOON)
    }

    fn umount(&self) {
        let done = run_unless_busy(&mut self.command("umount @p"), SOON);
        assert!(done.success(), "{}", done.describe());
        assert!(wait_until(SOON, || self.daemons().is_empty()), "{:?}", self.daemons());
    }

    fn daemons(&self) -> Vec<i32> {
        let point = self.path("p");
        let serves = |process: &proc::Process| {
            process.name == "canopy" && process.args.iter().any(|arg| *arg == *point.as_os_str())
        };
        proc::processes().into_iter().filter(serves).map(|process| process.pid).collect()
    }
}

/// A tmpfs on a place, for as long as this lives.
struct Tmpfs(PathBuf);

impl Tmpfs {
    fn on(place: PathBuf) -> Tmpfs {
        mount("none", &place, "tmpfs", MountFlags::empty(), None).unwrap();
        Tmpfs(place)
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

#[test]
fn branches_that_are_not_mounted_are_waited_for() {
    let bed = Bed::new();
    let _a = Tmpfs::on(bed.path("a"));
    let started = Instant::now();
    let mut child = bed
        .command(
            "mount -o branches-mount-timeout=15,branches-mount-timeout-fail=true,minfreespace=0 @a:@b @p",
        )
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_secs(1));
    assert!(child.try_wait().unwrap().is_none() && proc::mount_at(&bed.path("p")).is_none(), "it waits");
    let _b = Tmpfs::on(bed.path("b"));
    fs::write(bed.path("b/late"), "x").unwrap();
    let status = wait_within(&mut child, SOON);
    assert!(status.is_some_and(|status| status.success()), "{status:?}");
    assert!(started.elapsed() < Duration::from_secs(10), "no longer than it has to: {:?}", started.elapsed());
    assert_eq!(fs::read_to_string(bed.path("p/late")).unwrap(), "x", "the branch is what was mounted");
    bed.umount();
}

#[test]
fn a_branch_that_stays_away_is_told_or_fails_the_mount() {
    let bed = Bed::new();
    let _a = Tmpfs::on(bed.path("a"));
    let done = bed.canopy("mount -o branches-mount-timeout=1 @a:@b @p");
    assert!(done.success() && done.took >= Duration::from_secs(1), "{}", done.describe());
    let expected = format!("branch {} is not mounted within 1 s", bed.path("b").display());
    assert!(done.stderr.contains(&expected) && done.stderr.lines().count() == 1, "{}", done.describe());
    bed.umount();
    let done = bed.canopy("mount -o branches-mount-timeout=1,branches-mount-timeout-fail=true @a:@b @p");
    assert_eq!(done.code(), Some(1), "{}", done.describe());
    assert!(done.stderr.contains(&expected) && done.stderr.lines().count() == 1, "{}", done.describe());
    assert!(proc::mount_at(&bed.path("p")).is_none());
}

#[test]
fn marks_on_branches_decide_before_devices_do() {
    let bed = Bed::new();
    let options = "branches-mount-timeout=1,branches-mount-timeout-fail=true";
    // No mounts of their own, but marked: nothing is waited for.
    for branch in ["a", "b"] {
        fs::write(bed.path(branch).join(".mergerfs.branch"), "").unwrap();
    }
    let done = bed.canopy(&format!("mount -o {options} @a:@b @p"));
    assert!(done.success() && done.took < Duration::from_millis(900), "{}", done.describe());
    bed.umount();
    // On another device, and marked as the place where one is missing.
    let _a = Tmpfs::on(bed.path("a"));
    fs::write(bed.path("a/.mergerfs.branch_mounts_here"), "").unwrap();
    let done = bed.canopy(&format!("mount -o {options} @a:@b @p"));
    assert_eq!(done.code(), Some(1), "{}", done.describe());
    assert!(done.stderr.contains("/a is not mounted"), "{}", done.describe());
}

#[test]
fn fstab_is_asked_for_a_missing_branch() {
    let bed = Bed::new();
    let script = r#"
        printf 'none %s/b tmpfs size=1m 0 0\n' "$1" > "$1/fstab"; mount --bind "$1/fstab" /etc/fstab
        mount -t tmpfs none "$1/a"
        "$2" mount -o branches-mount-timeout=10,branches-mount-timeout-fail=true "$1/a:$1/b" "$1/p"
        findmnt -no FSTYPE "$1/b"; findmnt -no FSTYPE "$1/p"; umount "$1/p""#;
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-ec", script, "sh"]).arg(bed.dir());
    command.arg(bed.command("").get_program());
    let done = run_within(&mut command, SOON);
    assert!(done.success(), "{}", done.describe());
    assert_eq!(done.stdout, "tmpfs\nfuse.canopy\n", "{}", done.describe());
    assert!(done.took < Duration::from_secs(8), "{}", done.describe());
}

#[test]
fn what_lies_on_the_mountpoint_is_detached_when_asked() {
    let bed = Bed::new();
    let fstypes = || -> Vec<String> {
        let at = |mount: &proc::Mount| mount.point == bed.path("p");
        proc::mounts().into_iter().filter(at).map(|mount| mount.kind).collect()
    };
    let lower = Tmpfs::on(bed.path("p"));
    let done = bed.canopy("mount -o lazy-umount-mountpoint=true @a @p");
    assert!(done.success() && done.stderr.is_empty(), "{}", done.describe());
    assert_eq!(fstypes(), ["fuse.canopy"]);
    std::mem::forget(lower);
    // A pool in use makes way as well, and serves those who are inside to their end.
    fs::write(bed.path("a/held"), "x").unwrap();
    let held = fs::File::open(bed.path("p/held")).unwrap();
    let done = bed.canopy("mount -o lazy-umount-mountpoint=true @b @p");
    assert!(done.success() && done.stderr.is_empty(), "{}", done.describe());
    assert_eq!(fstypes(), ["fuse.canopy"]);
    assert!(!bed.path("p/held").exists(), "the new pool");
    assert_eq!(std::io::read_to_string(held).unwrap(), "x");
    bed.umount();
    // Without it, what is no pool stays underneath.
    let _lower = Tmpfs::on(bed.path("p"));
    let done = bed.canopy("mount @a @p");
    assert!(done.success(), "{}", done.describe());
    assert_eq!(fstypes(), ["tmpfs", "fuse.canopy"]);
    bed.umount();
}

#[test]
fn a_mistake_detaches_nothing() {
    let bed = Bed::new();
    let _lower = Tmpfs::on(bed.path("p"));
    for args in
        ["mount -o lazy-umount-mountpoint=true @none @p", "mount -o lazy-umount-mountpoint=true @p @p"]
    {
        assert_eq!(bed.canopy(args).code(), Some(1), "{args}");
        assert_eq!(proc::mount_at(&bed.path("p")).unwrap().kind, "tmpfs", "{args}");
    }
}

/// The nice values of all threads of a process, each once.
fn nice_values(pid: i32) -> Vec<i32> {
    let mut values: Vec<i32> = fs::read_dir(format!("/proc/{pid}/task"))
        .unwrap()
        .flatten()
        .filter_map(|task| {
            let stat = fs::read_to_string(task.path().join("stat")).ok()?;
            stat.rsplit_once(')')?.1.split_whitespace().nth(16)?.parse().ok()
        })
        .collect();
    values.sort_unstable();
    values.dedup();
    values
}

#[test]
fn every_thread_serves_with_the_priority_that_was_asked_for() {
    let bed = Bed::new();
    // Not every root may go below what it has: a container can lack the capability.
    let may = run_within(Command::new("sh").args(["-c", "nice -n -10 nice"]), SOON).stdout.trim() == "-10";
    for (option, nice) in [("ro", -10), ("scheduling-priority=5", 5), ("scheduling-priority=-3", -3)] {
        let done = bed.canopy(&format!("mount -o {option} @a @p"));
        assert!(done.success() && done.stderr.is_empty(), "{}", done.describe());
        fs::read_dir(bed.path("p")).unwrap();
        let daemons = bed.daemons();
        assert_eq!(daemons.len(), 1);
        let expected = if nice < 0 && !may { 0 } else { nice };
        assert_eq!(nice_values(daemons[0]), [expected], "{option}");
        bed.umount();
    }
}

#[test]
fn the_queue_that_is_not_there_may_have_any_depth() {
    let bed = Bed::new();
    for (option, depth) in [("process-thread-queue-depth=4", "4\n"), ("ro", "2\n")] {
        let done = bed.canopy(&format!("mount -o {option} @a @p"));
        assert!(done.success() && done.stderr.is_empty(), "{}", done.describe());
        let told = bed.canopy("get @p process-thread-queue-depth");
        assert_eq!(told.stdout, depth, "{}", told.describe());
        bed.umount();
    }
}

/// The processors that each worker may run on, in the order of their numbers, as `/proc` lists them.
fn processors(pid: i32) -> Vec<String> {
    let mut workers: Vec<(usize, String)> = fs::read_dir(format!("/proc/{pid}/task"))
        .unwrap()
        .flatten()
        .filter_map(|task| {
            let status = fs::read_to_string(task.path().join("status")).ok()?;
            let field = |name: &str| status.lines().find_map(|line| Some(line.strip_prefix(name)?.trim()));
            let number = field("Name:")?.strip_prefix("canopy-fuse-")?.parse().ok()?;
            Some((number, field("Cpus_allowed_list:")?.to_owned()))
        })
        .collect();
    workers.sort();
    workers.into_iter().map(|(_, list)| list).collect()
}

/// What each strategy makes of other machines is told by a table beside the code.
#[test]
fn workers_run_where_they_are_pinned() {
    let bed = Bed::new();
    let own = |name: &str| {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        status.lines().find_map(|line| Some(line.strip_prefix(name)?.trim().to_owned())).unwrap()
    };
    let all = own("Cpus_allowed_list:");
    // Processors of this process, one by one, and the siblings that share a core with each of them.
    let cpus: Vec<usize> = all
        .split(',')
        .flat_map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            first.parse::<usize>().unwrap()..=last.parse::<usize>().unwrap()
        })
        .collect();
    let siblings = |cpu: usize| {
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
        fs::read_to_string(path).map_or_else(|_| cpu.to_string(), |text| text.trim().to_owned())
    };
    let (first, last) = (cpus[0], cpus[cpus.len() - 1]);
    let spread = |worker: usize| cpus[cpus.len() - 1 - worker % cpus.len()].to_string();
    let readers = "read-thread-count=3";
    let apart = "read-thread-count=1,process-thread-count=3";
    for (strategy, threads, expected) in [
        ("false", readers, vec![all.clone(); 3]),
        ("R1L", readers, vec![first.to_string(); 3]),
        ("R1L", apart, vec![all.clone(); 3]),
        ("RP1L", apart, vec![first.to_string(); 3]),
        ("R1LP1L", apart, vec![last.to_string(); 3]),
        ("RPSL", readers, (0..3).map(spread).collect()),
        ("R1P", readers, vec![siblings(first); 3]),
        ("RP1P", apart, vec![siblings(first); 3]),
    ] {
        let mut command = bed.command(&format!("mount -o pin-threads={strategy},{threads} @a @p"));
        // Over io_uring there are some workers for each processor, however many are asked for.
        let done = run_within(command.env("CANOPY_TEST_KERNEL", "mask:OVER_IO_URING"), SOON);
        assert!(done.success() && done.stderr.is_empty(), "{}", done.describe());
        let daemon = bed.daemons()[0];
        // A worker pins itself before it reads its first request.
        wait_until(SOON, || processors(daemon) == expected);
        assert_eq!(processors(daemon), expected, "{strategy} {threads}");
        bed.umount();
    }
    let done = bed.canopy("mount -o pin-threads=RPS @a @p");
    assert!(done.code() != Some(0) && done.stderr.lines().count() == 1, "{}", done.describe());
    assert!(done.stderr.contains("pin-threads: 'RPS' is not valid: must be false, R1L,"), "{}", done.stderr);
}
