//! Gathers what `doctor` judges.

use crate::doctor::{Bind, Branch, Facts, RunningPool};
use crate::expected;
use crate::fstab;
use crate::machine;
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

/// Returns what containers have of the branches. A container is a process whose root is another filesystem; services with
/// a mount namespace of their own see the machine's root.
fn binds(branches: &[Branch]) -> Vec<Bind> {
    let Ok(mine) = mountinfo::list() else { return Vec::new() };
    let places = branches.iter().filter_map(|branch| {
        let mounted = mountinfo::holding_in(&mine, &branch.path)?;
        Some((branch, mounted.device, mounted.inside(&branch.path)))
    });
    let places: Vec<_> = places.collect();
    let root_of = |mounts: &[MountEntry]| {
        let root = mounts.iter().rev().find(|mounted| mounted.mountpoint == Path::new("/"));
        root.map(|root| (root.device, root.root.clone()))
    };
    let my_root = root_of(&mine);
    let (mut seen, mut found) = (BTreeSet::new(), BTreeSet::new());
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = process.file_name().to_str().and_then(|name| name.parse::<u32>().ok());
        let Some(pid) = pid else { continue };
        let Ok(listed) = fs::read(process.path().join("mountinfo")) else { continue };
        let listed = mountinfo::parse(&listed);
        let root = root_of(&listed);
        // Threads of the kernel and processes that end have none.
        if root.is_none() || root == my_root {
            continue;
        }
        let program = fs::read_to_string(process.path().join("comm")).unwrap_or_default().trim().to_owned();
        for there in listed {
            let held = places
                .iter()
                .find(|(_, device, root)| there.device == *device && there.root.starts_with(root));
            if let Some((branch, ..)) = held
                && seen.insert((there.id, branch.path.clone()))
            {
                let (branch, at) = (branch.path.clone(), there.mountpoint);
                found.insert(Bind { branch, at, pid, program: program.clone() });
            }
        }
    }
    found.into_iter().collect()
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
}
