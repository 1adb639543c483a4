//! Which copies of something to change.

use super::model::{BranchView, Choice, Exclusion, Policy, choose};
use super::random::Random;
use crate::branch::list::Mode;
use crate::error::Refusal;

/// Branches on which to change an entry, given views of the entry itself.
///
/// A branch is admitted if, in this order: its mode is not RO (else EROFS); it holds the path (else ENOENT);
/// its space is known (else ENOENT); and its filesystem is writable and it is well (else EROFS). As the mode comes first,
/// one RO branch in the pool makes the refusal for a path that exists nowhere EROFS.
pub fn action(policy: Policy, views: &[BranchView], dice: &mut impl Random) -> Result<Choice, Refusal> {
    choose(policy.pick(), views, admit, dice)
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
