//! The name of the control file in the root of the pool. An entry of this name on a branch is neither found nor
//! listed.

use crate::translate::operation::{Changes, Operation};
use canopy_control::CONTROL_FILE;
use canopy_fuse::request::Name;
use canopy_fuse::{NodeId, Request};
use rustix::io::Errno;

const NAME: &[u8] = CONTROL_FILE.as_bytes();

/// Returns whether this is the name of the control file.
pub(crate) fn is_control_file(dir: canopy_base::ids::NodeId, name: &[u8]) -> bool {
    dir == canopy_base::ids::NodeId::ROOT && name == NAME
}

/// Returns the error for a request that would change the name of the control file: it cannot be created again,
/// replaced or removed.
pub(crate) fn refusal(request: &Request<'_>) -> Option<Errno> {
    let dir = request.header.node;
    let hidden = |dir: NodeId, name: Name<'_>| dir == NodeId::ROOT && name.as_bytes() == NAME;
    match Operation::of(request).changes {
        Changes::Makes(name) if hidden(dir, name) => Some(Errno::EXIST),
        Changes::Removes(name) | Changes::Renames { from: name, .. } if hidden(dir, name) => {
            Some(Errno::NOENT)
        }
        Changes::Renames { to: (dir, name), .. } if hidden(dir, name) => Some(Errno::PERM),
        _ => None,
    }
}
