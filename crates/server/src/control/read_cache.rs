//! Read caches: what they hold, and what they are to hold.

use canopy_base::text::os_error;
use canopy_control::messages::Answer;
use canopy_control::read_cache::{AddedReport, CachedReport};
use canopy_control::{OsText, ReadCacheReport};
use canopy_pool::ops::read_cache::{self, AddState, Refusal};
use canopy_pool::{CacheFigures, CachedFile, Pool};
use std::collections::HashSet;
use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// Returns what the directories hold. Asks no disk.
pub(super) fn figures(pool: &Pool) -> Vec<ReadCacheReport> {
    let report = |figures: CacheFigures| ReadCacheReport {
        path: OsText::from(figures.path.as_path()),
        files: figures.files,
        bytes: figures.bytes,
        hits: figures.hits,
        hit_bytes: figures.hit_bytes,
        misses: figures.misses,
        missed_bytes: figures.missed_bytes,
        read_bytes: figures.read_bytes,
        unusable: figures.unusable.map(os_error),
    };
    read_cache::figures(pool).into_iter().map(report).collect()
}

pub(super) fn list(pool: &Pool) -> Answer {
    let report = |file: CachedFile| CachedReport {
        path: OsText::from(OsStr::from_bytes(&file.path)),
        cache: OsText::from(file.dir.as_path()),
        size: file.size,
        used: file.bytes,
        hits: file.hits,
        opened: file.used,
        added: file.added,
    };
    Answer::Cached(read_cache::list(pool).into_iter().map(report).collect())
}

pub(super) fn add(pool: &Pool, paths: &[OsText]) -> Answer {
    let one = |path: &OsText| match read_cache::add(pool, path.to_os_string().as_bytes()) {
        AddState::Cached { size } => AddedReport::Cached { size },
        AddState::Waits { size } => AddedReport::Waits { size },
        AddState::Copying { done, size } => AddedReport::Copying { done, size },
        AddState::Refused(Refusal::NoCache) => AddedReport::NoCache,
        AddState::Refused(Refusal::NoFile) => AddedReport::NoFile,
        AddState::Refused(Refusal::Failed(errno)) => AddedReport::Failed(errno.raw_os_error()),
    };
    Answer::CacheAdded(paths.iter().map(one).collect())
}

pub(super) fn drop_copies(pool: &Pool, paths: Option<&Vec<OsText>>) -> Answer {
    let paths: Option<HashSet<Vec<u8>>> =
        paths.map(|paths| paths.iter().map(|path| path.to_os_string().into_vec()).collect());
    let goes = |path: &[u8]| paths.as_ref().is_none_or(|paths| paths.contains(path));
    let (files, bytes) = read_cache::drop_copies(pool, goes);
    Answer::CacheDropped(files, bytes)
}
