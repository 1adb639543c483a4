//! The kernel, its limits, and what ordinary users need.

use super::{Action, Branch, Facts, Finding, Level, finding};
use canopy_sys::shown::Show as _;

/// 2026: before this, the clock of the machine was never set.
pub(super) const THE_PAST: u64 = 1_767_225_600;
const FEW_DESCRIPTORS: u64 = 65_536;
const FEW_WATCHES: u64 = 8192;
/// How far a file's time may be ahead of the clock. Clocks of other machines differ a little.
pub(super) const AHEAD: u64 = 24 * 3600;

pub(super) fn look(facts: &Facts, found: &mut Vec<Finding>) {
    kernel(facts, found);
    limits(facts, found);
    unprivileged(facts, found);
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
        let text =
            format!("Linux {major}.{minor} has no passthrough for FUSE: all data goes through the daemon");
        let fix = "install Linux 6.9 or later (on Debian 12: linux-image-amd64 from bookworm-backports)";
        found.push(finding("no-passthrough", Level::Note, text, fix));
    }
    match facts.io_uring {
        None if facts.linux < (6, 14) => {
            let text =
                format!("Linux {major}.{minor} has no io_uring for FUSE, which makes small requests faster");
            found.push(finding("no-io-uring", Level::Note, text, "install Linux 6.14 or later"));
        }
        Some(false) => found.push(finding(
            "io-uring-off",
            Level::Note,
            "fuse.enable_uring is off, so pools that ordinary users mount cannot use io_uring",
            "echo options fuse enable_uring=1 >/etc/modprobe.d/canopy.conf, and restart the machine",
        )),
        _ => {}
    }
}

fn limits(facts: &Facts, found: &mut Vec<Finding>) {
    if facts.descriptors < FEW_DESCRIPTORS {
        let text = format!(
            "a process can have only {} files open, and a pool needs one for each file in use",
            facts.descriptors
        );
        let fix = "set LimitNOFILE=1048576 in the unit, or nofile in /etc/security/limits.conf";
        found.push(finding("few-descriptors", Level::Warning, text, fix));
    }
    if let Some(marks) = facts.watches.filter(|&marks| marks < FEW_WATCHES) {
        let text =
            format!("a user can have only {marks} fanotify marks, too few to watch the branches of a pool");
        let setting = format!("fs.fanotify.max_user_marks={FEW_WATCHES}");
        let fix = finding("few-watches", Level::Warning, text, format!("sysctl {setting}"));
        found.push(fix.by(Action::run(&["sysctl", &setting])));
    }
    if facts.now < THE_PAST {
        found.push(finding(
            "clock-never-set",
            Level::Problem,
            "the clock of this machine is years behind, and caches and copies compare times",
            "timedatectl set-ntp true, or date --set",
        ));
    }
    let ahead = |branch: &&Branch| branch.changed.is_some_and(|changed| changed > facts.now + AHEAD);
    for branch in facts.branches.iter().filter(ahead) {
        let path = branch.path.shown();
        let text =
            format!("{path} was changed in the future: the clock of this machine or of its server is wrong");
        let fix = format!("set the wrong clock, then: touch {path}");
        found.push(finding("clock-differs", Level::Warning, text, fix));
    }
}

fn unprivileged(facts: &Facts, found: &mut Vec<Finding>) {
    // What root mounts needs neither.
    let level = if facts.is_root { Level::Note } else { Level::Warning };
    if !facts.has_fusermount {
        let text = "fusermount3 is not installed, so only root can mount pools";
        found.push(finding("no-fusermount", level, text, "apt install fuse3"));
    } else if !facts.allows_other {
        let text = "only the user who mounted a pool without root can see it";
        let fix = "to let others see it, uncomment user_allow_other in /etc/fuse.conf";
        found.push(finding("user-allow-other", Level::Note, text, fix));
    }
}
