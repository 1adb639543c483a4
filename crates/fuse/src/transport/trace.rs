//! A log line for every request, with its operands, its result and the time it took.
//!
//! While tracing is off, a request costs one load of the maximum log level.

use std::fmt;
use std::time::Instant;

use tracing::Level;

use crate::opcode;
use crate::reply::Content;
use crate::request::{Header, Op};

/// The target of these lines, for filters. All are of level TRACE.
pub const TARGET: &str = "canopy_fuse::trace";

/// A request that is being served while tracing is on, and when it started.
pub(crate) struct Trace(Instant);

impl Trace {
    pub(crate) fn begin() -> Option<Trace> {
        tracing::enabled!(target: TARGET, Level::TRACE).then(|| Trace(Instant::now()))
    }

    /// Writes the line. `op` is `None` for a request that could not be decoded.
    pub(crate) fn end(self, header: &Header, op: Option<&Op<'_>>, answer: Content) {
        let Header { unique, node, uid, gid, pid, .. } = header;
        tracing::trace!(
            target: TARGET,
            "{} unique={unique} node={node} uid={uid} gid={gid} pid={pid}{}: {} us={}",
            opcode::name_of(header.opcode),
            Operands(op),
            AnswerText(answer),
            self.0.elapsed().as_micros(),
        );
    }
}

struct AnswerText(Content);

impl fmt::Display for AnswerText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Content::Nothing => f.write_str("unanswered"),
            Content::Later(_) => f.write_str("later"),
            Content::Error(errno) => write!(f, "error={errno}"),
            Content::Payload(len) => write!(f, "error=0 len={len}"),
        }
    }
}

/// The operands, each after a space. Names are quoted, and data is omitted.
struct Operands<'a>(Option<&'a Op<'a>>);

impl fmt::Display for Operands<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(op) = self.0 else { return Ok(()) };
        match op {
            Op::Lookup { name } | Op::Unlink { name } | Op::Rmdir { name } => write!(f, " name={name:?}"),
            Op::Mknod { name, mode, .. } | Op::Mkdir { name, mode, .. } => {
                write!(f, " name={name:?} mode={mode:o}")
            }
            Op::Symlink { name, target } => write!(f, " name={name:?} target={target:?}"),
            Op::Rename { name, newdir, newname, flags } => {
                write!(f, " name={name:?} newdir={newdir} newname={newname:?} flags={flags}")
            }
            Op::Link { old, name } => write!(f, " old={old} name={name:?}"),
            Op::Create(create) => {
                write!(f, " name={:?} mode={:o} flags={:#o}", create.name, create.mode, create.flags)
            }
            Op::Open { flags, .. } | Op::Opendir { flags, .. } => write!(f, " flags={flags:#o}"),
            Op::Read(io) | Op::Readdir(io) | Op::Readdirplus(io) => {
                write!(f, " fh={} offset={} size={}", io.handle, io.offset, io.size)
            }
            Op::Write(io) => write!(f, " fh={} offset={} size={}", io.handle, io.offset, io.data.len()),
            Op::Release { handle, .. }
            | Op::Releasedir { handle, .. }
            | Op::Flush { handle, .. }
            | Op::Fsync { handle, .. }
            | Op::Fsyncdir { handle, .. } => write!(f, " fh={handle}"),
            Op::Getattr { handle: Some(handle) } | Op::Statx { handle: Some(handle), .. } => {
                write!(f, " fh={handle}")
            }
            Op::Setattr(set) => {
                write!(f, " valid={:#x}", set.valid)?;
                set.handle.map_or(Ok(()), |handle| write!(f, " fh={handle}"))?;
                set.size.map_or(Ok(()), |size| write!(f, " size={size}"))
            }
            Op::Setxattr { name, value, .. } => write!(f, " name={name:?} size={}", value.len()),
            Op::Getxattr { name, size } => write!(f, " name={name:?} size={size}"),
            Op::Removexattr { name } => write!(f, " name={name:?}"),
            Op::Listxattr { size } => write!(f, " size={size}"),
            Op::Access { mask } => write!(f, " mask={mask}"),
            Op::Forget { nlookup } => write!(f, " nlookup={nlookup}"),
            Op::BatchForget(items) => write!(f, " nodes={}", items.len()),
            Op::Ioctl { cmd, .. } => write!(f, " cmd={cmd:#x}"),
            Op::Fallocate { handle, offset, length, mode } => {
                write!(f, " fh={handle} offset={offset} length={length} mode={mode}")
            }
            Op::Lseek { handle, offset, whence } => {
                write!(f, " fh={handle} offset={offset} whence={whence}")
            }
            _ => Ok(()),
        }
    }
}
