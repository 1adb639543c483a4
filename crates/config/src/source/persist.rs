//! Saves a change of a running pool in the config file it was mounted with.
//!
//! The command line of the daemon names that file, and the options that override it. The kernel keeps the command line,
//! so it cannot be out of date.
//!
//! Pool and file never disagree. First the new text is evaluated as the next mount would do it, and must yield the new
//! value. It is written to a temporary file. Then the pool changes, and the temporary file replaces the config file. If
//! that fails, the caller changes the pool back.

use super::command_line::{self, Arg};
use super::edit::{self, Insertion};
use super::file;
use super::named::is_name;
use crate::Config;
use crate::error::Error;
use crate::options::{self, Spec};
use rustix::fs::{FlockOperation, Gid, Uid, XattrFlags, fgetxattr, flistxattr, flock, fsetxattr};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, Instant};
use tempfile::NamedTempFile;

/// The config file of a pool, and the command line that names it.
pub struct Origin {
    file: PathBuf,
    args: Vec<Arg>,
    sloppy: bool,
}

impl Origin {
    /// Matches the command line of the mount with the file that the pool reports. `None` if the command line names
    /// another file.
    pub fn of(line: Vec<Arg>, sloppy: bool, file: PathBuf) -> Option<Origin> {
        let mut args = Vec::new();
        let mut found = false;
        // The file of a named pool applies before all options.
        let first = line.iter().position(|arg| matches!(arg, Arg::Path(path) if names(path, &file)));
        for (index, arg) in line.into_iter().enumerate() {
            match arg {
                Arg::Path(_) if first == Some(index) => {
                    args.insert(0, config(&file));
                    found = true;
                }
                Arg::Options(group) => {
                    // The path may be relative to the directory in which the mount was started.
                    let (mut pairs, mut is_file) = (Vec::new(), false);
                    for pair in command_line::split_group(&group) {
                        let (key, value) = options::split(&pair);
                        let is_config = options::find(&key).is_some_and(|spec| spec.name == "config");
                        if is_config {
                            is_file = is_same(Path::new(&value), &file);
                            found = is_file;
                        }
                        pairs.push(if is_config && is_file {
                            pair_of("config", file.as_os_str())
                        } else {
                            pair
                        });
                    }
                    args.push(Arg::Options(command_line::join_group(&pairs)));
                }
                // After the name of a pool, the only other path is its mountpoint, whatever the file says.
                Arg::Path(path) if first.is_some() => {
                    args.push(Arg::Options(command_line::join_group(&[pair_of("mountpoint", &path)])));
                }
                path => args.push(path),
            }
        }
        found.then_some(Origin { file, args, sloppy })
    }

    /// Returns the configuration of the next mount if the file had this text.
    fn evaluate(&self, text: &[u8]) -> Result<Config, Error> {
        let mut config = Config { sloppy: self.sloppy, ..Config::default() };
        config.file.replacement = Some((self.file.clone(), text.to_owned()));
        command_line::apply(&mut config, self.args.iter().cloned())?;
        Ok(config)
    }

    /// Returns the text with a new value for an option, such that the next mount uses that value.
    pub fn edited(&self, text: &[u8], spec: &Spec, value: &OsStr) -> Result<Vec<u8>, Error> {
        let mut wanted = Config::default();
        super::set(&mut wanted, &spec.name, value)?;
        let failed = |why: String| Error::Persist { file: self.file.clone(), why };
        if value.as_bytes().contains(&b'\n') {
            return Err(failed("a value of several lines cannot be written".into()));
        }
        // Mistakes that the file has already are reported as a mount would do it.
        self.evaluate(text)?;
        for place in [Insertion::InPlace, Insertion::AtEnd] {
            let edited = if file::is_toml(&self.file) {
                let text = std::str::from_utf8(text).map_err(|why| failed(why.to_string()))?;
                edit::toml(text, spec, value).map_err(failed)?.into_bytes()
            } else {
                edit::lines(text, spec, value, place)
            };
            if spec.render(&self.evaluate(&edited)?) == spec.render(&wanted) {
                return Ok(edited);
            }
        }
        Err(Error::Overridden { key: spec.name.to_string(), file: self.file.clone() })
    }
}

fn pair_of(key: &str, value: &OsStr) -> OsString {
    [OsStr::new(key), OsStr::new("="), value].into_iter().collect()
}

fn config(file: &Path) -> Arg {
    Arg::Options(command_line::join_group(&[pair_of("config", file.as_os_str())]))
}

/// Returns whether a word is the name of the pool with this file.
fn names(word: &OsStr, file: &Path) -> bool {
    let by_name = is_name(word) && file.file_stem() == Some(word);
    file::is_toml(file) && (by_name || file::is_toml(Path::new(word)) && is_same(Path::new(word), file))
}

/// Returns whether a path can mean `file`, which is absolute. A relative path matches in any working directory.
fn is_same(typed: &Path, file: &Path) -> bool {
    if typed.is_absolute() {
        return std::path::absolute(typed).is_ok_and(|typed| typed == file);
    }
    let parts = typed.components().filter(|part| matches!(part, Component::Normal(_)));
    file.ends_with(parts.collect::<PathBuf>()) && typed.file_name().is_some()
}

/// Copies extended attributes, as far as the filesystem has any.
pub fn copy_xattrs(from: &File, to: &File) -> io::Result<()> {
    let mut names = vec![0; 64 << 10];
    let Ok(length) = flistxattr(from, &mut names) else { return Ok(()) };
    let mut value = vec![0; 64 << 10];
    for name in names[..length].split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
        let length = fgetxattr(from, name, &mut value)?;
        match fsetxattr(to, name, &value[..length], XattrFlags::empty()) {
            // The system sets labels by itself, and may allow nobody to.
            Err(_) if name.starts_with(b"security.") => {}
            result => result?,
        }
    }
    Ok(())
}

/// How long other writers are waited for. Whoever can read the file may lock it.
const OTHERS: Duration = Duration::from_secs(5);

fn lock_soon(file: &File) -> io::Result<()> {
    let until = Instant::now() + OTHERS;
    loop {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) if Instant::now() < until => std::thread::sleep(OTHERS / 100),
            Err(Errno::WOULDBLOCK) => {
                return Err(io::Error::other("another process has locked it (fuser -v shows which)"));
            }
            result => return Ok(result?),
        }
    }
}

/// A config file about to be replaced. Until `commit`, the old file stays as it is.
pub struct Rewrite {
    /// The path with all symlinks resolved.
    path: PathBuf,
    /// Locked, so that a second writer sees the change of the first.
    lock: File,
    /// Removed when dropped.
    new: Option<NamedTempFile>,
}

impl Rewrite {
    /// Opens the file, or the file that a symlink leads to, and waits some seconds for other writers. Returns its text too.
    pub fn begin(file: &Path) -> io::Result<(Rewrite, Vec<u8>)> {
        loop {
            let path = fs::canonicalize(file)?;
            let lock = File::open(&path)?;
            lock_soon(&lock)?;
            let (locked, current) = (lock.metadata()?, fs::metadata(&path)?);
            // The writer before this one may have replaced the file that is locked here.
            if (locked.dev(), locked.ino()) == (current.dev(), current.ino()) {
                let text = file::read(&path)?;
                return Ok((Rewrite { path, lock, new: None }, text));
            }
        }
    }

    /// Writes the new text to a file in the same directory, with the owner, the mode, and the attributes of the old file:
    /// its ACL and its label.
    pub fn write_new(&mut self, text: &[u8]) -> io::Result<()> {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        let dir = self.path.parent().unwrap_or(Path::new("/"));
        // Opened here, because an error of `tempfile_in` names a file that means nothing to its reader.
        let create = |path: &Path| File::options().write(true).create_new(true).mode(0o600).open(path);
        let mut new = tempfile::Builder::new().prefix(&format!(".{name}.canopy-")).make_in(dir, create)?;
        new.as_file_mut().write_all(text)?;
        let meta = self.lock.metadata()?;
        rustix::fs::fchown(new.as_file(), Some(Uid::from_raw(meta.uid())), Some(Gid::from_raw(meta.gid())))?;
        new.as_file().set_permissions(meta.permissions())?;
        copy_xattrs(&self.lock, new.as_file())?;
        new.as_file().sync_all()?;
        self.new = Some(new);
        Ok(())
    }

    /// Replaces the old file with the new one.
    pub fn commit(self) -> io::Result<()> {
        let Some(new) = self.new else { return Ok(()) };
        new.persist(&self.path)?;
        // Syncing the directory makes the rename durable. The rename is visible already, so a failure does not undo it.
        if let Some(dir) = self.path.parent() {
            let _ = File::open(dir).and_then(|dir| dir.sync_all());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_holds_a_lock_is_not_waited_for_without_end() {
        let file = NamedTempFile::new().unwrap();
        let held = File::open(file.path()).unwrap();
        flock(&held, FlockOperation::LockShared).unwrap();
        let why = Rewrite::begin(file.path()).err().unwrap();
        assert!(why.to_string().contains("locked"), "{why}");
        drop(held);
        assert!(Rewrite::begin(file.path()).is_ok());
    }

    fn origin(line: &str, file: &Path) -> Option<Origin> {
        let mut words = line.split(' ').skip(1).filter(|word| !matches!(*word, "mount" | "-f"));
        let mut args = Vec::new();
        while let Some(word) = words.next() {
            args.push(match word {
                "-o" => Arg::Options(words.next()?.into()),
                path => Arg::Path(path.into()),
            });
        }
        Origin::of(args, false, file.to_owned())
    }

    #[test]
    fn the_command_line_names_the_file() {
        let table = [
            ("canopy mount media", "/etc/canopy/media.toml", true),
            ("/usr/bin/canopy mount -f -o ro media /m", "/etc/canopy/media.toml", true),
            ("mount.canopy media /m -o rw", "/etc/canopy/media.toml", true),
            ("canopy mount ./x/pool.toml", "/home/x/pool.toml", true),
            ("canopy mount /home/x/pool.toml", "/home/x/pool.toml", true),
            ("canopy mount -o config=/c /a /m", "/c", true),
            ("mergerfs /a /m -o ro,config=conf/c", "/srv/conf/c", true),
            ("mergerfs /a /m -o config=c -o config=/d", "/d", true),
            ("mergerfs /a /m -o config=c -o config=/d", "/srv/c", false),
            ("canopy mount media", "/etc/canopy/other.toml", false),
            ("canopy mount media", "/etc/media", false),
            ("canopy mount /a /m", "/c", false),
        ];
        for (line, file, expected) in table {
            assert_eq!(origin(line, Path::new(file)).is_some(), expected, "{line} {file}");
        }
    }

    /// Returns the edited file, or the error.
    fn edit(line: &str, name: &str, text: &str, key: &str, value: &str) -> Result<String, String> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(name);
        fs::write(&file, text).unwrap();
        fs::write(dir.path().join("more"), "cache.attr=3\n").unwrap();
        let here = dir.path().to_str().unwrap();
        let origin = origin(&line.replace('@', &format!("{here}/")), &file).unwrap();
        let text = text.replace('@', &format!("{here}/"));
        let edited = origin.edited(text.as_bytes(), options::find(key).unwrap(), OsStr::new(value));
        edited
            .map(|text| String::from_utf8(text).unwrap().replace(&format!("{here}/"), "@"))
            .map_err(|error| error.line().replace(&format!("{here}/"), "@"))
    }

    #[test]
    fn the_next_mount_must_have_the_new_value() {
        let mount = "canopy mount -o config=@c /no-m";
        let ok = |line: &str, text: &str, key: &str, value: &str, expected: &str| {
            assert_eq!(edit(line, "c", text, key, value).as_deref(), Ok(expected), "{line}: {text}");
        };
        ok(mount, "cache.attr=7\nro\n", "cache.attr", "8", "cache.attr=8\nro\n");
        // A later line would win, so the option moves to the end.
        ok(mount, "cache.attr=7\nconfig=@more\n", "cache.attr", "8", "config=@more\ncache.attr=8\n");
        ok(
            mount,
            "func.create=ff\ncategory.create=mfs\n",
            "func.create",
            "lfs",
            "category.create=mfs\nfunc.create=lfs\n",
        );
        ok(
            mount,
            "category.create=mfs\nfunc.create=ff\n",
            "category.create",
            "lus",
            "func.create=ff\ncategory.create=lus\n",
        );
        // Options before the file do not count, and the same value after it does no harm.
        ok(
            "canopy mount -o cache.attr=1,config=@c /no-m",
            "cache.attr=7\n",
            "cache.attr",
            "8",
            "cache.attr=8\n",
        );
        ok(
            "canopy mount -o config=@c,cache.attr=8 /no-m",
            "cache.attr=7\n",
            "cache.attr",
            "8",
            "cache.attr=8\n",
        );
        for (line, key, value) in [
            ("canopy mount -o config=@c,cache.attr=1 /no-m", "cache.attr", "8"),
            ("canopy mount -o config=@c,flush_on_close=never /no-m", "flush-on-close", "always"),
            ("canopy mount -o config=@c,func.create=ff /no-m", "category.create", "lus"),
            ("canopy mount -o config=@c,category.create=mfs /no-m", "func.create", "lus"),
            ("canopy mount -o config=@c /no-a /no-m", "branches", "/no-b"),
            ("canopy mount -o config=@c -o branches=/no-a /no-m", "branches", "/no-b"),
        ] {
            let refused = edit(line, "c", "branches=/no-x\n", key, value).unwrap_err();
            assert!(refused.contains(&format!("{key} in @c would have no effect")), "{line}: {refused}");
        }
    }

    #[test]
    fn the_next_mount_must_have_the_new_value_from_toml() {
        let edit = |line: &str, text: &str, key: &str, value: &str| edit(line, "c.toml", text, key, value);
        let text = "branches = ['/no-a']\n[cache]\nattr = 7 # s\n";
        let expected = "branches = ['/no-a']\n[cache]\nattr = 8 # s\n";
        assert_eq!(edit("canopy mount c /no-m", text, "cache.attr", "8").as_deref(), Ok(expected));
        // As a line of fstab mounts it: the mountpoint is not a branch, although the file names one, too.
        let both = "mountpoint = '/no-m'\nbranches = ['/no-a']\n";
        let expected = "mountpoint = '/no-m'\nbranches = ['/no-a', \"/no-b\"]\n";
        let added = edit("canopy mount @c.toml /no-m -o rw", both, "branches", "/no-a=RW:/no-b=RW");
        assert_eq!(added.as_deref(), Ok(expected));
        let refused = edit("canopy mount -o cache.attr=1 c", text, "cache.attr", "8").unwrap_err();
        assert!(refused.contains("cache.attr in @c.toml would have no effect"), "{refused}");
        let refused = edit("canopy mount c", "func.create = 'ff'\n", "category.create", "lus").unwrap_err();
        assert!(refused.contains("category.create in @c.toml would have no effect"), "{refused}");
        // A file that has mistakes already is not edited.
        let refused = edit("canopy mount c", "frob = 1\n", "cache.attr", "8").unwrap_err();
        assert!(refused.contains("c.toml:1: unknown option 'frob'"), "{refused}");
    }

    #[test]
    fn a_file_is_replaced_completely_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("real"), dir.path().join("link"));
        fs::write(&file, "old").unwrap();
        let named = rustix::fs::setxattr(&file, "user.mine", b"kept", XattrFlags::empty()).is_ok();
        std::os::unix::fs::symlink("real", &link).unwrap();
        let names = || fs::read_dir(dir.path()).unwrap().count();
        let (mut rewrite, text) = Rewrite::begin(&link).unwrap();
        assert_eq!(text, b"old");
        rewrite.write_new(b"new").unwrap();
        assert_eq!((fs::read(&file).unwrap(), names()), (b"old".to_vec(), 3));
        drop(rewrite);
        assert_eq!((fs::read(&file).unwrap(), names()), (b"old".to_vec(), 2));
        let (mut rewrite, _) = Rewrite::begin(&link).unwrap();
        rewrite.write_new(b"new").unwrap();
        rewrite.commit().unwrap();
        assert_eq!((fs::read(&file).unwrap(), names()), (b"new".to_vec(), 2));
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        let mut value = [0; 8];
        let length = rustix::fs::getxattr(&file, "user.mine", &mut value);
        assert!(!named || length.is_ok_and(|length| &value[..length] == b"kept"));
        let (mut rewrite, _) = Rewrite::begin(&link).unwrap();
        dir.close().unwrap();
        let why = rewrite.write_new(b"newer").unwrap_err().to_string();
        assert_eq!(why, "No such file or directory (os error 2)", "the temporary file is not named");
    }
}
