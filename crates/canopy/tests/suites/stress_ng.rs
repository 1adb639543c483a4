//! stress-ng's filesystem class: a short, verified run of each stressor on the pool, compared with a plain disk.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use canopy_testkit::PATIENCE;
use canopy_testkit::cmd::run_within;

use super::tools::{NO_PASSTHROUGH, Rig, disk, program, report, turn};

/// A stressor ends after this many of its operations or seconds, whichever comes first.
const OPS: &str = "5000";
const SECONDS: &str = "1";
/// Far more than any stressor needs, including its cleanup.
const DEADLINE: Duration = Duration::from_secs(3 * PATIENCE.as_secs());

/// Stressors of the class that do not touch the directory they are given.
const NOT_IN_THE_DIRECTORY: [(&str, &str); 7] = [
    ("bind-mount", "mounts in a namespace of its own"),
    ("binderfs", "mounts binderfs"),
    ("eventfd", "has no files"),
    ("procfs", "reads /proc"),
    ("ramfs", "mounts a ramfs"),
    ("sysfs", "reads /sys"),
    ("umount", "mounts and unmounts other filesystems"),
];

/// Stressors that may lack a feature on the pool that the disk has.
const MAY_SKIP: [(&str, &str); 2] = [
    ("fiemap", "the kernel's FUSE client has no fiemap operation"),
    ("verity", "the kernel's FUSE client passes fs-verity on for a few requests only"),
];

#[derive(Debug, Clone, PartialEq, Eq)]
enum Verdict {
    Passed,
    Skipped(String),
    Failed(String),
}

/// Returns the stressors of the filesystem class in the installed version of stress-ng.
fn stressors() -> Vec<String> {
    let done = run_within(Command::new(program("stress-ng")).args(["--class", "filesystem?"]), DEADLINE);
    let text = format!("{} {}", done.stdout, done.stderr);
    let (_, names) = text.split_once("stressors:").unwrap_or_else(|| panic!("no list: {}", done.describe()));
    let names: Vec<String> = names.split_whitespace().map(str::to_owned).collect();
    assert!(names.len() > 20, "a short list: {}", done.describe());
    names.into_iter().filter(|name| !NOT_IN_THE_DIRECTORY.iter().any(|(other, _)| other == name)).collect()
}

/// Runs one stressor. `timeout` kills its whole process group, so that a hung stressor leaves no workers.
fn run(stressor: &str, dir: &Path) -> Verdict {
    let seconds = DEADLINE.as_secs().to_string();
    let mut command = Command::new("timeout");
    command.args(["--kill-after=5", &seconds]).arg(program("stress-ng"));
    command.args([&format!("--{stressor}"), "1", &format!("--{stressor}-ops"), OPS, "--timeout", SECONDS]);
    command.args(["--verify", "--no-rand-seed", "--oomable", "--temp-path"]).arg(dir);
    let done = run_within(&mut command, DEADLINE + PATIENCE);
    let verdict = judge(done.code(), &format!("{}\n{}", done.stdout, done.stderr));
    match leftovers(dir) {
        left if left.is_empty() => verdict,
        left => {
            for path in &left {
                let _ = fs::remove_dir_all(path);
            }
            match verdict {
                Verdict::Failed(_) => verdict,
                _ => Verdict::Failed(format!("left {left:?} behind")),
            }
        }
    }
}

/// Interprets an exit code and the printed lines. The code of a skipped stressor depends on the version: 0, 3 or 4.
fn judge(code: Option<i32>, output: &str) -> Verdict {
    let find = |marks: &[&str]| {
        output
            .lines()
            .find(|line| marks.iter().any(|mark| line.contains(mark)))
            .map(|line| line.trim().to_owned())
    };
    let reason = || find(&["fail:", "error:"]).unwrap_or_else(|| output.trim().to_owned());
    match code {
        None => Verdict::Failed("killed by a signal or at its deadline".to_owned()),
        Some(124 | 137) => Verdict::Failed(format!("hung for {DEADLINE:?}: {}", reason())),
        Some(0 | 3 | 4) => {
            if let Some(line) = find(&[" fail: "]) {
                Verdict::Failed(line)
            } else if let Some(line) = find(&["skipping stress", "not implemented", "aborted early"]) {
                Verdict::Skipped(line)
            } else if code == Some(0) {
                Verdict::Passed
            } else {
                Verdict::Skipped(reason())
            }
        }
        Some(code) => Verdict::Failed(format!("exit code {code}: {}", reason())),
    }
}

fn leftovers(dir: &Path) -> Vec<PathBuf> {
    fs::read_dir(dir).expect("the directory").map(|entry| entry.expect("an entry").path()).collect()
}

fn stress_directory(root: &Path) -> PathBuf {
    let dir = root.join("stress");
    fs::create_dir(&dir).expect("a directory");
    fs::set_permissions(&dir, PermissionsExt::from_mode(0o777)).expect("chmod");
    dir
}

#[track_caller]
fn compare(options: &str) {
    let _turn = turn();
    let plain = disk();
    let plain_dir = stress_directory(plain.path());
    let rig = Rig::new(options);
    let pool_dir = stress_directory(rig.pool.path());
    // The first run starts threads and opens lasting descriptors, so the count starts after it.
    run("dentry", &pool_dir);
    let descriptors = rig.pool.settled_fd_count(0);

    let started = Instant::now();
    let (mut passed, mut skipped, mut faults) = (0, Vec::new(), Vec::new());
    for stressor in stressors() {
        let found = run(&stressor, &pool_dir);
        if !rig.pool.is_alive() {
            faults.push(format!("{stressor}: the daemon died"));
            break;
        }
        // Only a stressor that does not pass needs the comparison.
        let expected = if found == Verdict::Passed { Verdict::Passed } else { run(&stressor, &plain_dir) };
        match (expected, found) {
            (_, Verdict::Passed) => passed += 1,
            (Verdict::Passed, Verdict::Skipped(_)) if MAY_SKIP.iter().any(|(name, _)| *name == stressor) => {
                skipped.push(stressor);
            }
            (Verdict::Passed, found) => {
                faults.push(format!("{stressor}: passes on ext4, on the pool: {found:?}"))
            }
            (Verdict::Skipped(_), Verdict::Failed(why)) => faults.push(format!("{stressor}: {why}")),
            (_, found) => {
                report(&format!("stress-ng [{options}] {stressor}: not on ext4 either: {found:?}"));
                skipped.push(stressor);
            }
        }
    }
    let left = rig.pool.settled_fd_count(descriptors);
    report(&format!(
        "stress-ng [{options}] {passed} passed, {} skipped ({}), {} failed, {:.0?}, descriptors {descriptors} -> {left}",
        skipped.len(),
        skipped.join(" "),
        faults.len(),
        started.elapsed()
    ));
    assert!(faults.is_empty(), "{}\n--- log\n{}", faults.join("\n"), rig.pool.log());
    assert!(
        left <= descriptors,
        "{descriptors} descriptors grew to {left}: {:?}",
        rig.pool.branch_descriptors()
    );
    rig.end();
}

#[test]
fn default_options() {
    compare("");
}

#[test]
fn without_passthrough() {
    compare(NO_PASSTHROUGH);
}

#[test]
fn exit_codes_and_lines_are_understood() {
    let skip = "stress-ng: info:  [1] fiemap: FIEMAP not supported, skipping stressor, filesystem type: fuse";
    let fail = "stress-ng: fail:  [1] chmod: fchmod failed, errno=5 (Input/output error)";
    assert_eq!(judge(Some(0), "stress-ng: info: successful run completed"), Verdict::Passed);
    assert!(matches!(judge(Some(0), skip), Verdict::Skipped(line) if line.contains("FIEMAP")));
    assert!(matches!(judge(Some(4), ""), Verdict::Skipped(_)));
    assert!(matches!(judge(Some(0), fail), Verdict::Failed(line) if line.contains("errno=5")));
    assert!(matches!(judge(Some(2), fail), Verdict::Failed(line) if line.starts_with("exit code 2")));
    assert!(matches!(judge(Some(124), ""), Verdict::Failed(_)));
    assert!(matches!(judge(None, ""), Verdict::Failed(_)));
}
