//! Gathers what `doctor` judges.

use crate::doctor::{Bind, Branch, Facts, RunningPool};
use crate::expected;
use crate::machine;
use canopy_config::fstab;
use canopy_sys::mountinfo::{self, MountEntry};
use rustix::process::{Resource, geteuid, getrlimit};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// A mounted pool that answers, by its mountpoint.
pub struct Answering {
    pub mountpoint: PathBuf,
    /// All branches, each with the type of its filesystem if it answers well. Others keep whoever asks waiting.
    pub branches: Vec<(PathBuf, Option<String>)>,
}

const UNITS: &str = "/etc/systemd/system";

/// Returns what the machine says.
pub fn facts(fstab_file: &Path, answering: &[Answering]) -> Facts {
    let lines = fs::read_to_string(fstab_file).map(|text| fstab::parse(&text)).unwrap_or_default();
    let mounts = mountinfo::list().unwrap_or_default();
    let branches: Vec<Branch> = answering.iter().flat_map(branches_of).collect();
    let running = answering.iter().map(|pool| RunningPool {
        mountpoint: pool.mountpoint.clone(),
        branches: pool.branches.iter().map(|(path, _)| path.clone()).collect(),
        root: root_of(&pool.mountpoint),
    });
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    Facts {
        linux: release(),
        has_fuse: Path::new("/dev/fuse").exists(),
        io_uring: read("/sys/module/fuse/parameters/enable_uring").map(|text| text == "Y" || text == "1"),
        descriptors: getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX),
        watches: read("/proc/sys/fs/fanotify/max_user_marks").and_then(|text| text.parse().ok()),
        is_root: geteuid().is_root(),
        allows_other: read("/etc/fuse.conf")
            .is_some_and(|text| text.lines().any(|line| line.trim() == "user_allow_other")),
        has_fusermount: in_path("fusermount3"),
        now,
        pools: expected::pools(fstab_file, &lines, Path::new(UNITS), &mounts),
        running: running.collect(),
        fstab_file: fstab_file.to_owned(),
        fstab: lines,
        mounts,
        parity: read("/etc/snapraid.conf").map(|text| parity(&text)).unwrap_or_default(),
        binds: binds(&branches),
        branches,
        spindown: spindown(),
    }
}

fn read(path: &str) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

fn release() -> (u32, u32) {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(['.', '-']).map(|part| part.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

fn in_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).exists())
}

fn branches_of(pool: &Answering) -> impl Iterator<Item = Branch> {
    let answering = pool.branches.iter().filter_map(|(path, fstype)| Some((path, fstype.as_ref()?)));
    answering.map(|(path, fstype)| Branch {
        pool: pool.mountpoint.clone(),
        path: path.clone(),
        root: root_of(path),
        fstype: fstype.clone(),
        changed: fs::metadata(path).ok().and_then(|found| u64::try_from(found.mtime()).ok()),
        spins: machine::directory(path).is_ok_and(|found| found.disks.iter().any(|disk| spins(disk))),
    })
}

fn spins(disk: &str) -> bool {
    read(&format!("/sys/block/{disk}/queue/rotational")).is_some_and(|flag| flag == "1")
}

/// Returns owner, group and mode of a directory.
fn root_of(path: &Path) -> Option<(u32, u32, u32)> {
    let found = fs::metadata(path).ok()?;
    Some((found.uid(), found.gid(), found.mode() & 0o7777))
}

/// Returns the files that SnapRAID's configuration names for parity: `parity`, `2-parity` and so on, each with a list.
fn parity(text: &str) -> Vec<PathBuf> {
    let lines = text.lines().filter_map(|line| line.trim().split_once(char::is_whitespace));
    let lists = lines.filter(|(key, _)| *key == "parity" || key.ends_with("-parity"));
    lists.flat_map(|(_, list)| list.trim().split(',').map(PathBuf::from)).collect()
}

/// Returns what other mount namespaces have of the branches apart from their pools: containers, which have another root, and
/// services that bind a branch to a place that this namespace does not have.
fn binds(branches: &[Branch]) -> Vec<Bind> {
    let Ok(mine) = mountinfo::list() else { return Vec::new() };
    let places: Vec<BranchPlace<'_>> =
        branches.iter().filter_map(|branch| BranchPlace::new(branch, &mine)).collect();
    let my_root = root_in(&mine);
    let (mut seen, mut found) = (BTreeSet::new(), BTreeSet::new());
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = process.file_name().to_str().and_then(|name| name.parse::<u32>().ok());
        let Some(pid) = pid else { continue };
        let Ok(listed) = fs::read(process.path().join("mountinfo")) else { continue };
        let listed = mountinfo::parse(&listed);
        let root = root_in(&listed);
        // Threads of the kernel and processes that end have none.
        if root.is_none() {
            continue;
        }
        let is_container = root != my_root;
        let program = fs::read_to_string(process.path().join("comm")).unwrap_or_default().trim().to_owned();
        for there in &listed {
            let held = places.iter().find(|place| {
                let alone =
                    if is_container { !place.has_pool(&listed) } else { place.is_elsewhere(there, &mine) };
                alone && place.is_in(there)
            });
            if let Some(place) = held
                && seen.insert((there.id, place.branch.path.clone()))
            {
                let (branch, at) = (place.branch.path.clone(), there.mountpoint.clone());
                found.insert(Bind { branch, at, pid, program: program.clone() });
            }
        }
    }
    found.into_iter().collect()
}

/// Returns what is mounted as the root of a mount namespace.
fn root_in(mounts: &[MountEntry]) -> Option<((u32, u32), PathBuf)> {
    let root = mounts.iter().rev().find(|mounted| mounted.mountpoint == Path::new("/"))?;
    Some((root.device, root.root.clone()))
}

/// A branch, and where it is on its filesystem.
struct BranchPlace<'a> {
    branch: &'a Branch,
    mounted: &'a MountEntry,
    root: PathBuf,
    pool: Option<(u32, u32)>,
}

impl<'a> BranchPlace<'a> {
    fn new(branch: &'a Branch, mounts: &'a [MountEntry]) -> Option<BranchPlace<'a>> {
        let mounted = mountinfo::holding_in(mounts, &branch.path)?;
        let pool = mounts.iter().rev().find(|mounted| mounted.mountpoint == branch.pool);
        let pool = pool.filter(|pool| pool.is_pool()).map(|pool| pool.device);
        Some(BranchPlace { branch, mounted, root: mounted.inside(&branch.path), pool })
    }

    /// Returns whether a mount shows the branch or a part of it.
    fn is_in(&self, there: &MountEntry) -> bool {
        there.device == self.mounted.device && there.root.starts_with(&self.root)
    }

    /// Returns whether a mount shows it at a place where this namespace, with the mounts `mine`, does not.
    fn is_elsewhere(&self, there: &MountEntry, mine: &[MountEntry]) -> bool {
        let inside = there.root.strip_prefix(&self.mounted.root);
        let is_same = |here: &MountEntry| {
            (here.device, &here.root, &here.mountpoint) == (there.device, &there.root, &there.mountpoint)
        };
        inside.is_ok_and(|inside| there.mountpoint != self.mounted.mountpoint.join(inside))
            && !mine.iter().any(is_same)
    }

    fn has_pool(&self, mounts: &[MountEntry]) -> bool {
        mounts.iter().any(|mounted| mounted.is_pool() && Some(mounted.device) == self.pool)
    }
}

/// Returns the file that tells a program to send disks to sleep.
fn spindown() -> Option<PathBuf> {
    let says = |path: &str, key: &str| {
        read(path).is_some_and(|text| text.lines().any(|line| line.trim_start().starts_with(key)))
    };
    [("/etc/hdparm.conf", "spindown_time"), ("/etc/default/hd-idle", "START_HD_IDLE=true")]
        .into_iter()
        .find(|(path, key)| says(path, key))
        .map(|(path, _)| path.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parity_files_are_read() {
        let text = "# parity /no\nparity /mnt/p1/a.parity,/mnt/p2/a.parity\n2-parity  /mnt/p3/b c\ncontent /mnt/d1/x\n";
        let expected = ["/mnt/p1/a.parity", "/mnt/p2/a.parity", "/mnt/p3/b c"].map(PathBuf::from);
        assert_eq!(parity(text), expected);
    }

    #[test]
    fn a_branch_is_recognized_in_other_namespaces() {
        let mine = mountinfo::parse(
            b"30 1 8:17 / /mnt/d1 rw - ext4 /dev/sdb1 rw\n32 1 8:17 /media /srv/here rw - ext4 /dev/sdb1 rw\n31 1 0:50 / /mnt/pool rw - fuse.canopy media rw\n",
        );
        let branch = Branch {
            pool: "/mnt/pool".into(),
            path: "/mnt/d1/media".into(),
            root: None,
            fstype: "ext4".into(),
            changed: None,
            spins: false,
        };
        let place = BranchPlace::new(&branch, &mine).expect("its filesystem");
        let there = |line: &str| mountinfo::parse(line.as_bytes()).remove(0);
        for (line, within, elsewhere) in [
            ("40 1 8:17 /media /data rw - ext4 /dev/sdb1 rw", true, true),
            ("40 1 8:17 /media /srv/here rw - ext4 /dev/sdb1 rw", true, false),
            ("40 1 8:17 /media/films /data rw - ext4 /dev/sdb1 rw", true, true),
            ("40 1 8:17 /media/films /mnt/d1/media/films ro - ext4 /dev/sdb1 rw", true, false),
            ("40 1 8:17 /media2 /data rw - ext4 /dev/sdb1 rw", false, true),
            ("40 1 8:33 /media /data rw - ext4 /dev/sdc1 rw", false, true),
        ] {
            let there = there(line);
            assert_eq!(
                (place.is_in(&there), place.is_elsewhere(&there, &mine)),
                (within, elsewhere),
                "{line}"
            );
        }
        assert!(place.has_pool(&mine) && !place.has_pool(&[there("40 1 0:51 / /p rw - fuse.canopy x rw")]));
    }
}
