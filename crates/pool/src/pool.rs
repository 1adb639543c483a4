//! The pool: the state that all operations share.

use crate::coherence::changes::Changes;
use crate::config::{Config, MemoryBound};
use crate::dir::cache::DirCache;
use crate::dir::listing::parked::Cursors;
use crate::door::Caller;
use crate::door::{Act, Door, Look};
use crate::export::{InodeSearch, TickGuard};
use crate::kernel::{Kernel, NoKernel};
use crate::node::detached::DetachedFiles;
use crate::node::handles::records::HandleRecords;
use crate::node::handles::{FileHandle, Handles};
use crate::node::nodes::Nodes;
use crate::node::recent::last_opens::LastOpens;
use crate::node::recent::pending_cow::PendingCow;
use crate::node::recent::replaced::ReplacedFiles;
use crate::node::rights::Rights;
use crate::paths::clones::CloneLocks;
use crate::paths::{PathGuard, Paths, Scope, Uses};
use arc_swap::{ArcSwap, Guard};
use canopy_base::ids::{BranchId, NodeId};
use canopy_base::lock::rank;
use canopy_base::lock::ranked::RwLock;
use canopy_branch::branch::figures::PoolFigures;
use canopy_branch::branch::headroom::Headroom;
use canopy_branch::branch::nested::NestedFilesystems;
use canopy_branch::branch::space::SpaceCache;
use canopy_branch::branch::stuck::StuckOperations;
use canopy_branch::branch::{Branch, Branches, LiveBranches};
use canopy_branch::fs::acl::Acls;
use canopy_branch::journal::Journals;
use canopy_branch::relocate::Unfinished;
use canopy_branch::relocate::closed::ClosedFiles;
use canopy_branch::relocate::moved::Moved;
use rustix::io::Errno;
use smallvec::SmallVec;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// The share of the memory of the machine, or of a control group, that known files and directories may take unless an
/// option says so: one in so many.
const MEMORY_SHARE: u64 = 8;

/// Many directories as one tree. All operations take `&self` and may run in parallel.
///
/// [`lock::rank`](canopy_base::lock::rank) has the order of its locks.
pub struct Pool {
    pub(crate) config: ArcSwap<Config>,
    pub(crate) branches: LiveBranches,
    pub(crate) space: SpaceCache,
    pub(crate) figures: PoolFigures,
    pub(crate) nodes: Nodes,
    /// The bytes that known files and directories may take unless an option says so.
    pub(crate) usual_memory: u64,
    pub(crate) files: Handles<FileHandle>,
    /// Where the handles are recorded, if the pool is to outlive this process.
    pub(crate) handle_records: OnceLock<Arc<HandleRecords>>,
    /// Another process has served the pool before.
    pub(crate) succeeds: AtomicBool,
    pub(crate) changes: Arc<Changes>,
    pub(crate) cursors: Cursors,
    pub(crate) paths: Paths,
    pub(crate) clone_locks: CloneLocks,
    pub(crate) kernel: ArcSwap<Arc<dyn Kernel>>,
    pub(crate) dir_cache: DirCache,
    pub(crate) acls: Acls,
    door: Door,
    pub(crate) pending_cow: PendingCow,
    pub(crate) headroom: Headroom,
    /// Threads that are to look up again a file that has passthrough readers.
    pub(crate) pending_detach: PendingCow,
    pub(crate) detached: DetachedFiles,
    pub(crate) replaced: ReplacedFiles,
    pub(crate) stuck_operations: StuckOperations,
    pub(crate) last_opens: LastOpens,
    pub(crate) moved: Moved,
    pub(crate) closed: ClosedFiles,
    pub(crate) rights: Rights,
    pub(crate) journals: Journals,
    pub(crate) nested: NestedFilesystems,
    pub(crate) tick_guard: TickGuard,
    pub(crate) inode_search: InodeSearch,
    /// The kernel does not support passthrough, or refuses it for good.
    pub(crate) no_passthrough: AtomicBool,
    /// Some node was mapped ([`Node::mapped`](crate::node::Node)).
    pub(crate) maps_files: AtomicBool,
    /// Branches whose files cannot use passthrough because they are stacked filesystems themselves.
    pub(crate) stacked: RwLock<SmallVec<[BranchId; 2]>, rank::Leaf>,
    /// Branches that grant no leases, and for which this has been logged.
    pub(crate) unleased: RwLock<SmallVec<[BranchId; 2]>, rank::Leaf>,
    /// Moves that a crash has cut off, and that wait for a branch or a decision.
    pub(crate) unfinished: RwLock<Vec<Unfinished>, rank::Leaf>,
}

impl Pool {
    pub fn new(config: Config, branches: Branches) -> Self {
        let memory = config.memory;
        let root_ino = config.inode.inode(b"", b"", canopy_base::ids::NodeId::ROOT.0, true);
        let (nodes, changes) = (Nodes::new(root_ino), Arc::<Changes>::default());
        let pool = Pool {
            space: SpaceCache::new(config.space_ttl.as_secs()),
            figures: PoolFigures::default(),
            config: ArcSwap::from_pointee(config),
            branches: LiveBranches::new(branches),
            nodes,
            usual_memory: canopy_sys::memory::available() / MEMORY_SHARE,
            files: Handles::default(),
            handle_records: OnceLock::new(),
            succeeds: AtomicBool::new(false),
            dir_cache: DirCache::new(Arc::clone(&changes)),
            changes,
            cursors: Cursors::default(),
            paths: Paths::default(),
            clone_locks: CloneLocks::default(),
            kernel: ArcSwap::from_pointee(Arc::new(NoKernel)),
            acls: Acls::default(),
            door: Door::default(),
            pending_cow: PendingCow::default(),
            headroom: Headroom::default(),
            pending_detach: PendingCow::default(),
            detached: DetachedFiles::default(),
            replaced: ReplacedFiles::default(),
            stuck_operations: StuckOperations::default(),
            last_opens: LastOpens::default(),
            moved: Moved::default(),
            closed: ClosedFiles::default(),
            rights: Rights::default(),
            journals: Journals::default(),
            nested: NestedFilesystems::default(),
            tick_guard: TickGuard::default(),
            inode_search: InodeSearch::default(),
            // Without a kernel there is no passthrough.
            no_passthrough: AtomicBool::new(true),
            maps_files: AtomicBool::new(false),
            stacked: RwLock::default(),
            unleased: RwLock::default(),
            unfinished: RwLock::default(),
        };
        pool.bound_memory(memory);
        pool.update_lock_timeout();
        pool
    }

    /// Keeps what an operation uses of the tree in place. Taken before a path is built.
    pub(crate) fn using(&self, uses: Uses) -> PathGuard<'_> {
        self.paths.using(uses, &self.nodes)
    }

    /// Claims what is about to change in the tree.
    ///
    /// Errors: `ETIMEDOUT` if those who use it are waiting for a branch that has a deadline.
    pub(crate) fn claim(&self, scope: &Scope) -> Result<PathGuard<'_>, Errno> {
        self.paths.claim(scope, self.stuck_operations.lock_timeout(), &self.nodes).ok_or(Errno::TIMEDOUT)
    }

    /// Claims what changes when another file takes the place of a node's: the node, and all its names, of which it has so
    /// many at least. Errors: as [`Pool::claim`].
    pub(crate) fn claim_file(&self, node: NodeId, names: usize) -> Result<PathGuard<'_>, Errno> {
        loop {
            let scope = self.nodes.file_scope(node, names);
            let held = self.claim(&scope)?;
            // It may have got a name before it was claimed.
            if self.nodes.file_scope(node, names) == scope {
                return Ok(held);
            }
        }
    }

    /// Returns the current configuration.
    pub fn config(&self) -> Guard<Arc<Config>> {
        self.config.load()
    }

    /// Divides what known files and directories may take between the nodes and what is cached of directories.
    pub(crate) fn bound_memory(&self, bound: MemoryBound) {
        let bytes = match bound {
            MemoryBound::Bytes(bytes) => bytes,
            MemoryBound::Auto => self.usual_memory,
        };
        self.nodes.set_bound(bytes / 4 * 3);
        self.dir_cache.set_bound(bytes / 4);
        for surplus in self.nodes.all_surplus() {
            self.kernel.load().forget_unused(&surplus);
        }
    }

    /// Recomputes the lock timeout after a change of the configuration or the branches.
    pub(crate) fn update_lock_timeout(&self) {
        let longest = self.deadlines().into_iter().map(|(_, deadline)| deadline).max().unwrap_or_default();
        let millis = u64::try_from(longest.as_millis()).unwrap_or(u64::MAX);
        self.stuck_operations.patience.store(millis, Ordering::Relaxed);
    }

    /// Returns the branches that have a deadline, with their deadlines.
    pub fn deadlines(&self) -> Vec<(Arc<Branch>, Duration)> {
        let timeout = self.config().branch_timeout;
        let all = self.branches.all();
        all.iter().filter_map(|branch| Some((branch.clone(), branch.deadline(timeout)?))).collect()
    }

    /// Sets who looks at the callers' namespaces. Must be called before the first request.
    pub fn set_witness(&self, witness: Box<Look>) {
        self.door.set_witness(witness);
    }

    /// Returns whether the caller may do something that is not about the rights of a file.
    ///
    /// Errors: `EACCES` or `EPERM`, as the kernel has it for the act.
    pub fn admits(&self, caller: &Caller, act: Act) -> Result<(), Errno> {
        self.door.admits(caller, act)
    }
}
