//! What the kernel may cache, and for how long.
//!
//! Every answer with a name or attributes carries a time to live (TTL). [`Coherence`] chooses it, and notifies the
//! kernel when something that it may have cached changes. Its interface: a request begins ([`Coherence::begin`]) and
//! gets the TTLs for its answer ([`Answer`]); something has changed ([`Coherence::tell`]); all names must be looked up
//! again.
//!
//! Parts:
//!
//! - `ttl`: the TTLs that the options ask for.
//! - `freshness`: a TTL of zero for answers that a change has overtaken.
//! - `written_files`: files that are being written without events.
//! - `untold`: files that were written, of which the kernel has not been notified yet.
//! - `busy_dirs`: directories in which programs work directly on a branch.
//! - `dir_listings`: listings that the kernel may reuse, where it asks at each open.
//! - `kept_listings`: listings that the kernel keeps by itself.
//! - `in_flight`: counts the answers in flight.
//! - `invalidate_all`: makes the kernel look every name up again.

mod busy_dirs;
mod dir_listings;
mod freshness;
mod in_flight;
mod invalidate_all;
mod kept_listings;
mod ttl;
mod untold;
mod written_files;

use canopy_pool::ops;
pub(crate) use ttl::{CacheTtl, Watched};
pub(crate) use written_files::{SLOTS as WRITTEN_FILES, WrittenFiles};

use crate::settings::Settings;
use arc_swap::{ArcSwap, Guard};
use busy_dirs::BusyDirs;
use canopy_base::ids::NodeId;
use canopy_branch::fs::stat::Attr;
use canopy_fuse as wire;
use canopy_fuse::notify::Notifier;
use canopy_pool::coherence::changes::{Change, Client};
use canopy_pool::{Entry, NamesRead, Pool};
use dir_listings::DirListings;
use freshness::{CacheKey, Freshness, PendingAnswer, ThreadId};
use in_flight::{InFlight, InFlightGuard};
use invalidate_all::Invalidation;
use kept_listings::{Keep, KeptListings};
use std::cell::Cell;
use std::ffi::CStr;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use ttl::SETTLED;
use untold::Untold;

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
    kept: KeptListings,
    /// Answers in flight for which the kernel holds a directory lock.
    in_flight: InFlight,
    written: Arc<WrittenFiles>,
    untold: Untold,
    busy: BusyDirs,
    invalidation: Invalidation,
}

impl Coherence {
    /// Creates the value and begins to drop listings, which ends with the value.
    pub(crate) fn start(
        pool: Arc<Pool>,
        settings: Arc<Settings>,
        notifier: Notifier,
        ttl: CacheTtl,
    ) -> Arc<Coherence> {
        let freshness = Freshness::new(Arc::clone(ops::external_changes::changes(&pool)));
        let coherence = Arc::new_cyclic(|weak_self| Coherence {
            weak_self: weak_self.clone(),
            pool,
            settings,
            notifier,
            ttl: ArcSwap::from_pointee(ttl),
            freshness,
            listings: DirListings::default(),
            kept: KeptListings::default(),
            in_flight: InFlight::default(),
            written: Arc::default(),
            untold: Untold::default(),
            busy: BusyDirs::default(),
            invalidation: Invalidation::default(),
        });
        coherence.start_dropping_listings();
        coherence
    }

    /// Begins a request. To be called before anything is read for it. `locks_directory`: the kernel holds a directory
    /// lock until it has processed the answer.
    pub(crate) fn begin(&self, thread: ThreadId, locks_directory: bool) -> KernelAnswer<'_> {
        let in_flight = locks_directory.then(|| self.in_flight.enter());
        let pending = self.freshness.begin(thread);
        KernelAnswer {
            coherence: self,
            ttl: self.ttl.load(),
            pending,
            has_young: Cell::new(false),
            _in_flight: in_flight,
        }
    }

    /// Records that the request that the calling thread serves, if any, has processed events, and has read nothing yet.
    pub(crate) fn caught_up(&self) {
        self.freshness.caught_up();
    }

    /// Returns the TTLs in force.
    pub(crate) fn ttl(&self) -> Guard<Arc<CacheTtl>> {
        self.ttl.load()
    }

    /// Changes the TTLs. Answers given before may carry longer ones.
    pub(crate) fn set_ttl(&self, ttl: CacheTtl) {
        self.ttl.store(Arc::new(ttl));
    }

    /// Tells of a change, after the system call and before its answer or a notification. Returns whether an answer with the
    /// state before may be in flight to others than the client, so that the kernel must be notified.
    pub(crate) fn tell(&self, change: Change<'_>, by: Client) -> bool {
        ops::external_changes::tell(&self.pool, change, by);
        match (change, by) {
            // The kernel drops its listing after a change that it has requested.
            (Change::Names(dir), Client::Outside) => self.listings.changed(wire::NodeId(dir.0)),
            (Change::Listings | Change::Missed, _) => self.listings.clear(),
            _ => {}
        }
        CacheKey::of(change).is_some_and(|key| self.freshness.may_be_in_flight(key, by))
    }

    /// Tells that a client's request has changed a node. For requests whose answer does not make the kernel reject older
    /// attributes in flight.
    pub(crate) fn tell_by(&self, thread: ThreadId, change: Change<'_>) {
        let seen = self.tell(change, Client::Thread(thread));
        if seen && let Change::Names(node) | Change::Attributes(node) = change {
            let _ = self.notifier.inval_attributes_now(wire::NodeId(node.0));
        }
    }

    /// From now on the kernel opens directories by itself and keeps their listings (`kept_listings`): the next OPENDIR,
    /// and all that follow, are answered with ENOSYS. It cannot be made to ask again.
    pub(crate) fn let_kernel_open_directories(&self) {
        self.kept.begin_use();
    }

    /// Returns whether the kernel opens directories by itself.
    pub(crate) fn kernel_opens_directories(&self) -> bool {
        self.kept.in_use()
    }

    /// Drops the listing of a directory that the kernel has cached, before this returns.
    pub(crate) fn drop_listing(&self, dir: NodeId) {
        if !self.kernel_opens_directories() {
            // When it is opened next.
            return self.listings.changed(wire::NodeId(dir.0));
        }
        if let Err(why) = self.notifier.inval_data_now(wire::NodeId(dir.0)) {
            tracing::debug!("cannot drop the listing of {dir}: {why}");
        }
    }

    /// Records that a name in a directory was made or removed directly on a branch.
    pub(crate) fn directory_modified(&self, dir: NodeId) {
        self.busy.record_change(dir);
    }

    /// Returns the files that are being written without events.
    pub(crate) fn written_files(&self) -> Arc<WrittenFiles> {
        Arc::clone(&self.written)
    }

    /// Makes the kernel look a name up again. Whatever is mounted on it stays.
    pub(crate) fn expire_name(&self, dir: NodeId, name: &CStr) {
        let _ = self.notifier.expire_entry(wire::NodeId(dir.0), name);
    }

    /// Makes the kernel fetch a node's attributes again, and drop the listing of a directory if asked to.
    pub(crate) fn expire_node(&self, node: NodeId, listing: bool) {
        let wire_node = wire::NodeId(node.0);
        let sent = match self.kernel_opens_directories() {
            // At once, because the listing that the kernel begins next must not be hit.
            true if listing && self.kept.changed(node) => self.notifier.inval_data_now(wire_node),
            false if listing && self.ttl.load().may_cache_listings() => {
                let _ = self.notifier.inval_inode(wire_node, 0, 0);
                Ok(())
            }
            _ => self.notifier.inval_attributes_now(wire_node).map(drop),
        };
        if let Err(why) = sent {
            tracing::debug!("cannot invalidate the attributes of {node}: {why}");
        }
    }

    /// Tells that a file was written. To be followed by [`Coherence::expire_written`].
    pub(crate) fn file_written(&self, node: NodeId) {
        let in_flight = self.tell(Change::Attributes(node), Client::Outside);
        self.untold.add(node, in_flight);
    }

    /// Makes the kernel fetch the attributes of files again that were written, unless it has been given them since. Returns
    /// those of which it may be given older ones yet.
    pub(crate) fn expire_written(&self) -> Vec<NodeId> {
        let files = self.untold.take().into_iter();
        // The kernel rejects what is in flight of a node that it knows.
        files
            .filter(|&(node, in_flight)| !self.expire_attributes(node) && in_flight)
            .map(|(node, _)| node)
            .collect()
    }

    /// Makes the kernel fetch a node's attributes again. Returns whether it knows the node.
    fn expire_attributes(&self, node: NodeId) -> bool {
        let known = self.notifier.inval_attributes_now(wire::NodeId(node.0));
        known
            .inspect_err(|why| tracing::debug!("cannot invalidate the attributes of {node}: {why}"))
            .unwrap_or(true)
    }
}

/// A part of a listing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Part {
    /// The first names, and when the request for them began.
    First(Instant),
    Later,
    /// No names are left.
    End,
}

/// The answer to a request in progress: how long the kernel may cache each thing in it.
pub(crate) struct KernelAnswer<'a> {
    coherence: &'a Coherence,
    ttl: Guard<Arc<CacheTtl>>,
    pending: PendingAnswer<'a>,
    /// It has attributes of a file that was written a moment ago.
    has_young: Cell<bool>,
    _in_flight: Option<InFlightGuard<'a>>,
}

impl KernelAnswer<'_> {
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
        // Asked first: if the file is closed between the two, the answer is not fresh.
        let ttl = self.ttl.attr_ttl(&self.coherence.pool, &self.coherence.written, node, attr);
        if attr.is_regular() && ttl == SETTLED {
            self.has_young.set(true);
        }
        let fresh = self.pending.record(CacheKey::attributes(node, attr));
        if fresh {
            self.coherence.untold.given(node);
        }
        if_fresh(fresh, ttl)
    }

    /// Returns the TTLs for a name in the answer and for the attributes that come with it.
    pub(crate) fn entry_ttls(&self, parent: NodeId, name: &[u8], entry: &Entry) -> (Duration, Duration) {
        let fresh = self.pending.record(CacheKey::name(parent, name));
        let named = if_fresh(fresh, self.ttl.entry_ttl(&self.coherence.pool, parent, name, entry.attr.dev));
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

    /// Records that the answer contains a part of a listing, after its names were read. A listing has no TTL that could be
    /// zero. So a change of the directory must find that it was given out, and where a change came first, the kernel
    /// drops the listing.
    pub(crate) fn listed(&self, dir: NodeId, part: Part, names: NamesRead) {
        let coherence = self.coherence;
        let may_cache = self.ttl.may_cache_listing(&coherence.pool, dir);
        let is_current = || self.pending.record_now(CacheKey::directory(dir)) && names == NamesRead::Current;
        if !coherence.kernel_opens_directories() {
            if may_cache && !is_current() {
                coherence.listings.changed(wire::NodeId(dir.0));
            }
            return;
        }
        let keep = match self.ttl.listing_age() {
            _ if !may_cache => Keep::Not,
            // The next change may be made, and looked for, before an event can report it.
            Some(_) if coherence.busy.is_busy(dir) => Keep::Not,
            Some(age) => Keep::For(age),
            None => Keep::Always,
        };
        let drops = match part {
            Part::End => coherence.kept.ends(dir, self.thread(), keep),
            Part::First(_) | Part::Later => {
                let begun = if let Part::First(begun) = part { Some(begun) } else { None };
                let drops = coherence.kept.gives(dir, self.thread(), begun, self.has_young.get());
                // Checked only now: whoever records a change then finds that a listing has begun.
                if !is_current() {
                    coherence.kept.doubt(dir);
                }
                drops
            }
        };
        if drops {
            coherence.drop_listing(dir);
        }
        coherence.wake_dropping();
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
