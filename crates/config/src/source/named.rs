//! Named pools: `media` is the pool that `/etc/canopy/media.toml` describes.
//!
//! A name is a word without a slash for which such a file exists. It takes precedence over a directory of that name in
//! the working directory, so that `mount media` means the same everywhere. Such a directory is written `./media`.

use super::command_line::Arg;
use super::file;
use crate::error::Error;
use crate::{Config, options};
use canopy_sys::mountinfo;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The directory with the files of named pools.
const DIRECTORY: &str = "/etc/canopy";
/// The name of the file there that says who is told of what goes wrong (`canopy notify`): it describes no pool.
const NOTIFY: &str = "notify";
/// The environment variable that names another directory, for tests and for users who cannot write to /etc.
const VARIABLE: &str = "CANOPY_CONFIG_DIR";

/// A pool with a file of its own.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamedPool {
    pub name: String,
    pub file: PathBuf,
}

/// The arguments of `mount`, with the named pool taken out.
#[derive(Debug)]
pub struct PoolArgs {
    pub pool: Option<NamedPool>,
    /// The pool that the first path would name, if there is neither such a pool nor such a file.
    pub unknown: Option<NamedPool>,
    /// Where to mount the named pool, if given.
    pub mountpoint: Option<OsString>,
    /// All other arguments, in order.
    pub rest: Vec<Arg>,
}

fn directory() -> PathBuf {
    std::env::var_os(VARIABLE).filter(|dir| !dir.is_empty()).map_or_else(|| DIRECTORY.into(), PathBuf::from)
}

/// Returns the file that says who is told of what goes wrong.
pub fn notify_file() -> PathBuf {
    directory().join(format!("{NOTIFY}.toml"))
}

/// Returns whether this could be a name, rather than a path or a list of branches.
pub(super) fn is_name(text: &OsStr) -> bool {
    let bytes = text.as_bytes();
    !bytes.is_empty() && bytes[0] != b'.' && !bytes.iter().any(|byte| b"/:=*?[{+<>\\".contains(byte))
}

impl NamedPool {
    /// Returns the pool that a name or the path of a TOML file stands for.
    pub fn find(text: &OsStr) -> Option<NamedPool> {
        let by_path = Path::new(text);
        // A missing TOML file is still taken for a pool, so that the error names it. A list of branches is not.
        let could_be = || !text.as_bytes().iter().any(|byte| b":=*?[{".contains(byte)) && !by_path.is_dir();
        // Other paths are not looked at: one may be the mountpoint of a pool that nobody serves at the moment.
        if file::is_toml(by_path) && (could_be() || by_path.is_file()) {
            let name = by_path.file_stem()?.to_string_lossy().into_owned();
            return Some(NamedPool { name, file: by_path.to_owned() });
        }
        let named = NamedPool::by_name(text)?;
        named.file.is_file().then_some(named)
    }

    /// Returns the pool of this name, whether or not its file exists.
    pub fn by_name(text: &OsStr) -> Option<NamedPool> {
        let name = text.to_str().filter(|text| *text != NOTIFY).filter(|_| is_name(text))?.to_owned();
        Some(NamedPool { file: directory().join(format!("{name}.toml")), name })
    }

    /// Returns the error for a pool whose file does not exist.
    pub fn not_found(self) -> Error {
        let known: Vec<String> = all().into_iter().map(|pool| pool.name).collect();
        let nearest = options::closest(&self.name, known.iter().cloned());
        Error::NoSuchPool { name: self.name, file: self.file, nearest, known }
    }

    /// Returns the mountpoint in the file. Mistakes in other lines do not matter.
    pub fn mountpoint(&self) -> Option<PathBuf> {
        let mut config = Config::default();
        let _ = file::load(&mut config, self.file.as_os_str());
        config.mountpoint
    }
}

/// Returns the pools that have a file, in the order of their names.
pub fn all() -> Vec<NamedPool> {
    let files = fs::read_dir(directory()).into_iter().flatten().flatten().map(|entry| entry.path());
    let named = |file: PathBuf| {
        let name =
            file.file_stem()?.to_str().filter(|name| *name != NOTIFY && file::is_toml(&file))?.to_owned();
        Some(NamedPool { name, file })
    };
    let mut pools: Vec<NamedPool> = files.filter_map(named).collect();
    pools.sort_by(|one, other| one.name.cmp(&other.name));
    pools
}

/// Restores the name of a pool. mount(8) turns the name into a path if the working directory contains a file of that
/// name, such as `/media` in `/`.
pub fn restore_names(args: &mut [Arg], here: &Path, is_pool: impl Fn(&OsStr) -> bool) {
    let first = args.iter_mut().find_map(|arg| match arg {
        Arg::Path(path) => Some(path),
        Arg::Options(_) => None,
    });
    if let Some(first) = first
        && Path::new(first).parent() == Some(here)
        && let Some(word) = Path::new(first).file_name().filter(|word| is_pool(word))
    {
        *first = word.to_owned();
    }
}

/// Takes a named pool, and the mountpoint that may follow it, out of the arguments.
pub fn parse(mut args: Vec<Arg>, by_mount: bool) -> Result<PoolArgs, Error> {
    if by_mount && let Ok(here) = std::env::current_dir() {
        restore_names(&mut args, &here, |word| {
            NamedPool::by_name(word).is_some_and(|named| named.file.is_file())
        });
    }
    let paths = args.iter().filter_map(|arg| match arg {
        Arg::Path(path) => Some(path),
        Arg::Options(_) => None,
    });
    let paths: Vec<OsString> = paths.cloned().collect();
    let none = |unknown, rest| PoolArgs { pool: None, unknown, mountpoint: None, rest };
    let Some(first) = paths.first() else { return Ok(none(None, args)) };
    let Some(pool) = NamedPool::find(first) else {
        let unknown = NamedPool::by_name(first).filter(|_| paths.len() <= 2 && !Path::new(first).exists());
        return Ok(none(unknown, args));
    };
    if paths.len() > 2 {
        return Err(Error::NamedBranches { name: pool.name, file: pool.file });
    }
    let rest = args.into_iter().filter(|arg| matches!(arg, Arg::Options(_))).collect();
    Ok(PoolArgs { pool: Some(pool), unknown: None, mountpoint: paths.into_iter().nth(1), rest })
}

/// Returns the mountpoint that a name or a path means. A name means the mountpoint in the pool's file or, if no pool is
/// mounted there, the place where a pool of that name is mounted. A word that names no pool is a path, if it exists.
pub fn mountpoint(word: &Path) -> Result<PathBuf, Error> {
    let text = word.as_os_str();
    let Some(named) = NamedPool::by_name(text) else { return Ok(word.to_owned()) };
    let in_file = named.mountpoint();
    let mounts = mountinfo::list().unwrap_or_default();
    let listed = in_file.as_deref().and_then(|path| mountinfo::listed_path(path).ok());
    let here = mounts.iter().any(|mounted| mounted.is_pool() && Some(&mounted.mountpoint) == listed.as_ref());
    let elsewhere = || mounts.iter().rev().find(|mounted| mounted.is_pool() && mounted.source == *text);
    if let Some(mounted) = (!here).then(elsewhere).flatten() {
        return Ok(mounted.mountpoint.clone());
    }
    match in_file {
        Some(mountpoint) => Ok(mountpoint),
        // Any other error, such as that of a dead mount, means that the path exists.
        None if fs::symlink_metadata(word).is_err_and(|why| why.kind() == io::ErrorKind::NotFound) => {
            Err(named.not_found())
        }
        None => Ok(word.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_differ_from_paths_and_branch_lists() {
        for word in ["media", "my-pool", "a.b", "x@1"] {
            assert!(is_name(OsStr::new(word)), "{word}");
        }
        for path in ["", ".", "..", "./media", "/a", "a/b", "a:b", "a=RO", "disk*", "disk?", "+>a", ".hidden"]
        {
            assert!(!is_name(OsStr::new(path)), "{path}");
        }
    }

    #[test]
    fn a_name_that_mount_made_a_path_is_restored() {
        let word = |path: &str, here: &str| {
            let mut args = vec![Arg::Options("ro".into()), Arg::Path(path.into()), Arg::Path("/m".into())];
            restore_names(&mut args, Path::new(here), |word| word == "media");
            args.swap_remove(1)
        };
        for (path, here, expected) in [
            ("/media", "/", "media"),
            ("/home/media", "/home", "media"),
            ("/media", "/home", "/media"),
            ("/srv", "/", "/srv"),
            ("media", "/", "media"),
            ("/", "/", "/"),
        ] {
            assert_eq!(word(path, here), Arg::Path(expected.into()), "{path} {here}");
        }
    }

    #[test]
    fn the_path_of_a_toml_file_names_a_pool() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("media.toml");
        for list in ["/a:/b.toml", "/disk*.toml", "/a.toml=RO", "/proc"] {
            assert_eq!(NamedPool::find(OsStr::new(list)), None, "{list}");
        }
        assert_eq!(
            NamedPool::find(file.as_os_str()),
            Some(NamedPool { name: "media".into(), file: file.clone() })
        );
        let path = |text: &str| Arg::Path(text.into());
        let args = vec![Arg::Path(file.clone().into()), Arg::Options("ro".into()), path("/m")];
        let words = parse(args, false).unwrap();
        assert_eq!(words.pool.unwrap().file, file);
        assert_eq!((words.mountpoint, words.rest), (Some("/m".into()), vec![Arg::Options("ro".into())]));
        let args = vec![Arg::Path(file.into()), path("/a"), path("/m")];
        assert!(matches!(parse(args, false), Err(Error::NamedBranches { .. })));
        let args = vec![path("/no-a"), path("/m")];
        let words = parse(args.clone(), false).unwrap();
        assert!(words.pool.is_none() && words.mountpoint.is_none() && words.rest == args);
    }
}
