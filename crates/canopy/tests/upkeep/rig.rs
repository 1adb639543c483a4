//! A pool over plain directories, and running commands on it.

pub(super) use canopy_testkit::cmd::json;
use canopy_testkit::cmd::{Finished, run_within, wait_until, wait_within};
pub(super) use canopy_testkit::{DirBed as Rig, PATIENCE};
use canopy_testkit::{LoopFs, Pool, PoolBed, ScratchDir, files};
use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::process::{Command, Stdio};

pub(super) const BINARY: &str = env!("CARGO_BIN_EXE_canopy");

/// Runs `canopy COMMAND ARGS`.
pub(super) fn canopy<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Finished {
    run_within(Command::new(BINARY).args(args), PATIENCE)
}

/// Three disks of 64 MiB, without minfreespace.
pub(super) fn disks(options: &str) -> PoolBed {
    let builder = Pool::builder(BINARY).option("minfreespace=0,cache.attr=0,cache.entry=0").option(options);
    PoolBed::mount(builder, [0; 3].map(|_| LoopFs::ext4(64 << 20)))
}

/// Writes a file to a branch, with its directories.
pub(super) fn put(bed: &PoolBed, branch: usize, path: &str, content: impl AsRef<[u8]>) {
    let path = bed.on(branch, path);
    std::fs::create_dir_all(path.parent().expect("a directory")).expect("mkdir");
    std::fs::write(path, content).expect("write");
}

/// Runs `canopy COMMAND POOL ARGS`.
pub(super) fn on_pool<S: AsRef<OsStr>>(
    bed: &PoolBed,
    command: &str,
    args: impl IntoIterator<Item = S>,
) -> Finished {
    let mut program = Command::new(BINARY);
    program.arg(command).arg(bed.pool.path()).args(args);
    run_within(&mut program, PATIENCE)
}

/// Runs `canopy LINE` at a terminal and presses Ctrl-C once the terminal shows `progress`. Returns the exit status, and all that
/// the terminal has shown.
#[track_caller]
pub(super) fn interrupted_at_terminal(line: &str, progress: &str) -> (Option<i32>, String) {
    with_terminal(line, &[(progress, "\x03")])
}

/// Runs `canopy LINE` at a terminal. Returns the exit status, and all that the terminal has shown.
#[track_caller]
pub(super) fn at_terminal(line: &str) -> (Option<i32>, String) {
    with_terminal(line, &[])
}

/// Runs `canopy LINE` at a terminal, and types an answer to each question. Returns the exit status, and all that the terminal has
/// shown.
#[track_caller]
pub(super) fn answering(line: &str, answers: &[(&str, &str)]) -> (Option<i32>, String) {
    with_terminal(line, answers)
}

#[track_caller]
fn with_terminal(line: &str, typed: &[(&str, &str)]) -> (Option<i32>, String) {
    let home = ScratchDir::new("canopy-terminal-", &[]);
    let screen = home.dir().join("screen");
    // `exec`, because a shell that waits for the command would also get the signal, and might die of it.
    let line = format!("exec {BINARY} {line}");
    let mut command = Command::new("script");
    command.args(["-qec", &line, "/dev/null"]).stdin(Stdio::piped());
    let mut child = command.stdout(File::create(&screen).expect("a file")).spawn().expect("script");
    let mut keyboard = child.stdin.take().expect("stdin");
    let shown = || String::from_utf8_lossy(&std::fs::read(&screen).expect("the screen")).into_owned();
    let mut seen = true;
    for (awaited, keys) in typed {
        seen &= wait_until(PATIENCE, || shown().contains(awaited));
        keyboard.write_all(keys.as_bytes()).expect("a key");
    }
    let status = wait_within(&mut child, PATIENCE);
    if status.is_none() {
        child.kill().expect("kill");
        child.wait().expect("wait");
    }
    assert!(seen, "{}", shown());
    (status.and_then(|status| status.code()), shown())
}

/// Returns how many unfinished copies and notes of moves there are on the branches.
pub(super) fn unfinished(bed: &PoolBed) -> usize {
    bed.disks.iter().map(|disk| files::unfinished_copies(disk.path()).len()).sum()
}
