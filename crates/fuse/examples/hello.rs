//! A complete filesystem: a read-only directory with one file.
//!
//! `hello MOUNTPOINT` serves until the filesystem is unmounted (`umount MOUNTPOINT`, or `fusermount3 -u MOUNTPOINT` for
//! unprivileged users):
//!
//! ```text
//! $ cargo run -p canopy-fuse --example hello /mnt/hello &
//! $ cat /mnt/hello/greeting
//! Hello, world!
//! ```

use canopy_fuse::abi::{Attr, AttrOut, EntryOut, Kstatfs};
use canopy_fuse::flags::OpenFlags;
use canopy_fuse::mount::{MountFlags, MountSpec, mount};
use canopy_fuse::request::{NodeId, Op};
use canopy_fuse::{Handler, KernelLimits, Replied, Reply, Request, Session, SessionOptions};
use rustix::io::Errno;
use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The file's name and content.
const NAME: &[u8] = b"greeting";
const CONTENT: &[u8] = b"Hello, world!\n";
const FILE: NodeId = NodeId(2);

/// Nothing ever changes, so the kernel may cache names and attributes for an hour.
const TTL: Duration = Duration::from_secs(3600);

/// `DT_*` of readdir(3) and `S_IF*` of inode(7).
const DT_DIR: u32 = 4;
const DT_REG: u32 = 8;
const S_IFDIR: u32 = 0o040_000;
const S_IFREG: u32 = 0o100_000;

struct Hello;

fn attr(node: NodeId) -> Option<Attr> {
    let (mode, nlink, size) = match node {
        NodeId::ROOT => (S_IFDIR | 0o555, 2, 0),
        FILE => (S_IFREG | 0o444, 1, CONTENT.len() as u64),
        _ => return None,
    };
    Some(Attr { ino: node.0, mode, nlink, size, blksize: 4096, ..Attr::default() })
}

impl Handler for Hello {
    /// Answers one request. Answering consumes the `Reply`, so the compiler ensures that each request gets exactly one.
    fn handle(&self, request: Request<'_>, reply: Reply<'_>) -> Replied {
        let node = request.header.node;
        match request.op {
            Op::Lookup { name } => {
                match attr(FILE).filter(|_| node == NodeId::ROOT && name.as_bytes() == NAME) {
                    // The kernel now holds a reference. A server whose nodes come and go counts these until FORGET.
                    Some(attr) => reply.entry(&EntryOut::new(FILE.0, 0, attr, TTL, TTL)),
                    None => reply.entry(&EntryOut::negative(TTL)),
                }
            }
            Op::Forget { .. } | Op::BatchForget(_) => reply.none(),
            Op::Getattr { .. } => match attr(node) {
                Some(attr) => reply.attr(&AttrOut::new(attr, TTL)),
                None => reply.error(Errno::STALE.raw_os_error()),
            },
            Op::Open { .. } => reply.opened(0, OpenFlags::KEEP_CACHE, None),
            Op::Opendir { .. } => reply.opened(0, OpenFlags::KEEP_CACHE | OpenFlags::CACHE_DIR, None),
            Op::Release { .. } | Op::Releasedir { .. } | Op::Flush { .. } => reply.ok(),
            Op::Read(io) => {
                let rest = CONTENT.get(io.offset as usize..).unwrap_or_default();
                reply.bytes(&rest[..rest.len().min(io.size as usize)])
            }
            Op::Readdir(io) => {
                let mut out = reply.dir(io.size as usize);
                let entries =
                    [(NodeId::ROOT, DT_DIR, &b"."[..]), (NodeId::ROOT, DT_DIR, b".."), (FILE, DT_REG, NAME)];
                for (index, (node, kind, name)) in entries.into_iter().enumerate().skip(io.offset as usize) {
                    // Each entry has the position of the next one. `push` returns true if the buffer is full.
                    if out.push(node.0, index as u64 + 1, kind, name) {
                        break;
                    }
                }
                out.finish()
            }
            Op::Statfs => {
                reply.statfs(&Kstatfs { bsize: 4096, frsize: 4096, namelen: 255, ..Kstatfs::default() })
            }
            // For most optional operations the kernel remembers this reply and does not ask again.
            _ => reply.error(Errno::NOSYS.raw_os_error()),
        }
    }
}

/// Mounts the filesystem and serves it until it is unmounted.
pub fn serve(mountpoint: impl Into<PathBuf>) -> Result<(), Box<dyn Error>> {
    let mut spec = MountSpec::new(mountpoint, "hello", "hello");
    spec.flags |= MountFlags::RDONLY;
    let (device, mounted) = mount(&spec)?;
    let session = Session::negotiate(device, &SessionOptions::default(), KernelLimits::NONE)?;
    session.serve(Arc::new(Hello), 2)?.join()?;
    drop(mounted);
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    serve(std::env::args_os().nth(1).ok_or("usage: hello MOUNTPOINT")?)
}
