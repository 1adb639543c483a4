//! What should be mounted: pools, and their disks.

use super::{Action, Facts, Finding, Level, RunningPool, finding};
use crate::expected::{Boot, Pool};
use canopy_config::fstab::{disk_of, disks_away, unescape};
use canopy_sys::shown::Show as _;
use std::path::{Path, PathBuf};

pub(super) fn look(facts: &Facts, found: &mut Vec<Finding>) {
    for pool in &facts.pools {
        found.extend(not_mounted(facts, pool));
        found.extend(pool.empty_patterns.iter().map(|pattern| {
            let text = format!("{pattern}, a branch of {}, matches no directory", pool.title());
            let fix = format!(
                "mount the disks that it should match, or correct it in {}",
                pool.described_in.shown()
            );
            finding("pattern-matches-nothing", Level::Warning, text, fix)
        }));
        let running = facts.running.iter().find(|running| running.mountpoint == pool.mountpoint);
        found.extend(running.into_iter().flat_map(|running| lacking(pool, running)));
    }
    found.extend(disks(facts));
}

fn not_mounted(facts: &Facts, pool: &Pool) -> Option<Finding> {
    if pool.mounted {
        return None;
    }
    let (title, place) = (pool.title(), pool.mountpoint.shown().to_string());
    let name = pool.name.as_deref().unwrap_or(&place);
    let found = match pool.boot {
        Boot::Fstab => {
            let text = format!(
                "{title} is not mounted, though line {} of {} mounts it at boot",
                pool.line.unwrap_or(0),
                facts.fstab_file.shown()
            );
            let command = mount(facts, &place);
            finding("pool-not-mounted", Level::Problem, text, command.join(" "))
                .by(Action::Run(vec![command]))
        }
        Boot::Unit => {
            let unit = format!("canopy@{name}.service");
            let text = format!("{title} is not mounted, though {unit} mounts it at boot");
            let fix = format!("systemctl start {unit}; systemctl status {unit} says why it ended");
            finding("pool-not-mounted", Level::Problem, text, fix).by(Action::run(&[
                "systemctl",
                "start",
                &unit,
            ]))
        }
        Boot::Nothing => {
            let text = format!("{title} is not mounted, and nothing mounts it at boot");
            // What has no file of its own is mounted by its line of fstab (`noauto`).
            let fix = match &pool.name {
                Some(name) => format!("canopy mount {name}"),
                None => mount(facts, &place).join(" "),
            };
            finding("pool-not-mounted", Level::Note, text, fix)
        }
    };
    Some(found)
}

/// Returns the command that mounts by a line of fstab.
fn mount(facts: &Facts, place: &str) -> Vec<String> {
    let file = facts.fstab_file.shown().to_string();
    let by_file: &[&str] = if file == "/etc/fstab" { &[] } else { &["--fstab", &file] };
    ["mount"].iter().chain(by_file).chain(&[place]).map(|&word| word.to_owned()).collect()
}

/// Finds disks of fstab that are not mounted, so that a pool has the directories below them.
fn disks(facts: &Facts) -> Vec<Finding> {
    let away = disks_away(&facts.fstab, &facts.mounts);
    let mut found = Vec::new();
    for line in away {
        let holds = |branch: &PathBuf| disk_of(&facts.fstab, branch) == Some(line);
        let running = facts.running.iter().find(|pool| pool.branches.iter().any(holds));
        let described = facts.pools.iter().find(|pool| pool.branches.iter().any(holds));
        let place = unescape(&line.mountpoint);
        let place = Path::new(&place).shown().to_string();
        let file = facts.fstab_file.shown();
        let is_used = facts.branches.iter().any(|branch| holds(&branch.path));
        let (level, text) = match (running, described) {
            (Some(pool), _) if !is_used => (
                Level::Problem,
                format!(
                    "{place} is in {file} but not mounted: the pool {} runs without it",
                    pool.mountpoint.shown()
                ),
            ),
            (Some(pool), _) => (
                Level::Problem,
                format!(
                    "{place} is in {file} but not mounted: new files of the pool {} go to the disk below it",
                    pool.mountpoint.shown()
                ),
            ),
            (None, Some(pool)) => (
                Level::Warning,
                format!(
                    "{place} is in {file} but not mounted: {} would use the directory below it",
                    pool.title()
                ),
            ),
            (None, None) => continue,
        };
        let command = mount(facts, &place);
        found
            .push(finding("disk-not-mounted", level, text, command.join(" ")).by(Action::Run(vec![command])));
    }
    found
}

/// Finds branches that a pool would have if it were mounted now.
fn lacking(pool: &Pool, running: &RunningPool) -> Vec<Finding> {
    let there = |path: &&PathBuf| !running.branches.contains(path);
    let place = running.mountpoint.shown().to_string();
    let found = pool.branches.iter().filter(there).map(|path| {
        let path = path.shown();
        let text =
            format!("{} lists the branch {path}, but the pool {place} lacks it", pool.described_in.shown());
        let path = path.to_string();
        // The file lists it already, perhaps by a pattern.
        let words = ["canopy", "add", "--no-persist", &place, &path];
        finding("branch-lacking", Level::Warning, text, words.join(" ")).by(Action::run(&words))
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::super::findings;
    use super::super::tests::{branch, codes, good};
    use super::*;
    use canopy_config::fstab;
    use canopy_sys::mountinfo;

    fn pool() -> Pool {
        Pool {
            name: Some("media".into()),
            described_in: "/etc/canopy/media.toml".into(),
            mountpoint: "/mnt/media".into(),
            branches: vec!["/mnt/d1".into(), "/mnt/d2/x".into()],
            ..Pool::default()
        }
    }

    #[test]
    fn a_pool_that_is_not_mounted_is_found() {
        let facts = |boot: Boot, mounted: bool| Facts {
            fstab_file: "/etc/fstab".into(),
            pools: vec![Pool { boot, mounted, line: Some(3), ..pool() }],
            ..good()
        };
        for (boot, level, fix) in [
            (Boot::Fstab, Level::Problem, "mount /mnt/media"),
            (Boot::Unit, Level::Problem, "systemctl start canopy@media.service; "),
            (Boot::Nothing, Level::Note, "canopy mount media"),
        ] {
            let found = findings(&facts(boot, false));
            assert!(
                found.len() == 1 && found[0].level == level && found[0].fix.starts_with(fix),
                "{found:?}"
            );
            assert!(found[0].text.starts_with("the pool media is not mounted"), "{found:?}");
            assert_eq!(codes(&facts(boot, true)), Vec::<String>::new());
        }
    }

    #[test]
    fn a_pool_of_fstab_that_is_not_mounted_at_boot_is_mounted_by_its_line() {
        let pools = vec![Pool { name: None, boot: Boot::Nothing, line: Some(3), ..pool() }];
        let found = findings(&Facts { fstab_file: "/etc/fstab".into(), pools, ..good() });
        assert_eq!((found[0].level, found[0].fix.as_str()), (Level::Note, "mount /mnt/media"));
    }

    #[test]
    fn a_disk_that_is_not_mounted_is_found() {
        let lines =
            "LABEL=a / ext4 defaults 0 1\nLABEL=1 /mnt/d1 ext4 nofail 0 2\nLABEL=2 /mnt/d2 ext4 nofail 0 2\n";
        let running = RunningPool { mountpoint: "/mnt/media".into(), branches: pool().branches, root: None };
        let facts = Facts {
            fstab: fstab::parse(lines),
            mounts: mountinfo::parse(b"30 1 8:17 / /mnt/d1 rw - ext4 /dev/sdb1 rw\n"),
            pools: vec![Pool { mounted: true, ..pool() }],
            running: vec![running],
            ..good()
        };
        let found = findings(&facts);
        assert!(found.len() == 1 && found[0].code == "disk-not-mounted", "{found:?}");
        assert!(found[0].level == Level::Problem && found[0].text.starts_with("/mnt/d2 is in"), "{found:?}");
        assert!(found[0].text.ends_with("the pool /mnt/media runs without it"), "{found:?}");
        let used = vec![branch("/mnt/d2/x", "ext4")];
        let found = findings(&Facts { branches: used, ..facts.clone() });
        assert!(found[0].text.ends_with("go to the disk below it"), "{found:?}");
        // By hand or at the first access is on purpose.
        for option in ["noauto", "x-systemd.automount"] {
            let lines =
                fstab::parse(&lines.replace("/mnt/d2 ext4 nofail", &format!("/mnt/d2 ext4 {option}")));
            assert_eq!(codes(&Facts { fstab: lines, ..facts.clone() }), Vec::<String>::new(), "{option}");
        }
    }

    #[test]
    fn patterns_are_compared_with_the_pool() {
        let running = |branches: &[&str]| RunningPool {
            mountpoint: "/mnt/media".into(),
            branches: branches.iter().map(PathBuf::from).collect(),
            root: None,
        };
        let facts = |branches: &[&str]| Facts {
            pools: vec![Pool { mounted: true, empty_patterns: vec!["/mnt/usb*".into()], ..pool() }],
            running: vec![running(branches)],
            ..good()
        };
        assert_eq!(codes(&facts(&["/mnt/d2/x", "/mnt/d1"])), ["pattern-matches-nothing"]);
        let found = findings(&facts(&["/mnt/d1"]));
        let lacking = found.iter().find(|one| one.code == "branch-lacking").expect("a finding");
        assert_eq!(
            lacking.action,
            Some(Action::run(&["canopy", "add", "--no-persist", "/mnt/media", "/mnt/d2/x"]))
        );
    }
}
