//! The pool itself: what all operations share.

use crate::branch::access_times::Reads;
use crate::branch::headroom::Headroom;
use crate::branch::nested::Below;
use crate::branch::space::SpaceCache;
use crate::branch::{Branch, BranchId, Branches, LiveBranches};
use crate::config::Config;
use crate::dir::cache::Memory;
use crate::dir::listing::parked::Cursors;
use crate::export::{Newborn, Walks};
use crate::fs::acl::Acls;
use crate::kernel::{Kernel, NoKernel};
use crate::lock::clones::{Cloning, UnderWay};
use crate::lock::tree::{Held, TreeLock};
use crate::node::handles::{FileHandle, Handles};
use crate::node::{Nodes, PoolPath};
use crate::ops::data::apart::Apart;
use crate::ops::data::cow::Asked;
use crate::ops::timeouts::Silence;
use crate::relocate;
use arc_swap::{ArcSwap, Guard};
use parking_lot::RwLock;
use rustix::io::Errno;
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Many directories as one tree. All operations take `&self` and may run side by side.
///
/// Lock order, outermost first: a node's `moving`; `tree`; `cloning`; a node's `open`; the node table; a node's `orphan` and `seen`;
/// the handle shards; the space cache.
pub struct Pool {
    config: ArcSwap<Config>,
    pub(crate) branches: LiveBranches,
    pub(crate) space: SpaceCache,
    pub(crate) nodes: Nodes,
    pub(crate) files: Handles<FileHandle>,
    pub(crate) cursors: Cursors,
    pub(crate) tree: TreeLock,
    pub(crate) cloning: Cloning,
    pub(crate) kernel: ArcSwap<Arc<dyn Kernel>>,
    pub(crate) memory: Memory,
    pub(crate) acls: Acls,
    pub(crate) asked: Asked,
    pub(crate) headroom: Headroom,
    /// Threads that were told to look a file up again which others read past the daemon.
    pub(crate) sent_apart: Asked,
    pub(crate) apart: Apart,
    pub(crate) silence: Silence,
    pub(crate) below: Below,
    pub(crate) newborn: Newborn,
    pub(crate) walks: Walks,
    /// The kernel has refused passthrough for good.
    pub(crate) no_passthrough: AtomicBool,
    /// Branches whose files cannot be passed through, being themselves stacked filesystems.
    pub(crate) stacked: RwLock<SmallVec<[BranchId; 2]>>,
    /// Branches that were said to give no leases.
    pub(crate) unleased: RwLock<SmallVec<[BranchId; 2]>>,
}

impl Pool {
    pub fn new(config: Config, branches: Branches) -> Self {
        let root_ino = config.inode.inode(b"", b"", crate::ids::NodeId::ROOT.0, true);
        let nodes = Nodes::new(root_ino);
        let pool = Pool {
            space: SpaceCache::new(config.space_ttl.as_secs()),
            config: ArcSwap::from_pointee(config),
            branches: LiveBranches::new(branches),
            nodes,
            files: Handles::default(),
            cursors: Cursors::default(),
            tree: TreeLock::default(),
            cloning: Cloning::default(),
            kernel: ArcSwap::from_pointee(Arc::new(NoKernel)),
            memory: Memory::default(),
            acls: Acls::default(),
            asked: Asked::default(),
            headroom: Headroom::default(),
            sent_apart: Asked::default(),
            apart: Apart::default(),
            silence: Silence::default(),
            below: Below::default(),
            newborn: Newborn::default(),
            walks: Walks::default(),
            // Until a kernel is connected there is nothing to pass through.
            no_passthrough: AtomicBool::new(true),
            stacked: RwLock::default(),
            unleased: RwLock::default(),
        };
        pool.count_deadlines();
        pool
    }

    /// Finishes what a crash has cut short on the branches: files on their way from one to another. Before anybody
    /// uses the pool; costs a listing of each branch's root.
    pub fn recover(&self) {
        relocate::recover(&self.branches.load());
    }

    /// Connects the pool to the kernel that it will serve. `passthrough` tells what INIT agreed on.
    pub fn connect(&self, kernel: Arc<dyn Kernel>, passthrough: bool) {
        self.kernel.store(Arc::new(kernel));
        self.no_passthrough.store(!passthrough, Ordering::Relaxed);
    }

    /// The configuration as it is now.
    pub fn config(&self) -> Guard<Arc<Config>> {
        self.config.load()
    }

    /// Changes the configuration, for operations that begin from now on. What was agreed at the mount
    /// (`writeback`, `nullrw`) must not change.
    pub fn reconfigure(&self, config: Config) {
        self.space.set_ttl(config.space_ttl.as_secs());
        self.config.store(Arc::new(config));
        self.memory.clear();
        self.count_deadlines();
    }

    /// Changes the branches. Operations under way finish on those they began with, and files open on a
    /// branch that is taken away stay usable until they are closed.
    pub fn set_branches(&self, branches: Branches) {
        self.branches.store(branches);
        self.cursors.clear();
        self.memory.clear();
        self.count_deadlines();
        self.space.clear();
    }

    /// Has the branches asked for their space again, whatever is remembered of it.
    pub fn forget_space(&self) {
        self.space.clear();
    }

    /// Has a branch read so from now on.
    pub fn read_so(&self, branch: &Branch, reads: Option<Reads>) {
        branch.times.set(reads);
        // What nobody has open was opened as it was before.
        self.memory.kept.clear();
    }

    /// The branches as they are now, also those that do not answer.
    pub fn branches(&self) -> Arc<Branches> {
        self.branches.all()
    }

    /// A directory is brought onto a branch by the one who holds it.
    ///
    /// Errors: `ETIMEDOUT` when somebody who holds it waits for a branch.
    pub(crate) fn clone_alone(&self, path: &[u8], to: BranchId) -> Result<UnderWay<'_>, Errno> {
        self.cloning.clones(path, to, self.silence.while_waiting()).ok_or(Errno::TIMEDOUT)
    }

    /// A directory is not brought onto another branch meanwhile. Errors: as [`Pool::clone_alone`].
    pub(crate) fn not_cloning(&self, path: PoolPath) -> Result<UnderWay<'_>, Errno> {
        self.cloning.changes(path, self.silence.while_waiting()).ok_or(Errno::TIMEDOUT)
    }

    /// Directories are renamed by the one who holds it. Errors: as [`Pool::clone_alone`].
    pub(crate) fn tree_alone(&self) -> Result<Held<'_>, Errno> {
        let limit = self.silence.while_waiting();
        if limit.is_some() && self.silence.is_stuck() {
            return Err(Errno::TIMEDOUT);
        }
        self.tree.exclusive(limit).ok_or(Errno::TIMEDOUT)
    }

    /// Can data of files on this branch be passed through? False once the kernel has refused it.
    pub fn passes_through(&self, branch: BranchId) -> bool {
        !self.no_passthrough.load(Ordering::Relaxed) && !self.stacked.read().contains(&branch)
    }

    /// How many entries there are in each table that grows with use: for leak tests.
    pub fn sizes(&self) -> Vec<(&'static str, usize)> {
        let (_, files) = self.counts();
        let others = [
            ("open files", files),
            ("remembered directories", self.memory.ordered()),
            ("threads asked to look again", self.asked.len()),
            ("threads sent to another node", self.sent_apart.len()),
        ];
        self.nodes.sizes().into_iter().chain(others).collect()
    }

    /// How many nodes the kernel holds, and how many files are open: for leak tests.
    pub fn counts(&self) -> (usize, usize) {
        (self.nodes.len(), self.files.len())
    }
}
