//! Mounts, processes with their threads and descriptors, and loop devices, read from `/proc` and `/sys`.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::CWD;
use rustix::io::Errno;
use rustix::mount::{FsPickFlags, MountFlags, UnmountFlags, fsconfig_reconfigure, fspick, mount, unmount};

/// One line of `/proc/self/mountinfo`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mount {
    pub id: u64,
    /// Device number of the filesystem. The minor number of a FUSE mount names its connection in
    /// `/sys/fs/fuse/connections`.
    pub major: u32,
    pub minor: u32,
    pub point: PathBuf,
    pub kind: String,
    pub source: String,
    pub options: String,
}

/// Returns every mount in this process's mount namespace, oldest first.
pub fn mounts() -> Vec<Mount> {
    let table = fs::read("/proc/self/mountinfo").expect("/proc/self/mountinfo");
    table.split(|&byte| byte == b'\n').filter_map(parse_mount).collect()
}

/// Returns the topmost mount exactly at `point`.
pub fn mount_at(point: &Path) -> Option<Mount> {
    mounts().into_iter().rev().find(|mount| mount.point == point)
}

/// Returns whether a mount at or below `dir` is gone here, while a copy of it is left in another mount namespace: that of a
/// program that was started meanwhile, perhaps by another test. Until that program ends, the filesystem stays.
pub fn is_left_elsewhere(dir: &Path) -> bool {
    let namespace = |pid: &dyn std::fmt::Display| fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
    let (here, ours) = (mounts(), namespace(&"self"));
    let is_left = |mount: Mount| {
        mount.point.starts_with(dir)
            && !here.iter().any(|other| other.minor == mount.minor && other.point == mount.point)
    };
    let mut seen = vec![ours];
    processes().into_iter().any(|process| {
        let theirs = namespace(&process.pid);
        if theirs.is_none() || seen.contains(&theirs) {
            return false;
        }
        seen.push(theirs);
        let table = fs::read(format!("/proc/{}/mountinfo", process.pid)).unwrap_or_default();
        table.split(|&byte| byte == b'\n').filter_map(parse_mount).any(is_left)
    })
}

/// Makes the kernel drop the unused dentries and inodes of a mount: reconfiguring a superblock starts with that
/// (fs/super.c, reconfigure_super).
pub fn drop_dentries(point: &Path) -> Result<(), Errno> {
    let pick = FsPickFlags::FSPICK_CLOEXEC | FsPickFlags::FSPICK_SYMLINK_NOFOLLOW;
    fspick(CWD, point, pick).and_then(fsconfig_reconfigure)
}

fn parse_mount(line: &[u8]) -> Option<Mount> {
    let fields: Vec<&[u8]> = line.split(|&byte| byte == b' ').collect();
    let text = |index: usize| fields.get(index).map(|field| String::from_utf8_lossy(field).into_owned());
    let dash = fields.iter().position(|field| *field == b"-")?;
    let (major, minor) = text(2)?.split_once(':').map(|(a, b)| (a.parse().ok(), b.parse().ok()))?;
    Some(Mount {
        id: text(0)?.parse().ok()?,
        major: major?,
        minor: minor?,
        point: PathBuf::from(unescape(fields.get(4)?)),
        options: text(5)?,
        kind: text(dash + 1)?,
        source: text(dash + 2)?,
    })
}

/// Decodes the kernel's `\ooo` escapes of space, tab, newline and backslash.
fn unescape(field: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        let code = (first == b'\\')
            .then(|| tail.get(..3))
            .flatten()
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        if let Some(code) = code {
            bytes.push(code);
            rest = &tail[3..];
        } else {
            bytes.push(first);
            rest = tail;
        }
    }
    OsString::from_vec(bytes)
}

/// A process that is not a zombie.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Process {
    pub pid: i32,
    pub name: String,
    pub args: Vec<OsString>,
}

/// Returns all processes except zombies.
pub fn processes() -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(process)
        .collect()
}

/// Returns a process, or `None` if it has ended or is a zombie.
pub fn process(pid: i32) -> Option<Process> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (head, tail) = stat.rsplit_once(')')?;
    let name = head.split_once('(')?.1.to_owned();
    if matches!(tail.trim_start().bytes().next(), Some(b'Z' | b'X')) {
        return None;
    }
    let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let args = line.split(|&byte| byte == 0).map(|arg| OsStr::from_bytes(arg).to_owned()).collect();
    Some(Process { pid, name, args })
}

/// Returns what each descriptor of a process refers to.
pub fn descriptors(pid: i32) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else { return Vec::new() };
    entries.flatten().filter_map(|entry| fs::read_link(entry.path()).ok()).collect()
}

/// Reads a file of `/sys/fs/fuse/connections/NUMBER`, also where that filesystem is not mounted.
///
/// # Panics
/// If there is no such connection or file.
#[track_caller]
pub fn fuse_connection(number: u32, file: &str) -> String {
    let path = Path::new("/sys/fs/fuse/connections").join(number.to_string()).join(file);
    fs::read_to_string(path).unwrap_or_else(|_| {
        let dir = tempfile::tempdir().expect("a directory");
        mount("fusectl", dir.path(), "fusectl", MountFlags::empty(), None).expect("fusectl is mounted");
        let text = fs::read_to_string(dir.path().join(number.to_string()).join(file));
        unmount(dir.path(), UnmountFlags::empty()).expect("fusectl is unmounted");
        text.expect("a connection")
    })
}

/// A thread of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Thread {
    pub id: i32,
    pub name: String,
    /// The nice value.
    pub nice: i32,
    /// The text of `/proc/PID/task/TID/status`.
    pub status: String,
}

impl Thread {
    /// Returns a field of the thread's status, such as `CapEff`.
    ///
    /// # Panics
    /// If there is no such field.
    #[track_caller]
    pub fn field(&self, name: &str) -> &str {
        let found = self.status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        found.unwrap_or_else(|| panic!("no {name} in {}", self.status)).trim()
    }
}

/// Returns the threads of a process. Threads that end meanwhile are left out.
pub fn threads(pid: i32) -> Vec<Thread> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return Vec::new() };
    let thread = |task: fs::DirEntry| {
        let id = task.file_name().to_str()?.parse().ok()?;
        let name = fs::read_to_string(task.path().join("comm")).ok()?.trim().to_owned();
        let stat = fs::read_to_string(task.path().join("stat")).ok()?;
        let nice = stat.rsplit_once(')')?.1.split_whitespace().nth(16)?.parse().ok()?;
        Some(Thread { id, name, nice, status: fs::read_to_string(task.path().join("status")).ok()? })
    };
    tasks.flatten().filter_map(thread).collect()
}

/// Returns a counter of `/proc/PID/io`, such as `rchar`.
///
/// # Panics
/// If the process has ended or there is no such counter.
#[track_caller]
pub fn io_counter(pid: i32, name: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/io")).expect("the counters of a process");
    let found = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')?.trim().parse().ok());
    found.unwrap_or_else(|| panic!("no {name} in {text}"))
}

/// Returns the parent of a process.
pub fn parent(pid: i32) -> Option<i32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// Returns the pool daemons, and their keepers, that use `dir`: it occurs in their arguments or environment, or is their working directory.
pub fn daemons(dir: &Path) -> Vec<Process> {
    let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    let text = dir.as_os_str().as_bytes();
    let mentions = |bytes: &[u8]| bytes.windows(text.len()).any(|part| part == text);
    let uses = |process: &Process| {
        let of = |name: &str| format!("/proc/{}/{name}", process.pid);
        process.args.iter().any(|arg| mentions(arg.as_bytes()))
            || fs::read(of("environ")).is_ok_and(|environ| mentions(&environ))
            || fs::read_link(of("cwd")).is_ok_and(|cwd| cwd.starts_with(&dir))
    };
    let is_pool = |process: &Process| {
        matches!(process.name.as_str(), "canopy" | "mergerfs") || process.name.starts_with("canopy ")
    };
    processes().into_iter().filter(|process| is_pool(process) && uses(process)).collect()
}

/// Describes the processes that keep something under `dir` busy, one line each.
pub fn holders(dir: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for process in processes() {
        let pid = process.pid;
        let mut held = descriptors(pid);
        held.extend(
            ["cwd", "root"].iter().filter_map(|name| fs::read_link(format!("/proc/{pid}/{name}")).ok()),
        );
        held.retain(|path| path.starts_with(dir));
        if let Some(first) = held.first() {
            found.push(format!(
                "{} ({pid}) holds {} and {} more",
                process.name,
                first.display(),
                held.len() - 1
            ));
        }
    }
    found
}

/// Returns the attached loop devices, each with its backing file.
pub fn loop_devices() -> Vec<(PathBuf, PathBuf)> {
    let Ok(entries) = fs::read_dir("/sys/block") else { return Vec::new() };
    let mut found: Vec<_> = entries
        .flatten()
        .filter(|entry| entry.file_name().as_bytes().starts_with(b"loop"))
        .filter_map(|entry| {
            let mut backing = fs::read(entry.path().join("loop/backing_file")).ok()?;
            backing.truncate(backing.trim_ascii_end().len());
            Some((Path::new("/dev").join(entry.file_name()), PathBuf::from(OsString::from_vec(backing))))
        })
        .collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LoopFs;
    use crate::cmd::in_mount_namespace;
    use std::io::{BufRead, BufReader};
    use std::process::Stdio;

    #[test]
    fn a_mount_that_another_namespace_keeps_is_left_elsewhere() {
        let mut disk = LoopFs::tmpfs(1 << 20);
        let mut other = in_mount_namespace("echo ready; cat");
        let mut other = other.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("unshare");
        let mut line = String::new();
        let ready = BufReader::new(other.stdout.take().expect("a pipe")).read_line(&mut line);
        let point = disk.path().to_owned();
        let while_mounted = is_left_elsewhere(&point);
        disk.unmount();
        let after = is_left_elsewhere(&point);
        drop(other.stdin.take());
        let ended = other.wait().expect("unshare");
        assert!(ready.is_ok() && line == "ready\n" && ended.success(), "{line:?} {ended}");
        assert!(!while_mounted && after && !is_left_elsewhere(&point));
    }

    #[test]
    fn escaped_mount_points_are_decoded() {
        let line =
            br"36 35 98:17 /mnt1 /mnt\040two\134x rw,noatime master:1 - ext3 /dev/root rw,errors=continue";
        let mount = parse_mount(line).expect("a mount");
        assert_eq!((mount.id, mount.major, mount.minor), (36, 98, 17));
        assert_eq!(mount.point, Path::new("/mnt two\\x"));
        assert_eq!((mount.kind.as_str(), mount.source.as_str()), ("ext3", "/dev/root"));
        assert_eq!(parse_mount(b""), None);
    }

    #[test]
    fn mounts_processes_and_descriptors_are_found() {
        assert!(mount_at(Path::new("/proc")).is_some_and(|mount| mount.kind == "proc"));
        let own = i32::try_from(std::process::id()).expect("a pid");
        assert!(processes().iter().any(|process| process.pid == own));
        let file = tempfile::NamedTempFile::new().expect("a file");
        assert!(descriptors(own).contains(&file.path().canonicalize().expect("a path")));
        assert!(threads(own).iter().any(|thread| thread.field("Pid").parse() == Ok(own)));
        assert!(io_counter(own, "rchar") > 0);
        assert!(holders(file.path()).iter().any(|line| line.contains(&own.to_string())));
    }
}
