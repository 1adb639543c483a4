//! Changes of text files of the system: some lines of a file that belongs to somebody else.
//!
//! A change is shown as a difference before it is made. The file is replaced at once, so that no crash leaves a part of it,
//! and keeps its owner, mode and attributes. What it was is kept beside it under a name with the date, which nothing
//! overwrites.

use crate::error::Error;
use canopy_base::difference::difference;
use canopy_base::text::os_error;
use canopy_config::source::persist::{Rewrite, copy_xattrs};
use canopy_sys::shown::Show as _;
use rustix::fs::{Gid, Uid, fchown};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// A file as it was read, and what is to become of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Edit {
    pub path: PathBuf,
    pub before: String,
    pub after: String,
}

/// Reads a file of the system.
pub fn read(path: &Path) -> Result<String, Error> {
    fs::read_to_string(path).map_err(|why| cannot("be read", path, &why))
}

/// Returns the error of a file that cannot be read or changed.
pub fn cannot(what: &str, path: &Path, why: &io::Error) -> Error {
    let hint = if why.kind() == io::ErrorKind::PermissionDenied { " (run it as root)" } else { "" };
    Error::Refused(format!("{} cannot {what}: {}{hint}", path.shown(), os_error(why)))
}

impl Edit {
    /// Returns the lines that go and those that come, in their order, each behind `-` or `+`.
    pub fn shown(&self) -> String {
        difference(&self.before, &self.after)
    }

    /// Makes the change, unless the file has changed since it was read. Returns where it is kept as it was.
    pub fn apply(&self) -> Result<PathBuf, Error> {
        let failed = |why: io::Error| cannot("be changed", &self.path, &why);
        let (mut rewrite, now) = Rewrite::begin(&self.path).map_err(failed)?;
        if now != self.before.as_bytes() {
            let path = self.path.shown();
            return Err(Error::Refused(format!("{path} was changed meanwhile (run the command again)")));
        }
        let kept = keep(&self.path).map_err(failed)?;
        rewrite.write_new(self.after.as_bytes()).map_err(failed)?;
        rewrite.commit().map_err(failed)?;
        Ok(kept)
    }
}

/// Copies a file to a new one beside it, whose name has the date. Both belong to the same user, with the same rights.
pub fn keep(path: &Path) -> io::Result<PathBuf> {
    let path = path.canonicalize()?;
    let mut from = File::open(&path)?;
    let meta = from.metadata()?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    for number in 1.. {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".canopy-{}", stamp(now)));
        if number > 1 {
            name.push(format!("-{number}"));
        }
        let place = PathBuf::from(name);
        let mut to = match File::options().write(true).create_new(true).mode(0o600).open(&place) {
            Err(why) if why.kind() == io::ErrorKind::AlreadyExists => continue,
            opened => opened?,
        };
        io::copy(&mut from, &mut to)?;
        to.flush()?;
        fchown(&to, Some(Uid::from_raw(meta.uid())), Some(Gid::from_raw(meta.gid())))?;
        to.set_permissions(meta.permissions())?;
        copy_xattrs(&from, &to)?;
        to.sync_all()?;
        return Ok(place);
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// Formats a time, in seconds since 1970, as `20260131-120000`, in UTC.
fn stamp(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Years begin in March here, so that the day that not every year has is the last.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (year, month) = (era * 400 + year + u64::from(month >= 10), (month + 2) % 12 + 1);
    format!("{year:04}{month:02}{day:02}-{:02}{:02}{:02}", rest / 3600, rest / 60 % 60, rest % 60)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn times_are_written_as_dates() {
        for (seconds, expected) in [
            (0, "19700101-000000"),
            (951_782_400, "20000229-000000"),
            (1_772_323_199, "20260228-235959"),
            (1_772_323_200, "20260301-000000"),
            (4_107_542_399, "21000228-235959"),
            (4_107_542_400, "21000301-000000"),
        ] {
            assert_eq!(stamp(seconds), expected);
        }
    }

    #[test]
    fn every_version_is_kept_and_a_change_in_between_is_noticed() {
        let dir = tempfile::tempdir().expect("a directory");
        let (file, link) = (dir.path().join("real"), dir.path().join("fstab"));
        fs::write(&file, "one\n").expect("a file");
        fs::set_permissions(&file, Permissions::from_mode(0o640)).expect("a mode");
        std::os::unix::fs::symlink("real", &link).expect("a link");
        let edit = |before: &str, after: &str| Edit {
            path: link.clone(),
            before: before.into(),
            after: after.into(),
        };
        let mut kept = vec![
            edit("one\n", "two\n").apply().expect("a change"),
            edit("two\n", "three\n").apply().expect("a change"),
        ];
        assert!(edit("two\n", "lost\n").apply().is_err());
        assert_eq!(fs::read_to_string(&file).expect("the file"), "three\n");
        let texts: Vec<_> = kept.iter().map(|path| fs::read_to_string(path).expect("a copy")).collect();
        assert_eq!(texts, ["one\n", "two\n"]);
        kept.push(file);
        for path in kept {
            let mode = fs::metadata(&path).expect("its mode").permissions().mode() & 0o777;
            assert_eq!(mode, 0o640, "{}", path.display());
        }
        assert!(fs::symlink_metadata(&link).expect("the link").is_symlink());
    }
}
