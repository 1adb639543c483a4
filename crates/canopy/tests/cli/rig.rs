//! Helpers to run commands that fail, mount pools in the foreground, and send signals.

pub(super) use canopy_testkit::PATIENCE;
use canopy_testkit::cmd::{Finished, in_mount_namespace, run_within, wait_until, wait_within};
use canopy_testkit::{CliBed, proc};
use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Makes two branches and a mountpoint.
#[track_caller]
pub(super) fn bed() -> CliBed {
    CliBed::new(env!("CARGO_BIN_EXE_canopy"), "canopy-cli-", &["a", "b", "p"])
}

/// Runs `canopy LINE`, which must fail with one line and mount nothing. Returns that line.
#[track_caller]
pub(super) fn mistake(bed: &CliBed, line: &str) -> String {
    refused(bed, &mut bed.command(line))
}

/// Runs a command that must fail with one line and mount nothing. Returns that line.
#[track_caller]
pub(super) fn refused(bed: &CliBed, command: &mut Command) -> String {
    let before = mounts(bed);
    let done = run_within(command, PATIENCE);
    assert!(matches!(done.code(), Some(1 | 2)), "{command:?}: {}", done.describe());
    assert_eq!(done.stdout, "", "{command:?}");
    let lines: Vec<&str> = done.stderr.lines().collect();
    assert_eq!(lines.len(), 1, "{command:?}: {}", done.describe());
    assert!(lines[0].starts_with("canopy: "), "{}", lines[0]);
    assert_eq!(mounts(bed), before, "{command:?}");
    lines[0].to_owned()
}

/// Returns the mounts below the directory, each with its device number.
pub(super) fn mounts(bed: &CliBed) -> Vec<(PathBuf, u32)> {
    let below = |mount: &proc::Mount| mount.point.starts_with(bed.dir());
    proc::mounts().into_iter().filter(below).map(|mount| (mount.point, mount.minor)).collect()
}

pub(super) fn is_mounted(bed: &CliBed) -> bool {
    bed.mount_at("p").is_some()
}

/// Mounts a pool in the foreground, with its log in a file.
#[track_caller]
pub(super) fn foreground(bed: &CliBed, args: &str) -> Child {
    let file = fs::File::create(bed.path("log")).unwrap();
    let mut command = bed.command(&format!("mount -f {args}"));
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file).spawn().unwrap();
    let up = wait_until(PATIENCE, || is_mounted(bed) || child.try_wait().unwrap().is_some());
    assert!(up && is_mounted(bed), "{}", log(bed));
    // The pool serves requests once it answers the first.
    fs::metadata(bed.path("p")).unwrap();
    child
}

/// Returns what a pool in the [foreground] has logged.
pub(super) fn log(bed: &CliBed) -> String {
    fs::read_to_string(bed.path("log")).unwrap_or_default()
}

pub(super) fn pid(child: &Child) -> i32 {
    child.id().try_into().unwrap()
}

pub(super) fn signal(pid: i32, name: &str) {
    let done = run_within(Command::new("kill").args(["-s", name, &pid.to_string()]), PATIENCE);
    assert!(done.success(), "{}", done.describe());
}

/// Waits for a process, which must exit with success.
#[track_caller]
pub(super) fn ends_well(child: &mut Child, within: Duration) {
    let mut status = wait_within(child, within);
    for _ in 0..8 {
        if status.is_none() && proc::is_left_elsewhere(&std::env::temp_dir()) {
            status = wait_within(child, within);
        }
    }
    if status.is_none() {
        let _ = child.kill();
        let _ = child.wait();
    }
    assert_eq!(status.and_then(|status| status.code()), Some(0), "{status:?}");
}

/// Returns a command that runs a shell script; `args` become `$1`, `$2` and so on.
pub(super) fn shell(script: &str, args: &[&OsStr]) -> Command {
    let mut command = Command::new("sh");
    command.args(["-ec", script, "sh"]).args(args);
    command
}

/// Mounts a `/dev/fuse` with the mode that udev gives it over the machine's own.
const OPEN_DEVICE: &str = r#"
    mkdir "$1/dev"; mount -t tmpfs none "$1/dev"
    mknod "$1/dev/fuse" c 10 229; chmod 666 "$1/dev/fuse"; mount --bind "$1/dev/fuse" /dev/fuse
"#;

/// Runs a script in a new mount namespace with a `/dev/fuse` for everyone. `$1` is the directory, `$2` and so on are `args`.
pub(super) fn in_private_mounts(bed: &CliBed, script: &str, args: &[&OsStr]) -> Finished {
    let mut command = in_mount_namespace(&format!("{OPEN_DEVICE}\n{script}"));
    let done = run_within(command.arg(bed.dir()).args(args), PATIENCE);
    let _ = fs::remove_dir(bed.path("dev"));
    done
}
