//! Files as the system calls see them.

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use canopy_testkit::cmd::run_within;

pub(super) const BLOCK: usize = 4096;

#[track_caller]
pub(super) fn open(path: &Path, flags: OFlags) -> OwnedFd {
    try_open(path, flags).unwrap_or_else(|errno| panic!("open {} {flags:?}: {errno}", path.display()))
}

pub(super) fn try_open(path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::from_raw_mode(0o644))
}

/// Up to `len` bytes at `offset`; fewer at the end of the file.
#[track_caller]
pub(super) fn read_at(fd: impl AsFd, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0xee; len];
    let mut done = 0;
    while done < len {
        match rustix::io::pread(&fd, &mut bytes[done..], offset + done as u64).expect("pread") {
            0 => break,
            n => done += n,
        }
    }
    bytes.truncate(done);
    bytes
}

#[track_caller]
pub(super) fn write_at(fd: impl AsFd, offset: u64, bytes: &[u8]) {
    assert_eq!(rustix::io::pwrite(fd, bytes, offset).expect("pwrite"), bytes.len());
}

#[track_caller]
pub(super) fn size(fd: impl AsFd) -> u64 {
    rustix::fs::fstat(fd).expect("fstat").st_size.cast_unsigned()
}

/// Bytes that begin at a page, as `O_DIRECT` wants them.
pub(super) struct Aligned {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    pub(super) fn filled(len: usize, byte: u8) -> Self {
        let bytes = vec![byte; len + BLOCK];
        let start = bytes.as_ptr().align_offset(BLOCK);
        Self { bytes, start, len }
    }

    pub(super) fn get(&self) -> &[u8] {
        &self.bytes[self.start..][..self.len]
    }

    pub(super) fn get_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..][..self.len]
    }
}

/// Feeds xfs_io, which has several descriptors and a mapping at once, and returns what it showed.
///
/// By its standard input: what `-c` says is done to every open file in turn.
#[track_caller]
pub(super) fn xfs_io(commands: &[String]) -> String {
    let mut command = Command::new("sh");
    command.args(["-c", r#"printf '%s\n' "$@" | xfs_io"#, "sh"]).args(commands);
    let done = run_within(&mut command, Duration::from_secs(60));
    assert!(done.success() && done.stderr.is_empty(), "{command:?}: {}", done.describe());
    done.stdout
}

/// One directory as the pool shows it, and as its branch has it.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) pool: PathBuf,
    pub(super) branch: PathBuf,
}

impl Place {
    /// A directory of its own below this one.
    #[track_caller]
    pub(super) fn dir(&self, name: &str) -> Place {
        let below = Place { pool: self.pool.join(name), branch: self.branch.join(name) };
        std::fs::create_dir(&below.branch).expect("mkdir on the branch");
        below
    }

    /// A file that is put on the branch, and its two paths.
    #[track_caller]
    pub(super) fn file(&self, name: &str, content: &[u8]) -> Place {
        let file = Place { pool: self.pool.join(name), branch: self.branch.join(name) };
        std::fs::write(&file.branch, content).expect("a file on the branch");
        file
    }
}
