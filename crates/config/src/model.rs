//! What a mount is told, as values.

use crate::program_name::Name;
use crate::values::{Coherence, IoUring, Override, Pages, PinThreads, PosixAcl, RememberNodes, StackDepth};
use canopy_fuse::mount::MountFlags;
use canopy_pool::branch::BranchList;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// Everything that a mount may be told. The pool's own part is in `pool`.
#[derive(Clone, Debug)]
pub struct Config {
    pub pool: canopy_pool::config::Config,
    pub branches: BranchList,
    pub mountpoint: Option<PathBuf>,
    /// The source column of the mount; derived from the branches when not given.
    pub fsname: Option<OsString>,
    /// How long the kernel may remember names and attributes.
    pub timeouts: Timeouts,
    /// Whether they may do so for longer, because changes behind the pool's back are watched for.
    pub coherence: Coherence,
    /// What the pool asks of the kernel at INIT and in its replies.
    pub kernel: Kernel,
    /// What the mount itself is told.
    pub mount: Mount,
    pub threads: Threads,
    /// What files are shown with, whatever the branches say.
    pub overrides: AttrOverrides,
    /// Every request is traced.
    pub debug: bool,
    /// Where to; the log when empty.
    pub log_file: PathBuf,
    /// Workers reach nothing but the branches.
    pub landlock: bool,
    /// The nice value to serve with.
    pub priority: i32,
    /// What lies on the mountpoint is detached before the pool comes there.
    pub detach_mountpoint: bool,
    pub branches_wait: BranchesWait,
    /// A pool is mounted without the branches that do not exist, and takes them once they do.
    pub allow_missing: bool,
    /// Without effect: nodes are found again.
    pub remember_nodes: RememberNodes,
    /// Options that somebody set, by name: a value that was only a default may give way to another.
    pub given: BTreeSet<String>,
    /// Options that were accepted for the sake of older setups and do nothing.
    pub ignored: BTreeSet<String>,
    /// The config file, and how far it is read.
    pub file: FileState,
    /// What the pool is to be known as.
    pub name: Name,
    /// Options on the command line that nobody knows are noted and left out, rather than refused.
    pub sloppy: bool,
    /// What was said and came to nothing, each to be told.
    pub warnings: Vec<String>,
}

/// What a `Config` knows of the files it was read from.
#[derive(Clone, Default, Debug)]
pub struct FileState {
    /// The last file that was loaded without a mistake.
    pub path: Option<PathBuf>,
    /// How many files are being read now, each named by the one before.
    pub(crate) depth: u32,
    /// The mountpoint of the pool that runs by these options, when one does: not everything can be changed then.
    pub running_pool: Option<PathBuf>,
    /// What is read in the place of a file: it is about to be written.
    pub replacement: Option<(PathBuf, Vec<u8>)>,
}

/// How long the kernel may remember what it was told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timeouts {
    pub attr: Duration,
    pub entry: Duration,
    /// For names that do not exist; zero: not remembered.
    pub negative: Duration,
}

/// Kernel features that can be asked for. Each is used only where the kernel offers it.
#[derive(Clone, Debug)]
pub struct Kernel {
    pub async_read: bool,
    pub direct_io_allow_mmap: bool,
    pub export_support: bool,
    pub handle_killpriv: bool,
    pub handle_killpriv_v2: bool,
    pub posix_acl: PosixAcl,
    pub allow_idmap: bool,
    pub cache_symlinks: bool,
    pub cache_readdir: bool,
    /// 1: another stacked filesystem may sit on the pool; 2: a branch may itself be stacked.
    pub max_stack_depth: StackDepth,
    /// The largest read or write in one message.
    pub message: Pages,
    pub io_uring: IoUring,
    /// KiB that the kernel reads ahead on the pool and its branches; 0 leaves its own figure.
    pub readahead: u64,
}

/// What mount(2) or fusermount3 are told.
#[derive(Clone, Debug)]
pub struct Mount {
    pub flags: MountFlags,
    /// Users other than the one who mounted may come in. Always so when root mounts.
    pub allow_other: bool,
    /// `default_permissions`: the kernel checks modes and ACLs.
    pub permissions_check: bool,
    /// Nobody checks them, on a pool that others may use.
    pub skip_permission_checks: bool,
    pub max_read: Option<u32>,
    pub context: Option<OsString>,
    pub fscontext: Option<OsString>,
    pub defcontext: Option<OsString>,
    pub rootcontext: Option<OsString>,
}

/// Attributes that older setups have the pool make up. The kernel checks permissions by them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AttrOverrides {
    pub uid: Override,
    pub gid: Override,
    /// Permission bits are those that it leaves.
    pub umask: Override,
}

/// Whether branches are waited for that are not mounted yet.
#[derive(Clone, Copy, Debug)]
pub struct BranchesWait {
    /// How long at most; zero: not at all.
    pub timeout: Duration,
    /// No pool rather than one without all its branches.
    pub fail: bool,
}

/// How many threads serve the kernel's requests.
#[derive(Clone, Copy, Debug)]
pub struct Threads {
    pub read: i32,
    pub process: i32,
    /// Of a queue between the two, which is not there: shown as it was given.
    pub depth: i32,
    pub pin: PinThreads,
    /// They read and write with the I/O priority of whoever asks.
    pub proxy_ioprio: bool,
}

/// Threads beyond this are asked for by a slip of the hand: each has buffers of a message's size, and a system that
/// runs out of threads half-way gives none.
pub const MAX_WORKERS: usize = 1024;

impl Threads {
    /// Worker threads on a machine with `cpus` processors. Every worker here reads, serves and
    /// answers a request by itself; where a setup asks for readers and processors apart, it gets
    /// as many workers as processors, which is what bounds the requests served at once.
    pub fn workers(self, cpus: usize) -> usize {
        let cpus = cpus.max(1);
        let count = |asked: i32| match asked {
            0 => cpus.min(8),
            n if n < 0 => (cpus / n.unsigned_abs() as usize).max(1),
            n => (n as usize).min(MAX_WORKERS),
        };
        match (self.read, self.process) {
            (read, -1) => count(read),
            (0, 0) => cpus.saturating_sub(2).clamp(2, 8),
            (_, process) => count(process),
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Config {
            pool: canopy_pool::config::Config::default(),
            branches: BranchList::default(),
            mountpoint: None,
            fsname: None,
            timeouts: Timeouts {
                attr: Duration::from_secs(1),
                entry: Duration::from_secs(1),
                negative: Duration::ZERO,
            },
            coherence: Coherence::Auto,
            kernel: Kernel {
                async_read: true,
                direct_io_allow_mmap: true,
                export_support: true,
                handle_killpriv: true,
                handle_killpriv_v2: true,
                posix_acl: PosixAcl::Auto,
                allow_idmap: true,
                cache_symlinks: false,
                cache_readdir: false,
                max_stack_depth: StackDepth(1),
                message: Pages((1 << 20) / rustix::param::page_size() as u64),
                io_uring: IoUring::Auto,
                readahead: 0,
            },
            mount: Mount {
                flags: MountFlags::NOSUID | MountFlags::NODEV,
                allow_other: false,
                permissions_check: true,
                skip_permission_checks: false,
                max_read: None,
                context: None,
                fscontext: None,
                defcontext: None,
                rootcontext: None,
            },
            threads: Threads { read: 0, process: -1, depth: 2, pin: PinThreads::None, proxy_ioprio: false },
            overrides: AttrOverrides::default(),
            debug: false,
            log_file: PathBuf::new(),
            landlock: false,
            priority: -10,
            detach_mountpoint: false,
            branches_wait: BranchesWait { timeout: Duration::ZERO, fail: false },
            allow_missing: false,
            remember_nodes: RememberNodes(false),
            given: BTreeSet::new(),
            ignored: BTreeSet::new(),
            file: FileState::default(),
            name: Name::default(),
            sloppy: false,
            warnings: Vec::new(),
        }
    }
}

impl Config {
    /// Was this option set by somebody, rather than left at its default?
    pub fn is_given(&self, name: &str) -> bool {
        self.given.contains(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn worker_counts() {
        // (read, process, cpus) -> workers
        let table = [
            (0, -1, 2, 2),
            (0, -1, 64, 8),
            (0, 0, 2, 2),
            (0, 0, 8, 6),
            (0, 0, 64, 8),
            (0, 5, 64, 5),
            (0, -4, 64, 16),
            (12, -1, 2, 12),
            (-2, -1, 16, 8),
            (-32, -1, 16, 1),
            (3, 7, 2, 7),
            (100_000, -1, 2, 1024),
            (3, 0, 4, 4),
        ];
        for (read, process, cpus, workers) in table {
            let threads = Threads { read, process, ..Config::default().threads };
            assert_eq!(threads.workers(cpus), workers, "{read} {process} on {cpus}");
        }
    }
}
