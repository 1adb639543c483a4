//! Values of the pool as the wire has them, and back.

use crate::coherence::recent_files::{self, Young, age};
use crate::watch::Stirred;
use canopy_config::{Config, ShownAs, Timeouts};
use canopy_fuse::abi;
use canopy_fuse::flags::OpenFlags;
use canopy_fuse::request as wire;
use canopy_pool as pool;
use canopy_pool::aggregate::Figures;
use std::time::Duration;

/// How long the kernel may rely on what it is told.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    /// Where changes behind the pool's back are not watched for.
    pub(crate) entry: Duration,
    pub(crate) attr: Duration,
    negative: Duration,
    watched: Option<Watched>,
    /// `cache.readdir`, where it is given; else listings are kept where changes are watched for.
    keep_listings: Option<bool>,
    pub(crate) shown: ShownAs,
    /// `proxy-ioprio`
    pub(crate) proxy_ioprio: bool,
}

/// Where they are.
#[derive(Clone, Debug)]
struct Watched {
    entry: Duration,
    negative: Duration,
    /// At most; see [`Terms::attrs`].
    attr: Duration,
    /// Paths of the pool at which and below which they are not.
    blind: Vec<Vec<u8>>,
}

/// A name that is watched: it is told when it changes.
const NAMED: Duration = Duration::from_secs(86_400);
impl Terms {
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
        Terms {
            entry,
            attr,
            negative,
            watched,
            keep_listings: config.is_given("cache.readdir").then_some(config.kernel.cache_readdir),
            shown: config.shown,
            proxy_ioprio: config.threads.proxy_ioprio,
        }
    }

    /// Mode, owner and group that a file is shown with.
    fn shown(&self, attr: &pool::Attr) -> (u32, u32, u32) {
        let ShownAs { uid, gid, umask } = self.shown;
        let mode = umask.0.map_or(attr.mode, |umask| attr.mode & !0o7777 | 0o777 & !umask);
        (mode, uid.0.unwrap_or(attr.uid), gid.0.unwrap_or(attr.gid))
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
        stirred: &Stirred,
        parent: pool::NodeId,
        name: &[u8],
    ) -> Duration {
        let watched = self.watching(|| pool.known().path_of(parent, name));
        match watched.map_or(self.negative, |watched| watched.negative) {
            time if time > self.negative && stirred.of_late(parent) => self.negative,
            time => time,
        }
    }

    /// How long attributes may be relied upon. Nothing tells that a file is being written before it is closed, and what
    /// has changed of late is likely to change again: as long as it has not changed before, or else it is looked at.
    pub(crate) fn attrs(
        &self,
        pool: &pool::Pool,
        young: &Young,
        node: pool::NodeId,
        attr: &pool::Attr,
    ) -> Duration {
        let Some(watched) = self.watching(|| pool.known().path(node)) else { return self.attr };
        let unseen = age(attr.ctime).max(self.attr).min(watched.attr);
        let known = unseen == watched.attr || !attr.is_regular() || young.takes(node, attr);
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

pub(crate) fn node(id: wire::NodeId) -> pool::NodeId {
    pool::NodeId(id.0)
}

pub(crate) fn caller(header: &wire::Header, umask: u32) -> pool::Caller {
    pool::Caller { uid: header.uid, gid: header.gid, pid: header.pid, umask }
}

pub(crate) fn attr(attr: &pool::Attr, terms: &Terms) -> abi::Attr {
    let (mode, uid, gid) = terms.shown(attr);
    abi::Attr {
        ino: attr.ino,
        size: attr.size,
        blocks: attr.blocks,
        atime: attr.atime.sec.cast_unsigned(),
        mtime: attr.mtime.sec.cast_unsigned(),
        ctime: attr.ctime.sec.cast_unsigned(),
        atimensec: attr.atime.nsec,
        mtimensec: attr.mtime.nsec,
        ctimensec: attr.ctime.nsec,
        mode,
        nlink: attr.nlink,
        uid,
        gid,
        rdev: abi::encode_dev(attr.rdev.0, attr.rdev.1),
        blksize: attr.blksize,
        flags: 0,
    }
}

pub(crate) fn statx(attr: &pool::Attr, terms: &Terms) -> abi::Statx {
    let (mode, uid, gid) = terms.shown(attr);
    let time = |t: pool::Time| abi::SxTime { sec: t.sec, nsec: t.nsec, reserved: 0 };
    abi::Statx {
        mask: attr.mask,
        blksize: attr.blksize,
        attributes: attr.attributes,
        attributes_mask: attr.attributes_mask,
        nlink: attr.nlink,
        uid,
        gid,
        mode: mode as u16,
        ino: attr.ino,
        size: attr.size,
        blocks: attr.blocks,
        atime: time(attr.atime),
        btime: time(attr.btime),
        ctime: time(attr.ctime),
        mtime: time(attr.mtime),
        rdev_major: attr.rdev.0,
        rdev_minor: attr.rdev.1,
        ..abi::Statx::default()
    }
}

/// `named` and `attrs`: how long the name and the attributes may be relied upon.
pub(crate) fn entry(entry: &pool::Entry, named: Duration, attrs: Duration, terms: &Terms) -> abi::EntryOut {
    let (named, attrs) = if entry.brief { Default::default() } else { (named, attrs) };
    abi::EntryOut::new(entry.node.0, u64::from(entry.generation), attr(&entry.attr, terms), named, attrs)
}

/// The flags of an open's answer, and its backing file.
pub(crate) fn travel(travel: &pool::Travel) -> (OpenFlags, Option<u32>) {
    let mut flags = OpenFlags::empty();
    flags.set(OpenFlags::DIRECT_IO, travel.direct_io);
    flags.set(OpenFlags::KEEP_CACHE, travel.keep_cache);
    flags.set(OpenFlags::PARALLEL_DIRECT_WRITES, travel.parallel_direct_writes);
    flags.set(OpenFlags::NOFLUSH, travel.no_flush);
    (flags, travel.passthrough)
}

pub(crate) fn changes(set: &wire::Setattr) -> pool::SetAttr {
    let time = |t: wire::SetTime| match t {
        wire::SetTime::Now => pool::SetTime::Now,
        wire::SetTime::At(at) => pool::SetTime::At(pool::Time { sec: at.sec, nsec: at.nsec }),
    };
    pool::SetAttr {
        mode: set.mode,
        uid: set.uid,
        gid: set.gid,
        size: set.size,
        atime: set.atime.map(time),
        mtime: set.mtime.map(time),
        // ctime cannot be set on a branch; it moves by itself with every change.
        kill_suidgid: set.kill_suidgid,
    }
}

pub(crate) fn statfs(figures: &Figures) -> abi::Kstatfs {
    let narrow = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
    abi::Kstatfs {
        blocks: figures.blocks,
        bfree: figures.bfree,
        bavail: figures.bavail,
        files: figures.files,
        ffree: figures.ffree,
        bsize: narrow(figures.bsize),
        namelen: narrow(figures.namemax),
        frsize: narrow(figures.frsize),
        ..abi::Kstatfs::default()
    }
}
