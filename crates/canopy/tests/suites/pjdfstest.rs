//! pjdfstest: what POSIX says about names, modes, owners, links and times.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use canopy_testkit::cmd::run_within;
use canopy_testkit::{LoopFs, PATIENCE};

use super::tools::{NO_PASSTHROUGH, Rig, disk, program, report, turn};

/// The number of cases that apply to ext4 with `posix_fallocate` as the only feature.
const BASE_CASES: usize = 356;
/// The number of cases that apply to ext4 with all features of Linux and a second filesystem for EXDEV. The other 13 of
/// 398 remount the filesystem read-only, which ext4 itself sometimes refuses because a file was just closed.
const ALL_CASES: usize = 385;

/// Tuples of the features, whether the run has a second filesystem, and the number of cases that apply.
const RUNS: [(&[&str], bool, usize); 2] = [
    (&["posix_fallocate"], false, BASE_CASES),
    (&["posix_fallocate", "rename_ctime", "utime_now", "utimensat"], true, ALL_CASES),
];

/// Cases that cannot apply to any FUSE filesystem, with the reason.
const NOT_ON_FUSE: [(&str, &str); 1] = [(
    "link::link_count_max",
    "glibc answers pathconf(_PC_LINK_MAX) by the filesystem's magic; see link_count_limit",
)];

#[derive(Debug, Default)]
struct Outcome {
    summary: String,
    passed: BTreeSet<String>,
    failed: Vec<String>,
    output: String,
}

/// Runs the suite in a directory. Debian and Ubuntu always have the two users.
fn run(dir: &Path, features: &[&str], second: Option<&Path>) -> Outcome {
    let features: String = features.iter().map(|name| format!("{name} = {{}}\n")).collect();
    let config = format!(
        "[features]\n{features}\n[settings]\nnaptime = 0.02\nallow_remount = false\n\n\
         [dummy_auth]\nentries = [[\"nobody\", \"nogroup\"], [\"daemon\", \"daemon\"]]\n"
    );
    let file = tempfile_with(&config);
    let mut command = Command::new(program("pjdfstest"));
    command.arg("-c").arg(file.path()).arg("-p").arg(dir).env("NO_COLOR", "1").env("RUST_BACKTRACE", "0");
    if let Some(second) = second {
        command.arg("-s").arg(second);
    }
    let done = run_within(&mut command, 5 * PATIENCE);
    parse(format!("{}{}", done.stdout, done.stderr), &done.describe())
}

fn tempfile_with(text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    fs::write(file.path(), text).expect("a write");
    file
}

fn parse(output: String, whole: &str) -> Outcome {
    let mut outcome = Outcome::default();
    let mut lines = output.lines().peekable();
    while let Some(line) = lines.next() {
        match line.split_whitespace().collect::<Vec<_>>()[..] {
            [case, "ok"] => drop(outcome.passed.insert(case.to_owned())),
            [case, "FAILED"] => {
                let reason = lines.peek().map_or("", |next| next.trim());
                outcome.failed.push(format!("{case}: {reason}"));
            }
            ["Summary:", ..] => line.clone_into(&mut outcome.summary),
            _ => {}
        }
    }
    assert!(!outcome.summary.is_empty(), "pjdfstest did not finish: {whole}");
    let passed = format!(" {} passed", outcome.passed.len());
    assert!(outcome.summary.contains(&passed), "the cases do not add up to {:?}\n{whole}", outcome.summary);
    outcome.output = output;
    outcome
}

#[track_caller]
fn compare(options: &str) {
    let _turn = turn();
    let plain = disk();
    let second = LoopFs::ext4(64 << 20);
    let rig = Rig::new(options);
    for (features, with_second, cases) in RUNS {
        let second = with_second.then(|| second.path());
        let expected = run(plain.path(), features, second);
        assert!(expected.failed.is_empty(), "ext4 itself fails:\n{}", expected.output);
        assert_eq!(expected.passed.len(), cases, "other cases apply to ext4: {}", expected.summary);
        let found = run(rig.pool.path(), features, second);
        report(&format!("pjdfstest [{options}] {}", found.summary));
        assert!(found.failed.is_empty(), "{}\n{}", found.summary, found.failed.join("\n"));
        let missing: Vec<&str> = expected.passed.difference(&found.passed).map(String::as_str).collect();
        let reasons: Vec<&str> = NOT_ON_FUSE.iter().map(|(case, _)| *case).collect();
        assert_eq!(missing, reasons, "passed on ext4, not run on the pool\n{}", found.output);
    }
    rig.end();
}

/// The default options.
#[test]
fn io_uring_with_watch_coherence() {
    compare("io-uring=on,cache.coherence=watch");
}

#[test]
fn dev_fuse_with_timeout_coherence_and_without_passthrough() {
    compare(&format!("io-uring=off,cache.coherence=timeout,{NO_PASSTHROUGH}"));
}

/// The one case that pjdfstest skips on FUSE: the pool accepts as many links as its branch, then returns EMLINK.
#[test]
fn link_count_limit() {
    const EXT4_LINKS: u64 = 65_000;
    let _turn = turn();
    let rig = Rig::new("");
    let dir = rig.pool.path().join("links");
    fs::create_dir(&dir).expect("a directory");
    let file = dir.join("1");
    fs::write(&file, b"").expect("a file");
    let mut count = 1;
    let error = loop {
        match fs::hard_link(&file, dir.join((count + 1).to_string())) {
            Ok(()) => count += 1,
            Err(error) => break error,
        }
    };
    let links = fs::metadata(&file).expect("the file").nlink();
    assert_eq!((count, links, error.kind()), (EXT4_LINKS, EXT4_LINKS, ErrorKind::TooManyLinks), "{error}");
    fs::remove_dir_all(&dir).expect("removed");
    report("pjdfstest [] link_count_max, by hand: EMLINK after 65000 links, as on ext4");
    rig.end();
}

#[test]
fn a_summary_that_does_not_match_its_cases_is_an_error() {
    let output =
        "a::b    ok\nc::d   FAILED\n\tno such file\nBacktrace\nSummary: 1 failed, 0 skipped, 1 passed, 0 x";
    let outcome = parse(output.to_owned(), "");
    assert_eq!(outcome.failed, ["c::d: no such file"]);
    assert!(
        std::panic::catch_unwind(|| parse("Summary: 0 failed, 0 skipped, 7 passed".to_owned(), "")).is_err()
    );
    assert!(std::panic::catch_unwind(|| parse("a ok".to_owned(), "")).is_err());
}
