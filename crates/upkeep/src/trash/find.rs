//! What of the trash a command is for.

use super::TrashArgs;
use crate::error::{Error, Result};
use canopy_branch::fs::reserved::TRASH;
use canopy_branch::trash::batch;
use canopy_branch::trash::sweep::Trashed;
use canopy_config::units;
use canopy_policy::placement::Pattern;
use rustix::fs::FileType;
use std::ffi::OsStr;
use std::hash::{Hash, Hasher};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Something in the trash. Its branch, batch and path say which.
#[derive(Clone, Debug)]
pub(super) struct Item {
    /// Its index.
    pub(super) branch: usize,
    pub(super) kept_in: Vec<u8>,
    /// Relative to the root of the pool.
    pub(super) path: PathBuf,
    /// In seconds since 1970.
    pub(super) removed: i64,
    /// And the part of a second.
    pub(super) nanoseconds: u32,
    pub(super) uid: Option<u32>,
    pub(super) program: String,
    pub(super) kind: FileType,
    pub(super) size: u64,
    pub(super) used: u64,
    pub(super) mtime: i64,
    pub(super) mode: u32,
    pub(super) owner: (u32, u32),
}

impl Item {
    pub(super) fn of(branch: usize, found: &Trashed<'_>) -> Option<Item> {
        let attr = found.attr;
        Some(Item {
            branch,
            kept_in: found.kept_in.to_vec(),
            path: PathBuf::from(OsStr::from_bytes(found.path)),
            removed: found.removed(),
            nanoseconds: attr.ctime.nsec,
            uid: found.batch.who.uid,
            program: String::from_utf8(found.batch.who.program.clone()).ok()?,
            kind: FileType::from_raw_mode(attr.mode),
            size: attr.size,
            used: attr.blocks * 512,
            mtime: attr.mtime.sec,
            mode: attr.mode & 0o7777,
            owner: (attr.uid, attr.gid),
        })
    }

    fn id(&self) -> (usize, &[u8], &Path) {
        (self.branch, &self.kept_in, &self.path)
    }

    /// Where it is, relative to the root of its branch.
    pub(super) fn kept(&self) -> PathBuf {
        Path::new(OsStr::from_bytes(TRASH)).join(OsStr::from_bytes(&self.kept_in)).join(&self.path)
    }
}

impl PartialEq for Item {
    fn eq(&self, other: &Item) -> bool {
        self.id() == other.id()
    }
}

impl Eq for Item {}

impl Hash for Item {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.id().hash(state);
    }
}

/// Which items are meant.
pub(super) struct Chosen<'a> {
    args: &'a TrashArgs,
    patterns: Vec<Pattern>,
}

impl Chosen<'_> {
    pub(super) fn of<'a>(args: &'a TrashArgs, mountpoint: Option<&Path>) -> Result<Chosen<'a>> {
        let mut patterns = Vec::new();
        for word in &args.paths {
            let wrong = |why| Error::Glob { glob: word.clone(), why };
            let inside = mountpoint.and_then(|pool| Path::new(word).strip_prefix(pool).ok()?.to_str());
            let path = inside.unwrap_or(word).trim_start_matches('/').trim_end_matches('/');
            if path.is_empty() {
                patterns.push(Pattern::new("**").map_err(wrong)?);
                continue;
            }
            // A path also stands for what was below it. The slash keeps a name from counting in any directory.
            patterns.push(Pattern::new(&format!("/{path}")).map_err(wrong)?);
            patterns.push(Pattern::new(&format!("/{path}/**")).map_err(wrong)?);
        }
        Ok(Chosen { args, patterns })
    }

    /// Nothing is left out.
    pub(super) fn is_all(&self) -> bool {
        let args = self.args;
        args.paths.is_empty()
            && args.since.or(args.before).is_none()
            && args.user.is_none()
            && args.program.is_none()
    }

    pub(super) fn admits(&self, item: &Item) -> bool {
        let args = self.args;
        let path = item.path.as_os_str().as_bytes();
        args.since.is_none_or(|since| item.removed >= since)
            && args.before.is_none_or(|before| item.removed < before)
            && args.user.is_none_or(|user| item.uid == Some(user))
            && args.program.as_ref().is_none_or(|program| item.program == *program)
            && (self.patterns.is_empty() || self.patterns.iter().any(|pattern| pattern.matches(path)))
    }
}

/// Returns whether a directory is the root of a branch that has trash.
pub(super) fn is_branch(path: &Path) -> bool {
    path.join(OsStr::from_bytes(TRASH)).is_dir()
}

/// Parses a time: an age, a time of day, or a date. In seconds since 1970.
pub(super) fn time(text: &str) -> Result<i64, String> {
    let now = SystemTime::now();
    let minute = canopy_sys::process::local_time::minute_of_day(now);
    let seconds = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    time_at(text, i64::try_from(seconds).unwrap_or(i64::MAX), i64::from(minute)).ok_or_else(|| {
        "must be an age (2h, 3d), a time (14:00) or a date (2026-11-27, 2026-11-27T14:00)".into()
    })
}

/// `minute` is that of the day, here, at `now`.
fn time_at(text: &str, now: i64, minute: i64) -> Option<i64> {
    if let Some(age) = units::time(text) {
        return Some(now.saturating_sub(i64::try_from(age.as_secs()).ok()?));
    }
    if let Some((hour, of_hour)) = units::time_of_day(text) {
        let ago = (minute - i64::from(hour) * 60 - i64::from(of_hour)).rem_euclid(24 * 60);
        return Some(now - ago * 60 - now.rem_euclid(60));
    }
    let (date, time) = text.trim_end_matches('Z').split_once(['T', ' ']).unwrap_or((text, "00:00:00"));
    let time = if time.len() == 5 { format!("{time}:00") } else { time.to_owned() };
    let bare = |text: &str, separator| text.split(separator).collect::<String>();
    batch::seconds(&format!("{}T{}Z", bare(date, '-'), bare(&time, ':')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_ages_times_of_day_and_dates() {
        let now = 1_795_818_785; // 2026-11-27T22:33:05Z
        let minute = 22 * 60 + 33;
        for (text, expected) in [
            ("2h", Some(now - 7200)),
            ("3 days", Some(now - 3 * 86_400)),
            ("22:33", Some(now - 5)),
            ("14:00", Some(now - 5 - (8 * 60 + 33) * 60)),
            ("23:00", Some(now - 5 - (23 * 60 + 33) * 60)),
            ("2026-11-27", Some(now - 5 - minute * 60)),
            ("2026-11-27T22:33", Some(now - 5)),
            ("2026-11-27 22:33:05", Some(now)),
            ("2026-11-27T22:33:05Z", Some(now)),
            ("yesterday", None),
            ("2026-13-27", None),
            ("25:00", None),
            ("", None),
        ] {
            assert_eq!(time_at(text, now, minute), expected, "{text}");
        }
    }
}
