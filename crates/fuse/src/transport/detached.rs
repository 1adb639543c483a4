//! Answers that are made apart from the worker that sends them.
//!
//! A worker may leave a request to another thread, and go on without it when that takes too long. So both the request
//! and the answer are in memory of their own; who makes an answer that nobody waits for any more gives back what it
//! holds.

use canopy_sys::page_buf::PageBuf;
use rustix::param::page_size;

use super::serve::{Grants, Handler, call, report_undelivered};
use crate::reply::{Answer, Replied, Reply};
use crate::request::{Op, OwnedRequest};

const EIO: i32 = 5;
/// Room for any answer of fixed size, a symlink's target, and a value of the largest extended attribute.
const ROOM: usize = 65_536 + 4096;

/// An answer, and what the kernel holds once it has it.
pub struct DetachedReply {
    payload: PageBuf,
    replied: Replied,
    grants: Grants,
}

impl DetachedReply {
    /// Has a request answered by `handler`, on this thread.
    ///
    /// # Errors
    /// Without memory for the answer.
    pub fn make<H: Handler + ?Sized>(request: &OwnedRequest, handler: &H) -> std::io::Result<DetachedReply> {
        let request = request.request();
        let mut payload = PageBuf::new(room(&request.op))?;
        let (answer, granted) = call(&request, &mut payload, handler);
        let dir = matches!(request.op, Op::Opendir { .. });
        let grants = Grants { granted, node: request.header.node, dir };
        Ok(DetachedReply {
            payload,
            replied: Replied { unique: request.header.unique, answer, granted },
            grants,
        })
    }

    /// Nobody will send it: gives back what it holds.
    pub fn discard<H: Handler + ?Sized>(self, handler: &H) {
        let Answer::Payload(len) = self.replied.answer else { return };
        report_undelivered(handler, self.grants, &self.payload[..len]);
    }
}

fn room(op: &Op<'_>) -> usize {
    let asked = match op {
        Op::Read(io) | Op::Readdir(io) | Op::Readdirplus(io) => io.size as usize,
        Op::Ioctl { out_size, .. } => *out_size as usize + page_size(),
        _ => 0,
    };
    asked.max(ROOM)
}

impl Reply<'_> {
    /// Answers with what was made aside for the same request.
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
