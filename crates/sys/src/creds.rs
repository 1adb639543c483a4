//! The identity under which a thread creates files: filesystem uid and gid, and umask.
//!
//! All three belong to the thread (setfsuid(2), setfsgid(2); umask(2) after `unshare(CLONE_FS)`), so
//! workers serve different users side by side. Only ownership follows the caller: capabilities stay
//! (`SECBIT_NO_SETUID_FIXUP`), because the kernel has already checked the caller's permission on the
//! pool, and a supplementary group that the thread does not have must not make the branch refuse.

use crate::errno::last_errno;
use rustix::fs::Mode;
use rustix::io::Errno;
use std::cell::Cell;
use std::marker::PhantomData;

thread_local! {
    static PREPARED: Cell<bool> = const { Cell::new(false) };
    static UMASK: Cell<u32> = const { Cell::new(u32::MAX) };
    /// The daemon's own uid and gid: it changes them before its threads begin to serve, if at all.
    static OWN: Cell<(u32, u32)> = const { Cell::new((u32::MAX, u32::MAX)) };
}

/// Gives the calling thread a umask of its own and keeps its capabilities over a change of fsuid.
fn prepare() -> Result<(), Errno> {
    if PREPARED.get() {
        return Ok(());
    }
    // SAFETY: CLONE_FS only separates this thread's working directory, root and umask from those of
    // its siblings; no memory or descriptor is affected.
    if unsafe { libc::unshare(libc::CLONE_FS) } != 0 {
        return Err(last_errno());
    }
    // SAFETY: prctl with PR_GET_SECUREBITS and PR_SET_SECUREBITS takes and returns plain integers.
    unsafe {
        let bits = libc::prctl(libc::PR_GET_SECUREBITS);
        if bits >= 0 {
            // Refused without CAP_SETPCAP: then the daemon is not root, and never changes its fsuid.
            libc::prctl(libc::PR_SET_SECUREBITS, bits | libc::SECBIT_NO_SETUID_FIXUP);
        }
    }
    OWN.set((rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()));
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

/// While it lives, what the thread creates belongs to the caller. Stays on its thread.
#[must_use]
pub struct Assumed {
    back: Option<(u32, u32)>,
    _thread: PhantomData<*const ()>,
}

/// Makes the thread create files as `uid:gid` under `umask`, until the guard is dropped.
///
/// Errors: `EPERM` when the identity cannot be taken on although the daemon is privileged (an id that
/// is not mapped into its user namespace). An unprivileged daemon creates files as itself.
pub fn assume(uid: u32, gid: u32, umask: u32) -> Result<Assumed, Errno> {
    prepare()?;
    set_umask(umask);
    let own = OWN.get();
    if own == (uid, gid) || own.0 != 0 {
        return Ok(Assumed { back: None, _thread: PhantomData });
    }
    fsgid(gid);
    fsuid(uid);
    // An id of -1 is never valid, so these change nothing and tell what is in force.
    if (fsuid(u32::MAX), fsgid(u32::MAX)) != (uid, gid) {
        restore(own);
        return Err(Errno::PERM);
    }
    Ok(Assumed { back: Some(own), _thread: PhantomData })
}

/// Makes the thread create files exactly as asked: the daemon's own identity, nothing masked.
pub fn as_daemon() -> Result<(), Errno> {
    prepare()?;
    set_umask(0);
    Ok(())
}

fn restore((uid, gid): (u32, u32)) {
    fsuid(uid);
    fsgid(gid);
    if (fsuid(u32::MAX), fsgid(u32::MAX)) != (uid, gid) {
        // Going on would create somebody else's files under a wrong owner.
        std::process::abort();
    }
}

impl Drop for Assumed {
    fn drop(&mut self) {
        if let Some(back) = self.back {
            restore(back);
        }
    }
}
