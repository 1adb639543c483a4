//! Who has woken a disk: the request that a worker carries out.

use crate::translate::operation::{Changes, Operation, Waits};
use canopy_base::ids::NodeId;
use canopy_branch::branch::rest::{self, Client, Serving};
use canopy_fuse::opcode;
use canopy_fuse::{Op, Request};
use canopy_pool::{Pool, door, ops};

/// Names the request as the one that the calling thread works for, until the value is dropped.
pub(super) fn serve(request: &Request<'_>, operation: &Operation<'_>) -> Serving {
    let changes = !matches!(operation.changes, Changes::Nothing);
    // To read sets the access time, which is written later.
    let reads =
        operation.carries_data || matches!(request.op, Op::Readdir(_) | Op::Readdirplus(_) | Op::Readlink);
    rest::serve(Client {
        thread: request.header.pid,
        operation: opcode::name_of(request.header.opcode),
        later: (changes || reads) && !matches!(operation.waits, Waits::Nothing),
        program: door::process_of,
    })
}

/// Returns the name that an operation is about, in the directory that it names. `None` while no disk rests, and for those that
/// are about the node itself.
pub(super) fn name(op: &Op<'_>) -> Option<Box<[u8]>> {
    if !rest::any_rests() {
        return None;
    }
    let name = match *op {
        Op::Lookup { name }
        | Op::Symlink { name, .. }
        | Op::Mknod { name, .. }
        | Op::Mkdir { name, .. }
        | Op::Link { name, .. }
        | Op::Unlink { name }
        | Op::Rmdir { name }
        | Op::Rename { name, .. } => name,
        Op::Create(create) => create.name,
        _ => return None,
    };
    Some(name.as_bytes().into())
}

/// Tells the path of what the request was about, if it has woken a disk.
pub(super) fn tell(pool: &Pool, node: NodeId, name: Option<&[u8]>) {
    if rest::wants_path() {
        let known = ops::external_changes::known(pool);
        let path = match name {
            Some(name) => known.path_of(node, name),
            None => known.path(node),
        };
        rest::set_path(path.as_deref());
    }
}
