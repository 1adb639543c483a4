//! The times to live (TTL) of what the kernel caches.

use super::busy_dirs::BusyDirs;
use super::written_files::WrittenFiles;
use crate::probes::{Behaviour, Findings};
use canopy_branch::fs::stat::Time;
use canopy_config::{AttrOverrides, Config, Timeouts};
use canopy_pool as pool;
use canopy_pool::ops;
use std::time::Duration;

/// The times to live of a pool, as its options and the watched branches decide.
#[derive(Clone, Debug)]
pub(crate) struct CacheTtl {
    /// The TTLs where changes behind the pool's back are not watched.
    pub(crate) entry: Duration,
    pub(crate) attr: Duration,
    negative: Duration,
    watched: Option<WatchedTtl>,
    /// `cache.readdir` if given; otherwise listings are cached where changes are watched.
    cache_listings: Option<bool>,
    pub(crate) shown: AttrOverrides,
    /// Serve reads and writes with the caller's I/O priority (`proxy-ioprio`).
    pub(crate) proxy_ioprio: bool,
}

/// The TTLs where changes are watched.
#[derive(Clone, Debug)]
struct WatchedTtl {
    entry: Duration,
    negative: Duration,
    attr: Duration,
    /// Of a file that was written less than [`SETTLED`] ago: as long as that is ago, but at least this.
    least_attr: Duration,
    /// Listings are cached by default.
    listings: bool,
    /// Paths in the pool at and below which changes are not watched.
    unwatched: Vec<Vec<u8>>,
    /// The devices whose files are known this long; all of them if every branch is watched.
    only: Option<Vec<u64>>,
}

/// The kernel rounds it up to a tick of its clock.
const TICK: Duration = Duration::from_millis(1);

/// For what is watched: the kernel is notified of changes.
const WATCHED: Duration = Duration::from_secs(86_400);

/// A file that changes without an event, by stores through a mapping on the branch for one, was written at most this long ago,
/// or rests. So its attributes are cached no longer than this.
pub(crate) const SETTLED: Duration = Duration::from_secs(10);

/// For an absence that the kernel does not let be taken back.
const STUBBORN_ABSENCE: Duration = Duration::from_secs(1);

/// What is watched.
#[derive(Clone, Debug)]
pub(crate) struct Watched {
    /// Paths in the pool at and below which changes are not.
    pub(crate) except: Vec<Vec<u8>>,
    /// The devices of the branches before the first one that is not watched, if there is one. What they hold is what the pool
    /// shows, whatever the others hold; but what is missing, what a directory lists, and its times depend on all branches.
    pub(crate) only: Option<Vec<u64>>,
    /// What the kernel was seen to do when it is notified.
    pub(crate) kernel: Findings,
    /// Writes are reported, and not only the close (Linux 6.0).
    pub(crate) writes: bool,
}

impl CacheTtl {
    /// Returns the TTLs for a configuration. `watched`: `None` if the branches are not watched. What the kernel does not drop
    /// when it is notified has the TTL that it has without watching; only absence is cached even so. Absence is not, unless
    /// the kernel drops every negative dentry at once (Linux 6.16): only it knows which those are.
    pub(crate) fn new(config: &Config, watched: Option<Watched>) -> Self {
        let Timeouts { attr, entry, negative } = config.timeouts;
        let given = |key: &str, asked: Duration, default: Duration| {
            if config.is_given(key) { asked } else { default }
        };
        let watched = watched.map(|Watched { except, only, kernel, writes }| {
            let heeded = |behaviour, long, short| if kernel.holds(behaviour) { long } else { short };
            let absence = heeded(Behaviour::Absence, WATCHED, STUBBORN_ABSENCE);
            let (longest, least) = if writes { (WATCHED, SETTLED) } else { (SETTLED, attr) };
            WatchedTtl {
                entry: given("cache.entry", entry, heeded(Behaviour::Names, WATCHED, entry)),
                negative: match only {
                    Some(_) => negative,
                    None => {
                        given("cache.negative-entry", negative, heeded(Behaviour::All, absence, negative))
                    }
                },
                attr: given("cache.attr", attr, heeded(Behaviour::Attributes, longest, attr)),
                least_attr: given("cache.attr", attr, heeded(Behaviour::Attributes, least, attr)),
                listings: only.is_none() && kernel.holds(Behaviour::Listings),
                unwatched: except,
                only,
            }
        });
        CacheTtl {
            entry,
            attr,
            negative,
            watched,
            cache_listings: config.is_given("cache.readdir").then_some(config.kernel.cache_readdir),
            shown: config.overrides,
            proxy_ioprio: config.threads.proxy_ioprio,
        }
    }

    /// Returns the TTL of a name that leads to a file or directory on the device `dev`.
    pub(crate) fn entry_ttl(
        &self,
        pool: &pool::Pool,
        parent: canopy_base::ids::NodeId,
        name: &[u8],
        dev: u64,
    ) -> Duration {
        self.watched_at(|| ops::external_changes::known(pool).path_of(parent, name))
            .filter(|watched| watched.knows(dev))
            .map_or(self.entry, |watched| watched.entry)
    }

    /// Returns the TTL of a negative dentry. It is short while a program works directly on a branch, so that the
    /// program finds through the pool what it has just made, even before the event for it has arrived.
    pub(crate) fn negative_ttl(
        &self,
        pool: &pool::Pool,
        busy: &BusyDirs,
        parent: canopy_base::ids::NodeId,
        name: &[u8],
    ) -> Duration {
        let watched = self.watched_at(|| ops::external_changes::known(pool).path_of(parent, name));
        match watched.map_or(self.negative, |watched| watched.negative) {
            time if time > self.negative && busy.is_busy(parent) => self.negative,
            time => time,
        }
    }

    /// Returns the TTL of attributes. Where no event tells that a file is being written, only that it is closed, one that
    /// has just changed is likely to change again: the TTL is the age of its last change.
    ///
    /// Of a file that is being written, or that a mapping of the branch's own file may change, nobody tells: its attributes
    /// are not cached, or while it changes often, as that of a database, for one tick of the clock by which times of files
    /// advance.
    pub(crate) fn attr_ttl(
        &self,
        pool: &pool::Pool,
        written: &WrittenFiles,
        node: canopy_base::ids::NodeId,
        attr: &canopy_branch::fs::stat::Attr,
    ) -> Duration {
        let is_written = || {
            !written.is_empty()
                && ops::external_changes::known(pool).key(node).is_none_or(|key| written.may_contain(key))
        };
        if attr.is_regular() && ops::data::mapped::changes_unseen(pool, node)
            || !attr.is_dir() && is_written()
        {
            return if age(attr.ctime).is_zero() { TICK } else { Duration::ZERO };
        }
        let watched = self.watched_at(|| ops::external_changes::known(pool).path(node));
        let Some(watched) = watched.filter(|watched| watched.knows_attributes(attr)) else {
            return self.attr;
        };
        match age(attr.mtime) {
            age if attr.is_regular() && age < SETTLED => age.max(watched.least_attr).min(watched.attr),
            _ => watched.attr,
        }
    }

    /// Returns whether the kernel may cache the listing of a directory.
    pub(crate) fn may_cache_listing(&self, pool: &pool::Pool, dir: canopy_base::ids::NodeId) -> bool {
        let watched = || self.watched_at(|| ops::external_changes::known(pool).path(dir));
        self.cache_listings.unwrap_or_else(|| watched().is_some_and(|watched| watched.listings))
    }

    /// Returns whether the kernel may cache any listing.
    pub(crate) fn may_cache_listings(&self) -> bool {
        self.cache_listings.unwrap_or(self.watched.as_ref().is_some_and(|watched| watched.listings))
    }

    /// Returns how old a listing may become: as old as the attributes of what it lists, which a new READDIRPLUS
    /// fetches for many files at once. `None` if the user wants listings kept (`cache.readdir=true`), though they may
    /// be out of date.
    pub(crate) fn listing_age(&self) -> Option<Duration> {
        match &self.watched {
            Some(watched) if self.cache_listings.is_none() => Some(watched.attr),
            _ => None,
        }
    }

    /// Returns the TTLs for watched paths if this path is one.
    fn watched_at(&self, path: impl FnOnce() -> Option<Vec<u8>>) -> Option<&WatchedTtl> {
        let watched = self.watched.as_ref()?;
        (watched.unwatched.is_empty() || path().is_some_and(|path| !watched.is_unwatched(&path)))
            .then_some(watched)
    }
}

/// Returns how long ago `time` was, in whole seconds.
fn age(time: Time) -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse).tv_sec;
    Duration::from_secs(u64::try_from(now.saturating_sub(time.sec)).unwrap_or_default())
}

impl WatchedTtl {
    /// Returns whether the pool shows what is on this device, whatever other branches hold.
    fn knows(&self, dev: u64) -> bool {
        self.only.as_ref().is_none_or(|devices| devices.contains(&dev))
    }

    /// Returns the same for attributes; those of a directory come from all its copies.
    fn knows_attributes(&self, attr: &canopy_branch::fs::stat::Attr) -> bool {
        self.only.is_none() || !attr.is_dir() && self.knows(attr.dev)
    }

    fn is_unwatched(&self, path: &[u8]) -> bool {
        let covers = |top: &Vec<u8>| {
            let rest = path.strip_prefix(&**top);
            rest.is_some_and(|rest| top.is_empty() || rest.first().is_none_or(|&byte| byte == b'/'))
        };
        self.unwatched.iter().any(covers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_does_not_heed_is_cached_as_if_nothing_were_watched() {
        let config = Config::default();
        let ttl = |kernel, writes| {
            CacheTtl::new(&config, Some(Watched { except: Vec::new(), only: None, kernel, writes }))
        };
        let ttls = |lacks: &[Behaviour]| {
            let ttl = ttl(lacks.iter().fold(Findings::ALL, |all, &one| all.without(one)), true);
            let listings = ttl.may_cache_listings();
            let watched = ttl.watched.unwrap();
            (watched.entry, watched.negative, watched.attr, watched.least_attr, listings)
        };
        let (entry, attr) = (config.timeouts.entry, config.timeouts.attr);
        let (day, second) = (WATCHED, Duration::from_secs(1));
        assert_eq!(ttls(&[]), (day, day, day, SETTLED, true));
        assert_eq!(ttls(&[Behaviour::PassedSizes]), (day, day, day, SETTLED, true));
        assert_eq!(ttls(&[Behaviour::Absence]), (day, second, day, SETTLED, true));
        assert_eq!(ttls(&[Behaviour::All]), (day, Duration::ZERO, day, SETTLED, true));
        assert_eq!(ttls(&[Behaviour::All, Behaviour::Absence]), (day, Duration::ZERO, day, SETTLED, true));
        assert_eq!(ttls(&[Behaviour::Names]), (entry, day, day, SETTLED, true));
        assert_eq!(ttls(&[Behaviour::Attributes]), (day, day, attr, attr, true));
        assert_eq!(ttls(&[Behaviour::Listings]), (day, day, day, SETTLED, false));
        assert!(entry <= second && attr <= second);
        let untried = ttl(Findings::NONE, false).watched.unwrap();
        assert_eq!((untried.entry, untried.negative, untried.attr), (entry, Duration::ZERO, attr));
    }
}
