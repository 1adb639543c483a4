//! Having the kernel forget every name at once, those that are missing included.
//!
//! A new epoch (Linux 6.16) does just that, and more: a name that somebody has mounted something on is not looked up again but
//! dropped, and with it goes the mount (fs/fuse/dir.c fuse_dentry_revalidate, fs/namei.c lookup_fast). So names that nobody uses
//! are dropped by reconfiguring the superblock, with nothing changed (fs/super.c reconfigure_super, which calls
//! shrink_dcache_sb); all others are known to us, and have their time run out. Where that is not to be had there is a new
//! epoch: without the right to do it, on old kernels, while a branch does not answer, or where the kernel would first write
//! what it has gathered (`cache.writeback`).

use super::Coherence;
use canopy_fuse::NodeId;
use canopy_sys::mountinfo;
use parking_lot::Mutex;
use rustix::fd::AsFd;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{FsPickFlags, fsconfig_reconfigure, fspick};
use std::ffi::{CStr, CString};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

/// A name that no directory has: the pool keeps it for itself.
const NOBODYS: &CStr = c".canopy-clone.";

/// How long whoever wants names forgotten waits for operations under way.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long dropping names may take: some microseconds each, and there may be a million.
const SHRINKING: Duration = Duration::from_secs(15);
/// Notifications that are sent before they are waited for: fewer than are melted together.
const BATCH: usize = 4096;

#[derive(Default)]
pub(super) struct Invalidation {
    /// One at a time.
    alone: Mutex<()>,
    /// A thread is at it, for those who do not wait; and somebody has asked for it since that began.
    soon: AtomicBool,
    again: AtomicBool,
    /// A superblock is being reconfigured.
    shrinking: AtomicBool,
}

impl Coherence {
    /// Makes the kernel look every name up again, from the moment this returns.
    pub(crate) fn invalidate_names(&self) {
        // What was read before, and is answered later, the kernel shall not remember.
        self.anything_changed();
        self.listings_changed();
        // Those it has been given in listings it will. A disk that hangs, and is perhaps being taken away for that, holds
        // nobody up for longer.
        let answered = self.in_flight.wait(PATIENCE);
        if !answered {
            tracing::warn!("a branch does not answer: names may stay visible until their cache.entry ends");
        }
        if !answered || !self.invalidate_gently() {
            // What is sent later may overtake the answers otherwise.
            if answered {
                self.settle();
            }
            self.new_epoch();
        }
        // The kernel lets one thread at a time set attributes of a file, so others are left to serve.
        self.notifier.flush_within(PATIENCE);
    }

    /// Makes the kernel look every name up again, soon, but for those of answers in flight. Waits for nothing.
    pub(crate) fn invalidate_names_soon(&self) {
        self.listings_changed();
        let state = &self.invalidation;
        state.again.store(true, Ordering::SeqCst);
        if state.soon.swap(true, Ordering::SeqCst) {
            return;
        }
        let own = self.own.clone();
        let started = thread::Builder::new().name("canopy-forget".into()).spawn(move || {
            while let Some(coherence) = own.upgrade() {
                let state = &coherence.invalidation;
                while state.again.swap(false, Ordering::SeqCst) {
                    if !coherence.invalidate_gently() {
                        coherence.new_epoch();
                    }
                }
                state.soon.store(false, Ordering::SeqCst);
                // Who came in between has found us at it.
                let more = state.again.load(Ordering::SeqCst);
                if !more || state.soon.swap(true, Ordering::SeqCst) {
                    return;
                }
            }
        });
        if started.is_err() {
            state.soon.store(false, Ordering::SeqCst);
            self.new_epoch();
        }
    }

    /// Makes the kernel ask again for whatever it knows. Waits for nothing.
    pub(crate) fn invalidate_everything(&self) {
        self.anything_changed();
        self.invalidate_names_soon();
        for node in self.pool.known().nodes() {
            self.expire_node(node, true);
        }
    }

    /// Waits until the kernel is done with the names that it has been given; false if that takes too long.
    ///
    /// It keeps a directory locked from before it asks for a name until it has taken in the answer, however long after the
    /// answer that is: so who takes that lock has waited for it. Of the names of a READDIRPLUS nothing else tells: it takes them for as
    /// new as the moment at which it gets round to them (fs/fuse/readdir.c fuse_direntplus_link reads the epoch). To be called
    /// when no request holds a directory locked for long.
    fn settle(&self) -> bool {
        self.batches(&self.pool.known().dirs(), |&dir| {
            // The lock is all that is wanted of it.
            let _ = self.notifier.inval_entry(NodeId(dir.0), NOBODYS);
        })
    }

    /// Has names forgotten such that mounts stay; false if that cannot be done, or not now.
    fn invalidate_gently(&self) -> bool {
        let (pool, notifier) = (&self.pool, &self.notifier);
        let silent = || pool.branches().iter().any(|branch| branch.is_silent());
        if !notifier.can_expire_entries() || pool.config().writeback || silent() {
            return false;
        }
        let Some(_alone) = self.invalidation.alone.try_lock_for(PATIENCE) else { return false };
        self.settle()
            && self.shrink()
            && self.batches(&pool.known().nodes(), |&node| {
                for (dir, name) in pool.known().names_of(node) {
                    if let Ok(name) = CString::new(name) {
                        let _ = notifier.expire_entry(NodeId(dir.0), &name);
                    }
                }
            })
    }

    /// Sends in batches; false if one is not taken in time.
    fn batches<T>(&self, each: &[T], mut send: impl FnMut(&T)) -> bool {
        each.chunks(BATCH).all(|batch| {
            batch.iter().for_each(&mut send);
            self.notifier.flush_within(PATIENCE)
        })
    }

    /// Drops the names that nobody uses; false if that is not permitted, or takes too long.
    fn shrink(&self) -> bool {
        let Some(device) = self.settings.device() else { return false };
        if self.invalidation.shrinking.swap(true, Ordering::SeqCst) {
            return false;
        }
        let mountpoint = self.settings.mountpoint().to_owned();
        let (report, done) = channel();
        let own = self.own.clone();
        // What is dirty in shared mappings is written first, by requests to this very process.
        let started = thread::Builder::new().name("canopy-shrink".into()).spawn(move || {
            let result = reconfigure(&mountpoint, device);
            if let Err(errno) = result {
                tracing::debug!("names cannot be dropped: {errno}");
            }
            if let Some(coherence) = own.upgrade() {
                coherence.invalidation.shrinking.store(false, Ordering::SeqCst);
            }
            let _ = report.send(result.is_ok());
        });
        if started.is_err() {
            self.invalidation.shrinking.store(false, Ordering::SeqCst);
            return false;
        }
        done.recv_timeout(SHRINKING).unwrap_or(false)
    }

    /// Makes the kernel look every name up again, but for those of answers under way; mounts on them go.
    fn new_epoch(&self) {
        if self.notifier.increment_epoch().is_err() {
            // Before Linux 6.16: what lies below a name that is forgotten is looked up again as well.
            for name in self.pool.top_level_names() {
                if let Ok(name) = CString::new(name) {
                    let _ = self.notifier.inval_entry(NodeId(canopy_pool::NodeId::ROOT.0), &name);
                }
            }
        }
    }
}

/// As mount(8) with `remount` and nothing else does. Errors: `ENODEV` if it is not our own that is seen there; `EPERM`.
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
