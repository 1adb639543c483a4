//! Warnings about existing and coming problems, each with a fix. They only depend on the findings.

use super::model::{BranchStatus, Health, PoolStatus, State, Warning, WarningCode};
use crate::terminal::bytes;
use canopy_base::text::one_line;
use canopy_branch::branch::state::BranchState;
use canopy_config::{fstab, lossy};
use canopy_control::{ExplainReport, advice_on_set_aside, advice_on_unreadable};
use canopy_monitor::disks::{DiskHealth, Verdict};
use canopy_policy::Policy;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

/// A branch with less free space is nearly full.
const NEARLY_FULL_PERCENT: u64 = 5;
/// A branch with fewer free inodes gets a warning.
const FEW_INODES_PERCENT: u64 = 1;

/// Returns all warnings. `create` is the answer for a new file in the root of the pool; `given` are the options that were
/// set. Sets the health of branches that do not seem to be mounted.
pub(super) fn warnings(
    pool: &mut PoolStatus,
    create: Option<&ExplainReport>,
    given: &[String],
) -> Vec<Warning> {
    for index in suspected_unmounted(&pool.branches) {
        pool.branches[index].health = Health::NotMounted;
    }
    let mut found = Vec::new();
    found.extend(pool_state_warning(pool));
    found.extend(pool.branches.iter().filter_map(|branch| branch_health_warning(pool, branch)));
    found.extend(pool.branches.iter().filter_map(|branch| unwatched_warning(pool, branch)));
    found.extend(pool.branches.iter().filter_map(unfinished_warning));
    found.extend(pool.branches.iter().filter_map(trash_warning));
    found.extend(pool.branches.iter().filter_map(|branch| unreadable_warning(pool, branch)));
    found.extend(pool.branches.iter().filter_map(|branch| aside_warning(pool, branch)));
    found.extend(pool.trash_alarms.iter().flatten().map(|alarm| {
        let (text, fix) = alarm.advice(&pool.mountpoint);
        Warning { code: WarningCode::TrashAlarm, branch: None, text, fix }
    }));
    found.extend(no_branch_warning(pool));
    let is_empty = found.last().is_some_and(|warning| warning.code == WarningCode::NoBranch);
    found.extend(pool.branches.iter().filter_map(lossy_warning));
    found.extend(shared_filesystem_warnings(&pool.branches));
    if !fills_by_design(pool, create) {
        found.extend(pool.branches.iter().filter_map(space_warning));
    }
    found.extend(pool.branches.iter().filter_map(inode_warning));
    found.extend(create.filter(|_| !is_empty).and_then(create_warning));
    found.extend(path_preservation_warning(pool));
    found.extend(acl_warning(pool));
    found.extend(kernel_warnings(pool));
    found.extend(data_path_warnings(pool, given));
    found
}

fn pool_state_warning(pool: &PoolStatus) -> Option<Warning> {
    let mount = pool.mountpoint.one_line();
    let (code, text, fix) = match pool.state {
        State::Serving => return None,
        State::DoesNotAnswer => (
            WarningCode::PoolDoesNotAnswer,
            match pool.pid {
                None => {
                    "the daemon does not answer, usually because it waits for a branch. The list shows the \
                     directories that it has open"
                }
                Some(_) => "the root of the pool does not answer, because the daemon waits for a branch",
            }
            .to_owned(),
            format!("see below for the branch; canopy umount --lazy {mount} detaches the pool at once"),
        ),
        State::Ended => (
            WarningCode::PoolEnded,
            "the daemon has ended, but the mount is still there".to_owned(),
            format!("canopy umount {mount}, and mount it again; the system log may say why it ended"),
        ),
        State::Unreachable => (
            WarningCode::PoolUnreachable,
            format!("it cannot be queried: {}", pool.error.as_deref().unwrap_or("an error")),
            "run this as root, or as the user who mounted it".to_owned(),
        ),
        State::Mute => (
            WarningCode::PoolMute,
            "xattr=nosys keeps the pool from reporting its status".to_owned(),
            "mount it with xattr=noattr instead".to_owned(),
        ),
    };
    Some(Warning { code, branch: None, text, fix })
}

fn gone(branch: &BranchStatus, path: &str, take_out: &str, anew: &str) -> (WarningCode, String, String) {
    if branch.illness.is_none() {
        let text = format!(
            "{path} is there and not used: it has just come, or what it has missed while it was away cannot be made up for \
             (canopy log says why)"
        );
        return (
            WarningCode::BranchGone,
            text,
            format!("see that it can be written to, then {anew}; {take_out}"),
        );
    }
    let cause = branch.illness.as_ref().map_or("an error", |illness| illness.cause.as_str());
    // ENOTCONN comes from a FUSE filesystem without a daemon.
    let fix = if cause.contains("Transport endpoint is not connected") {
        format!("the program that serves {path} has ended: umount -l {path}, and start it again")
    } else {
        "look at the disk (dmesg | tail), and mount it again: the pool then uses it again".to_owned()
    };
    let shown = if is_remembered(branch) { "names stay, but cannot be used" } else { "files are not shown" };
    let text = format!("{path} is gone ({cause}): its {shown}, and nothing is created there");
    (WarningCode::BranchGone, text, format!("{fix}; {take_out}"))
}

fn branch_health_warning(pool: &PoolStatus, branch: &BranchStatus) -> Option<Warning> {
    let (mount, path) = (pool.mountpoint.one_line(), branch.path.one_line());
    let take_out = format!("canopy remove {mount} {path} takes it out of the pool");
    let mode = branch.mode.as_deref().unwrap_or("RW");
    let anew = format!(
        "canopy remove {mount} {path} and then canopy add {mount} {path}={mode}, or mount the pool again"
    );
    let (code, text, fix) = match branch.health {
        Health::Ok => return None,
        Health::DoesNotAnswer => (
            WarningCode::BranchDoesNotAnswer,
            match (is_left_out(branch), waits(branch)) {
                (true, facts) => {
                    format!("{path} does not answer{facts}; operations that need it fail until it does")
                }
                (false, facts) => {
                    let outlook = match deadline(branch) {
                        Some(seconds) => format!("fail after {seconds} s"),
                        None => "will wait".to_owned(),
                    };
                    format!("{path} does not answer{facts}; operations that need it {outlook}")
                }
            },
            if has_deadline(pool, branch) || is_left_out(branch) {
                format!("look at the disk or its network (dmesg | tail); {take_out}")
            } else {
                format!(
                    "look at the disk or its network (dmesg | tail); {take_out}; canopy set {mount} \
                     branch-timeout=30 makes operations fail instead of waiting"
                )
            },
        ),
        Health::Asleep => (
            WarningCode::BranchLags,
            format!("{path} is slow to answer{}; its disk most likely spins up", waits(branch)),
            "wait; if disks here should not sleep, see hdparm -S and -B".to_owned(),
        ),
        Health::Lagging => (
            WarningCode::BranchLags,
            format!("{path} is slow to answer{}", waits(branch)),
            "look at what else uses the disk (iotop), and at the disk (dmesg | tail; smartctl -a)".to_owned(),
        ),
        Health::Missing => (
            WarningCode::BranchMissing,
            format!("{path} no longer exists"),
            format!("bring it back, then {anew}; {take_out}"),
        ),
        Health::Awaited => (
            WarningCode::BranchMissing,
            fstab::awaited(&path),
            format!("mount the disk or make the directory; {take_out}"),
        ),
        Health::Unreachable => (
            WarningCode::BranchUnreachable,
            format!("{path}: {}", branch.error.as_deref().unwrap_or("an error")),
            format!("look at the disk (dmesg | tail); {take_out}"),
        ),
        Health::Replaced => (
            WarningCode::BranchReplaced,
            format!(
                "{path} leads to a different directory than the one that the pool has open: something was mounted or \
                 moved there"
            ),
            anew,
        ),
        Health::ReadOnly => (
            WarningCode::BranchReadOnly,
            if branch.facts.as_ref().is_some_and(|facts| facts.read_only) {
                format!("the filesystem of {path} is mounted read-only, though the branch is {mode}")
            } else {
                format!("the filesystem of {path} no longer accepts changes, as after an error")
            },
            format!(
                "see why (dmesg | grep -i remount), then mount -o remount,rw {}; or declare it: {path}=RO",
                branch.facts.as_ref().map_or_else(String::new, |facts| facts.mounted_at.one_line())
            ),
        ),
        Health::Errors => (
            WarningCode::BranchErrors,
            format!(
                "the filesystem of {path} has counted {} errors",
                branch.facts.as_ref().and_then(|facts| facts.errors).unwrap_or_default()
            ),
            "copy what matters, look at the disk (smartctl -a), and check it unmounted with e2fsck -f"
                .to_owned(),
        ),
        Health::Failing => {
            let cause = branch.illness.as_ref().map_or("an error", |illness| illness.cause.as_str());
            (
                WarningCode::BranchFailing,
                format!(
                    "{path} fails with \"{cause}\": nothing is created or changed there until the errors stop"
                ),
                format!(
                    "look at the disk (dmesg | tail; smartctl -a), copy what matters; after umount --lazy {} the disk \
                     can be checked, and the pool uses it again once it is mounted; {take_out}",
                    branch.facts.as_ref().map_or_else(|| path.clone(), |facts| facts.mounted_at.one_line())
                ),
            )
        }
        Health::Gone => gone(branch, &path, &take_out, &anew),
        Health::NotMounted => (
            WarningCode::BranchNotMounted,
            format!(
                "{path} is on the filesystem of {}, while other branches are mounts below that: its disk may not be \
                 mounted, and new files go to the wrong disk",
                branch.facts.as_ref().map_or_else(String::new, |facts| facts.mounted_at.one_line())
            ),
            format!(
                "mount its disk, and the pool starts to use it; or, if the directory is meant: touch {path}/.mergerfs.branch"
            ),
        ),
    };
    let fix = fix + &branch.remembered.as_ref().map_or_else(String::new, |it| it.ends(&mount, &path));
    Some(Warning { code, branch: Some(branch.path.clone()), text, fix })
}

fn is_remembered(branch: &BranchStatus) -> bool {
    branch.remembered.as_ref().is_some_and(|known| known.shown)
}

/// Returns whether operations that need the branch fail at once.
fn is_left_out(branch: &BranchStatus) -> bool {
    branch.illness.as_ref().is_some_and(|illness| illness.health == BranchState::Hung.word())
}

/// Returns after how many seconds operations that wait for the branch fail.
fn deadline(branch: &BranchStatus) -> Option<u64> {
    branch.waits.as_ref().and_then(|waits| waits.deadline)
}

fn has_deadline(pool: &PoolStatus, branch: &BranchStatus) -> bool {
    let timeout = pool.options.as_ref().and_then(|options| options.get("branch-timeout"));
    deadline(branch).is_some() || timeout.is_some_and(|timeout| timeout != "0" && timeout != "auto")
}

/// Returns what waits for a branch, and what the block layer says of its disks.
fn waits(branch: &BranchStatus) -> String {
    let Some(waits) = &branch.waits else { return String::new() };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let seconds = now.saturating_sub(waits.since);
    let requests = match waits.requests {
        1 => "1 request waits".to_owned(),
        number => format!("{number} requests wait"),
    };
    let disks: Vec<String> = waits.disks.iter().map(|disk| format!("; {disk}")).collect();
    format!(" (since {seconds} s; {requests}{})", disks.concat())
}

/// Returns what disks say of themselves, for each branch that would go with them.
pub(super) fn disk_warnings(pool: &PoolStatus) -> Vec<Warning> {
    let of_disk = |disk: &DiskHealth| -> Vec<Warning> {
        let code =
            if disk.verdict == Verdict::Failing { WarningCode::DiskFailing } else { WarningCode::DiskWorn };
        let of_branch = |branch: &BranchStatus| {
            let (text, fix) = disk.warning(&pool.mountpoint.one_line(), &branch.path.one_line())?;
            Some(Warning { code, branch: Some(branch.path.clone()), text, fix })
        };
        pool.branches.iter().filter(|branch| branch.is_on(&disk.name)).filter_map(of_branch).collect()
    };
    pool.disks.iter().flat_map(of_disk).collect()
}

fn trash_warning(branch: &BranchStatus) -> Option<Warning> {
    let (why, path) = (branch.trash_unusable.as_ref()?, branch.path.one_line());
    Some(Warning {
        code: WarningCode::TrashUnusable,
        branch: Some(branch.path.clone()),
        text: format!("what is removed on {path} is not kept: its .canopy-trash cannot be used ({why})"),
        fix: format!("look at {path}/.canopy-trash: move it away, or make it root's alone (mode 700)"),
    })
}

fn unreadable_warning(pool: &PoolStatus, branch: &BranchStatus) -> Option<Warning> {
    let (text, fix) = advice_on_unreadable(branch.unreadable_copies, &pool.mountpoint, &branch.path)?;
    Some(Warning { code: WarningCode::CopiesUnreadable, branch: Some(branch.path.clone()), text, fix })
}

fn aside_warning(pool: &PoolStatus, branch: &BranchStatus) -> Option<Warning> {
    branch.facts.as_ref().is_none_or(|facts| facts.has_aside).then_some(())?;
    let (text, fix) = advice_on_set_aside(branch.set_aside, &pool.mountpoint, &branch.path)?;
    Some(Warning { code: WarningCode::CopiesAside, branch: Some(branch.path.clone()), text, fix })
}

fn unwatched_warning(pool: &PoolStatus, branch: &BranchStatus) -> Option<Warning> {
    let why = branch.unwatched.as_ref()?;
    let (mount, path) = (pool.mountpoint.one_line(), branch.path.one_line());
    Some(Warning {
        code: WarningCode::BranchNotWatched,
        branch: Some(branch.path.clone()),
        text: format!(
            "changes on {path} cannot be watched ({why}): much of what the kernel caches of the pool expires after a second"
        ),
        fix: format!(
            "put it after the other branches (what lies on those before it is cached for long), give it its own pool, or accept it: \
             canopy set {mount} cache.coherence=timeout, and the same at the mount"
        ),
    })
}

fn unfinished_warning(branch: &BranchStatus) -> Option<Warning> {
    let (first, more) = branch.unfinished_moves.split_first()?;
    let others = if more.is_empty() { String::new() } else { format!(" (and {} more)", more.len()) };
    let path = branch.path.one_line();
    Some(Warning {
        code: WarningCode::MoveUnfinished,
        branch: Some(branch.path.clone()),
        text: format!("a move to {path} was interrupted and is not finished: {}{others}", one_line(first)),
        fix: format!(
            "bring back the branch that is missing; if both are there, remove the file that is out of date from its branch. The \
             next mount continues the move. What is left to do is in {path}/.canopy-clone.move.*"
        ),
    })
}

/// Returns the branches that are not mounts, on a filesystem below which other branches are mounted.
fn suspected_unmounted(branches: &[BranchStatus]) -> Vec<usize> {
    let mounted_at = |branch: &BranchStatus| branch.facts.as_ref().map(|facts| facts.mounted_at.to_path());
    let all: Vec<PathBuf> = branches.iter().filter_map(mounted_at).collect();
    let is_suspect = |branch: &BranchStatus| {
        let Some(facts) = branch.facts.as_ref().filter(|_| branch.health == Health::Ok) else { return false };
        let own = facts.mounted_at.to_path();
        !facts.marked
            && branch.path.to_path() != own
            && all.iter().any(|other| *other != own && other.starts_with(&own))
    };
    (0..branches.len()).filter(|&index| is_suspect(&branches[index])).collect()
}

/// Returns a warning for each filesystem with more than one branch.
fn shared_filesystem_warnings(branches: &[BranchStatus]) -> Vec<Warning> {
    let device = |branch: &BranchStatus| branch.facts.as_ref().map(|facts| facts.device.clone());
    let mut found = Vec::new();
    for (index, branch) in branches.iter().enumerate() {
        let Some(own) = device(branch) else { continue };
        let same = |other: &&BranchStatus| device(other).as_ref() == Some(&own);
        if branches[..index].iter().any(|other| same(&other)) {
            continue;
        }
        let others: Vec<String> =
            branches[index + 1..].iter().filter(same).map(|other| other.path.one_line()).collect();
        if !others.is_empty() {
            found.push(Warning {
                code: WarningCode::SameFilesystem,
                branch: Some(branch.path.clone()),
                text: format!(
                    "{} and {} are on one filesystem: policies treat them as separate disks with the same free space \
                     each",
                    branch.path.one_line(),
                    others.join(", ")
                ),
                fix: "give the pool one directory of each filesystem".into(),
            });
        }
    }
    found
}

fn space_warning(branch: &BranchStatus) -> Option<Warning> {
    let facts = branch.facts.as_ref().filter(|_| branch.mode.as_deref() == Some("RW"))?;
    let min_free = branch.min_free.unwrap_or_default();
    let path = branch.path.one_line();
    let free = bytes(facts.available);
    let text = if facts.available < min_free {
        format!(
            "{path} has {free} free, less than its minfreespace of {}: it gets no new files",
            bytes(min_free)
        )
    } else if u128::from(facts.available) * 100 < u128::from(facts.size) * u128::from(NEARLY_FULL_PERCENT) {
        format!("{path} is nearly full: {free} of {} are free", bytes(facts.size))
    } else {
        return None;
    };
    Some(Warning {
        code: WarningCode::NearlyFull,
        branch: Some(branch.path.clone()),
        text,
        fix: "move files to another branch, add a branch, or lower minfreespace".into(),
    })
}

fn inode_warning(branch: &BranchStatus) -> Option<Warning> {
    let facts = branch.facts.as_ref().filter(|_| branch.mode.as_deref() == Some("RW"))?;
    let few = u128::from(facts.inodes_free) * 100 < u128::from(facts.inodes) * u128::from(FEW_INODES_PERCENT);
    few.then(|| Warning {
        code: WarningCode::FewInodes,
        branch: Some(branch.path.clone()),
        text: match facts.inodes_free {
            0 => format!(
                "{} cannot hold more files, however much space is free (it has too many small files)",
                branch.path.one_line()
            ),
            free => format!(
                "{} can hold only {free} more files, however much space is free (it has too many small files)",
                branch.path.one_line()
            ),
        },
        fix: "remove or move files, or make it NC (canopy mode): policies only look at free space".into(),
    })
}

/// Returns a warning for a pool of which no branch exists.
fn no_branch_warning(pool: &PoolStatus) -> Option<Warning> {
    let exists = |branch: &BranchStatus| !matches!(branch.health, Health::Awaited | Health::Gone);
    let is_empty = pool.state == State::Serving && !pool.branches.iter().any(exists);
    is_empty.then(|| Warning {
        code: WarningCode::NoBranch,
        branch: None,
        text: "the pool has no disk yet, so nothing can be stored".into(),
        fix: format!("mount its disks, or: canopy add {} BRANCH", pool.mountpoint.one_line()),
    })
}

/// Returns whether the create policy fills one branch after another, and another one takes files: then a full one is no
/// news.
fn fills_by_design(pool: &PoolStatus, create: Option<&ExplainReport>) -> bool {
    let policy = pool.options.as_ref().and_then(|options| options.get("func.create"));
    let fills = policy.and_then(|policy| policy.parse().ok()).is_some_and(|policy: Policy| {
        use Policy::*;
        matches!(policy, Ff | EpFf | Lfs | EpLfs | MspLfs)
    });
    let has_room = |branch: &BranchStatus| {
        let takes = branch.mode.as_deref() == Some("RW") && branch.health == Health::Ok;
        branch.facts.as_ref().is_some_and(|facts| {
            let nearly_full =
                u128::from(facts.available) * 100 < u128::from(facts.size) * u128::from(NEARLY_FULL_PERCENT);
            takes && !nearly_full && facts.available >= branch.min_free.unwrap_or_default()
        })
    };
    fills && create.is_some_and(|create| create.error.is_none()) && pool.branches.iter().any(has_room)
}

fn lossy_warning(branch: &BranchStatus) -> Option<Warning> {
    let fstype = &branch.facts.as_ref()?.fstype;
    let what = lossy::loses(fstype)?;
    let path = branch.path.one_line();
    Some(Warning {
        code: WarningCode::BranchLosesAttributes,
        branch: Some(branch.path.clone()),
        text: format!("{path} is on {fstype}, which cannot store {what}: files created there lose them"),
        fix: "keep new files away (mode NC), or remove it from the pool; commands send it only files that \
              lose nothing, unless you say --lossy"
            .to_owned(),
    })
}

/// Returns the warning for a pool whose mountpoint has files.
pub(super) fn hidden_files(pool: &PoolStatus) -> Warning {
    let place = pool.mountpoint.one_line();
    Warning {
        code: WarningCode::FilesHidden,
        branch: None,
        text: format!("the directory {place} contains files, which the pool hides"),
        fix: format!(
            "to see them: mount --bind the directory above it elsewhere, and look there; to bring them back: canopy \
             umount {place}, move them away, and mount again"
        ),
    }
}

fn create_warning(create: &ExplainReport) -> Option<Warning> {
    let error = create.error.as_ref()?;
    let text =
        format!("no branch takes new files ({}: policy {}, error {})", error.why, create.policy, error.name);
    let fix = match error.name.as_str() {
        "ENOSPC" => "free space, add a branch, or lower minfreespace",
        "EROFS" => "give at least one branch the mode RW on a filesystem that can be written",
        _ => "canopy explain create POOL/NEWFILE shows the reason for each branch",
    };
    Some(Warning { code: WarningCode::CannotCreate, branch: None, text, fix: fix.into() })
}

fn path_preservation_warning(pool: &PoolStatus) -> Option<Warning> {
    let options = pool.options.as_ref()?;
    let option = |name: &str| options.get(name).map_or("", String::as_str);
    let policy: Policy = option("func.create").parse().ok()?;
    let harmless = !policy.is_path_preserving()
        || option("ignorepponrename") == "true"
        || option("rename-exdev") != "passthrough"
        || pool.branches.len() < 2;
    (!harmless).then(|| Warning {
        code: WarningCode::RenameExdev,
        branch: None,
        text: format!(
            "policy {policy} keeps files on the branches that have their directory: moving a file to another folder can \
             fail or take as long as copying it, and the trash of a desktop may not work (EXDEV)"
        ),
        fix: format!(
            "canopy set {} ignorepponrename=true (creates the directory where the file is), or category.create=mfs",
            pool.mountpoint.one_line()
        ),
    })
}

fn acl_warning(pool: &PoolStatus) -> Option<Warning> {
    pool.security.as_ref().filter(|security| security.unheeded_acls).map(|_| Warning {
        code: WarningCode::AclsUnheeded,
        branch: None,
        text: "files on the branches have ACLs, which have no effect here: modes show what an ACL grants to all, and users \
               and groups in it get no more than that"
            .into(),
        fix: "mount the pool with posix-acl=true".into(),
    })
}

fn kernel_warnings(pool: &PoolStatus) -> impl Iterator<Item = Warning> {
    pool.kernel.iter().flat_map(|kernel| &kernel.unproved).map(|row| {
        let (text, fix) = row.advice();
        Warning { code: WarningCode::KernelUnproved, branch: None, text, fix }
    })
}

/// Returns warnings about the data path: conflicting options, and missing kernel features.
fn data_path_warnings(pool: &PoolStatus, given: &[String]) -> Vec<Warning> {
    let (Some(options), Some(kernel)) = (&pool.options, &pool.kernel) else { return Vec::new() };
    let option = |name: &str| options.get(name).map_or("", String::as_str);
    let was_given = |name: &str| given.iter().any(|given| given == name);
    let warning = |code, branch, text: &str, fix: &str| Warning {
        code,
        branch,
        text: text.to_owned(),
        fix: fix.to_owned(),
    };
    let mut found = Vec::new();
    if option("nullrw") == "true" {
        found.push(warning(
            WarningCode::Nullrw,
            None,
            "nullrw is for measuring: reads give zeros, and written data is lost",
            "mount the pool without nullrw",
        ));
    }
    let lacks = kernel.missing.iter().any(|feature| feature == "passthrough");
    let wants = option("passthrough.io") != "off";
    if lacks && was_given("passthrough.io") {
        found.push(warning(
            WarningCode::PassthroughMissing,
            None,
            "passthrough.io was requested, but this kernel does not support it",
            "use Linux 6.9 or later, with CONFIG_FUSE_PASSTHROUGH",
        ));
    } else if option("cache.writeback") == "true" && !lacks {
        found.push(warning(
            WarningCode::WritebackExcludesPassthrough,
            None,
            "cache.writeback turns passthrough off: all reads and writes go through the daemon",
            "mount without cache.writeback, unless it was measured to be faster here",
        ));
    } else if wants
        && pool.branches.iter().any(|branch| branch.passes_through.is_some())
        && !pool.branches.iter().any(|branch| branch.passes_through == Some(true))
    {
        found.push(warning(
            WarningCode::PassthroughRefused,
            None,
            "the kernel refuses passthrough: all data goes through the daemon",
            "passthrough needs the daemon to have CAP_SYS_ADMIN: mount as root",
        ));
    } else if wants {
        let stacked = pool.branches.iter().filter(|branch| branch.passes_through == Some(false));
        found.extend(stacked.map(|branch| {
            let text = format!(
                "{} is itself a stacked filesystem: its files are not passed through",
                branch.path.one_line()
            );
            let fix = match option("passthrough.max-stack-depth") {
                "1" => {
                    "mount with passthrough.max-stack-depth=2, or use the filesystem below it as the branch"
                }
                _ => "use the filesystem below it as the branch; the kernel allows no more levels",
            };
            warning(WarningCode::BranchStacked, Some(branch.path.clone()), &text, fix)
        }));
    }
    found
}
