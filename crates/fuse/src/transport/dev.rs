//! The transport over `/dev/fuse`: one read(2) and one write(2) per request.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::Duration;

use canopy_sys::page_buf::PageBuf;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::param::page_size;

use super::admitted::{Admitted, FirstRequest};
use super::attend::{Attended, Received, attend, expect};
use super::parked::{Aside, HeldRequest};
use super::serve::{Expected, Handler, Out, Outcome, report_undelivered, write_header};
use super::workers::{ReplyToken, WorkerEnd, WorkerSlot};
use crate::abi;
use crate::opcode::{self, Opcode};
use crate::request::{Dialect, Header, Op, Request};

/// Where the data of a WRITE starts in its request.
const WRITE_DATA: usize = size_of::<abi::InHeader>() + size_of::<abi::WriteIn>();
const OUT_HEADER: usize = size_of::<abi::OutHeader>();
const EIO: i32 = 5;

/// A thread that reads requests from `/dev/fuse`.
pub(crate) struct DevWorker<H: Handler> {
    device: Arc<OwnedFd>,
    handler: Arc<H>,
    dialect: Dialect,
    /// Requests are read to `page - WRITE_DATA`, so that the data of a WRITE is page-aligned.
    input: PageBuf,
    /// The header ends at a page boundary, where the payload starts.
    output: PageBuf,
    page: usize,
    /// Whether requests that have a reply come over io_uring.
    over_uring: Arc<AtomicBool>,
    slot: WorkerSlot,
}

/// How long the worker waits between FORGETs if requests come over io_uring. Meanwhile the kernel collects FORGETs and
/// then sends many at once (BATCH_FORGET), so that removing files does not wake this thread for each.
const FORGET_DELAY: Duration = Duration::from_micros(200);

impl<H: Handler> DevWorker<H> {
    /// Creates a worker. `payload` is the largest reply in bytes, `max_write` the largest write.
    pub(crate) fn new(
        device: Arc<OwnedFd>,
        handler: Arc<H>,
        dialect: Dialect,
        max_write: usize,
        payload: usize,
        over_uring: Arc<AtomicBool>,
        slot: WorkerSlot,
    ) -> std::io::Result<DevWorker<H>> {
        let page = page_size();
        // Some requests are not limited by max_write, such as SETXATTR with a value of 64 KiB.
        let carried = max_write.max(XATTR_SIZE_MAX + abi::MIN_READ_BUFFER);
        let input = PageBuf::new(page + carried + page)?;
        let output = PageBuf::new(page + payload.max(XATTR_SIZE_MAX) + page)?;
        Ok(DevWorker { device, handler, dialect, input, output, page, over_uring, slot })
    }

    /// Gives the buffer for requests its memory.
    pub(crate) fn populate(&mut self) {
        self.input.populate();
    }

    /// Serves `first`, which was read from the same device; without it, until the connection ends. Each request in a line
    /// has such a worker of its own, which must not stay: there may be more of them, one after the other, than workers.
    pub(crate) fn run(mut self, number: usize, first: Option<FirstRequest>) -> WorkerEnd {
        self.slot.attach_thread(number, Some(Arc::clone(&self.device)));
        if let Some(FirstRequest { held: HeldRequest::Message(_, message), admitted }) = first {
            let start = self.page - WRITE_DATA;
            self.input[start..start + message.len()].copy_from_slice(&message);
            self.serve(start, message.len(), Some(&admitted));
            drop(admitted);
            return WorkerEnd::Dismissed;
        }
        let end = self.serve_all();
        if end != WorkerEnd::Dismissed {
            self.slot.connection_ended();
        }
        end
    }

    fn serve_all(&mut self) -> WorkerEnd {
        loop {
            let start = self.page - WRITE_DATA;
            match rustix::io::read(&*self.device, &mut self.input[start..]) {
                Ok(0) | Err(Errno::NODEV | Errno::CONNABORTED) => return WorkerEnd::Disconnected,
                Ok(len) => {
                    self.serve(start, len, None);
                    if self.slot.leave_if_surplus() {
                        return WorkerEnd::Dismissed;
                    }
                    if self.over_uring.load(Ordering::Relaxed) && is_forget(&self.input[start..start + len]) {
                        sleep(FORGET_DELAY);
                    }
                }
                // NOENT: the request was interrupted before it could be read.
                Err(Errno::INTR | Errno::NOENT) => {}
                // The descriptor was already non-blocking.
                Err(Errno::AGAIN) => wait_readable(&self.device),
                Err(errno) => {
                    tracing::error!(%errno, "reading requests failed");
                    return WorkerEnd::Failed(errno);
                }
            }
        }
    }

    /// `admitted`: the request has been put aside.
    fn serve(&mut self, start: usize, len: usize, admitted: Option<&Admitted>) {
        let request = &self.input[start..start + len];
        let header = match Header::decode(request) {
            Ok((header, _)) => header,
            Err(error) => {
                tracing::error!(%error, bytes = len, "request without a header");
                return;
            }
        };
        let decoded = Request::decode(request, self.dialect);
        let Expected { note, line } = expect(&self.slot, &decoded, len, &*self.handler);
        if let Some(line) = line.filter(|_| admitted.is_none()) {
            self.slot.hold(
                Aside::Line(line),
                HeldRequest::Message(Arc::clone(&self.device), request.into()),
                len,
            );
            return;
        }
        let interrupt = match &decoded {
            Ok(Request { op: Op::Interrupt { unique }, .. }) => Some(*unique),
            _ => None,
        };
        let answer = &mut self.output[self.page - OUT_HEADER..];
        let Some(out) = Out::contiguous(answer) else { return };
        let token = if header.wants_answer() { ReplyToken::Device } else { ReplyToken::NoAnswer };
        let received = Received { token, note, size: len, again: admitted.is_some_and(Admitted::was_parked) };
        let (payload, grants) = match attend(&self.slot, header, decoded, out, &*self.handler, received) {
            Attended::Done(Outcome::Answer { payload, grants, .. }, _) => (payload, grants),
            Attended::Park(_) => {
                let held = HeldRequest::Message(Arc::clone(&self.device), request.into());
                self.slot.hold(Aside::Parked(header.unique), held, len);
                return;
            }
            Attended::Done(..) | Attended::Late => {
                // The handler knows it by now, so whoever tries again finds out why.
                if let Some(unique) = interrupt {
                    self.slot.interrupted(unique);
                }
                return;
            }
        };
        let Err(errno) = send(&self.device, &answer[..OUT_HEADER + payload]) else { return };
        // NOENT: the request was aborted. The other two: the filesystem was unmounted.
        if !matches!(errno, Errno::NOENT | Errno::NODEV | Errno::CONNABORTED) {
            self.refused(start, len, errno);
        }
        let payload = &self.output[self.page..self.page + payload];
        report_undelivered(&*self.handler, grants, payload);
    }

    /// Handles a reply that the kernel refused. It has ended the request only if it found it, so an error is sent too.
    fn refused(&self, start: usize, len: usize, errno: Errno) {
        let Ok((header, _)) = Header::decode(&self.input[start..start + len]) else { return };
        let opcode = opcode::name_of(header.opcode);
        tracing::error!(%errno, opcode, unique = header.unique, "the kernel refused a reply");
        let _ = send_error(&self.device, header.unique, EIO);
    }
}

/// Answers a request that was read from `device` with a positive errno, or 0.
pub(super) fn send_error(device: &OwnedFd, unique: u64, errno: i32) -> Result<(), Errno> {
    let mut bytes = [0; OUT_HEADER];
    write_header(&mut bytes, 0, -errno, unique);
    send(device, &bytes)
}

fn is_forget(request: &[u8]) -> bool {
    let opcode = Header::decode(request).ok().and_then(|(header, _)| Opcode::from_u32(header.opcode));
    matches!(opcode, Some(Opcode::Forget | Opcode::BatchForget))
}

/// `XATTR_SIZE_MAX`, include/uapi/linux/limits.h.
const XATTR_SIZE_MAX: usize = 65536;

fn send(device: &OwnedFd, message: &[u8]) -> Result<(), Errno> {
    loop {
        match rustix::io::write(device, message) {
            Err(Errno::INTR) => {}
            other => return other.map(drop),
        }
    }
}

fn wait_readable(device: &OwnedFd) {
    let mut fds = [PollFd::from_borrowed_fd(device.as_fd(), PollFlags::IN)];
    let _ = poll(&mut fds, None);
}
