//! Negotiation: the version, features and limits that kernel and server agree on in INIT.

use std::fmt;
use std::fs;

use rustix::param::page_size;

use crate::abi;
use crate::flags::InitFlags;
use crate::request::Dialect;
use crate::transport::{WorkerGrowth, WorkerPriority};

const MAX_PAGES_LIMIT: &str = "/proc/sys/fs/fuse/max_pages_limit";
/// `FUSE_DEFAULT_MAX_PAGES_PER_REQ`: the pages per request without `MAX_PAGES`.
const PAGES_DEFAULT: usize = 32;
/// The fixed limit of kernels without `max_pages_limit` (before 6.13).
const PAGES_FIXED: usize = 256;
/// The largest value of `init_out.max_pages`.
const PAGES_WIRE: usize = u16::MAX as usize;

/// What the server asks for.
#[derive(Clone, Copy, Debug)]
pub struct SessionOptions {
    /// Features to enable if the kernel offers them. `INIT_EXT` and `MAX_PAGES` are added as needed.
    pub flags: InitFlags,
    /// The largest write and read, in bytes. If it exceeds the system's `max_pages_limit`, that limit is raised, if
    /// permitted.
    pub max_write: u32,
    /// In bytes, limited by what the kernel offers. `None` means what the kernel offers.
    pub max_readahead: Option<u32>,
    /// Background requests in flight; 0 means the kernel's default (12).
    pub max_background: u16,
    /// 0 means the kernel's default (three quarters of `max_background`).
    pub congestion_threshold: u16,
    /// For passthrough. With 1, another stacked filesystem can be on top of this one; with 2, backing files can be on a
    /// stacked filesystem.
    pub max_stack_depth: u32,
    /// Granularity of timestamps, in nanoseconds; 1 to 1,000,000,000.
    pub time_gran: u32,
    /// In seconds. A request that takes longer ends the WHOLE connection. 0 means no timeout (7.43).
    pub request_timeout: u16,
    /// With `OVER_IO_URING`: the workers for each processor's queue, at least two. Each has a buffer for the largest
    /// request, whose pages take memory once they are used.
    pub queue_workers: u16,
    /// When to start more workers.
    pub growth: WorkerGrowth,
    /// The priority of workers.
    pub worker_priority: WorkerPriority,
    /// Over `/dev/fuse`, buffers have their memory from the beginning, and workers keep their priority. For a server whose
    /// requests are to outlive it: while a process is being killed, the kernel fails requests that do not fit into memory it
    /// has already, and a thread of low priority may be long in ending.
    pub resident: bool,
}

impl Default for SessionOptions {
    fn default() -> SessionOptions {
        SessionOptions {
            flags: InitFlags::BIG_WRITES | InitFlags::MAX_PAGES | InitFlags::PARALLEL_DIROPS,
            max_write: 1 << 20,
            max_readahead: None,
            max_background: 0,
            congestion_threshold: 0,
            max_stack_depth: 1,
            time_gran: 1,
            request_timeout: 0,
            queue_workers: 2,
            growth: WorkerGrowth::default(),
            worker_priority: WorkerPriority::Auto,
            resident: false,
        }
    }
}

/// Makes the kernel appear older than it is, for tests.
#[derive(Clone, Copy, Debug)]
pub struct KernelLimits {
    /// The newest minor version to negotiate.
    pub minor: u32,
    /// The flags that the kernel may offer.
    pub mask: InitFlags,
    /// Whether the kernel accepts io_uring queues after negotiating them.
    pub accepts_queues: bool,
}

impl KernelLimits {
    /// No limits.
    pub const NONE: KernelLimits =
        KernelLimits { minor: abi::MINOR, mask: InitFlags::from_bits_retain(u64::MAX), accepts_queues: true };

    /// Returns the limits of a kernel of version 7.`minor`.
    #[must_use]
    pub fn minor(minor: u32) -> KernelLimits {
        KernelLimits { minor, mask: InitFlags::known_at(minor), ..KernelLimits::NONE }
    }
}

impl Default for KernelLimits {
    fn default() -> KernelLimits {
        KernelLimits::NONE
    }
}

/// The result of the negotiation. A process that takes over a connection needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// The smaller of the two minor versions.
    pub minor: u32,
    /// The features in force: requested and offered.
    pub flags: InitFlags,
    /// What the kernel offers, within [`KernelLimits`].
    pub offered: InitFlags,
    /// Requested but not offered.
    pub missing: InitFlags,
    /// The largest write, in bytes.
    pub max_write: u32,
    /// The most pages of data in one request.
    pub max_pages: u16,
    /// In bytes.
    pub max_readahead: u32,
    /// Background requests in flight.
    pub max_background: u16,
    /// The number of background requests from which on the kernel considers the connection congested.
    pub congestion_threshold: u16,
    /// 0 without passthrough.
    pub max_stack_depth: u32,
    /// Granularity of timestamps, in nanoseconds.
    pub time_gran: u32,
    /// In seconds; 0 means no timeout.
    pub request_timeout: u16,
}

/// The numbers of [`Agreed::to_words`].
pub const AGREED_WORDS: usize = 12;

impl Agreed {
    /// Returns all of it as numbers, for a process that takes over the connection.
    #[must_use]
    pub fn to_words(&self) -> [u64; AGREED_WORDS] {
        [
            self.minor.into(),
            self.flags.bits(),
            self.offered.bits(),
            self.missing.bits(),
            self.max_write.into(),
            self.max_pages.into(),
            self.max_readahead.into(),
            self.max_background.into(),
            self.congestion_threshold.into(),
            self.max_stack_depth.into(),
            self.time_gran.into(),
            self.request_timeout.into(),
        ]
    }

    /// Returns what [`to_words`](Agreed::to_words) was called on.
    #[must_use]
    pub fn from_words(words: &[u64; AGREED_WORDS]) -> Agreed {
        let flags = |at: usize| InitFlags::from_bits_retain(words[at]);
        let (number, short) = (|at: usize| words[at] as u32, |at: usize| words[at] as u16);
        Agreed {
            minor: number(0),
            flags: flags(1),
            offered: flags(2),
            missing: flags(3),
            max_write: number(4),
            max_pages: short(5),
            max_readahead: number(6),
            max_background: short(7),
            congestion_threshold: short(8),
            max_stack_depth: number(9),
            time_gran: number(10),
            request_timeout: short(11),
        }
    }

    /// Returns the form of the requests on this connection.
    #[must_use]
    pub fn dialect(&self) -> Dialect {
        Dialect::new(self.minor, self.flags)
    }

    /// Returns whether a feature is in force.
    #[must_use]
    pub fn has(&self, flag: InitFlags) -> bool {
        self.flags.contains(flag)
    }

    /// Returns the largest payload of a reply, in bytes.
    #[must_use]
    pub fn max_payload(&self) -> usize {
        usize::from(self.max_pages) * page_size()
    }
}

/// One line, for the log.
impl fmt::Display for Agreed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // These two only announce other fields.
        let carriers = InitFlags::INIT_EXT | InitFlags::MAX_PAGES;
        write!(f, "FUSE {}.{}: {}", abi::MAJOR, self.minor, (self.flags - carriers).describe())?;
        write!(f, "; max_write {} KiB, max_pages {}", self.max_write / 1024, self.max_pages)?;
        if self.max_stack_depth != 0 {
            write!(f, ", stack depth {}", self.max_stack_depth)?;
        }
        if self.request_timeout != 0 {
            write!(f, ", request timeout {} s", self.request_timeout)?;
        }
        write!(f, "; not offered: {}", self.missing.describe())
    }
}

/// Negotiates, and returns the result with the reply to the kernel.
pub(crate) fn agree(
    init: &abi::InitIn,
    options: &SessionOptions,
    limits: KernelLimits,
) -> (Agreed, abi::InitOut) {
    agree_within(init, options, limits, pages_allowed)
}

/// As [`agree`]. `allowed` limits a number of pages to what the system permits.
fn agree_within(
    init: &abi::InitIn,
    options: &SessionOptions,
    limits: KernelLimits,
    allowed: impl FnOnce(usize) -> usize,
) -> (Agreed, abi::InitOut) {
    let minor = init.minor.min(limits.minor).clamp(abi::MINOR_MIN, abi::MINOR);
    let offered = offered(init, limits);
    let wanted = options.flags | InitFlags::MAX_PAGES;
    let mut flags = wanted & offered;
    if flags.contains(InitFlags::PASSTHROUGH) && flags.contains(InitFlags::WRITEBACK_CACHE) {
        // With both, the kernel silently disables passthrough.
        flags -= InitFlags::PASSTHROUGH;
    }
    if minor < 38 {
        // Before 7.38 the header has no length of security contexts, so they cannot be told from a name.
        flags -= InitFlags::SECURITY_CTX;
    }
    if options.request_timeout == 0 {
        flags -= InitFlags::REQUEST_TIMEOUT;
    }
    if flags.words().1 != 0 {
        flags |= InitFlags::INIT_EXT;
    }

    let page = page_size();
    let wished = (options.max_write as usize).div_ceil(page).clamp(1, PAGES_WIRE);
    let pages = if !flags.contains(InitFlags::MAX_PAGES) {
        PAGES_DEFAULT
    } else if minor < 42 {
        wished.min(PAGES_FIXED)
    } else {
        allowed(wished).clamp(1, PAGES_WIRE)
    };
    let max_pages = pages as u16;
    // The kernel uses at least 4096.
    let max_write = (options.max_write as usize).min(pages * page).max(4096) as u32;
    let passthrough = flags.contains(InitFlags::PASSTHROUGH);

    let agreed = Agreed {
        minor,
        flags,
        offered,
        missing: options.flags - offered,
        max_write,
        max_pages,
        max_readahead: options.max_readahead.unwrap_or(u32::MAX).min(init.max_readahead),
        max_background: options.max_background,
        congestion_threshold: options.congestion_threshold,
        max_stack_depth: if passthrough { options.max_stack_depth } else { 0 },
        time_gran: options.time_gran,
        request_timeout: if flags.contains(InitFlags::REQUEST_TIMEOUT) { options.request_timeout } else { 0 },
    };
    let (word, word2) = flags.words();
    let out = abi::InitOut {
        major: abi::MAJOR,
        minor,
        max_readahead: agreed.max_readahead,
        flags: word,
        max_background: agreed.max_background,
        congestion_threshold: agreed.congestion_threshold,
        max_write,
        time_gran: agreed.time_gran,
        max_pages,
        map_alignment: 0,
        flags2: word2,
        max_stack_depth: agreed.max_stack_depth,
        request_timeout: agreed.request_timeout,
        unused: [0; 11],
    };
    (agreed, out)
}

/// Returns what the kernel offers, within the limits.
fn offered(init: &abi::InitIn, limits: KernelLimits) -> InitFlags {
    let words = InitFlags::from_words(init.flags, init.flags2);
    let said = if words.contains(InitFlags::INIT_EXT) { words } else { InitFlags::from_words(init.flags, 0) };
    let seen = said & limits.mask;
    // Without the extension, the reply has no second word.
    if seen.contains(InitFlags::INIT_EXT) { seen } else { InitFlags::from_words(seen.words().0, 0) }
}

/// Returns how many pages a request may have: at most `wished`, and at most the system's limit. Raises that limit if it
/// is too low, if permitted.
fn pages_allowed(wished: usize) -> usize {
    let read = || fs::read_to_string(MAX_PAGES_LIMIT).ok()?.trim().parse::<usize>().ok();
    let Some(limit) = read() else { return wished.min(PAGES_FIXED) };
    if wished <= limit {
        return wished;
    }
    if let Err(error) = fs::write(MAX_PAGES_LIMIT, wished.to_string()) {
        tracing::info!(%error, wished, limit, "cannot raise {MAX_PAGES_LIMIT}");
    }
    wished.min(read().unwrap_or(limit))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(minor: u32, flags: InitFlags) -> abi::InitIn {
        let (flags, flags2) = (flags | InitFlags::INIT_EXT).words();
        abi::InitIn { major: 7, minor, max_readahead: 131_072, flags, flags2, unused: [0; 11] }
    }

    fn everything() -> InitFlags {
        InitFlags::from_bits_retain(InitFlags::all().bits())
    }

    #[test]
    fn features_are_requested_and_offered_ones() {
        let options = SessionOptions {
            flags: InitFlags::ASYNC_READ | InitFlags::PASSTHROUGH | InitFlags::ALLOW_IDMAP,
            max_stack_depth: 2,
            ..SessionOptions::default()
        };
        let init = kernel(
            45,
            InitFlags::ASYNC_READ | InitFlags::PASSTHROUGH | InitFlags::MAX_PAGES | InitFlags::SUBMOUNTS,
        );
        let (agreed, out) = agree_within(&init, &options, KernelLimits::NONE, |pages| pages);
        let expected =
            InitFlags::ASYNC_READ | InitFlags::PASSTHROUGH | InitFlags::MAX_PAGES | InitFlags::INIT_EXT;
        assert_eq!(agreed.flags, expected);
        assert_eq!(agreed.missing, InitFlags::ALLOW_IDMAP);
        assert_eq!((out.flags, out.flags2), expected.words());
        assert_eq!((out.major, out.minor, out.max_stack_depth, out.max_readahead), (7, 45, 2, 131_072));
        assert_eq!(agreed.max_write, 1 << 20);
        let line = agreed.to_string();
        assert!(line.starts_with("FUSE 7.45: async_read, passthrough; max_write 1024 KiB"), "{line}");
        assert!(line.ends_with("not offered: allow_idmap"), "{line}");
        assert!(!line.contains('\n'));
    }

    #[test]
    fn limits_make_a_kernel_look_old() {
        let options =
            SessionOptions { flags: everything() - InitFlags::WRITEBACK_CACHE, ..SessionOptions::default() };
        for minor in abi::MINOR_MIN..=abi::MINOR {
            let (agreed, out) =
                agree_within(&kernel(45, everything()), &options, KernelLimits::minor(minor), |pages| pages);
            assert_eq!((agreed.minor, out.minor), (minor, minor));
            assert_eq!(agreed.has(InitFlags::PASSTHROUGH), minor >= 40);
            assert_eq!(agreed.has(InitFlags::SETXATTR_EXT), minor >= 33);
            assert_eq!(agreed.has(InitFlags::CREATE_SUPP_GROUP), minor >= 38);
            assert_eq!(agreed.has(InitFlags::SECURITY_CTX), minor >= 38);
            assert_eq!(out.flags2 != 0, minor >= 36, "{minor}");
            assert_eq!(out.max_stack_depth != 0, minor >= 40);
        }
    }

    #[test]
    fn a_newer_kernel_gets_our_minor_version() {
        let (agreed, out) = agree_within(
            &kernel(99, everything()),
            &SessionOptions::default(),
            KernelLimits::NONE,
            |pages| pages,
        );
        assert_eq!((agreed.minor, out.minor), (45, 45));
    }

    #[test]
    fn the_writeback_cache_excludes_passthrough() {
        let options = SessionOptions {
            flags: InitFlags::PASSTHROUGH | InitFlags::WRITEBACK_CACHE,
            ..SessionOptions::default()
        };
        let (agreed, out) =
            agree_within(&kernel(45, everything()), &options, KernelLimits::NONE, |pages| pages);
        assert!(!agreed.has(InitFlags::PASSTHROUGH));
        assert_eq!(out.max_stack_depth, 0);
    }

    #[test]
    fn max_pages_depends_on_version_and_limit() {
        let page = page_size();
        let options = SessionOptions { max_write: 4 << 20, ..SessionOptions::default() };
        let pages = |limits, offer, allowed: usize| {
            let (agreed, out) =
                agree_within(&kernel(45, offer), &options, limits, |wished| wished.min(allowed));
            assert_eq!(agreed.max_pages, out.max_pages);
            assert_eq!(agreed.max_write as usize, usize::from(out.max_pages) * page);
            usize::from(out.max_pages)
        };
        assert_eq!(pages(KernelLimits::NONE, everything(), 512), 512);
        assert_eq!(pages(KernelLimits::NONE, everything(), 65_535), (4 << 20) / page);
        assert_eq!(pages(KernelLimits::minor(41), everything(), 65_535), 256);
        assert_eq!(pages(KernelLimits::NONE, everything() - InitFlags::MAX_PAGES, 512), 32);
    }
}
