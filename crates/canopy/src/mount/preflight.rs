//! Checks a plan against the state of the machine before anything is mounted, so that errors have no side effects.

use super::unmount;
use crate::error::Error;
use canopy_branch::branch::{BranchSpec, Mode};
use canopy_config::overlap::{is_visible_below, refuse_overlap};
use canopy_config::resolve::{Plan, remembered};
use canopy_config::{Config, Mount, fstab, lossy, pool_loops};
use canopy_monitor::probe::{self, QueryOutcome};
use canopy_sys::glob::is_pattern;
use canopy_sys::mountinfo::{self, MountEntry};
use canopy_sys::shown::Show as _;
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Findings that are not errors.
#[derive(Default, Debug)]
pub struct Findings {
    pub warnings: Vec<String>,
    /// For the debug log.
    pub details: Vec<String>,
}

/// Checks everything that can be checked without mounting, and resolves the mountpoint. Removes a dead mount that an
/// earlier pool left there.
pub fn check(plan: &mut Plan, over: Over) -> Result<Findings, Error> {
    let mut findings = Findings::default();
    // Branches first, so that a dead mount is only removed if the rest of the command is correct.
    let branches = branches(plan, &mut findings)?;
    require_mount_privileges()?;
    plan.mountpoint = mountpoint(&plan.mountpoint, &mut findings)?;
    let there = mountinfo::at(&plan.mountpoint).ok().flatten();
    let pool = there.filter(MountEntry::is_pool);
    let over_pool = pool.is_some();
    plan.replaces = over_pool && can_replace();
    if let Some(pool) = pool.filter(|_| plan.replaces && !plan.config.detach_mountpoint) {
        refuse_mounts_within(&pool)?;
    }
    // A pool that is replaced stays mounted until the new one can answer.
    if plan.config.detach_mountpoint && !plan.replaces {
        branches.iter().try_for_each(|branch| refuse_overlap(&branch.path, &plan.mountpoint))?;
        detach_mount(&plan.mountpoint)?;
    }
    plan.missing.iter().try_for_each(|branch| refuse_overlap(branch, &plan.mountpoint))?;
    let place = Directory::of(&plan.mountpoint).map_err(|why| mountpoint_error(&plan.mountpoint, why))?;
    let mounts = mountinfo::list().unwrap_or_default();
    findings.warnings.extend(branches.iter().filter_map(|branch| lossy_warning(&branch.path, &mounts)));
    for branch in &branches {
        refuse_loops(branch, &place, &mounts)?;
        pool_loops::check(&branch.path, &place.path, None)?;
    }
    warn_of_overlaps(&branches, &mut findings);
    findings.warnings.extend(enforce_permission_checks(&mut plan.config.mount));
    findings.warnings.extend(no_space_warning(&plan.config));
    if over_pool && !plan.replaces && !plan.config.detach_mountpoint {
        findings.warnings.push(hidden_pool_warning(&plan.mountpoint));
    }
    if !over_pool && !plan.config.detach_mountpoint {
        findings.warnings.extend(hidden_files(&place.path, over, plan.config.ignored.contains("nonempty"))?);
    }
    Ok(findings)
}

/// How long a branch may take to answer. A disk that spins up, or a server that fails over, takes less.
const ANSWERED_WITHIN: Duration = Duration::from_secs(30);

/// Asks the branches that another program or machine serves, at the same time and in processes that can be left behind: a
/// process that waits for such a root may not end before it answers, signals or not.
fn require_answers(plan: &Plan) -> Result<(), Error> {
    let mounts = mountinfo::list().unwrap_or_default();
    let paths = plan.config.branches.iter().map(|spec| spec.path.as_path());
    let asked: Vec<&Path> = paths.filter(|path| may_be_silent(path, &mounts)).collect();
    let queries = probe::start_all("branch", asked.iter().copied())
        .map_err(Error::system("cannot start a process that asks the branches"))?;
    let deadline = Instant::now() + ANSWERED_WITHIN;
    for (path, query) in asked.into_iter().zip(queries) {
        if let QueryOutcome::TimedOut = probe::answer::<serde_json::Value>(query, deadline) {
            return Err(Error::BranchSilent { path: path.to_owned(), seconds: ANSWERED_WITHIN.as_secs() });
        }
    }
    Ok(())
}

/// Returns whether a path is on a mount that something else than this machine's kernel serves. Judged by its text: the path
/// itself may not answer.
fn may_be_silent(path: &Path, mounts: &[MountEntry]) -> bool {
    let longest = mounts.iter().filter(|mounted| path.starts_with(&mounted.mountpoint));
    // Of several at one place, the last is on top.
    let on = longest.max_by_key(|mounted| mounted.mountpoint.as_os_str().len());
    let of_kernel = ["tmpfs", "ramfs", "overlay", "btrfs", "zfs", "bcachefs"];
    on.is_some_and(|on| {
        on.fstype == "fuseblk" || on.device.0 == 0 && !of_kernel.contains(&on.fstype.as_str())
    })
}

/// Whether a pool may hide the files of its mountpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Over {
    /// The user says so.
    Allowed,
    /// A person mounts it, and can choose another place.
    Refused,
    /// At boot, or under a name whose users rely on it: the pool comes up, with a warning. A disk is not covered: most likely
    /// the command lacks the mountpoint.
    Directories,
}

/// Returns the warning for a mountpoint that has files.
///
/// # Errors
/// If the pool must not hide them.
fn hidden_files(place: &Path, over: Over, nonempty: bool) -> Result<Option<String>, Error> {
    if !has_files(place) {
        return Ok(None);
    }
    let mounted = mountinfo::at(place).ok().flatten();
    let allowed = over == Over::Allowed || nonempty;
    match mounted {
        Some(mounted) if !allowed => {
            let disk = format!("{}, {}", mounted.source.to_string_lossy(), mounted.fstype);
            Err(Error::MountpointIsDisk { path: place.to_owned(), disk })
        }
        None if over == Over::Refused && !nonempty => Err(Error::MountpointNotEmpty(place.to_owned())),
        _ => Ok(Some(format!("{} is not empty: the pool hides its files", place.shown()))),
    }
}

/// Returns whether a directory that can be read has an entry.
pub(crate) fn has_files(dir: &Path) -> bool {
    fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some())
}

/// Opens the branches. Missing ones are an error, unless the pool may be mounted without them.
fn branches(plan: &mut Plan, findings: &mut Findings) -> Result<Vec<Directory>, Error> {
    findings.warnings.extend(remembered::leave_out_missing(plan)?);
    require_answers(plan)?;
    let mut there = Vec::new();
    // With landlock, the daemon could not access a branch that appears later.
    let can_come_later = plan.config.allow_missing && !plan.config.landlock;
    let away = plan.missing.clone();
    for spec in plan.config.branches.iter().filter(|spec| !away.contains(&spec.path)) {
        if can_come_later && let Some(disk) = fstab::away(&spec.path) {
            findings.warnings.push(fstab::away_warning(&spec.path, &disk));
            plan.missing.push(spec.path.clone());
            continue;
        }
        match Directory::branch(&spec.path) {
            Ok(place) => there.push(place),
            Err(Error::BranchMissing(path) | Error::BranchDead(path)) if can_come_later => {
                findings.warnings.push(missing_branch_warning(&path));
                plan.missing.push(path);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(there)
}

/// Returns the warning for a branch that a pool is mounted without.
fn missing_branch_warning(path: &Path) -> String {
    let branch = path.shown();
    if is_pattern(path.as_os_str()) {
        format!(
            "branch {branch} matches no directory: the pool is mounted without it, and adds the directories that match \
             as soon as there are any"
        )
    } else {
        format!(
            "branch {branch} is not there: the pool is mounted without it, and adds it as soon as the directory exists"
        )
    }
}

/// Turns the kernel's permission checks on if other users than the one who mounts can access the pool. The branches are
/// accessed with the daemon's privileges, so there are no other checks. A pool for a single user needs none, because the
/// daemon has that user's privileges.
pub(crate) fn enforce_permission_checks(mount: &mut Mount) -> Option<String> {
    let shared = mount.allow_other || rustix::process::geteuid().is_root();
    if mount.skip_permission_checks {
        mount.permissions_check = false;
        let warning = "insecure-no-permission-checks=true: every user of this machine can read and change everything in \
                       the pool";
        return shared.then(|| warning.into());
    }
    if mount.permissions_check || !shared {
        return None;
    }
    mount.permissions_check = true;
    Some(
        "kernel-permissions-check=false is ignored, because every user could read and change everything \
         (to allow that: insecure-no-permission-checks=true)"
            .into(),
    )
}

/// Warns of a branch on a filesystem that cannot store all that files have. A pattern brings such disks in unasked.
fn lossy_warning(branch: &Path, mounts: &[MountEntry]) -> Option<String> {
    let mounted = mountinfo::holding_in(mounts, branch)?;
    let what = lossy::loses(&mounted.fstype)?;
    Some(format!(
        "branch {path} is on {}, which cannot store {what}: files created there lose them (to keep new files away: \
         {path}=NC)",
        mounted.fstype,
        path = branch.shown()
    ))
}

/// Warns if every branch has less free space than `minfreespace`, so that nothing can be created. On small disks the
/// default is enough for that, and "no space left" would not say why.
fn no_space_warning(config: &Config) -> Option<String> {
    let mut open = config.branches.iter().filter(|branch| branch.mode == Mode::Rw).peekable();
    open.peek()?;
    let full = |branch: &BranchSpec| {
        let space = rustix::fs::statvfs(&branch.path).ok()?;
        let avail = space.f_bavail.saturating_mul(space.f_frsize);
        Some(avail < branch.min_free.unwrap_or(config.pool.min_free))
    };
    let keep = canopy_base::text::bytes(config.pool.min_free);
    open.all(|branch| full(branch) == Some(true)).then(|| {
        format!(
            "every branch has less free space than minfreespace ({keep}), so nothing can be created \
             (set a lower -o minfreespace=SIZE)"
        )
    })
}

/// A directory with its path and identity.
struct Directory {
    path: PathBuf,
    identity: (u64, u64),
}

impl Directory {
    fn of(path: &Path) -> io::Result<Directory> {
        let meta = fs::metadata(path)?;
        Ok(Directory { path: path.to_owned(), identity: (meta.dev(), meta.ino()) })
    }

    /// Checks that a branch exists, is a directory and can be listed.
    fn branch(path: &Path) -> Result<Directory, Error> {
        let unreadable = |why: io::Error| match Errno::from_io_error(&why) {
            Some(Errno::NOENT) => Error::BranchMissing(path.to_owned()),
            Some(Errno::NOTDIR) => Error::BranchNotDirectory(path.to_owned()),
            Some(Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED) => Error::BranchDead(path.to_owned()),
            _ => Error::BranchUnreadable { path: path.to_owned(), why },
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::open(path, flags, rustix::fs::Mode::empty()).map_err(|errno| unreadable(errno.into()))?;
        Directory::of(path).map_err(unreadable)
    }
}

/// Rejects a pool that would contain itself or hide one of its branches.
fn refuse_loops(
    branch: &Directory,
    mountpoint: &Directory,
    mounts: &[MountEntry],
) -> Result<(), canopy_config::Error> {
    if branch.identity == mountpoint.identity {
        return Err(canopy_config::Error::BranchIsMountpoint(branch.path.clone()));
    }
    if is_visible_below(&mountpoint.path, &branch.path, mounts) {
        let (mountpoint, branch) = (mountpoint.path.clone(), branch.path.clone());
        return Err(canopy_config::Error::MountpointInBranch { mountpoint, branch });
    }
    refuse_overlap(&branch.path, &mountpoint.path)
}

/// Warns of branches that show files twice. Both cases have uses, so they are not errors.
fn warn_of_overlaps(branches: &[Directory], findings: &mut Findings) {
    for (index, branch) in branches.iter().enumerate() {
        for other in &branches[..index] {
            let (a, b) = (other.path.shown(), branch.path.shown());
            if branch.identity == other.identity {
                findings.warnings.push(if other.path == branch.path {
                    format!("branch {b} is given twice")
                } else {
                    format!("branches {a} and {b} are the same directory")
                });
            } else if branch.path.starts_with(&other.path) {
                findings.warnings.push(format!("branch {b} lies inside branch {a}: its files appear twice"));
            } else if other.path.starts_with(&branch.path) {
                findings.warnings.push(format!("branch {a} lies inside branch {b}: its files appear twice"));
            }
        }
    }
}

fn mountpoint_error(path: &Path, why: io::Error) -> Error {
    match why.kind() {
        io::ErrorKind::NotFound => Error::MountpointMissing(path.to_owned()),
        io::ErrorKind::NotADirectory => Error::MountpointNotDirectory(path.to_owned()),
        _ => Error::Mountpoint { path: path.to_owned(), why },
    }
}

/// Resolves the mountpoint, and removes dead mounts there.
fn mountpoint(path: &Path, findings: &mut Findings) -> Result<PathBuf, Error> {
    // Several daemons may have died on the same mountpoint.
    while let Some(dead) = dead_mount(path)? {
        unmount::unmount(&dead, true)
            .map_err(|error| Error::DeadMount { path: dead.clone(), why: error.line() })?;
        findings.warnings.push(format!("a dead mount was left at {}: removed", dead.shown()));
    }
    let real = path.canonicalize().map_err(|why| mountpoint_error(path, why))?;
    if !fs::metadata(&real).map_err(|why| mountpoint_error(path, why))?.is_dir() {
        return Err(Error::MountpointNotDirectory(real));
    }
    Ok(real)
}

/// Detaches the topmost mount at the mountpoint. Mounts below it stay, because they may provide the mountpoint.
fn detach_mount(mountpoint: &Path) -> Result<(), Error> {
    if let Ok(Some(mounted)) = mountinfo::at(mountpoint) {
        unmount::unmount(mountpoint, true)?;
        tracing::info!("{}: detached a mount of type {}", mountpoint.shown(), mounted.fstype);
    }
    Ok(())
}

/// Rejects detaching a pool that has other mounts in it.
fn refuse_mounts_within(pool: &MountEntry) -> Result<(), Error> {
    let mounts = mountinfo::list().unwrap_or_default().into_iter();
    let within: Vec<PathBuf> =
        mounts.filter(|mounted| mounted.parent == pool.id).map(|mounted| mounted.mountpoint).collect();
    if within.is_empty() {
        Ok(())
    } else {
        Err(Error::MountsWithin { pool: pool.mountpoint.clone(), within })
    }
}

/// Returns whether a mount can replace another without a gap (MOVE_MOUNT_BENEATH, move_mount(2)).
fn can_replace() -> bool {
    rustix::process::geteuid().is_root() && canopy_server::takeover::linux() >= (6, 5)
}

/// Returns the warning for a pool that another one covers.
pub fn hidden_pool_warning(mountpoint: &Path) -> String {
    format!(
        "{} already has a pool, which this one hides: it cannot be replaced here (canopy umount {0} ends the topmost)",
        mountpoint.shown()
    )
}

/// Returns the path of a FUSE mount at this path if its server is gone.
fn dead_mount(path: &Path) -> Result<Option<PathBuf>, Error> {
    let listed = match mountinfo::listed_path(path) {
        Ok(listed) => listed,
        Err(why) => return Err(mountpoint_error(path, why)),
    };
    if !mountinfo::at(&listed).ok().flatten().is_some_and(|mounted| mounted.is_fuse()) {
        return Ok(None);
    }
    // statfs always goes to the server; the kernel may answer stat from its cache.
    Ok(match rustix::fs::statfs(&listed) {
        Err(Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED) => Some(listed),
        _ => None,
    })
}

/// Checks that this user can mount at all.
fn require_mount_privileges() -> Result<(), Error> {
    let device = Path::new("/dev/fuse");
    if !device.exists() {
        return Err(Error::NoFuseDevice);
    }
    if !rustix::process::geteuid().is_root() {
        // Versions of the helper open the device as different users, so its own error is reported.
        return if is_installed("fusermount3") { Ok(()) } else { Err(Error::NoFusermount) };
    }
    match rustix::fs::open(device, OFlags::RDWR | OFlags::CLOEXEC, rustix::fs::Mode::empty()) {
        Ok(_) => Ok(()),
        // The device file exists without a driver.
        Err(Errno::NODEV | Errno::NXIO) => Err(Error::NoFuseDevice),
        Err(errno) => Err(Error::FuseDevice(errno.into())),
    }
}

/// Returns whether there is such a program in PATH.
fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/usr/bin:/bin"));
    std::env::split_paths(&path)
        .filter(|dir| dir != OsStr::from_bytes(b""))
        .any(|dir| rustix::fs::access(dir.join(program), rustix::fs::Access::EXEC_OK).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    struct Scratch(tempfile::TempDir);

    impl Scratch {
        fn new(dirs: &[&str]) -> Scratch {
            let scratch = Scratch(tempfile::tempdir().unwrap());
            for dir in dirs {
                fs::create_dir_all(scratch.path(dir)).unwrap();
            }
            scratch
        }
        fn path(&self, name: &str) -> PathBuf {
            self.0.path().canonicalize().unwrap().join(name)
        }
        fn directory(&self, name: &str) -> Directory {
            Directory::of(&self.path(name)).unwrap()
        }
    }

    fn verdict(scratch: &Scratch, branch: &str, mountpoint: &str) -> Result<(), String> {
        let mounts = mountinfo::list().unwrap();
        refuse_loops(&scratch.directory(branch), &scratch.directory(mountpoint), &mounts)
            .map_err(|error| error.line())
    }

    #[test]
    fn branches_must_be_readable_directories() {
        let scratch = Scratch::new(&["a"]);
        fs::write(scratch.path("file"), "").unwrap();
        assert!(Directory::branch(&scratch.path("a")).is_ok());
        let missing = scratch.path("none");
        assert!(matches!(Directory::branch(&missing), Err(Error::BranchMissing(path)) if path == missing));
        assert!(matches!(Directory::branch(&scratch.path("file")), Err(Error::BranchNotDirectory(_))));
    }

    #[test]
    fn a_pool_must_not_contain_itself() {
        let scratch = Scratch::new(&["a/deep/m", "ab", "m/inner"]);
        for (branch, mountpoint) in [("a", "ab"), ("ab", "a"), ("a", "m")] {
            assert_eq!(verdict(&scratch, branch, mountpoint), Ok(()), "{branch} {mountpoint}");
        }
        assert!(verdict(&scratch, "a", "a").unwrap_err().contains("is the mountpoint itself"));
        assert!(verdict(&scratch, "a", "a/deep/m").unwrap_err().contains("lies inside branch"));
        assert!(verdict(&scratch, "m/inner", "m").unwrap_err().contains("lies inside mountpoint"));
    }

    #[test]
    fn symlinks_do_not_hide_a_loop() {
        let scratch = Scratch::new(&["a/m"]);
        symlink(scratch.path("a/m"), scratch.path("link")).unwrap();
        let real = mountpoint(&scratch.path("link"), &mut Findings::default()).unwrap();
        assert_eq!(real, scratch.path("a/m"));
        symlink(scratch.path("a"), scratch.path("same")).unwrap();
        let error = verdict(&scratch, "same", "a").unwrap_err();
        assert!(error.contains("is the mountpoint itself"), "{error}");
    }

    #[test]
    fn files_of_the_mountpoint_are_not_hidden_unasked() {
        let scratch = Scratch::new(&["empty", "full/x"]);
        let ask = |name: &str, over, nonempty| hidden_files(&scratch.path(name), over, nonempty);
        for over in [Over::Allowed, Over::Refused, Over::Directories] {
            assert!(matches!(ask("empty", over, false), Ok(None)));
            assert!(matches!(ask("full", over, true), Ok(Some(_))), "{over:?}");
            let refused = matches!(ask("full", over, false), Err(Error::MountpointNotEmpty(_)));
            assert_eq!(refused, over == Over::Refused, "{over:?}");
            // A mounted filesystem.
            let proc = hidden_files(Path::new("/proc"), over, false);
            assert_eq!(
                matches!(proc, Err(Error::MountpointIsDisk { .. })),
                over != Over::Allowed,
                "{over:?}"
            );
        }
    }

    #[test]
    fn the_mountpoint_must_be_a_directory() {
        let scratch = Scratch::new(&["m"]);
        fs::write(scratch.path("file"), "").unwrap();
        let ask = |name: &str| mountpoint(&scratch.path(name), &mut Findings::default());
        assert_eq!(ask("m").unwrap(), scratch.path("m"));
        assert!(matches!(ask("none"), Err(Error::MountpointMissing(_))));
        assert!(matches!(ask("none/deeper"), Err(Error::MountpointMissing(_))));
        assert!(matches!(ask("file"), Err(Error::MountpointNotDirectory(_))));
        assert!(matches!(ask("file/below"), Err(Error::MountpointNotDirectory(_))));
    }

    #[test]
    fn overlapping_branches_cause_warnings() {
        let scratch = Scratch::new(&["a/b", "c"]);
        symlink(scratch.path("c"), scratch.path("d")).unwrap();
        let directories = ["a", "a/b", "c", "c", "d"].map(|name| scratch.directory(name));
        let mut findings = Findings::default();
        warn_of_overlaps(&directories, &mut findings);
        let text = findings.warnings.join("\n");
        assert_eq!(findings.warnings.len(), 4, "{text}");
        assert!(text.contains("a/b lies inside branch"), "{text}");
        assert!(text.contains("c is given twice"), "{text}");
        assert!(text.contains("d are the same directory"), "{text}");
    }

    #[test]
    fn only_branches_that_others_serve_are_asked_first() {
        let mount = |mountpoint: &str, major, fstype: &str| MountEntry {
            mountpoint: mountpoint.into(),
            device: (major, 1),
            fstype: fstype.into(),
            ..mountinfo::list().unwrap().remove(0)
        };
        let mounts = [
            mount("/", 8, "ext4"),
            mount("/mnt", 0, "btrfs"),
            mount("/mnt/nas", 0, "nfs4"),
            mount("/mnt/nas/disk", 8, "xfs"),
            mount("/pool", 0, "fuse.canopy"),
            mount("/ntfs", 8, "fuseblk"),
            mount("/over", 0, "fuse.sshfs"),
            mount("/over", 0, "tmpfs"),
        ];
        for (path, asked) in [
            ("/home", false),
            ("/mnt/a", false),
            ("/mnt/nas/films", true),
            ("/mnt/nasty", false),
            ("/mnt/nas/disk/b", false),
            ("/pool/c", true),
            ("/ntfs", true),
            ("/over/d", false),
        ] {
            assert_eq!(may_be_silent(Path::new(path), &mounts), asked, "{path}");
        }
    }

    #[test]
    fn programs_are_found_in_path() {
        assert!(is_installed("sh"));
        assert!(!is_installed("no-such-program-anywhere"));
    }
}
