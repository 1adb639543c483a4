//! Pools that are configured, in a file of their own or in fstab, and not mounted.

use super::model::Unmounted;
use canopy_config::fstab::{self, Line};
use canopy_config::source::named;
use canopy_control::OsText;
use canopy_sys::mountinfo::{self, MountEntry};
use canopy_sys::shown::Show as _;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

/// Returns the configured pools that are not among these mounts. `only` is a mountpoint or name that was asked for.
pub(super) fn find(listed: &[MountEntry], fstab_file: &Path, only: Option<&Path>) -> Vec<Unmounted> {
    let is_pool_at = |path: &Path| {
        let path = mountinfo::listed_path(path).unwrap_or_else(|_| path.to_owned());
        listed.iter().any(|mounted| mounted.is_pool() && mounted.mountpoint == path)
    };
    let is_named =
        |name: &str| listed.iter().any(|mounted| mounted.is_pool() && mounted.source == *OsStr::new(name));
    let text = fs::read_to_string(fstab_file).unwrap_or_default();
    // What fstab mounts by hand only is not missing.
    let lines: Vec<Line> =
        fstab::parse(&text).into_iter().filter(|line| line.is_pool() && !line.has_option("noauto")).collect();
    let place_of = |line: &Line| PathBuf::from(fstab::unescape(&line.mountpoint));
    let mut found = Vec::new();
    for pool in named::all() {
        let place = pool.mountpoint();
        let is_there = place.as_deref().is_some_and(is_pool_at) || is_named(&pool.name);
        if !is_there {
            found.push(Unmounted {
                mountpoint: place.as_deref().map(OsText::from),
                described_in: OsText::from(pool.file.as_path()),
                fix: match place {
                    Some(_) => format!("canopy mount {}", pool.name),
                    None => format!("canopy mount {} MOUNTPOINT", pool.name),
                },
                name: Some(pool.name),
            });
        }
    }
    for place in lines.iter().map(place_of) {
        let is_known =
            found.iter().any(|other| other.mountpoint.as_ref().is_some_and(|it| it.to_path() == place));
        if !is_known && !is_pool_at(&place) {
            found.push(Unmounted {
                name: None,
                mountpoint: Some(OsText::from(place.as_path())),
                described_in: OsText::from(fstab_file),
                fix: format!("mount {}", place.shown()),
            });
        }
    }
    let is_asked = |pool: &Unmounted| {
        only.is_none_or(|word| {
            let by_name = pool.name.as_deref().is_some_and(|name| word == Path::new(name));
            by_name || pool.mountpoint.as_ref().is_some_and(|place| place.to_path() == word)
        })
    };
    found.retain(is_asked);
    found
}
