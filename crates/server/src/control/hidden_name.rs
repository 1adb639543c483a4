//! The control file's name in the root of the pool. What a branch has under it is neither found nor listed.

use crate::translate::operation::{Changes, Operation};
use canopy_config::control_api::CONTROL_FILE;
use canopy_fuse::request::Name;
use canopy_fuse::{NodeId, Request};
use rustix::io::Errno;

const NAME: &[u8] = CONTROL_FILE.as_bytes();

/// Is this the control file's name?
pub(crate) fn hides(dir: canopy_pool::NodeId, name: &[u8]) -> bool {
    dir == canopy_pool::NodeId::ROOT && name == NAME
}

/// Why a change of the control file's name is refused: nothing can be made there, what is moved there would not be
/// seen again, and there is nothing to be taken away.
pub(crate) fn refuses(request: &Request<'_>) -> Option<Errno> {
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
