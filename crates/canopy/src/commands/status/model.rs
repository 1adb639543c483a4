//! The findings of `canopy status`, as in the output of `--json`.

use crate::commands::probe::BranchFacts;
use canopy_control::{
    CatalogueReport, IllnessReport, KernelReport, OsText, ParkedReport, ReadCacheReport, RememberedReport,
    SecurityReport, SurvivalReport, TrashAlarm, WaitReport,
};
use canopy_monitor::disks::DiskHealth;
use canopy_monitor::sleep::DiskSleep;
use canopy_schedule::Jobs;
use canopy_upkeep::TierStatus;
use serde::Serialize;
use serde::ser::SerializeStruct as _;
use std::collections::BTreeMap;

/// The output of `--json`. Later versions may add fields, but never change their meaning.
#[derive(Debug, Serialize)]
pub struct Status {
    /// The release of the running kernel (uname(2)).
    pub linux: String,
    pub pools: Vec<PoolStatus>,
    /// Pools that a file of their own or fstab describes, and that are not mounted.
    pub unmounted: Vec<Unmounted>,
}

impl Status {
    /// Returns whether all configured pools are mounted and serve all their branches.
    pub fn is_well(&self) -> bool {
        let problem = |warning: &Warning| warning.code.is_problem();
        self.unmounted.is_empty() && !self.pools.iter().any(|pool| pool.warnings.iter().any(problem))
    }
}

/// A pool that is configured and not mounted.
#[derive(Debug, Serialize)]
pub struct Unmounted {
    /// Null for one of fstab.
    pub name: Option<String>,
    /// Null if its file names none.
    pub mountpoint: Option<OsText>,
    /// The file.
    pub described_in: OsText,
    /// The command that mounts it.
    pub fix: String,
}

impl WarningCode {
    /// Returns whether files or a place for new ones are missing, or about to be. The others are advice.
    pub fn is_problem(self) -> bool {
        use WarningCode::*;
        match self {
            PoolDoesNotAnswer | PoolEnded | PoolUnreachable | BranchDoesNotAnswer | BranchMissing
            | BranchUnreachable | BranchReplaced | BranchReadOnly | BranchErrors | BranchNotMounted
            | BranchFailing | BranchGone | CopiesUnreadable | DiskFailing | TrashAlarm | MoveUnfinished
            | CannotCreate | NoBranch | Nullrw => true,
            PoolMute
            | BranchLags
            | DiskWorn
            | CopiesAside
            | TrashUnusable
            | BranchNotWatched
            | BranchLosesAttributes
            | SameFilesystem
            | NearlyFull
            | FewInodes
            | RenameExdev
            | KernelUnproved
            | AclsUnheeded
            | FilesHidden
            | PassthroughMissing
            | WritebackExcludesPassthrough
            | PassthroughRefused
            | BranchStacked => false,
        }
    }
}

#[derive(Debug, Serialize)]
pub struct PoolStatus {
    pub mountpoint: OsText,
    /// `fuse.canopy`, or `fuse.mergerfs` under that name.
    pub fstype: String,
    pub source: OsText,
    pub state: State,
    /// Why the pool is unreachable.
    pub error: Option<String>,
    /// The following are null unless the state is `serving`.
    pub version: Option<String>,
    pub pid: Option<u32>,
    pub transport: Option<String>,
    pub threads: Option<usize>,
    pub low_priority_threads: Option<usize>,
    /// Requests that wait for something else than a disk.
    pub parked: Option<Vec<ParkedReport>>,
    pub kernel: Option<KernelReport>,
    /// `off` if no file is passed through now.
    pub passthrough: Option<String>,
    pub options: Option<BTreeMap<String, String>>,
    pub security: Option<SecurityReport>,
    /// Null without `survive`, too.
    pub survival: Option<SurvivalReport>,
    /// Programs that remove or overwrite too much.
    pub trash_alarms: Option<Vec<TrashAlarm>>,
    /// Directories with copies that files are read from.
    pub read_caches: Option<Vec<ReadCacheReport>>,
    pub branches: Vec<BranchStatus>,
    /// The disks below them.
    pub disks: Vec<DiskHealth>,
    /// Which of them sleep, and who has woken them.
    pub sleep: Vec<DiskSleep>,
    /// Null without `catalogue`, too.
    pub catalogue: Option<CatalogueReport>,
    pub tiering: TierStatus,
    /// What the pool's file has scheduled; nothing for who is not root.
    pub jobs: Jobs,
    pub warnings: Vec<Warning>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    Serving,
    DoesNotAnswer,
    /// The mount exists, but its daemon does not.
    Ended,
    /// It does not answer attribute requests (`xattr=nosys`).
    Mute,
    /// The query failed.
    Unreachable,
}

#[derive(Debug, Serialize)]
pub struct BranchStatus {
    pub path: OsText,
    /// Null if the pool does not answer.
    pub mode: Option<String>,
    /// The effective minfreespace, in bytes.
    pub min_free: Option<u64>,
    pub passes_through: Option<bool>,
    pub health: Health,
    /// What is wrong.
    pub error: Option<String>,
    /// The error that the pool itself has met; null if it uses the branch normally.
    pub illness: Option<IllnessReport>,
    /// How it answers; null if no operation of the pool had to wait for it.
    pub waits: Option<WaitReport>,
    /// Why its changes are not watched; null if they are, or need not be.
    pub unwatched: Option<String>,
    /// What is the matter with moves to it that were cut off and are not finished.
    pub unfinished_moves: Vec<String>,
    /// Bytes; null if the pool does not answer.
    pub trash: Option<u64>,
    /// Why nothing is kept in it.
    pub trash_unusable: Option<String>,
    /// How many copies of files its disk could not read, and are still to be made again.
    pub unreadable_copies: usize,
    pub set_aside: u64,
    /// What is remembered of it; null if nothing is.
    pub remembered: Option<RememberedReport>,
    /// Missing if the query of the branch failed.
    #[serde(flatten)]
    pub facts: Option<BranchFacts>,
}

impl BranchStatus {
    /// A branch of which no more is known.
    pub(super) fn new(path: OsText, health: Health) -> BranchStatus {
        BranchStatus {
            path,
            mode: None,
            min_free: None,
            passes_through: None,
            health,
            error: None,
            illness: None,
            waits: None,
            unwatched: None,
            unfinished_moves: Vec::new(),
            trash: None,
            trash_unusable: None,
            unreadable_copies: 0,
            set_aside: 0,
            remembered: None,
            facts: None,
        }
    }

    /// Returns whether it needs the disk of this name.
    pub(super) fn is_on(&self, disk: &str) -> bool {
        self.facts.as_ref().is_some_and(|facts| facts.disks.iter().any(|name| name == disk))
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Health {
    Ok,
    /// It answers after more than a second.
    Lagging,
    /// Its disk most likely spins up.
    Asleep,
    DoesNotAnswer,
    Missing,
    /// The query failed.
    Unreachable,
    /// Its path leads to a different directory than the one that the pool has open.
    Replaced,
    /// Its filesystem is mounted read-only, although its mode is not RO.
    ReadOnly,
    /// Its filesystem has counted errors.
    Errors,
    NotMounted,
    /// The pool has met errors there, and does not create or change anything on it.
    Failing,
    /// The pool has released it, because its mount is missing or its root cannot be read.
    Gone,
    /// It does not exist yet; the pool adds it as soon as it does.
    Awaited,
}

macro_rules! codes {
    ($($variant:ident = $word:literal: $meaning:literal,)+) => {
        /// The subject of a warning, for programs. Later versions may add codes, but never change their meaning.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
        pub enum WarningCode { $(#[serde(rename = $word)] $variant),+ }

        impl WarningCode {
            /// All codes with their words and meanings, for the manual.
            pub const ALL: &[(WarningCode, &str, &str)] = &[$((WarningCode::$variant, $word, $meaning)),+];

            /// Returns its word in JSON.
            pub fn word(self) -> &'static str {
                match self { $(WarningCode::$variant => $word),+ }
            }
        }
    };
}

codes! {
    PoolDoesNotAnswer = "pool-does-not-answer":
        "the daemon does not answer in time",
    PoolEnded = "pool-ended":
        "the mount exists, but its daemon does not",
    PoolMute = "pool-mute":
        "xattr=nosys keeps the pool from reporting its status",
    PoolUnreachable = "pool-unreachable":
        "the pool cannot be queried, for instance because it belongs to another user",
    BranchDoesNotAnswer = "branch-does-not-answer":
        "a branch does not answer in time",
    BranchLags = "branch-lags":
        "operations wait for a branch that takes more than a second to answer, perhaps because its disk spins up",
    BranchMissing = "branch-missing":
        "the path of a branch does not exist",
    BranchUnreachable = "branch-unreachable":
        "accessing a branch gave an error",
    BranchReplaced = "branch-replaced":
        "the path of a branch leads to a different directory than the pool has open",
    BranchReadOnly = "branch-read-only":
        "a writable branch is on a filesystem that is mounted read-only or no longer accepts changes",
    BranchErrors = "branch-errors":
        "the filesystem of a branch has counted errors (ext4, btrfs)",
    BranchNotMounted = "branch-not-mounted":
        "a branch is on the filesystem below which others are mounted, as if its disk were not mounted",
    BranchFailing = "branch-failing":
        "the pool has met errors on a branch, and does not create or change anything there until they are gone",
    BranchGone = "branch-gone":
        "the mount of a branch or its disk is missing, or its root cannot be read: the pool runs without it until it is back",
    BranchNotWatched = "branch-not-watched":
        "changes on a branch cannot be watched, so much of what the kernel caches of the pool expires after a second",
    TrashAlarm = "trash-alarm":
        "a program has removed or overwritten more files than an alarm of the trash allows",
    TrashUnusable = "trash-unusable":
        "nothing is kept in the trash of a branch, because its .canopy-trash cannot be used",
    CopiesUnreadable = "copies-unreadable":
        "the disk of a branch could not read copies of files; clients get other copies, and the mover makes these again",
    CopiesAside = "copies-aside":
        "copies that were changed on one disk alone had to give way to newer ones, and are kept there",
    DiskFailing = "disk-failing":
        "a disk says that it fails, or has lost more sectors within a month",
    DiskWorn = "disk-worn":
        "a disk wears out, is too hot, or has lost sectors some time ago",
    MoveUnfinished = "move-unfinished":
        "a move was interrupted, and finishing it needs a branch or a decision",
    SameFilesystem = "same-filesystem":
        "several branches are on one filesystem",
    NearlyFull = "nearly-full":
        "a branch has less free space than its minfreespace, or than 5 % of its size",
    FewInodes = "few-inodes":
        "a branch has less than 1 % of its inodes free",
    CannotCreate = "cannot-create":
        "the create policy finds no branch for a new file in the root of the pool",
    RenameExdev = "rename-exdev":
        "a path-preserving create policy makes some renames fail with EXDEV",
    NoBranch = "no-branch":
        "the pool has no branch that exists, so nothing can be stored",
    FilesHidden = "files-hidden":
        "the directory that the pool is mounted on has files, which the pool hides",
    BranchLosesAttributes = "branch-loses-attributes":
        "the filesystem of a branch cannot store owners, modes, links or attributes",
    KernelUnproved = "kernel-unproved":
        "the kernel does not do, or could not be seen to do, what long caches need: it caches less",
    AclsUnheeded = "acls-unheeded":
        "files have ACLs, but posix-acl is false: rights that an ACL grants to some only are granted to nobody",
    Nullrw = "nullrw":
        "nullrw=true: written data is lost",
    PassthroughMissing = "passthrough-missing":
        "passthrough was requested, but the kernel does not support it",
    WritebackExcludesPassthrough = "writeback-excludes-passthrough":
        "cache.writeback keeps passthrough off",
    PassthroughRefused = "passthrough-refused":
        "the kernel refuses passthrough on every branch",
    BranchStacked = "branch-stacked":
        "a branch is itself a stacked filesystem: its files are not passed through",
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Warning {
    pub code: WarningCode,
    /// The branch it is about, if it is about one.
    pub branch: Option<OsText>,
    pub text: String,
    pub fix: String,
}

impl Serialize for Warning {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut fields = serializer.serialize_struct("Warning", 5)?;
        fields.serialize_field("code", &self.code)?;
        fields.serialize_field("problem", &self.code.is_problem())?;
        fields.serialize_field("branch", &self.branch)?;
        fields.serialize_field("text", &self.text)?;
        fields.serialize_field("fix", &self.fix)?;
        fields.end()
    }
}
