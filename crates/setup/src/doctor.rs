//! What is amiss on a machine that has pools, and how to mend it.

use crate::fstab::{Line, disk_of, unescape};
use serde::Serialize;
use std::path::{Path, PathBuf};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    /// Good to know. Nothing needs to be done.
    Note,
    /// It will hurt some day.
    Warning,
    /// It hurts now.
    Problem,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Finding {
    /// Its subject, for programs. Later versions may add codes, but never change their meaning.
    pub code: String,
    pub level: Level,
    pub text: String,
    /// What to do, in one line.
    pub mend: String,
}

/// What the machine says. Where it does not say something, that is `None`, and nothing is found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Facts {
    /// Version of the kernel.
    pub linux: (u32, u32),
    pub has_fuse: bool,
    /// The parameter `fuse.enable_uring`; `None` if the kernel does not have it.
    pub io_uring: Option<bool>,
    /// The most descriptors that a process may ask for.
    pub descriptors: u64,
    /// The most directories that a user may watch.
    pub watches: Option<u64>,
    pub is_root: bool,
    /// `user_allow_other` is set in /etc/fuse.conf.
    pub allows_other: bool,
    pub has_fusermount: bool,
    /// The clock of the machine, in seconds since 1970.
    pub now: u64,
    pub fstab: Vec<Line>,
    /// The branches of the pools in `fstab`, patterns resolved, by the number of their line.
    pub branches_of_lines: Vec<(usize, PathBuf)>,
    pub branches: Vec<Branch>,
    /// Branches that containers have for themselves.
    pub binds: Vec<Bind>,
    /// A program that sends disks to sleep, and where it is told so.
    pub spindown: Option<PathBuf>,
}

/// A branch of a mounted pool.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Branch {
    pub path: PathBuf,
    pub fstype: String,
    /// When its directory was changed, in seconds since 1970.
    pub changed: Option<u64>,
    /// One of its disks turns.
    pub spins: bool,
}

/// A part of a branch in another mount namespace, without its pool.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Bind {
    pub branch: PathBuf,
    /// Where the other namespace has it.
    pub at: PathBuf,
    /// A process there, and its name.
    pub pid: u32,
    pub program: String,
}

/// 2026: before this, the clock of the machine was never set.
const THE_PAST: u64 = 1_767_225_600;
const FEW_DESCRIPTORS: u64 = 65_536;
const FEW_WATCHES: u64 = 8192;
/// How far a file's time may be ahead of the clock. Clocks of other machines differ a little.
const AHEAD: u64 = 24 * 3600;

/// Returns everything that is amiss, the worst first.
pub fn findings(facts: &Facts) -> Vec<Finding> {
    let mut found = Vec::new();
    kernel(facts, &mut found);
    limits(facts, &mut found);
    unprivileged(facts, &mut found);
    fstab(facts, &mut found);
    branches(facts, &mut found);
    found.extend(facts.binds.iter().map(bind));
    found.sort_by_key(|finding| std::cmp::Reverse(finding.level));
    found
}

fn finding(code: &str, level: Level, text: impl Into<String>, mend: impl Into<String>) -> Finding {
    Finding { code: code.into(), level, text: text.into(), mend: mend.into() }
}

fn kernel(facts: &Facts, found: &mut Vec<Finding>) {
    let (major, minor) = facts.linux;
    if !facts.has_fuse {
        found.push(finding(
            "no-fuse",
            Level::Problem,
            "this kernel has no /dev/fuse, so nothing can be mounted",
            "modprobe fuse; in a container, give it the device (docs/containers.md)",
        ));
    }
    if facts.linux < (5, 4) {
        let text = format!("Linux {major}.{minor} is older than 5.4, the oldest that Canopy runs on");
        found.push(finding("old-kernel", Level::Problem, text, "install a newer kernel"));
    } else if facts.linux < (6, 9) {
        let text = format!(
            "Linux {major}.{minor} cannot pass open files through: their data is copied by the daemon"
        );
        let mend = "a kernel of 6.9 or later; on Debian 12, linux-image-amd64 from bookworm-backports";
        found.push(finding("no-passthrough", Level::Note, text, mend));
    }
    match facts.io_uring {
        None if facts.linux < (6, 14) => {
            let text =
                format!("Linux {major}.{minor} has no io_uring for FUSE, which makes small requests faster");
            found.push(finding("no-io-uring", Level::Note, text, "a kernel of 6.14 or later"));
        }
        Some(false) => found.push(finding(
            "io-uring-off",
            Level::Note,
            "fuse.enable_uring is off, so pools of ordinary users do without io_uring",
            "echo options fuse enable_uring=1 >/etc/modprobe.d/canopy.conf, and restart the machine",
        )),
        _ => {}
    }
}

fn limits(facts: &Facts, found: &mut Vec<Finding>) {
    if facts.descriptors < FEW_DESCRIPTORS {
        let text = format!(
            "a process may have {} open files; a pool needs one for each that is in use",
            facts.descriptors
        );
        let mend = "LimitNOFILE=1048576 in the unit, or nofile in /etc/security/limits.conf";
        found.push(finding("few-descriptors", Level::Warning, text, mend));
    }
    if let Some(marks) = facts.watches.filter(|&marks| marks < FEW_WATCHES) {
        let text = format!("a user may have {marks} marks of fanotify, with which branches are watched");
        let mend = format!("sysctl fs.fanotify.max_user_marks={FEW_WATCHES}");
        found.push(finding("few-watches", Level::Warning, text, mend));
    }
    if facts.now < THE_PAST {
        found.push(finding(
            "clock-never-set",
            Level::Problem,
            "the clock of this machine shows a time long past; caches and copies compare times",
            "timedatectl set-ntp true, or date --set",
        ));
    }
    let ahead = |branch: &&Branch| branch.changed.is_some_and(|changed| changed > facts.now + AHEAD);
    for branch in facts.branches.iter().filter(ahead) {
        let path = branch.path.shown();
        let text = format!("{path} was changed in the future, by the clock of this machine or of its server");
        let mend = format!("set the clock that is wrong; then touch {path}");
        found.push(finding("clock-differs", Level::Warning, text, mend));
    }
}

fn unprivileged(facts: &Facts, found: &mut Vec<Finding>) {
    // What root mounts needs neither.
    let level = if facts.is_root { Level::Note } else { Level::Warning };
    if !facts.has_fusermount {
        let text = "there is no fusermount3, without which only root can mount pools";
        found.push(finding("no-fusermount", level, text, "apt install fuse3"));
    } else if !facts.allows_other {
        let text = "a pool that an ordinary user mounts is for that user only";
        let mend = "if others should see it, uncomment user_allow_other in /etc/fuse.conf";
        found.push(finding("user-allow-other", Level::Note, text, mend));
    }
}

fn fstab(facts: &Facts, found: &mut Vec<Finding>) {
    for line in facts.fstab.iter().filter(|line| line.is_pool()) {
        let place = format!("line {} of fstab ({})", line.number, line.mountpoint);
        if line.has_option("noauto") {
            continue;
        }
        if !line.has_option("nofail") {
            let text =
                format!("{place} lacks nofail: if the pool cannot be mounted, the machine does not start");
            found.push(finding("fstab-nofail", Level::Warning, text, "add nofail to its options"));
        }
        let mine = facts.branches_of_lines.iter().filter(|(number, _)| *number == line.number);
        for (_, branch) in mine {
            let Some(disk) = disk_of(&facts.fstab, branch) else { continue };
            let waits = [
                "x-systemd.requires-mounts-for",
                "x-systemd.requires",
                "x-systemd.after",
                "x-systemd.wants-mounts-for",
            ];
            let waits = waits.iter().flat_map(|name| line.options_named(name));
            if !waits
                .into_iter()
                .any(|path| covers(Path::new(&unescape(path)), Path::new(&unescape(&disk.mountpoint))))
            {
                let text = format!("{place} may be mounted before its disk {}", disk.mountpoint);
                let mend = format!("add x-systemd.requires-mounts-for={} to its options", disk.mountpoint);
                found.push(finding("fstab-order", Level::Warning, text, mend));
            }
            if !disk.has_option("nofail") {
                let text = format!(
                    "line {} of fstab ({}) lacks nofail: without this disk the machine does not start",
                    disk.number, disk.mountpoint
                );
                found.push(finding("fstab-disk-nofail", Level::Warning, text, "add nofail to its options"));
            }
        }
    }
    let mut seen = std::collections::BTreeSet::new();
    found.retain(|one| seen.insert((one.code.clone(), one.text.clone())));
}

/// Returns whether waiting for `path` waits for what is mounted at `mountpoint`.
fn covers(path: &Path, mountpoint: &Path) -> bool {
    path.starts_with(mountpoint)
}

fn branches(facts: &Facts, found: &mut Vec<Finding>) {
    for branch in &facts.branches {
        let (path, fstype) = (branch.path.shown(), &branch.fstype);
        let lacks = match fstype.as_str() {
            "vfat" | "exfat" => "owners, permissions, links and extended attributes",
            "ntfs" | "ntfs3" | "fuseblk" => "owners and permissions as Linux has them",
            _ => continue,
        };
        let text = format!("{path} is {fstype}, which has no {lacks}: files lose them there");
        let mend = format!(
            "keep it for reading (canopy set MOUNT branches, {path}=RO), or make an ext4 or XFS of it"
        );
        found.push(finding("branch-lacks-features", Level::Warning, text, mend));
    }
    if let Some(file) = &facts.spindown {
        let spinning: Vec<String> =
            facts.branches.iter().filter(|one| one.spins).map(|one| one.path.shown().to_string()).collect();
        if !spinning.is_empty() {
            let text =
                format!("{} sends disks to sleep, perhaps those of {}", file.shown(), spinning.join(", "));
            let mend = "nothing, if ten seconds for the first access are fine; otherwise turn it off there";
            found.push(finding("disks-sleep", Level::Note, text, mend));
        }
    }
}

fn bind(bind: &Bind) -> Finding {
    let (branch, at) = (bind.branch.shown(), bind.at.shown());
    let text = format!(
        "process {} ({}) has the branch {branch} at {at}, without its pool: it misses files of other branches, and files that move",
        bind.pid, bind.program
    );
    finding(
        "container-binds-branch",
        Level::Warning,
        text,
        "give the container the pool's mountpoint instead",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fstab;

    fn good() -> Facts {
        Facts {
            linux: (6, 18),
            has_fuse: true,
            io_uring: Some(true),
            descriptors: 1 << 20,
            watches: Some(1 << 20),
            is_root: true,
            allows_other: true,
            has_fusermount: true,
            now: THE_PAST + 1,
            ..Facts::default()
        }
    }

    fn codes(facts: &Facts) -> Vec<String> {
        findings(facts).into_iter().map(|finding| finding.code).collect()
    }

    fn branch(path: &str, fstype: &str) -> Branch {
        Branch { path: path.into(), fstype: fstype.into(), changed: None, spins: true }
    }

    #[test]
    fn a_good_machine_has_no_findings() {
        assert_eq!(findings(&good()), []);
        let facts = Facts { branches: vec![branch("/mnt/d1", "ext4")], ..good() };
        assert_eq!(findings(&facts), []);
    }

    #[test]
    fn each_fault_is_found() {
        let table: [(Facts, &str); 12] = [
            (Facts { has_fuse: false, ..good() }, "no-fuse"),
            (Facts { linux: (5, 3), ..good() }, "old-kernel"),
            (Facts { linux: (6, 1), ..good() }, "no-passthrough"),
            (Facts { linux: (6, 12), io_uring: None, ..good() }, "no-io-uring"),
            (Facts { io_uring: Some(false), ..good() }, "io-uring-off"),
            (Facts { descriptors: 1024, ..good() }, "few-descriptors"),
            (Facts { watches: Some(100), ..good() }, "few-watches"),
            (Facts { now: 1000, ..good() }, "clock-never-set"),
            (Facts { has_fusermount: false, ..good() }, "no-fusermount"),
            (Facts { allows_other: false, ..good() }, "user-allow-other"),
            (Facts { branches: vec![branch("/mnt/stick", "exfat")], ..good() }, "branch-lacks-features"),
            (
                Facts {
                    branches: vec![branch("/mnt/d1", "xfs")],
                    spindown: Some("/etc/hdparm.conf".into()),
                    ..good()
                },
                "disks-sleep",
            ),
        ];
        for (facts, code) in table {
            assert_eq!(codes(&facts), [code]);
        }
        let mut late = branch("/mnt/d1", "ext4");
        late.changed = Some(THE_PAST + 1 + AHEAD + 1);
        assert_eq!(codes(&Facts { branches: vec![late], ..good() }), ["clock-differs"]);
        let bind = Bind { branch: "/mnt/d1".into(), at: "/data".into(), pid: 7, program: "sonarr".into() };
        assert_eq!(codes(&Facts { binds: vec![bind], ..good() }), ["container-binds-branch"]);
    }

    #[test]
    fn the_worst_comes_first_and_everything_has_a_mend_of_one_line() {
        let facts =
            Facts { has_fuse: false, descriptors: 1, linux: (5, 4), io_uring: None, ..Facts::default() };
        let found = findings(&facts);
        assert!(found.len() > 4 && found.is_sorted_by_key(|one| std::cmp::Reverse(one.level)));
        assert!(found.iter().all(|one| !one.mend.is_empty() && !one.mend.contains('\n')));
    }

    #[test]
    fn order_in_fstab_is_checked() {
        let lines = |pool: &str, disk: &str| {
            fstab::parse(&format!(
                "/dev/sdb1 /mnt/d1 ext4 {disk} 0 2\n/mnt/d1:/srv/x /mnt/media canopy {pool} 0 0\n"
            ))
        };
        let facts = |pool: &str, disk: &str| Facts {
            fstab: lines(pool, disk),
            branches_of_lines: vec![(2, "/mnt/d1".into()), (2, "/srv/x".into())],
            ..good()
        };
        assert_eq!(
            codes(&facts("defaults", "defaults")),
            ["fstab-nofail", "fstab-order", "fstab-disk-nofail"]
        );
        let ordered = "nofail,x-systemd.requires-mounts-for=/mnt/d1";
        assert_eq!(codes(&facts(ordered, "nofail")), Vec::<String>::new());
        assert_eq!(codes(&facts("nofail,x-systemd.requires-mounts-for=/mnt", "nofail")), ["fstab-order"]);
        assert_eq!(codes(&facts("noauto", "defaults")), Vec::<String>::new());
    }
}
