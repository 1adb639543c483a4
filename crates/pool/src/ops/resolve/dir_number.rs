//! The inode numbers of directories.
//!
//! A directory gets its number when it becomes known, and keeps it while its node lives. That number is to be the same
//! when it is found anew, wherever it was renamed to.

use crate::config::Func;
use crate::dir::merged::MergedDir;
use crate::export::StableId;
use crate::node::{Identity, Node};
use crate::ops::resolve;
use crate::pool::Op;
use canopy_base::ids::NodeId;
use canopy_base::inode_number::{BranchSeed, OfDirectory};
use canopy_branch::branch::Branch;
use canopy_branch::fs::beneath;
use canopy_branch::fs::stat::Attr;
use rustix::fs::OFlags;

/// Returns the number of a directory that is not known yet, given its path, the copy that is shown, and all copies.
pub(crate) fn dir_number<'a>(
    op: &Op<'_>,
    path: &[u8],
    shown: (&'a Branch, &'a Attr),
    copies: impl Iterator<Item = (&'a Branch, &'a Attr)>,
) -> u64 {
    let calc = op.config.inode;
    let of = match calc.of_directory() {
        OfDirectory::Path => None,
        OfDirectory::Shown => Some(shown),
        // The root has one place, and is never renamed.
        OfDirectory::Oldest if path.is_empty() => None,
        OfDirectory::Oldest => StableId::oldest(copies),
    };
    let Some((branch, attr)) = of else {
        return calc.inode_seeded(shown.0.seed, path, shown.1.ino, true);
    };
    // The directory may be the root of another filesystem mounted on the branch, with an inode number that every such
    // root has.
    let find = || beneath::open(branch.root(), path, OFlags::PATH).ok();
    calc.inode_seeded(resolve::inode_seed::seed(op, branch, attr.dev, find), path, attr.ino, false)
}

/// Returns the number of a known directory. Looks at its copies only once after the option has changed.
pub(crate) fn number_of(op: &Op<'_>, node: &Node) -> u64 {
    match node.identity() {
        Identity::Directory { ino: 0 } => number_again(op, node),
        Identity::Directory { ino } => ino,
        Identity::File(_) => 0,
    }
}

#[cold]
fn number_again(op: &Op<'_>, node: &Node) -> u64 {
    let number = || {
        let path = op.nodes.dir_path(node.id).ok()?;
        let copies = MergedDir::open(resolve::dirs::follow(op), &op.branches, &path).own();
        let shown = resolve::choose::shown(op, Func::Getattr, &copies).ok()?;
        let each = |index: usize| -> &Branch { &op.branches.as_slice()[index] };
        let all = copies.iter().map(|(index, attr)| (each(index), attr));
        Some(dir_number(op, &path, (each(shown), copies.get(shown)?), all))
    };
    // A directory without a name is found nowhere else.
    let number =
        number().unwrap_or_else(|| op.config.inode.fit(BranchSeed::new(&node.id.0.to_ne_bytes()).number()));
    op.nodes.number_again(node, number)
}

/// Has all known directories get numbers by the option as it is now.
pub(crate) fn renumber(op: &Op<'_>) {
    op.nodes.renumber(op.config.inode.inode(b"", b"", NodeId::ROOT.0, true));
    op.cursors.clear();
}
