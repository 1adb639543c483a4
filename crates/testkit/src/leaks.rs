//! Nothing may outlive a test: mounts, loop devices, daemons.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::thread::panicking;
use std::time::Duration;

use crate::cmd::wait_until;
use crate::procs;

/// Compares what is on the machine at its end with what was there at its start.
///
/// Tests of one binary run side by side, so give each its own directory and watch [`Guard::under`] it.
/// [`Guard::machine`] is for a run that has the machine to itself.
#[derive(Debug)]
pub struct Guard {
    scope: Option<PathBuf>,
    before: BTreeSet<String>,
}

impl Guard {
    /// Watches the whole machine.
    pub fn machine() -> Self {
        Self { before: residue(None), scope: None }
    }

    /// Watches what lies in `dir`: mounts under it, loop devices over files in it, daemons that name it.
    pub fn under(dir: &Path) -> Self {
        Self { before: residue(Some(dir)), scope: Some(dir.to_owned()) }
    }

    /// What is there now and was not at the start, after waiting up to two seconds for it to go.
    pub fn leaked(&self) -> Vec<String> {
        let mut left = Vec::new();
        wait_until(Duration::from_secs(2), || {
            left = residue(self.scope.as_deref()).difference(&self.before).cloned().collect();
            left.is_empty()
        });
        left
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let left = self.leaked();
        if !left.is_empty() {
            let message = format!("left behind:\n  {}", left.join("\n  "));
            if panicking() { eprintln!("{message}") } else { panic!("{message}") }
        }
    }
}

fn residue(scope: Option<&Path>) -> BTreeSet<String> {
    let inside = |path: &Path| scope.is_none_or(|dir| path.starts_with(dir));
    let mounts = procs::mounts()
        .into_iter()
        .filter(|mount| inside(&mount.point))
        .map(|mount| format!("mount {} ({}) at {}", mount.id, mount.kind, mount.point.display()));
    let loops = procs::loop_devices()
        .into_iter()
        .filter(|(_, file)| inside(file))
        .map(|(device, file)| format!("loop device {} over {}", device.display(), file.display()));
    let daemons = procs::processes()
        .into_iter()
        .filter(|process| {
            matches!(process.name.as_str(), "canopy" | "mergerfs") || process.name.starts_with("canopy ")
        })
        .filter(|process| scope.is_none() || process.args.iter().any(|arg| mentions(arg.as_ref(), scope)))
        .map(|process| format!("process {} {:?}", process.pid, process.args));
    mounts.chain(loops).chain(daemons).collect()
}

/// True when an argument names something in the scope, also inside a list of branches.
fn mentions(arg: &std::ffi::OsStr, scope: Option<&Path>) -> bool {
    scope.is_none_or(|dir| arg.to_string_lossy().contains(&*dir.to_string_lossy()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LoopFs;

    #[test]
    fn a_clean_run_leaves_nothing() {
        crate::require_root();
        let dir = tempfile::tempdir().expect("a directory");
        let guard = Guard::under(dir.path());
        assert!(guard.leaked().is_empty());
    }

    #[test]
    fn a_mount_and_its_loop_device_are_seen() {
        crate::require_root();
        let before = Guard::under(&std::env::temp_dir());
        let branch = LoopFs::ext4(32 << 20);
        let own = branch.path().display().to_string();
        let device = branch.device().expect("a device").display().to_string();
        let left = residue(Some(branch.path().parent().expect("a parent")));
        assert!(left.iter().any(|line| line.starts_with("mount") && line.ends_with(&own)), "{left:?}");
        assert!(left.iter().any(|line| line.starts_with("loop") && line.contains(&device)), "{left:?}");
        std::mem::forget(before); // other tests mount beneath the same directory meanwhile
    }
}
