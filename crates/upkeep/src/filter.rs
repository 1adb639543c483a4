//! Which files a command moves: by name, size, age and owner.

use crate::error::{Error, Result};
use crate::pool_link::below;
use crate::survey::FileCopy;
use canopy_base::size::parse_size;
use canopy_config::units;
use clap::Args;
use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use rustix::fs::Stat;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The filters of all commands that move files.
#[derive(Args, Clone, Debug, Default)]
pub struct FilterArgs {
    /// Only files that match (by name; by path with a slash)
    #[arg(long, help_heading = "Filters", value_name = "GLOB")]
    pub include: Vec<String>,
    /// No files that match
    #[arg(long, help_heading = "Filters", value_name = "GLOB")]
    pub exclude: Vec<String>,
    /// Only files of at least this size (such as 100M)
    #[arg(long, help_heading = "Filters", value_name = "SIZE", value_parser = size)]
    pub min_size: Option<u64>,
    /// Only files of at most this size
    #[arg(long, help_heading = "Filters", value_name = "SIZE", value_parser = size)]
    pub max_size: Option<u64>,
    /// Only files not changed for so long (such as 2d)
    #[arg(long, help_heading = "Filters", value_name = "AGE", value_parser = age)]
    pub older: Option<Duration>,
    /// Only files changed since then
    #[arg(long, help_heading = "Filters", value_name = "AGE", value_parser = age)]
    pub newer: Option<Duration>,
    /// Only files of this user (a name or number)
    #[arg(long, help_heading = "Filters", value_name = "USER", value_parser = user)]
    pub owner: Option<u32>,
    /// Patterns of mergerfs-tools, for whole paths.
    #[arg(skip)]
    pub(crate) include_paths: Vec<String>,
    #[arg(skip)]
    pub(crate) exclude_paths: Vec<String>,
}

/// Parses a size, with a unit of powers of 1024.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    parse_size(text).map_err(|why| why.to_string())
}

/// Parses an age: a number and one of s, m, h, d, w, y.
pub(crate) fn age(text: &str) -> Result<Duration, String> {
    let wrong = || "must be a number and a unit: s, m, h, d, w or y, such as 2d".to_owned();
    units::time(text).ok_or_else(wrong)
}

pub(crate) fn user(text: &str) -> Result<u32, String> {
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    match nix::unistd::User::from_name(text) {
        Ok(Some(user)) => Ok(user.uid.as_raw()),
        _ => Err("there is no such user".into()),
    }
}

/// Compiled filters.
#[derive(Debug)]
pub struct Filter {
    args: FilterArgs,
    names_in: Patterns,
    names_out: Patterns,
    /// Patterns for absolute paths, in which `*` also matches slashes.
    whole_in: GlobSet,
    whole_out: GlobSet,
    now: SystemTime,
}

/// Globs for names, and for paths in the pool.
#[derive(Debug)]
struct Patterns {
    names: GlobSet,
    paths: GlobSet,
}

impl Patterns {
    fn new(globs: &[String]) -> Result<Patterns> {
        let (paths, names): (Vec<&String>, Vec<&String>) = globs.iter().partition(|glob| glob.contains('/'));
        let paths: Vec<&str> = paths.into_iter().map(|glob| glob.trim_start_matches('/')).collect();
        Ok(Patterns {
            names: set(names.into_iter().map(String::as_str), true)?,
            paths: set(paths.into_iter(), true)?,
        })
    }

    fn is_empty(&self) -> bool {
        self.names.is_empty() && self.paths.is_empty()
    }

    fn match_path(&self, path: &Path) -> bool {
        self.names.is_match(path.file_name().unwrap_or_default()) || self.paths.is_match(path)
    }
}

fn set<'a>(globs: impl Iterator<Item = &'a str>, literal_separator: bool) -> Result<GlobSet> {
    let mut builder = GlobSetBuilder::new();
    let wrong = |why: globset::Error| Error::Glob {
        glob: why.glob().unwrap_or_default().into(),
        why: why.kind().to_string(),
    };
    for glob in globs {
        builder.add(GlobBuilder::new(glob).literal_separator(literal_separator).build().map_err(wrong)?);
    }
    builder.build().map_err(wrong)
}

impl Filter {
    /// # Errors
    /// If a pattern is none.
    pub fn new(args: &FilterArgs) -> Result<Filter> {
        Ok(Filter {
            names_in: Patterns::new(&args.include)?,
            names_out: Patterns::new(&args.exclude)?,
            whole_in: set(args.include_paths.iter().map(String::as_str), false)?,
            whole_out: set(args.exclude_paths.iter().map(String::as_str), false)?,
            args: args.clone(),
            now: SystemTime::now(),
        })
    }

    /// Returns whether a file with these names in the pool is to move. One name that matches is enough, and one that is
    /// excluded keeps the file.
    pub(crate) fn admits<'p>(
        &self,
        mountpoint: &Path,
        names: impl Iterator<Item = &'p Path> + Clone,
        file: &FileCopy,
    ) -> bool {
        let age = self.now.duration_since(changed(file)).unwrap_or_default();
        let args = &self.args;
        args.min_size.is_none_or(|least| file.size() >= least)
            && args.max_size.is_none_or(|most| file.size() <= most)
            && args.older.is_none_or(|least| age >= least)
            && args.newer.is_none_or(|most| age <= most)
            && args.owner.is_none_or(|owner| file.stat.st_uid == owner)
            && (self.names_in.is_empty() || names.clone().any(|name| self.names_in.match_path(name)))
            && !names.clone().any(|name| self.names_out.match_path(name))
            && names.clone().any(|name| self.admits_path(mountpoint, name))
    }

    /// Returns whether a file at a path, relative to the root of the pool, is meant.
    pub fn admits_file(&self, path: &Path, stat: Stat) -> bool {
        self.admits(Path::new("/"), std::iter::once(path), &FileCopy { branch: 0, stat })
    }

    /// Returns whether the patterns for whole paths admit a path, whatever is there.
    pub(crate) fn admits_path(&self, mountpoint: &Path, path: &Path) -> bool {
        if self.whole_in.is_empty() && self.whole_out.is_empty() {
            return true;
        }
        let path = below(mountpoint, path);
        (self.whole_in.is_empty() || self.whole_in.is_match(&path)) && !self.whole_out.is_match(&path)
    }

    /// Returns whether everything is admitted.
    pub fn is_open(&self) -> bool {
        let args = &self.args;
        self.names_in.is_empty()
            && self.names_out.is_empty()
            && self.whole_in.is_empty()
            && self.whole_out.is_empty()
            && args.min_size.or(args.max_size).is_none()
            && args.older.or(args.newer).is_none()
            && args.owner.is_none()
    }
}

fn changed(file: &FileCopy) -> SystemTime {
    match u64::try_from(file.stat.st_mtime) {
        Ok(seconds) => UNIX_EPOCH.checked_add(Duration::from_secs(seconds)).unwrap_or(UNIX_EPOCH),
        Err(_) => UNIX_EPOCH,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(size: i64, age: u64, uid: u32) -> FileCopy {
        let mut stat = rustix::fs::stat("/").unwrap();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        (stat.st_size, stat.st_mtime, stat.st_uid) = (size, now.saturating_sub(age) as i64, uid);
        FileCopy { branch: 0, stat }
    }

    fn admits(args: &FilterArgs, names: &[&str], file: &FileCopy) -> bool {
        let filter = Filter::new(args).unwrap();
        assert_eq!(filter.is_open(), format!("{args:?}") == format!("{:?}", FilterArgs::default()));
        filter.admits(Path::new("/pool"), names.iter().map(Path::new), file)
    }

    #[test]
    fn names_count_without_and_paths_with_a_slash() {
        let include = |glob: &str| FilterArgs { include: vec![glob.into()], ..FilterArgs::default() };
        let table = [
            ("*.mkv", &["films/a/b.mkv"][..], true),
            ("*.mkv", &["films/b.mkv/c"], false),
            ("films/*", &["films/b"], true),
            ("films/*", &["films/a/b"], false),
            ("films/**", &["films/a/b"], true),
            ("/films/**", &["films/a/b"], true),
            ("*.{mkv,avi}", &["x/y.avi"], true),
            ("[ab]", &["x/c", "b"], true),
        ];
        for (glob, names, expected) in table {
            assert_eq!(admits(&include(glob), names, &file(1, 0, 0)), expected, "{glob}");
        }
        let exclude = FilterArgs { exclude: vec!["*.part".into()], ..FilterArgs::default() };
        assert!(!admits(&exclude, &["a", "a.part"], &file(1, 0, 0)), "one excluded name keeps the file");
        assert!(admits(&exclude, &["a"], &file(1, 0, 0)));
        let old = FilterArgs { exclude_paths: vec!["/pool/films*".into()], ..FilterArgs::default() };
        assert!(!admits(&old, &["films/a/b"], &file(1, 0, 0)) && admits(&old, &["x"], &file(1, 0, 0)));
        assert!(matches!(Filter::new(&include("[")), Err(Error::Glob { .. })));
    }

    #[test]
    fn size_age_and_owner_count_together() {
        let args = FilterArgs {
            min_size: Some(size("1K").unwrap()),
            max_size: Some(size("1M").unwrap()),
            older: Some(age("1d").unwrap()),
            newer: Some(age("1w").unwrap()),
            owner: Some(user("root").unwrap()),
            ..FilterArgs::default()
        };
        let two_days = 2 * 86_400;
        let table = [
            (1024, two_days, 0, true),
            (1 << 20, two_days, 0, true),
            (1023, two_days, 0, false),
            ((1 << 20) + 1, two_days, 0, false),
            (2000, 60, 0, false),
            (2000, 30 * 86_400, 0, false),
            (2000, two_days, 1, false),
        ];
        for (size, age, uid, expected) in table {
            assert_eq!(admits(&args, &["f"], &file(size, age, uid)), expected, "{size} {age} {uid}");
        }
        assert!(age("2").is_err() && age("d").is_err() && age("99999999999999999999d").is_err());
        assert!(user("no-such-user").is_err() && user("17") == Ok(17));
    }
}
