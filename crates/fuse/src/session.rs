//! INIT, and the life of a connection.

use std::fmt;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use canopy_sys::page_buf::PageBuf;
use rustix::io::Errno;
use rustix::param::page_size;
use zerocopy::{FromZeros, IntoBytes};

pub use running::Running;

use crate::abi;
use crate::backing::Backing;
use crate::flags::InitFlags;
use crate::notify::{Known, Notifier, Sender};
use crate::request::{Dialect, Header, Op, Request};
use crate::transport::uring::{Parameter, Rings};
use crate::transport::{Growth, NoUring, write_header};

const OUT_HEADER: usize = size_of::<abi::OutHeader>();
const MAX_PAGES_LIMIT: &str = "/proc/sys/fs/fuse/max_pages_limit";
/// `FUSE_DEFAULT_MAX_PAGES_PER_REQ`: what a request carries without `MAX_PAGES`.
const PAGES_DEFAULT: usize = 32;
/// The limit of kernels that have no `max_pages_limit` (before 6.13).
const PAGES_FIXED: usize = 256;
/// What fits into `init_out.max_pages`.
const PAGES_WIRE: usize = u16::MAX as usize;

/// What the server would like.
#[derive(Clone, Copy, Debug)]
pub struct Wish {
    /// Set in the answer where the kernel offers them. `INIT_EXT` and `MAX_PAGES` are added as needed.
    pub flags: InitFlags,
    /// Largest write (and read), in bytes. More than `max_pages_limit` allows raises that, if permitted.
    pub max_write: u32,
    /// In bytes; never more than the kernel offers. `None` takes what it offers.
    pub max_readahead: Option<u32>,
    /// Background requests at once; 0 leaves the kernel's default (12).
    pub max_background: u16,
    /// 0 leaves the kernel's default (three quarters of the above).
    pub congestion_threshold: u16,
    /// With passthrough: 1 lets another stacked filesystem sit on this one, 2 lets a backing file be on one.
    pub max_stack_depth: u32,
    /// Granularity of timestamps, in nanoseconds; 1 to 1,000,000,000.
    pub time_gran: u32,
    /// In seconds; a request that takes longer ends the WHOLE connection. 0 means none (7.43).
    pub request_timeout: u16,
    /// With `OVER_IO_URING`: workers for each processor's queue, at least two. Each holds a buffer for the largest
    /// request, paid for as it is used.
    pub queue_workers: u16,
    /// When more workers are started.
    pub growth: Growth,
}

impl Default for Wish {
    fn default() -> Wish {
        Wish {
            flags: InitFlags::BIG_WRITES | InitFlags::MAX_PAGES | InitFlags::PARALLEL_DIROPS,
            max_write: 1 << 20,
            max_readahead: None,
            max_background: 0,
            congestion_threshold: 0,
            max_stack_depth: 1,
            time_gran: 1,
            request_timeout: 0,
            queue_workers: 4,
            growth: Growth::default(),
        }
    }
}

/// Makes the kernel look older than it is, for tests.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The newest minor version to speak.
    pub minor: u32,
    /// Flags that may be offered.
    pub mask: InitFlags,
    /// Whether queues of io_uring are taken once they were agreed upon.
    pub takes_queues: bool,
}

impl Limits {
    /// No limits.
    pub const NONE: Limits =
        Limits { minor: abi::MINOR, mask: InitFlags::from_bits_retain(u64::MAX), takes_queues: true };

    /// What a kernel speaking 7.`minor` could do.
    #[must_use]
    pub fn minor(minor: u32) -> Limits {
        Limits { minor, mask: InitFlags::known_at(minor), ..Limits::NONE }
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits::NONE
    }
}

/// What kernel and server have agreed upon. Plain data: a process that takes over a connection needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// The smaller of the two minor versions.
    pub minor: u32,
    /// Wanted and offered.
    pub flags: InitFlags,
    /// Offered, after [`Limits`].
    pub offered: InitFlags,
    /// Wanted and not offered.
    pub missing: InitFlags,
    /// Largest write, in bytes.
    pub max_write: u32,
    /// Most pages of data in one request.
    pub max_pages: u16,
    /// In bytes.
    pub max_readahead: u32,
    /// Background requests at once.
    pub max_background: u16,
    /// Background requests at once from which the kernel calls the connection congested.
    pub congestion_threshold: u16,
    /// 0 without passthrough.
    pub max_stack_depth: u32,
    /// Granularity of timestamps, in nanoseconds.
    pub time_gran: u32,
    /// In seconds; 0 means none.
    pub request_timeout: u16,
}

impl Agreed {
    /// How requests look from now on.
    #[must_use]
    pub fn dialect(&self) -> Dialect {
        Dialect::new(self.minor, self.flags)
    }

    /// Whether a flag is in force.
    #[must_use]
    pub fn has(&self, flag: InitFlags) -> bool {
        self.flags.contains(flag)
    }

    /// Largest payload of an answer, in bytes.
    #[must_use]
    pub fn max_payload(&self) -> usize {
        usize::from(self.max_pages) * page_size()
    }
}

/// One line for the log.
impl fmt::Display for Agreed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // These two carry the others and say nothing by themselves.
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

/// Why there is no session, or why it ended badly.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The kernel's version is too old to speak with (`EPROTO`).
    #[error("the kernel speaks FUSE {major}.{minor}, at least 7.31 is needed")]
    Version {
        /// What the kernel speaks.
        major: u32,
        /// What the kernel speaks.
        minor: u32,
    },
    /// Unmounted or aborted before INIT was answered.
    #[error("unmounted before the session began")]
    Disconnected,
    /// The kernel did not take the answer to INIT.
    #[error("the kernel refused the answer to INIT: {0}")]
    Refused(Errno),
    /// The device cannot be read.
    #[error("reading from the FUSE device failed: {0}")]
    Read(Errno),
    /// A thread could not be started.
    #[error("cannot start the session's threads: {0}")]
    Start(#[source] std::io::Error),
    /// A thread ended with a panic.
    #[error("a session thread died")]
    Thread,
}

impl SessionError {
    /// The errno to report.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            SessionError::Version { .. } => Errno::PROTO.raw_os_error(),
            SessionError::Disconnected => Errno::NOTCONN.raw_os_error(),
            SessionError::Refused(errno) | SessionError::Read(errno) => errno.raw_os_error(),
            SessionError::Start(error) => error.raw_os_error().unwrap_or(Errno::NOMEM.raw_os_error()),
            SessionError::Thread => Errno::IO.raw_os_error(),
        }
    }
}

/// A connection that has been agreed upon, and is not served yet. Requests wait in the kernel until it is.
pub struct Session {
    device: Arc<OwnedFd>,
    agreed: Agreed,
    sender: Sender,
    rings: Result<Rings, NoUring>,
    growth: Growth,
}

impl Session {
    /// Waits for the kernel's INIT on a device that has been mounted, and answers it.
    ///
    /// # Errors
    /// See [`SessionError`].
    pub fn negotiate(device: OwnedFd, wish: &Wish, limits: Limits) -> Result<Session, SessionError> {
        let mut input = PageBuf::new(4 * abi::MIN_READ_BUFFER + (1 << 16)).map_err(SessionError::Start)?;
        loop {
            let len = match rustix::io::read(&device, &mut input[..]) {
                Ok(0) | Err(Errno::NODEV | Errno::CONNABORTED) => return Err(SessionError::Disconnected),
                Ok(len) => len,
                Err(Errno::INTR | Errno::NOENT) => continue,
                Err(Errno::AGAIN) => {
                    let mut fds = [rustix::event::PollFd::from_borrowed_fd(
                        device.as_fd(),
                        rustix::event::PollFlags::IN,
                    )];
                    let _ = rustix::event::poll(&mut fds, None);
                    continue;
                }
                Err(errno) => return Err(SessionError::Read(errno)),
            };
            let mut rings = Err(NoUring::NotWanted);
            let (reply, verdict) = answer(&input[..len], wish, limits, |agreed| {
                rings = prepare(agreed, wish);
                if let (Ok(rings), false) = (&mut rings, limits.takes_queues) {
                    rings.spoil();
                }
                rings.is_ok()
            });
            if let Some(reply) = reply {
                match rustix::io::write(&device, &reply) {
                    Ok(_) => {}
                    Err(Errno::NODEV | Errno::NOENT | Errno::CONNABORTED) => {
                        return Err(SessionError::Disconnected);
                    }
                    Err(errno) => return Err(SessionError::Refused(errno)),
                }
            }
            match verdict {
                Verdict::Again => {}
                Verdict::Agreed(agreed) => return Session::new(device, agreed, rings, wish.growth),
                Verdict::Fail(error) => return Err(error),
            }
        }
    }

    /// Takes over a connection that another process has negotiated. Requests it had received come again after
    /// [`Notifier::resend`].
    ///
    /// # Errors
    /// [`SessionError::Start`].
    pub fn adopt(device: OwnedFd, agreed: Agreed, wish: &Wish) -> Result<Session, SessionError> {
        let rings = prepare(&agreed, wish);
        Session::new(device, agreed, rings, wish.growth)
    }

    fn new(
        device: OwnedFd,
        agreed: Agreed,
        rings: Result<Rings, NoUring>,
        growth: Growth,
    ) -> Result<Session, SessionError> {
        let device = Arc::new(device);
        let known = Known::new(agreed.minor, agreed.offered);
        let sender = Sender::start(Arc::clone(&device), known).map_err(SessionError::Start)?;
        Ok(Session { device, agreed, sender, rings, growth })
    }

    /// What has been agreed upon.
    #[must_use]
    pub fn agreed(&self) -> &Agreed {
        &self.agreed
    }

    /// For telling the kernel what to forget.
    #[must_use]
    pub fn notifier(&self) -> Notifier {
        self.sender.notifier()
    }

    /// For registering passthrough files.
    #[must_use]
    pub fn backing(&self) -> Backing {
        Backing::new(Arc::clone(&self.device))
    }

    /// The session's descriptor, to be handed to a process that [adopts](Session::adopt) it.
    #[must_use]
    pub fn device(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.device)
    }
}

/// What to do after an INIT has been answered.
#[derive(Debug)]
enum Verdict {
    /// The kernel will send another.
    Again,
    Agreed(Agreed),
    Fail(SessionError),
}

/// Makes ready for io_uring, if both sides want it.
fn prepare(agreed: &Agreed, wish: &Wish) -> Result<Rings, NoUring> {
    if agreed.has(InitFlags::OVER_IO_URING) {
        return Rings::prepare(agreed, wish.queue_workers);
    }
    if !wish.flags.contains(InitFlags::OVER_IO_URING) {
        return Err(NoUring::NotWanted);
    }
    // The kernel does not offer what is turned off.
    Err(if Parameter::read() == Parameter::Off { NoUring::TurnedOff } else { NoUring::NotOffered })
}

/// The bytes that answer the first request, and what follows from it.
///
/// `prepare` is asked before io_uring is agreed upon, for after that nothing may go wrong with it.
fn answer(
    request: &[u8],
    wish: &Wish,
    limits: Limits,
    prepare: impl FnOnce(&Agreed) -> bool,
) -> (Option<Vec<u8>>, Verdict) {
    let Ok((header, _)) = Header::decode(request) else { return (None, Verdict::Again) };
    let dialect = Dialect { minor: abi::MINOR, setxattr_ext: false };
    let init = match Request::decode(request, dialect).map(|request| request.op) {
        Ok(Op::Init(init)) => init,
        _ if header.wants_answer() => return (Some(error_reply(header.unique, Errno::IO)), Verdict::Again),
        _ => return (None, Verdict::Again),
    };
    let (major, minor) = (init.major, init.minor);
    if major > abi::MAJOR {
        // The kernel then starts over with our version.
        let out = abi::InitOut { major: abi::MAJOR, minor: abi::MINOR, ..abi::InitOut::new_zeroed() };
        return (Some(init_reply(header.unique, &out)), Verdict::Again);
    }
    if major < abi::MAJOR || minor < abi::MINOR_MIN {
        let reply = error_reply(header.unique, Errno::PROTO);
        return (Some(reply), Verdict::Fail(SessionError::Version { major, minor }));
    }
    let (mut agreed, mut out) = agree(&init, wish, limits, pages_allowed);
    if !prepare(&agreed) && agreed.has(InitFlags::OVER_IO_URING) {
        let flags = wish.flags - InitFlags::OVER_IO_URING;
        (agreed, out) = agree(&init, &Wish { flags, ..*wish }, limits, pages_allowed);
    }
    (Some(init_reply(header.unique, &out)), Verdict::Agreed(agreed))
}

/// Decides. `allowed` turns a number of pages into what the system permits.
fn agree(
    init: &abi::InitIn,
    wish: &Wish,
    limits: Limits,
    allowed: impl FnOnce(usize) -> usize,
) -> (Agreed, abi::InitOut) {
    let minor = init.minor.min(limits.minor).clamp(abi::MINOR_MIN, abi::MINOR);
    let offered = offered(init, limits);
    let wanted = wish.flags | InitFlags::MAX_PAGES;
    let mut flags = wanted & offered;
    if flags.contains(InitFlags::PASSTHROUGH) && flags.contains(InitFlags::WRITEBACK_CACHE) {
        // The kernel takes neither order well: it would leave passthrough out without a word.
        flags -= InitFlags::PASSTHROUGH;
    }
    if minor < 38 {
        // Until 7.38 security contexts came without a length in the header, and could not be told from a name.
        flags -= InitFlags::SECURITY_CTX;
    }
    if wish.request_timeout == 0 {
        flags -= InitFlags::REQUEST_TIMEOUT;
    }
    if flags.words().1 != 0 {
        flags |= InitFlags::INIT_EXT;
    }

    let page = page_size();
    let wished = (wish.max_write as usize).div_ceil(page).clamp(1, PAGES_WIRE);
    let pages = if !flags.contains(InitFlags::MAX_PAGES) {
        PAGES_DEFAULT
    } else if minor < 42 {
        wished.min(PAGES_FIXED)
    } else {
        allowed(wished).clamp(1, PAGES_WIRE)
    };
    let max_pages = pages as u16;
    // The kernel never goes below 4096.
    let max_write = (wish.max_write as usize).min(pages * page).max(4096) as u32;
    let passthrough = flags.contains(InitFlags::PASSTHROUGH);

    let agreed = Agreed {
        minor,
        flags,
        offered,
        missing: wish.flags - offered,
        max_write,
        max_pages,
        max_readahead: wish.max_readahead.unwrap_or(u32::MAX).min(init.max_readahead),
        max_background: wish.max_background,
        congestion_threshold: wish.congestion_threshold,
        max_stack_depth: if passthrough { wish.max_stack_depth } else { 0 },
        time_gran: wish.time_gran,
        request_timeout: if flags.contains(InitFlags::REQUEST_TIMEOUT) { wish.request_timeout } else { 0 },
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

/// What the kernel offers, as far as the limits let it be seen.
fn offered(init: &abi::InitIn, limits: Limits) -> InitFlags {
    let words = InitFlags::from_words(init.flags, init.flags2);
    let said = if words.contains(InitFlags::INIT_EXT) { words } else { InitFlags::from_words(init.flags, 0) };
    let seen = said & limits.mask;
    // Without the extension there is no second word to answer in.
    if seen.contains(InitFlags::INIT_EXT) { seen } else { InitFlags::from_words(seen.words().0, 0) }
}

/// How many pages a request may have: the system's limit, raised first if it is too low and may be raised.
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

fn init_reply(unique: u64, out: &abi::InitOut) -> Vec<u8> {
    let mut reply = vec![0; OUT_HEADER];
    write_header(&mut reply, size_of::<abi::InitOut>(), 0, unique);
    reply.extend_from_slice(out.as_bytes());
    reply
}

fn error_reply(unique: u64, errno: Errno) -> Vec<u8> {
    let mut reply = vec![0; OUT_HEADER];
    write_header(&mut reply, 0, -errno.raw_os_error(), unique);
    reply
}

mod running;
#[cfg(test)]
mod tests;
