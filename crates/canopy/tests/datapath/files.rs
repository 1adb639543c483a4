//! Helpers around system calls on files.

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::path::{Path, PathBuf};
use std::process::Command;

use canopy_testkit::PATIENCE;
use canopy_testkit::cmd::run_within;

pub(super) const BLOCK: usize = 4096;

#[track_caller]
pub(super) fn open(path: &Path, flags: OFlags) -> OwnedFd {
    try_open(path, flags).unwrap_or_else(|errno| panic!("open {} {flags:?}: {errno}", path.display()))
}

pub(super) fn try_open(path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::from_raw_mode(0o644))
}

/// Reads up to `len` bytes at `offset`; fewer at the end of the file.
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

/// A page-aligned buffer, as `O_DIRECT` requires.
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

/// Runs commands in one xfs_io, which can hold several descriptors and a mapping, and returns its output.
///
/// The commands go to its standard input, because xfs_io runs those of `-c` on every open file in turn.
#[track_caller]
pub(super) fn xfs_io(commands: &[String]) -> String {
    let mut command = Command::new("sh");
    command.args(["-c", r#"printf '%s\n' "$@" | xfs_io"#, "sh"]).args(commands);
    let done = run_within(&mut command, PATIENCE);
    assert!(done.success() && done.stderr.is_empty(), "{command:?}: {}", done.describe());
    done.stdout
}

/// The path of a directory or file in the pool, and its path on the branch.
#[derive(Clone, Debug)]
pub(super) struct TwoPaths {
    pub(super) pool: PathBuf,
    pub(super) branch: PathBuf,
}

impl TwoPaths {
    /// Creates a subdirectory.
    #[track_caller]
    pub(super) fn dir(&self, name: &str) -> TwoPaths {
        let inner = TwoPaths { pool: self.pool.join(name), branch: self.branch.join(name) };
        std::fs::create_dir(&inner.branch).expect("mkdir on the branch");
        inner
    }

    /// Creates a file on the branch and returns its two paths.
    #[track_caller]
    pub(super) fn file(&self, name: &str, content: &[u8]) -> TwoPaths {
        let file = TwoPaths { pool: self.pool.join(name), branch: self.branch.join(name) };
        std::fs::write(&file.branch, content).expect("a file on the branch");
        file
    }
}
