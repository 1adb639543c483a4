//! Why a command fails as a whole. Each message is one line with a remedy where there is one.

use canopy_base::text::os_error;
use canopy_sys::shown::Show as _;
use std::io;
use std::path::PathBuf;

pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{} is not on a pool (canopy status lists pools)", .0.shown())]
    OnNoPool(PathBuf),
    #[error("pool {path} is served by another program, or another version of this one, and does not answer (canopy umount {path}, and mount it again)", path = .0.shown())]
    NotCanopy(PathBuf),
    #[error("the server of pool {path} has ended (canopy umount {path}, and mount it again)", path = .0.shown())]
    PoolDead(PathBuf),
    #[error("{}: {}", .path.shown(), os_error(.why))]
    Path { path: PathBuf, why: io::Error },
    #[error(transparent)]
    Config(#[from] canopy_config::Error),
    #[error("{} is not the mountpoint of a pool (canopy status lists pools)", .0.shown())]
    NoPool(PathBuf),
    #[error("{} is not in the pool {}", .path.shown(), .pool.shown())]
    OtherPool { path: PathBuf, pool: PathBuf },
    #[error("{branch} is not a branch of pool {pool} (canopy get {pool} branches shows them)", branch = .branch.shown(), pool = .pool.shown())]
    NoBranch { branch: PathBuf, pool: PathBuf },
    #[error("{} is not missing: to take it out of the pool: canopy remove", .0.shown())]
    NotMissing(PathBuf),
    #[error("what was on {} cannot be forgotten: {}", .branch.shown(), os_error(.why))]
    Forget { branch: PathBuf, why: io::Error },
    #[error("nothing is remembered of {}: the pool has to be mounted with missing=remember", .0.shown())]
    NothingRemembered(PathBuf),
    #[error("branch {branch} cannot be used: {why}", branch = .branch.shown())]
    Branch { branch: PathBuf, why: &'static str },
    #[error("branches of pool {} cannot be changed: {}", .pool.shown(), os_error(.why))]
    SetBranches { pool: PathBuf, why: io::Error },
    #[error("'{glob}' is not a pattern: {why}")]
    Glob { glob: String, why: String },
    #[error("no branch has room for the files below {}", .0.shown())]
    NoRoom(PathBuf),
    #[error("only its owner and root can move files of pool {} (sudo canopy ..., outside of containers)", .0.shown())]
    NotOwner(PathBuf),
    #[error("pool {path} is mounted read-only (mount -o remount,rw {path})", path = .0.shown())]
    PoolReadOnly(PathBuf),
    #[error("pool {path} has neither tiers nor rules (canopy set {path} tiers=..., or docs/tiers.md)", path = .0.shown())]
    NoTiers(PathBuf),
    #[error("{0} does not decide what moves (--as-if tiers=... or --as-if rules=...)")]
    AsIf(String),
    #[error("another canopy tier works on pool {} (canopy status shows it)", .0.shown())]
    AnotherMover(PathBuf),
    #[error("--json cannot ask which copy is right (--fix newest, largest or nonroot)")]
    AskInJson,
    #[error("no pool is mounted")]
    NoPools,
    #[error("{} is not mounted", .0.shown())]
    NotMounted(PathBuf),
    #[error("{key} of pool {}: {}", .pool.shown(), os_error(.why))]
    Key { key: String, pool: PathBuf, why: io::Error },
    #[error("{0} of {1} stay where they are")]
    Left(u64, u64),
    #[error("files with too few copies: {0}")]
    NotCopied(u64),
    #[error("{0} of {1} surplus copies stay")]
    CopiesLeft(u64, u64),
    #[error("files that do not share the space of an equal one: {0}")]
    NotLinked(u64),
    #[error("damaged files: {damaged}, paths whose copies differ: {differing}")]
    Damaged { damaged: u64, differing: u64 },
    #[error("not read: {unread}; damaged files: {damaged}, paths whose copies differ: {differing}")]
    Unread { unread: u64, damaged: u64, differing: u64 },
    #[error("nothing was changed, because nobody said yes (--yes does it without asking)")]
    NotAgreed,
    #[error("Stopped. Nothing is lost; run the same command to continue.")]
    Stopped,
    #[error("{what}: {}", os_error(.why))]
    System { what: &'static str, why: io::Error },
    #[error("branch {branch} cannot be removed from the pool: {why}", branch = .branch.shown())]
    Remove { branch: PathBuf, why: String },
    #[error("{} was not put back: {why}", .path.shown())]
    PutBack { path: PathBuf, why: String },
    #[error("only root may look into the trash (sudo canopy trash ...)")]
    TrashIsRoots,
    #[error("{0} is for canopy trash restore")]
    OnlyRestoring(&'static str),
    #[error("{} is not the mountpoint of a pool: mount the pool to restore files, or move them out of .canopy-trash by hand", .0.shown())]
    NotWithoutPool(PathBuf),
    #[error("the trash of {pool} holds nothing of that (canopy trash list {pool})", pool = .0.shown())]
    NotInTrash(PathBuf),
    #[error("{0} is for no path and no time: {hint}", hint = if *.0 == "thaw" { "give --program or --user, or neither" } else { "give no user and no program either" })]
    OnlyFiltering(&'static str),
    #[error("{0}: what waits for the sync stays in the trash")]
    NotSynced(String),
    #[error("{}: {why}", .pool.shown())]
    NotThawed { pool: PathBuf, why: String },
    #[error("{}: {why}", .pool.shown())]
    Cache { pool: PathBuf, why: String },
    #[error("{refused} of {all} files are not cached")]
    NotCached { refused: u64, all: u64 },
    #[error("not all was done: {0}")]
    NotRestored(u64),
    #[error("{} is not a directory", .0.shown())]
    NotDirectory(PathBuf),
    #[error("{failed} of {all} could not be looked at", all = .all, failed = .failed)]
    Incomplete { failed: u64, all: u64 },
}
