//! Requests that wait for something else than a disk: a lease that somebody holds on a branch's file, the move of a file, the
//! search for an inode.
//!
//! They wait without a worker and without a lock: an operation that has changed nothing yet returns
//! [`Error::Wait`](canopy_base::error::Error::Wait), and the transport puts its message aside until its turn comes. This module says how
//! long each may wait, and tells what waits.

use canopy_base::error::Cause;
use canopy_base::ids::NodeId;
use canopy_branch::branch::BranchId;
use canopy_fuse::transport::ParkedRequest;
use canopy_fuse::wait::{self, Wait};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::{Duration, SystemTime};

/// How much longer than the kernel's holders of leases may take (`fs.lease-break-time`) an open waits, and the least of the
/// latter: the kernel may be told to wait for ever.
const LEASE_MARGIN: Duration = Duration::from_secs(15);
const LEASE_BREAK: Duration = Duration::from_secs(45);
const LEASE_BREAK_TIME: &str = "/proc/sys/fs/lease-break-time";

/// What waits for causes of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Waits {
    pub(crate) requests: usize,
    pub(crate) users: usize,
    /// How many leases, moves or searches.
    pub(crate) causes: usize,
    pub(crate) since: SystemTime,
}

/// The kinds of causes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Lease,
    Move,
    Search,
}

impl Kind {
    fn of(cause: Cause) -> Kind {
        match cause {
            Cause::Lease { .. } => Kind::Lease,
            Cause::Move(_) => Kind::Move,
            Cause::Walk(_) => Kind::Search,
        }
    }

    pub(crate) fn word(self) -> &'static str {
        match self {
            Kind::Lease => "lease",
            Kind::Move => "move",
            Kind::Search => "search",
        }
    }

    /// How long a request may wait.
    fn patience(self) -> Duration {
        match self {
            // Then the kernel has ended the lease, unless its holder takes it again and again.
            Kind::Lease => {
                let set = fs::read_to_string(LEASE_BREAK_TIME).ok().and_then(|text| text.trim().parse().ok());
                set.map_or(LEASE_BREAK, Duration::from_secs).max(LEASE_BREAK) + LEASE_MARGIN
            }
            // As long as a disk may take to copy a file.
            Kind::Move => Duration::from_secs(3600),
            // A server of NFS then lets its client ask again; to others the kernel says ESTALE.
            Kind::Search => Duration::from_secs(60),
        }
    }

    /// The errno for a user who has too many.
    fn refusal(self) -> Errno {
        match self {
            Kind::Lease | Kind::Move => Errno::AGAIN,
            Kind::Search => Errno::TIMEDOUT,
        }
    }

    /// Whether any signal ends the wait, as it does where a file system waits for it. Else only one that kills.
    fn is_interruptible(self) -> bool {
        self == Kind::Lease
    }
}

/// Returns how a request waits for a cause.
pub(crate) fn wait(cause: Cause) -> Wait {
    let kind = Kind::of(cause);
    Wait {
        cause: encode(cause),
        longest: kind.patience(),
        refusal: kind.refusal().raw_os_error(),
        interruptible: kind.is_interruptible(),
        // A write must not fail.
        must_wait: kind == Kind::Move,
    }
}

fn encode(cause: Cause) -> wait::Cause {
    match cause {
        Cause::Lease { dev, ino, write } => [1 + u64::from(write), dev, ino],
        Cause::Move(node) => [3, node.0, 0],
        Cause::Walk(branch) => [4, branch.0.into(), 0],
    }
}

fn decode(cause: wait::Cause) -> Option<Cause> {
    match cause {
        [kind @ (1 | 2), dev, ino] => Some(Cause::Lease { dev, ino, write: kind == 2 }),
        [3, node, _] => Some(Cause::Move(NodeId(node))),
        [4, branch, _] => u32::try_from(branch).ok().map(|branch| Cause::Walk(BranchId(branch))),
        _ => None,
    }
}

/// Returns what waits, by kind.
pub(crate) fn waits(parked: &[ParkedRequest]) -> BTreeMap<Kind, Waits> {
    let mut by_kind: BTreeMap<Kind, (usize, BTreeSet<u32>, BTreeSet<Cause>, Duration)> = BTreeMap::new();
    for one in parked {
        let Some(cause) = decode(one.cause) else { continue };
        let (requests, users, causes, longest) = by_kind.entry(Kind::of(cause)).or_default();
        *requests += 1;
        users.insert(one.uid);
        causes.insert(match cause {
            // Readers and writers try by themselves, but wait for one lease.
            Cause::Lease { dev, ino, .. } => Cause::Lease { dev, ino, write: false },
            other => other,
        });
        *longest = (*longest).max(one.since.elapsed());
    }
    let now = SystemTime::now();
    let waits = |(kind, (requests, users, causes, longest)): (Kind, (usize, BTreeSet<_>, BTreeSet<_>, _))| {
        let since = now.checked_sub(longest).unwrap_or(now);
        (kind, Waits { requests, users: users.len(), causes: causes.len(), since })
    };
    by_kind.into_iter().map(waits).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn readers_and_writers_wait_for_one_lease() {
        let parked = [(false, 7), (true, 7), (true, 8)].map(|(write, ino)| ParkedRequest {
            cause: encode(Cause::Lease { dev: 1, ino, write }),
            uid: 5,
            since: Instant::now(),
        });
        let waits = waits(&parked)[&Kind::Lease];
        assert_eq!((waits.requests, waits.users, waits.causes), (3, 1, 2));
    }

    #[test]
    fn the_transport_carries_causes() {
        for one in [
            Cause::Lease { dev: 1, ino: u64::MAX, write: true },
            Cause::Move(NodeId(u64::MAX)),
            Cause::Walk(BranchId(u32::MAX)),
        ] {
            assert_eq!(decode(encode(one)), Some(one));
        }
        assert_eq!(
            decode(encode(Cause::Lease { dev: 3, ino: 4, write: false })).map(Kind::of),
            Some(Kind::Lease)
        );
        assert_eq!(decode([0; 3]), None);
    }

    #[test]
    fn what_waits_is_told_by_kind() {
        let since = std::time::Instant::now();
        let of = |cause, uid| ParkedRequest { cause: encode(cause), uid, since };
        let file = |ino| Cause::Lease { dev: 1, ino, write: true };
        let all = [of(file(1), 7), of(file(2), 7), of(file(2), 8), of(Cause::Move(NodeId(5)), 7)];
        let waits = waits(&all);
        let told: Vec<_> = waits.iter().map(|(kind, it)| (*kind, it.requests, it.users, it.causes)).collect();
        assert_eq!(told, [(Kind::Lease, 3, 2, 2), (Kind::Move, 1, 1, 1)]);
        assert!(wait(file(1)).interruptible && wait(file(1)).longest >= LEASE_BREAK + LEASE_MARGIN);
        assert!(wait(Cause::Move(NodeId(5))).must_wait);
    }
}
