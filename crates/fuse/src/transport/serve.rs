//! Serving one request: decode it, call the handler, build the reply.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use zerocopy::{FromBytes, IntoBytes};

use super::stalled::{Note, Stalled, Verdict};
use super::trace::Trace;
use super::wake_queue::is_wake_call;
use crate::abi;
use crate::opcode;
use crate::reply::{Content, Granted, Replied, Reply};
use crate::request::{Header, Malformed, NodeId, Op, Request};
use crate::wait::{Attempt, Signal};

const EIO: i32 = 5;
const EINVAL: i32 = 22;
const ENOSYS: i32 = 38;
const ENODATA: i32 = 61;

/// Serves requests, from several threads at once.
pub trait Handler: Send + Sync + 'static {
    /// Answers one request. [`Op::Init`], [`Op::CuseInit`], [`Op::NotifyReply`] and [`Op::Unknown`] do not occur.
    ///
    /// After a panic the reply is `EIO`.
    fn handle(&self, request: Request<'_>, reply: Reply<'_>) -> Replied;

    /// Called for each reference in a reply that the kernel did not accept, because the request was aborted or the
    /// filesystem was unmounted. The handler must release it, because the kernel will send neither FORGET nor RELEASE.
    fn undelivered(&self, _what: Undelivered) {}

    /// Says what is to be known of a request before it is handled. Called before each request, and once more before one that
    /// has waited, so it must cost next to nothing.
    fn expect(&self, _request: &Request<'_>) -> Expected {
        Expected::default()
    }

    /// Decides about a request whose worker has been in it for some ticks. Called on the watchdog's thread, which looks
    /// after all workers, so it must not wait for a branch. Called again and again as the verdict says; once more, as
    /// [`answered`](Stalled::answered), before the answer in the worker's place is sent, and then again and again until the
    /// worker comes out of it. The worker's own answer is then discarded, and an [`Verdict::Answer`] has no effect.
    fn stalled(&self, _request: &Stalled) -> Verdict {
        Verdict::Wait(Duration::MAX)
    }

    /// Called on the worker's thread when it has come out of a request that [`Handler::stalled`] was asked about, before its
    /// answer is sent or discarded. `late`: the request was answered in the worker's place, [`Handler::stalled`] has returned
    /// from the call that said so, and what the worker's answer refers to has been reported to [`Handler::undelivered`].
    fn resumed(&self, _request: &Request<'_>, _late: bool) {}
}

impl<H: Handler + ?Sized> Handler for std::sync::Arc<H> {
    fn handle(&self, request: Request<'_>, reply: Reply<'_>) -> Replied {
        (**self).handle(request, reply)
    }

    fn undelivered(&self, what: Undelivered) {
        (**self).undelivered(what);
    }

    fn expect(&self, request: &Request<'_>) -> Expected {
        (**self).expect(request)
    }

    fn stalled(&self, request: &Stalled) -> Verdict {
        (**self).stalled(request)
    }

    fn resumed(&self, request: &Request<'_>, late: bool) {
        (**self).resumed(request, late);
    }
}

/// What the handler says of a request before it is handled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Expected {
    /// What [`Handler::stalled`] needs to know of it.
    pub note: Note,
    /// The line that it is to wait in without a worker, because it would only wait for what many requests are stuck in
    /// already ([`Lines`](super::Lines)).
    pub line: Option<u64>,
}

/// A reference in a reply that the kernel did not accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undelivered {
    /// One lookup of a node.
    Entry {
        /// The node.
        node: NodeId,
    },
    /// A handle from OPEN or, with `dir`, from OPENDIR.
    Opened {
        /// The node that was opened.
        node: NodeId,
        /// The handle.
        handle: u64,
        /// Whether it is a directory.
        dir: bool,
    },
    /// One lookup of a node, and a handle on it, from CREATE or TMPFILE.
    Created {
        /// The node that was created.
        node: NodeId,
        /// The handle.
        handle: u64,
    },
}

/// The buffers for a reply. Header and payload are separate, as io_uring requires. For `/dev/fuse` they are adjacent.
#[derive(Debug)]
pub struct Out<'b> {
    /// `fuse_out_header`.
    pub header: &'b mut [u8; size_of::<abi::OutHeader>()],
    /// Page-aligned in both transports.
    pub payload: &'b mut [u8],
}

impl<'b> Out<'b> {
    /// Splits a buffer that starts with the header. Returns `None` if it is too short.
    #[must_use]
    pub fn contiguous(buffer: &'b mut [u8]) -> Option<Out<'b>> {
        let (header, payload) = buffer.split_first_chunk_mut()?;
        Some(Out { header, payload })
    }
}

/// What to do after a request has been served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Send nothing.
    NoReply,
    /// Send nothing yet: the request waits ([`Reply::later`]), unless this signal ends that. The buffer for the header is as
    /// before.
    Later(Signal),
    /// Send the reply in the buffer.
    Answer {
        /// The length of the payload after the header, in bytes.
        payload: usize,
        /// The errno in the header, positive, or 0.
        errno: i32,
        /// The references in the reply, for [`report_undelivered`] if the kernel does not accept it.
        grants: Grants,
    },
}

impl Outcome {
    /// Returns the positive errno of an answer, or 0.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Outcome::NoReply | Outcome::Later(_) => 0,
            Outcome::Answer { errno, .. } => *errno,
        }
    }
}

/// The references in a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grants {
    pub(super) granted: Granted,
    pub(super) node: NodeId,
    pub(super) dir: bool,
}

/// Serves one request: calls `handler` once, unless the request is malformed, and builds the reply in `out`.
///
/// `out` should have space for the negotiated payload.
pub fn serve<H: Handler + ?Sized>(
    header: Header,
    request: Result<Request<'_>, Malformed>,
    out: Out<'_>,
    handler: &H,
) -> Outcome {
    serve_in(header, request, out, handler, None)
}

/// Serves one request, as the attempt of a worker if there is one.
pub(super) fn serve_in<H: Handler + ?Sized>(
    header: Header,
    request: Result<Request<'_>, Malformed>,
    out: Out<'_>,
    handler: &H,
    attempt: Option<&Attempt>,
) -> Outcome {
    let trace = Trace::begin();
    let (answer, granted, dir) = match request {
        Ok(request) => {
            let dir = matches!(request.op, Op::Opendir { .. });
            let (answer, granted) = call(&request, &mut *out.payload, handler, attempt);
            (answer, granted, dir)
        }
        Err(error) => {
            let opcode = opcode::name_of(header.opcode);
            tracing::error!(%error, opcode, number = header.opcode, unique = header.unique, "malformed request");
            (Content::Error(EINVAL), Granted::Nothing, false)
        }
    };
    let answer = match (answer, header.wants_answer()) {
        (Content::Nothing, true) => {
            let opcode = opcode::name_of(header.opcode);
            tracing::error!(opcode, unique = header.unique, "the handler did not answer a request");
            Content::Error(EIO)
        }
        // EAGAIN and ENOSYS have a meaning in a reply to INTERRUPT, but they are not necessary.
        (_, false) => Content::Nothing,
        (answer, true) => answer,
    };
    if let Some(trace) = trace {
        trace.end(&header, request.as_ref().ok().map(|request| &request.op), answer);
    }
    let (payload, error) = match answer {
        Content::Nothing => return Outcome::NoReply,
        Content::Later(signal) => return Outcome::Later(signal),
        Content::Error(errno) => (0, -errno),
        Content::Payload(len) => (len, 0),
    };
    write_header(out.header, payload, error, header.unique);
    let granted = if error == 0 { granted } else { Granted::Nothing };
    Outcome::Answer { payload, errno: -error, grants: Grants { granted, node: header.node, dir } }
}

/// Answers a request with an errno after all that was to wait.
pub(super) fn refuse(header: &Header, out: &mut [u8], errno: i32) -> Outcome {
    write_header(out, 0, -errno, header.unique);
    let grants = Grants { granted: Granted::Nothing, node: header.node, dir: false };
    Outcome::Answer { payload: 0, errno, grants }
}

/// Calls the handler once, unless this crate answers the request itself.
fn call<H: Handler + ?Sized>(
    request: &Request<'_>,
    payload: &mut [u8],
    handler: &H,
    attempt: Option<&Attempt>,
) -> (Content, Granted) {
    match request.op {
        Op::Unknown(number) => {
            tracing::debug!(number, "unknown opcode");
            return (Content::Error(ENOSYS), Granted::Nothing);
        }
        Op::CuseInit(_) => return (Content::Error(ENOSYS), Granted::Nothing),
        Op::Init(_) => {
            tracing::error!("the kernel sent a second INIT");
            return (Content::Error(EIO), Granted::Nothing);
        }
        // It needs no action: the watchdog asks for it only to make the kernel send a request.
        Op::NotifyReply { .. } => return (Content::Nothing, Granted::Nothing),
        _ if is_wake_call(request) => return (Content::Error(ENODATA), Granted::Nothing),
        _ => {}
    }
    let reply = Reply::new(payload, request, rustix::param::page_size(), attempt);
    match catch_unwind(AssertUnwindSafe(|| handler.handle(*request, reply))) {
        // A `Replied` of another request would send the wrong length of this buffer.
        Ok(replied) if replied.unique == request.header.unique => (replied.answer, replied.granted),
        Ok(replied) => {
            tracing::error!(
                unique = request.header.unique,
                other = replied.unique,
                "the handler answered another request"
            );
            (Content::Error(EIO), Granted::Nothing)
        }
        Err(panic) => {
            let opcode = opcode::name_of(request.header.opcode);
            tracing::error!(
                opcode,
                unique = request.header.unique,
                panic = panic_text(&*panic),
                "the handler panicked"
            );
            (Content::Error(EIO), Granted::Nothing)
        }
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("?")
}

/// Writes the header of a reply. `error` is 0 or a negative errno.
pub(crate) fn write_header(header: &mut [u8], payload: usize, error: i32, unique: u64) {
    let len = u32::try_from(size_of::<abi::OutHeader>() + payload).unwrap_or(u32::MAX);
    header.copy_from_slice(abi::OutHeader { len, error, unique }.as_bytes());
}

/// Reports to `handler` each reference in a reply that the kernel did not accept. `payload` is that of the reply.
pub fn report_undelivered<H: Handler + ?Sized>(handler: &H, grants: Grants, payload: &[u8]) {
    let tell = |what| {
        if catch_unwind(AssertUnwindSafe(|| handler.undelivered(what))).is_err() {
            tracing::error!(?what, "the handler panicked over an undelivered reply");
        }
    };
    match grants.granted {
        Granted::Nothing => {}
        Granted::Node(node) => tell(Undelivered::Entry { node }),
        Granted::Handle(handle) => tell(Undelivered::Opened { node: grants.node, handle, dir: grants.dir }),
        Granted::NodeAndHandle(node, handle) => tell(Undelivered::Created { node, handle }),
        Granted::Entries => {
            let mut rest = payload;
            while let Ok((record, names)) = abi::DirentPlus::read_from_prefix(rest) {
                let len = record.dirent.namelen as usize;
                let Some(name) = names.get(..len) else { return };
                if record.entry.nodeid != 0 && !matches!(name, b"." | b"..") {
                    tell(Undelivered::Entry { node: NodeId(record.entry.nodeid) });
                }
                let total = abi::record_align(size_of::<abi::DirentPlus>() + len);
                rest = rest.get(total..).unwrap_or(&[]);
            }
        }
    }
}
