//! Blocks that filesystems keep: for root, or for the user and group named at mount (ext4's `resuid` and `resgid`).
//!
//! A filesystem decides by the ids of the thread that takes up space, and the daemon's are those of root. So unless there
//! is far more space than anybody can use up meanwhile, it is taken as nobody in particular (4.5 us for the two changes of
//! the thread's ids, where a 4 KiB write takes 1.2). Only when that fails is it worth asking who the caller is:
//! it then gets what it would get on the branch. (Creating a file or directory takes the caller's ids anyway.)
//!
//! With passthrough, the kernel takes the ids of the thread that registered the file (before Linux 7.2), whoever writes:
//! nobody's as well. A store through a mapping counts for the process that makes it.

use crate::door::Act;
use crate::door::Caller;
use crate::node::Node;
use crate::pool::{Op, State};
use canopy_base::error::Result;
use canopy_branch::fs::magic;
use canopy_branch::fs::stat::Attr;
use canopy_sys::creds::{self, Identity};
use rustix::io::Errno;

/// What a directory may need for one more name: a block of data, and two of its index.
pub(crate) const DIRECTORY_GROWS: u64 = 3 * 4096;

/// Write permission for the group and for others. Under an ACL, the group's is the mask.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// Returns whether `wanted` bytes more of a file may come from what its filesystem keeps.
pub(crate) fn nears_reserve(op: &Op<'_>, node: &Node, wanted: u64) -> bool {
    let Some(key) = node.key() else { return false };
    op.branches.iter().find(|branch| branch.dev == key.dev).is_none_or(|branch| branch.nears_reserve(wanted))
}

/// Returns whether a filesystem may keep blocks. One that is mounted below a branch may.
pub(crate) fn keeps_reserve(op: &Op<'_>, dev: u64) -> bool {
    op.branches.iter().find(|branch| branch.dev == dev).is_none_or(|branch| magic::keeps_reserve(branch.kind))
}

/// Runs an operation that takes up space, if it `nears` what the filesystem keeps with the caller's rights to that. It
/// runs again if it fails for lack of space. `attr` asks for the file's attributes.
pub(crate) fn take_space<T>(
    state: &State,
    nears: bool,
    attr: impl FnOnce() -> Option<Attr>,
    mut operation: impl FnMut() -> Result<T>,
) -> Result<T> {
    if !nears {
        return operation();
    }
    let first = {
        let _nobody = creds::without_reserve()?;
        operation()
    };
    match first {
        Err(error) if error.errno() == Errno::NOSPC => match spends_as(state, attr) {
            Some(identity) => identity.run(operation).unwrap_or(Err(error)),
            None => Err(error),
        },
        other => other,
    }
}

/// Returns for whom this thread takes up space. The kernel writes cached pages back for nobody: a file that only its
/// owner may write, for the owner.
fn spends_as(state: &State, attr: impl FnOnce() -> Option<Attr>) -> Option<Identity> {
    match state.kernel.load().caller_thread() {
        0 => {
            let attr = attr().filter(|attr| attr.mode & WRITABLE_BY_OTHERS == 0)?;
            Some(Identity::of_user(attr.uid))
        }
        thread => {
            let caller = Caller::of_thread(thread);
            caller.spends_as(state.admits(&caller, Act::SpendReserve).is_ok())
        }
    }
}
