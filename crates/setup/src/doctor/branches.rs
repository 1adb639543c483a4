//! The branches of mounted pools, and who else uses them.

use super::{Action, Bind, Branch, Facts, Finding, Level, RunningPool, finding};
use canopy_sys::mountinfo;
use canopy_sys::shown::Show as _;
use std::path::Path;

pub(super) fn look(facts: &Facts, found: &mut Vec<Finding>) {
    found.extend(facts.binds.iter().map(bind));
    found.extend(facts.running.iter().filter_map(|pool| roots(facts, pool)));
    found.extend(facts.branches.iter().filter_map(|branch| parity(facts, branch)));
    for branch in &facts.branches {
        let (path, fstype) = (branch.path.shown(), &branch.fstype);
        let lacks = match fstype.as_str() {
            "vfat" | "exfat" => "owners, permissions, links and extended attributes",
            "ntfs" | "ntfs3" | "fuseblk" => "owners and permissions as Linux has them",
            _ => continue,
        };
        let text = format!("{path} is {fstype}, which has no {lacks}: files lose them there");
        let pool = branch.pool.shown();
        let fix =
            format!("keep it for reading (canopy mode {pool} {path} RO), or format it with ext4 or XFS");
        found.push(finding("branch-lacks-features", Level::Warning, text, fix));
    }
    found.extend(access_times(facts));
    if let Some(file) = &facts.spindown {
        let spinning: Vec<String> =
            facts.branches.iter().filter(|one| one.spins).map(|one| one.path.shown().to_string()).collect();
        if !spinning.is_empty() {
            let text =
                format!("{} sends disks to sleep, perhaps those of {}", file.shown(), spinning.join(", "));
            let fix = "nothing, if the first access may take ten seconds; otherwise turn it off there";
            found.push(finding("disks-sleep", Level::Note, text, fix));
        }
    }
}

/// Finds disks that turn, and on which reading a file writes when that was.
fn access_times(facts: &Facts) -> Option<Finding> {
    let mut places: Vec<&Path> = Vec::new();
    for branch in facts.branches.iter().filter(|branch| branch.spins) {
        let Some(mounted) = mountinfo::holding_in(&facts.mounts, &branch.path) else { continue };
        let writes = !mounted.options.split(',').any(|option| matches!(option, "noatime" | "ro"));
        if writes && !places.contains(&&*mounted.mountpoint) {
            places.push(&mounted.mountpoint);
        }
    }
    let first = places.first()?.shown();
    let all: Vec<String> = places.iter().map(|place| place.shown().to_string()).collect();
    let text = format!("reading writes to {}: when a file was last read, up to once a day", all.join(", "));
    let fix = format!(
        "nothing, if the disks need not sleep; otherwise add noatime to their lines in fstab, then: mount -o remount,noatime {first}"
    );
    Some(finding("disks-write-atime", Level::Note, text, fix))
}

fn bind(bind: &Bind) -> Finding {
    let (branch, at) = (bind.branch.shown(), bind.at.shown());
    let text = format!(
        "process {} ({}) has the branch {branch} mounted at {at} instead of the pool: it cannot see files on other branches, and loses those that move",
        bind.pid, bind.program
    );
    finding(
        "container-binds-branch",
        Level::Warning,
        text,
        "give the container the pool's mountpoint instead",
    )
}

/// Finds roots of branches that differ: whether somebody may create files at the top of the pool depends on the disk.
fn roots(facts: &Facts, pool: &RunningPool) -> Option<Finding> {
    let shown = pool.root?;
    let differs =
        |branch: &&Branch| branch.pool == pool.mountpoint && branch.root.is_some_and(|root| root != shown);
    let describe = |(user, group, mode): (u32, u32, u32)| format!("{user}:{group} {mode:o}");
    let others = facts.branches.iter().filter(differs);
    let others: Vec<String> = others
        .filter_map(|branch| Some(format!("{} ({})", branch.path.shown(), describe(branch.root?))))
        .collect();
    if others.is_empty() {
        return None;
    }
    let place = pool.mountpoint.shown().to_string();
    let text = format!(
        "the root of {place} has owner and mode {}, but {} differ: who can create files there depends on the disk",
        describe(shown),
        others.join(", ")
    );
    let (owner, mode) = (format!("{}:{}", shown.0, shown.1), format!("{:o}", shown.2));
    // The pool changes all of its disks.
    let fix = format!("chown {owner} {place}; chmod {mode} {place}");
    let commands = [["chown", &owner, &place], ["chmod", &mode, &place]];
    let commands = commands.map(|command| command.map(str::to_owned).to_vec());
    Some(finding("roots-differ", Level::Warning, text, fix).by(Action::Run(commands.to_vec())))
}

fn parity(facts: &Facts, branch: &Branch) -> Option<Finding> {
    let file = facts.parity.iter().find(|file| file.starts_with(&branch.path))?;
    let (path, pool) = (branch.path.shown(), branch.pool.shown().to_string());
    let text = format!(
        "{path} is a branch of {pool} and holds SnapRAID parity ({}): new files take the space that parity needs",
        file.shown()
    );
    let fix = format!("move its other files to other disks, then: canopy remove {pool} {path}");
    Some(finding("parity-is-branch", Level::Warning, text, fix))
}

#[cfg(test)]
mod tests {
    use super::super::findings;
    use super::super::tests::{branch, codes, good};
    use super::*;

    #[test]
    fn roots_that_differ_are_found() {
        let rooted = |path: &str, root| Branch { root, ..branch(path, "ext4") };
        let facts = |second| Facts {
            running: vec![RunningPool {
                mountpoint: "/mnt/pool".into(),
                branches: vec!["/mnt/d1".into(), "/mnt/d2".into()],
                root: Some((0, 0, 0o755)),
            }],
            branches: vec![rooted("/mnt/d1", Some((0, 0, 0o755))), rooted("/mnt/d2", second)],
            ..good()
        };
        for (second, expected) in [
            (Some((0, 0, 0o755)), 0),
            (None, 0),
            (Some((1000, 0, 0o755)), 1),
            (Some((0, 7, 0o755)), 1),
            (Some((0, 0, 0o2775)), 1),
        ] {
            let found = findings(&facts(second));
            assert_eq!(found.iter().filter(|one| one.code == "roots-differ").count(), expected, "{found:?}");
            assert_eq!(found.len(), expected);
            for one in found {
                assert_eq!(one.fix, "chown 0:0 /mnt/pool; chmod 755 /mnt/pool");
            }
        }
    }

    #[test]
    fn parity_on_a_branch_is_found() {
        let facts = |parity: &str| Facts {
            branches: vec![branch("/mnt/d1", "ext4")],
            parity: vec![parity.into()],
            ..good()
        };
        assert_eq!(codes(&facts("/mnt/d1/snapraid.parity")), ["parity-is-branch"]);
        assert_eq!(codes(&facts("/mnt/d10/snapraid.parity")), Vec::<String>::new());
    }

    #[test]
    fn disks_that_are_written_to_by_reading_are_found() {
        let mounts = "30 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw\n\
                      31 30 8:17 / /mnt/d1 rw,relatime - ext4 /dev/sdb1 rw\n\
                      32 30 8:33 / /mnt/d2 rw,noatime - xfs /dev/sdc1 rw\n\
                      33 30 8:49 / /mnt/d3 ro,relatime - ext4 /dev/sdd1 ro\n";
        let facts = |paths: &[&str], spins| Facts {
            mounts: mountinfo::parse(mounts.as_bytes()),
            branches: paths.iter().map(|path| Branch { spins, ..branch(path, "ext4") }).collect(),
            ..good()
        };
        let codes = |paths: &[&str], spins| codes(&facts(paths, spins));
        assert_eq!(codes(&["/mnt/d1", "/mnt/d2"], true), ["disks-write-atime"]);
        for (paths, spins) in [(&["/mnt/d1"], false), (&["/mnt/d2"], true), (&["/mnt/d3"], true)] {
            assert_eq!(codes(paths, spins), Vec::<String>::new(), "{paths:?}");
        }
        let found = findings(&facts(&["/mnt/d1/a", "/mnt/d1/b"], true));
        assert_eq!(found[0].text, "reading writes to /mnt/d1: when a file was last read, up to once a day");
    }
}
