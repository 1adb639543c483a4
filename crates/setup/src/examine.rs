//! Gathers what `doctor` judges.

use crate::doctor::{Bind, Branch, Facts};
use crate::fstab::{self, Line};
use crate::machine;
use canopy_sys::glob;
use canopy_sys::mountinfo::{self, MountEntry};
use rustix::process::{Resource, geteuid, getrlimit};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Returns what the machine says. `branches` are those of mounted pools that answer, each with the type of its filesystem.
pub fn facts(fstab_file: &Path, branches: Vec<(PathBuf, String)>) -> Facts {
    let lines = fs::read_to_string(fstab_file).map(|text| fstab::parse(&text)).unwrap_or_default();
    let branches: Vec<Branch> = branches.into_iter().map(|(path, fstype)| look_at(path, fstype)).collect();
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
        branches_of_lines: lines.iter().flat_map(branches_of).collect(),
        fstab: lines,
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

fn look_at(path: PathBuf, fstype: String) -> Branch {
    let changed = fs::metadata(&path).ok().and_then(|found| u64::try_from(found.mtime()).ok());
    let turns =
        |disk: &String| read(&format!("/sys/block/{disk}/queue/rotational")).is_some_and(|flag| flag == "1");
    let spins = machine::directory(&path).is_ok_and(|found| found.disks.iter().any(turns));
    Branch { path, fstype, changed, spins }
}

/// Returns the branches of a line of fstab, with its number.
fn branches_of(line: &Line) -> Vec<(usize, PathBuf)> {
    if !line.is_pool() {
        return Vec::new();
    }
    let source = fstab::unescape(line.source.strip_prefix("mergerfs#").unwrap_or(&line.source));
    let mut config = canopy_config::Config::default();
    // A mistake in the line is for mount(8) to tell.
    let _ = match canopy_config::source::named::NamedPool::find(&source) {
        Some(named) => canopy_config::source::file::load(&mut config, named.file.as_os_str()),
        None => canopy_config::source::set(&mut config, "branches", &source),
    };
    let paths = config.branches.iter().flat_map(|branch| {
        match branch.path.to_string_lossy().contains(['*', '?', '[']) {
            true => glob::directories(branch.path.as_os_str()).unwrap_or_default(),
            false => vec![branch.path.clone()],
        }
    });
    paths.map(|path| (line.number, path)).collect()
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
