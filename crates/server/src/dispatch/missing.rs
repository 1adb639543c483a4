//! What requests may not do where a branch is missing.

use super::{Call, Dispatch};
use crate::translate::convert;
use canopy_base::ids::NodeId;
use canopy_fuse::Op;
use canopy_pool::ops::names::missing::{NameUse, Use, Verdict, judge, judge_name};
use rustix::io::Errno;

/// Attributes that the kernel asks for before anything else: what is remembered has none of them.
const OF_THE_KERNEL: [&[u8]; 2] = [b"system.posix_acl_", b"security."];

impl Dispatch {
    /// Returns what becomes of a request that may concern a missing branch.
    pub(super) fn judge_missing(&self, call: &Call<'_>, op: &Op<'_>) -> Verdict {
        if !self.pool.any_missing() {
            return Verdict::Pass;
        }
        let node = |id: NodeId, use_| judge(&self.pool, id, use_);
        let name = |dir: NodeId, name: &[u8], use_| judge_name(&self.pool, dir, name, use_);
        let own = call.node;
        match op {
            Op::Open { .. } => node(own, Use::Open),
            Op::Getxattr { name, .. } => match node(own, Use::Open) {
                Verdict::Refuse(_) if OF_THE_KERNEL.iter().any(|own| name.to_bytes().starts_with(own)) => {
                    Verdict::Refuse(Errno::NODATA)
                }
                verdict => verdict,
            },
            Op::Listxattr { .. } => node(own, Use::Open),
            Op::Setattr(set) if set.handle.is_none() => node(own, Use::Change),
            Op::Setxattr { .. } | Op::Removexattr { .. } => node(own, Use::Change),
            Op::Create(create) => name(own, create.name.as_bytes(), NameUse::Make),
            Op::Mkdir { name: new, .. } | Op::Mknod { name: new, .. } | Op::Symlink { name: new, .. } => {
                name(own, new.as_bytes(), NameUse::Make)
            }
            Op::Tmpfile(_) => node(own, Use::Change),
            Op::Link { old, name: new } => match node(convert::node(*old), Use::Change) {
                Verdict::Pass => name(own, new.as_bytes(), NameUse::Make),
                verdict => verdict,
            },
            Op::Unlink { name: old } => name(own, old.as_bytes(), NameUse::Unlink),
            Op::Rmdir { name: old } => name(own, old.as_bytes(), NameUse::Rmdir),
            Op::Rename { name: old, newdir, newname, .. } => {
                match name(own, old.as_bytes(), NameUse::RenameFrom) {
                    Verdict::Pass => name(convert::node(*newdir), newname.as_bytes(), NameUse::RenameTo),
                    verdict => verdict,
                }
            }
            _ => Verdict::Pass,
        }
    }
}
