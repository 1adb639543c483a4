//! Who may change the pool itself, or learn of it what its permissions do not show: the one door that every entrance asks.
//!
//! The pool belongs to its administrators: root and the user who mounted it. A uid alone proves nothing, because a
//! container may have a root of its own, whose uid the kernel shows as the daemon's:
//! - In a user namespace, 0 is any user, or with an identity map even 0. So the user namespace must be the daemon's
//!   own, which only its identity tells.
//! - Root of a container without a user namespace is the daemon's root, but was left without CAP_SYS_ADMIN, in a mount
//!   namespace of its own. So one of both must be the daemon's.
//!
//! What is not proved is refused: a caller in a pid namespace that the daemon does not see, a namespace that cannot be
//! read, a task that works for others (kernel threads, as of the NFS server; workers of io_uring, which have
//! credentials that `/proc` does not show).
//!
//! The rights over a single file are not decided here: the kernel checks most, and `caller` the rest.

mod caller;
mod peer;
pub(crate) mod task;
mod witness;

pub use caller::Caller;
pub use peer::Peer;
pub use witness::{Namespaces, look};

use caller::UNKNOWN;
use canopy_sys::process::peer::Credentials;
use rustix::io::Errno;
use std::sync::OnceLock;
use task::Task;
pub use task::process_of;
pub(crate) use task::program_of;

/// Bit positions of capabilities (include/uapi/linux/capability.h).
const CAP_LINUX_IMMUTABLE: u32 = 9;
const CAP_SYS_ADMIN: u32 = 21;
const CAP_SYS_RESOURCE: u32 = 24;

/// What a caller wants that is not about the rights of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Act {
    /// Set an option, or run a command: every attribute of the control file that can be set.
    Configure,
    /// Learn names of files, wherever they are.
    LearnNames,
    /// Move, copy or drop files between branches (`RELOCATE`).
    Relocate,
    /// Discard free space of the disks (`FITRIM`).
    Trim,
    /// Set or clear the immutable and append-only flags of a file (ioctl_fs_setflags(2)).
    GuardFlags,
    /// See that a file has attributes in `trusted.*` (xattr(7)).
    SeeTrusted,
    /// Take the blocks that a filesystem keeps for root (fs/ext4/balloc.c ext4_has_free_clusters).
    SpendReserve,
}

/// What an act requires, always in the daemon's own user namespace.
enum Right {
    Administrator,
    /// What the kernel requires of it on any filesystem.
    Capability(u32),
}

impl Act {
    /// Returns what the act requires, and the error for others.
    const fn requires(self) -> (Right, Errno) {
        match self {
            Act::Configure | Act::LearnNames | Act::Relocate => (Right::Administrator, Errno::ACCESS),
            Act::Trim | Act::SeeTrusted => (Right::Capability(CAP_SYS_ADMIN), Errno::PERM),
            Act::GuardFlags => (Right::Capability(CAP_LINUX_IMMUTABLE), Errno::PERM),
            Act::SpendReserve => (Right::Capability(CAP_SYS_RESOURCE), Errno::NOSPC),
        }
    }
}

/// What is known of a caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Facts {
    /// As the daemon's user namespace has it.
    fsuid: u32,
    /// The effective ones, in whatever user namespace.
    capabilities: u64,
    shared: Namespaces,
}

impl Facts {
    fn has(&self, capability: u32) -> bool {
        self.shared.user && self.capabilities & (1 << capability) != 0
    }

    /// Returns whether this is root or the user who mounted the pool, `owner`.
    fn administers(&self, owner: u32) -> bool {
        let is_own = self.fsuid == 0 || self.fsuid == owner;
        is_own && self.shared.user && (self.shared.mount || self.has(CAP_SYS_ADMIN))
    }
}

/// Decides about an act of a caller, of whom nothing may be known.
fn judge(act: Act, caller: Option<&Facts>, owner: u32) -> Result<(), Errno> {
    let (right, errno) = act.requires();
    let may = caller.is_some_and(|facts| match right {
        Right::Administrator => facts.administers(owner),
        Right::Capability(capability) => facts.has(capability),
    });
    if may { Ok(()) } else { Err(errno) }
}

/// Decides who may do what.
#[derive(Default)]
pub(crate) struct Door {
    witness: OnceLock<Box<Look>>,
}

/// Tells which namespaces a task shares with the daemon.
pub type Look = dyn Fn(u32) -> Namespaces + Send + Sync;

impl Door {
    /// Sets who looks at the callers' namespaces, where the threads that serve requests cannot.
    pub(crate) fn set_witness(&self, witness: Box<Look>) {
        let _ = self.witness.set(witness);
    }

    /// Errors: `EACCES` or `EPERM`, as the kernel has it for the act, unless the caller is proved to have the right.
    pub(crate) fn admits(&self, caller: &Caller, act: Act) -> Result<(), Errno> {
        let owner = rustix::process::getuid().as_raw();
        let apparent = Facts::apparent(caller);
        // Nobody is looked at more closely who may not anyway.
        judge(act, apparent.as_ref(), owner)?;
        let shared = self.witness.get().map_or_else(|| look(caller.pid), |witness| witness(caller.pid));
        let facts = apparent.map(|facts| Facts { shared, ..facts });
        judge(act, facts.as_ref(), owner)
    }
}

impl Door {
    /// Decides about a process at the other end of a socket: as about the caller that it is now, if that is who has connected. One
    /// that has become another user since, by a program that it has executed, is refused.
    pub(crate) fn admits_peer(&self, peer: &Peer, act: Act) -> Result<(), Errno> {
        let Credentials { uid, pid } = peer.connected;
        self.admits(&Caller { uid, gid: UNKNOWN, pid, umask: 0 }, act)?;
        // What was read of it was not another's that has got its number.
        if peer.is_there() { Ok(()) } else { Err(act.requires().1) }
    }
}

impl Facts {
    /// Returns what a caller is if it shares all namespaces. The caller waits for its answer, so its entry in `/proc` is
    /// still its own.
    fn apparent(caller: &Caller) -> Option<Facts> {
        let task = Task::read(caller.pid).filter(|_| task::acts_for_itself(caller.pid))?;
        let fsuid = task.fsuid()?;
        // Not all kernels say who asks, but none says another.
        let agrees = caller.uid == UNKNOWN || caller.uid == fsuid;
        let shared = Namespaces { user: true, mount: true };
        agrees.then_some(Facts { fsuid, capabilities: task.capabilities()?, shared })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACTS: [Act; 7] = [
        Act::Configure,
        Act::LearnNames,
        Act::Relocate,
        Act::Trim,
        Act::GuardFlags,
        Act::SeeTrusted,
        Act::SpendReserve,
    ];
    const MOUNTED_BY: u32 = 1000;
    const ALL: u64 = (1 << 41) - 1;
    /// What Docker leaves to root of a container.
    const DOCKER: u64 = 0xa804_25fb;

    fn row(act: Act, owner: u32) -> String {
        let caller = |fsuid, capabilities, user, mount| {
            Some(Facts { fsuid, capabilities, shared: Namespaces { user, mount } })
        };
        let callers = [
            // Root; of a service with few capabilities; without any in a mount namespace of its own.
            caller(0, ALL, true, true),
            caller(0, ALL, true, false),
            caller(0, 0, true, true),
            caller(0, DOCKER, true, false),
            // The mounting user; the same in a mount namespace of its own.
            caller(MOUNTED_BY, 0, true, true),
            caller(MOUNTED_BY, 0, true, false),
            // Another user, of whatever groups; the same with ambient capabilities.
            caller(7, 0, true, true),
            caller(7, ALL, true, true),
            // Roots of user namespaces: as some user, as the mounting user, as root of an identity map.
            caller(100_000, ALL, false, false),
            caller(MOUNTED_BY, ALL, false, true),
            caller(0, ALL, false, true),
            caller(0, ALL, false, false),
            // Nothing is known.
            None,
        ];
        callers
            .map(|facts| if judge(act, facts.as_ref(), owner).is_ok() { 'y' } else { '-' })
            .iter()
            .collect()
    }

    #[test]
    fn who_may_do_what() {
        for act in ACTS {
            let (roots, users) = match act {
                Act::Configure | Act::LearnNames | Act::Relocate => ("yyy----------", "yyy-y--------"),
                Act::Trim | Act::SeeTrusted | Act::GuardFlags | Act::SpendReserve => {
                    ("yy-----y-----", "yy-----y-----")
                }
            };
            assert_eq!(row(act, 0), roots, "{act:?}, mounted by root");
            assert_eq!(row(act, MOUNTED_BY), users, "{act:?}, mounted by a user");
        }
    }

    fn own(uid: u32) -> Caller {
        Caller { uid, gid: UNKNOWN, pid: std::process::id(), umask: 0 }
    }

    #[test]
    fn the_daemons_own_user_administers() {
        let uid = rustix::process::getuid().as_raw();
        let door = Door::default();
        assert_eq!(door.admits(&own(UNKNOWN), Act::Configure), Ok(()));
        assert_eq!(door.admits(&own(uid), Act::Relocate), Ok(()));
        // Another than the request says, or nobody who is known.
        assert_eq!(door.admits(&own(uid + 1), Act::Configure), Err(Errno::ACCESS));
        for pid in [0, u32::MAX] {
            let gone = Caller { pid, ..own(uid) };
            for act in ACTS {
                assert_eq!(door.admits(&gone, act), Err(act.requires().1), "{act:?}");
            }
        }
        // A kernel thread works for somebody else.
        assert_eq!(door.admits(&Caller { pid: 2, ..own(UNKNOWN) }, Act::Configure), Err(Errno::ACCESS));
    }

    #[test]
    fn who_may_do_what_over_a_socket() {
        let uid = rustix::process::getuid().as_raw();
        let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let here = || Peer::of(&socket).unwrap();
        let as_of = |connected| Peer { connected, ..here() };
        let own = here().connected;
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let gone = rustix::process::Pid::from_child(&child);
        let ended = rustix::process::pidfd_open(gone, rustix::process::PidfdFlags::empty()).unwrap();
        let _ = child.wait();
        let is_known = here().process.is_some();
        let rows = [
            ("the daemon's own user", here(), is_known),
            (
                "another user, who has become this one by a program",
                as_of(Credentials { uid: uid + 1, ..own }),
                false,
            ),
            ("who has become another user by a program", as_of(Credentials { uid: 0, pid: 2 }), false),
            ("a process that is not seen", as_of(Credentials { pid: 0, ..own }), false),
            ("one whose number another has by now", Peer { process: Some(ended), ..here() }, false),
            ("where the kernel does not say which process", Peer { process: None, ..here() }, false),
        ];
        let door = Door::default();
        for (who, peer, may) in rows {
            for act in [Act::Configure, Act::LearnNames, Act::Relocate] {
                let expected = if may { Ok(()) } else { Err(Errno::ACCESS) };
                assert_eq!(door.admits_peer(&peer, act), expected, "{who}: {act:?}");
            }
        }
        let door = Door::default();
        door.set_witness(Box::new(|_| Namespaces::default()));
        assert_eq!(door.admits_peer(&here(), Act::Configure), Err(Errno::ACCESS), "root of a container");
    }

    #[test]
    fn a_witness_that_sees_nothing_lets_nobody_in() {
        let door = Door::default();
        door.set_witness(Box::new(|_| Namespaces::default()));
        for act in ACTS {
            assert_eq!(door.admits(&own(UNKNOWN), act), Err(act.requires().1), "{act:?}");
        }
    }
}
