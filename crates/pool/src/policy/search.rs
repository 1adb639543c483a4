//! Which copies of something to look at.

use super::{BranchView, Choice, Dice, Policy, Refusal, choose};

/// Branches on which to look at an entry, given views of the entry itself.
///
/// A branch is admitted if it holds the path and, for the policies that compare space, its space is known.
/// Modes do not matter. The only refusals are ENOENT, and EROFS from the policy `erofs`.
pub fn search(policy: Policy, views: &[BranchView], dice: &mut impl Dice) -> Result<Choice, Refusal> {
    let pick = policy.pick();
    let reads_space = pick.reads_space();
    choose(
        pick,
        views,
        |view| {
            if view.present && (!reads_space || view.space.is_some()) {
                Ok(())
            } else {
                Err(Refusal::NotFound)
            }
        },
        dice,
    )
}
