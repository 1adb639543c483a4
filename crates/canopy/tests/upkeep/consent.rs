//! Every command that moves, removes or changes something shows its plan and asks.

use super::rig::{answering, canopy, disks, put};
use canopy_testkit::PoolBed;
use canopy_testkit::cmd::run;
use std::fs;
use std::os::unix::fs::PermissionsExt;

/// What a command does where nobody can be asked and nothing is said.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Alone {
    Acts,
    Shows,
}

/// Command lines, where POOL and DISK stand for those, and the question.
const COMMANDS: &[(&str, Alone, &str)] = &[
    ("move POOL only --to DISK1", Alone::Acts, "Move them?"),
    ("balance POOL --to 1%", Alone::Acts, "Move them?"),
    ("drain POOL DISK0", Alone::Acts, "Move them?"),
    ("consolidate POOL spread", Alone::Acts, "Move them?"),
    ("dup POOL only", Alone::Acts, "Copy them?"),
    ("tier POOL --once --eager", Alone::Acts, "Move them?"),
    ("dedup POOL twice", Alone::Shows, "remove those that are equal?"),
    ("dedup POOL one --link hard", Alone::Shows, "share their space?"),
    ("verify POOL only", Alone::Shows, "(n only reads)"),
    ("fsck POOL --keep newest", Alone::Shows, "Repair them (1)?"),
];

fn bed() -> PoolBed {
    let bed = disks("keep=lost+found");
    populate(&bed);
    bed
}

fn populate(bed: &PoolBed) {
    put(bed, 0, "only", vec![1; 8 << 20]);
    put(bed, 0, "spread/a", vec![2; 2 << 20]);
    put(bed, 1, "spread/b", vec![3; 1 << 20]);
    for branch in [0, 1] {
        put(bed, branch, "twice", "the same");
        put(bed, branch, "modes", "the same");
        let old = fs::File::options().write(true).open(bed.on(branch, "twice")).unwrap();
        old.set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000)).unwrap();
    }
    for name in ["one/x", "one/y"] {
        put(bed, 1, name, vec![7; 1 << 16]);
        let old = fs::File::options().write(true).open(bed.on(1, name)).unwrap();
        old.set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000)).unwrap();
    }
    fs::set_permissions(bed.on(1, "modes"), fs::Permissions::from_mode(0o600)).unwrap();
}

/// Returns all that a command may change on the branches.
fn state(bed: &PoolBed) -> String {
    let roots = (0..3).map(|branch| bed.on(branch, ""));
    roots
        .map(|root| {
            let found = "find . -path ./lost+found -prune -o -printf '%p %m %n %s\\n' | sort; \
                         getfattr -R -d -m user.canopy . 2>/dev/null | sort";
            run("sh", ["-c".to_owned(), format!("cd {} && {found}", root.display())])
        })
        .collect()
}

fn words(bed: &PoolBed, line: &str) -> String {
    let pool = bed.pool.path().display().to_string();
    let mut line = line.replace("POOL", &pool);
    for branch in 0..3 {
        line = line.replace(&format!("DISK{branch}"), &bed.on(branch, "").display().to_string());
    }
    for name in [" only", " spread", " twice", " one"] {
        line = line.replace(name, &format!(" {pool}/{}", name.trim()));
    }
    line
}

/// One bed for the refusals: nothing changes.
#[test]
fn no_command_acts_before_somebody_says_yes() {
    let bed = bed();
    let before = state(&bed);
    for (line, alone, question) in COMMANDS {
        tiers(&bed, line);
        let line = words(&bed, line);
        for answer in ["n\n", "\n"] {
            let (status, shown) = answering(&line, &[("[y/N]", answer)]);
            assert!(shown.contains(question), "{line}: {shown}");
            let expected = match line.split(' ').next() {
                Some("verify") => 0,
                Some("fsck") => 4,
                _ => 3,
            };
            assert_eq!(status, Some(expected), "{line}: {shown}");
        }
        let dry = canopy(format!("{line} --dry-run").split(' '));
        assert!(matches!(dry.code(), Some(0 | 1 | 4)), "{line}: {}", dry.describe());
        if *alone == Alone::Shows {
            let shown = canopy(line.split(' '));
            let expected = match line.split(' ').next() {
                Some("verify") => 0,
                Some("fsck") => 4,
                _ => 3,
            };
            assert_eq!(shown.code(), Some(expected), "{line}: {}", shown.describe());
        }
        assert_eq!(state(&bed), before, "{line}");
    }
}

#[test]
fn a_yes_is_enough() {
    let bed = bed();
    for (line, alone, _) in COMMANDS {
        tiers(&bed, line);
        let words = words(&bed, line);
        let before = state(&bed);
        let status = match alone {
            // There is nobody to ask.
            Alone::Acts => canopy(words.split(' ')).code(),
            Alone::Shows => canopy(format!("{words} --yes").split(' ')).code(),
        };
        assert!(matches!(status, Some(0 | 1)), "{line}: {status:?}");
        assert_ne!(state(&bed), before, "{line} without a terminal");
        clean(&bed);
        let before = state(&bed);
        let (status, shown) = answering(&words, &[("[y/N]", "y\n"), ("", "n\n")]);
        assert!(matches!(status, Some(0 | 1)), "{line}: {status:?} {shown}");
        assert_ne!(state(&bed), before, "{line} at a terminal: {shown}");
        clean(&bed);
    }
    // Older scripts say it in other words.
    for line in ["dedup POOL twice --write", "verify POOL only --fix", "fsck POOL --fix newest"] {
        let words = words(&bed, line);
        let before = state(&bed);
        let done = canopy(words.split(' '));
        assert!(matches!(done.code(), Some(0 | 1)), "{line}: {}", done.describe());
        assert_ne!(state(&bed), before, "{line}");
        clean(&bed);
    }
}

/// Sets tiers if the command needs them.
fn tiers(bed: &PoolBed, line: &str) {
    let [fast, slow] = [0, 1].map(|branch| bed.on(branch, "").display().to_string());
    let mut value = "tiers=".to_owned();
    if line.starts_with("tier ") {
        value += &format!("fast={fast}|larger than 1M;slow={slow}");
    }
    let done = canopy(["set".as_ref(), bed.pool.path().as_os_str(), value.as_ref()]);
    assert!(done.success(), "{}", done.describe());
}

/// Makes the branches what they were.
fn clean(bed: &PoolBed) {
    for branch in 0..3 {
        for entry in fs::read_dir(bed.on(branch, "")).unwrap().flatten() {
            match entry.path() {
                path if path.ends_with("lost+found") => {}
                path if path.is_dir() => fs::remove_dir_all(path).unwrap(),
                path => fs::remove_file(path).unwrap(),
            }
        }
    }
    populate(bed);
}
