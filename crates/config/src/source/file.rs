//! Config files: one option per line, in the syntax of `-o` without its commas and escapes. A file whose name ends in
//! `.toml` is TOML.
//!
//! Valid lines are applied even if others are not, and every mistake is reported with its line. The caller decides what
//! follows: a mount fails, a running pool keeps the valid lines.

use super::entry::Entry;
use super::{toml, trust};
use crate::Config;
use crate::error::{FileError, Mistake, OptionError};
use crate::options;
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// The largest file that is read. A larger one is not a config file.
const MAX_SIZE: u64 = 1 << 20;
/// How deep files can be nested by `config`, counting the first.
const MAX_DEPTH: u32 = 6;
/// How many symlinks are followed, the limit of the kernel (path_resolution(7)).
const MAX_LINKS: u32 = 40;

/// Applies a file; with an empty name, the last file again. Valid lines are applied even if it returns an error.
pub fn load(config: &mut Config, name: &OsStr) -> Result<(), OptionError> {
    let path = match (&config.file.path, name.is_empty()) {
        (Some(last), true) => last.clone(),
        (None, true) => return Err(FileError::NothingLoaded.into()),
        // The daemon changes its directory later.
        (_, false) => std::path::absolute(name).unwrap_or_else(|_| name.into()),
    };
    if config.file.running_pool.as_ref().is_some_and(|pool| leads_into(&path, pool)) {
        // The pool would have to answer the read, perhaps with the thread that waits for it.
        return Err(FileError::InPool(path).into());
    }
    if config.file.depth == MAX_DEPTH {
        return Err(FileError::TooDeep { path, levels: MAX_DEPTH }.into());
    }
    let replacement = config.file.replacement.as_ref().filter(|(file, _)| *file == path);
    let text = replacement.map_or_else(|| read(&path), |(_, text)| Ok(text.clone()));
    let text = text.map_err(|why| FileError::Unreadable {
        path: path.clone(),
        errno: why.raw_os_error().unwrap_or(Errno::IO.raw_os_error()),
        why: why.to_string(),
    })?;
    if replacement.is_none()
        && let Some(warning) = trust::writable_by_others(&path)
    {
        match config.file.running_pool {
            Some(_) => tracing::warn!("{warning}"),
            None => config.warnings.push(warning),
        }
    }
    config.file.depth += 1;
    let mistakes = apply(config, &path, &text);
    config.file.depth -= 1;
    if !mistakes.is_empty() {
        return Err(FileError::Lines(mistakes).into());
    }
    if config.file.depth == 0 {
        config.file.path = Some(path);
    }
    Ok(())
}

/// Returns whether a file is TOML rather than lines.
pub fn is_toml(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "toml")
}

/// Returns whether a path leads through `place`, which is a running pool. Symlinks are resolved here, up to `place`,
/// because the pool may be waiting for this very call and could not answer. A bind mount of the pool goes unnoticed; a
/// file there can usually be read, because another worker answers.
fn leads_into(path: &Path, place: &Path) -> bool {
    let parts = |path: &Path| -> Vec<OsString> {
        path.components()
            .rev()
            .filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir))
            .map(|part| part.as_os_str().to_owned())
            .collect()
    };
    let (mut at, mut rest) = (PathBuf::from("/"), parts(path));
    let mut links = 0;
    while let Some(part) = rest.pop() {
        if part == ".." {
            at.pop();
            continue;
        }
        at.push(part);
        if at == place {
            return true;
        }
        if let Ok(target) = fs::read_link(&at) {
            links += 1;
            if links > MAX_LINKS {
                return false;
            }
            at.pop();
            if target.is_absolute() {
                at = PathBuf::from("/");
            }
            rest.extend(parts(&target));
        }
    }
    false
}

pub(super) fn read(path: &Path) -> io::Result<Vec<u8>> {
    let meta = fs::metadata(path)?;
    if meta.is_dir() {
        return Err(Errno::ISDIR.into());
    }
    // Reading a pipe could block, and a device may have no end.
    if !meta.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    if meta.len() > MAX_SIZE {
        return Err(Errno::FBIG.into());
    }
    fs::read(path)
}

fn apply(config: &mut Config, path: &Path, text: &[u8]) -> Vec<Mistake> {
    let mut mistakes: Vec<Mistake> = Vec::new();
    for Entry { line, option } in if is_toml(path) { toml::entries(text) } else { lines(text) } {
        let mistake = |what: String| vec![Mistake { file: path.to_owned(), line, what }];
        let found = match option.map(|(key, value)| (super::set(config, &key, &value), key, value)) {
            Ok((Ok(()), ..)) => continue,
            // These have their own file and line.
            Ok((Err(OptionError::File(FileError::Lines(inner))), ..)) => inner,
            Ok((Err(OptionError::AtMount { .. }), key, value)) if is_current(config, &key, &value) => {
                continue;
            }
            Ok((Err(error), ..)) => mistake(error.to_string()),
            Err(what) => mistake(what),
        };
        // A file that is read twice reports its mistakes once.
        for mistake in found {
            if !mistakes.contains(&mistake) {
                mistakes.push(mistake);
            }
        }
    }
    mistakes
}

#[cfg(any(test, fuzzing))]
pub(super) fn fuzz(bytes: &[u8]) {
    for entry in lines(bytes).into_iter().chain(toml::entries(bytes)) {
        let Ok((key, value)) = entry.option else { continue };
        let mut config = Config::default();
        // Those that read files or look for directories are left out.
        let reads =
            options::find(&key).is_some_and(|spec| matches!(spec.name.as_ref(), "config" | "branches"));
        if !reads && let Err(error) = super::set(&mut config, &key, &value) {
            assert!(!error.to_string().is_empty());
        }
    }
}

fn lines(text: &[u8]) -> Vec<Entry> {
    text.split(|&byte| byte == b'\n')
        .enumerate()
        .map(|(index, line)| (index + 1, line.trim_ascii()))
        .filter(|(_, line)| !line.is_empty() && !line.starts_with(b"#"))
        .map(|(line, text)| Entry { line, option: Ok(options::split(OsStr::from_bytes(text))) })
        .collect()
}

/// Returns whether an option has this value already. A running pool can reload the file it was mounted by, even though
/// the file sets options that only a mount can set.
fn is_current(config: &Config, key: &str, value: &OsStr) -> bool {
    let mut as_at_mount = config.clone();
    as_at_mount.file.running_pool = None;
    let Some(spec) = options::find(key) else { return false };
    let state = |config: &Config| {
        (config.mount.flags, config.mount.allow_other, config.mount.permissions_check, spec.render(config))
    };
    super::set(&mut as_at_mount, key, value).is_ok() && state(&as_at_mount) == state(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Files(tempfile::TempDir);

    impl Files {
        fn new(files: &[(&str, &str)]) -> Files {
            let dir = tempfile::tempdir().unwrap();
            let made = Files(dir);
            files.iter().for_each(|(name, text)| made.write(name, text));
            made
        }

        fn write(&self, name: &str, text: &str) {
            let text = text.replace('@', &format!("{}/", self.0.path().display()));
            fs::write(self.0.path().join(name), text).unwrap();
        }

        fn load(&self, config: &mut Config, name: &str) -> Result<(), OptionError> {
            crate::source::set(config, "config", self.0.path().join(name).as_os_str())
        }

        /// Returns the mistakes, with this directory as `@`.
        fn mistakes(&self, config: &mut Config, name: &str) -> Vec<String> {
            let here = format!("{}/", self.0.path().display());
            let error = self.load(config, name).unwrap_err();
            error.lines().into_iter().map(|line| line.replace(&here, "@")).collect()
        }
    }

    #[test]
    fn lines_are_options() {
        let text = "# comment\n\n  cache.attr = 7\r\n\t#indented\nbranches=/no-a=RW,1G:/no-b\nfsname=a=b,c\\d\nro\n\
                    use_ino\nx-any=thing\ncache.attr=8";
        let files = Files::new(&[("c", text)]);
        let mut config = Config::default();
        files.load(&mut config, "c").unwrap();
        assert_eq!(config.timeouts.attr.as_secs(), 8, "later lines win");
        assert_eq!(config.branches.to_string(), "/no-a=RW,1G:/no-b=RW");
        assert_eq!(config.fsname.as_deref(), Some(OsStr::new("a=b,c\\d")), "no commas and no escapes");
        assert!(config.mount.flags.contains(canopy_fuse::mount::MountFlags::RDONLY));
        assert_eq!(config.file.path, Some(files.0.path().join("c")));
    }

    #[test]
    fn bad_lines_are_reported_and_good_ones_applied() {
        let text = "cache.file=off\ncache.attr=7\nnullrw=maybe\nro=1\nmoreover\ncache.entry=9";
        let files = Files::new(&[("c", text)]);
        let mut config = Config { sloppy: true, ..Config::default() };
        let lines = files.mistakes(&mut config, "c");
        assert_eq!(
            lines,
            [
                "@c:1: unknown option 'cache.file' (did you mean 'cache.files'?)",
                "@c:3: option nullrw: 'maybe' is not valid: must be true or false",
                "@c:4: option ro takes no value: write 'ro', not 'ro=1'",
                "@c:5: unknown option 'moreover' ('canopy options' lists them all)",
            ]
        );
        assert_eq!((config.timeouts.attr.as_secs(), config.timeouts.entry.as_secs()), (7, 9));
        assert_eq!(config.file.path, None, "only a file without mistakes is remembered");
    }

    #[test]
    fn files_nest_six_deep() {
        let chain = [
            ("1", "config=@2"),
            ("2", "config=@3"),
            ("3", "config=@4"),
            ("4", "config=@5"),
            ("5", "config=@6"),
            ("6", "cache.attr=6"),
            ("0", "cache.entry=5\nconfig=@1\ncache.negative-entry=4"),
        ];
        let files = Files::new(&chain);
        let mut config = Config::default();
        files.load(&mut config, "1").unwrap();
        assert_eq!(config.timeouts.attr.as_secs(), 6);
        assert_eq!(config.file.path, Some(files.0.path().join("1")), "the outermost file is remembered");
        let lines = files.mistakes(&mut config, "0");
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].starts_with("@5:1: config file @6: too many levels of config"), "{lines:?}");
        assert_eq!((config.timeouts.entry.as_secs(), config.timeouts.negative.as_secs()), (5, 4));
    }

    #[test]
    fn a_file_that_loads_itself_is_refused() {
        let files = Files::new(&[("c", "frob\nconfig=@c\ncache.attr=3")]);
        let mut config = Config::default();
        let lines = files.mistakes(&mut config, "c");
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(
            lines[0].starts_with("@c:1: unknown") && lines[1].starts_with("@c:2: config file @c: too many")
        );
        let error = crate::source::set(&mut config, "config", OsStr::new("")).unwrap_err();
        assert_eq!(error, OptionError::File(FileError::NothingLoaded));
    }

    #[test]
    fn unreadable_files_are_refused() {
        let files = Files::new(&[]);
        let mut config = Config::default();
        for (name, errno) in [("none", Errno::NOENT), (".", Errno::ISDIR), ("/dev/null", Errno::IO)] {
            match files.load(&mut config, name) {
                Err(OptionError::File(error @ FileError::Unreadable { .. })) => {
                    assert_eq!(error.errno(), errno, "{name}");
                }
                other => panic!("{name}: {other:?}"),
            }
        }
    }

    #[test]
    fn a_running_pool_accepts_mount_only_options_if_they_are_unchanged() {
        let files = Files::new(&[("c", "cache.attr=7\nposix-acl=true\nuse_ino\ncache.entry=8")]);
        let mut config = Config::default();
        config.file.running_pool = Some("/no-pool".into());
        let lines = files.mistakes(&mut config, "c");
        assert_eq!(lines, ["@c:2: option posix-acl can only be set at the mount"]);
        assert_eq!((config.timeouts.attr.as_secs(), config.timeouts.entry.as_secs()), (7, 8));
        // Values that the pool has since the mount are accepted.
        config.fsname = Some("mine".into());
        config.mount.flags |= canopy_fuse::mount::MountFlags::RDONLY;
        files.write("again", "fsname=mine\nro\nposix-acl=auto\nnullrw=true\nnoatime\n");
        let lines = files.mistakes(&mut config, "again");
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(
            lines[0].starts_with("@again:4: option nullrw")
                && lines[1].starts_with("@again:5: option noatime")
        );
    }

    #[test]
    fn a_file_in_the_pool_is_refused_whatever_path_leads_there() {
        let files = Files::new(&[("outside", "cache.attr=7")]);
        let (dir, pool) =
            (files.0.path().canonicalize().unwrap(), files.0.path().canonicalize().unwrap().join("pool"));
        fs::create_dir(&pool).unwrap();
        fs::write(pool.join("c"), "cache.attr=8").unwrap();
        std::os::unix::fs::symlink("pool/c", dir.join("link")).unwrap();
        std::os::unix::fs::symlink(&dir, dir.join("round")).unwrap();
        std::os::unix::fs::symlink("self", dir.join("self")).unwrap();
        let mut config = Config::default();
        config.file.running_pool = Some(pool);
        let within = ["pool/c", "link", "round/link", "round/round/pool/c", "none/../pool/c", "outside"];
        for (name, is_within) in within.iter().map(|name| (*name, *name != "outside")) {
            match files.load(&mut config, name) {
                Err(OptionError::File(FileError::InPool(_))) => assert!(is_within, "{name}"),
                Ok(()) => assert!(!is_within, "{name}"),
                other => panic!("{name}: {other:?}"),
            }
        }
        assert!(matches!(
            files.load(&mut config, "self"),
            Err(OptionError::File(FileError::Unreadable { .. }))
        ));
    }
}
