//! Which copies an operation changes.

use super::model::{BranchView, Choice, Exclusion, Policy, choose};
use super::random::Random;
use canopy_base::error::Refusal;
use canopy_branch::branch::list::Mode;

/// Chooses the branches on which to change an entry, given views of the entry itself.
///
/// A branch is admitted if, in this order: its mode is not RO (else EROFS); it holds the path (else ENOENT); its
/// space is known (else ENOENT); and its filesystem is writable and it is healthy (else EROFS). As the mode comes
/// first, one RO branch in the pool makes the refusal EROFS even for a path that exists nowhere.
pub fn action(policy: Policy, views: &[BranchView], random: &mut impl Random) -> Result<Choice, Refusal> {
    choose(policy.pick(), views, admit, random)
}

pub(super) fn admit(view: &BranchView) -> Result<(), Exclusion> {
    match view.mode {
        Mode::Rw | Mode::Nc => {}
        Mode::Ro => return Err(Exclusion::Mode),
    }
    if !view.present {
        return Err(Exclusion::Absent);
    }
    let space = view.space.ok_or(Exclusion::SpaceUnknown)?;
    if space.readonly {
        return Err(Exclusion::ReadOnly);
    }
    if view.unwell {
        return Err(Exclusion::Unwell);
    }
    Ok(())
}
