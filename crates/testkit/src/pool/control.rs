//! What a test asks of a mounted pool: its options, its status, and what its process does.

use std::path::PathBuf;

use rustix::fs::XattrFlags;
use rustix::io::Errno;
use serde_json::Value;

use super::Pool;
use crate::cmd::Finished;
use crate::{proc, xattr};

/// Returns the only pool in the output of `canopy status --json`.
///
/// # Panics
/// If the command failed, or lists any other number of pools than one.
#[track_caller]
pub fn pool_status(done: &Finished) -> Value {
    // 1: something is missing or fails.
    let code = done.status.and_then(|status| status.code());
    assert!(matches!(code, Some(0 | 1)) && done.stderr.is_empty(), "{}", done.describe());
    let mut status: Value = serde_json::from_str(&done.stdout).expect("JSON");
    let pools = status["pools"].as_array_mut().expect("pools");
    assert_eq!(pools.len(), 1, "{}", done.stdout);
    pools.remove(0)
}

impl Pool {
    /// The path of the control file.
    pub fn control_file(&self) -> PathBuf {
        self.point.join(".mergerfs")
    }

    /// Returns the value of an option of the running pool.
    ///
    /// # Panics
    /// If there is no such option.
    #[track_caller]
    pub fn get(&self, option: &str) -> String {
        let value = xattr::get(self.control_file(), &format!("user.mergerfs.{option}"));
        let value = value.unwrap_or_else(|errno| panic!("get {option}: {errno}"));
        String::from_utf8(value).expect("UTF-8")
    }

    /// Changes an option of the running pool.
    ///
    /// # Panics
    /// If the pool refuses it.
    #[track_caller]
    pub fn set(&self, option: &str, value: &str) {
        self.try_set(option, value)
            .unwrap_or_else(|errno| panic!("set {option}={value}: {errno}\n{}", self.log()));
    }

    /// Changes an option of the running pool, or returns why it refuses.
    pub fn try_set(&self, option: &str, value: &str) -> Result<(), Errno> {
        let name = format!("user.mergerfs.{option}");
        rustix::fs::setxattr(self.control_file(), name, value.as_bytes(), XattrFlags::empty())
    }

    /// Returns this pool's part of `canopy status --json`.
    ///
    /// # Panics
    /// If the command fails, or lists any other number of pools than one.
    #[track_caller]
    pub fn status(&self) -> Value {
        pool_status(&self.command(["status".as_ref(), self.point.as_os_str(), "--json".as_ref()]))
    }

    /// Returns the threads of the serving process.
    pub fn threads(&self) -> Vec<proc::Thread> {
        proc::threads(self.pid())
    }

    /// Runs `work`, and returns how many bytes the serving process read and wrote meanwhile, with what `work` returns.
    /// They are the data of requests, and of files that the process accesses for them.
    #[track_caller]
    pub fn bytes_moved<T>(&self, work: impl FnOnce() -> T) -> (u64, T) {
        let count = || ["rchar", "wchar"].map(|name| proc::io_counter(self.pid(), name)).iter().sum::<u64>();
        let before = count();
        let result = work();
        (count() - before, result)
    }
}
