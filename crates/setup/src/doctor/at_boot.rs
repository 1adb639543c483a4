//! Whether pools are mounted at boot: after their disks, and without one that is dead.

use super::{Action, Facts, Finding, Level, finding};
use crate::expected::{Boot, Pool};
use crate::unit::mount_unit;
use canopy_config::fstab::{Line, disk_of, unescape};
use canopy_sys::shown::Show as _;
use std::path::Path;

/// How a line waits for a mount.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Waits {
    Not,
    /// It waits until the mount is there or has failed.
    After,
    /// It fails with the mount.
    Requires,
}

const FOR_UNITS: [(&str, Waits); 3] = [
    ("x-systemd.after", Waits::After),
    ("x-systemd.wants", Waits::Not),
    ("x-systemd.requires", Waits::Requires),
];
const FOR_PATHS: [(&str, Waits); 2] =
    [("x-systemd.wants-mounts-for", Waits::After), ("x-systemd.requires-mounts-for", Waits::Requires)];

pub(super) fn look(facts: &Facts, found: &mut Vec<Finding>) {
    found.extend(facts.pools.iter().flat_map(|pool| by_unit(facts, pool)));
    let by_units = facts.pools.iter().filter(|pool| pool.boot == Boot::Unit).flat_map(|pool| &pool.branches);
    let disks = by_units.filter_map(|branch| disk_of(&facts.fstab, branch));
    found.extend(disks.filter_map(|disk| holds_up_boot(facts, disk)));
    for line in facts.fstab.iter().filter(|line| line.is_pool() && !line.has_option("noauto")) {
        let place = line_of(facts, line);
        if !line.has_option("nofail") {
            let text =
                format!("{place} lacks nofail: if the pool cannot be mounted, the machine does not start");
            found.push(with_option(finding("fstab-nofail", Level::Warning, text, ""), line, "nofail"));
        }
        let mine = facts.pools.iter().filter(|pool| pool.line == Some(line.number));
        for branch in mine.flat_map(|pool| &pool.branches) {
            if let Some(disk) = disk_of(&facts.fstab, branch) {
                found.extend(about_disk(facts, line, disk));
            }
        }
    }
}

/// Judges whether the unit of a pool waits for its disks. It does for those without nofail, which are part of local-fs.target.
fn by_unit(facts: &Facts, pool: &Pool) -> Vec<Finding> {
    let Some(name) = pool.name.as_ref().filter(|_| pool.boot == Boot::Unit) else { return Vec::new() };
    let later = |disk: &&Line| {
        let mountpoint = unescape(&disk.mountpoint);
        let unit = mount_unit(&mountpoint.to_string_lossy());
        let waits =
            pool.unit_waits_for.iter().any(|wait| *wait == unit || Path::new(wait).starts_with(&mountpoint));
        disk.has_option("nofail") && !disk.is_by_hand() && !waits
    };
    let disks = pool.branches.iter().filter_map(|branch| disk_of(&facts.fstab, branch)).filter(later);
    let found = disks.map(|disk| {
        let (mountpoint, unit) =
            (unescape(&disk.mountpoint), mount_unit(&unescape(&disk.mountpoint).to_string_lossy()));
        let mountpoint = Path::new(&mountpoint).shown();
        let text = format!("canopy@{name}.service may mount the pool before its disk {mountpoint}");
        let fix = format!("systemctl edit canopy@{name}, and add two lines: [Unit] and After={unit}");
        finding("unit-order", Level::Warning, text, fix)
    });
    found.collect()
}

/// Judges a disk of a pool, and how the pool waits for it.
fn about_disk(facts: &Facts, line: &Line, disk: &Line) -> Vec<Finding> {
    let mut found = Vec::new();
    if disk.is_by_hand() {
        return found;
    }
    let (place, mountpoint) = (line_of(facts, line), &disk.mountpoint);
    match waits(line, disk) {
        Waits::Not => {
            let text = format!("{place} may be mounted before its disk {mountpoint}");
            let option = format!("x-systemd.after={mountpoint}");
            found.push(with_option(finding("fstab-order", Level::Warning, text, ""), line, &option));
        }
        Waits::Requires => {
            let text =
                format!("{place} requires its disk {mountpoint}: if that is dead, the pool is not mounted");
            let fix = format!("use x-systemd.after={mountpoint} instead, unless you want that");
            found.push(finding("fstab-requires-disk", Level::Note, text, fix));
        }
        Waits::After => {}
    }
    found.extend(holds_up_boot(facts, disk));
    found
}

/// Finds a disk without which the machine does not start, however its pool is mounted.
fn holds_up_boot(facts: &Facts, disk: &Line) -> Option<Finding> {
    let text = format!("{} lacks nofail: without this disk the machine does not start", line_of(facts, disk));
    let found = with_option(finding("fstab-disk-nofail", Level::Warning, text, ""), disk, "nofail");
    disk.holds_up_boot().then_some(found)
}

/// Returns how a line waits for what another mounts: by its path, that of something in it, or its unit.
fn waits(line: &Line, disk: &Line) -> Waits {
    let mountpoint = unescape(&disk.mountpoint);
    let mountpoint = Path::new(&mountpoint);
    let unit = mount_unit(&mountpoint.to_string_lossy());
    let units =
        FOR_UNITS.iter().flat_map(|(name, waits)| line.options_named(name).map(move |value| (value, *waits)));
    let units = units.filter(|(value, _)| Path::new(&unescape(value)) == mountpoint || *value == unit);
    let paths =
        FOR_PATHS.iter().flat_map(|(name, waits)| line.options_named(name).map(move |value| (value, *waits)));
    let paths = paths.filter(|(value, _)| Path::new(&unescape(value)).starts_with(mountpoint));
    units.chain(paths).map(|(_, waits)| waits).max().unwrap_or(Waits::Not)
}

fn line_of(facts: &Facts, line: &Line) -> String {
    format!("line {} of {} ({})", line.number, facts.fstab_file.shown(), line.mountpoint)
}

fn with_option(mut finding: Finding, line: &Line, option: &str) -> Finding {
    finding.fix = format!("add {option} to its options");
    finding.by(Action::AddOption {
        line: line.number,
        mountpoint: line.mountpoint.clone(),
        option: option.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::{codes, good};
    use super::*;
    use canopy_config::fstab;

    #[test]
    fn order_in_fstab_is_checked() {
        let facts = |pool: &str, disk: &str| Facts {
            fstab: fstab::parse(&format!(
                "/dev/sdb1 /mnt/d\\0401 ext4 {disk} 0 2\n/mnt/d\\0401:/srv/x /mnt/media canopy {pool} 0 0\n"
            )),
            mounts: canopy_sys::mountinfo::parse(b"30 1 8:17 / /mnt/d\\0401 rw - ext4 /dev/sdb1 rw\n"),
            pools: vec![Pool {
                line: Some(2),
                branches: vec!["/mnt/d 1".into(), "/srv/x".into()],
                mounted: true,
                ..Pool::default()
            }],
            ..good()
        };
        let table: [(&str, &str, &[&str]); 11] = [
            ("defaults", "defaults", &["fstab-nofail", "fstab-order", "fstab-disk-nofail"]),
            ("nofail,x-systemd.after=/mnt/d\\0401", "nofail", &[]),
            ("nofail,x-systemd.after=mnt-d\\x201.mount", "nofail", &[]),
            ("nofail,x-systemd.wants-mounts-for=/mnt/d\\0401/x", "nofail", &[]),
            ("nofail,x-systemd.requires-mounts-for=/mnt/d\\0401", "nofail", &["fstab-requires-disk"]),
            ("nofail,x-systemd.requires=mnt-d\\x201.mount", "nofail", &["fstab-requires-disk"]),
            ("nofail,x-systemd.requires-mounts-for=/mnt", "nofail", &["fstab-order"]),
            ("nofail,x-systemd.after=mnt-d2.mount", "nofail", &["fstab-order"]),
            ("noauto", "defaults", &[]),
            ("nofail", "noauto", &[]),
            ("nofail", "defaults,x-systemd.automount", &[]),
        ];
        for (pool, disk, expected) in table {
            assert_eq!(codes(&facts(pool, disk)), expected, "{pool} {disk}");
        }
    }

    #[test]
    fn a_unit_waits_for_disks_that_do_not_hold_up_the_boot() {
        let facts = |disk: &str, waits: &[&str]| Facts {
            fstab: fstab::parse(&format!("/dev/sdb1 /mnt/d1 ext4 {disk} 0 2\n")),
            mounts: canopy_sys::mountinfo::parse(b"30 1 8:17 / /mnt/d1 rw - ext4 /dev/sdb1 rw\n"),
            pools: vec![Pool {
                name: Some("media".into()),
                boot: Boot::Unit,
                branches: vec!["/mnt/d1/media".into()],
                unit_waits_for: waits.iter().map(|&wait| wait.to_owned()).collect(),
                mounted: true,
                ..Pool::default()
            }],
            ..good()
        };
        let table: [(&str, &[&str], &[&str]); 7] = [
            ("nofail", &[], &["unit-order"]),
            ("nofail", &["mnt-d2.mount"], &["unit-order"]),
            ("nofail", &["mnt-d1.mount"], &[]),
            ("nofail", &["/mnt/d1/media"], &[]),
            ("defaults", &[], &["fstab-disk-nofail"]),
            ("noauto", &[], &[]),
            ("nofail,noauto", &[], &[]),
        ];
        for (disk, waits, expected) in table {
            assert_eq!(codes(&facts(disk, waits)), expected, "{disk} {waits:?}");
        }
    }
}
