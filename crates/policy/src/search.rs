//! Which copies an operation looks at.

use super::model::{BranchView, Choice, Exclusion, Policy, UseOfSpace, choose};
use super::random::Random;
use canopy_base::error::Refusal;

/// Chooses the branches on which to look at an entry, given views of the entry itself.
///
/// A branch is admitted if it holds the path and, for policies that compare space, its space is known. Modes do not
/// matter. The only refusals are ENOENT, and EROFS from the policy `erofs`.
pub fn search(policy: Policy, views: &[BranchView], random: &mut impl Random) -> Result<Choice, Refusal> {
    choose(policy.pick(), views, |view| admit(policy, view), random)
}

pub(super) fn admit(policy: Policy, view: &BranchView) -> Result<(), Exclusion> {
    if !view.present {
        return Err(Exclusion::Absent);
    }
    if policy.use_of_space() != UseOfSpace::None && view.space.is_none() {
        return Err(Exclusion::SpaceUnknown);
    }
    Ok(())
}
