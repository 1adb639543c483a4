//! What all operations share: what the pool remembers, and what is under way. The settings and the branches are not here;
//! an operation has them in its [`Op`](super::Op).

use crate::coherence::catalogue::Catalogue;
use crate::coherence::changes::Changes;
use crate::config::Config;
use crate::config::MemoryBound;
use crate::dir::cache::DirCache;
use crate::dir::listing::parked::Cursors;
use crate::door::{Act, Caller, Door, Look, Peer};
use crate::export::{InodeSearch, TickGuard};
use crate::kernel::{Kernel, NoKernel};
use crate::node::detached::DetachedFiles;
use crate::node::handles::records::HandleRecords;
use crate::node::handles::{FileHandle, Handles};
use crate::node::nodes::Nodes;
use crate::node::read_cache::ReadCache;
use crate::node::recent::last_opens::LastOpens;
use crate::node::recent::pending_cow::PendingCow;
use crate::node::recent::removers::Removers;
use crate::node::recent::replaced::ReplacedFiles;
use crate::node::recent::unreadable::Unreadable;
use crate::node::rights::Rights;
use crate::paths::Paths;
use crate::paths::clones::CloneLocks;
use arc_swap::ArcSwap;
use canopy_base::ids::{BranchId, NodeId};
use canopy_base::lock::rank;
use canopy_base::lock::ranked::{Mutex, RwLock};
use canopy_branch::branch::figures::PoolFigures;
use canopy_branch::branch::headroom::Headroom;
use canopy_branch::branch::nested::NestedFilesystems;
use canopy_branch::branch::space::SpaceCache;
use canopy_branch::branch::stuck::StuckOperations;
use canopy_branch::fs::acl::Acls;
use canopy_branch::journal::Journals;
use canopy_branch::relocate::Unfinished;
use canopy_branch::relocate::closed::ClosedFiles;
use canopy_branch::relocate::moved::Moved;
use canopy_branch::remember::Record;
use canopy_branch::trash::{Trash, Who};
use canopy_policy::brake::Brake;
use rustix::io::Errno;
use smallvec::SmallVec;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

/// The share of the memory of the machine, or of a control group, that known files and directories may take unless an
/// option says so: one in so many.
const MEMORY_SHARE: u64 = 8;

/// What all operations share.
///
/// [`lock::rank`](canopy_base::lock::rank) has the order of its locks.
pub struct State {
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
    pub(crate) catalogue: Catalogue,
    /// What the branches hold that are there, for the time when they are missing.
    pub(crate) records: ArcSwap<Vec<Arc<Record>>>,
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
    /// What clients have removed.
    pub(crate) trash: Trash,
    pub(crate) removers: Removers,
    /// Copies on a fast disk.
    pub(crate) read_cache: ReadCache,
    /// What programs remove, by rule of the trash.
    pub(crate) brakes: Mutex<Brake<(Who, usize)>, rank::Leaf>,
    pub(crate) moved: Moved,
    pub(crate) closed: ClosedFiles,
    pub(crate) rights: Rights,
    pub(crate) unreadable: Unreadable,
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

impl State {
    pub(super) fn new(config: &Config) -> State {
        let root_ino = config.inode.inode(b"", b"", NodeId::ROOT.0, true);
        let (nodes, changes) = (Nodes::new(root_ino), Arc::<Changes>::default());
        State {
            space: SpaceCache::new(config.space_ttl.as_secs()),
            figures: PoolFigures::default(),
            nodes,
            usual_memory: canopy_sys::memory::available() / MEMORY_SHARE,
            files: Handles::default(),
            handle_records: OnceLock::new(),
            succeeds: AtomicBool::new(false),
            dir_cache: DirCache::new(Arc::clone(&changes)),
            changes,
            catalogue: Catalogue::default(),
            records: ArcSwap::default(),
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
            trash: Trash::default(),
            removers: Removers::default(),
            read_cache: ReadCache::default(),
            brakes: Mutex::default(),
            moved: Moved::default(),
            closed: ClosedFiles::default(),
            rights: Rights::default(),
            unreadable: Unreadable::default(),
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
        }
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

    /// As [`Self::admits`], of a process at the other end of a socket.
    pub fn admits_peer(&self, peer: &Peer, act: Act) -> Result<(), Errno> {
        self.door.admits_peer(peer, act)
    }
}
