//! Where something new is created.

use super::model::{BranchView, Choice, Exclusion, Pick, Policy, choose};
use super::random::Random;
use canopy_base::error::Refusal;
use canopy_branch::branch::list::Mode;

/// Chooses the branches on which to create an entry, given views of its parent directory.
///
/// A branch is admitted if, in this order: its mode is RW (else EROFS); it holds the parent, for `ep*`, `msp*` and
/// `newest` (else ENOENT); its space is known (else ENOENT); its filesystem is writable and it is healthy (else
/// EROFS); and it has at least minfreespace and an inode available (else ENOSPC).
///
/// The climbing policies choose on this one level only, as their existing-path form; see [`create_climbing`].
pub fn create(policy: Policy, views: &[BranchView], random: &mut impl Random) -> Result<Choice, Refusal> {
    choose(policy.pick(), views, |view| admit(policy, view), random)
}

pub(super) fn admit(policy: Policy, view: &BranchView) -> Result<(), Exclusion> {
    if view.outside {
        return Err(Exclusion::Outside);
    }
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
    if space.inodes == Some(0) {
        return Err(Exclusion::NoInodes);
    }
    if view.asleep {
        return Err(Exclusion::Asleep);
    }
    Ok(())
}

/// Leaves out the branches whose disks may sleep, as `sleeps` says of each by its index, if the policy accepts another. A policy
/// that chooses every branch is not restricted.
pub fn prefer_awake(policy: Policy, views: &mut [BranchView], sleeps: impl Fn(usize) -> bool) {
    let accepted = |view: &BranchView| admit(policy, view).is_ok();
    let awake = |(index, view): (usize, &BranchView)| accepted(view) && !sleeps(index);
    if policy.pick() == Pick::Every || !views.iter().enumerate().any(awake) {
        return;
    }
    for (index, view) in views.iter_mut().enumerate() {
        view.asleep = accepted(view) && sleeps(index);
    }
}

/// As [`create`], but the climbing policies try `path`, then its parent, up to the root.
///
/// `path` is the directory to create in, relative to the pool's root and without a leading slash; the root is the
/// empty path. `level` gathers the views of the directory it is given; an error of `level` ends the climb. Other
/// policies try `path` only.
///
/// If even the root has no usable branch, returns the refusal of all levels together or, for `msppfrd`, that of the
/// last level.
pub fn create_climbing<E>(
    policy: Policy,
    path: &[u8],
    mut level: impl FnMut(&[u8]) -> Result<Vec<BranchView>, E>,
    random: &mut impl Random,
) -> Result<Result<Choice, Refusal>, E> {
    let mut path = path;
    let mut worst = Refusal::NotFound;
    loop {
        let refusal = match create(policy, &level(path)?, random) {
            Ok(choice) => return Ok(Ok(choice)),
            Err(refusal) => refusal,
        };
        worst = if policy.pick() == Pick::Weighted { refusal } else { worst.worse(refusal) };
        // Each round makes the path shorter; the empty path ends the climb.
        if path.is_empty() || !policy.climbs() {
            return Ok(Err(worst));
        }
        path = parent(path);
    }
}

/// Returns the parent directory: everything before the last slash, or the root.
fn parent(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|&byte| byte == b'/').unwrap_or(0);
    &path[..end]
}
