//! The keys that every file and directory of the pool answers to.

use super::{PREFIX, status};
use canopy_pool::{Error, Located, NodeId, Pool};

/// The value of such a key; `None` for a name that is not among them.
pub(crate) fn file_key(pool: &Pool, id: NodeId, name: &[u8]) -> Option<Result<Vec<u8>, Error>> {
    let key = name.strip_prefix(PREFIX)?;
    if let Some(explained) = status::explain(pool, id, key) {
        return Some(explained);
    }
    Some(pool.locate(id).and_then(|at: Located| match key {
        b"basepath" => Ok(at.branch),
        b"relpath" => Ok(at.path),
        b"fullpath" => Ok(at.on(&at.branch)),
        // For the preload library: the path, and which file must be found there.
        b"place" => at.file.ok_or(Error::NoAttribute).map(|(dev, ino)| {
            let (major, minor) = (rustix::fs::major(dev), rustix::fs::minor(dev));
            [format!("{major}:{minor} {ino} ").as_bytes(), &at.on(&at.branch)].concat()
        }),
        b"allpaths" => {
            let paths: Vec<Vec<u8>> = pool.holders(&at.path).iter().map(|branch| at.on(branch)).collect();
            Ok(paths.join(&0))
        }
        _ => Err(Error::NoAttribute),
    }))
}
