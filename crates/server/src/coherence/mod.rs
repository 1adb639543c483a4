//! What the kernel may still believe.
//!
//! Every answer that names a file, or tells its attributes, tells how long the kernel may rely on it. [`Coherence`]
//! decides that, and takes answers back when what they told has changed. It is asked in these words: a request begins
//! ([`Coherence::begin`]), an answer has a time to live ([`Answer`]), a name or a node has changed, all names are to be
//! looked up again.
//!
//! Of its parts, `ttl` holds the times that the options ask for; `freshness` keeps an answer that a change has overtaken
//! from being remembered; `recent_files` looks again at files that may be changing unseen; `busy_dirs` knows where
//! programs work directly on a branch; `dir_listings` knows which listings the kernel may go by; `in_flight` counts
//! answers that are on their way; `invalidate` makes the kernel look every name up again.

mod busy_dirs;
mod dir_listings;
mod freshness;
mod in_flight;
mod invalidate;
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
use freshness::{Answering, Asker, Freshness, NOBODY, Subject};
use in_flight::{InFlight, Inside};
use invalidate::Invalidation;
use recent_files::RecentFiles;
use std::ffi::CStr;
use std::sync::{Arc, Weak};
use std::time::Duration;

pub(crate) struct Coherence {
    /// For threads that must not keep it alive.
    own: Weak<Coherence>,
    pool: Arc<Pool>,
    settings: Arc<Settings>,
    notifier: Notifier,
    ttl: ArcSwap<CacheTtl>,
    freshness: Freshness,
    listings: DirListings,
    /// Answers in flight for which the kernel keeps a directory locked.
    in_flight: InFlight,
    recent: RecentFiles,
    busy: BusyDirs,
    invalidation: Invalidation,
}

impl Coherence {
    /// Starts the thread that looks at recent files; it ends with the value.
    pub(crate) fn start(
        pool: Arc<Pool>,
        settings: Arc<Settings>,
        notifier: Notifier,
        ttl: CacheTtl,
    ) -> std::io::Result<Arc<Coherence>> {
        let coherence = Arc::new_cyclic(|own| Coherence {
            own: own.clone(),
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
        coherence.look_at_recent_files()?;
        Ok(coherence)
    }

    /// Begins a request, before anything is read for it. `locks_directory`: the kernel keeps a directory locked until it
    /// has the answer.
    pub(crate) fn begin(&self, asker: Asker, locks_directory: bool) -> Answer<'_> {
        let in_flight = locks_directory.then(|| self.in_flight.enter());
        let answering = self.freshness.begin(asker);
        Answer { coherence: self, ttl: self.ttl.load(), answering, _in_flight: in_flight }
    }

    /// The times to live in force.
    pub(crate) fn ttl(&self) -> Guard<Arc<CacheTtl>> {
        self.ttl.load()
    }

    /// Puts other times to live in force. Names given out before may have been promised for longer.
    pub(crate) fn set_ttl(&self, ttl: CacheTtl) {
        self.ttl.store(Arc::new(ttl));
    }

    /// A thread's request has changed attributes of `nodes`, whole or in part, and the kernel does not take its answer for
    /// newer than what it may be learning at this moment.
    pub(crate) fn changed_by<const N: usize>(&self, asker: Asker, nodes: [NodeId; N]) {
        for node in nodes {
            if self.freshness.changed(Subject::attributes(node), asker) {
                let _ = self.notifier.inval_attributes_now(wire::NodeId(node.0));
            }
        }
    }

    /// The listing of a directory is not what it was.
    pub(crate) fn listing_changed(&self, dir: NodeId) {
        self.listings.changed(wire::NodeId(dir.0));
    }

    /// A name in a directory was made or removed directly on a branch.
    pub(crate) fn is_worked_in(&self, dir: NodeId) {
        self.busy.note(dir);
    }

    /// A name has changed behind the pool's back. True when an answer that tells the old state may be in flight, so that
    /// the kernel must be notified again later.
    pub(crate) fn name_changed(&self, dir: NodeId, name: &[u8]) -> bool {
        self.freshness.changed(Subject::name(dir, name), NOBODY)
    }

    /// The same of the attributes of a node.
    pub(crate) fn attributes_changed(&self, node: NodeId) -> bool {
        // Before the note: an answer that begins after it must read the new state.
        self.pool.attributes_changed(node);
        self.freshness.changed(Subject::attributes(node), NOBODY)
    }

    /// Anything may have changed: no answer that is in flight is remembered.
    pub(crate) fn anything_changed(&self) {
        self.freshness.changed(Subject::ALL, NOBODY);
    }

    /// No listing that the kernel has holds any longer.
    pub(crate) fn listings_changed(&self) {
        self.listings.renew();
    }

    /// Has the kernel look a name up again. What is mounted on it stays.
    pub(crate) fn expire_name(&self, dir: NodeId, name: &CStr) {
        let _ = self.notifier.expire_entry(wire::NodeId(dir.0), name);
    }

    /// Has the kernel ask for a node's attributes again, and drop the listing of a directory, if it may keep any.
    pub(crate) fn expire_node(&self, node: NodeId, listing: bool) {
        let wire_node = wire::NodeId(node.0);
        if listing && self.ttl.load().keeps_listings() {
            let _ = self.notifier.inval_inode(wire_node, 0, 0);
        } else if let Err(why) = self.notifier.inval_attributes_now(wire_node) {
            tracing::debug!("cannot invalidate the attributes of {node}: {why}");
        }
    }
}

/// A request that is being answered: how long each thing that it tells may be relied upon.
pub(crate) struct Answer<'a> {
    coherence: &'a Coherence,
    ttl: Guard<Arc<CacheTtl>>,
    answering: Answering<'a>,
    _in_flight: Option<Inside<'a>>,
}

impl Answer<'_> {
    /// The times to live that this answer is given by.
    pub(crate) fn ttl(&self) -> &CacheTtl {
        &self.ttl
    }

    /// The thread that asks.
    pub(crate) fn asker(&self) -> Asker {
        self.answering.asker()
    }

    /// For attributes that are about to be told.
    pub(crate) fn attributes(&self, node: NodeId, attr: &Attr) -> Duration {
        let fresh = self.answering.tells(Subject::attributes(node));
        lasting(fresh, self.ttl.attrs(&self.coherence.pool, &self.coherence.recent, node, attr))
    }

    /// For a name that is about to be told, and for the attributes that are told with it.
    pub(crate) fn entry(&self, parent: NodeId, name: &[u8], entry: &Entry) -> (Duration, Duration) {
        let fresh = self.answering.tells(Subject::name(parent, name));
        let named = lasting(fresh, self.ttl.named(&self.coherence.pool, parent, name));
        // What happened to a file that was not known yet, happened to its name.
        (named, lasting(fresh, self.attributes(entry.node, &entry.attr)))
    }

    /// For the attributes of a file without a name, and for the file itself.
    pub(crate) fn unnamed(&self, entry: &Entry) -> (Duration, Duration) {
        (self.ttl.entry, self.attributes(entry.node, &entry.attr))
    }

    /// For the answer that there is no such name.
    pub(crate) fn missing(&self, parent: NodeId, name: &[u8]) -> Duration {
        let fresh = self.answering.tells(Subject::name(parent, name));
        lasting(fresh, self.ttl.missing(&self.coherence.pool, &self.coherence.busy, parent, name))
    }

    /// A file has got a new name; the kernel keeps the time to live of the old one for it, if the name has not changed
    /// meanwhile.
    pub(crate) fn renamed(&self, dir: NodeId, name: &CStr) {
        if !self.answering.tells(Subject::name(dir, name.to_bytes())) {
            self.coherence.expire_name(dir, name);
        }
    }

    /// A listing is about to be told. It has no time to live that could be left out, so whoever changes the directory must
    /// know that it was told.
    pub(crate) fn listing(&self, dir: NodeId) {
        if self.ttl.keeps_listing(&self.coherence.pool, dir) {
            self.answering.tells(Subject::attributes(dir));
        }
    }

    /// A directory is being opened. `None` if the kernel may not keep its listing; else whether it may go by the one that it
    /// has. `caught_up`: has every event of the branches been handled?
    pub(crate) fn opens(&self, dir: NodeId, caught_up: impl FnOnce() -> bool) -> Option<bool> {
        if !self.ttl.keeps_listing(&self.coherence.pool, dir) {
            return None;
        }
        let kept = |age| self.coherence.listings.keeps(wire::NodeId(dir.0), age);
        Some(match self.ttl.listing_age() {
            Some(age) => caught_up() && kept(age),
            None => kept(Duration::MAX),
        })
    }
}

/// How long an answer may be relied upon: not at all if a change has overtaken it.
fn lasting(fresh: bool, time: Duration) -> Duration {
    if fresh { time } else { Duration::ZERO }
}
