//! The lock order: every lock of the pool that may be held while another is taken, outermost first, and [`Leaf`] for all
//! others.
//!
//! A thread takes locks in rising rank, and none twice. This list defines the order; debug builds check
//! it at every lock ([`ranked`](super::ranked)).
//!
//! The server ranks its own locks in the same way. Ranks below 100 are free for locks that it holds while it calls
//! the pool.

lock_ranks! {
    /// A node's `moving`: shared by operations that write the file, exclusive for moving the file to another branch.
    FileMove = 100;
    /// A node's mirrors, the copies that are written with its own: held over each change of the data.
    Mirrors = 105;
    /// The order of direct writes and page reads of one open file: exclusive for a direct write, shared for page reads
    /// and for pages that are written back.
    DirectWrites = 110;
    /// What an operation uses of the tree, or the claim to change a part of it, without a lock.
    Paths = 120;
    /// The claims. Held to look whether they touch each other, by what the node table knows.
    PathClaims = 130;
    /// Cloning directories to a branch, or changing a directory's attributes: held as long as the work takes, without a lock.
    DirClone = 140;
    /// A node's `open`. Held over an open: the kernel takes one backing file for each node.
    NodeOpen = 160;
    /// A right to change copies, or to claim that they are equal: held as long as that takes, without a lock.
    CopyRight = 165;
    /// All branches, as they are being changed. Held while the change opens the new ones.
    BranchChange = 170;
    /// The node table.
    NodeTable = 200;
    /// The cached directories in the order in which they are dropped.
    DirCacheOrder = 300;
    /// What a node has cached of its directory.
    DirState = 310;
    /// A shard of a handle table.
    Handles = 400;
    /// That branches are left out comes to be said in the journals. Held to write that.
    JournalAway = 578;
    /// The journal of a branch. Held to write it.
    Journal = 579;
    /// Which of several names of a file is the last one. Held while that goes to the trash.
    TrashName = 580;
    /// The trash of a branch. Held while old trash makes room.
    Trash = 581;
    /// The catalogue. Held to read and write its store.
    Catalogue = 585;
    /// Any lock that is held for moments, to look at a table or to change it. Nothing is called under it that takes a lock or
    /// waits, so its place in the order is after all others. Never two at once.
    Leaf = 65535;
}
