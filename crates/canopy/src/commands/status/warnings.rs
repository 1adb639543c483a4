//! What is not as it should be, or will go wrong, each with its mend. Pure: judged by what was found.

use super::{BranchStatus, Health, PoolStatus, State};
use crate::terminal::bytes;
use canopy_config::control_api::{ExplainReport, OsText};
use canopy_pool::policy::Policy;
use serde::Serialize;
use std::path::PathBuf;

/// A branch of which less than this is free is nearly full.
const NEARLY_FULL_PERCENT: u64 = 5;
/// ... and of its inodes, less than this.
const FEW_INODES_PERCENT: u64 = 1;

macro_rules! codes {
    ($($variant:ident = $word:literal: $meaning:literal,)+) => {
        /// What a warning is about, as a word for programs. Words are added, and never change their meaning.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
        pub enum Code { $(#[serde(rename = $word)] $variant),+ }

        impl Code {
            /// Each with its word and its meaning, for the manual.
            pub const ALL: &[(Code, &str, &str)] = &[$((Code::$variant, $word, $meaning)),+];
        }
    };
}

codes! {
    PoolDoesNotAnswer = "pool-does-not-answer":
        "the daemon does not answer in time",
    PoolEnded = "pool-ended":
        "the mount is there, its daemon is not",
    PoolMute = "pool-mute":
        "xattr=nosys keeps the pool from telling about itself",
    PoolUnreachable = "pool-unreachable":
        "asking the pool gave an error, as when it is another user's",
    BranchDoesNotAnswer = "branch-does-not-answer":
        "a branch does not answer in time",
    BranchMissing = "branch-missing":
        "the path of a branch leads nowhere",
    BranchUnreachable = "branch-unreachable":
        "looking at a branch gave an error",
    BranchReplaced = "branch-replaced":
        "the path of a branch leads to another directory than the pool holds",
    BranchReadOnly = "branch-read-only":
        "a branch that may be written to lies on a filesystem mounted read-only, or that takes no changes any more",
    BranchErrors = "branch-errors":
        "the filesystem of a branch has counted errors (ext4, btrfs)",
    BranchNotMounted = "branch-not-mounted":
        "a branch lies on the filesystem that others are mounted below, as a branch does whose disk is not mounted",
    BranchFailing = "branch-failing":
        "the pool has met with errors on a branch, and makes and changes nothing there until it is well again",
    BranchGone = "branch-gone":
        "the mount of a branch is not there any more, its root cannot be read, or its disk is not there: the pool goes on without it until it is back",
    BranchNotWatched = "branch-not-watched":
        "changes on a branch cannot be watched for, so that the kernel remembers names of the whole pool for a second only",
    SameFilesystem = "same-filesystem":
        "several branches lie on one filesystem",
    NearlyFull = "nearly-full":
        "a branch has less free than its minfreespace, or than 5 % of its size",
    FewInodes = "few-inodes":
        "a branch has less than 1 % of its inodes free",
    CannotCreate = "cannot-create":
        "the create policy finds no branch for a new file in the root of the pool",
    RenameExdev = "rename-exdev":
        "a path-preserving create policy makes some renames fail with EXDEV",
    AclsUnheeded = "acls-unheeded":
        "files with ACLs were met, and posix-acl is false: what an ACL grants to some only is granted to nobody",
    Nullrw = "nullrw":
        "nullrw=true: what is written is lost",
    PassthroughMissing = "passthrough-missing":
        "passthrough was asked for, and the kernel does not offer it",
    WritebackExcludesPassthrough = "writeback-excludes-passthrough":
        "cache.writeback keeps passthrough off",
    PassthroughRefused = "passthrough-refused":
        "the kernel refuses passthrough on every branch",
    BranchStacked = "branch-stacked":
        "a branch is itself a stacked filesystem: its files are not passed through",
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Warning {
    pub code: Code,
    /// The branch it is about, if it is about one.
    pub branch: Option<OsText>,
    pub text: String,
    pub mend: String,
}

/// `create` is what would become of a new file in the root of the pool; `given` are the options that somebody set.
/// Branches that seem not to be mounted get that as their health.
pub(super) fn warnings(
    pool: &mut PoolStatus,
    create: Option<&ExplainReport>,
    given: &[String],
) -> Vec<Warning> {
    for index in suspects(&pool.branches) {
        pool.branches[index].health = Health::NotMounted;
    }
    let mut found = Vec::new();
    found.extend(of_state(pool));
    found.extend(pool.branches.iter().filter_map(|branch| of_health(pool, branch)));
    found.extend(pool.branches.iter().filter_map(|branch| not_watched(pool, branch)));
    found.extend(shared_filesystems(&pool.branches));
    found.extend(pool.branches.iter().filter_map(nearly_full));
    found.extend(pool.branches.iter().filter_map(few_inodes));
    found.extend(create.and_then(cannot_create));
    found.extend(path_preservation(pool));
    found.extend(unheeded_acls(pool));
    found.extend(of_data(pool, given));
    found
}

fn of_state(pool: &PoolStatus) -> Option<Warning> {
    let mount = pool.mountpoint.one_line();
    let (code, text, mend) = match pool.state {
        State::Serving => return None,
        State::DoesNotAnswer => (
            Code::PoolDoesNotAnswer,
            "the daemon does not answer: as a rule it waits for a branch. What is shown are the directories that it \
             holds open"
                .to_owned(),
            format!("see below for the branch; canopy umount --lazy {mount} takes the pool away at once"),
        ),
        State::Ended => (
            Code::PoolEnded,
            "the daemon has ended, and the mount is left without it".to_owned(),
            format!("canopy umount {mount}, and mount it again; the system's log may tell why it ended"),
        ),
        State::Unreachable => (
            Code::PoolUnreachable,
            format!("it cannot be asked: {}", pool.error.as_deref().unwrap_or("an error")),
            "ask as root, or as the user who mounted it".to_owned(),
        ),
        State::Mute => (
            Code::PoolMute,
            "xattr=nosys keeps the pool from telling about itself".to_owned(),
            "mount it with xattr=noattr instead".to_owned(),
        ),
    };
    Some(Warning { code, branch: None, text, mend })
}

fn of_health(pool: &PoolStatus, branch: &BranchStatus) -> Option<Warning> {
    let (mount, path) = (pool.mountpoint.one_line(), branch.path.one_line());
    let take_out = format!("canopy set {mount} 'branches=-{path}' takes it out of the pool");
    let mode = branch.mode.as_deref().unwrap_or("RW");
    let anew = format!(
        "canopy set {mount} 'branches=-{path}' and then 'branches=+{path}={mode}', or mount the pool again"
    );
    let (code, text, mend) = match branch.health {
        Health::Ok => return None,
        Health::DoesNotAnswer => (
            Code::BranchDoesNotAnswer,
            format!("{path} does not answer; what needs it will wait as long"),
            format!("look at the disk or its network (dmesg | tail); {take_out}"),
        ),
        Health::Missing => (
            Code::BranchMissing,
            format!("{path} does not exist any more"),
            format!("bring it back, then {anew}; {take_out}"),
        ),
        Health::Awaited => (
            Code::BranchMissing,
            format!(
                "{path} is not there yet: the pool goes without it, and takes it as soon as there is a directory"
            ),
            format!("mount the disk or make the directory; {take_out}"),
        ),
        Health::Unreachable => (
            Code::BranchUnreachable,
            format!("{path}: {}", branch.error.as_deref().unwrap_or("an error")),
            format!("look at the disk (dmesg | tail); {take_out}"),
        ),
        Health::Replaced => (
            Code::BranchReplaced,
            format!(
                "{path} leads to another directory than the one the pool holds: something was mounted or moved there \
                 since"
            ),
            anew,
        ),
        Health::ReadOnly => (
            Code::BranchReadOnly,
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
            Code::BranchErrors,
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
                Code::BranchFailing,
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
                Code::BranchGone,
                format!("{path} is gone ({cause}): its files are not shown, and nothing is made there"),
                format!(
                    "look at the disk (dmesg | tail), and mount it again: the pool takes it back by itself; {take_out}"
                ),
            )
        }
        Health::NotMounted => (
            Code::BranchNotMounted,
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

fn not_watched(pool: &PoolStatus, branch: &BranchStatus) -> Option<Warning> {
    let why = branch.unwatched.as_ref()?;
    let (mount, path) = (pool.mountpoint.one_line(), branch.path.one_line());
    Some(Warning {
        code: Code::BranchNotWatched,
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
fn suspects(branches: &[BranchStatus]) -> Vec<usize> {
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
fn shared_filesystems(branches: &[BranchStatus]) -> Vec<Warning> {
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
                code: Code::SameFilesystem,
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

fn nearly_full(branch: &BranchStatus) -> Option<Warning> {
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
        code: Code::NearlyFull,
        branch: Some(branch.path.clone()),
        text,
        mend: "move files to another branch, add a branch, or lower minfreespace".into(),
    })
}

fn few_inodes(branch: &BranchStatus) -> Option<Warning> {
    let facts = branch.facts.as_ref().filter(|_| branch.mode.as_deref() == Some("RW"))?;
    let few = u128::from(facts.inodes_free) * 100 < u128::from(facts.inodes) * u128::from(FEW_INODES_PERCENT);
    few.then(|| Warning {
        code: Code::FewInodes,
        branch: Some(branch.path.clone()),
        text: format!(
            "{} has room for {} more files, however much space is free",
            branch.path.one_line(),
            facts.inodes_free
        ),
        mend: "remove files from it, or declare it NC; policies look at space only".into(),
    })
}

fn cannot_create(create: &ExplainReport) -> Option<Warning> {
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
    Some(Warning { code: Code::CannotCreate, branch: None, text, mend: mend.into() })
}

fn path_preservation(pool: &PoolStatus) -> Option<Warning> {
    let options = pool.options.as_ref()?;
    let option = |name: &str| options.get(name).map_or("", String::as_str);
    let policy: Policy = option("func.create").parse().ok()?;
    let harmless = !policy.is_path_preserving()
        || option("ignorepponrename") == "true"
        || option("rename-exdev") != "passthrough"
        || pool.branches.len() < 2;
    (!harmless).then(|| Warning {
        code: Code::RenameExdev,
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

fn unheeded_acls(pool: &PoolStatus) -> Option<Warning> {
    pool.security.as_ref().filter(|security| security.unheeded_acls).map(|_| Warning {
        code: Code::AclsUnheeded,
        branch: None,
        text: "files on the branches have ACLs, which do not hold here: modes show what they grant to all, and users and \
               groups that they name have no more than that"
            .into(),
        mend: "mount the pool with posix-acl=true".into(),
    })
}

/// Of the way of the data: options that exclude each other, and what the kernel does not give.
fn of_data(pool: &PoolStatus, given: &[String]) -> Vec<Warning> {
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
            Code::Nullrw,
            None,
            "nullrw is for measuring: reads give zeros, and what is written is lost",
            "mount the pool without nullrw",
        ));
    }
    let lacks = kernel.missing.iter().any(|feature| feature == "passthrough");
    let wants = option("passthrough.io") != "off";
    if lacks && was_given("passthrough.io") {
        found.push(warning(
            Code::PassthroughMissing,
            None,
            "passthrough.io was asked for, and this kernel does not offer it",
            "use Linux 6.9 or later, with CONFIG_FUSE_PASSTHROUGH",
        ));
    } else if option("cache.writeback") == "true" && !lacks {
        found.push(warning(
            Code::WritebackExcludesPassthrough,
            None,
            "cache.writeback keeps reads and writes from going past the daemon: passthrough is off",
            "mount without cache.writeback, unless it was measured to be faster here",
        ));
    } else if wants && !pool.branches.iter().any(|branch| branch.passes_through == Some(true)) {
        found.push(warning(
            Code::PassthroughRefused,
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
            warning(Code::BranchStacked, Some(branch.path.clone()), &text, mend)
        }));
    }
    found
}
