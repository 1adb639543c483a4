//! What a serving process gives up: capabilities, gaining privileges, and with `landlock` everything outside of its
//! branches.
//!
//! All of these are properties of threads, which new threads inherit.

mod witness;

use canopy_branch::branch::Branches;
use canopy_config::{Config, state};
use canopy_control::SecurityReport;
use canopy_pool::config::MissingNames;
use canopy_pool::door::Look;
use landlock::{
    ABI, Access as _, AccessFs, CompatLevel, Compatible as _, PathBeneath, Ruleset, RulesetAttr as _,
    RulesetCreated, RulesetCreatedAttr as _, RulesetError, make_bitflags,
};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::thread::{
    CapabilitiesSecureBits as Bits, CapabilitySet as Caps, capabilities, capabilities_secure_bits,
    clear_ambient_capability_set, remove_capability_from_bounding_set, set_capabilities,
    set_capabilities_secure_bits, set_no_new_privs, set_thread_groups,
};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;

/// The capabilities that serving needs. The kernel has checked the permissions of the pool's users; on the branches
/// the daemon then does what it allowed.
const NEEDED: [(Caps, &str); 12] = [
    // Also for passthrough, fanotify, unmounting, and trusted attributes.
    (Caps::SYS_ADMIN, "sys_admin"),
    // The pool itself applies the modes and ACLs of the branch to the caller.
    (Caps::DAC_OVERRIDE, "dac_override"),
    // Also for opening directories by file handle (open_by_handle_at(2)), which fanotify events need.
    (Caps::DAC_READ_SEARCH, "dac_read_search"),
    (Caps::CHOWN, "chown"),
    (Caps::FOWNER, "fowner"),
    // The pool clears set-id bits itself; they must not be cleared unasked.
    (Caps::FSETID, "fsetid"),
    // New files belong to the caller.
    (Caps::SETUID, "setuid"),
    (Caps::SETGID, "setgid"),
    (Caps::MKNOD, "mknod"),
    // For `security.capability`.
    (Caps::SETFCAP, "setfcap"),
    // To raise the priority of threads that others wait for.
    (Caps::SYS_NICE, "sys_nice"),
    // For chattr +i and +a.
    (Caps::LINUX_IMMUTABLE, "linux_immutable"),
];

/// Where /proc hides processes from other users, reading those of the callers needs this as well.
const SEE_CALLERS: (Caps, &str) = (Caps::SYS_PTRACE, "sys_ptrace");

/// What a process needs besides until it serves: to drop the others, and for limits and the `oom_score_adj`.
const TO_START: Caps = Caps::SETPCAP.union(Caps::SYS_RESOURCE);

/// Drops what neither the keeper of a pool needs nor the processes that it starts. They get what it is permitted to have, as
/// does a program that it executes (capabilities(7): as root, all of the bounding set), so it cannot give up more for good. To be
/// called while there is a single thread. Failures do not fail the mount.
pub fn limit_keeper() {
    let keep = NEEDED.into_iter().chain([SEE_CALLERS]).fold(TO_START, |all, (cap, _)| all | cap);
    let _ = clear_ambient_capability_set();
    let limited = capabilities(None).and_then(|now| {
        if now.effective.contains(Caps::SETPCAP) {
            drop_from_bounding_set(keep);
        }
        set_effective(now.permitted & keep, now.permitted & keep)
    });
    if let Err(errno) = limited {
        tracing::warn!("the keeper cannot drop the capabilities that are not needed: {errno}");
    }
}

/// While this exists, this thread may take its capabilities back but has none in force: a keeper that waits.
#[derive(Debug)]
pub struct Resting(());

impl Resting {
    #[must_use]
    pub fn begin() -> Resting {
        let _ = capabilities(None).and_then(|now| set_effective(Caps::empty(), now.permitted));
        Resting(())
    }
}

impl Drop for Resting {
    fn drop(&mut self) {
        let _ = capabilities(None).and_then(|now| set_effective(now.permitted, now.permitted));
    }
}

fn set_effective(effective: Caps, permitted: Caps) -> Result<(), Errno> {
    let inheritable = Caps::empty();
    set_capabilities(None, rustix::thread::CapabilitySets { effective, permitted, inheritable })
}

fn drop_from_bounding_set(keep: Caps) {
    for number in 0..u64::BITS {
        let cap = Caps::from_bits_retain(1 << number);
        // EINVAL: beyond the last capability that the kernel knows.
        if !keep.contains(cap) && remove_capability_from_bounding_set(cap) == Err(Errno::INVAL) {
            break;
        }
    }
}

/// Drops the capabilities that serving does not need. To be called while there is a single thread, after everything
/// that needs more. Failures here do not fail the mount. Also returns what looks at callers, for which a thread keeps what
/// it needs.
pub(crate) fn drop_privileges() -> io::Result<(SecurityReport, Box<Look>)> {
    let witness = witness::start()?;
    let hidden = hides_processes();
    let needed: Vec<_> = NEEDED.into_iter().chain(hidden.then_some(SEE_CALLERS)).collect();
    let keep = needed.iter().fold(Caps::empty(), |all, (cap, _)| all | *cap);
    if let Err(errno) = drop_all_but(keep) {
        tracing::warn!("cannot drop the capabilities that are not needed: {errno}");
    }
    let held = capabilities(None).map_or(Caps::empty(), |held| held.effective);
    // Otherwise fusermount3 unmounts, which is set-uid. Workers never run it.
    let unmounts = held.contains(Caps::SYS_ADMIN);
    if unmounts && let Err(errno) = set_no_new_privs(true) {
        tracing::warn!("cannot set no_new_privs: {errno}");
    }
    let names = needed.iter().filter(|(cap, _)| held.contains(*cap)).map(|(_, name)| (*name).to_owned());
    let others = held - keep;
    let others = others.iter().map(|cap| format!("{}", cap.bits().trailing_zeros()));
    let capabilities = names.chain(others).collect();
    Ok((SecurityReport { capabilities, no_new_privs: true, ..SecurityReport::default() }, witness))
}

fn drop_all_but(keep: Caps) -> Result<(), Errno> {
    let now = capabilities(None)?;
    // Kernels before 4.3 do not have one.
    let _ = clear_ambient_capability_set();
    if now.effective.contains(Caps::SETGID) && rustix::process::geteuid().is_root() {
        // A filesystem may keep blocks for a group that root is in.
        let _ = set_thread_groups(&[]);
    }
    let mut keep = keep;
    if now.effective.contains(Caps::SETPCAP) {
        // Threads that switch to a caller's uid keep their capabilities, and programs that are executed get none.
        let bits = Bits::NO_SETUID_FIXUP | Bits::NO_ROOT | Bits::NO_CAP_AMBIENT_RAISE;
        let locked = Bits::NO_SETUID_FIXUP_LOCKED | Bits::NO_ROOT_LOCKED | Bits::NO_CAP_AMBIENT_RAISE_LOCKED;
        set_capabilities_secure_bits(capabilities_secure_bits()? | bits | locked)?;
        drop_from_bounding_set(keep);
    } else if !capabilities_secure_bits()?.contains(Bits::NO_SETUID_FIXUP) {
        // Worker threads set it themselves, if they may.
        keep |= Caps::SETPCAP;
    }
    set_effective(now.effective & keep, now.permitted & keep)
}

/// Returns whether /proc hides processes of other users (hidepid in proc(5)).
fn hides_processes() -> bool {
    let table = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    is_hidden_by(&table)
}

fn is_hidden_by(mounts: &str) -> bool {
    // The last mount there is the visible one.
    let proc = mounts.lines().rev().find_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (at, kind, options) = (fields.next()?, fields.next()?, fields.next()?);
        (at == "/proc" && kind == "proc").then_some(options)
    });
    let hidepid = proc.and_then(|options| options.split(',').find_map(|word| word.strip_prefix("hidepid=")));
    !matches!(hidepid, None | Some("0" | "off"))
}

/// The Landlock rules for the workers.
pub(crate) struct Sandbox {
    rules: RulesetCreated,
    branches: Vec<PathBuf>,
}

impl Sandbox {
    /// Allows the branches, and what else a worker reads or writes. `None`, with a warning, where the kernel cannot.
    pub(crate) fn new(config: &Config, branches: &Branches) -> Option<Sandbox> {
        if !config.landlock {
            return None;
        }
        if hides_processes() {
            // Landlock hides them from the workers, whatever capabilities they have.
            tracing::warn!("landlock=true has no effect: /proc hides the callers (hidepid)");
            return None;
        }
        let rules = rules(config, branches);
        let rules = rules.inspect_err(|error| {
            let why = match error {
                RulesetError::HandleAccesses(_) => "the kernel does not support it".to_owned(),
                other => other.to_string(),
            };
            tracing::warn!("landlock=true has no effect: {why} (it needs Linux 5.19, and lsm=landlock)");
        });
        let branches = branches.iter().map(|branch| branch.path.clone()).collect();
        Some(Sandbox { rules: rules.ok()?, branches })
    }

    /// Returns the branches that the workers can reach.
    pub(crate) fn branches(&self) -> &[PathBuf] {
        &self.branches
    }
}

/// Returns a ruleset that forbids everything it handles: all access rights of Landlock ABI 3, or ABI 2 on older
/// kernels (Linux 5.19). ABI 1 is not enough: it cannot allow renames from one directory to another.
fn forbid_all() -> Result<RulesetCreated, RulesetError> {
    Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(ABI::V2))?
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::Truncate)?
        .create()
}

fn rules(config: &Config, branches: &Branches) -> Result<RulesetCreated, RulesetError> {
    let mut rules = forbid_all()?;
    for branch in branches.iter() {
        rules = rules
            .add_rule(PathBeneath::new(&branch.root, AccessFs::from_all(ABI::V3) & !AccessFs::Execute))?;
    }
    for (dir, _) in config.pool.read_cache.dirs() {
        let found = rustix::fs::open(dir, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
        let Ok(found) = found else { continue };
        rules = rules.add_rule(PathBeneath::new(found, AccessFs::from_all(ABI::V3) & !AccessFs::Execute))?;
    }
    let read = make_bitflags!(AccessFs::{ReadFile | ReadDir});
    let beside = |path: &Path| path.parent().map(Path::to_owned);
    // Appended to, never read.
    let log = make_bitflags!(AccessFs::{WriteFile | MakeReg});
    let remembered = (config.pool.missing == MissingNames::Remember)
        .then(|| config.catalogue.dir().map_or_else(state::directory, Path::to_owned));
    let access_to_records =
        read | make_bitflags!(AccessFs::{WriteFile | MakeReg | MakeDir | RemoveFile | Refer | Truncate});
    let others = [
        // To learn about the callers.
        (Some(PathBuf::from("/proc")), read),
        // To set readahead.
        (Some(PathBuf::from("/sys")), read | AccessFs::WriteFile),
        // Each worker clones the device.
        (Some(PathBuf::from("/dev/fuse")), make_bitflags!(AccessFs::{ReadFile | WriteFile})),
        // Log rotation moves the file away, so that it must be created again.
        (beside(&config.log_file), log),
        (config.file.path.as_deref().and_then(beside), read),
        // The records of what branches hold.
        (remembered, access_to_records),
    ];
    for (path, access) in others {
        let Some(path) = path.filter(|path| !path.as_os_str().is_empty()) else { continue };
        let found = rustix::fs::open(&path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
        // A path that does not exist needs no rule.
        let Ok(found) = found else { continue };
        // For a file, the rights that only directories have are ignored.
        rules = rules.add_rule(PathBeneath::new(found, access))?;
    }
    Ok(rules)
}

/// Runs `work` on a thread that can gain no privileges and is confined by the rules, as are the threads that it
/// starts.
pub(crate) fn run_confined<T: Send>(
    sandbox: Option<&Sandbox>,
    work: impl FnOnce() -> T + Send,
) -> io::Result<T> {
    let begin = || {
        set_no_new_privs(true)?;
        if let Some(sandbox) = sandbox {
            sandbox.rules.try_clone()?.restrict_self().map_err(io::Error::other)?;
        }
        Ok(work())
    };
    thread::scope(|scope| {
        let started = thread::Builder::new().name("canopy-start".into()).spawn_scoped(scope, begin)?;
        started.join().map_err(|_| io::Error::other("the thread panicked"))?
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use fs::File;

    #[test]
    fn a_confined_thread_reaches_only_what_the_rules_allow() {
        let Ok(rules) = forbid_all() else { return }; // the kernel has no Landlock
        let tmp = tempfile::tempdir().unwrap();
        let (inside, outside) = (tmp.path().join("in"), tmp.path().join("out"));
        for dir in [&inside, &outside] {
            fs::create_dir(dir).unwrap();
            fs::write(dir.join("f"), "x").unwrap();
        }
        let access = AccessFs::from_all(ABI::V3) & !AccessFs::Execute;
        let rules = rules.add_rule(PathBeneath::new(File::open(&inside).unwrap(), access)).unwrap();
        let sandbox = Sandbox { rules, branches: Vec::new() };
        run_confined(Some(&sandbox), || {
            fs::rename(inside.join("f"), inside.join("g")).unwrap();
            fs::write(inside.join("f"), "new").unwrap();
            for denied in [
                fs::read(outside.join("f")).map(drop),
                fs::write(outside.join("f"), ""),
                fs::rename(inside.join("f"), outside.join("g")),
                fs::remove_file(outside.join("f")),
                fs::create_dir(outside.join("d")),
            ] {
                let errno = Errno::from_io_error(&denied.unwrap_err());
                assert!(matches!(errno, Some(Errno::ACCESS | Errno::XDEV)), "{errno:?}");
            }
            // Threads that it starts inherit the rules.
            thread::scope(|scope| {
                scope.spawn(|| assert!(fs::read(outside.join("f")).is_err())).join().unwrap();
            });
        })
        .unwrap();
        assert_eq!(fs::read(outside.join("f")).unwrap(), b"x", "another thread is not confined");
    }

    #[test]
    fn hidepid_is_found_in_the_mount_table() {
        for (options, hidden) in [
            ("rw,nosuid", false),
            ("rw,hidepid=0", false),
            ("rw,hidepid=off", false),
            ("rw,hidepid=2,gid=7", true),
            ("rw,hidepid=invisible", true),
        ] {
            let table = format!(
                "proc /proc proc rw,hidepid=1 0 0\nproc /proc proc {options} 0 0\nx /x proc rw 0 0\n"
            );
            assert_eq!(is_hidden_by(&table), hidden, "{options}");
        }
        assert!(!is_hidden_by(""));
    }
}
