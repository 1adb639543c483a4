//! What mounts a pool at boot: a line of fstab, or systemd's unit canopy@NAME.
//!
//! Both wait for the disks of the pool, and require none: a disk that is dead keeps neither the pool nor the machine down.
//! systemd 252 and later read `x-systemd.after`; where there is no systemd, the line comes after those of the disks.

use crate::machine::Filesystem;
use crate::unit::mount_unit;
use canopy_config::fstab::{self, Line};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Begins the comment above a pool's line.
const COMMENT: &str = "# Canopy pool";
/// The drop-in of a pool's unit, in the directory of systemd's units.
pub const DROP_IN: &str = "disks.conf";

/// Returns where the disks of some branches are mounted, now or at boot, except for the system's root.
pub fn disks(branches: &[Filesystem], lines: &[Line]) -> Vec<String> {
    let place = |branch: &Filesystem| match fstab::disk_of(lines, &branch.path) {
        Some(line) => PathBuf::from(fstab::unescape(&line.mountpoint)),
        None => branch.mountpoint.clone(),
    };
    let places: BTreeSet<PathBuf> = branches.iter().map(place).collect();
    let places = places.into_iter().filter(|place| place != Path::new("/"));
    places.filter_map(|place| place.to_str().map(str::to_owned)).collect()
}

/// Returns the lines for a pool: a comment, and the mount.
pub fn fstab_lines(name: &str, file: &str, mountpoint: &str, disks: &[String]) -> String {
    // A comma ends an option, however it is written.
    let disks: Vec<String> =
        disks.iter().filter(|disk| !disk.contains(',')).map(|disk| fstab::escape(disk)).collect();
    let option = |name: &str| disks.iter().map(|disk| format!("{name}={disk}")).collect::<Vec<_>>().join(",");
    let mut comment = format!("{COMMENT} {name}, written by canopy init.");
    let mut options = "nofail".to_owned();
    if !disks.is_empty() {
        comment.push_str(&format!(
            " It waits for its disks, and is mounted without one that is dead. To insist on them instead: {}",
            option("x-systemd.requires-mounts-for")
        ));
        options.push_str(&format!(",{}", option("x-systemd.after")));
    }
    format!("{comment}\n{}", Line::for_pool(file, mountpoint, &options).render())
}

/// Returns an fstab without the lines of the pool that a file describes.
pub fn without_pool(text: &str, name: &str, file: &Path) -> String {
    let lines = fstab::parse(text);
    let is_ours = |line: &&Line| line.is_pool() && Path::new(&fstab::unescape(&line.source)) == file;
    let ours: BTreeSet<usize> = lines.iter().filter(is_ours).map(|line| line.number).collect();
    let comment = format!("{COMMENT} {name}, written by canopy init.");
    let kept = text.split_inclusive('\n').enumerate().filter(|(index, line)| {
        let above = ours.contains(&(index + 2)) && line.starts_with(&comment);
        !ours.contains(&(index + 1)) && !above
    });
    kept.map(|(_, line)| line).collect()
}

/// Returns the drop-in with which a pool's unit waits for disks; `None` if there is none to wait for.
pub fn drop_in(name: &str, disks: &[String]) -> Option<String> {
    let units: Vec<String> = disks.iter().map(|disk| mount_unit(disk)).collect();
    (!units.is_empty()).then(|| {
        format!(
            "# Written by canopy init. The pool {name} waits for its disks, and is mounted without one that is dead.\n\
             [Unit]\nAfter={}\n",
            units.join(" ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::process::Command;

    fn branch(path: &str, mountpoint: &str) -> Filesystem {
        Filesystem {
            path: path.into(),
            mountpoint: mountpoint.into(),
            fstype: "ext4".into(),
            label: None,
            size: 1,
            available: 1,
            read_only: false,
            disks: BTreeSet::new(),
            on_system_disk: false,
        }
    }

    #[test]
    fn disks_that_are_not_mounted_now_are_waited_for_too() {
        let lines = fstab::parse("LABEL=a / ext4 defaults 0 1\nLABEL=b /mnt/my\\040disk ext4 nofail 0 2\n");
        let branches =
            [branch("/mnt/my disk/media", "/"), branch("/mnt/d1/x", "/mnt/d1"), branch("/srv", "/")];
        assert_eq!(disks(&branches, &lines), ["/mnt/d1", "/mnt/my disk"]);
        assert_eq!(drop_in("media", &[]), None);
    }

    #[test]
    fn the_lines_of_a_pool_go_as_they_came() {
        let disks = ["/mnt/d1".to_owned(), "/mnt/my disk".to_owned()];
        let before = "# mine\nLABEL=a / ext4 defaults 0 1\n";
        let with = |name: &str| {
            let file = format!("/etc/canopy/{name}.toml");
            fstab_lines(name, &file, &format!("/mnt/{name}"), &disks)
        };
        let later = "# Canopy pool of mine\nLABEL=c /mnt/c ext4 nofail 0 2\n";
        let text = fstab::append(&fstab::append(before, &with("media")), &with("other")) + later;
        let rest = without_pool(&text, "media", Path::new("/etc/canopy/media.toml"));
        assert_eq!(rest, fstab::append(before, &with("other")) + later);
        assert_eq!(
            without_pool(&rest, "other", Path::new("/etc/canopy/other.toml")),
            format!("{before}{later}")
        );
        assert_eq!(without_pool(before, "other", Path::new("/etc/canopy/other.toml")), before);
    }

    /// What systemd itself makes of the line.
    #[test]
    fn systemd_waits_for_the_disks_and_requires_none() {
        let generator = Path::new("/lib/systemd/system-generators/systemd-fstab-generator");
        if !generator.exists() {
            eprintln!("skipped: there is no systemd-fstab-generator");
            return;
        }
        let dir = tempfile::tempdir().expect("a directory");
        let disks = ["/mnt/d1".to_owned(), "/mnt/my disk".to_owned()];
        let text = format!(
            "UUID=1 /mnt/d1 ext4 nofail 0 2\nUUID=2 /mnt/my\\040disk ext4 nofail 0 2\n{}\n",
            fstab_lines("media", "/etc/canopy/media.toml", "/mnt/media", &disks)
        );
        let places = ["fstab", "normal", "early", "late"].map(|name| dir.path().join(name));
        fs::write(&places[0], text).expect("an fstab");
        places[1..].iter().for_each(|place| fs::create_dir(place).expect("a directory"));
        let mut command = Command::new(generator);
        command.args(&places[1..]).env("SYSTEMD_FSTAB", &places[0]).env("SYSTEMD_IN_INITRD", "0");
        assert!(command.status().expect("the generator").success());
        let unit = fs::read_to_string(places[1].join("mnt-media.mount")).expect("a unit");
        let lines: Vec<&str> = unit.lines().collect();
        assert!(lines.contains(&"After=mnt-d1.mount mnt-my\\x20disk.mount"), "{unit}");
        let needs = ["Requires", "BindsTo", "Requisite", "Before=local-fs.target"];
        assert!(!lines.iter().any(|line| needs.iter().any(|needs| line.starts_with(needs))), "{unit}");
        // At boot, but not so that the boot would wait.
        assert!(places[1].join("local-fs.target.wants/mnt-media.mount").is_symlink());
        let expected =
            format!("After={}\n", lines.iter().find_map(|line| line.strip_prefix("After=")).expect("After"));
        assert!(drop_in("media", &disks).expect("a drop-in").ends_with(&expected));
    }
}
