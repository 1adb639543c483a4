//! What is changed through the pool, as far as requests tell: by it one can say that nothing was between two moments.

use canopy_fuse::Op;
use canopy_pool::shards::Shards;
use rustix::fs::OFlags;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts requests that may change a name or an attribute, when they begin and when they end.
#[derive(Default)]
pub(super) struct Acts(Shards<Count>);

#[derive(Default)]
struct Count {
    begun: AtomicU64,
    ended: AtomicU64,
}

/// A change under way.
pub(super) struct Act<'a>(&'a AtomicU64);

impl Drop for Act<'_> {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Acts {
    /// A change begins; it ends with what is given, before its caller is answered or after.
    pub(super) fn begin(&self) -> Act<'_> {
        let count = self.0.mine();
        count.begun.fetch_add(1, Ordering::SeqCst);
        Act(&count.ended)
    }

    /// How many have begun so far, if none of them is under way. As long as `begun` tells the same, nothing has changed.
    pub(super) fn quiet(&self) -> Option<u64> {
        // In this order: there is a moment between the two at which all that had begun had ended.
        let ended: u64 = self.0.iter().map(|count| count.ended.load(Ordering::SeqCst)).sum();
        Some(self.begun()).filter(|&begun| begun == ended)
    }

    pub(super) fn begun(&self) -> u64 {
        self.0.iter().map(|count| count.begun.load(Ordering::SeqCst)).sum()
    }
}

/// May a request change a name or attributes, or begin or end that something changes them unseen? Access times are left
/// out.
pub(super) fn changes(op: &Op<'_>) -> bool {
    let writes = |flags: u32| {
        OFlags::from_bits_retain(flags as _).intersects(OFlags::WRONLY | OFlags::RDWR | OFlags::TRUNC)
    };
    match op {
        Op::Setattr(_)
        | Op::Symlink { .. }
        | Op::Mknod { .. }
        | Op::Mkdir { .. }
        | Op::Unlink { .. }
        | Op::Rmdir { .. }
        | Op::Rename { .. }
        | Op::Link { .. }
        | Op::Write(_)
        | Op::Create(_)
        | Op::Tmpfile(_)
        | Op::Setxattr { .. }
        | Op::Removexattr { .. }
        | Op::Ioctl { .. }
        | Op::Fallocate { .. }
        | Op::CopyFileRange(_)
        | Op::NotifyReply { .. }
        | Op::SetupMapping(_)
        | Op::RemoveMapping { .. } => true,
        Op::Open { flags, .. } | Op::Release { flags, .. } => writes(*flags),
        Op::Init(_)
        | Op::Lookup { .. }
        | Op::Forget { .. }
        | Op::BatchForget(_)
        | Op::Getattr { .. }
        | Op::Statx { .. }
        | Op::Readlink
        | Op::Read(_)
        | Op::Flush { .. }
        | Op::Fsync { .. }
        | Op::Opendir { .. }
        | Op::Readdir(_)
        | Op::Readdirplus(_)
        | Op::Releasedir { .. }
        | Op::Fsyncdir { .. }
        | Op::Statfs
        | Op::Getxattr { .. }
        | Op::Listxattr { .. }
        | Op::Access { .. }
        | Op::Getlk(_)
        | Op::Setlk(_)
        | Op::Setlkw(_)
        | Op::Interrupt { .. }
        | Op::Lseek { .. }
        | Op::Poll { .. }
        | Op::Bmap { .. }
        | Op::Syncfs
        | Op::Destroy
        | Op::CuseInit(_)
        | Op::Unknown(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_quiet_when_all_that_began_has_ended() {
        let acts = Acts::default();
        assert_eq!(acts.quiet(), Some(0));
        let first = acts.begin();
        assert_eq!((acts.quiet(), acts.begun()), (None, 1));
        std::thread::scope(|scope| {
            scope.spawn(|| drop(acts.begin())).join().unwrap();
        });
        assert_eq!((acts.quiet(), acts.begun()), (None, 2));
        drop(first);
        assert_eq!((acts.quiet(), acts.begun()), (Some(2), 2));
    }
}
