//! pjdfstest: what POSIX says about names, modes, owners, links and times.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use canopy_testkit::cmd::run_within;
use canopy_testkit::{Branches, Kind, LoopFs, PATIENCE, lag};

use super::tools::{NO_PASSTHROUGH, Rig, branches, plain_disks, program, report, turn};

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
    // A case that syncs waits for a disk that lags.
    let patience = if lag().is_some() { 20 * PATIENCE } else { 5 * PATIENCE };
    let done = run_within(&mut command, patience);
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

/// Cases that fail on a filesystem itself, with the reason. What fails on it fails in a pool over it.
const FAIL_ON: [(Kind, &str, &str); 1] =
    [(Kind::Btrfs, "rename::updates_link_parent", "a directory has one link, whatever it holds")];

#[track_caller]
fn compare(options: &str) {
    let _turn = turn();
    let plains = plain_disks();
    let second = LoopFs::ext4(64 << 20);
    let rig = Rig::new(options);
    for (features, with_second, cases) in RUNS {
        let second = with_second.then(|| second.path());
        // In a mixture, a case has to pass on every kind of branch.
        let (mut expected, mut excused) = (None::<BTreeSet<String>>, Vec::new());
        for plain in &plains {
            let (kind, bare) = (plain.kind(), run(plain.path(), features, second));
            let known = FAIL_ON.iter().filter(|(on, ..)| *on == kind).map(|(_, case, _)| *case);
            let known: Vec<&str> = known.collect();
            let unknown = |line: &&String| !known.iter().any(|case| line.starts_with(&format!("{case}:")));
            let failed: Vec<&String> = bare.failed.iter().filter(unknown).collect();
            report(&format!("pjdfstest on {kind:?} itself: {}", bare.summary));
            assert!(failed.is_empty(), "{kind:?} itself fails: {failed:#?}");
            if kind == Kind::Ext4 {
                assert_eq!(bare.passed.len(), cases, "other cases apply to ext4: {}", bare.summary);
            }
            let fails = |case: &str| bare.failed.iter().any(|line| line.starts_with(&format!("{case}:")));
            assert!(known.iter().all(|case| fails(case)), "{kind:?} passes one of {known:?} by now");
            excused.extend(known);
            expected = Some(expected.map_or(bare.passed.clone(), |all| &all & &bare.passed));
        }
        let expected = expected.expect("a kind");
        let found = run(rig.pool.path(), features, second);
        report(&format!("pjdfstest [{options}] over {:?}: {}", branches(), found.summary));
        let excuse = |line: &&String| !excused.iter().any(|case| line.starts_with(&format!("{case}:")));
        let failed: Vec<&String> = found.failed.iter().filter(excuse).collect();
        assert!(failed.is_empty(), "{}\n{failed:#?}", found.summary);
        let missing: Vec<&str> = expected.difference(&found.passed).map(String::as_str).collect();
        let reasons = NOT_ON_FUSE.iter().map(|(case, _)| *case).filter(|case| expected.contains(*case));
        assert_eq!(
            missing,
            reasons.collect::<Vec<_>>(),
            "passed without a pool, not run on it\n{}",
            found.output
        );
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
    if branches() != Branches::All(Kind::Ext4) {
        report("pjdfstest [] link_count_max is a limit of ext4");
        return;
    }
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
