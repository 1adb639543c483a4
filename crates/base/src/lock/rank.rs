//! The lock order: every lock of the pool that may be held while another is taken, outermost first.
//!
//! A thread takes locks in rising rank, and none twice. This list defines the order; debug builds check
//! it at every lock ([`ranked`](super::ranked)).
//!
//! The server ranks its own locks in the same way. Ranks below 100 are free for locks that it holds while it calls
//! the pool; ranks from 1000 are free for locks that it takes when the pool calls it
//! (`Kernel`).

lock_ranks! {
    /// A node's `moving`: shared by operations that write the file, exclusive for moving the file to another branch.
    FileMove = 100;
    /// The order of direct writes and page reads of one open file: exclusive for a direct write, shared for page reads
    /// and for pages that are written back.
    DirectWrites = 110;
    /// What an operation uses of the tree, or the claim to change a part of it, without a lock.
    Paths = 120;
    /// The claims. Held to look whether they touch each other, by what the node table knows.
    PathClaims = 130;
    /// Cloning directories to a branch, or changing a directory's attributes: held as long as the work takes, without a lock.
    DirClone = 140;
    /// The inode numbers that are searched for, and what was found.
    InodeSearch = 150;
    /// A node's `open`. Held over an open: the kernel takes one backing file for each node.
    NodeOpen = 160;
    /// A right to change copies, or to claim that they are equal: held as long as that takes, without a lock.
    CopyRight = 165;
    /// All branches, as they are being changed. Held while the change opens the new ones.
    BranchChange = 170;
    /// The node table.
    NodeTable = 200;
    /// Where a node's file is, if it has moved.
    NodeIdentity = 210;
    /// The descriptor that pins a node without a name.
    NodeOrphan = 220;
    /// Until when a node's file is not moved.
    NodeStays = 240;
    /// The cached directories in the order in which they are dropped.
    DirCacheOrder = 300;
    /// What a node has cached of its directory.
    DirState = 310;
    /// The attributes of a cached directory's copies.
    CopyAttrs = 315;
    /// The names of a cached directory.
    NameIndex = 320;
    /// Files that stay open on their branch for a moment after their last close.
    IdleFiles = 330;
    /// Files and directories that are kept for the rest of the clock tick in which they were created.
    TickGuard = 340;
    /// Files that stay open because their names may be replaced on the branch.
    ReplacedFiles = 345;
    /// Cursors of listings between two answers.
    Cursors = 350;
    /// Which records of handles are free.
    HandleRecords = 390;
    /// A shard of a handle table.
    Handles = 400;
    /// Where an open file is.
    OpenFilePlace = 410;
    /// The descriptor of a handle.
    HandleFd = 420;
    /// What direct writes have overtaken of an open file's pages.
    OvertakenPages = 430;
    /// Passthrough writers, by branch.
    Headroom = 500;
    /// The record of a branch's health.
    BranchHealth = 510;
    /// The current branches. Held to copy or to replace a pointer.
    LiveBranches = 520;
    /// Space figures of the branches.
    SpaceCache = 530;
    /// The filesystems below the branches' roots.
    NestedFilesystems = 540;
    /// The lists of branches that refuse passthrough, and of branches that refuse leases.
    BranchLimits = 550;
    /// Threads that look a name up again before they open it.
    PendingCow = 560;
    /// Files whose names lead to a new node.
    DetachedFiles = 570;
    /// Files that may lack a copy.
    ClosedFiles = 575;
    /// The list of [`CopyRight`]s. Held to change it, and by threads that wait for a change.
    CopyRights = 577;
    /// The list of [`DirClone`]s. Held to change it, and by threads that wait for a change.
    DirClones = 580;
}
