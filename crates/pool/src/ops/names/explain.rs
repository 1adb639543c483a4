//! What a policy would choose now, and why: the answer to somebody who wonders where a file went.

use super::create::must_be_new;
use crate::branch::Branch;
use crate::config::Func;
use crate::dir::merged::MergedDir;
use crate::dir::symlinks::Symlinks;
use crate::error::{Error, Result};
use crate::ids::NodeId;
use crate::path::split;
use crate::policy::{self, BranchView, Category, Choice, Exclusion, Needs, Policy};
use crate::pool::Pool;
use std::sync::Arc;

/// One function, one path, and what its policy says of each branch.
#[derive(Clone, Debug)]
pub struct Explained {
    pub policy: Policy,
    /// The path whose presence on a branch counts, from the root of the pool and without a leading slash: for
    /// creation that of a directory, the one in which something is made or, where the policy climbs, one above.
    pub looked_at: Vec<u8>,
    /// Rename and link keep a file on the branches that hold the directory of its new name.
    pub preserves_paths: bool,
    /// In branch order.
    pub branches: Vec<(Arc<Branch>, BranchView)>,
    /// Why a branch was not admitted to the choice.
    pub exclusions: Vec<Option<Exclusion>>,
    /// The probability of each branch, where chance decides.
    pub chances: Option<Vec<f64>>,
    /// The branches that the function acts on, or how it fails. Where chance decides it is one draw.
    pub outcome: Result<Choice>,
}

/// Figures for people: more than the policy itself may need.
const ALL: Needs = Needs { presence: true, space: true };

impl Pool {
    /// What `func` does to `name` in the directory `id`. Without a name: to `id` itself, and for functions that
    /// create, to some new name in it.
    ///
    /// Errors: `ENOENT` for a node that has lost its name, `ENOTDIR` for a name in a file, `EINVAL` for what is
    /// no name of one thing in this directory.
    pub fn explain(&self, func: Func, id: NodeId, name: Option<&[u8]>) -> Result<Explained> {
        if name
            .is_some_and(|name| matches!(name, b"" | b"." | b"..") || name.iter().any(|b| b"/\0".contains(b)))
        {
            return Err(Error::Invalid);
        }
        let _held = self.tree.shared();
        let branches = self.branches.load();
        let (node, path) = self.nodes.locate(id)?;
        let path = path.ok_or(Error::Absent)?;
        let (category, policy) = (func.category(), self.config().policies.get(func));
        let creates = category == Category::Create;
        if (name.is_some() || creates) && !node.is_dir() {
            return Err(Error::NotDirectory);
        }
        let (dir, name) = match name {
            None if creates || path.is_empty() => (&path[..], None),
            None => {
                let (dir, name) = split(&path);
                (dir, Some(name))
            }
            name => (&path[..], name),
        };
        let mut dirs = MergedDir::open(self.follow(), &branches, dir);
        if matches!(func, Func::Link | Func::Rename | Func::Rmdir | Func::Unlink) {
            // Names are changed, and what is under them: of a followed symlink, the link.
            dirs.follow = Symlinks::NEVER;
        }
        let copies = name.map_or_else(|| dirs.own(), |name| dirs.copies(name));
        let mut looked_at = match name {
            Some(name) if dir.is_empty() => name.to_vec(),
            Some(name) => [dir, b"/", name].concat(),
            None => dir.to_vec(),
        };
        let mut views = self.views(&branches, &copies, ALL.space).to_vec();
        let outcome = match category {
            Category::Create => {
                let see = |at: &[u8], level: &[BranchView]| {
                    looked_at = at.to_vec();
                    views = level.to_vec();
                };
                // What the policy says, also where the name is taken.
                let placed = self.choose_for_create_seen(func, &dirs, dir, &[], ALL, see);
                name.map_or(Ok(()), |name| must_be_new(&dirs, name, &copies)).and(placed)
            }
            Category::Action => self.choose_by_policy(func, &branches, &copies).and_then(|choice| {
                if matches!(func, Func::Unlink | Func::Rmdir | Func::Rename) {
                    self.all_removable(&branches, std::iter::once(&copies))?;
                }
                Ok(choice)
            }),
            Category::Search => {
                self.shown(func, &branches, &copies).map(|index| Choice::from_slice(&[index]))
            }
        };
        let judgement = policy::explain(policy, category, &views);
        Ok(Explained {
            policy,
            looked_at,
            preserves_paths: self.preserves_paths(),
            branches: branches.iter().cloned().zip(views).collect(),
            exclusions: judgement.exclusions,
            chances: judgement.chances,
            outcome,
        })
    }
}
