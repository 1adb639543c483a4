//! `noatime`, `relatime`, `strictatime` and `nodiratime` of the pool: the kernel leaves access times to whoever serves, so
//! the branches are read as the pool's own mount says, where that was asked for and differs from the branch's mount.
//!
//! The pool's flags are those of the mount table, whose changes wake whoever looks after the branches: a remount counts,
//! too.

use crate::settings::Settings;
use canopy_config::Config;
use canopy_fuse::mount::{ATIME_FLAGS, MountFlags};
use canopy_pool::Pool;
use canopy_pool::branch::access_times::AtimePolicy;
use canopy_pool::branch::{Branch, BranchId, Branches};
use canopy_sys::detached_mount::clone_with_atime;
use canopy_sys::mountinfo::{self, Mounted};
use parking_lot::Mutex;
use rustix::mount::MountAttrFlags as Attr;
use std::collections::HashMap;
use std::sync::{Arc, Weak};

/// What can be asked for.
const OURS: MountFlags = ATIME_FLAGS.union(MountFlags::NODIRATIME);
const WORDS: [&str; 4] = ["noatime", "relatime", "strictatime", "nodiratime"];

/// What is known of the times of branches.
#[derive(Default)]
pub(crate) struct AccessTimes(Mutex<State>);

#[derive(Default)]
struct State {
    /// Those of the pool's mount at the beginning. If nobody asked for them they say nothing, until they are changed.
    first: Option<MountFlags>,
    asked: bool,
    /// What each branch in force has been settled for.
    settled: HashMap<BranchId, (Weak<Branch>, Option<Wanted>)>,
}

/// The times of the pool, over what the branch's own mount has; none for as that says.
type Wanted = (MountFlags, String);

impl AccessTimes {
    /// Has the branches read as the pool is to be mounted. Before anything is served: the mount may not be seen yet.
    pub(super) fn begin(&self, pool: &Pool, config: &Config) {
        let Ok(listed) = mountinfo::list() else { return };
        let told = config.mount.flags & OURS;
        let own = if told.intersects(ATIME_FLAGS) { told } else { told | MountFlags::RELATIME };
        self.read_as(own, pool, config, &pool.branches(), &listed);
    }

    /// Has these branches read as the pool's mount says. Before they are in force, and when mounts have changed.
    pub(super) fn settle(&self, pool: &Pool, settings: &Settings, config: &Config, branches: &Branches) {
        let (Some(device), Ok(listed)) = (settings.device(), mountinfo::list()) else { return };
        // Another pool may lie there, before this one has its place or over it, and this one may be seen elsewhere.
        let is_own =
            |mounted: &&Mounted| mounted.device == device && mounted.mountpoint == settings.mountpoint();
        let Some(own) = listed.iter().find(is_own) else { return };
        let own = MountFlags::from_mountinfo(&own.options) & OURS;
        self.read_as(own, pool, config, branches, &listed);
    }

    fn read_as(
        &self,
        own: MountFlags,
        pool: &Pool,
        config: &Config,
        branches: &Branches,
        listed: &[Mounted],
    ) {
        let mut state = self.0.lock();
        let first = *state.first.get_or_insert(own);
        state.asked |= first != own || WORDS.iter().any(|word| config.is_given(word));
        let asked = state.asked;
        state.settled.retain(|id, _| branches.by_id(*id).is_some());
        for branch in branches.iter() {
            let on = listed.iter().find(|mounted| branch.mount == Some(mounted.id.into()));
            let wanted = on
                .filter(|on| asked && MountFlags::from_mountinfo(&on.options) & OURS != own)
                .map(|on| (own, on.options.clone()));
            // With another mode the branch is another value.
            let is_settled = |(settled, as_it_is): &(Weak<Branch>, Option<Wanted>)| {
                std::ptr::eq(settled.as_ptr(), Arc::as_ptr(branch)) && *as_it_is == wanted
            };
            if state.settled.get(&branch.id).is_some_and(is_settled) {
                continue;
            }
            pool.set_atime_policy(branch, wanted.is_some().then(|| reads(branch, own)).flatten());
            state.settled.insert(branch.id, (Arc::downgrade(branch), wanted));
        }
    }
}

fn reads(branch: &Branch, own: MountFlags) -> Option<AtimePolicy> {
    let why = match clone_with_atime(branch.root(), attributes(own)) {
        Ok(copy) => return Some(AtimePolicy::PrivateMount(copy)),
        Err(why) => why,
    };
    let (path, words) = (branch.path.display(), own.option_words());
    if own.contains(MountFlags::NOATIME) {
        tracing::info!("branch {path}: read with O_NOATIME, for its mount cannot be copied: {why}");
        return Some(AtimePolicy::NoAtime);
    }
    tracing::warn!(
        "branch {path}: its own mount decides about access times, and not {words} of the pool: {why}"
    );
    None
}

fn attributes(own: MountFlags) -> Attr {
    let words = [
        (MountFlags::NOATIME, Attr::MOUNT_ATTR_NOATIME),
        (MountFlags::STRICTATIME, Attr::MOUNT_ATTR_STRICTATIME),
        (MountFlags::NODIRATIME, Attr::MOUNT_ATTR_NODIRATIME),
    ];
    words.iter().filter(|(flag, _)| own.contains(*flag)).fold(Attr::empty(), |all, (_, attr)| all | *attr)
}
