//! Disks, pools over them, and the combinations of options that decide how data moves.

use super::files::TwoPaths;
use canopy_testkit::{LoopFs, Pool, PoolBuilder};
use std::fmt;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

pub(super) const CACHES: [&str; 5] = ["off", "partial", "full", "auto-full", "per-process"];
/// A thread name that is in the list of `cache.files=per-process`.
pub(super) const LISTED: &str = "listed";

/// One combination of the data path's options.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mode {
    pub(super) passthrough: &'static str,
    pub(super) cache: &'static str,
    pub(super) writeback: bool,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Mode { passthrough, cache, writeback } = self;
        write!(f, "passthrough.io={passthrough},cache.files={cache},cache.writeback={writeback}")
    }
}

impl Mode {
    pub(super) fn new(passthrough: &'static str, cache: &'static str) -> Self {
        Mode { passthrough, cache, writeback: false }
    }

    /// Returns whether a first open with this access (`r`, `w` or `rw`) uses passthrough.
    pub(super) fn uses_passthrough(self, access: &str) -> bool {
        match self.passthrough {
            "ro" => access == "r",
            "wo" => access == "w",
            "rw" => true,
            // These disks are too small for `auto` to pass writers through.
            "auto" => !self.writeback && access == "r",
            _ => false,
        }
    }
}

/// Locks the system-wide limit on pages per message, because one test raises it.
pub(super) fn pages_limit() -> MutexGuard<'static, ()> {
    static LIMIT: Mutex<()> = Mutex::new(());
    LIMIT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An ext4 and a tmpfs.
pub(super) struct Disks {
    ext4: LoopFs,
    tmpfs: LoopFs,
    next: AtomicU32,
}

impl Disks {
    #[track_caller]
    pub(super) fn new() -> Self {
        let disks =
            Disks { ext4: LoopFs::ext4(256 << 20), tmpfs: LoopFs::tmpfs(64 << 20), next: AtomicU32::new(0) };
        for (fs, dir) in [(&disks.ext4, "e"), (&disks.tmpfs, "t")] {
            let dir = fs.path().join(dir);
            fs::create_dir(&dir).expect("mkdir");
            fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).expect("chmod");
        }
        disks
    }

    /// Returns a builder for a pool over both: `e/` is on ext4 and `t/` on tmpfs, and new files stay on the same disk.
    pub(super) fn builder(&self, options: &str) -> PoolBuilder {
        builder(&[self.ext4.path(), self.tmpfs.path()], options).option("category.create=epff")
    }

    #[track_caller]
    pub(super) fn pool(&self, options: &str) -> Pool {
        self.builder(options).mount()
    }

    #[track_caller]
    pub(super) fn mode(&self, mode: Mode) -> Pool {
        self.pool(&format!("{mode},cache.files.process-names={LISTED}|xfs_io"))
    }

    /// Creates a new directory on ext4.
    #[track_caller]
    pub(super) fn ext4(&self, pool: &Pool) -> TwoPaths {
        self.place(pool, &self.ext4, "e")
    }

    /// Creates a new directory on tmpfs.
    #[track_caller]
    pub(super) fn tmpfs(&self, pool: &Pool) -> TwoPaths {
        self.place(pool, &self.tmpfs, "t")
    }

    fn place(&self, pool: &Pool, fs: &LoopFs, dir: &str) -> TwoPaths {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let parent = TwoPaths { pool: pool.path().join(dir), branch: fs.path().join(dir) };
        parent.dir(&format!("d{number}"))
    }
}

pub(super) fn builder(branches: &[&Path], options: &str) -> PoolBuilder {
    let builder = Pool::builder(env!("CARGO_BIN_EXE_canopy")).option("minfreespace=0").option(options);
    builder.branches(branches)
}

/// Returns how often a text occurs in the log.
pub(super) fn log_count(pool: &Pool, text: &str) -> usize {
    pool.log().matches(text).count()
}
