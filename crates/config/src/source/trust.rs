//! Who else can change a config file.

use canopy_sys::shown::Show as _;
use rustix::process::{getegid, geteuid};
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Returns a warning if somebody other than root and this user may change the file, or a directory it is reached through.
/// `None` in a user namespace, where the owners of files outside it are unknown.
pub(super) fn writable_by_others(path: &Path) -> Option<String> {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    if map.split_whitespace().ne(["0", "0", "4294967295"]) {
        return None;
    }
    let real = path.canonicalize().ok();
    let (place, meta) = [Some(path), real.as_deref()]
        .into_iter()
        .flatten()
        .flat_map(Path::ancestors)
        .filter_map(|place| Some((PathBuf::from(place), fs::metadata(place).ok()?)))
        .find(|(_, meta)| is_writable_by_others(meta, geteuid().as_raw(), getegid().as_raw()))?;
    let what = if meta.is_dir() { "the directory it is reached through" } else { "it" };
    let place = place.shown();
    Some(format!(
        "config file {}: others may change {what} (uid {}, gid {}, mode {:04o}) and so what is mounted (chown root \
         {place}; chmod go-w {place})",
        path.shown(),
        meta.uid(),
        meta.gid(),
        meta.mode() & 0o7777
    ))
}

/// Returns whether somebody other than root and this user may write here. In a sticky directory, nobody can replace the
/// files of others.
fn is_writable_by_others(meta: &Metadata, user: u32, group: u32) -> bool {
    let theirs = ![0, user].contains(&meta.uid());
    let by_group = meta.mode() & 0o020 != 0 && ![0, group].contains(&meta.gid());
    let by_all = meta.mode() & 0o002 != 0;
    let sticky = meta.is_dir() && meta.mode() & 0o1000 != 0;
    theirs || (!sticky && (by_group || by_all))
}
