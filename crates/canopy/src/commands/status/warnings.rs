//! What is not as it should be, or will go wrong, each with its mend. Pure: judged by what was found.

use super::model::{BranchStatus, Health, PoolStatus, State, Warning, WarningCode};
use crate::terminal::bytes;
use canopy_config::control_api::ExplainReport;
use canopy_pool::policy::Policy;
use std::path::PathBuf;

/// A branch of which less than this is free is nearly full.
const NEARLY_FULL_PERCENT: u64 = 5;
/// ... and of its inodes, less than this.
const FEW_INODES_PERCENT: u64 = 1;

/// `create` is what would become of a new file in the root of the pool; `given` are the options that somebody set.
/// Branches that seem not to be mounted get that as their health.
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
    found.extend(shared_filesystem_warnings(&pool.branches));
    found.extend(pool.branches.iter().filter_map(space_warning));
    found.extend(pool.branches.iter().filter_map(inode_warning));
    found.extend(create.and_then(create_warning));
    found.extend(path_preservation_warning(pool));
    found.extend(acl_warning(pool));
    found.extend(data_path_warnings(pool, given));
    found
}

fn pool_state_warning(pool: &PoolStatus) -> Option<Warning> {
    let mount = pool.mountpoint.one_line();
    let (code, text, mend) = match pool.state {
        State::Serving => return None,
        State::DoesNotAnswer => (
            WarningCode::PoolDoesNotAnswer,
            "the daemon does not answer: as a rule it waits for a branch. What is shown are the directories that it \
             holds open"
                .to_owned(),
            format!("see below for the branch; canopy umount --lazy {mount} takes the pool away at once"),
        ),
        State::Ended => (
            WarningCode::PoolEnded,
            "the daemon has ended, and the mount is left without it".to_owned(),
            format!("canopy umount {mount}, and mount it again; the system's log may tell why it ended"),
        ),
        State::Unreachable => (
            WarningCode::PoolUnreachable,
            format!("it cannot be asked: {}", pool.error.as_deref().unwrap_or("an error")),
            "ask as root, or as the user who mounted it".to_owned(),
        ),
        State::Mute => (
            WarningCode::PoolMute,
            "xattr=nosys keeps the pool from telling about itself".to_owned(),
            "mount it with xattr=noattr instead".to_owned(),
        ),
    };
    Some(Warning { code, branch: None, text, mend })
}

fn branch_health_warning(pool: &PoolStatus, branch: &BranchStatus) -> Option<Warning> {
    let (mount, path) = (pool.mountpoint.one_line(), branch.path.one_line());
    let take_out = format!("canopy set {mount} 'branches=-{path}' takes it out of the pool");
    let mode = branch.mode.as_deref().unwrap_or("RW");
    let anew = format!(
        "canopy set {mount} 'branches=-{path}' and then 'branches=+{path}={mode}', or mount the pool again"
    );
    let (code, text, mend) = match branch.health {
        Health::Ok => return None,
        Health::DoesNotAnswer => (
            WarningCode::BranchDoesNotAnswer,
            format!("{path} does not answer; what needs it will wait as long"),
            format!("look at the disk or its network (dmesg | tail); {take_out}"),
        ),
        Health::Missing => (
            WarningCode::BranchMissing,
            format!("{path} does not exist any more"),
            format!("bring it back, then {anew}; {take_out}"),
        ),
        Health::Awaited => (
            WarningCode::BranchMissing,
            format!(
                "{path} is not there yet: the pool goes without it, and takes it as soon as there is a directory"
            ),
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
                "{path} leads to another directory than the one the pool holds: something was mounted or moved there \
                 since"
            ),
            anew,
        ),
        Health::ReadOnly => (
            WarningCode::BranchReadOnly,
            match branch.facts.as_ref().is_some_and(|facts| facts.read_only) {
                true => format!("the filesystem of {path} is mounted read-only, though the branch is {mode}"),
                false => format!("the filesystem of {path} takes no changes any more, as after an error"),
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
                    "{path} answers with \"{cause}\": nothing is made or changed there until it is well again"
                ),
                format!(
                    "look at the disk (dmesg | tail; smartctl -a), copy what matters; umount --lazy {} makes the pool \
                     let go of it, to be checked, and take it back once it is mounted again; {take_out}",
                    branch.facts.as_ref().map_or_else(|| path.clone(), |facts| facts.mounted_at.one_line())
                ),
            )
        }
        Health::Gone => {
            let cause = branch.illness.as_ref().map_or("an error", |illness| illness.cause.as_str());
            (
                WarningCode::BranchGone,
                format!("{path} is gone ({cause}): its files are not shown, and nothing is made there"),
                format!(
                    "look at the disk (dmesg | tail), and mount it again: the pool takes it back by itself; {take_out}"
                ),
            )
        }
        Health::NotMounted => (
            WarningCode::BranchNotMounted,
            format!(
                "{path} lies on the filesystem of {}, while other branches are mounts below that: its disk may not be \
                 mounted, and what is written goes to the wrong one",
                branch.facts.as_ref().map_or_else(String::new, |facts| facts.mounted_at.one_line())
            ),
            format!("mount its disk and {anew}; if it belongs there: touch {path}/.mergerfs.branch"),
        ),
    };
    Some(Warning { code, branch: Some(branch.path.clone()), text, mend })
}

fn unwatched_warning(pool: &PoolStatus, branch: &BranchStatus) -> Option<Warning> {
    let why = branch.unwatched.as_ref()?;
    let (mount, path) = (pool.mountpoint.one_line(), branch.path.one_line());
    Some(Warning {
        code: WarningCode::BranchNotWatched,
        branch: Some(branch.path.clone()),
        text: format!(
            "changes on {path} cannot be watched for ({why}): names of the whole pool are remembered for a second only"
        ),
        mend: format!(
            "give it a pool of its own, or accept it: canopy set {mount} cache.coherence=timeout, and the same at the mount"
        ),
    })
}

/// Branches without a mount of their own, on a filesystem below which other branches have theirs.
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

/// One for each filesystem with more than one branch.
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
                    "{} and {} lie on one filesystem: policies take them for so many disks with as much free space \
                     each",
                    branch.path.one_line(),
                    others.join(", ")
                ),
                mend: "give the pool one directory of each filesystem".into(),
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
        mend: "move files to another branch, add a branch, or lower minfreespace".into(),
    })
}

fn inode_warning(branch: &BranchStatus) -> Option<Warning> {
    let facts = branch.facts.as_ref().filter(|_| branch.mode.as_deref() == Some("RW"))?;
    let few = u128::from(facts.inodes_free) * 100 < u128::from(facts.inodes) * u128::from(FEW_INODES_PERCENT);
    few.then(|| Warning {
        code: WarningCode::FewInodes,
        branch: Some(branch.path.clone()),
        text: format!(
            "{} has room for {} more files, however much space is free",
            branch.path.one_line(),
            facts.inodes_free
        ),
        mend: "remove files from it, or declare it NC; policies look at space only".into(),
    })
}

fn create_warning(create: &ExplainReport) -> Option<Warning> {
    let error = create.error.as_ref()?;
    let text = format!(
        "no branch takes new files: policy {} gives {} in the root of the pool ({})",
        create.policy, error.name, error.why
    );
    let mend = match error.name.as_str() {
        "ENOSPC" => "free space, add a branch, or lower minfreespace",
        "EROFS" => "give at least one branch the mode RW on a filesystem that can be written",
        _ => "canopy explain create MOUNT/NEWFILE tells what each branch says",
    };
    Some(Warning { code: WarningCode::CannotCreate, branch: None, text, mend: mend.into() })
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
            "{policy} keeps files on the branches that hold their directory: a rename into a directory that is not on \
             the file's branch fails with EXDEV, and mv copies instead"
        ),
        mend: format!(
            "canopy set {} ignorepponrename=true (the directory is made), rename-exdev=rel-symlink, or \
             category.create=mfs",
            pool.mountpoint.one_line()
        ),
    })
}

fn acl_warning(pool: &PoolStatus) -> Option<Warning> {
    pool.security.as_ref().filter(|security| security.unheeded_acls).map(|_| Warning {
        code: WarningCode::AclsUnheeded,
        branch: None,
        text: "files on the branches have ACLs, which do not hold here: modes show what they grant to all, and users and \
               groups that they name have no more than that"
            .into(),
        mend: "mount the pool with posix-acl=true".into(),
    })
}

/// Of the way of the data: options that exclude each other, and what the kernel does not give.
fn data_path_warnings(pool: &PoolStatus, given: &[String]) -> Vec<Warning> {
    let (Some(options), Some(kernel)) = (&pool.options, &pool.kernel) else { return Vec::new() };
    let option = |name: &str| options.get(name).map_or("", String::as_str);
    let was_given = |name: &str| given.iter().any(|given| given == name);
    let warning = |code, branch, text: &str, mend: &str| Warning {
        code,
        branch,
        text: text.to_owned(),
        mend: mend.to_owned(),
    };
    let mut found = Vec::new();
    if option("nullrw") == "true" {
        found.push(warning(
            WarningCode::Nullrw,
            None,
            "nullrw is for measuring: reads give zeros, and what is written is lost",
            "mount the pool without nullrw",
        ));
    }
    let lacks = kernel.missing.iter().any(|feature| feature == "passthrough");
    let wants = option("passthrough.io") != "off";
    if lacks && was_given("passthrough.io") {
        found.push(warning(
            WarningCode::PassthroughMissing,
            None,
            "passthrough.io was asked for, and this kernel does not offer it",
            "use Linux 6.9 or later, with CONFIG_FUSE_PASSTHROUGH",
        ));
    } else if option("cache.writeback") == "true" && !lacks {
        found.push(warning(
            WarningCode::WritebackExcludesPassthrough,
            None,
            "cache.writeback keeps reads and writes from going past the daemon: passthrough is off",
            "mount without cache.writeback, unless it was measured to be faster here",
        ));
    } else if wants && !pool.branches.iter().any(|branch| branch.passes_through == Some(true)) {
        found.push(warning(
            WarningCode::PassthroughRefused,
            None,
            "the kernel refuses passthrough: everything goes through the daemon",
            "passthrough needs the daemon to have CAP_SYS_ADMIN: mount as root",
        ));
    } else if wants {
        let stacked = pool.branches.iter().filter(|branch| branch.passes_through == Some(false));
        found.extend(stacked.map(|branch| {
            let text = format!(
                "{} is itself a stacked filesystem: its files are not passed through",
                branch.path.one_line()
            );
            let mend = match option("passthrough.max-stack-depth") {
                "1" => "mount with passthrough.max-stack-depth=2, or take the branch below it",
                _ => "take the branch below it; the kernel allows no more levels",
            };
            warning(WarningCode::BranchStacked, Some(branch.path.clone()), &text, mend)
        }));
    }
    found
}
