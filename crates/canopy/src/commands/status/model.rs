//! What `canopy status` finds, as `--json` gives it.

use crate::commands::probe::BranchFacts;
use canopy_config::control_api::{IllnessReport, KernelReport, OsText, SecurityReport};
use serde::Serialize;
use std::collections::BTreeMap;

/// What `--json` gives. Fields are added, and never change their meaning.
#[derive(Debug, Serialize)]
pub struct Status {
    /// Of the running kernel, as uname(2) gives it.
    pub linux: String,
    pub pools: Vec<PoolStatus>,
}

#[derive(Debug, Serialize)]
pub struct PoolStatus {
    pub mountpoint: OsText,
    /// `fuse.canopy`, or `fuse.mergerfs` under that name.
    pub fstype: String,
    pub source: OsText,
    pub state: State,
    /// Why it is unreachable.
    pub error: Option<String>,
    /// The following are null unless the state is `serving`.
    pub version: Option<String>,
    pub pid: Option<u32>,
    pub transport: Option<String>,
    pub threads: Option<usize>,
    pub kernel: Option<KernelReport>,
    /// `off` when nothing is passed through now.
    pub passthrough: Option<String>,
    pub options: Option<BTreeMap<String, String>>,
    pub security: Option<SecurityReport>,
    pub branches: Vec<BranchStatus>,
    pub warnings: Vec<Warning>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    Serving,
    DoesNotAnswer,
    /// The mount is there, its daemon is not.
    Ended,
    /// It answers no attributes (`xattr=nosys`).
    Mute,
    /// Asking gave an error.
    Unreachable,
}

#[derive(Debug, Serialize)]
pub struct BranchStatus {
    pub path: OsText,
    /// Null when the pool does not answer.
    pub mode: Option<String>,
    /// The minfreespace in force, in bytes.
    pub min_free: Option<u64>,
    pub passes_through: Option<bool>,
    pub health: Health,
    /// What is wrong, in words.
    pub error: Option<String>,
    /// What the pool itself has met with; null when it relies on the branch.
    pub illness: Option<IllnessReport>,
    /// Why its changes are not watched for, where they should be; null where they are, or need not be.
    pub unwatched: Option<String>,
    /// Left out when the branch could not be looked at.
    #[serde(flatten)]
    pub facts: Option<BranchFacts>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Health {
    Ok,
    DoesNotAnswer,
    Missing,
    /// Looking at it gave an error.
    Unreachable,
    /// Its path leads to another directory than the one that the pool holds.
    Replaced,
    /// Its filesystem is mounted read-only, its mode says otherwise.
    ReadOnly,
    /// Its filesystem has counted errors.
    Errors,
    NotMounted,
    /// The pool has met with errors there, and makes and changes nothing on it.
    Failing,
    /// The pool has let go of it: its mount is not there, or its root cannot be read.
    Gone,
    /// It is not there yet; the pool takes it as soon as it is.
    Awaited,
}

macro_rules! codes {
    ($($variant:ident = $word:literal: $meaning:literal,)+) => {
        /// What a warning is about, as a word for programs. Words are added, and never change their meaning.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
        pub enum WarningCode { $(#[serde(rename = $word)] $variant),+ }

        impl WarningCode {
            /// Each with its word and its meaning, for the manual.
            pub const ALL: &[(WarningCode, &str, &str)] = &[$((WarningCode::$variant, $word, $meaning)),+];
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
    pub code: WarningCode,
    /// The branch it is about, if it is about one.
    pub branch: Option<OsText>,
    pub text: String,
    pub mend: String,
}
