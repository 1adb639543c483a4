//! What the kernel may cache, and for how long.
//!
//! Every answer with a name or attributes carries a time to live (TTL). [`Coherence`] chooses it, and notifies the
//! kernel when something that it may have cached changes. Its interface: a request begins ([`Coherence::begin`]) and
//! gets the TTLs for its answer ([`Answer`]); a name or a node has changed; all names must be looked up again.
//!
//! Parts:
//!
//! - `ttl`: the TTLs that the options ask for.
//! - `freshness`: a TTL of zero for answers that a change has overtaken.
//! - `recent_files`: rechecks files that may be changing without an event.
//! - `busy_dirs`: directories in which programs work directly on a branch.
//! - `dir_listings`: listings that the kernel may reuse.
//! - `in_flight`: counts the answers in flight.
//! - `invalidate_all`: makes the kernel look every name up again.

mod busy_dirs;
mod dir_listings;
mod freshness;
mod in_flight;
mod invalidate_all;
mod recent_files;
mod ttl;

pub(crate) use ttl::CacheTtl;

use crate::settings::Settings;
use arc_swap::{ArcSwap, Guard};
use busy_dirs::BusyDirs;
use canopy_fuse as wire;
use canopy_fuse::notify::Notifier;
use canopy_pool::{Attr, Entry, NodeId, Pool};
use dir_listings::DirListings;
use freshness::{CacheKey, Freshness, NO_THREAD, PendingAnswer, ThreadId};
use in_flight::{InFlight, InFlightGuard};
use invalidate_all::Invalidation;
use recent_files::RecentFiles;
use std::ffi::CStr;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Decides what the kernel may cache, and invalidates it.
pub(crate) struct Coherence {
    /// For background threads, which must not keep the value alive.
    weak_self: Weak<Coherence>,
    pool: Arc<Pool>,
    settings: Arc<Settings>,
    notifier: Notifier,
    ttl: ArcSwap<CacheTtl>,
    freshness: Freshness,
    listings: DirListings,
    /// Answers in flight for which the kernel holds a directory lock.
    in_flight: InFlight,
    recent: RecentFiles,
    busy: BusyDirs,
    invalidation: Invalidation,
}

impl Coherence {
    /// Creates the value and starts the thread that rechecks recent files, which ends with the value.
    pub(crate) fn start(
        pool: Arc<Pool>,
        settings: Arc<Settings>,
        notifier: Notifier,
        ttl: CacheTtl,
    ) -> std::io::Result<Arc<Coherence>> {
        let coherence = Arc::new_cyclic(|weak_self| Coherence {
            weak_self: weak_self.clone(),
            pool,
            settings,
            notifier,
            ttl: ArcSwap::from_pointee(ttl),
            freshness: Freshness::default(),
            listings: DirListings::default(),
            in_flight: InFlight::default(),
            recent: RecentFiles::default(),
            busy: BusyDirs::default(),
            invalidation: Invalidation::default(),
        });
        coherence.start_rechecks()?;
        Ok(coherence)
    }

    /// Begins a request. To be called before anything is read for it. `locks_directory`: the kernel holds a directory
    /// lock until it has processed the answer.
    pub(crate) fn begin(&self, thread: ThreadId, locks_directory: bool) -> Answer<'_> {
        let in_flight = locks_directory.then(|| self.in_flight.enter());
        let pending = self.freshness.begin(thread);
        Answer { coherence: self, ttl: self.ttl.load(), pending, _in_flight: in_flight }
    }

    /// Returns the TTLs in force.
    pub(crate) fn ttl(&self) -> Guard<Arc<CacheTtl>> {
        self.ttl.load()
    }

    /// Changes the TTLs. Answers given before may carry longer ones.
    pub(crate) fn set_ttl(&self, ttl: CacheTtl) {
        self.ttl.store(Arc::new(ttl));
    }

    /// Records that a client's request has changed attributes of `nodes`, for requests whose answer does not make the
    /// kernel reject older attributes in flight.
    pub(crate) fn changed_by<const N: usize>(&self, thread: ThreadId, nodes: [NodeId; N]) {
        for node in nodes {
            if self.freshness.record_change(CacheKey::attributes(node), thread) {
                let _ = self.notifier.inval_attributes_now(wire::NodeId(node.0));
            }
        }
    }

    /// Records that the entries of a directory have changed.
    pub(crate) fn listing_changed(&self, dir: NodeId) {
        self.listings.changed(wire::NodeId(dir.0));
    }

    /// Records that a name in a directory was made or removed directly on a branch.
    pub(crate) fn directory_modified(&self, dir: NodeId) {
        self.busy.record_change(dir);
    }

    /// Records that a name has changed behind the pool's back. Returns whether an answer with the old state may be in
    /// flight, so that the kernel must be notified again later.
    pub(crate) fn name_changed(&self, dir: NodeId, name: &[u8]) -> bool {
        self.freshness.record_change(CacheKey::name(dir, name), NO_THREAD)
    }

    /// Does the same for the attributes of a node.
    pub(crate) fn attributes_changed(&self, node: NodeId) -> bool {
        // Before recording the change: a request that begins after that must read the new state.
        self.pool.attributes_changed(node);
        self.freshness.record_change(CacheKey::attributes(node), NO_THREAD)
    }

    /// Records that anything may have changed: every answer in flight gets a TTL of zero.
    pub(crate) fn anything_changed(&self) {
        self.freshness.record_change(CacheKey::ALL, NO_THREAD);
    }

    /// Invalidates every listing that the kernel has cached.
    pub(crate) fn listings_changed(&self) {
        self.listings.clear();
    }

    /// Makes the kernel look a name up again. Whatever is mounted on it stays.
    pub(crate) fn expire_name(&self, dir: NodeId, name: &CStr) {
        let _ = self.notifier.expire_entry(wire::NodeId(dir.0), name);
    }

    /// Makes the kernel fetch a node's attributes again, and drop the cached listing of a directory if it may cache
    /// any.
    pub(crate) fn expire_node(&self, node: NodeId, listing: bool) {
        let wire_node = wire::NodeId(node.0);
        if listing && self.ttl.load().may_cache_listings() {
            let _ = self.notifier.inval_inode(wire_node, 0, 0);
        } else if let Err(why) = self.notifier.inval_attributes_now(wire_node) {
            tracing::debug!("cannot invalidate the attributes of {node}: {why}");
        }
    }
}

/// The answer to a request in progress: how long the kernel may cache each thing in it.
pub(crate) struct Answer<'a> {
    coherence: &'a Coherence,
    ttl: Guard<Arc<CacheTtl>>,
    pending: PendingAnswer<'a>,
    _in_flight: Option<InFlightGuard<'a>>,
}

impl Answer<'_> {
    /// Returns the TTLs by which this answer is given.
    pub(crate) fn ttl(&self) -> &CacheTtl {
        &self.ttl
    }

    /// Returns the client thread.
    pub(crate) fn thread(&self) -> ThreadId {
        self.pending.thread()
    }

    /// Returns the TTL for attributes in the answer.
    pub(crate) fn attr_ttl(&self, node: NodeId, attr: &Attr) -> Duration {
        let fresh = self.pending.record(CacheKey::attributes(node));
        if_fresh(fresh, self.ttl.attr_ttl(&self.coherence.pool, &self.coherence.recent, node, attr))
    }

    /// Returns the TTLs for a name in the answer and for the attributes that come with it.
    pub(crate) fn entry_ttls(&self, parent: NodeId, name: &[u8], entry: &Entry) -> (Duration, Duration) {
        let fresh = self.pending.record(CacheKey::name(parent, name));
        let named = if_fresh(fresh, self.ttl.entry_ttl(&self.coherence.pool, parent, name));
        // An event for a file that was not known yet is recorded by its name only.
        (named, if_fresh(fresh, self.attr_ttl(entry.node, &entry.attr)))
    }

    /// Returns the TTLs for a file without a name and for its attributes.
    pub(crate) fn unnamed_ttls(&self, entry: &Entry) -> (Duration, Duration) {
        (self.ttl.entry, self.attr_ttl(entry.node, &entry.attr))
    }

    /// Returns the TTL for the answer that a name does not exist.
    pub(crate) fn negative_ttl(&self, parent: NodeId, name: &[u8]) -> Duration {
        let fresh = self.pending.record(CacheKey::name(parent, name));
        if_fresh(fresh, self.ttl.negative_ttl(&self.coherence.pool, &self.coherence.busy, parent, name))
    }

    /// Handles the rename of a file: the kernel keeps the TTL of the old name for the new one, which is right only if
    /// the new name has not changed since the request began.
    pub(crate) fn renamed(&self, dir: NodeId, name: &CStr) {
        if !self.pending.record(CacheKey::name(dir, name.to_bytes())) {
            self.coherence.expire_name(dir, name);
        }
    }

    /// Records that the answer contains a listing. A listing has no TTL that could be zero, so a change of the
    /// directory must find that it was given out.
    pub(crate) fn record_listing(&self, dir: NodeId) {
        if self.ttl.may_cache_listing(&self.coherence.pool, dir) {
            self.pending.record(CacheKey::attributes(dir));
        }
    }

    /// Decides about the listing of a directory that is being opened: `None` if the kernel may not cache it, else
    /// whether it may reuse the one it has. `caught_up` returns whether every event on the branches has been
    /// processed.
    pub(crate) fn listing_cache(&self, dir: NodeId, caught_up: impl FnOnce() -> bool) -> Option<bool> {
        if !self.ttl.may_cache_listing(&self.coherence.pool, dir) {
            return None;
        }
        let may_reuse = |age| self.coherence.listings.may_reuse(wire::NodeId(dir.0), age);
        Some(match self.ttl.listing_age() {
            Some(age) => caught_up() && may_reuse(age),
            None => may_reuse(Duration::MAX),
        })
    }
}

/// Returns `ttl`, or zero if a change has overtaken the answer.
fn if_fresh(fresh: bool, ttl: Duration) -> Duration {
    if fresh { ttl } else { Duration::ZERO }
}
