//! The keys of the runtime interface that every file and directory of the pool has.

use super::status;
use canopy_base::error::Error;
use canopy_base::ids::NodeId;
use canopy_control::{ALLPATHS, BASEPATH, COPIES, FULLPATH, PLACE, RELPATH};
use canopy_control::{CopiesReport, CopyReport, OsText, key_of};
use canopy_pool::ops;
use canopy_pool::{Located, Pool};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// Returns the value of such a key; `None` for any other name.
pub(crate) fn file_key(pool: &Pool, id: NodeId, name: &[u8]) -> Option<Result<Vec<u8>, Error>> {
    let key = key_of(name)?;
    if let Some(explained) = status::explain(pool, id, key) {
        return Some(explained);
    }
    Some(ops::names::locate::locate(pool, id).and_then(|at: Located| {
        match std::str::from_utf8(key).unwrap_or_default() {
            BASEPATH => Ok(at.branch),
            RELPATH => Ok(at.path),
            FULLPATH => Ok(at.on(&at.branch)),
            // For the preload library: the path, and the identity of the file that must be found there.
            PLACE => at.file.ok_or(Error::NoAttribute).map(|(dev, ino)| {
                let (major, minor) = (rustix::fs::major(dev), rustix::fs::minor(dev));
                [format!("{major}:{minor} {ino} ").as_bytes(), &at.on(&at.branch)].concat()
            }),
            ALLPATHS => {
                let paths: Vec<Vec<u8>> = ops::names::locate::holders(pool, id, &at.path)
                    .iter()
                    .map(|branch| at.on(branch))
                    .collect();
                Ok(paths.join(&0))
            }
            COPIES => Ok(status::json(&copies(pool, &at.path))),
            _ => Err(Error::NoAttribute),
        }
    }))
}

/// Returns which copies of a file are up to date, given its path in the pool.
pub(super) fn copies(pool: &Pool, path: &[u8]) -> CopiesReport {
    let text = |branch: &[u8]| OsText::from(OsStr::from_bytes(branch));
    match ops::names::locate::copies(pool, path) {
        Ok(copies) => {
            let copy = |it: &ops::resolve::generations::CopyOn| CopyReport {
                branch: text(&it.branch),
                current: it.current,
                known: it.known,
            };
            CopiesReport { copies: copies.iter().map(copy).collect(), failed: None }
        }
        Err((branch, error)) => {
            let failed = Some((error.errno().raw_os_error(), branch.as_deref().map(text)));
            CopiesReport { copies: Vec::new(), failed }
        }
    }
}
