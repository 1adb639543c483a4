//! What crashes of other programs leave: files under temporary names that nobody will rename any more.

use super::{FileCopy, open};
use canopy_base::text::os_error;
use canopy_sys::lease;
use rustix::fs::{AtFlags, FileType, OFlags};
use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A file that has been changed since is taken for one that is still being written.
const LEFT_FOR: Duration = Duration::from_secs(3600);

/// Programs that write under temporary names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Program {
    /// Also below mergerfs.balance, mergerfs.dup and mergerfs.consolidate.
    Rsync,
    /// Which moves files as well.
    Mergerfs,
    /// Removed while it was open.
    Fuse,
    /// The same over NFS.
    Nfs,
    Rclone,
    Syncthing,
}

impl Program {
    pub(super) fn word(self) -> &'static str {
        match self {
            Program::Rsync => "rsync",
            Program::Mergerfs => "mergerfs",
            Program::Fuse => "a FUSE filesystem",
            Program::Nfs => "an NFS client",
            Program::Rclone => "rclone",
            Program::Syncthing => "Syncthing",
        }
    }
}

/// Returns the program that has left a file, as far as name, mode and time tell.
pub(super) fn whose(path: &Path, copies: &[FileCopy]) -> Option<Program> {
    let first = copies.first()?;
    if first.kind() != FileType::RegularFile {
        return None;
    }
    let changed = copies.iter().map(|copy| u64::try_from(copy.stat.st_mtime).unwrap_or(0)).max()?;
    let age = SystemTime::now().duration_since(UNIX_EPOCH + Duration::from_secs(changed));
    if age.is_ok_and(|age| age < LEFT_FOR) {
        return None;
    }
    let dir = path.parent().and_then(Path::file_name).map_or(&b""[..], OsStrExt::as_bytes);
    by_name(dir, path.file_name()?.as_bytes(), first.stat.st_mode & 0o7777)
}

fn by_name(dir: &[u8], name: &[u8], mode: u32) -> Option<Program> {
    let hex = |rest: &[u8]| rest.len() >= 16 && rest.iter().all(u8::is_ascii_hexdigit);
    let is_some = |wanted: &dyn Fn(&u8) -> bool, text: &[u8]| text.iter().any(wanted);
    // A word of random letters and digits: hardly one that people write.
    let random = |text: &[u8], length: usize| {
        text.len() == length
            && text.iter().all(u8::is_ascii_alphanumeric)
            && is_some(&u8::is_ascii_uppercase, text)
            && is_some(&|byte| !byte.is_ascii_uppercase(), text)
    };
    if name.strip_prefix(b".fuse_hidden").is_some_and(hex) {
        return Some(Program::Fuse);
    }
    if name.strip_prefix(b".nfs").is_some_and(hex) {
        return Some(Program::Nfs);
    }
    if (name.starts_with(b".syncthing.") || name.starts_with(b"~syncthing~")) && name.ends_with(b".tmp") {
        return Some(Program::Syncthing);
    }
    let words: Vec<&[u8]> = name.rsplitn(3, |byte| *byte == b'.').collect();
    if let [b"partial", word, start] = words[..]
        && !start.is_empty()
        && word.len() == 8
        && word.iter().all(|byte| byte.is_ascii_digit() || byte.is_ascii_lowercase())
    {
        return Some(Program::Rclone);
    }
    if dir == b".~tmp~" {
        return Some(Program::Rsync);
    }
    let hidden = name.strip_prefix(b".")?;
    // It becomes readable for others when it gets its name.
    if let Some(dot) = hidden.iter().rposition(|byte| *byte == b'.')
        && dot > 0
        && mode & 0o077 == 0
        && random(&hidden[dot + 1..], 6)
    {
        return Some(Program::Rsync);
    }
    (random(hidden, 16) && (mode == 0o200 || is_some(&u8::is_ascii_digit, hidden)))
        .then_some(Program::Mergerfs)
}

/// Removes all copies of a file, if nobody has one of them open.
pub(super) fn remove(of: Program, copies: &[FileCopy]) -> Result<(), String> {
    if of == Program::Nfs {
        return Err("a client may have it open, which does not show here".into());
    }
    let held = copies.iter().map(hold).collect::<Result<Vec<_>, _>>();
    let held = held.map_err(|errno| match errno {
        Errno::AGAIN => "open in a program".to_owned(),
        errno => os_error(errno),
    })?;
    copies.iter().zip(&held).try_for_each(|(copy, held)| unlink(copy, held)).map_err(os_error)
}

/// Opens a copy that nobody else has open.
fn hold(copy: &FileCopy) -> Result<OwnedFd, Errno> {
    let path = format!("/proc/self/fd/{}", copy.fd.as_raw_fd());
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, rustix::fs::Mode::empty())?;
    lease::take_alone(file.as_fd())?;
    Ok(file)
}

fn unlink(copy: &FileCopy, held: &OwnedFd) -> Result<(), Errno> {
    let (Some(parent), Some(name)) = (copy.path.parent(), copy.path.file_name()) else {
        return Err(Errno::INVAL);
    };
    let dir = open(parent, OFlags::PATH | OFlags::DIRECTORY)?;
    let now = rustix::fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let is_it =
        (now.st_dev, now.st_ino, now.st_mtime) == (copy.stat.st_dev, copy.stat.st_ino, copy.stat.st_mtime);
    if !is_it || !lease::holds_alone(held.as_fd()) {
        return Err(Errno::AGAIN);
    }
    rustix::fs::unlinkat(&dir, name, AtFlags::empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_whose_a_file_is() {
        let table: [(&str, u32, Option<Program>); 20] = [
            (".film.mkv.aB3dE5", 0o600, Some(Program::Rsync)),
            (".film.mkv.Zbcdef", 0o600, Some(Program::Rsync)),
            // It is readable for others, so that it is no file of rsync's.
            (".film.mkv.aB3dE5", 0o644, None),
            (".bashrc.backup", 0o600, None),
            (".conf.123456", 0o600, None),
            (".aB3dE5", 0o600, None),
            ("film.aB3dE5", 0o600, None),
            (".aB3dE5fG7hI9jK1l", 0o644, Some(Program::Mergerfs)),
            (".aBcdEfgHijklMnop", 0o200, Some(Program::Mergerfs)),
            (".aBcdEfgHijklMnop", 0o644, None),
            (".abcdefghijklmnop", 0o200, None),
            (".fuse_hidden0000000a00000001", 0o644, Some(Program::Fuse)),
            (".fuse_hidden", 0o644, None),
            (".nfs000000000012ab3400000001", 0o644, Some(Program::Nfs)),
            (".nfs-exports", 0o644, None),
            ("film.mkv.4b3ac2d8.partial", 0o644, Some(Program::Rclone)),
            ("film.mkv.partial", 0o644, None),
            (".syncthing.film.mkv.tmp", 0o644, Some(Program::Syncthing)),
            ("film.tmp", 0o600, None),
            ("film.mkv", 0o644, None),
        ];
        for (name, mode, expected) in table {
            assert_eq!(by_name(b"d", name.as_bytes(), mode), expected, "{name} {mode:o}");
        }
        assert_eq!(by_name(b".~tmp~", b"film.mkv", 0o644), Some(Program::Rsync));
    }
}
