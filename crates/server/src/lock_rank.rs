//! The order of the server's locks. See [`canopy_base::lock::rank`] for the pool's, and for how it is checked.
//!
//! Ranks below 100 are held while the pool is called. All other locks of the server are leaves.

pub(crate) use canopy_base::lock::rank::Leaf;

canopy_base::lock_ranks! {
    /// A change of options or branches.
    SettingsChange = 10;
    /// Events that are being processed, and changes of the cache timeouts.
    WatchState = 20;
    /// A change of how branches are read.
    AccessTimes = 30;
    /// Expiring all names. Taken by one thread at a time.
    Invalidation = 40;
    /// The records of what branches hold. Held to begin and to load them.
    Remembered = 50;
    /// Leaving a branch out that does not answer, or taking it back.
    Settling = 60;
}
