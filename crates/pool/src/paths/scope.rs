//! What an operation uses of the tree, and what is about to change in it.

use canopy_base::hash;
use canopy_base::ids::NodeId;
use smallvec::SmallVec;

/// Stands for no node, and for every node.
const NONE: u64 = 0;
const EVERYTHING: u64 = u64::MAX;
/// Stands for every name in a directory.
const ANY_NAME: u32 = 0;

/// What is known of the tree.
pub(crate) trait Tree {
    /// Returns whether a node, or one of the names of a file, is `dir` or below it.
    fn is_within(&self, node: NodeId, dir: NodeId) -> bool;
}

/// A node that is used, and which name in it. Of a node that is no directory, its own names are meant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Used {
    pub(super) node: u64,
    pub(super) name: u32,
}

/// What an operation uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Uses(pub(super) [Used; 2]);

/// What is about to change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Changing {
    /// A directory's place, and so that of everything below it.
    Below(NodeId),
    /// What a name leads to.
    Name(NodeId, u32),
    /// Which file a node is.
    Node(NodeId),
    /// Anything.
    Everything,
}

pub(crate) type Scope = SmallVec<[Changing; 4]>;

fn name_of(name: &[u8]) -> u32 {
    (hash::of(name) as u32).max(1)
}

impl Uses {
    const UNUSED: Used = Used { node: NONE, name: ANY_NAME };

    /// A file or a directory with all in it.
    pub(crate) fn node(id: NodeId) -> Uses {
        Uses([Used { node: id.0, name: ANY_NAME }, Uses::UNUSED])
    }

    /// One name in a directory.
    pub(crate) fn name(dir: NodeId, name: &[u8]) -> Uses {
        Uses([Used { node: dir.0, name: name_of(name) }, Uses::UNUSED])
    }

    /// Both.
    pub(crate) fn and(self, other: Uses) -> Uses {
        debug_assert!(self.0[1] == Uses::UNUSED && other.0[1] == Uses::UNUSED, "two at most");
        Uses([self.0[0], other.0[0]])
    }

    /// For work on paths that no node is known of.
    pub(crate) const EVERYTHING: Uses = Uses([Used { node: EVERYTHING, name: ANY_NAME }, Uses::UNUSED]);
}

impl Changing {
    pub(crate) fn name(dir: NodeId, name: &[u8]) -> Changing {
        Changing::Name(dir, name_of(name))
    }

    fn touches(self, used: Used, tree: &impl Tree) -> bool {
        match self {
            _ if used.node == NONE => false,
            _ if used.node == EVERYTHING => true,
            Changing::Everything => true,
            Changing::Below(dir) => tree.is_within(NodeId(used.node), dir),
            Changing::Name(dir, name) => used.node == dir.0 && (used.name == ANY_NAME || used.name == name),
            Changing::Node(node) => used.node == node.0,
        }
    }

    /// Returns what the one who changes it uses for that.
    fn used(self) -> Used {
        match self {
            Changing::Below(node) | Changing::Node(node) => Used { node: node.0, name: ANY_NAME },
            Changing::Name(dir, name) => Used { node: dir.0, name },
            Changing::Everything => Used { node: EVERYTHING, name: ANY_NAME },
        }
    }
}

pub(super) fn touches(scope: &[Changing], uses: impl IntoIterator<Item = Used>, tree: &impl Tree) -> bool {
    uses.into_iter().any(|used| scope.iter().any(|changing| changing.touches(used, tree)))
}

pub(super) fn exclude(one: &[Changing], other: &[Changing], tree: &impl Tree) -> bool {
    let used =
        |scope: &[Changing]| scope.iter().map(|changing| changing.used()).collect::<SmallVec<[Used; 8]>>();
    touches(one, used(other), tree) || touches(other, used(one), tree)
}
