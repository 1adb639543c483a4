//! What an operation acts with.

use super::{Pool, State};
use crate::config::Config;
use crate::paths::{PathGuard, Scope, Uses};
use arc_swap::Guard;
use canopy_base::ids::NodeId;
use canopy_branch::branch::{Branches, LiveBranches};
use rustix::io::Errno;
use std::ops::Deref;
use std::sync::Arc;

/// What an operation acts with: the settings and the branches as they were when it began, and the state of the pool. Whatever
/// it calls gets this, and so decides by the same settings and branches.
///
/// A change of the branches claims the whole tree, where it matters that no operation is between the old and the new ones. So
/// an operation that takes its place in the tree ([`Op::using`], [`Op::claim`]) has the branches that are in force then. It
/// cannot hold anything from before: that would borrow from the old ones.
pub(crate) struct Op<'p> {
    state: &'p State,
    live: &'p LiveBranches,
    /// Of which change the branches are.
    version: u64,
    pub(crate) config: Guard<Arc<Config>>,
    /// Those that answer.
    pub(crate) branches: Arc<Branches>,
    /// The number of the latest change that the catalogue had been told of.
    pub(crate) since: u64,
    /// How often something had moved in the tree, if nothing was moving.
    pub(crate) resting: Option<u64>,
}

impl Deref for Op<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        self.state
    }
}

impl<'p> Op<'p> {
    pub(crate) fn begin(pool: &'p Pool) -> Op<'p> {
        let (branches, version) = pool.branches.load_numbered();
        let state = &pool.state;
        let (since, resting) = (state.catalogue.now(), state.paths.resting());
        Op { state, live: &pool.branches, version, config: pool.config.load(), branches, since, resting }
    }

    /// Returns the state of the pool, for whatever outlives the operation's next step.
    pub(crate) fn state(&self) -> &'p State {
        self.state
    }

    /// Keeps what the operation uses of the tree in place. Taken before a path is built.
    pub(crate) fn using(&mut self, uses: Uses) -> PathGuard<'p> {
        let held = self.state.paths.using(uses, &self.state.nodes);
        self.renew_branches();
        held
    }

    /// Claims what is about to change in the tree.
    ///
    /// Errors: `ETIMEDOUT` if those who use it are waiting for a branch that has a deadline.
    pub(crate) fn claim(&mut self, scope: &Scope) -> Result<PathGuard<'p>, Errno> {
        let State { paths, stuck_operations, nodes, .. } = self.state;
        let held = paths.claim(scope, stuck_operations.lock_timeout(), nodes).ok_or(Errno::TIMEDOUT)?;
        self.renew_branches();
        Ok(held)
    }

    /// Claims what changes when another file takes the place of a node's: the node, and all its names, of which it has so
    /// many at least. Errors: as [`Op::claim`].
    pub(crate) fn claim_file(&mut self, node: NodeId, names: usize) -> Result<PathGuard<'p>, Errno> {
        loop {
            let scope = self.state.nodes.file_scope(node, names);
            let held = self.claim(&scope)?;
            // It may have got a name before it was claimed.
            if self.state.nodes.file_scope(node, names) == scope {
                return Ok(held);
            }
        }
    }

    /// Takes the branches that are in force now.
    fn renew_branches(&mut self) {
        if self.live.version() != self.version {
            (self.branches, self.version) = self.live.load_numbered();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use canopy_branch::branch::{BranchList, BranchSpec, Mode};

    fn branches(paths: &[&std::path::Path]) -> Branches {
        let spec =
            |path: &&std::path::Path| BranchSpec { path: path.to_path_buf(), mode: Mode::Rw, min_free: None };
        Branches::open(&paths.iter().map(spec).collect::<BranchList>()).unwrap()
    }

    #[test]
    fn an_operation_has_the_branches_that_are_in_force_when_it_takes_its_place() {
        let homes = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let pool = Pool::new(Config::default(), branches(&[homes[0].path()]));
        let [mut waits, mut claims, began] = [(); 3].map(|()| Op::begin(&pool));
        pool.put_branches(branches(&[homes[0].path(), homes[1].path()]));
        assert_eq!(began.branches.len(), 1, "it finishes with what it began with");
        drop(waits.using(Uses::node(NodeId::ROOT)));
        assert_eq!(waits.branches.len(), 2);
        drop(claims.claim_file(NodeId::ROOT, 0).unwrap());
        assert_eq!(claims.branches.len(), 2);
        let now = Arc::clone(&waits.branches);
        drop(waits.using(Uses::node(NodeId::ROOT)));
        assert!(Arc::ptr_eq(&now, &waits.branches), "nothing has changed");
    }

    #[test]
    fn a_branch_that_is_left_out_is_missed_by_operations_that_take_their_place_afterwards() {
        let homes = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let pool = Pool::new(Config::default(), branches(&[homes[0].path(), homes[1].path()]));
        let mut op = Op::begin(&pool);
        let silent = op.branches[1].id;
        assert!(pool.set_silent(silent, true).is_some());
        drop(op.using(Uses::node(NodeId::ROOT)));
        assert_eq!(op.branches.timeout_error(), Some(Errno::TIMEDOUT));
        assert_eq!((op.branches.len(), op.branches.whole().len()), (1, 2));
        assert!(op.branches.whole().by_id(silent).is_some());
    }

    #[test]
    fn the_settings_of_an_operation_stay() {
        let home = tempfile::tempdir().unwrap();
        let pool = Pool::new(Config::default(), branches(&[home.path()]));
        let mut op = Op::begin(&pool);
        let before = op.config.link_cow;
        pool.set_config(Config { link_cow: !before, ..Config::default() });
        drop(op.using(Uses::node(NodeId::ROOT)));
        assert_eq!((op.config.link_cow, pool.config().link_cow), (before, !before));
    }
}
