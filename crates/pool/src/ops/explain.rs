//! Explains which branches a policy would choose now, and why.

use crate::config::Func;
use crate::dir::merged::MergedDir;
use crate::dir::symlinks::Symlinks;
use crate::ops::names;
use crate::ops::names::create::must_be_new;
use crate::ops::resolve;
use crate::ops::resolve::choose::SpaceNeed;
use crate::paths::Uses;
use crate::pool::{Op, Pool};
use canopy_base::error::{Error, Result};
use canopy_base::ids::NodeId;
use canopy_base::path::{join, split};
use canopy_branch::branch::{Branch, Branches};
use canopy_policy::placement::{Order, Set};
use canopy_policy::{self as policy, BranchView, Category, Choice, Exclusion, Policy};
use std::sync::Arc;

/// How the policy of one function judges each branch for one path.
#[derive(Clone, Debug)]
pub struct Explained {
    pub policy: Policy,
    /// The path whose presence on a branch counts, from the root of the pool and without a leading slash. For creation
    /// it is the directory of the new name or, if the policy climbs, one of its ancestors.
    pub looked_at: Vec<u8>,
    /// Rename and link use only branches that already hold the directory of the new name.
    pub preserves_paths: bool,
    /// In branch order.
    pub branches: Vec<(Arc<Branch>, BranchView)>,
    /// What tiers and rules say, if they concern the new name.
    pub placed: Option<Placed>,
    /// Why the policy excluded a branch.
    pub exclusions: Vec<Option<Exclusion>>,
    /// The probability of each branch, for a random policy.
    pub chances: Option<Vec<f64>>,
    /// The branches that the function acts on, or its error. For a random policy, this is one draw.
    pub outcome: Result<Choice>,
}

/// The sets of branches that the policy chooses from, one after the other.
#[derive(Clone, Debug)]
pub struct Placed {
    /// The path of the rule that decided.
    pub rule: Option<String>,
    /// How many copies that wants.
    pub copies: Option<u8>,
    /// Empty if all branches are alike.
    pub sets: Vec<PlacedSet>,
}

#[derive(Clone, Debug)]
pub struct PlacedSet {
    pub name: String,
    /// The indices of its branches.
    pub branches: Vec<usize>,
    pub answer: SetAnswer,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SetAnswer {
    /// No branch of it could be chosen.
    PassedOver,
    Chosen,
    /// One before it was chosen.
    NotAsked,
}

/// Explains the policy's choice for `func` on `name` in the directory `id`. Without a name, it is for `id` itself,
/// or, if `func` creates, for some new name in `id`.
///
/// Errors: `ENOENT` for a node that has lost its name; `ENOTDIR` for a name in a file; `EINVAL` if `name` is not a
/// single path component, or is `.` or `..`.
pub fn explain(pool: &Pool, func: Func, id: NodeId, name: Option<&[u8]>) -> Result<Explained> {
    let op = &mut Op::begin(pool);
    if name.is_some_and(|name| matches!(name, b"" | b"." | b"..") || name.iter().any(|b| b"/\0".contains(b)))
    {
        return Err(Error::Invalid);
    }
    let _held = op.using(Uses::node(id));
    let (node, path) = op.nodes.locate(id)?;
    let path = path.ok_or(Error::Absent)?;
    let config = &op.config;
    let (category, policy) = (func.category(), config.policies.get(func));
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
    let mut dirs = MergedDir::open(resolve::dirs::follow(op), &op.branches, dir);
    if matches!(func, Func::Link | Func::Rename | Func::Rmdir | Func::Unlink) {
        // These functions change names: of a followed symlink, the symlink itself.
        dirs.follow = Symlinks::NEVER;
    }
    let copies = name.map_or_else(|| dirs.own(), |name| resolve::generations::copies(op, &dirs, name));
    let mut looked_at = match name {
        Some(name) if dir.is_empty() => name.to_vec(),
        Some(name) => [dir, b"/", name].concat(),
        None => dir.to_vec(),
    };
    let mut views = resolve::choose::views(op, &copies, true).to_vec();
    // The last views of each set of branches, by which those outside of the last one are judged.
    let mut sets_seen: Vec<Vec<BranchView>> = Vec::new();
    let mut has_room = false;
    let outcome = match category {
        Category::Create => {
            let mut last = None;
            let see = |at: &[u8], level: &[BranchView], set: Option<Set<'_>>| {
                let name = set.map(|set| set.to_string());
                if name == last {
                    sets_seen.pop();
                }
                sets_seen.push(level.to_vec());
                last = name;
                looked_at = at.to_vec();
                views = level.to_vec();
            };
            // All figures, because users see them, even those that the policy does not need.
            let every = (true, SpaceNeed::of(true, &op.branches));
            // Asks the policy even if the name exists, so that the views are complete.
            let placed = resolve::choose::choose_for_create_seen(
                op,
                func,
                &dirs,
                (dir, name.unwrap_or_default()),
                &[],
                every,
                see,
            );
            has_room = placed.is_ok();
            name.map_or(Ok(()), |name| must_be_new(&dirs, name, &copies)).and(placed)
        }
        Category::Action => resolve::choose::choose_by_policy(op, func, &copies).and_then(|choice| {
            if matches!(func, Func::Unlink | Func::Rmdir | Func::Rename) {
                resolve::choose::all_removable(op, std::iter::once(&copies))?;
            }
            Ok(choice)
        }),
        Category::Search => {
            resolve::choose::shown(op, func, &copies).map(|index| Choice::from_slice(&[index]))
        }
    };
    let mut judgement = policy::explain(policy, category, &views);
    for seen in &sets_seen {
        for (index, why) in policy::explain(policy, category, seen).exclusions.into_iter().enumerate() {
            if judgement.exclusions[index] == Some(Exclusion::Outside) {
                judgement.exclusions[index] = why;
            }
        }
    }
    let (placement, is_placed) = (&config.placement, creates && func != Func::Mkdir);
    let order = is_placed.then(|| placement.order(dir, name.unwrap_or_default())).flatten();
    let placed = order.map(|order| placed(&order, &op.branches, sets_seen.len(), has_room));
    let copied = || {
        let rule = placement.rule(&join(dir, name?)).filter(|rule| is_placed && rule.copies.is_some())?;
        let path = rule.path.as_str().to_owned();
        Some(Placed { rule: Some(path), copies: rule.copies, sets: Vec::new() })
    };
    let placed = placed.or_else(copied);
    Ok(Explained {
        policy,
        looked_at,
        preserves_paths: names::link::preserves_paths(op),
        branches: op.branches.iter().cloned().zip(views).collect(),
        placed,
        exclusions: judgement.exclusions,
        chances: judgement.chances,
        outcome,
    })
}

/// Describes the sets of an order, of which so many were asked; the last of them has room, or none has.
fn placed(order: &Order<'_>, branches: &Branches, asked: usize, has_room: bool) -> Placed {
    let set = |(index, set): (usize, &Set<'_>)| PlacedSet {
        name: set.to_string(),
        branches: (0..branches.len()).filter(|at| set.holds(&branches.as_slice()[*at].path)).collect(),
        answer: match index + 1 {
            nth if nth > asked => SetAnswer::NotAsked,
            nth if nth == asked && has_room => SetAnswer::Chosen,
            _ => SetAnswer::PassedOver,
        },
    };
    let rule = order.rule.map(|rule| rule.path.as_str().to_owned());
    let copies = order.rule.and_then(|rule| rule.copies);
    Placed { rule, copies, sets: order.sets.iter().enumerate().map(set).collect() }
}
