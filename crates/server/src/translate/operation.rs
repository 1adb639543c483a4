//! What an operation is: one exhaustive table.
//!
//! Nothing else asks for the properties of an operation by matching on it. What an operation does is in `dispatch`.

use canopy_fuse::request::{Name, NodeId};
use canopy_fuse::{Op, Request};
use canopy_sys::ioctl::fitrim;

/// The properties of an operation.
#[derive(Clone, Copy)]
pub(crate) struct Operation<'r> {
    pub(crate) changes: Changes<'r>,
    pub(crate) waits: Waits,
    /// The kernel keeps the directory locked from before it sends the request until it has the answer (fs/namei.c, and
    /// fs/readdir.c iterate_dir).
    pub(crate) locks_directory: bool,
    /// Reads or writes file data: `proxy-ioprio` does that with the I/O priority of the caller.
    pub(crate) carries_data: bool,
}

/// What an operation changes of what the kernel remembers. A name that is made or removed changes the attributes of its
/// directory, too.
#[derive(Clone, Copy)]
pub(crate) enum Changes<'r> {
    Nothing,
    /// Attributes of the node that the request is sent for.
    Attributes,
    /// A name in that directory.
    Makes(Name<'r>),
    Removes(Name<'r>),
    Renames {
        from: Name<'r>,
        to: (NodeId, Name<'r>),
    },
}

/// What an operation may have to wait for. `long`: it takes its time on a branch that is well, too.
#[derive(Clone, Copy)]
pub(crate) enum Waits {
    /// No branch, or nobody waits for the answer.
    Nothing,
    /// Any branch, and the operation holds locks over names meanwhile. `handle`: of the node; `other`: a second node.
    Names { handle: Option<u64>, other: Option<NodeId>, long: bool },
    /// All branches alike, whatever node the request is sent for.
    AllBranches,
    /// The branch of an open file, or those of two.
    File { handle: u64, other: Option<u64>, long: bool },
    /// The same, of a file that is closed in any case.
    Close { handle: u64 },
}

/// Waits for any branch.
const NAMES: Waits = Waits::Names { handle: None, other: None, long: false };
/// Waits for any branch, and long.
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
        };
        let data = |changes, waits| Operation { changes, waits, locks_directory: false, carries_data: true };
        match request.op {
            Op::Lookup { .. } => row(Nothing, NAMES, true),
            Op::Symlink { name, .. } | Op::Mknod { name, .. } | Op::Mkdir { name, .. } => {
                row(Makes(name), NAMES, true)
            }
            Op::Link { name, old } => {
                row(Makes(name), Waits::Names { handle: None, other: Some(old), long: false }, true)
            }
            Op::Create(create) => row(Makes(create.name), NAMES, true),
            Op::Tmpfile(_) => row(Nothing, NAMES, true),
            Op::Unlink { name } | Op::Rmdir { name } => row(Removes(name), NAMES, true),
            Op::Rename { name, newdir, newname, .. } => {
                row(Renames { from: name, to: (newdir, newname) }, NAMES, true)
            }

            Op::Getattr { handle: Some(handle) } | Op::Statx { handle: Some(handle), .. } => {
                row(Nothing, file(handle, false), false)
            }
            Op::Getattr { handle: None } | Op::Statx { handle: None, .. } => row(Nothing, NAMES, false),
            // A new size takes as long as the disk does; the kernel locks the file then, not a directory.
            Op::Setattr(set) => {
                let long = set.size.is_some();
                row(Attributes, Waits::Names { handle: set.handle, other: None, long }, !long)
            }
            Op::Readlink | Op::Access { .. } | Op::Getxattr { .. } | Op::Listxattr { .. } => {
                row(Nothing, NAMES, false)
            }
            Op::Setxattr { .. } | Op::Removexattr { .. } => row(Attributes, NAMES, true),
            Op::Statfs => row(Nothing, Waits::AllBranches, false),

            Op::Open { .. } => row(Attributes, NAMES, false),
            Op::Read(io) => data(Nothing, file(io.handle, false)),
            Op::Write(io) => data(Attributes, file(io.handle, false)),
            Op::Lseek { handle, .. } => row(Nothing, file(handle, false), false),
            // What was written goes to the disk; these take as long as that does.
            Op::Flush { handle, .. } | Op::Fsync { handle, .. } => row(Nothing, file(handle, true), false),
            Op::Fallocate { handle, .. } => row(Attributes, file(handle, true), false),
            Op::CopyFileRange(copy) => {
                let waits = Waits::File { handle: copy.handle_in, other: Some(copy.handle_out), long: true };
                row(Attributes, waits, false)
            }
            Op::Release { handle, .. } => row(Nothing, Waits::Close { handle }, false),
            Op::Ioctl { cmd: fitrim::FITRIM, .. } => row(Nothing, NAMES_LONG, false),
            Op::Ioctl { .. } => row(Attributes, NAMES, false),

            // What the kernel asks for here is remembered, or read with the listing.
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
