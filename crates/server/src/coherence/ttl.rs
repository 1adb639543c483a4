//! How long the kernel may rely on what it is told.

use super::busy_dirs::BusyDirs;
use super::recent_files::{self, RecentFiles, age};
use canopy_config::{AttrOverrides, Config, Timeouts};
use canopy_pool as pool;
use std::time::Duration;

/// How long the kernel may rely on what it is told.
#[derive(Clone, Debug)]
pub(crate) struct CacheTtl {
    /// Where changes behind the pool's back are not watched for.
    pub(crate) entry: Duration,
    pub(crate) attr: Duration,
    negative: Duration,
    watched: Option<Watched>,
    /// `cache.readdir`, where it is given; else listings are kept where changes are watched for.
    keep_listings: Option<bool>,
    pub(crate) shown: AttrOverrides,
    /// `proxy-ioprio`
    pub(crate) proxy_ioprio: bool,
}

/// Where they are.
#[derive(Clone, Debug)]
struct Watched {
    entry: Duration,
    negative: Duration,
    /// At most; see [`CacheTtl::attrs`].
    attr: Duration,
    /// Paths of the pool at which and below which they are not.
    blind: Vec<Vec<u8>>,
}

/// A name that is watched: it is told when it changes.
const NAMED: Duration = Duration::from_secs(86_400);

impl CacheTtl {
    /// `watched`: `None` where the branches are not; else the places in the pool that are not, and whether the kernel can
    /// be made to forget all names that it knows to be missing (Linux 6.16): nobody else knows which those are.
    pub(crate) fn new(config: &Config, watched: Option<(Vec<Vec<u8>>, bool)>) -> Self {
        let Timeouts { attr, entry, negative } = config.timeouts;
        let given =
            |key: &str, asked: Duration, else_: Duration| if config.is_given(key) { asked } else { else_ };
        let watched = watched.map(|(blind, forgets_all)| Watched {
            entry: given("cache.entry", entry, NAMED),
            negative: given("cache.negative-entry", negative, if forgets_all { NAMED } else { negative }),
            attr: given("cache.attr", attr, recent_files::OLD),
            blind,
        });
        CacheTtl {
            entry,
            attr,
            negative,
            watched,
            keep_listings: config.is_given("cache.readdir").then_some(config.kernel.cache_readdir),
            shown: config.overrides,
            proxy_ioprio: config.threads.proxy_ioprio,
        }
    }

    /// How long a name may be relied upon.
    pub(crate) fn named(&self, pool: &pool::Pool, parent: pool::NodeId, name: &[u8]) -> Duration {
        self.watching(|| pool.known().path_of(parent, name)).map_or(self.entry, |watched| watched.entry)
    }

    /// How long, that there is no such name. Where somebody is at work directly on a branch it is asked for again:
    /// he shall not find that he was faster than the notice of what he made.
    pub(crate) fn missing(
        &self,
        pool: &pool::Pool,
        busy: &BusyDirs,
        parent: pool::NodeId,
        name: &[u8],
    ) -> Duration {
        let watched = self.watching(|| pool.known().path_of(parent, name));
        match watched.map_or(self.negative, |watched| watched.negative) {
            time if time > self.negative && busy.is_busy(parent) => self.negative,
            time => time,
        }
    }

    /// How long attributes may be relied upon. Nothing tells that a file is being written before it is closed, and what
    /// has changed of late is likely to change again: as long as it has not changed before, or else it is looked at.
    pub(crate) fn attrs(
        &self,
        pool: &pool::Pool,
        recent: &RecentFiles,
        node: pool::NodeId,
        attr: &pool::Attr,
    ) -> Duration {
        let Some(watched) = self.watching(|| pool.known().path(node)) else { return self.attr };
        let unseen = age(attr.ctime).max(self.attr).min(watched.attr);
        let known = unseen == watched.attr || !attr.is_regular() || recent.takes(node, attr);
        if known { watched.attr } else { unseen }
    }

    /// May the kernel keep the listing of a directory?
    pub(crate) fn keeps_listing(&self, pool: &pool::Pool, dir: pool::NodeId) -> bool {
        let watched = || self.watching(|| pool.known().path(dir)).is_some();
        self.keep_listings.unwrap_or_else(watched)
    }

    /// May it keep any?
    pub(crate) fn keeps_listings(&self) -> bool {
        self.keep_listings.unwrap_or(self.watched.is_some())
    }

    /// How old a listing may become. By then the attributes of what it lists have to be asked for again, which a new
    /// listing does for many at once. `None` where the user wants it kept (`cache.readdir=true`), though it may be out of date.
    pub(crate) fn listing_age(&self) -> Option<Duration> {
        match &self.watched {
            Some(watched) if self.keep_listings.is_none() => Some(watched.attr),
            _ => None,
        }
    }

    /// The terms for what is watched, if this is.
    fn watching(&self, path: impl FnOnce() -> Option<Vec<u8>>) -> Option<&Watched> {
        let watched = self.watched.as_ref()?;
        (watched.blind.is_empty() || path().is_some_and(|path| !watched.is_blind(&path))).then_some(watched)
    }
}

impl Watched {
    fn is_blind(&self, path: &[u8]) -> bool {
        let covers = |top: &Vec<u8>| {
            let rest = path.strip_prefix(&**top);
            rest.is_some_and(|rest| top.is_empty() || rest.first().is_none_or(|&byte| byte == b'/'))
        };
        self.blind.iter().any(covers)
    }
}
