//! What a process that serves gives up: capabilities, new privileges, and if asked for what lies outside of its branches.
//!
//! All of it belongs to threads, and those that come inherit it.

use canopy_config::Config;
use canopy_config::control_api::SecurityReport;
use canopy_pool::branch::Branches;
use landlock::{
    ABI, Access as _, AccessFs, CompatLevel, Compatible as _, PathBeneath, Ruleset, RulesetAttr as _,
    RulesetCreated, RulesetCreatedAttr as _, RulesetError, make_bitflags,
};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::thread::{
    CapabilitiesSecureBits as Bits, CapabilitySet as Caps, capabilities, capabilities_secure_bits,
    clear_ambient_capability_set, remove_capability_from_bounding_set, set_capabilities,
    set_capabilities_secure_bits, set_no_new_privs,
};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;

/// What serving needs, and what for. Whoever uses the pool has been judged by the kernel; on the branch the daemon does
/// what was allowed there.
const NEEDED: [(Caps, &str); 12] = [
    // Also passthrough, watching filesystems, unmounting, and trusted attributes.
    (Caps::SYS_ADMIN, "sys_admin"),
    // What modes and ACLs of the branch say of the caller has been looked at.
    (Caps::DAC_OVERRIDE, "dac_override"),
    // Also directories by their handles (open_by_handle_at(2)), for what is watched.
    (Caps::DAC_READ_SEARCH, "dac_read_search"),
    (Caps::CHOWN, "chown"),
    (Caps::FOWNER, "fowner"),
    // Set-id bits go when the pool takes them away, not by themselves.
    (Caps::FSETID, "fsetid"),
    // What is created is the caller's.
    (Caps::SETUID, "setuid"),
    (Caps::SETGID, "setgid"),
    (Caps::MKNOD, "mknod"),
    // `security.capability`
    (Caps::SETFCAP, "setfcap"),
    // Threads that others wait for run at once.
    (Caps::SYS_NICE, "sys_nice"),
    // chattr +i, +a
    (Caps::LINUX_IMMUTABLE, "linux_immutable"),
];

/// Where /proc hides processes from others, it tells of callers only by this.
const SEES_CALLERS: (Caps, &str) = (Caps::SYS_PTRACE, "sys_ptrace");

/// Gives up what is not needed: to be called before there is a second thread, and when everything that needs more is
/// done. Nothing here can fail the mount.
pub(crate) fn give_up() -> SecurityReport {
    let hidden = hides_processes();
    let needed: Vec<_> = NEEDED.into_iter().chain(hidden.then_some(SEES_CALLERS)).collect();
    let keep = needed.iter().fold(Caps::empty(), |all, (cap, _)| all | *cap);
    if let Err(errno) = drop_all_but(keep) {
        tracing::warn!("capabilities are kept that are not needed: {errno}");
    }
    let held = capabilities(None).map_or(Caps::empty(), |held| held.effective);
    // Else it is fusermount3 that unmounts, which is set-uid; workers never run it.
    let unmounts = held.contains(Caps::SYS_ADMIN);
    if unmounts && let Err(errno) = set_no_new_privs(true) {
        tracing::warn!("no_new_privs: {errno}");
    }
    let names = needed.iter().filter(|(cap, _)| held.contains(*cap)).map(|(_, name)| (*name).to_owned());
    let others = held - keep;
    let others = others.iter().map(|cap| format!("{}", cap.bits().trailing_zeros()));
    let capabilities = names.chain(others).collect();
    SecurityReport { capabilities, no_new_privs: true, ..SecurityReport::default() }
}

fn drop_all_but(keep: Caps) -> Result<(), Errno> {
    let now = capabilities(None)?;
    // Kernels before 4.3 have none.
    let _ = clear_ambient_capability_set();
    let mut keep = keep;
    if now.effective.contains(Caps::SETPCAP) {
        // Threads that take on a caller's uid keep their capabilities, and no program that is run gets any.
        let bits = Bits::NO_SETUID_FIXUP | Bits::NO_ROOT | Bits::NO_CAP_AMBIENT_RAISE;
        let locked = Bits::NO_SETUID_FIXUP_LOCKED | Bits::NO_ROOT_LOCKED | Bits::NO_CAP_AMBIENT_RAISE_LOCKED;
        set_capabilities_secure_bits(capabilities_secure_bits()? | bits | locked)?;
        for number in 0..u64::BITS {
            let cap = Caps::from_bits_retain(1 << number);
            // Beyond the last that the kernel knows it says so.
            if !keep.contains(cap) && remove_capability_from_bounding_set(cap) == Err(Errno::INVAL) {
                break;
            }
        }
    } else if !capabilities_secure_bits()?.contains(Bits::NO_SETUID_FIXUP) {
        // Threads see to it by themselves, if they may.
        keep |= Caps::SETPCAP;
    }
    let (effective, permitted) = (now.effective & keep, now.permitted & keep);
    set_capabilities(
        None,
        rustix::thread::CapabilitySets { effective, permitted, inheritable: Caps::empty() },
    )
}

/// Is /proc mounted such that not everybody sees every process? (proc(5), hidepid)
fn hides_processes() -> bool {
    let table = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    hides(&table)
}

fn hides(mounts: &str) -> bool {
    // The last that was mounted there counts.
    let proc = mounts.lines().rev().find_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (at, kind, options) = (fields.next()?, fields.next()?, fields.next()?);
        (at == "/proc" && kind == "proc").then_some(options)
    });
    let hidepid = proc.and_then(|options| options.split(',').find_map(|word| word.strip_prefix("hidepid=")));
    !matches!(hidepid, None | Some("0" | "off"))
}

/// Where workers may go, with `landlock`.
pub(crate) struct Ground {
    rules: RulesetCreated,
    branches: Vec<PathBuf>,
}

impl Ground {
    /// The branches, and what else a worker reads or writes; `None` with a warning where the kernel cannot.
    pub(crate) fn new(config: &Config, branches: &Branches) -> Option<Ground> {
        if !config.landlock {
            return None;
        }
        if hides_processes() {
            // Whoever is confined sees none of those that are hidden, whatever capability it has.
            tracing::warn!("landlock=true comes to nothing: /proc hides the callers (hidepid)");
            return None;
        }
        let rules = rules(config, branches);
        let rules = rules.inspect_err(|error| {
            let why = match error {
                RulesetError::HandleAccesses(_) => "the kernel does not support it".to_owned(),
                other => other.to_string(),
            };
            tracing::warn!("landlock=true comes to nothing: {why} (it needs Linux 5.19, and lsm=landlock)");
        });
        let branches = branches.iter().map(|branch| branch.path.clone()).collect();
        Some(Ground { rules: rules.ok()?, branches })
    }

    /// Where what is opened must lie.
    pub(crate) fn branches(&self) -> &[PathBuf] {
        &self.branches
    }
}

/// Returns a ruleset that forbids everything it handles: all access rights of Landlock's version 3, or 2 where the
/// kernel has no more (Linux 5.19). Version 1 allows no rename from one directory to another, so it does not do.
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
    let read = make_bitflags!(AccessFs::{ReadFile | ReadDir});
    let beside = |path: &Path| path.parent().map(Path::to_owned);
    // Written at its end, and never read.
    let log = make_bitflags!(AccessFs::{WriteFile | MakeReg});
    let others = [
        // Who the callers are.
        (Some(PathBuf::from("/proc")), read),
        // How far is read ahead.
        (Some(PathBuf::from("/sys")), read | AccessFs::WriteFile),
        // Each has a clone.
        (Some(PathBuf::from("/dev/fuse")), make_bitflags!(AccessFs::{ReadFile | WriteFile})),
        // Whoever rotates the log moves the file away.
        (beside(&config.log_file), log),
        (config.file.path.as_deref().and_then(beside), read),
    ];
    for (path, access) in others {
        let Some(path) = path.filter(|path| !path.as_os_str().is_empty()) else { continue };
        let found = rustix::fs::open(&path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
        // What is not there is not missed.
        let Ok(found) = found else { continue };
        // For a file, the rights that only directories have are left out.
        rules = rules.add_rule(PathBeneath::new(found, access))?;
    }
    Ok(rules)
}

/// Does it in a thread that can gain no privilege and is kept on its ground; threads that are started there are as well.
pub(crate) fn apart<T: Send>(ground: Option<&Ground>, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    let begin = || {
        set_no_new_privs(true)?;
        if let Some(ground) = ground {
            ground.rules.try_clone()?.restrict_self().map_err(io::Error::other)?;
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
        let ground = Ground { rules, branches: Vec::new() };
        apart(Some(&ground), || {
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
    fn hidden_processes_are_noticed() {
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
            assert_eq!(hides(&table), hidden, "{options}");
        }
        assert!(!hides(""));
    }
}
