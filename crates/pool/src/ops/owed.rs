//! What branches that are away will be owed: changes of names are noted in the journals of the branches that they happen on.
//! Nothing is noted, nor read, as long as all are there, or without a rule about copies.

use crate::node::Node;
use crate::ops::branch_deadlines::set_silent;
use crate::paths::Changing;
use crate::pool::{Op, Pool};
use canopy_branch::branch::{Branch, BranchId, Branches};
use canopy_branch::journal::{Change, When};
use smallvec::smallvec;
use std::sync::Arc;
use std::time::Duration;

/// Notes a change of names that has happened on these branches. Comes before the answer, so that of two changes of one name the
/// second is noted second.
pub(crate) fn note(op: &Op<'_>, on: impl IntoIterator<Item = usize>, change: impl Fn() -> Change) {
    op.unreadable.changed(&change);
    if op.journals.owes() {
        let on = on.into_iter().filter_map(|index| op.branches.get(index)).map(|branch| branch.id);
        op.journals.note(on, &change());
    }
}

/// Notes a change of a directory's attributes in the same way.
pub(crate) fn note_attributes(op: &Op<'_>, node: &Node, on: impl IntoIterator<Item = Option<usize>>) {
    if node.is_dir()
        && op.journals.owes()
        && let Ok((_, Some(path))) = op.nodes.locate(node.id)
    {
        note(op, on.into_iter().flatten(), || Change::Attributes(path.clone()));
    }
}

/// How long a change of branches waits for operations that have begun, so that none is between the branches before and after. One
/// that is stuck does not keep a disk away.
const QUIET_WITHIN: Duration = Duration::from_secs(2);

/// Puts branches in force. Those that come are brought up to date: first beside the changes of clients, then, for what has been
/// noted meanwhile, without.
pub(crate) fn put_in_force(pool: &Pool, branches: Branches) {
    let before = pool.all_branches();
    // A disk that was there already may hang.
    let is_new = |branch: &Branch| before.by_id(branch.id).is_none();
    let branches = prepare(pool, branches, When::Before, is_new);
    let lacks = |one: &Branches, other: &Branches| one.iter().any(|branch| other.by_id(branch.id).is_none());
    let differ = lacks(&branches, &before) || lacks(&before, &branches);
    let quiet = if pool.config().placement.knows_copies() && differ {
        pool.paths.claim(&smallvec![Changing::Everything], Some(QUIET_WITHIN), &pool.nodes)
    } else {
        None
    };
    let branches = prepare(pool, branches, When::Now, is_new);
    pool.put_branches(branches);
    drop(quiet);
}

/// Notes from now on what a branch misses that does not answer. Touches no disk. Comes before the branches are in force without it.
pub(crate) fn leave_out(pool: &Pool, branch: BranchId) {
    if pool.config().placement.knows_copies() {
        pool.journals.leave_out(branch);
    }
}

/// Returns whether a branch that answers again may have missed changes, so that it is to be [taken back](take_back). Touches no
/// disk.
pub fn may_have_missed(pool: &Pool, branch: BranchId) -> bool {
    pool.journals.is_left_out(branch) && pool.all_branches().by_id(branch).is_some()
}

/// Puts a branch in force again that has not answered, after it has been brought up to date. May wait for its disk. Returns false
/// if it has to stay out.
pub fn take_back(pool: &Pool, branch: BranchId) -> bool {
    if !pool.config().placement.knows_copies() {
        set_silent(pool, branch, false);
        pool.journals.end(&pool.all_branches(), |other| other.id == branch);
        return true;
    }
    let stays_out = |when| {
        let left_out = pool.journals.take_back(when, branch, &pool.all_branches());
        left_out.iter().any(|left| left.branch == branch)
    };
    if stays_out(When::Before) {
        return false;
    }
    let _quiet = pool.paths.claim(&smallvec![Changing::Everything], Some(QUIET_WITHIN), &pool.nodes);
    if stays_out(When::Now) {
        return false;
    }
    set_silent(pool, branch, false);
    true
}

/// Opens the journals of all branches, or ends them, as the rules want it.
pub fn follow_rules(pool: &Pool) {
    let all = pool.all_branches();
    let rest = prepare(pool, (*all).clone(), When::Now, |_| true);
    if rest.len() < all.len() {
        pool.put_branches(rest);
    }
}

/// Says in the journals of branches that are about to be in force which others are away, and brings those up to date that were.
/// Returns them without those that have to stay out. Without a rule, ends journals on those that are `examined`.
fn prepare(pool: &Pool, branches: Branches, when: When, examined: impl Fn(&Branch) -> bool) -> Branches {
    if !pool.config().placement.knows_copies() {
        pool.journals.end(&branches, examined);
        return branches;
    }
    let before = pool.all_branches();
    let stays = |branch: &Branch| before.by_id(branch.id).is_some();
    let left_out = pool.journals.arrange(when, &stays, &branches);
    let is_out = |branch: &&Arc<Branch>| left_out.iter().any(|left| left.branch == branch.id);
    let out: Vec<_> = branches.iter().filter(is_out).cloned().collect();
    branches.without(&out)
}
