//! The properties of every operation, in one exhaustive table.
//!
//! Code that needs a property asks this table and does not match on the operation. What an operation does is in
//! `dispatch`.

use canopy_fuse::request::{Name, NodeId};
use canopy_fuse::{Op, Request};
use canopy_sys::ioctl::{fitrim, relocate};
use rustix::fs::OFlags;

/// The properties of an operation.
#[derive(Clone, Copy)]
pub(crate) struct Operation<'r> {
    pub(crate) changes: Changes<'r>,
    pub(crate) waits: Waits,
    /// The kernel locks the directory before it sends the request and until it has processed the answer (fs/namei.c,
    /// fs/readdir.c iterate_dir).
    pub(crate) locks_directory: bool,
    /// Reads or writes file data, with the caller's I/O priority if `proxy-ioprio` is on.
    pub(crate) carries_data: bool,
    /// Carrying it out twice differs from carrying it out once.
    pub(crate) once: bool,
}

/// What an operation changes of what the kernel may have cached. Creating or removing a name also changes the
/// attributes of its directory.
#[derive(Clone, Copy)]
pub(crate) enum Changes<'r> {
    Nothing,
    /// Attributes of the node in the request header.
    Attributes,
    /// A name in that directory.
    Makes(Name<'r>),
    Removes(Name<'r>),
    Renames {
        from: Name<'r>,
        to: (NodeId, Name<'r>),
    },
}

/// What an operation may have to wait for. `long`: it may take long on a healthy branch, too.
#[derive(Clone, Copy)]
pub(crate) enum Waits {
    /// No branch, or no client waits for the answer.
    Nothing,
    /// Any branch, while the operation holds locks on names. `handle`: an open file of the node; `other`: a second
    /// node.
    Names { handle: Option<u64>, other: Option<NodeId>, long: bool },
    /// Any branch, independent of the node in the request header.
    AllBranches,
    /// The branch of an open file, or the branches of two.
    File { handle: u64, other: Option<u64>, long: bool },
    /// The branch of an open file, which is closed even if the branch does not answer.
    Close { handle: u64 },
}

/// Waits for any branch.
const NAMES: Waits = Waits::Names { handle: None, other: None, long: false };
/// Waits for any branch, perhaps long.
const NAMES_LONG: Waits = Waits::Names { handle: None, other: None, long: true };

fn file(handle: u64, long: bool) -> Waits {
    Waits::File { handle, other: None, long }
}

impl<'r> Operation<'r> {
    pub(crate) fn of(request: &Request<'r>) -> Operation<'r> {
        use Changes::{Attributes, Makes, Nothing, Removes, Renames};
        let row = |changes, waits, locks_directory| Operation {
            changes,
            waits,
            locks_directory,
            carries_data: false,
            once: matches!(changes, Makes(_) | Removes(_) | Renames { .. }),
        };
        let once = |operation| Operation { once: true, ..operation };
        let data = |changes, waits| Operation { carries_data: true, ..row(changes, waits, false) };
        match request.op {
            Op::Lookup { .. } => row(Nothing, NAMES, true),
            Op::Symlink { name, .. } | Op::Mknod { name, .. } | Op::Mkdir { name, .. } => {
                row(Makes(name), NAMES, true)
            }
            Op::Link { name, old } => {
                row(Makes(name), Waits::Names { handle: None, other: Some(old), long: false }, true)
            }
            Op::Create(create) => row(Makes(create.name), NAMES, true),
            Op::Tmpfile(_) => once(row(Nothing, NAMES, true)),
            Op::Unlink { name } | Op::Rmdir { name } => row(Removes(name), NAMES, true),
            Op::Rename { name, newdir, newname, .. } => {
                row(Renames { from: name, to: (newdir, newname) }, NAMES, true)
            }

            Op::Getattr { handle: Some(handle) } | Op::Statx { handle: Some(handle), .. } => {
                row(Nothing, file(handle, false), false)
            }
            Op::Getattr { handle: None } | Op::Statx { handle: None, .. } => row(Nothing, NAMES, false),
            // Truncating takes as long as the disk needs. The kernel locks the file then, not a directory.
            Op::Setattr(set) => {
                let long = set.size.is_some();
                row(Attributes, Waits::Names { handle: set.handle, other: None, long }, !long)
            }
            Op::Readlink | Op::Access { .. } | Op::Getxattr { .. } | Op::Listxattr { .. } => {
                row(Nothing, NAMES, false)
            }
            Op::Setxattr { .. } | Op::Removexattr { .. } => once(row(Attributes, NAMES, true)),
            Op::Statfs => row(Nothing, Waits::AllBranches, false),

            Op::Open { .. } => once(row(Attributes, NAMES, false)),
            Op::Read(io) => data(Nothing, file(io.handle, false)),
            Op::Write(io) => {
                let appends = io.flags & OFlags::APPEND.bits() != 0;
                Operation { once: appends, ..data(Attributes, file(io.handle, false)) }
            }
            Op::Lseek { handle, .. } => row(Nothing, file(handle, false), false),
            // These write data to the disk, and take as long as it needs.
            Op::Flush { handle, .. } | Op::Fsync { handle, .. } => row(Nothing, file(handle, true), false),
            Op::Fallocate { handle, .. } => once(row(Attributes, file(handle, true), false)),
            Op::CopyFileRange(copy) => {
                let waits = Waits::File { handle: copy.handle_in, other: Some(copy.handle_out), long: true };
                row(Attributes, waits, false)
            }
            Op::Release { handle, .. } => row(Nothing, Waits::Close { handle }, false),
            Op::Ioctl { cmd: fitrim::FITRIM, .. } => row(Nothing, NAMES_LONG, false),
            // As long as the file is; the pool itself invalidates what has moved.
            Op::Ioctl { cmd: relocate::RELOCATE, .. } => row(Nothing, NAMES_LONG, false),
            Op::Ioctl { .. } => row(Attributes, NAMES, false),

            // Opening needs only what is in memory, or is read with the listing.
            Op::Opendir { .. } | Op::Releasedir { .. } => row(Nothing, Waits::Nothing, false),
            Op::Readdir(_) | Op::Readdirplus(_) => row(Nothing, NAMES, true),
            Op::Fsyncdir { .. } => row(Nothing, NAMES_LONG, true),
            Op::Syncfs => row(Nothing, NAMES_LONG, false),

            Op::Init(_)
            | Op::Forget { .. }
            | Op::BatchForget(_)
            | Op::Getlk(_)
            | Op::Setlk(_)
            | Op::Setlkw(_)
            | Op::Interrupt { .. }
            | Op::Poll { .. }
            | Op::Bmap { .. }
            | Op::Destroy
            | Op::NotifyReply { .. }
            | Op::SetupMapping(_)
            | Op::RemoveMapping { .. }
            | Op::CuseInit(_)
            | Op::Unknown(_) => row(Nothing, Waits::Nothing, false),
        }
    }
}
