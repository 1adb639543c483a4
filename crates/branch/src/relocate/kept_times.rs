//! Keeping a directory's times while names in it come and go.

use super::metadata::set_times;
use crate::fs::stat::{self, Attr, FileKey};
use canopy_base::lock::rank::Leaf;
use canopy_base::lock::ranked::{Condvar, Mutex};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;

/// The directories whose times are being kept.
static KEPT: Mutex<Vec<FileKey>, Leaf> = Mutex::new(Vec::new());
static GIVEN_BACK: Condvar = Condvar::new();

/// A directory whose times are as before when this is dropped, whatever names came and went. One at a time does this with a directory: the
/// second would take for its times those that the first has yet to restore.
pub(super) struct TimesKept<'d> {
    dir: BorrowedFd<'d>,
    before: Attr,
}

impl<'d> TimesKept<'d> {
    /// Waits until nobody else does this with the directory. A thread that keeps its times already would wait for ever.
    pub(super) fn of(dir: BorrowedFd<'d>) -> Result<TimesKept<'d>, Errno> {
        let key = stat::of(dir)?.key();
        let mut kept = KEPT.lock();
        while kept.contains(&key) {
            GIVEN_BACK.wait(&mut kept);
        }
        kept.push(key);
        drop(kept);
        let before = stat::of(dir).inspect_err(|_| give_back(key))?;
        Ok(TimesKept { dir, before })
    }
}

fn give_back(key: FileKey) {
    KEPT.lock().retain(|other| *other != key);
    GIVEN_BACK.notify_all();
}

impl Drop for TimesKept<'_> {
    fn drop(&mut self) {
        let _ = set_times(self.dir, &self.before);
        give_back(self.before.key());
    }
}

/// Runs `change` and restores the directory's times: the change concerns names that the pool does not show, or that it has shown
/// before.
pub fn with_times_kept<T>(
    dir: BorrowedFd<'_>,
    change: impl FnOnce() -> Result<T, Errno>,
) -> Result<T, Errno> {
    let _kept = TimesKept::of(dir)?;
    change()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;
    use std::fs::{self, File, FileTimes};
    use std::time::{Duration, UNIX_EPOCH};

    #[test]
    fn several_at_once_keep_the_times_of_a_directory() {
        let home = tempfile::tempdir().unwrap();
        let dir = File::open(home.path()).unwrap();
        let before = UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        dir.set_times(FileTimes::new().set_accessed(before).set_modified(before)).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (home, dir) = (home.path(), &dir);
                scope.spawn(move || {
                    for number in 0..200 {
                        let file = home.join(format!("{thread}-{number}"));
                        let make = || fs::write(&file, "").map_err(|_| Errno::IO);
                        with_times_kept(dir.as_fd(), make).unwrap();
                        let remove = || fs::remove_file(&file).map_err(|_| Errno::IO);
                        with_times_kept(dir.as_fd(), remove).unwrap();
                    }
                });
            }
        });
        assert_eq!(dir.metadata().unwrap().modified().unwrap(), before);
    }

    #[test]
    fn what_fails_gives_the_directory_back() {
        let home = tempfile::tempdir().unwrap();
        let dir = File::open(home.path()).unwrap();
        for _ in 0..2 {
            let failed = with_times_kept(dir.as_fd(), || Err::<(), _>(Errno::NOSPC));
            assert_eq!(failed, Err(Errno::NOSPC));
        }
    }
}
