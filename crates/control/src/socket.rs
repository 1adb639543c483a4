//! Where the socket of a pool is, and asking over it.
//!
//! Its name is the number of the pool's device, which no two mounts have, wherever they are. A pool without a socket, or whose
//! daemon is of another version, has its control file.

use crate::messages::{Answer, FORM, Hello, Query, Reply};
use canopy_sys::mountinfo::MountEntry;
use canopy_sys::process::peer;
use rustix::io::Errno;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Names another directory than the usual one, for tests and for containers without `/run`.
const VARIABLE: &str = "CANOPY_RUN_DIR";
/// For how long a daemon may take to say hello, and to answer what changes nothing.
const HELLO: Duration = Duration::from_secs(1);
const ANSWER: Duration = Duration::from_secs(10);
/// The longest answer that is read.
const LONGEST_ANSWER: u64 = 64 << 20;

/// Returns the directory of the sockets of a user's pools.
#[must_use]
pub fn directory(user: u32) -> PathBuf {
    if let Some(set) = std::env::var_os(VARIABLE).filter(|value| !value.is_empty()) {
        return set.into();
    }
    match user {
        0 => PathBuf::from("/run/canopy"),
        user => PathBuf::from(format!("/run/user/{user}/canopy")),
    }
}

/// Returns the name of the socket of the pool with this device.
#[must_use]
pub fn name((major, minor): (u32, u32)) -> String {
    format!("{major}-{minor}.sock")
}

/// Returns whether nobody but a user, and root, can have put anything into a directory.
#[must_use]
pub fn is_private(dir: &Path, user: u32) -> bool {
    fs::symlink_metadata(dir)
        .is_ok_and(|found| found.is_dir() && [0, user].contains(&found.uid()) && found.mode() & 0o022 == 0)
}

/// Why the socket gives no answer.
enum Failure {
    /// Nothing was asked: the control file may be.
    NotAsked,
    /// The daemon ended, or does not answer. What was asked may have been done.
    NoAnswer,
}

/// Asks the daemon of a pool over its socket; `None` if that cannot be, or nothing was changed that a second question could
/// change twice.
pub(crate) fn ask(mounted: &MountEntry, query: &Query) -> Option<Result<Answer, Errno>> {
    match try_ask(mounted, query) {
        Ok(Ok(answer)) => Some(Ok(answer)),
        Ok(Err(number)) => Some(Err(canopy_sys::errno::from_raw(number))),
        Err(Failure::NoAnswer) if query.changes() => Some(Err(Errno::NOTCONN)),
        Err(Failure::NotAsked | Failure::NoAnswer) => None,
    }
}

fn try_ask(mounted: &MountEntry, query: &Query) -> Result<Reply, Failure> {
    let not_asked = |_: io::Error| Failure::NotAsked;
    let owner = mounted.super_options.split(',').find_map(|word| word.strip_prefix("user_id="));
    let owner: u32 = owner.and_then(|number| number.parse().ok()).ok_or(Failure::NotAsked)?;
    let dir = directory(owner);
    // The pool is read-only for those who use it here.
    if !is_private(&dir, owner) || query.changes() && mounted.is_read_only() {
        return Err(Failure::NotAsked);
    }
    let mut stream = UnixStream::connect(dir.join(name(mounted.device))).map_err(not_asked)?;
    let server = peer::credentials(&stream).map_err(|_| Failure::NotAsked)?;
    stream.set_read_timeout(Some(HELLO)).map_err(not_asked)?;
    stream.set_write_timeout(Some(HELLO)).map_err(not_asked)?;
    let mut lines = BufReader::new(stream.try_clone().map_err(not_asked)?.take(LONGEST_ANSWER));
    let mut line = Vec::new();
    lines.read_until(b'\n', &mut line).map_err(not_asked)?;
    let hello: Hello = serde_json::from_slice(&line).map_err(|_| Failure::NotAsked)?;
    let is_right = hello.form == FORM && hello.device == mounted.device && [0, owner].contains(&server.uid);
    if !is_right || query.is_restricted() && !hello.changes {
        return Err(Failure::NotAsked);
    }
    let mut question = serde_json::to_vec(query).map_err(|_| Failure::NotAsked)?;
    question.push(b'\n');
    // A change may have to wait for disks and for the kernel.
    let patience = (!query.changes()).then_some(ANSWER);
    stream.set_read_timeout(patience).map_err(not_asked)?;
    let failed = |_: io::Error| Failure::NoAnswer;
    stream.write_all(&question).map_err(failed)?;
    line.clear();
    lines.read_until(b'\n', &mut line).map_err(failed)?;
    serde_json::from_slice(&line).map_err(|_| Failure::NoAnswer)
}
