//! Where something new goes.

use super::model::{BranchView, Choice, Exclusion, Pick, Policy, choose};
use super::random::Random;
use crate::branch::list::Mode;
use crate::error::Refusal;

/// Branches on which to create an entry, given views of its parent directory.
///
/// A branch is admitted if, in this order: its mode is RW (else EROFS); it holds the parent, for `ep*`,
/// `msp*` and `newest` (else ENOENT); its space is known (else ENOENT); its filesystem is writable and it is
/// well (else EROFS); and it has at least minfreespace available (else ENOSPC).
///
/// The climbing policies are their existing-path form here, on this one level; see [`create_climbing`].
pub fn create(policy: Policy, views: &[BranchView], dice: &mut impl Random) -> Result<Choice, Refusal> {
    choose(policy.pick(), views, |view| admit(policy, view), dice)
}

pub(super) fn admit(policy: Policy, view: &BranchView) -> Result<(), Exclusion> {
    match view.mode {
        Mode::Rw => {}
        Mode::Ro | Mode::Nc => return Err(Exclusion::Mode),
    }
    if policy.create_tests_path() && !view.present {
        return Err(Exclusion::Absent);
    }
    let space = view.space.ok_or(Exclusion::SpaceUnknown)?;
    if space.readonly {
        return Err(Exclusion::ReadOnly);
    }
    if view.unwell {
        return Err(Exclusion::Unwell);
    }
    if space.avail < view.min_free {
        return Err(Exclusion::BelowMinFree);
    }
    Ok(())
}

/// [`create`], where the climbing policies ask for the views of `path`, then of its parent, up to the root.
///
/// `path` is the directory to create in, relative to the pool's root and without a leading slash; the root is
/// the empty path. `level` gathers the views of the directory it is given, and its error ends the climb.
/// Other policies ask for `path` only.
///
/// When even the root has no usable branch the refusal is returned: that of all levels together, or of the
/// last one for `msppfrd`.
pub fn create_climbing<E>(
    policy: Policy,
    path: &[u8],
    mut level: impl FnMut(&[u8]) -> Result<Vec<BranchView>, E>,
    dice: &mut impl Random,
) -> Result<Result<Choice, Refusal>, E> {
    let mut path = path;
    let mut worst = Refusal::NotFound;
    loop {
        let refusal = match create(policy, &level(path)?, dice) {
            Ok(choice) => return Ok(Ok(choice)),
            Err(refusal) => refusal,
        };
        worst = if policy.pick() == Pick::Weighted { refusal } else { worst.worse(refusal) };
        // Each round makes the path shorter, and the empty path ends the climb.
        if path.is_empty() || !policy.climbs() {
            return Ok(Err(worst));
        }
        path = parent(path);
    }
}

/// The directory above: everything before the last slash, or the root.
fn parent(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|&byte| byte == b'/').unwrap_or(0);
    &path[..end]
}
