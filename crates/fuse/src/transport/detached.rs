//! Replies that another thread builds for a worker.
//!
//! A worker may pass a request to another thread, and stop waiting for it when that takes too long. So the request and the
//! reply have their own memory. A thread whose reply is no longer wanted discards it, which releases its references.

use canopy_sys::page_buf::PageBuf;
use rustix::param::page_size;

use super::serve::{Grants, Handler, call, report_undelivered};
use crate::reply::{Answer, Replied, Reply};
use crate::request::{Op, OwnedRequest};

const EIO: i32 = 5;
/// Enough for any reply of fixed size, a symlink's target, or the largest value of an extended attribute.
const MIN_PAYLOAD: usize = 65_536 + 4096;

/// A reply, and the references that the kernel holds once it has it.
pub struct DetachedReply {
    payload: PageBuf,
    replied: Replied,
    grants: Grants,
}

impl DetachedReply {
    /// Lets `handler` answer a request on this thread.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn make<H: Handler + ?Sized>(request: &OwnedRequest, handler: &H) -> std::io::Result<DetachedReply> {
        let request = request.request();
        let mut payload = PageBuf::new(payload_len(&request.op))?;
        let (answer, granted) = call(&request, &mut payload, handler);
        let dir = matches!(request.op, Op::Opendir { .. });
        let grants = Grants { granted, node: request.header.node, dir };
        Ok(DetachedReply {
            payload,
            replied: Replied { unique: request.header.unique, answer, granted },
            grants,
        })
    }

    /// Drops the reply without sending it, and releases its references.
    pub fn discard<H: Handler + ?Sized>(self, handler: &H) {
        let Answer::Payload(len) = self.replied.answer else { return };
        report_undelivered(handler, self.grants, &self.payload[..len]);
    }
}

fn payload_len(op: &Op<'_>) -> usize {
    let asked = match op {
        Op::Read(io) | Op::Readdir(io) | Op::Readdirplus(io) => io.size as usize,
        Op::Ioctl { out_size, .. } => *out_size as usize + page_size(),
        _ => 0,
    };
    asked.max(MIN_PAYLOAD)
}

impl Reply<'_> {
    /// Sends a reply that was built for a copy of the same request.
    pub fn detached(self, made: DetachedReply) -> Replied {
        if let Answer::Payload(len) = made.replied.answer {
            match self.payload.get_mut(..len) {
                Some(room) => room.copy_from_slice(&made.payload[..len]),
                None => return self.error(EIO),
            }
        }
        made.replied
    }
}
