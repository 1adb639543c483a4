//! Reading a directory in different ways, and checking that they agree.

use std::collections::BTreeMap;
use std::mem::MaybeUninit;

use rustix::fd::BorrowedFd;
use rustix::fs::{AtFlags, FileType, RawDir, SeekFrom, fstat, seek, statat};
use rustix::io::Errno;

use super::Outcome;

struct Item {
    name: Vec<u8>,
    kind: u8,
    ino: u64,
    /// The position of the next entry.
    next: u64,
}

fn read_from(dir: BorrowedFd<'_>, position: u64) -> Result<Vec<Item>, Errno> {
    seek(dir, SeekFrom::Start(position))?;
    // The buffer is small, so that a few entries take several calls.
    let mut buffer = [MaybeUninit::uninit(); 128];
    let mut raw = RawDir::new(dir, &mut buffer);
    let mut items = Vec::new();
    while let Some(entry) = raw.next() {
        let entry = entry?;
        items.push(Item {
            name: entry.file_name().to_bytes().to_vec(),
            kind: kind(entry.file_type()),
            ino: entry.ino(),
            next: entry.next_entry_cookie(),
        });
    }
    Ok(items)
}

fn kind(file_type: FileType) -> u8 {
    ((file_type.as_raw_mode() & 0o170_000) >> 12) as u8
}

/// Lists names and types. Checks inode numbers, `.` and seeking.
pub(super) fn list(dir: BorrowedFd<'_>) -> Result<Outcome, Errno> {
    let items = match read_from(dir, 0) {
        // A removed directory has no entries.
        Err(Errno::NOENT) => return Ok(Outcome::Names(Vec::new())),
        other => other?,
    };
    let own = fstat(dir)?;
    let mut names = BTreeMap::new();
    for item in &items {
        if item.name == b".." {
            continue;
        }
        let stat = match statat(dir, item.name.as_slice(), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) if own.st_nlink == 0 => continue,
            Err(errno) => {
                return Ok(Outcome::Broken(format!("{} is listed: {errno}", item.name.escape_ascii())));
            }
        };
        let shown = (kind(FileType::from_raw_mode(stat.st_mode)), stat.st_ino);
        if (item.kind, item.ino) != shown {
            return Ok(Outcome::Broken(format!(
                "{} is listed with type and inode number {:?}, but has {shown:?}",
                item.name.escape_ascii(),
                (item.kind, item.ino)
            )));
        }
        if item.name != b"." && names.insert(item.name.clone(), item.kind).is_some() {
            return Ok(Outcome::Broken(format!("{} is listed twice", item.name.escape_ascii())));
        }
    }
    for (index, item) in items.iter().enumerate() {
        let rest = read_from(dir, item.next)?;
        if !rest.iter().map(|i| &i.name).eq(items[index + 1..].iter().map(|i| &i.name)) {
            return Ok(Outcome::Broken(format!(
                "seeking behind {} gives other entries",
                item.name.escape_ascii()
            )));
        }
    }
    Ok(Outcome::Names(names.into_iter().collect()))
}
