//! The order of the server's locks. See [`canopy_base::lock::rank`] for the pool's, and for how it is checked.
//!
//! Ranks below 100 are held while the pool is called, ranks from 1000 may be taken when the pool calls the server, and
//! nothing is called under them.

canopy_base::lock_ranks! {
    /// A change of options or branches.
    SettingsChange = 10;
    /// Events that are being processed, and changes of the cache timeouts.
    WatchState = 20;
    /// A change of how branches are read.
    AccessTimes = 30;
    /// Expiring all names. Taken by one thread at a time.
    Invalidation = 40;
    /// The probes, by branch.
    Probes = 60;
    /// What a probe knows of its branch.
    ProbeState = 70;
    /// How branches answer that have let operations wait.
    Conditions = 75;
    /// Branches that are gone.
    GoneBranches = 80;
    /// Files that were written, of which the kernel has not been notified yet.
    Untold = 1000;
    /// Listings that the kernel may use.
    DirListings = 1010;
    /// Listings that the kernel keeps by itself.
    KeptListings = 1015;
    /// The mounts that the branches in force lie on.
    BranchMounts = 1020;
    /// Branches that a thread is checking.
    BranchChecks = 1030;
    /// Requests that were interrupted.
    Interrupts = 1040;
    /// Requests that a process before has begun.
    LeftRequests = 1045;
    /// Requests that were answered in the place of a thread that is stuck in them.
    GivenUp = 1050;
    /// Files of branches that do not answer, to be closed.
    FilesToClose = 1060;
    /// Requests whose workers are stuck.
    Stalls = 1070;
    /// Branches whose requests wait in line.
    Crowded = 1080;
    /// What another process has left.
    Leftovers = 1090;
}
