//! `noatime`, `relatime`, `strictatime` and `nodiratime` of the pool.
//!
//! The kernel leaves access times on a FUSE mount to the server. So the branches are read with the flags of the
//! pool's mount, where those were asked for and differ from the flags of the branch's mount. The pool's flags come
//! from the mount table, so a remount counts too: the branch monitor watches the table for changes.

use crate::lock_rank as rank;
use crate::settings::Settings;
use canopy_base::lock::ranked::Mutex;
use canopy_branch::branch::access_times::AtimePolicy;
use canopy_branch::branch::{Branch, BranchId, Branches};
use canopy_config::Config;
use canopy_fuse::mount::{ATIME_FLAGS, MountFlags};
use canopy_pool::Pool;
use canopy_pool::ops;
use canopy_sys::detached_mount::clone_with_atime;
use canopy_sys::mountinfo::{self, MountEntry};
use canopy_sys::shown::Show as _;
use rustix::mount::MountAttrFlags as Attr;
use std::collections::HashMap;
use std::sync::{Arc, Weak};

/// The flags that a user can ask for.
const REQUESTABLE: MountFlags = ATIME_FLAGS.union(MountFlags::NODIRATIME);
const WORDS: [&str; 4] = ["noatime", "relatime", "strictatime", "nodiratime"];

/// Which access time flags the branches are read with.
#[derive(Default)]
pub(crate) struct AccessTimes(Mutex<State, rank::AccessTimes>);

#[derive(Default)]
struct State {
    /// The flags of the pool's mount at the start. Unless they were asked for, they have no effect until they change.
    at_start: Option<MountFlags>,
    requested: bool,
    /// What was last applied to each branch in force.
    applied: HashMap<BranchId, (Weak<Branch>, Option<Wanted>)>,
}

/// The pool's flags and the options of the branch's mount that they override; `None` to read as that mount says.
type Wanted = (MountFlags, String);

impl AccessTimes {
    /// Applies the flags that the pool is about to be mounted with. To be called before anything is served, when the
    /// mount may not be visible yet.
    pub(super) fn apply_at_start(&self, pool: &Pool, config: &Config) {
        let Ok(listed) = mountinfo::list() else { return };
        let given = config.mount.flags & REQUESTABLE;
        let pool_flags = if given.intersects(ATIME_FLAGS) { given } else { given | MountFlags::RELATIME };
        self.apply_flags(pool_flags, pool, config, &ops::settings::branches(pool), &listed);
    }

    /// Applies the flags of the pool's mount to these branches. To be called before they are in force, and when
    /// mounts have changed.
    pub(super) fn apply(&self, pool: &Pool, settings: &Settings, config: &Config, branches: &Branches) {
        let (Some(device), Ok(listed)) = (settings.device(), mountinfo::list()) else { return };
        // Another pool may be mounted there, before this one is attached or on top of it, and this one elsewhere as
        // well.
        let is_own =
            |mounted: &&MountEntry| mounted.device == device && mounted.mountpoint == settings.mountpoint();
        let Some(mounted) = listed.iter().find(is_own) else { return };
        let pool_flags = MountFlags::from_mountinfo(&mounted.options) & REQUESTABLE;
        self.apply_flags(pool_flags, pool, config, branches, &listed);
    }

    fn apply_flags(
        &self,
        pool_flags: MountFlags,
        pool: &Pool,
        config: &Config,
        branches: &Branches,
        listed: &[MountEntry],
    ) {
        let mut state = self.0.lock();
        let at_start = *state.at_start.get_or_insert(pool_flags);
        state.requested |= at_start != pool_flags || WORDS.iter().any(|word| config.is_given(word));
        let requested = state.requested;
        state.applied.retain(|id, _| branches.by_id(*id).is_some());
        for branch in branches.iter() {
            let on = listed.iter().find(|mounted| branch.mount == Some(mounted.id.into()));
            let wanted = on
                .filter(|on| requested && MountFlags::from_mountinfo(&on.options) & REQUESTABLE != pool_flags)
                .map(|on| (pool_flags, on.options.clone()));
            // A branch whose mode has changed is a new value.
            let is_applied = |(applied, applied_flags): &(Weak<Branch>, Option<Wanted>)| {
                std::ptr::eq(applied.as_ptr(), Arc::as_ptr(branch)) && *applied_flags == wanted
            };
            if state.applied.get(&branch.id).is_some_and(is_applied) {
                continue;
            }
            ops::settings::set_atime_policy(
                pool,
                branch,
                wanted.is_some().then(|| how_to_read(branch, pool_flags)).flatten(),
            );
            state.applied.insert(branch.id, (Arc::downgrade(branch), wanted));
        }
    }
}

fn how_to_read(branch: &Branch, pool_flags: MountFlags) -> Option<AtimePolicy> {
    let why = match clone_with_atime(branch.root(), mount_attrs(pool_flags)) {
        Ok(copy) => return Some(AtimePolicy::PrivateMount(copy)),
        Err(why) => why,
    };
    let (path, words) = (branch.path.shown(), pool_flags.option_words());
    if pool_flags.contains(MountFlags::NOATIME) {
        tracing::info!("branch {path}: read with O_NOATIME, because its mount cannot be cloned: {why}");
        return Some(AtimePolicy::NoAtime);
    }
    tracing::warn!("branch {path}: its own mount decides about access times, not {words} of the pool: {why}");
    None
}

fn mount_attrs(pool_flags: MountFlags) -> Attr {
    let words = [
        (MountFlags::NOATIME, Attr::MOUNT_ATTR_NOATIME),
        (MountFlags::STRICTATIME, Attr::MOUNT_ATTR_STRICTATIME),
        (MountFlags::NODIRATIME, Attr::MOUNT_ATTR_NODIRATIME),
    ];
    words
        .iter()
        .filter(|(flag, _)| pool_flags.contains(*flag))
        .fold(Attr::empty(), |all, (_, attr)| all | *attr)
}
