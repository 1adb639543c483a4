//! The values of all options.

use crate::program_name::Name;
use crate::values::{
    CataloguePlace, Choice, Coherence, IoUring, Override, Pages, PinThreads, RememberNodes, StackDepth,
    WorkerPriority,
};
use canopy_branch::branch::BranchList;
use canopy_fuse::mount::MountFlags;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// The values of all options. Those that the pool itself uses are in `pool`.
#[derive(Clone, Debug)]
pub struct Config {
    pub pool: canopy_pool::config::Config,
    pub branches: BranchList,
    /// The patterns among them, as written, with each path that one has matched.
    pub patterns: Vec<(OsString, PathBuf)>,
    pub mountpoint: Option<PathBuf>,
    /// The source of the mount; made from the branches if not given.
    pub fsname: Option<OsString>,
    /// How long the kernel may cache names and attributes.
    pub timeouts: Timeouts,
    /// Whether it may cache them for longer, because the branches are watched for changes.
    pub coherence: Coherence,
    /// Where what is known of the branches is kept, and how many bytes of it.
    pub catalogue: CataloguePlace,
    pub catalogue_size: u64,
    /// What the pool asks of the kernel at INIT and in its replies.
    pub kernel: Kernel,
    /// Options of the mount itself.
    pub mount: Mount,
    pub threads: Threads,
    /// Attributes that replace those of all files.
    pub overrides: AttrOverrides,
    /// Trace each request.
    pub debug: bool,
    /// Where to write the trace; the log if empty.
    pub log_file: PathBuf,
    /// Restrict worker threads to the branches.
    pub landlock: bool,
    /// When the process that serves the pool ends, another takes over: whenever it dies, or when it can be had.
    pub survive: Choice,
    /// The nice value of the daemon.
    pub priority: i32,
    /// Detach what is mounted at the mountpoint first.
    pub detach_mountpoint: bool,
    pub branches_wait: BranchesWait,
    /// Mount without branches that do not exist, and add each when it appears.
    pub allow_missing: bool,
    /// No effect: forgotten nodes are found again.
    pub remember_nodes: RememberNodes,
    /// Patterns of files that belong to their disk: no command moves them.
    pub keep: Vec<String>,
    /// The names of options that were set. Some conflicts change a default, but not a value that was set.
    pub given: BTreeSet<String>,
    /// The names of options that were accepted for older setups and do nothing.
    pub ignored: BTreeSet<String>,
    /// The config file, and the state of reading it.
    pub file: FileState,
    /// The name of the pool's program.
    pub name: Name,
    /// Skip unknown options of the command line with a warning, rather than refuse them.
    pub sloppy: bool,
    /// Warnings for the user who mounts the pool.
    pub warnings: Vec<String>,
}

/// The config files of a `Config`.
#[derive(Clone, Default, Debug)]
pub struct FileState {
    /// The last file that loaded without a mistake.
    pub path: Option<PathBuf>,
    /// How many files are being read, each loaded by the one before.
    pub(crate) depth: u32,
    /// The mountpoint of the running pool with these options, if there is one. Some options cannot change then.
    pub running_pool: Option<PathBuf>,
    /// A file, and the text to read instead of its own, which is about to be written there.
    pub replacement: Option<(PathBuf, Vec<u8>)>,
}

/// How long the kernel may cache what the pool answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timeouts {
    pub attr: Duration,
    pub entry: Duration,
    /// For names that do not exist; zero: not cached.
    pub negative: Duration,
}

/// Features to request from the kernel. Each is used only if the kernel offers it.
#[derive(Clone, Debug)]
pub struct Kernel {
    pub async_read: bool,
    pub direct_io_allow_mmap: bool,
    pub export_support: bool,
    pub handle_killpriv: bool,
    pub handle_killpriv_v2: bool,
    pub posix_acl: Choice,
    pub allow_idmap: bool,
    pub cache_symlinks: bool,
    pub cache_readdir: bool,
    /// 1: another stacked filesystem can use the pool; 2: a branch can itself be stacked.
    pub max_stack_depth: StackDepth,
    /// The largest read or write in one request.
    pub message: Pages,
    pub io_uring: IoUring,
    /// KiB that the kernel reads ahead on the pool and its branches; 0: leave as it is.
    pub readahead: u64,
}

/// Options for mount(2) or fusermount3.
#[derive(Clone, Debug)]
pub struct Mount {
    pub flags: MountFlags,
    /// Other users can use the pool. Always so if root mounts.
    pub allow_other: bool,
    /// `default_permissions`: the kernel checks modes and ACLs.
    pub permissions_check: bool,
    /// No modes or ACLs are checked, even if other users can use the pool.
    pub skip_permission_checks: bool,
    pub max_read: Option<u32>,
    pub context: Option<OsString>,
    pub fscontext: Option<OsString>,
    pub defcontext: Option<OsString>,
    pub rootcontext: Option<OsString>,
}

/// Attributes that replace those of all files, for older setups. The kernel checks permissions by them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AttrOverrides {
    pub uid: Override,
    pub gid: Override,
    /// Permission bits that no file is shown with.
    pub umask: Override,
}

/// How to wait for branches that are not mounted yet.
#[derive(Clone, Copy, Debug)]
pub struct BranchesWait {
    /// How long at most; zero: do not wait.
    pub timeout: Duration,
    /// Fail if branches are still missing then.
    pub fail: bool,
}

/// The worker threads that serve requests.
#[derive(Clone, Copy, Debug)]
pub struct Threads {
    pub read: i32,
    pub process: i32,
    /// No effect: there is no queue between reading and processing. Shown as given.
    pub depth: i32,
    pub pin: PinThreads,
    pub worker_priority: WorkerPriority,
    /// Read and write with the I/O priority of the calling process.
    pub proxy_ioprio: bool,
}

/// The limit on worker threads. Each has a buffer for the largest request, and a mount fails if the system cannot start
/// all threads, so a typing error must not ask for too many.
pub const MAX_WORKERS: usize = 1024;

impl Threads {
    /// Returns the number of worker threads on a machine with `cpus` processors. A worker reads, processes and answers
    /// a request by itself. A setup with separate numbers of read and process threads gets the number of process
    /// threads, because that limits how many requests are served at once.
    pub fn workers(self, cpus: usize) -> usize {
        let cpus = cpus.max(1);
        let count = |wanted: i32| match wanted {
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
            patterns: Vec::new(),
            mountpoint: None,
            fsname: None,
            timeouts: Timeouts {
                attr: Duration::from_secs(1),
                entry: Duration::from_secs(1),
                negative: Duration::ZERO,
            },
            coherence: Coherence::Auto,
            catalogue: CataloguePlace::Off,
            catalogue_size: 256 << 20,
            kernel: Kernel {
                async_read: true,
                direct_io_allow_mmap: true,
                export_support: true,
                handle_killpriv: true,
                handle_killpriv_v2: true,
                posix_acl: Choice::Auto,
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
            threads: Threads {
                read: 0,
                process: -1,
                depth: 2,
                pin: PinThreads::None,
                worker_priority: WorkerPriority::Auto,
                proxy_ioprio: false,
            },
            overrides: AttrOverrides::default(),
            debug: false,
            log_file: PathBuf::new(),
            landlock: false,
            survive: Choice::Auto,
            priority: -10,
            detach_mountpoint: false,
            branches_wait: BranchesWait { timeout: Duration::ZERO, fail: false },
            allow_missing: false,
            remember_nodes: RememberNodes(false),
            keep: Vec::new(),
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
    /// Returns whether an option was set, rather than left at its default.
    pub fn is_given(&self, name: &str) -> bool {
        self.given.contains(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_follow_thread_counts_and_processors() {
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
