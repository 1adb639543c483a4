//! A handler that answers every request, and checks of its replies. The tests on stable Rust and the fuzz targets share it.
#![allow(dead_code, unreachable_pub, reason = "each user takes a part")]

use std::sync::atomic::{AtomicU64, Ordering};

use canopy_fuse::abi::{AttrOut, EntryOut, FileLock, InHeader, Kstatfs, StatxOut};
use canopy_fuse::flags::OpenFlags;
use canopy_fuse::request::{Dialect, Header, Op};
use canopy_fuse::transport::{Out, Outcome, report_undelivered, serve};
use canopy_fuse::{Handler, Replied, Reply, Request, Undelivered};

/// Answers every request, and counts the references that it has to release.
#[derive(Default)]
pub struct Fake {
    pub undelivered: AtomicU64,
    /// Whether to panic over the name `panic`. Not under libFuzzer, which reports even a caught panic as a finding.
    pub panics: bool,
}

impl Handler for Fake {
    fn handle(&self, request: Request<'_>, reply: Reply<'_>) -> Replied {
        let entry = EntryOut { nodeid: 2, ..EntryOut::default() };
        // Reads borrowed data, so that a wrong length is detected.
        let sum = |bytes: &[u8]| bytes.iter().map(|&b| u64::from(b)).sum::<u64>();
        if let Some(groups) = request.ext.groups {
            std::hint::black_box(groups.map(u64::from).sum::<u64>());
        }
        match request.op {
            Op::Init(_) | Op::CuseInit(_) | Op::Unknown(_) => panic!("reached the handler: {request:?}"),
            Op::Forget { .. } | Op::Interrupt { .. } => reply.none(),
            Op::BatchForget(items) => {
                std::hint::black_box(items.fold(0, |sum, item| sum ^ item.node.0 ^ item.nlookup));
                reply.none()
            }
            Op::NotifyReply { data, .. } => {
                std::hint::black_box(sum(data));
                reply.none()
            }
            Op::Lookup { name } | Op::Mknod { name, .. } | Op::Mkdir { name, .. } | Op::Link { name, .. } => {
                std::hint::black_box(sum(name.as_bytes()));
                reply.entry(&entry)
            }
            Op::Symlink { name, target } => {
                std::hint::black_box(sum(name.as_bytes()) + sum(target.to_bytes()));
                reply.entry(&entry)
            }
            Op::Getattr { .. } | Op::Setattr(_) => reply.attr(&AttrOut::default()),
            Op::Statx { .. } => reply.statx(&StatxOut::default()),
            Op::Readlink => reply.bytes(b"target"),
            Op::Unlink { name } | Op::Rmdir { name } => match name.as_bytes() {
                b"panic" if self.panics => panic!("as planned"),
                b"none" => reply.none(),
                other => reply.error(other.len() as i32 - 8),
            },
            Op::Rename { name, newname, .. } => {
                std::hint::black_box(sum(name.as_bytes()) + sum(newname.as_bytes()));
                reply.ok()
            }
            Op::Open { flags, .. } => reply.opened(5, OpenFlags::KEEP_CACHE, (flags & 1 != 0).then_some(9)),
            Op::Opendir { .. } => reply.opened(6, OpenFlags::empty(), None),
            Op::Create(_) | Op::Tmpfile(_) => reply.created(&entry, 7, OpenFlags::empty(), None),
            Op::Read(io) => reply.data(io.size as usize, |buf| Ok(buf.len())),
            Op::Write(io) => {
                std::hint::black_box(sum(io.data));
                reply.written(io.data.len() as u32)
            }
            Op::Readdir(io) => {
                let mut dir = reply.dir(io.size as usize);
                while !dir.push(1, 1, 8, b"some name") {}
                dir.finish()
            }
            Op::Readdirplus(io) => {
                let mut dir = reply.plus(io.size as usize);
                while !dir.push(&entry, 1, 1, 8, b"some name") {}
                dir.finish()
            }
            Op::Statfs => reply.statfs(&Kstatfs::default()),
            Op::Setxattr { name, value, .. } => {
                std::hint::black_box(sum(name.to_bytes()) + sum(value));
                reply.ok()
            }
            Op::Getxattr { name, .. } => reply.xattr(name.to_bytes()),
            Op::Listxattr { .. } => reply.xattr(b"user.a\0"),
            Op::Ioctl { data, cmd, .. } => reply.ioctl(0, |buf| {
                let len = data.len().min(buf.len());
                buf[..len].copy_from_slice(&data[..len]);
                if cmd == 13 { Err(25) } else { Ok(len) }
            }),
            Op::Getlk(lock) => reply.lock(&FileLock { typ: 2, ..lock.lock }),
            Op::Lseek { offset, .. } => reply.lseek(offset),
            Op::CopyFileRange(range) => reply.copied(range.len, range.reply64),
            Op::Poll { events, .. } => reply.poll(events),
            Op::Bmap { block, .. } => reply.bmap(block),
            Op::RemoveMapping { mappings, .. } => {
                std::hint::black_box(sum(mappings));
                reply.error(38)
            }
            Op::SetupMapping(_) => reply.error(38),
            Op::Release { .. }
            | Op::Releasedir { .. }
            | Op::Flush { .. }
            | Op::Fsync { .. }
            | Op::Fsyncdir { .. }
            | Op::Removexattr { .. }
            | Op::Access { .. }
            | Op::Setlk(_)
            | Op::Setlkw(_)
            | Op::Fallocate { .. }
            | Op::Syncfs
            | Op::Destroy => reply.ok(),
        }
    }

    fn undelivered(&self, _what: Undelivered) {
        self.undelivered.fetch_add(1, Ordering::Relaxed);
    }
}

/// Returns all dialects that a negotiation can result in.
pub fn dialects() -> impl Iterator<Item = Dialect> {
    (31..=45).flat_map(|minor| [false, true].map(|setxattr_ext| Dialect { minor, setxattr_ext }))
}

/// Decodes in every dialect, both contiguous and split.
pub fn check_decode(bytes: &[u8]) {
    for dialect in dialects() {
        let _ = Request::decode(bytes, dialect);
        if let Some((header, rest)) = bytes.split_at_checked(size_of::<InHeader>()) {
            let (operation, payload) = rest.split_at(rest.len().min(128));
            let _ = Request::decode_split(header, operation, payload, dialect);
            let _ = Request::decode_split(header, payload, operation, dialect);
        }
    }
}

/// Corrects the length in the header, so that the rest of the request is decoded too.
pub fn with_correct_length(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let len = (bytes.len() as u32).to_ne_bytes();
    if let Some(field) = bytes.first_chunk_mut() {
        *field = len;
    }
    bytes
}

/// Serves one request and checks the form of the reply, which is in `out` afterwards.
pub fn check_serve(bytes: &[u8], out: &mut [u8], fake: &Fake, dialect: Dialect) -> Outcome {
    let Ok((header, _)) = Header::decode(bytes) else { return Outcome::NoReply };
    let buffers = Out::contiguous(out).expect("room for a header");
    let outcome = serve(header, Request::decode(bytes, dialect), buffers, fake);
    match outcome {
        Outcome::Later(cause) => panic!("no reply yet: {cause:?}"),
        Outcome::NoReply => assert!(!header.wants_answer(), "no reply: {header:?}"),
        Outcome::Answer { payload, grants, .. } => {
            let len = u32::from_ne_bytes(out[..4].try_into().unwrap());
            let error = i32::from_ne_bytes(out[4..8].try_into().unwrap());
            let unique = u64::from_ne_bytes(out[8..16].try_into().unwrap());
            assert_eq!(len as usize, 16 + payload);
            assert!(len as usize <= out.len());
            assert_eq!(unique, header.unique);
            assert!((-511..=0).contains(&error), "{error}");
            assert!(error == 0 || payload == 0);
            assert!(header.wants_answer());
            report_undelivered(fake, grants, &out[16..16 + payload]);
        }
    }
    outcome
}
