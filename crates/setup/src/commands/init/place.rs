//! Where a pool may appear.

use crate::error::Error;
use crate::machine::Filesystem;
use crate::proposal;
use canopy_config::Config;
use canopy_config::fstab::{self, Line};
use canopy_config::source::{file, named};
use canopy_sys::mountinfo;
use canopy_sys::shown::Show as _;
use std::fs;
use std::path::{Path, PathBuf};

/// Returns why a pool of these branches cannot be mounted at a path.
pub(super) fn refused(path: &Path, branches: &[Filesystem], lines: &[Line]) -> Result<Option<String>, Error> {
    let shown = path.shown();
    if let Some(why) = proposal::refuse_mountpoint(path, branches) {
        return Ok(Some(why));
    }
    // Through links, too.
    let place = resolved(path);
    if let Some(why) = proposal::refuse_mountpoint(&place, branches) {
        return Ok(Some(why));
    }
    let of_fstab = lines.iter().find(|line| {
        [path, &place].iter().any(|place| Path::new(&fstab::unescape(&line.mountpoint)) == *place)
    });
    if let Some(line) = of_fstab {
        return Ok(Some(format!("line {} of fstab already mounts {} at {shown}", line.number, line.source)));
    }
    let mounts = mountinfo::list().map_err(Error::Mounts)?;
    if let Some(mounted) = mounts.iter().rev().find(|mounted| mounted.mountpoint == place) {
        return Ok(Some(if mounted.is_pool() {
            format!("a pool is already mounted at {shown}")
        } else {
            format!("a filesystem is mounted at {shown} ({}), which the pool would hide", mounted.fstype)
        }));
    }
    let other =
        named::all().into_iter().find(|pool| mountpoint(&pool.file).is_some_and(|there| there == place));
    if let Some(other) = other {
        return Ok(Some(format!("the pool {} already has the mountpoint {shown}", other.name)));
    }
    Ok(match fs::read_dir(path) {
        Ok(mut list) => {
            list.next().is_some().then(|| format!("{shown} has files, which the pool would hide"))
        }
        Err(_) if fs::symlink_metadata(path).is_ok() => {
            Some(format!("{shown} is not a directory that can be read"))
        }
        Err(_) => None,
    })
}

fn mountpoint(file: &Path) -> Option<PathBuf> {
    let mut config = Config::default();
    // Mistakes in other lines do not matter.
    let _ = file::load(&mut config, file.as_os_str());
    config.mountpoint.map(|path| resolved(&path))
}

/// Resolves the part of a path that exists.
fn resolved(path: &Path) -> PathBuf {
    let existing = path.ancestors().find_map(|above| Some((above, above.canonicalize().ok()?)));
    let Some((above, real)) = existing else { return path.to_owned() };
    path.strip_prefix(above).map_or_else(|_| path.to_owned(), |rest| real.join(rest).components().collect())
}
