//! The identity under which a thread creates files: filesystem uid and gid, and umask.
//!
//! All three are per thread (setfsuid(2), setfsgid(2); umask(2) after `unshare(CLONE_FS)`), so workers can
//! serve different users at the same time. Only ownership follows the caller. The thread keeps its
//! capabilities (`SECBIT_NO_SETUID_FIXUP`): the kernel has already checked the caller's permissions on the
//! pool, and the branch must not refuse because the thread lacks one of the caller's supplementary groups.
//!
//! Some filesystems keep blocks for root, a user or a group, and compare these with the thread's ids whenever space is
//! taken. There the thread writes as nobody in particular ([`without_reserve`]).

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::thread::{
    CapabilitiesSecureBits, UnshareFlags, capabilities_secure_bits, set_capabilities_secure_bits,
    unshare_unsafe,
};
use std::cell::Cell;
use std::marker::PhantomData;

thread_local! {
    static PREPARED: Cell<bool> = const { Cell::new(false) };
    static UMASK: Cell<u32> = const { Cell::new(u32::MAX) };
    /// The daemon's own uid and gid. They do not change once its threads serve requests.
    static OWN: Cell<(u32, u32)> = const { Cell::new((u32::MAX, u32::MAX)) };
    /// The filesystem uid and gid that the thread has now.
    static NOW: Cell<(u32, u32)> = const { Cell::new((u32::MAX, u32::MAX)) };
}

/// The user for whom no filesystem keeps anything: nobody.
const NOBODY: u32 = 65534;

/// Gives the calling thread its own umask and lets it keep its capabilities when its fsuid changes.
fn prepare() -> Result<(), Errno> {
    if PREPARED.get() {
        return Ok(());
    }
    // SAFETY: CLONE_FS only separates this thread's working directory, root and umask from those of
    // its siblings; no memory or descriptor is affected.
    unsafe { unshare_unsafe(UnshareFlags::FS) }?;
    if let Ok(bits) = capabilities_secure_bits() {
        // The kernel refuses this without CAP_SETPCAP. Then either the daemon is not root and never changes its fsuid,
        // or its main thread has already set the bit.
        let _ = set_capabilities_secure_bits(bits | CapabilitiesSecureBits::NO_SETUID_FIXUP);
    }
    OWN.set((rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()));
    NOW.set(OWN.get());
    PREPARED.set(true);
    Ok(())
}

fn set_umask(umask: u32) {
    if UMASK.get() != umask {
        rustix::process::umask(Mode::from_raw_mode(umask & 0o777));
        UMASK.set(umask);
    }
}

fn fsuid(uid: u32) -> u32 {
    // SAFETY: setfsuid takes an integer and cannot fail in a way that touches memory.
    unsafe { libc::setfsuid(uid) as u32 }
}

fn fsgid(gid: u32) -> u32 {
    // SAFETY: setfsgid takes an integer and cannot fail in a way that touches memory.
    unsafe { libc::setfsgid(gid) as u32 }
}

/// A guard: until it is dropped, the thread has the other ids, and then those from before. It cannot move to another thread.
#[must_use]
pub struct Assumed {
    back: Option<(u32, u32)>,
    _thread: PhantomData<*const ()>,
}

/// Makes the thread create files as `uid:gid` under `umask` until the guard is dropped. An unprivileged
/// daemon always creates files as itself.
///
/// # Errors
/// `EPERM` when a privileged daemon cannot assume the identity, because the id is not mapped into its user
/// namespace.
pub fn assume(uid: u32, gid: u32, umask: u32) -> Result<Assumed, Errno> {
    prepare()?;
    set_umask(umask);
    change(uid, gid)
}

fn change(uid: u32, gid: u32) -> Result<Assumed, Errno> {
    let now = NOW.get();
    if now == (uid, gid) || OWN.get().0 != 0 {
        return Ok(Assumed { back: None, _thread: PhantomData });
    }
    if gid != now.1 {
        fsgid(gid);
    }
    fsuid(uid);
    // The id -1 is never valid, so these calls change nothing and return the current ids.
    if fsuid(u32::MAX) != uid || gid != now.1 && fsgid(u32::MAX) != gid {
        restore(now);
        return Err(Errno::PERM);
    }
    NOW.set((uid, gid));
    Ok(Assumed { back: Some(now), _thread: PhantomData })
}

/// Makes the thread take up space as nobody in particular until the guard is dropped, so that it gets none that a
/// filesystem keeps for root or others. Files that it creates meanwhile would belong to nobody.
///
/// # Errors
/// Those of unshare(2). Where nobody is not mapped into the daemon's user namespace, root is not the system's, and this
/// changes nothing.
pub fn without_reserve() -> Result<Assumed, Errno> {
    prepare()?;
    change(NOBODY, NOW.get().1).or(Ok(Assumed { back: None, _thread: PhantomData }))
}

/// The identity by which a filesystem decides who gets what it keeps.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Identity {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
}

impl Identity {
    /// A user who is in no group.
    pub fn of_user(uid: u32) -> Identity {
        Identity { uid, gid: NOBODY, groups: Vec::new() }
    }

    /// Runs `work` with this identity, also as to supplementary groups.
    ///
    /// # Errors
    /// `EPERM` when the daemon cannot assume it.
    pub fn run<T>(&self, work: impl FnOnce() -> T) -> Result<T, Errno> {
        prepare()?;
        if OWN.get().0 != 0 {
            return Ok(work());
        }
        let own = rustix::process::getgroups()?;
        set_groups(&self.groups)?;
        let _back = OwnGroups(own);
        let _assumed = change(self.uid, self.gid)?;
        Ok(work())
    }
}

/// Supplementary groups that the thread gets back when this is dropped.
struct OwnGroups(Vec<rustix::process::Gid>);

impl Drop for OwnGroups {
    fn drop(&mut self) {
        if rustix::thread::set_thread_groups(&self.0).is_err() {
            // The thread would keep another user's rights.
            std::process::abort();
        }
    }
}

fn set_groups(groups: &[u32]) -> Result<(), Errno> {
    let groups: Vec<_> = groups.iter().map(|&group| rustix::process::Gid::from_raw(group)).collect();
    rustix::thread::set_thread_groups(&groups)
}

/// Makes the thread create files with the daemon's own identity and exactly the mode that is passed: the umask is 0.
///
/// # Errors
/// Those of unshare(2).
pub fn as_daemon() -> Result<(), Errno> {
    prepare()?;
    debug_assert_eq!(NOW.get(), OWN.get(), "files would belong to another user");
    set_umask(0);
    Ok(())
}

fn restore((uid, gid): (u32, u32)) {
    fsuid(uid);
    fsgid(gid);
    if (fsuid(u32::MAX), fsgid(u32::MAX)) != (uid, gid) {
        // The thread would go on to create files with the wrong owner.
        std::process::abort();
    }
    NOW.set((uid, gid));
}

impl Drop for Assumed {
    fn drop(&mut self) {
        if let Some(back) = self.back {
            restore(back);
        }
    }
}
