//! INIT, the first request of a connection, and its reply.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use canopy_sys::page_buf::PageBuf;
use rustix::io::Errno;
use zerocopy::{FromZeros, IntoBytes};

use super::error::SessionError;
use crate::abi;
use crate::backing::Backing;
use crate::flags::InitFlags;
use crate::negotiate::{Agreed, KernelLimits, SessionOptions, agree};
use crate::notify::{Capabilities, Notifier, Sender};
use crate::request::{Dialect, Header, Op, Request};
use crate::transport::uring::{Parameter, Rings};
use crate::transport::{
    FindLandmarks, Landmarks, Lines, LowWorkers, Pause, ServedRequests, ThreadStart, UringUnavailable,
    WorkerGrowth, WorkerPriority, write_header,
};

const OUT_HEADER: usize = size_of::<abi::OutHeader>();

/// A connection that is negotiated but not served yet. Requests wait in the kernel until it is.
pub struct Session {
    pub(super) device: Arc<OwnedFd>,
    pub(super) agreed: Agreed,
    pub(super) sender: Sender,
    pub(super) rings: Result<Rings, UringUnavailable>,
    pub(super) growth: WorkerGrowth,
    pub(super) priority: WorkerPriority,
    pub(super) low: LowWorkers,
    pub(super) served: ServedRequests,
    pub(super) lines: Lines,
    pub(super) landmarks: Option<Box<FindLandmarks>>,
    pub(super) resident: bool,
    pub(super) pause: Arc<Pause>,
    /// How many processes have served it before, if any have.
    pub(super) adopted: Option<u64>,
    pub(super) thread_start: Option<Box<ThreadStart>>,
}

impl Session {
    /// Waits for the kernel's INIT on a mounted device, and answers it.
    ///
    /// # Errors
    /// See [`SessionError`].
    pub fn negotiate(
        device: OwnedFd,
        options: &SessionOptions,
        limits: KernelLimits,
    ) -> Result<Session, SessionError> {
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
            let mut rings = Err(UringUnavailable::NotWanted);
            let (reply, verdict) = answer(&input[..len], options, limits, |agreed| {
                rings = prepare(agreed, options);
                if let (Ok(rings), false) = (&mut rings, limits.accepts_queues) {
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
                Verdict::Agreed(agreed) => return Session::new(device, agreed, rings, options),
                Verdict::Fail(error) => return Err(error),
            }
        }
    }

    /// Takes over a connection that another process has negotiated. The kernel resends the requests that the other process
    /// had received after [`Notifier::resend`]; over io_uring (`over_uring`), the other process has none.
    /// `before`: how many have served it, this one included.
    ///
    /// # Errors
    /// [`SessionError::Start`].
    pub fn adopt(
        device: OwnedFd,
        agreed: Agreed,
        options: &SessionOptions,
        (before, over_uring): (u64, bool),
    ) -> Result<Session, SessionError> {
        let rings = match prepare(&agreed, options) {
            Err(why) if over_uring => {
                return Err(SessionError::Start(std::io::Error::other(why.to_string())));
            }
            Ok(_) if !over_uring => Err(UringUnavailable::NotOffered),
            prepared => prepared,
        };
        let session = Session::new(device, agreed, rings, options)?;
        Ok(Session { adopted: Some(before), ..session })
    }

    fn new(
        device: OwnedFd,
        agreed: Agreed,
        rings: Result<Rings, UringUnavailable>,
        options: &SessionOptions,
    ) -> Result<Session, SessionError> {
        let device = Arc::new(device);
        let capabilities = Capabilities::new(agreed.minor, agreed.offered);
        let sender = Sender::start(Arc::clone(&device), capabilities).map_err(SessionError::Start)?;
        let SessionOptions { growth, worker_priority: priority, resident, .. } = *options;
        let (low, served, pause) = (LowWorkers::default(), ServedRequests::default(), Arc::default());
        let (lines, landmarks, thread_start) = (Lines::default(), None, None);
        Ok(Session {
            device,
            agreed,
            sender,
            rings,
            growth,
            priority,
            low,
            served,
            lines,
            landmarks,
            resident,
            pause,
            adopted: None,
            thread_start,
        })
    }

    /// Sets what each thread of a worker calls before its first request, with the thread's number from 0 on. For affinity and
    /// similar settings.
    pub fn on_thread_start(&mut self, call: impl Fn(usize) + Send + Sync + 'static) {
        self.thread_start = Some(Box::new(call));
    }

    /// Sets what finds what the transport may ask the kernel about. It is called while requests wait for a disk, so it must not
    /// access a disk itself.
    pub fn set_landmarks(&mut self, find: impl Fn() -> Landmarks + Send + Sync + 'static) {
        self.landmarks = Some(Box::new(find));
    }

    /// Returns the result of the negotiation.
    #[must_use]
    pub fn agreed(&self) -> &Agreed {
        &self.agreed
    }

    /// Returns a notifier, which invalidates what the kernel caches.
    #[must_use]
    pub fn notifier(&self) -> Notifier {
        self.sender.notifier()
    }

    /// Returns the registry of backing files for passthrough.
    #[must_use]
    pub fn backing(&self) -> Backing {
        Backing::new(Arc::clone(&self.device))
    }

    /// Returns how many workers run with low priority, at any time.
    #[must_use]
    pub fn low_workers(&self) -> LowWorkers {
        self.low.clone()
    }

    /// Returns what keeps requests from beginning for a while.
    #[must_use]
    pub fn pause(&self) -> Arc<Pause> {
        Arc::clone(&self.pause)
    }

    /// Returns what its workers count, at any time.
    #[must_use]
    pub fn served_requests(&self) -> ServedRequests {
        self.served.clone()
    }

    /// Returns the lines in which its requests wait without a worker.
    #[must_use]
    pub fn lines(&self) -> Lines {
        self.lines.clone()
    }

    /// Returns the session's descriptor, for a process that [adopts](Session::adopt) it.
    #[must_use]
    pub fn device(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.device)
    }
}

/// What to do after the first request has been answered.
#[derive(Debug)]
pub(super) enum Verdict {
    /// The kernel will send another INIT.
    Again,
    Agreed(Agreed),
    Fail(SessionError),
}

/// Prepares io_uring, if both sides support it.
fn prepare(agreed: &Agreed, options: &SessionOptions) -> Result<Rings, UringUnavailable> {
    if agreed.has(InitFlags::OVER_IO_URING) {
        return Rings::prepare(agreed.max_payload(), agreed.max_write as usize, options.queue_workers);
    }
    if !options.flags.contains(InitFlags::OVER_IO_URING) {
        return Err(UringUnavailable::NotWanted);
    }
    // The kernel does not offer io_uring while the parameter is off.
    Err(if Parameter::read() == Parameter::Off {
        UringUnavailable::TurnedOff
    } else {
        UringUnavailable::NotOffered
    })
}

/// Returns the reply to the first request, and what to do next.
///
/// `prepare` is called before the reply that enables io_uring, because from then on its setup must not fail.
pub(super) fn answer(
    request: &[u8],
    options: &SessionOptions,
    limits: KernelLimits,
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
        // The kernel then sends an INIT with our version.
        let out = abi::InitOut { major: abi::MAJOR, minor: abi::MINOR, ..abi::InitOut::new_zeroed() };
        return (Some(init_reply(header.unique, &out)), Verdict::Again);
    }
    if major < abi::MAJOR || minor < abi::MINOR_MIN {
        let reply = error_reply(header.unique, Errno::PROTO);
        return (Some(reply), Verdict::Fail(SessionError::Version { major, minor }));
    }
    let (mut agreed, mut out) = agree(&init, options, limits);
    if !prepare(&agreed) && agreed.has(InitFlags::OVER_IO_URING) {
        let flags = options.flags - InitFlags::OVER_IO_URING;
        (agreed, out) = agree(&init, &SessionOptions { flags, ..*options }, limits);
    }
    (Some(init_reply(header.unique, &out)), Verdict::Agreed(agreed))
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
