//! A worker of a queue: a thread with its own entry.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::Sender;

use canopy_sys::fuse::uring::{Arrival, Entry, HEADER, Parked, Window};
use canopy_sys::page_buf::PageBuf;
use canopy_sys::thread::sched;
use parking_lot::{Mutex, RwLock};
use rustix::io::Errno;
use zerocopy::FromBytes;

use super::unavailable::UringUnavailable;
use crate::abi;
use crate::opcode::Opcode;
use crate::request::{Dialect, Header, Malformed, Request};
use crate::transport::admitted::Admitted;
use crate::transport::attend::{Attended, Received, attend, expect};
use crate::transport::parked::{Aside, HeldRequest};
use crate::transport::serve::{Handler, Out, Outcome, report_undelivered, write_header};
use crate::transport::workers::{ReplyToken, WorkerEnd, WorkerSlot};

const OUT_HEADER: usize = size_of::<abi::OutHeader>();
/// The offsets of `op_in` and `ring_ent_in_out` in `fuse_uring_req_header`.
const OP_IN: usize = 128;
const ENT: usize = 256;

/// The result of joining a queue.
pub(super) type Joined = Result<(), UringUnavailable>;

/// How a worker joins its queue.
pub(super) enum JoinMode {
    /// As one of the first workers. It serves once the gate opens.
    Initial(Arc<RwLock<()>>),
    /// With a new entry, while the queue is in use.
    Extra,
    /// With an entry that holds a request, which is to be answered with this errno first; 0 is success.
    Parked(Window, i32),
    /// With an entry that holds a request which has been put aside.
    Held(Window, Admitted),
}

/// The state of a worker thread.
pub(super) struct Worker<H: Handler> {
    pub(super) entry: Entry,
    pub(super) queue: u16,
    /// The payload length that the kernel is given, in bytes.
    pub(super) payload: usize,
    pub(super) device: Arc<OwnedFd>,
    pub(super) handler: Arc<H>,
    pub(super) dialect: Dialect,
    pub(super) slot: WorkerSlot,
    pub(super) parked: Arc<Mutex<Vec<Parked>>>,
    /// Requests other than WRITE are copied here, because the payload buffer is needed for the reply.
    pub(super) input: PageBuf,
    /// The reply to a WRITE, whose data stays in the payload buffer.
    pub(super) aside: PageBuf,
    /// The next request has been put aside.
    pub(super) admitted: Option<Admitted>,
}

/// The result of serving a request.
enum Served {
    /// The reply was sent, with this result of [`Entry::commit`].
    Committed(Option<Arrival>),
    /// No process waits for a reply, and the worker is to leave with the request.
    Kept(Window),
    /// The request is to be put aside with the entry. Its payload has this length.
    Held { aside: Aside, window: Window, carried: usize },
    /// Another worker has taken the entry and answered the request.
    Lost,
}

/// Why a worker stops serving.
enum Stop {
    /// It is to leave, with the request that its entry holds.
    Dismissed(Window),
    /// It leaves its entry, whose request is put aside.
    Held {
        aside: Aside,
        window: Window,
        carried: usize,
    },
    /// It has lost its entry.
    Lost,
    End(WorkerEnd),
}

impl<H: Handler> Worker<H> {
    /// Joins the queue, reports the result, and serves until the connection ends or the worker is dismissed.
    pub(super) fn run(mut self, number: usize, mode: JoinMode, report: &Sender<Joined>) -> WorkerEnd {
        // Before what the session calls at the start of a thread, which may change the affinity.
        pin(self.queue);
        self.slot.attach_thread(number, None);
        let gate = match &mode {
            JoinMode::Initial(gate) => Some(Arc::clone(gate)),
            JoinMode::Extra | JoinMode::Parked(..) | JoinMode::Held(..) => None,
        };
        let next = match self.join_queue(mode) {
            Ok(next) => {
                let _ = report.send(Ok(()));
                next
            }
            Err(why) => {
                let _ = report.send(Err(why));
                return WorkerEnd::Disconnected;
            }
        };
        if let Some(gate) = gate {
            drop(gate.read());
        }
        match self.serve_all(next) {
            Stop::Dismissed(window) => {
                let Worker { entry, parked, .. } = self;
                // Before those whose requests have yet to be answered.
                parked.lock().insert(0, entry.park(window, 0));
                WorkerEnd::Dismissed
            }
            Stop::Held { aside, window, carried } => {
                let Worker { entry, slot, .. } = self;
                slot.hold(aside, HeldRequest::Entry(entry.hold(window, carried)), HEADER + carried);
                WorkerEnd::Dismissed
            }
            Stop::Lost => WorkerEnd::Dismissed,
            Stop::End(end) => {
                self.slot.connection_ended();
                end
            }
        }
    }

    fn serve_all(&mut self, mut next: Option<Arrival>) -> Stop {
        loop {
            let arrived = match next.take() {
                Some(arrived) => arrived,
                None => match self.entry.wait() {
                    Ok(arrived) => arrived,
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                    Err(error) => return Stop::End(failed(errno(&error))),
                },
            };
            let window = match arrived {
                Ok(window) => window,
                Err(errno) if disconnected(errno) => return Stop::End(WorkerEnd::Disconnected),
                Err(errno) => return Stop::End(failed(canopy_sys::errno::from_raw(errno))),
            };
            match self.serve(window) {
                Ok(Served::Committed(committed)) => next = committed,
                Ok(Served::Kept(window)) => return Stop::Dismissed(window),
                Ok(Served::Held { aside, window, carried }) => return Stop::Held { aside, window, carried },
                Ok(Served::Lost) => return Stop::Lost,
                Err(error) => return Stop::End(failed(errno(&error))),
            }
        }
    }

    fn join_queue(&mut self, mode: JoinMode) -> Result<Option<Arrival>, UringUnavailable> {
        let ready = self.entry.enable().and_then(|()| self.entry.attach(self.device.as_fd()));
        ready.map_err(|error| UringUnavailable::resources(&error))?;
        let joined = match mode {
            JoinMode::Initial(_) | JoinMode::Extra => self.entry.register(self.queue, self.payload),
            JoinMode::Parked(window, errno) => {
                write_header(&mut self.entry.buffers().0[..OUT_HEADER], 0, -errno, window.commit_id());
                set_payload(self.entry.buffers().0, 0);
                self.entry.commit(window)
            }
            JoinMode::Held(window, admitted) => {
                self.admitted = Some(admitted);
                Ok(Some(Ok(window)))
            }
        };
        match joined {
            // The filesystem is already unmounted. That is no refusal, and the worker will notice it.
            Ok(Some(Err(errno))) if !disconnected(errno) => {
                Err(UringUnavailable::Refused(canopy_sys::errno::from_raw(errno)))
            }
            Ok(next) => Ok(next),
            Err(error) => Err(UringUnavailable::resources(&error)),
        }
    }

    /// Serves the request in the buffers and sends its reply.
    fn serve(&mut self, window: Window) -> std::io::Result<Served> {
        let admitted = self.admitted.take();
        let commit_id = window.commit_id();
        let (header, payload) = self.entry.buffers();
        let (in_out, rest) = header.split_at_mut(OP_IN);
        let (op_in, ent) = rest.split_at_mut(ENT - OP_IN);
        let len = match abi::UringEntInOut::read_from_prefix(ent) {
            Ok((ent, _)) => ent.payload_sz as usize,
            Err(_) => unreachable!("{HEADER} bytes hold all three parts"),
        };
        let mut first = [0; size_of::<abi::InHeader>()];
        first.copy_from_slice(&in_out[..size_of::<abi::InHeader>()]);
        let out = in_out.first_chunk_mut().expect("128 bytes hold a header");
        // Input from the kernel is not trusted, including this length.
        let carried = len.min(payload.len());
        let decode = |carried_bytes| {
            let request = Request::decode_split(&first, op_in, carried_bytes, self.dialect);
            if carried < len { Err(Malformed::Length) } else { request }
        };
        let (slot, handler) = (&self.slot, &*self.handler);
        let expect = |request: &_| {
            let expected = expect(slot, request, HEADER + carried, handler);
            (expected.note, expected.line.filter(|_| admitted.is_none()))
        };
        let again = admitted.as_ref().is_some_and(Admitted::was_parked);
        let received =
            |window, note| Received { token: ReplyToken::Entry(window), note, size: HEADER + carried, again };
        let attended = match Header::decode(&first) {
            Ok((head, _)) if head.opcode() == Some(Opcode::NotifyReply) => {
                if slot.leave_if_surplus() {
                    return Ok(Served::Kept(window));
                }
                Attended::Done(Outcome::NoReply, ReplyToken::Entry(window))
            }
            Ok((head, _)) if head.opcode() == Some(Opcode::Write) => {
                let out = Out { header: out, payload: &mut self.aside };
                let request = decode(&payload[..carried]);
                let (note, line) = expect(&request);
                if let Some(line) = line {
                    return Ok(Served::Held { aside: Aside::Line(line), window, carried });
                }
                let attended = attend(slot, head, request, out, handler, received(window, note));
                if let Attended::Done(Outcome::Answer { payload: len, .. }, _) = attended {
                    payload[..len].copy_from_slice(&self.aside[..len]);
                }
                attended
            }
            Ok((head, _)) => {
                let input = &mut self.input[..carried];
                input.copy_from_slice(&payload[..carried]);
                let request = decode(input);
                let (note, line) = expect(&request);
                if let Some(line) = line {
                    return Ok(Served::Held { aside: Aside::Line(line), window, carried });
                }
                let out = Out { header: out, payload: &mut *payload };
                let attended = attend(slot, head, request, out, handler, received(window, note));
                if let Attended::Park(_) = attended {
                    // It is handled once more, and the reply may have been begun.
                    payload[..carried].copy_from_slice(&self.input[..carried]);
                }
                attended
            }
            Err(_) => Attended::Done(Outcome::NoReply, ReplyToken::Entry(window)),
        };
        drop(admitted);
        if let Attended::Park(ReplyToken::Entry(window)) = attended {
            return Ok(Served::Held { aside: Aside::Parked(commit_id), window, carried });
        }
        let Attended::Done(outcome, ReplyToken::Entry(window)) = attended else { return Ok(Served::Lost) };
        let (len, grants) = match outcome {
            Outcome::Answer { payload, grants, .. } => (payload, Some(grants)),
            // No process waits for a reply, but the entry must be committed.
            Outcome::NoReply | Outcome::Later(_) => {
                write_header(&mut self.entry.buffers().0[..OUT_HEADER], 0, 0, commit_id);
                (0, None)
            }
        };
        set_payload(self.entry.buffers().0, len);
        let committed = self.entry.commit(window);
        if let (Some(grants), Ok(Some(Err(_))) | Err(_)) = (grants, &committed) {
            // The reply is still in the buffer.
            report_undelivered(&*self.handler, grants, &self.entry.payload()[..len]);
        }
        committed.map(Served::Committed)
    }
}

/// Writes `fuse_uring_ent_in_out.payload_sz`.
fn set_payload(header: &mut [u8; HEADER], len: usize) {
    let at = ENT + std::mem::offset_of!(abi::UringEntInOut, payload_sz);
    header[at..at + 4].copy_from_slice(&u32::try_from(len).unwrap_or(u32::MAX).to_ne_bytes());
}

/// Returns whether an errno means that the connection has ended. This includes `ENOENT`, which means that the answered
/// request no longer exists: only the end of the connection removes a request from an entry.
fn disconnected(errno: i32) -> bool {
    let errno = canopy_sys::errno::from_raw(errno);
    matches!(errno, Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED | Errno::NOENT)
}

fn failed(errno: Errno) -> WorkerEnd {
    tracing::error!(%errno, "io_uring failed");
    WorkerEnd::Failed(errno)
}

fn errno(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::NOMEM)
}

/// Binds the calling thread to the processor whose queue it serves, so that a request wakes no thread on another
/// processor. Does nothing if that is not permitted or the processor is offline.
fn pin(queue: u16) {
    if let Err(error) = sched::pin_to(usize::from(queue)) {
        tracing::debug!(%error, cpu = queue, "cannot bind the thread to this processor");
    }
}
