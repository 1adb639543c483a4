//! A check that no mount, loop device or daemon outlives a test.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::thread::panicking;

use crate::cmd::{PATIENCE, wait_until};
use crate::proc;

/// Compares what uses a directory when the check is dropped with what used it when the check was made, and panics if
/// anything is new.
///
/// The tests of one program run in parallel, so each watches a directory of its own.
#[derive(Debug)]
pub struct LeakCheck {
    dir: PathBuf,
    before: BTreeSet<String>,
}

impl LeakCheck {
    /// Watches mounts under `dir`, loop devices over files in it, and daemons that name it.
    pub fn under(dir: &Path) -> Self {
        Self { before: users_of(dir), dir: dir.to_owned() }
    }

    /// Returns what is there now and was not at the start, after waiting for it to go.
    pub fn leaked(&self) -> Vec<String> {
        let mut left = Vec::new();
        wait_until(PATIENCE, || {
            left = users_of(&self.dir).difference(&self.before).cloned().collect();
            left.is_empty()
        });
        left
    }
}

impl Drop for LeakCheck {
    fn drop(&mut self) {
        let left = self.leaked();
        if !left.is_empty() {
            let message = format!("left behind:\n  {}", left.join("\n  "));
            if panicking() { eprintln!("{message}") } else { panic!("{message}") }
        }
    }
}

fn users_of(dir: &Path) -> BTreeSet<String> {
    let mounts = proc::mounts()
        .into_iter()
        .filter(|mount| mount.point.starts_with(dir))
        .map(|mount| format!("mount {} ({}) at {}", mount.id, mount.kind, mount.point.display()));
    let loops = proc::loop_devices()
        .into_iter()
        .filter(|(_, file)| file.starts_with(dir))
        .map(|(device, file)| format!("loop device {} over {}", device.display(), file.display()));
    let daemons =
        proc::daemons(dir).into_iter().map(|process| format!("process {} {:?}", process.pid, process.args));
    mounts.chain(loops).chain(daemons).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LoopFs;

    #[test]
    fn an_unused_directory_has_no_leaks() {
        crate::require_root();
        let dir = tempfile::tempdir().expect("a directory");
        let check = LeakCheck::under(dir.path());
        assert!(check.leaked().is_empty());
    }

    #[test]
    fn a_mount_and_its_loop_device_are_leaks() {
        crate::require_root();
        let branch = LoopFs::ext4(32 << 20);
        let own = branch.path().display().to_string();
        let device = branch.device().expect("a device").display().to_string();
        let found = users_of(branch.path().parent().expect("a parent"));
        assert!(found.iter().any(|line| line.starts_with("mount") && line.ends_with(&own)), "{found:?}");
        assert!(found.iter().any(|line| line.starts_with("loop") && line.contains(&device)), "{found:?}");
    }
}
