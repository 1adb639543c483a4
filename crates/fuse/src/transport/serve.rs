//! Serving one request: decoding it, calling the handler, and building the answer.

use std::panic::{AssertUnwindSafe, catch_unwind};

use zerocopy::{FromBytes, IntoBytes};

use super::trace::Trace;
use crate::abi;
use crate::opcode;
use crate::reply::{Answer, Granted, Replied, Reply};
use crate::request::{Dialect, Header, Malformed, NodeId, Op, Request};

const EIO: i32 = 5;
const EINVAL: i32 = 22;
const ENOSYS: i32 = 38;

/// What serves the requests. Called from several threads at once.
pub trait Handler: Send + Sync + 'static {
    /// Answers one request. [`Op::Init`], [`Op::CuseInit`], [`Op::NotifyReply`] and [`Op::Unknown`] are dealt with before.
    ///
    /// A panic is caught and answered with `EIO`.
    fn handle(&self, request: Request<'_>, reply: Reply<'_>) -> Replied;

    /// Called on each thread before its first request, with its number from 0: for credentials, affinity and the like.
    fn thread_start(&self, _worker: usize) {}

    /// Some regular files that the kernel knows, most likely: those it was given last, or has open. Asked while requests wait
    /// for a disk, so it must not do the same.
    fn known_files(&self) -> Vec<NodeId> {
        Vec::new()
    }

    /// The kernel did not get an answer that would have given it references (the request was aborted, or the mount
    /// has gone): the server has to take them back, since neither FORGET nor RELEASE will come.
    fn undelivered(&self, _what: Undelivered) {}
}

impl<H: Handler + ?Sized> Handler for std::sync::Arc<H> {
    fn handle(&self, request: Request<'_>, reply: Reply<'_>) -> Replied {
        (**self).handle(request, reply)
    }

    fn thread_start(&self, worker: usize) {
        (**self).thread_start(worker);
    }

    fn known_files(&self) -> Vec<NodeId> {
        (**self).known_files()
    }

    fn undelivered(&self, what: Undelivered) {
        (**self).undelivered(what);
    }
}

/// References of an answer that did not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undelivered {
    /// One lookup of a node.
    Entry {
        /// The node.
        node: NodeId,
    },
    /// A handle from OPEN or, with `dir`, from OPENDIR.
    Opened {
        /// What was opened.
        node: NodeId,
        /// As the server numbered it.
        handle: u64,
        /// Whether it is a directory.
        dir: bool,
    },
    /// One lookup of a node, and a handle on it, from CREATE or TMPFILE.
    Created {
        /// What was created.
        node: NodeId,
        /// As the server numbered it.
        handle: u64,
    },
}

/// Where an answer is built: the header apart from the payload, since io_uring keeps them apart. On `/dev/fuse` they
/// lie next to each other.
#[derive(Debug)]
pub struct Out<'b> {
    /// `fuse_out_header`.
    pub header: &'b mut [u8; size_of::<abi::OutHeader>()],
    /// Starts on a page boundary in both transports.
    pub payload: &'b mut [u8],
}

impl<'b> Out<'b> {
    /// Takes apart a buffer that starts with the header.
    #[must_use]
    pub fn contiguous(buffer: &'b mut [u8]) -> Option<Out<'b>> {
        let (header, payload) = buffer.split_first_chunk_mut()?;
        Some(Out { header, payload })
    }
}

/// What to do after a request has been served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing is sent.
    NoReply,
    /// The answer is in the buffer: this many bytes of payload after the header.
    Answer {
        /// In bytes.
        payload: usize,
        /// What [`report_undelivered`] needs to know if the answer does not arrive.
        grants: Grants,
    },
}

/// References in an answer on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grants {
    pub(super) granted: Granted,
    pub(super) node: NodeId,
    pub(super) dir: bool,
}

/// Serves one request that lies in one piece: decodes it, calls `handler` once, and builds the answer in `out`, which
/// starts with room for the header.
///
/// `out` must have room for a header at least; the payload should have what was agreed in INIT.
pub fn serve_one<H: Handler + ?Sized>(
    input: &[u8],
    out: &mut [u8],
    handler: &H,
    dialect: Dialect,
) -> Outcome {
    let Some(out) = Out::contiguous(out) else { return Outcome::NoReply };
    match Header::decode(input) {
        Ok((header, _)) => serve(header, Request::decode(input, dialect), out, handler),
        Err(error) => {
            tracing::error!(%error, bytes = input.len(), "unreadable request");
            Outcome::NoReply
        }
    }
}

/// The same for a request that has been decoded, or not, whichever way.
pub fn serve<H: Handler + ?Sized>(
    header: Header,
    request: Result<Request<'_>, Malformed>,
    out: Out<'_>,
    handler: &H,
) -> Outcome {
    let trace = Trace::begin();
    let (answer, granted, dir) = match request {
        Ok(request) => {
            let dir = matches!(request.op, Op::Opendir { .. });
            let (answer, granted) = call(&request, &mut *out.payload, handler);
            (answer, granted, dir)
        }
        Err(error) => {
            let opcode = opcode::name_of(header.opcode);
            tracing::error!(%error, opcode, number = header.opcode, unique = header.unique, "malformed request");
            (Answer::Error(EINVAL), Granted::Nothing, false)
        }
    };
    let answer = match (answer, header.wants_answer()) {
        (Answer::Nothing, true) => {
            let opcode = opcode::name_of(header.opcode);
            tracing::error!(opcode, unique = header.unique, "request left without an answer");
            Answer::Error(EIO)
        }
        // EAGAIN and ENOSYS mean something as an answer to INTERRUPT, but nobody waits for them.
        (_, false) => Answer::Nothing,
        (answer, true) => answer,
    };
    if let Some(trace) = trace {
        trace.end(&header, request.as_ref().ok().map(|request| &request.op), answer);
    }
    let (payload, error) = match answer {
        Answer::Nothing => return Outcome::NoReply,
        Answer::Error(errno) => (0, -errno),
        Answer::Payload(len) => (len, 0),
    };
    write_header(out.header, payload, error, header.unique);
    let granted = if error == 0 { granted } else { Granted::Nothing };
    Outcome::Answer { payload, grants: Grants { granted, node: header.node, dir } }
}

/// Calls the handler once, unless the request is none of its business.
pub(super) fn call<H: Handler + ?Sized>(
    request: &Request<'_>,
    payload: &mut [u8],
    handler: &H,
) -> (Answer, Granted) {
    match request.op {
        Op::Unknown(number) => {
            tracing::debug!(number, "unknown opcode");
            return (Answer::Error(ENOSYS), Granted::Nothing);
        }
        Op::CuseInit(_) => return (Answer::Error(ENOSYS), Granted::Nothing),
        Op::Init(_) => {
            tracing::error!("a second INIT");
            return (Answer::Error(EIO), Granted::Nothing);
        }
        // It has done what it was sent for.
        Op::NotifyReply { .. } => return (Answer::Nothing, Granted::Nothing),
        _ => {}
    }
    let reply = Reply::new(payload, request, rustix::param::page_size());
    match catch_unwind(AssertUnwindSafe(|| handler.handle(*request, reply))) {
        // The token of another request would send that one's length with this one's buffer.
        Ok(replied) if replied.unique == request.header.unique => (replied.answer, replied.granted),
        Ok(replied) => {
            tracing::error!(
                unique = request.header.unique,
                other = replied.unique,
                "answer to another request"
            );
            (Answer::Error(EIO), Granted::Nothing)
        }
        Err(panic) => {
            let opcode = opcode::name_of(request.header.opcode);
            tracing::error!(
                opcode,
                unique = request.header.unique,
                panic = panic_text(&*panic),
                "handler panicked"
            );
            (Answer::Error(EIO), Granted::Nothing)
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

/// Writes a reply's header; `error` is 0 or a negative errno.
pub(crate) fn write_header(header: &mut [u8], payload: usize, error: i32, unique: u64) {
    let len = u32::try_from(size_of::<abi::OutHeader>() + payload).unwrap_or(u32::MAX);
    header.copy_from_slice(abi::OutHeader { len, error, unique }.as_bytes());
}

/// Tells `handler` about each reference in an answer that the kernel did not take. `payload` is the answer's.
pub fn report_undelivered<H: Handler + ?Sized>(handler: &H, grants: Grants, payload: &[u8]) {
    let tell = |what| {
        if catch_unwind(AssertUnwindSafe(|| handler.undelivered(what))).is_err() {
            tracing::error!(?what, "handler panicked over an undelivered answer");
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
