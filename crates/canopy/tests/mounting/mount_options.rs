//! Options that take effect at mount time: waiting for branches, detaching earlier mounts on the mountpoint, and the
//! priority and CPUs of the daemon's threads.

use canopy_testkit::cmd::{in_mount_namespace, run_within, wait_until, wait_within};
use canopy_testkit::{CliBed, PATIENCE, Submount, proc};
use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

fn bed() -> CliBed {
    CliBed::new(env!("CARGO_BIN_EXE_canopy"), "canopy-at-mount-", &["a", "b", "p"])
}

#[test]
fn the_mount_waits_for_unmounted_branches() {
    let bed = bed();
    let _a = Submount::empty_tmpfs(bed.path("a"), "");
    let mut child = bed
        .command(
            "mount -o branches-mount-timeout=3600,branches-mount-timeout-fail=true,minfreespace=0 @a:@b @p",
        )
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_secs(1));
    assert!(child.try_wait().unwrap().is_none() && bed.mount_at("p").is_none(), "the mount must wait");
    let _b = Submount::empty_tmpfs(bed.path("b"), "");
    fs::write(bed.path("b/late"), "x").unwrap();
    // Long before its timeout.
    let status = wait_within(&mut child, PATIENCE);
    assert!(status.is_some_and(|status| status.success()), "{status:?}");
    assert_eq!(fs::read_to_string(bed.path("p/late")).unwrap(), "x", "the branch must be the late mount");
    bed.umount("@p");
}

#[test]
fn a_branch_that_stays_unmounted_is_reported_or_fails_the_mount() {
    let bed = bed();
    let _a = Submount::empty_tmpfs(bed.path("a"), "");
    let done = bed.run("mount -o branches-mount-timeout=1 @a:@b @p");
    assert!(done.success() && done.took >= Duration::from_secs(1), "{}", done.describe());
    let expected = format!("branch {} is not mounted within 1 s", bed.path("b").display());
    assert!(done.stderr.contains(&expected) && done.stderr.lines().count() == 1, "{}", done.describe());
    bed.umount("@p");
    let done = bed.run("mount -o branches-mount-timeout=1,branches-mount-timeout-fail=true @a:@b @p");
    assert_eq!(done.code(), Some(1), "{}", done.describe());
    assert!(done.stderr.contains(&expected) && done.stderr.lines().count() == 1, "{}", done.describe());
    assert!(bed.mount_at("p").is_none());
}

#[test]
fn branch_marks_take_precedence_over_device_numbers() {
    let bed = bed();
    let options = "branches-mount-timeout=1,branches-mount-timeout-fail=true";
    // The branches are not mountpoints, but marked as present: the mount does not wait, and so does not fail.
    for branch in ["a", "b"] {
        fs::write(bed.path(branch).join(".mergerfs.branch"), "").unwrap();
    }
    let done = bed.run(&format!("mount -o {options} @a:@b @p"));
    assert!(done.success(), "{}", done.describe());
    bed.umount("@p");
    // The branch is on another device, but marked as a mountpoint whose mount is missing.
    let _a = Submount::empty_tmpfs(bed.path("a"), "");
    fs::write(bed.path("a/.mergerfs.branch_mounts_here"), "").unwrap();
    let done = bed.run(&format!("mount -o {options} @a:@b @p"));
    assert_eq!(done.code(), Some(1), "{}", done.describe());
    assert!(done.stderr.contains("/a is not mounted"), "{}", done.describe());
}

#[test]
fn a_missing_branch_is_mounted_from_fstab() {
    let bed = bed();
    let script = r#"
        printf 'none %s/b tmpfs size=1m 0 0\n' "$1" > "$1/fstab"; mount --bind "$1/fstab" /etc/fstab
        mount -t tmpfs none "$1/a"
        "$2" mount -o branches-mount-timeout=3600,branches-mount-timeout-fail=true "$1/a:$1/b" "$1/p"
        findmnt -no FSTYPE "$1/b"; findmnt -no FSTYPE "$1/p"; umount "$1/p""#;
    let done = run_within(in_mount_namespace(script).arg(bed.dir()).arg(bed.program()), PATIENCE);
    assert!(done.success(), "{}", done.describe());
    assert_eq!(done.stdout, "tmpfs\nfuse.canopy\n", "{}", done.describe());
}

#[test]
fn lazy_umount_mountpoint_detaches_earlier_mounts() {
    let bed = bed();
    let fstypes = || -> Vec<String> {
        let at = |mount: &proc::Mount| mount.point == bed.path("p");
        proc::mounts().into_iter().filter(at).map(|mount| mount.kind).collect()
    };
    let lower = Submount::empty_tmpfs(bed.path("p"), "");
    let done = bed.run("mount -o lazy-umount-mountpoint=true @a @p");
    assert!(done.success() && done.stderr.is_empty(), "{}", done.describe());
    assert_eq!(fstypes(), ["fuse.canopy"]);
    std::mem::forget(lower);
    // A pool in use is detached as well, and serves its open files until they are closed.
    fs::write(bed.path("a/held"), "x").unwrap();
    let held = fs::File::open(bed.path("p/held")).unwrap();
    let done = bed.run("mount -o lazy-umount-mountpoint=true @b @p");
    assert!(done.success() && done.stderr.is_empty(), "{}", done.describe());
    assert_eq!(fstypes(), ["fuse.canopy"]);
    assert!(!bed.path("p/held").exists(), "the mountpoint still shows the old pool");
    assert_eq!(std::io::read_to_string(held).unwrap(), "x");
    bed.umount("@p");
    // Without the option, another filesystem stays mounted below the pool.
    let _lower = Submount::empty_tmpfs(bed.path("p"), "");
    let done = bed.run("mount @a @p");
    assert!(done.success(), "{}", done.describe());
    assert_eq!(fstypes(), ["tmpfs", "fuse.canopy"]);
    bed.umount("@p");
}

#[test]
fn a_failed_mount_detaches_nothing() {
    let bed = bed();
    let _lower = Submount::empty_tmpfs(bed.path("p"), "");
    for args in
        ["mount -o lazy-umount-mountpoint=true @none @p", "mount -o lazy-umount-mountpoint=true @p @p"]
    {
        assert_eq!(bed.run(args).code(), Some(1), "{args}");
        assert_eq!(bed.mount_at("p").unwrap().kind, "tmpfs", "{args}");
    }
}

#[test]
fn every_thread_has_the_requested_priority() {
    let bed = bed();
    // Root may not be able to lower its nice value: a container can lack the capability.
    let may =
        run_within(Command::new("sh").args(["-c", "nice -n -10 nice"]), PATIENCE).stdout.trim() == "-10";
    for (option, nice) in [("ro", -10), ("scheduling-priority=5", 5), ("scheduling-priority=-3", -3)] {
        let done = bed.run(&format!("mount -o {option} @a @p"));
        assert!(done.success() && done.stderr.is_empty(), "{}", done.describe());
        fs::read_dir(bed.path("p")).unwrap();
        let daemons = bed.daemons();
        assert_eq!(daemons.len(), 1);
        let expected = if nice < 0 && !may { 0 } else { nice };
        // Clients wait for the keeper when another process takes over.
        let keeper = proc::parent(daemons[0].pid).filter(|&pid| pid != 1);
        let keepers = keeper.into_iter().flat_map(proc::threads);
        let threads: Vec<_> = proc::threads(daemons[0].pid).into_iter().chain(keepers).collect();
        assert!(threads.iter().all(|thread| thread.nice == expected), "{option}: {threads:?}");
        bed.umount("@p");
    }
}

#[test]
fn the_unused_queue_depth_accepts_any_value() {
    let bed = bed();
    for (option, depth) in [("process-thread-queue-depth=4", "4\n"), ("ro", "2\n")] {
        let done = bed.run(&format!("mount -o {option} @a @p"));
        assert!(done.success() && done.stderr.is_empty(), "{}", done.describe());
        let shown = bed.run("get @p process-thread-queue-depth");
        assert_eq!(shown.stdout, depth, "{}", shown.describe());
        bed.umount("@p");
    }
}

/// Returns the CPUs that each worker thread may run on, as `/proc` lists them, ordered by thread number.
fn processors(pid: i32) -> Vec<String> {
    let worker = |thread: proc::Thread| {
        let number: usize = thread.name.strip_prefix("canopy-fuse-")?.parse().ok()?;
        Some((number, thread.field("Cpus_allowed_list").to_owned()))
    };
    let mut workers: Vec<_> = proc::threads(pid).into_iter().filter_map(worker).collect();
    workers.sort();
    workers.into_iter().map(|(_, list)| list).collect()
}

/// Unit tests cover each strategy on other CPU layouts.
#[test]
fn workers_run_on_the_cpus_they_are_pinned_to() {
    let bed = bed();
    let own = |name: &str| {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        status.lines().find_map(|line| Some(line.strip_prefix(name)?.trim().to_owned())).unwrap()
    };
    let all = own("Cpus_allowed_list:");
    // The CPUs of this process, and the sibling CPUs that share a core with each.
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
        // io_uring has a fixed number of workers per CPU, whatever number the option requests.
        let done = run_within(command.env("CANOPY_TEST_KERNEL", "mask:OVER_IO_URING"), PATIENCE);
        assert!(done.success() && done.stderr.is_empty(), "{}", done.describe());
        let daemon = bed.daemons()[0].pid;
        // A worker pins itself before it reads its first request.
        wait_until(PATIENCE, || processors(daemon) == expected);
        assert_eq!(processors(daemon), expected, "{strategy} {threads}");
        bed.umount("@p");
    }
    let done = bed.run("mount -o pin-threads=RPS @a @p");
    assert!(done.code() != Some(0) && done.stderr.lines().count() == 1, "{}", done.describe());
    assert!(done.stderr.contains("pin-threads: 'RPS' is not valid: must be false, R1L,"), "{}", done.stderr);
}
