//! Makes the kernel drop or revalidate every dentry, negative ones included.
//!
//! Incrementing the epoch (Linux 6.16) does that, but it also drops dentries that are mountpoints instead of
//! revalidating them, and unmounts what is mounted there (fs/fuse/dir.c fuse_dentry_revalidate, fs/namei.c
//! lookup_fast). To keep such mounts, unused dentries are dropped by reconfiguring the superblock without changing
//! anything (fs/super.c reconfigure_super calls shrink_dcache_sb), and the others, whose names the pool knows, are
//! expired one by one. The epoch is the fallback: without the privilege to reconfigure, on old kernels, while a
//! branch does not answer, or where reconfiguring would first write back dirty data (`cache.writeback`).

use super::Coherence;
use crate::lock_rank as rank;
use canopy_base::lock::ranked::Mutex;
use canopy_branch::tend::{self, Line};
use canopy_fuse::NodeId;
use canopy_pool::coherence::changes::{Change, Client};
use canopy_pool::ops;
use canopy_sys::mountinfo;
use rustix::fd::AsFd;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{FsPickFlags, fsconfig_reconfigure, fspick};
use std::ffi::{CStr, CString};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

/// A name that no directory has, because the pool reserves it.
const RESERVED_NAME: &CStr = c".canopy-clone.";

/// How long an invalidation waits for requests in progress, and for the notifications to be taken.
const TIMEOUT: Duration = Duration::from_secs(2);
/// How long dropping dentries may take: some microseconds each, and there may be a million.
const SHRINK_TIMEOUT: Duration = Duration::from_secs(15);
/// The number of notifications queued before waiting for them: fewer than the queue merges into one.
const BATCH: usize = 4096;

#[derive(Default)]
pub(super) struct Invalidation {
    /// Held during an invalidation.
    exclusive: Mutex<(), rank::Invalidation>,
    /// An invalidation is to begin soon.
    requested: AtomicBool,
    /// The superblock is being reconfigured.
    reconfiguring: AtomicBool,
}

impl Coherence {
    /// Makes the kernel look every name up and list every directory again, effective when this returns.
    pub(crate) fn invalidate_names(&self) {
        // The kernel must not cache what was read before this and is answered later.
        self.tell(Change::Answers, Client::Outside);
        self.tell(Change::Listings, Client::Outside);
        // The names of a listing in flight are cached all the same, so wait for them. A disk that hangs, perhaps the
        // very reason for this invalidation, delays it no longer than the timeout.
        let answered = self.in_flight.wait(TIMEOUT);
        if !answered {
            tracing::warn!(
                "a branch does not answer: names may stay visible until their cache.entry expires"
            );
        }
        if !answered || !self.invalidate_keeping_mounts() {
            // Notifications could otherwise overtake the answers.
            if answered {
                self.wait_for_directory_locks();
            }
            self.increment_epoch();
        }
        self.drop_listings();
        // This blocks one worker only: the kernel serializes the setxattr calls on the control file.
        self.notifier.flush_within(TIMEOUT);
    }

    /// Makes the kernel look every name up and list every directory again soon, except for names in answers in flight.
    /// Does not block.
    pub(crate) fn invalidate_names_soon(&self) {
        self.tell(Change::Listings, Client::Outside);
        if self.invalidation.requested.swap(true, Ordering::SeqCst) {
            return;
        }
        let weak_self = self.weak_self.clone();
        tend::apart(self.line(c"canopy-inval"), move || {
            let Some(coherence) = weak_self.upgrade() else { return };
            coherence.invalidation.requested.store(false, Ordering::SeqCst);
            coherence.drop_listings();
            if !coherence.invalidate_keeping_mounts() {
                coherence.increment_epoch();
            }
        });
    }

    fn line(&self, what: &'static CStr) -> Line {
        (what, self.weak_self.as_ptr().addr() as u64)
    }

    /// Makes the kernel drop every listing that it has cached, effective when this returns. A listing in flight then lacks
    /// its beginning, and the kernel does not use it.
    pub(crate) fn drop_listings(&self) {
        self.tell(Change::Listings, Client::Outside);
        self.notify_in_batches(&ops::external_changes::known(&self.pool).dirs(), |&dir| {
            self.expire_node(dir, true);
        });
    }

    /// Makes the kernel revalidate everything it caches. Does not block.
    pub(crate) fn invalidate_everything(&self) {
        self.tell(Change::Answers, Client::Outside);
        self.invalidate_names_soon();
        for node in ops::external_changes::known(&self.pool).nodes() {
            self.expire_node(node, false);
        }
    }

    /// Makes the kernel fetch the attributes and listings of the directories again that it knows from the process before. It
    /// does not ask for the name of one that is in use, as that of a working directory, before it needs more of it.
    ///
    /// That it has forgotten one, it says once, maybe to the process before, which has ended over it.
    pub(crate) fn expire_left_dirs(&self) {
        for dir in ops::external_changes::known(&self.pool).left_dirs() {
            match self.notifier.inval_attributes_now(NodeId(dir.0)) {
                Ok(false) => ops::adopt::forgotten(&self.pool, dir),
                _ => self.expire_node(dir, true),
            }
        }
    }

    /// Waits until the kernel has processed the names that it was given; returns false if that takes too long.
    ///
    /// The kernel locks a directory before it sends a request for a name, and holds the lock until it has processed
    /// the answer, however long that takes. Taking the lock therefore waits for the answer. There is no other way to
    /// wait for the names of a READDIRPLUS, which get the epoch of the moment at which the kernel processes them
    /// (fs/fuse/readdir.c fuse_direntplus_link). To be called when no request holds a directory lock for long.
    fn wait_for_directory_locks(&self) -> bool {
        self.notify_in_batches(&ops::external_changes::known(&self.pool).dirs(), |&dir| {
            // Notifying takes the directory lock; that is its only purpose here.
            let _ = self.notifier.inval_entry(NodeId(dir.0), RESERVED_NAME);
        })
    }

    /// Invalidates all dentries such that mounts on them stay. Returns false if that is impossible, or impossible
    /// now.
    fn invalidate_keeping_mounts(&self) -> bool {
        let (pool, notifier) = (&self.pool, &self.notifier);
        let any_silent = || ops::settings::branches(pool).iter().any(|branch| branch.is_silent());
        if !notifier.can_expire_entries() || pool.config().writeback || any_silent() {
            return false;
        }
        let Some(_exclusive) = self.invalidation.exclusive.try_lock_for(TIMEOUT) else { return false };
        self.wait_for_directory_locks()
            && self.drop_unused_dentries()
            && self.notify_in_batches(&ops::external_changes::known(pool).nodes(), |&node| {
                for (dir, name) in ops::external_changes::known(pool).names_of(node) {
                    if let Ok(name) = CString::new(name) {
                        let _ = notifier.expire_entry(NodeId(dir.0), &name);
                    }
                }
            })
    }

    /// Sends notifications in batches; returns false if one is not taken in time.
    fn notify_in_batches<T>(&self, each: &[T], mut send: impl FnMut(&T)) -> bool {
        each.chunks(BATCH).all(|batch| {
            batch.iter().for_each(&mut send);
            self.notifier.flush_within(TIMEOUT)
        })
    }

    /// Drops unused dentries; returns false if that is not permitted or takes too long.
    fn drop_unused_dentries(&self) -> bool {
        let Some(device) = self.settings.device() else { return false };
        if self.invalidation.reconfiguring.swap(true, Ordering::SeqCst) {
            return false;
        }
        let mountpoint = self.settings.mountpoint().to_owned();
        let (report, done) = channel();
        let weak_self = self.weak_self.clone();
        // The kernel first writes back dirty shared mappings, by requests to this process.
        tend::apart(self.line(c"canopy-shrink"), move || {
            let result = reconfigure(&mountpoint, device);
            if let Err(errno) = result {
                tracing::debug!("names cannot be dropped: {errno}");
            }
            if let Some(coherence) = weak_self.upgrade() {
                coherence.invalidation.reconfiguring.store(false, Ordering::SeqCst);
            }
            let _ = report.send(result.is_ok());
        });
        done.recv_timeout(SHRINK_TIMEOUT).unwrap_or(false)
    }

    /// Makes the kernel look every name up again, except for names in answers in flight. Unmounts what is mounted on
    /// them.
    fn increment_epoch(&self) {
        if self.notifier.increment_epoch().is_err() {
            // Before Linux 6.16. Invalidating a dentry also invalidates everything below it.
            for name in ops::names::locate::top_level_names(&self.pool) {
                if let Ok(name) = CString::new(name) {
                    let _ = self.notifier.inval_entry(NodeId(canopy_base::ids::NodeId::ROOT.0), &name);
                }
            }
        }
    }
}

/// Reconfigures the superblock as `mount -o remount` does, without any option.
///
/// Errors: `ENODEV` if another filesystem is mounted at `mountpoint`; `EPERM`.
fn reconfigure(mountpoint: &Path, device: (u32, u32)) -> Result<(), Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let top = rustix::fs::open(mountpoint, flags, Mode::empty())?;
    let errno = |why: std::io::Error| Errno::from_io_error(&why).unwrap_or(Errno::IO);
    let id = mountinfo::id_of(top.as_fd()).map_err(errno)?;
    let mut listed = mountinfo::list().map_err(errno)?.into_iter();
    listed.find(|mounted| mounted.id == id && mounted.device == device).ok_or(Errno::NODEV)?;
    let pick = FsPickFlags::FSPICK_CLOEXEC | FsPickFlags::FSPICK_EMPTY_PATH;
    fsconfig_reconfigure(fspick(&top, c"", pick)?)
}
