//! Looking after the branches, for as long as the pool is served.
//!
//! One thread asks once a second which branches have given reason to be looked at. Each of these is looked at by a
//! thread of its own, for a sick disk may keep whoever touches it.

use super::dispatch::Dispatch;
use canopy_pool::branch::{Branch, BranchId};
use canopy_pool::health::{Health, Illness};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

const EVERY: Duration = Duration::from_secs(1);

/// The branches that somebody looks at.
#[derive(Default)]
pub(super) struct Care {
    looked_at: Mutex<HashSet<BranchId>>,
}

/// Starts to look after the branches, until the pool is gone.
pub(super) fn watch(serving: &Arc<Dispatch>) -> std::io::Result<()> {
    let pool = Arc::downgrade(serving);
    thread::Builder::new().name("canopy-health".into()).spawn(move || run(&pool)).map(drop)
}

fn run(pool: &Weak<Dispatch>) {
    loop {
        thread::sleep(EVERY);
        let Some(serving) = pool.upgrade() else { return };
        for branch in serving.pool.branches().iter().filter(|branch| branch.wants_a_look()) {
            look(&serving, branch);
        }
    }
}

/// Looks at a branch, unless somebody is still at it.
fn look(serving: &Dispatch, branch: &Arc<Branch>) {
    if !serving.care.looked_at.lock().insert(branch.id) {
        return;
    }
    let (pool, branch) = (serving.own.clone(), Arc::clone(branch));
    let id = branch.id;
    let started = thread::Builder::new().name("canopy-look".into()).spawn(move || {
        let news = branch.look_after();
        let Some(serving) = pool.upgrade() else { return };
        if let Some(illness) = news {
            tell(&serving, &branch, &illness);
        }
        serving.care.looked_at.lock().remove(&id);
    });
    if let Err(why) = started {
        tracing::warn!("a branch cannot be looked at: {why}");
        serving.care.looked_at.lock().remove(&id);
    }
}

fn tell(serving: &Dispatch, branch: &Branch, illness: &Illness) {
    // What is remembered of its space may be from before.
    serving.pool.forget_space();
    let path = branch.path.display();
    match illness.health {
        Health::Well => tracing::info!("branch {path} is well again: it takes part in everything"),
        _ => tracing::warn!(
            "branch {path}: {illness}; nothing is made or changed there until it is well again"
        ),
    }
}
