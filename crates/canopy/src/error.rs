//! Errors of the commands. Each message is one line that names the cause and a fix.

use canopy_base::text::{one_line, os_error};
use canopy_config::error::OptionError;
use canopy_config::program_name::Name;
use canopy_sys::glob::is_pattern;
use canopy_sys::shown::Show as _;
use rustix::io::Errno;
use std::io;
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Config(#[from] canopy_config::Error),
    #[error(transparent)]
    Server(#[from] canopy_server::Error),
    #[error(transparent)]
    Bench(#[from] canopy_bench::Error),
    #[error(transparent)]
    Upkeep(#[from] canopy_upkeep::Error),
    #[error(transparent)]
    Monitor(#[from] canopy_monitor::Error),
    #[error(transparent)]
    Notify(#[from] canopy_notify::Error),
    #[error(transparent)]
    Schedule(#[from] canopy_schedule::Error),
    #[error(transparent)]
    Setup(#[from] canopy_setup::Error),
    #[error("branches '{instruction}': {why}")]
    Branches { instruction: String, why: String },
    #[error("branch {path} {}", missing(.0, "; or mount without it: -o allow-missing-branches=true"), path = .0.shown())]
    BranchMissing(PathBuf),
    /// The same, for a branch that is added to a running pool.
    #[error("branch {path} {}", missing(.0, ""), path = .0.shown())]
    NewBranchMissing(PathBuf),
    #[error(
        "{} not mounted within {seconds} s (a branch that needs no mount is marked by: touch BRANCH/.mergerfs.branch)",
        named(.branches)
    )]
    BranchesNotMounted { branches: Vec<PathBuf>, seconds: u64 },
    #[error("branch {} is not a directory", .0.shown())]
    BranchNotDirectory(PathBuf),
    #[error("branch {path} cannot be read: {why} (its owner or root must allow it)", path = .path.shown(), why = os_error(.why))]
    BranchUnreadable { path: PathBuf, why: io::Error },
    #[error("branch {path} is a mount whose server is gone (umount -l {path})", path = .0.shown())]
    BranchDead(PathBuf),
    #[error("branch {path} has not answered for {seconds} s, and the pool is not mounted (mount the pool without it, and add it later: \
             canopy add MOUNTPOINT {path})", path = .path.shown())]
    BranchSilent { path: PathBuf, seconds: u64 },
    #[error(
        "branch {} is already a branch of pool {pool}{} (canopy mode {pool} BRANCH MODE changes its mode)",
        .branch.shown(), if .branch == .other { String::new() } else { format!(", as {}", .other.shown()) },
        pool = .pool.shown()
    )]
    BranchTwice { branch: PathBuf, other: PathBuf, pool: PathBuf },
    #[error("{} is not a branch of {pool}, which has: {branches}", .branch.shown(), pool = .pool.shown())]
    NoBranch { branch: PathBuf, pool: PathBuf, branches: String },
    #[error("no branch of {path} would be left (to end the pool: canopy umount {path})", path = .0.shown())]
    LastBranch(PathBuf),
    #[error("nothing was changed, because nobody said yes (--yes does it without asking)")]
    NotAsked,
    #[error(
        "this list would remove {} from {pool} (to add: canopy add {pool} {added}; to replace the whole list: --yes)",
        listed(.going), pool = .pool.shown()
    )]
    WouldRemove { going: Vec<PathBuf>, added: String, pool: PathBuf },
    #[error("no mountpoint given: {} {} MOUNTPOINT", if *.name == Name::Canopy { "canopy mount" } else { "mergerfs" }, .branches.shown())]
    OnlyBranches { name: Name, branches: PathBuf },
    #[error(
        "mountpoint {path} is not empty: the pool would hide its files (use an empty directory, or mount over them: {})",
        over(), path = .0.shown()
    )]
    MountpointNotEmpty(PathBuf),
    #[error(
        "mountpoint {path} is a mounted disk ({disk}), whose files the pool would hide (was the mountpoint forgotten? canopy mount BRANCH... MOUNTPOINT; or mount over the disk: {})",
        over(), path = .path.shown()
    )]
    MountpointIsDisk { path: PathBuf, disk: String },
    #[error("mountpoint {path} does not exist (create it: mkdir -p {path})", path = .0.shown())]
    MountpointMissing(PathBuf),
    #[error("mountpoint {} is not a directory", .0.shown())]
    MountpointNotDirectory(PathBuf),
    #[error("mountpoint {} cannot be used: {}", .path.shown(), os_error(.why))]
    Mountpoint { path: PathBuf, why: io::Error },
    #[error("mountpoint {path} holds a dead mount that cannot be removed: {why} (as root: umount -l {path})", path = .path.shown())]
    DeadMount { path: PathBuf, why: String },
    #[error(
        "the pool on {pool} cannot be replaced: {} mounted in it (unmount that first; -o lazy-umount-mountpoint=true detaches all of it)",
        are_listed(.within), pool = .pool.shown()
    )]
    MountsWithin { pool: PathBuf, within: Vec<PathBuf> },
    #[error("/dev/fuse does not exist (load the kernel module: modprobe fuse)")]
    NoFuseDevice,
    #[error("/dev/fuse cannot be opened: {0} (as root: chmod 666 /dev/fuse)")]
    FuseDevice(io::Error),
    #[error("fusermount3 is not installed, and only root can mount without it (install the package fuse3)")]
    NoFusermount,
    #[error("{path} is not mounted", path = .0.shown())]
    NotMounted(PathBuf),
    #[error("{path} is a mount of type {fstype}, not a pool (use umount)", path = .path.shown())]
    NotAPool { path: PathBuf, fstype: String },
    #[error("{path} is in use (fuser -vm {path} shows the processes; canopy umount --lazy {path} does not wait for them)", path = .0.shown())]
    Busy(PathBuf),
    #[error("{}: {failed} of its directories {} not synced (see above)", .path.shown(), if *.failed == 1 { "is" } else { "are" })]
    NotSynced { path: PathBuf, failed: usize },
    #[error("{path} cannot be unmounted: {why}", path = .path.shown())]
    Unmount { path: PathBuf, why: String },
    #[error("{path} cannot be remounted: {}", remount_refusal(*.why, .path), path = .path.shown())]
    Remount { path: PathBuf, why: Errno },
    #[error("a remount only changes mount flags, so {} keeps its other options: {}", .path.shown(), .others.join(", "))]
    RemountOptions { path: PathBuf, others: Vec<String> },
    #[error("setuid={user}: {why}")]
    User { user: String, why: String },
    #[error("{path} is not the mountpoint of a pool (canopy status lists pools)", path = .0.shown())]
    NoPool(PathBuf),
    #[error("the server of pool {path} has ended (canopy umount {path}, and mount it again)", path = .0.shown())]
    PoolDead(PathBuf),
    #[error("pool {path} cannot be served by another process: it was mounted with survive=false, by a user, or before Linux 6.9, or its keeper was killed (canopy umount {path}, and mount it again)", path = .0.shown())]
    NotSurviving(PathBuf),
    #[error("pool {path} was not upgraded, and is still served by the old program: {why}", path = .path.shown())]
    NotUpgraded { path: PathBuf, why: String },
    #[error("the old program of the pool cannot be executed: {0}")]
    Handover(String),
    #[error("pool {path} does not answer, because of xattr=nosys (unmount it, and mount it with another value)", path = .0.shown())]
    PoolMute(PathBuf),
    #[error("unknown key '{key}'{}", .nearest.as_ref().map_or_else(|| " (canopy list POOL shows them all)".to_owned(), |name| format!(" (did you mean '{name}'?)")))]
    UnknownKey { key: String, nearest: Option<String> },
    #[error("'{key}' has no value: write {key}=VALUE (canopy get {path} {key} shows the current one)", path = .path.shown())]
    NoValue { key: String, path: PathBuf },
    #[error("pool {path} was not mounted from a config file that can be changed (mount it with canopy mount NAME or -o config=FILE; without --persist a change holds until the pool is unmounted)", path = .0.shown())]
    NoConfigFile(PathBuf),
    #[error("pool {path} has read {file}, but the command that mounted it names another file or none (write {key} where the next mount finds it, or leave out --persist)", path = .path.shown(), file = .file.shown())]
    OtherConfigFile { key: String, file: PathBuf, path: PathBuf },
    #[error("{key} cannot be kept in a config file (use canopy set without --persist)")]
    NotPersistent { key: String },
    #[error("{file} cannot be written: {why}; and the pool cannot be restored: {kept} (canopy get shows its values)", file = .file.shown())]
    HalfPersisted { file: PathBuf, why: String, kept: String },
    #[error("{key} cannot be changed while the pool runs (canopy umount {path}, and mount it with -o {pair})", path = .path.shown())]
    FixedKey { key: String, pair: String, path: PathBuf },
    #[error("{key} is a flag of the mount (mount -o remount,{key} {path})", path = .path.shown())]
    FlagKey { key: String, path: PathBuf },
    #[error("{key} describes the pool and cannot be set")]
    ReadOnlyKey { key: String },
    #[error("pool {path} is mounted read-only, and so are its options (mount -o remount,rw {path})", path = .0.shown())]
    PoolReadOnly(PathBuf),
    #[error("{key} of pool {path} cannot be changed: only its owner and root may do that (sudo canopy set ..., outside of containers)", path = .path.shown())]
    NotOwner { key: String, path: PathBuf },
    #[error("{key} of pool {path}: {why} (the pool's log may say more)", path = .path.shown())]
    Control { key: String, path: PathBuf, why: String },
    #[error("pool {path} is served by another program, or another version of this one, and does not answer (canopy umount {path}, and mount it again)", path = .0.shown())]
    NotCanopy(PathBuf),
    #[error("{} cannot be looked up: {why}", .path.shown())]
    Explain { path: PathBuf, why: String },
    #[error("no path given: canopy explain {} PATH (canopy explain --help)", .0.shown())]
    NoPathToExplain(PathBuf),
    #[error("{} is not on a pool (canopy status lists pools)", .0.shown())]
    OnNoPool(PathBuf),
    #[error("'{word}' is not a function: must be one of {known}{}", .nearest.as_ref().map_or_else(String::new, |name| format!(" (did you mean '{name}'?)")))]
    NoFunction { word: String, known: String, nearest: Option<String> },
    #[error("{what}: {}", os_error(.why))]
    System { what: &'static str, why: io::Error },
    /// A message from the background process.
    #[error("{0}")]
    Background(String),
    #[error("the daemon exited before the pool was usable ({0}); canopy mount -f shows more")]
    BackgroundDied(std::process::ExitStatus),
    #[error("mounting on {} failed: {why}", .mountpoint.shown())]
    Serve { mountpoint: PathBuf, why: String },
}

impl From<OptionError> for Error {
    fn from(error: OptionError) -> Self {
        Error::Config(error.into())
    }
}

impl Error {
    /// Wraps errors of system calls that do not fail on a healthy machine.
    pub fn system(what: &'static str) -> impl FnOnce(io::Error) -> Error {
        move |why| Error::System { what, why }
    }

    /// Returns one line for each mistake. A config file may have several.
    pub fn lines(&self) -> Vec<String> {
        match self {
            Error::Config(error) => error.lines(),
            other => vec![other.line()],
        }
    }

    /// Returns the message as one line, with control characters of paths and values escaped.
    pub fn line(&self) -> String {
        one_line(&self.to_string())
    }
}

/// Returns the option that allows a mount over files.
fn over() -> &'static str {
    "--over, in fstab the option nonempty"
}

fn named(branches: &[PathBuf]) -> String {
    match branches {
        [one] => format!("branch {} is", one.shown()),
        _ => format!("branches {} are", listed(branches)),
    }
}

/// Says that a branch does not exist, and how to fix it. For a pattern, creating the directory is no fix.
fn missing(path: &Path, otherwise: &str) -> String {
    let text = path.to_string_lossy();
    if text.contains(",/") {
        return format!("does not exist (branches are separated by colons: {})", text.replace(",/", ":/"));
    }
    if is_pattern(path.as_os_str()) {
        format!(
            "matches no directory (mount the disks it stands for, or name an existing directory{otherwise})"
        )
    } else {
        format!("does not exist (create it: mkdir -p {}{otherwise})", path.shown())
    }
}

fn remount_refusal(why: Errno, path: &Path) -> String {
    match why {
        Errno::BUSY => {
            format!("files on it are open for writing (fuser -vm {} shows the processes)", path.shown())
        }
        Errno::PERM => {
            "only root can do that, and a container cannot change flags that were set outside".into()
        }
        why => os_error(why),
    }
}

fn are_listed(mounts: &[PathBuf]) -> String {
    format!("{} {}", listed(mounts), if mounts.len() == 1 { "is" } else { "are" })
}

fn listed(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.shown().to_string()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_in_paths_are_escaped() {
        let error = Error::BranchNotDirectory(PathBuf::from("/a\nb\x1b[31m"));
        assert_eq!(error.line(), "branch /a\\nb\\u{1b}[31m is not a directory");
    }
}
