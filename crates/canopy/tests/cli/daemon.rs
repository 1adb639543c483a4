//! The life of a daemon: its start, its environment, its log, and every way to end it.

use super::rig::{
    PATIENCE, bed, ends_well, foreground, in_private_mounts, is_mounted, log, mistake, mounts, pid, shell,
    signal,
};
use canopy_testkit::cmd::{run_unless_busy, run_within, wait_until, wait_within};
use canopy_testkit::{CliBed, proc};
use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

#[test]
fn the_pool_serves_requests_when_the_command_returns() {
    let bed = bed();
    for cycle in 0..20 {
        let done = bed.ok("mount -o minfreespace=0 @a:@b @p");
        assert_eq!((done.stdout.as_str(), done.stderr.as_str()), ("", ""), "cycle {cycle}");
        let name = format!("file{cycle}");
        fs::write(bed.path("p").join(&name), &name).unwrap_or_else(|error| panic!("cycle {cycle}: {error}"));
        bed.umount("@p");
        let found: Vec<_> =
            ["a", "b"].iter().filter(|branch| bed.path(branch).join(&name).exists()).collect();
        assert_eq!(found.len(), 1, "cycle {cycle}");
        assert_eq!(fs::read_to_string(bed.path(found[0]).join(&name)).unwrap(), name);
    }
}

#[test]
fn the_daemon_detaches_from_its_caller() {
    let bed = bed();
    bed.ok("mount a:b p");
    let daemons = daemons_of_relative(&bed);
    // The process that serves is the child of its keeper, if it has one.
    let parents: Vec<_> = daemons.iter().filter_map(|&pid| proc::parent(pid)).collect();
    let (keepers, servers): (Vec<i32>, Vec<i32>) = daemons.iter().partition(|pid| parents.contains(pid));
    assert!(keepers.len() <= 1 && servers.len() == 1, "{daemons:?}");
    let pid = servers[0];
    let first = keepers.first().copied().unwrap_or(pid);
    for pid in &daemons {
        assert_eq!(fs::read_link(format!("/proc/{pid}/cwd")).unwrap(), Path::new("/"));
        for fd in 0..3 {
            let file = fs::read_link(format!("/proc/{pid}/fd/{fd}")).unwrap();
            assert_eq!(file, Path::new("/dev/null"), "{fd}");
        }
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let session = stat.rsplit_once(')').unwrap().1.split_whitespace().nth(3).unwrap();
        assert_eq!(session, first.to_string(), "the daemon is not in a session of its own");
    }
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    assert!(status.lines().any(|line| line == "Umask:\t0000"), "{status}");
    // In a container, root may lack CAP_SYS_RESOURCE, which this needs.
    if shell("echo -990 > /proc/self/oom_score_adj", &[]).stderr(Stdio::null()).status().unwrap().success() {
        assert_eq!(fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap().trim(), "-990");
    }
    bed.ok("umount p");
    assert!(wait_until(PATIENCE, || daemons.iter().all(|&pid| proc::process(pid).is_none())));
}

/// Finds the daemons by the FUSE connection that they serve, because their arguments are relative paths.
fn daemons_of_relative(bed: &CliBed) -> Vec<i32> {
    let minor = bed.mount_at("p").map(|mount| mount.minor);
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

#[test]
fn every_way_to_end_a_pool_ends_it() {
    let bed = bed();
    let point = bed.path("p");
    type Way<'a> = (&'a str, Box<dyn Fn(&Child) + 'a>);
    let run = |program: &'static str, args: &'static [&'static str]| {
        let point = point.clone();
        move |_: &Child| {
            let done = run_unless_busy(Command::new(program).args(args).arg(&point), PATIENCE);
            assert!(done.success(), "{program}: {}", done.describe());
        }
    };
    let ways: Vec<Way<'_>> = vec![
        ("SIGTERM", Box::new(|child| signal(pid(child), "TERM"))),
        ("SIGINT", Box::new(|child| signal(pid(child), "INT"))),
        ("SIGQUIT", Box::new(|child| signal(pid(child), "QUIT"))),
        ("umount", Box::new(run("umount", &[]))),
        ("umount -l", Box::new(run("umount", &["-l"]))),
        ("fusermount3 -u", Box::new(run("fusermount3", &["-u"]))),
        ("canopy umount", Box::new(|_| drop(bed.ok("umount @p")))),
        ("canopy umount --lazy", Box::new(|_| drop(bed.ok("umount --lazy @p")))),
    ];
    for (name, end) in &ways {
        let mut child = foreground(&bed, "@a:@b @p");
        end(&child);
        eprintln!("{name}");
        ends_well(&mut child, PATIENCE);
        assert!(!is_mounted(&bed), "{name}");
        // The same for a daemon in the background, where the child of the first process gets the signal.
        bed.ok("mount @a:@b @p");
        let daemons = bed.daemons();
        assert_eq!(daemons.len(), 1, "{name}");
        match name.strip_prefix("SIG") {
            Some(signal_name) => signal(daemons[0].pid, signal_name),
            None => end(&child),
        }
        bed.wait_for_daemons(0);
        assert!(!is_mounted(&bed), "{name}");
    }
}

#[test]
fn other_signals_change_nothing() {
    let bed = bed();
    let mut child = foreground(&bed, "@a:@b @p");
    let named =
        ["HUP", "USR1", "USR2", "PIPE", "XFSZ", "ALRM", "VTALRM", "PROF", "XCPU", "IO", "PWR", "STKFLT"];
    let real_time = (34..=64).map(|number| number.to_string());
    for name in named.map(str::to_owned).into_iter().chain(real_time) {
        signal(pid(&child), &name);
    }
    std::thread::sleep(Duration::from_millis(200));
    assert!(child.try_wait().unwrap().is_none());
    fs::metadata(bed.path("p")).unwrap();
    signal(pid(&child), "TERM");
    ends_well(&mut child, PATIENCE);
}

/// Keeps the pool in use until it is dropped.
struct Occupant(Child);

impl Occupant {
    fn new(dir: &Path) -> Occupant {
        let child = Command::new("sleep").arg("infinity").current_dir(dir).spawn().unwrap();
        Occupant(child)
    }
}

impl Drop for Occupant {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_pool_in_use_is_only_unmounted_lazily() {
    let bed = bed();
    let mut child = foreground(&bed, "@a:@b @p");
    let occupant = Occupant::new(&bed.path("p"));
    let line = mistake(&bed, "umount @p");
    assert!(line.contains("is in use") && line.contains("--lazy"), "{line}");
    assert!(is_mounted(&bed));
    bed.ok("umount --lazy @p");
    assert!(!is_mounted(&bed));
    assert!(child.try_wait().unwrap().is_none(), "the daemon ended while a process was in the pool");
    drop(occupant);
    ends_well(&mut child, PATIENCE);
}

#[test]
fn a_signal_ends_a_pool_in_use_after_a_grace_period() {
    let bed = bed();
    let mut child = foreground(&bed, "@a:@b @p");
    let _occupant = Occupant::new(&bed.path("p"));
    let start = Instant::now();
    signal(pid(&child), "TERM");
    assert!(wait_until(PATIENCE, || !is_mounted(&bed)), "the pool is not unmounted");
    ends_well(&mut child, PATIENCE);
    assert!(start.elapsed() > Duration::from_secs(3), "no grace period: {:?}", start.elapsed());
    let log = log(&bed);
    assert!(log.contains("is in use") && log.contains("exiting while the pool is still in use"), "{log}");
}

#[test]
fn a_second_signal_ends_the_grace_period() {
    // On a busy machine the grace period may be over before the second signal is sent.
    let ended = (0..4).any(|_| {
        let bed = bed();
        let mut child = foreground(&bed, "@a:@b @p");
        let _occupant = Occupant::new(&bed.path("p"));
        signal(pid(&child), "INT");
        assert!(wait_until(PATIENCE, || !is_mounted(&bed)));
        signal(pid(&child), "INT");
        ends_well(&mut child, PATIENCE);
        let log = log(&bed);
        assert!(log.contains("exiting without waiting") || log.contains("exiting while"), "{log}");
        log.contains("exiting without waiting")
    });
    assert!(ended, "the second signal changed nothing");
}

#[test]
fn a_dead_mount_is_replaced() {
    let bed = bed();
    // No other process takes over.
    bed.ok("mount -o survive=false @a:@b @p");
    for round in 0..2 {
        let daemons = bed.daemons();
        assert_eq!(daemons.len(), 1);
        signal(daemons[0].pid, "KILL");
        bed.wait_for_daemons(0);
        assert!(is_mounted(&bed), "the kernel keeps a mount whose daemon is dead");
        let done = bed.ok("mount -o survive=false @a:@b @p");
        assert!(
            done.stderr.contains("dead mount") && done.stderr.lines().count() == 1,
            "{}",
            done.describe()
        );
        fs::read_dir(bed.path("p")).unwrap_or_else(|error| panic!("round {round}: {error}"));
        assert_eq!(mounts(&bed).len(), 1);
    }
    bed.umount("@p");
}

#[test]
fn a_dead_mount_can_be_unmounted_but_not_be_a_branch() {
    let bed = bed();
    fs::create_dir(bed.path("q")).unwrap();
    bed.ok("mount -o survive=false @a:@b @p");
    signal(bed.daemons()[0].pid, "KILL");
    bed.wait_for_daemons(0);
    let line = mistake(&bed, "mount @p @q");
    assert!(line.contains("server is gone") && line.contains("umount -l"), "{line}");
    for asked in ["get @p category.create", "explain create @p/film", "explain getattr @p", "fsck @p"] {
        let done = run_within(&mut bed.command(asked), PATIENCE);
        assert!(!done.success() && done.stderr.lines().count() == 1, "{}", done.describe());
        assert!(done.stderr.contains("has ended (canopy umount "), "{asked}: {}", done.stderr);
    }
    bed.umount("@p");
    // Over io_uring nobody takes over from a process that was killed, and the keeper ends, too.
    bed.ok("mount @a:@b @p");
    if bed.stdout("status --json @p").contains(r#""transport": "io-uring""#) {
        signal(bed.daemons()[0].pid, "KILL");
        bed.wait_for_daemons(0);
        assert!(is_mounted(&bed));
    }
    bed.umount("@p");
    assert!(!is_mounted(&bed));
}

#[test]
fn the_foreground_log_lists_branches_and_options() {
    let bed = bed();
    let mut child = foreground(&bed, "-o cache.attr=7,use_ino @a=RO:@b=RW,1M @p");
    signal(pid(&child), "TERM");
    ends_well(&mut child, PATIENCE);
    let log = log(&bed);
    for needle in ["/a=RO:", "/b=RW,1M", "cache.attr=7", "FUSE 7."] {
        assert!(log.contains(needle), "no {needle:?} in:\n{log}");
    }
    assert!(!log.contains("use-ino"), "{log}");
}

#[test]
fn a_test_variable_imitates_an_older_kernel() {
    let bed = bed();
    let file = fs::File::create(bed.path("log")).unwrap();
    let mut command = bed.command("mount -f @a @p");
    let mut child = command.env("CANOPY_TEST_KERNEL", "minor:31").stderr(file).spawn().unwrap();
    assert!(wait_until(PATIENCE, || log(&bed).contains("FUSE 7.31")), "{}", log(&bed));
    signal(pid(&child), "TERM");
    ends_well(&mut child, PATIENCE);
}

/// Runs a script. Returns what it writes to a socket that stands in for a log daemon's.
fn logged(bed: &CliBed, script: &str) -> String {
    let path = bed.path("socket");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let done = in_private_mounts(bed, script, &[bed.program().as_os_str()]);
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
    let bed = bed();
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
    let bed = bed();
    let script = format!(
        r#"mount -t tmpfs none /run; mknod "$1/dev/null" c 1 3; chmod 666 "$1/dev/null"; touch "$1/dev/log"
        mount --bind "$1/socket" "$1/dev/log"; mount --rbind "$1/dev" /dev; {MOUNT_ONCE}"#
    );
    let log = logged(&bed, &script);
    assert!(log.contains("canopy[") && log.contains("cache.attr=7"), "{log}");
}

/// Returns whether the mount is in its final state: no process and no mount is left, or the daemon is ready. A daemon
/// that is ready has closed the standard error that it inherited from the command.
fn is_settled(bed: &CliBed) -> bool {
    let dir = bed.dir();
    let dir = dir.to_str().unwrap();
    let is_ours =
        |process: &proc::Process| process.args.iter().any(|arg| arg.to_string_lossy().contains(dir));
    let mut running: Vec<proc::Process> = proc::processes().into_iter().filter(is_ours).collect();
    // Keepers.
    let parents: Vec<_> = running.iter().filter_map(|process| proc::parent(process.pid)).collect();
    running.retain(|process| !parents.contains(&process.pid));
    match running.as_slice() {
        [] => !is_mounted(bed),
        [daemon] => {
            let stderr = fs::read_link(format!("/proc/{}/fd/2", daemon.pid));
            is_mounted(bed) && stderr.is_ok_and(|file| file == Path::new("/dev/null"))
        }
        _ => false,
    }
}

#[test]
fn a_killed_mount_command_leaves_no_half_mounted_pool() {
    let bed = bed();
    // Each round kills the command a little later.
    for round in 0..12 {
        let stderr = fs::File::create(bed.path("log")).unwrap();
        let mut command = bed.command("mount @a:@b @p");
        let mut child = command.stdin(Stdio::null()).stderr(stderr).spawn().unwrap();
        std::thread::sleep(Duration::from_micros(400 * round));
        let _ = child.kill();
        let finished = child.wait().unwrap().success();
        // The daemon stays if it has reported that it is ready; otherwise it unmounts and ends.
        assert!(wait_until(PATIENCE, || is_settled(&bed)), "round {round}: {}", log(&bed));
        assert!(is_mounted(&bed) || !finished, "round {round}: {}", log(&bed));
        if is_mounted(&bed) {
            fs::read_dir(bed.path("p")).unwrap();
            bed.umount("@p");
        }
        bed.wait_for_daemons(0);
    }
}

/// Where messages cannot be read, `canopy log` says why, and its exit status tells it.
#[test]
fn messages_that_went_nowhere_are_an_error() {
    let bed = bed();
    let run = |setup: &str, options: &str| {
        let script = format!(
            "\"$2\" mount -o minfreespace=0 \"$3:$4\" \"$5\"
            mount -t tmpfs run /run; mount -t tmpfs log /var/log; {setup}
            status=0; \"$2\" log {options} \"$5\" || status=$?
            \"$2\" umount \"$5\"; exit $status"
        );
        let [a, b, p] = ["a", "b", "p"].map(|name| bed.path(name));
        in_private_mounts(
            &bed,
            &script,
            &[bed.program().as_os_str(), a.as_os_str(), b.as_os_str(), p.as_os_str()],
        )
    };
    for options in ["", "--follow", "--json"] {
        let done = run("", options);
        assert_eq!(done.code(), Some(1), "{options}: {}", done.describe());
        assert!(done.stderr.contains("neither a journal nor syslog"), "{options}: {}", done.describe());
        assert_eq!(done.stdout.contains("\"none\""), options == "--json", "{}", done.describe());
    }
    let journal = "mkdir -p /run/systemd/journal /run/bin; touch /run/systemd/journal/socket
        printf '#!/bin/sh\\n%s\\n' \"$JOURNALCTL\" >/run/bin/journalctl; chmod +x /run/bin/journalctl
        PATH=/run/bin:$PATH";
    let done = run(&format!("JOURNALCTL='echo one line'; {journal}"), "");
    assert!(done.success() && done.stdout == "one line\n", "{}", done.describe());
    let done = run(&format!("JOURNALCTL='echo not for you >&2; exit 1'; {journal}"), "");
    assert!(done.code() == Some(1) && done.stderr.contains("not for you"), "{}", done.describe());
}

/// Nobody has named these pools, so they must not hide what others have said.
#[test]
fn the_log_of_all_pools_goes_on_past_one_that_cannot_be_read() {
    let bed = CliBed::new(env!("CARGO_BIN_EXE_canopy"), "canopy-cli-", &["a", "b", "c", "p", "q", "r"]);
    let start = |args: &str, log: PathBuf, at: &str| {
        let mut command = bed.command(&format!("mount -f -o survive=false {args}"));
        let stderr = fs::File::create(log).unwrap();
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr).spawn().unwrap();
        assert!(wait_until(PATIENCE, || bed.mount_at(at).is_some()), "{args}");
        fs::metadata(bed.path(at)).unwrap();
        child
    };
    let mut dead = start("@a @p", bed.path("log"), "p");
    // Its log is in the first.
    let mut hidden = start("@b @q", bed.path("p/log"), "q");
    let mut well = start("@c @r", bed.path("log-r"), "r");
    signal(pid(&dead), "KILL");
    assert!(wait_within(&mut dead, PATIENCE).is_some());

    let all = run_within(&mut bed.command("log"), PATIENCE);
    assert!(all.success(), "{}", all.describe());
    assert!(all.stdout.contains(&bed.path("log-r").display().to_string()), "{}", all.describe());
    let of_dead = format!("the daemon of {} cannot be found", bed.path("p").display());
    assert!(all.stderr.contains(&of_dead), "{}", all.describe());
    assert!(all.stderr.contains(&bed.path("p/log").display().to_string()), "{}", all.describe());
    // Of a pool that was named, it fails.
    let one = run_within(&mut bed.command("log @q"), PATIENCE);
    assert!(!one.success() && one.stderr.lines().count() == 1, "{}", one.describe());

    for (child, at) in [(&mut hidden, "q"), (&mut well, "r")] {
        signal(pid(child), "TERM");
        ends_well(child, PATIENCE);
        assert!(bed.mount_at(at).is_none());
    }
    bed.umount("@p");
}
