//! The process attributes of a server: limits, priority, user.

use crate::error::Error;
use nix::errno::Errno;
use nix::unistd::{Uid, User, getgrouplist, setgid, setgroups, setuid};
use rustix::fs::Mode;
use rustix::process::{Resource, Rlimit, getrlimit, setpriority_process, setrlimit, umask};
use std::ffi::{CString, OsStr};

/// Takes this nice value, which threads and children inherit that start later. It is not required.
pub fn take_priority(priority: i32) {
    if let Err(errno) = setpriority_process(None, priority) {
        tracing::debug!("scheduling-priority={priority}: {errno}");
    }
}

/// Prepares this process to serve a pool. Failures are ignored, because none of these settings is required. Must run
/// before other threads start.
pub fn prepare(priority: i32) {
    take_priority(priority);
    // The modes in requests already include the umask of the caller.
    umask(Mode::empty());
    raise_open_files();
    // The file size limit of the user who mounts must not apply to other users.
    raise(Resource::Fsize, None);
    // Nor may the CPU time limit, because the kernel kills the process when it is reached.
    raise(Resource::Cpu, None);
    // io_uring rings count as locked memory without CAP_IPC_LOCK.
    raise(Resource::Memlock, None);
    // Killing the pool would hurt every program that uses it.
    if rustix::process::geteuid().is_root() {
        let _ = std::fs::write("/proc/self/oom_score_adj", "-990");
    }
}

/// Raises the limit of open files, because each open file of each client needs a descriptor here.
pub fn raise_open_files() {
    let most = std::fs::read_to_string("/proc/sys/fs/nr_open").ok().and_then(|text| text.trim().parse().ok());
    if most.is_none() || !raise(Resource::Nofile, most) {
        let hard = getrlimit(Resource::Nofile).maximum;
        raise(Resource::Nofile, hard);
    }
}

fn raise(resource: Resource, to: Option<u64>) -> bool {
    let now = getrlimit(resource);
    let to = match (to, now.maximum) {
        // Never below the current limit.
        (Some(to), Some(hard)) => Some(to.max(hard)),
        (_, None) => None,
        (None, _) => None,
    };
    setrlimit(resource, Rlimit { current: to, maximum: to }).is_ok()
        || setrlimit(resource, Rlimit { current: now.maximum, maximum: now.maximum }).is_ok()
}

/// Switches to another user with all their groups, permanently. Must run while there is only one thread.
pub fn become_user(user: &OsStr) -> Result<(), Error> {
    let failed = |why: String| Error::User { user: user.to_string_lossy().into_owned(), why };
    let found = look_up(user).map_err(|errno| failed(errno.desc().to_owned()))?;
    let Some(found) = found else { return Err(failed("no such user".into())) };
    if Uid::effective() == found.uid {
        // The parent of a background child has already switched.
        return Ok(());
    }
    if !Uid::effective().is_root() {
        return Err(failed("only root can mount as another user".into()));
    }
    let switch = || -> Result<(), Errno> {
        let name = CString::new(found.name.as_bytes()).map_err(|_| Errno::EINVAL)?;
        setgroups(&getgrouplist(&name, found.gid)?)?;
        setgid(found.gid)?;
        setuid(found.uid)
    };
    switch().map_err(|errno| failed(errno.desc().to_owned()))
}

/// Finds a user by name, or else by number, wherever the system keeps its users (nsswitch.conf(5)).
fn look_up(user: &OsStr) -> Result<Option<User>, Errno> {
    let Some(name) = user.to_str() else { return Ok(None) };
    let by_name = match User::from_name(name) {
        // Errors by which C libraries report an unknown name (getpwnam_r(3)).
        Err(Errno::ENOENT | Errno::ESRCH | Errno::EBADF | Errno::EPERM) => None,
        other => other?,
    };
    match (by_name, name.parse()) {
        (None, Ok(number)) => User::from_uid(Uid::from_raw(number)),
        (found, _) => Ok(found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_limit_is_at_least_the_hard_limit() {
        let hard = getrlimit(Resource::Nofile).maximum;
        raise_open_files();
        let now = getrlimit(Resource::Nofile);
        assert_eq!(now.current, now.maximum);
        assert!(now.maximum.unwrap_or(u64::MAX) >= hard.unwrap_or(u64::MAX));
    }

    #[test]
    fn users_are_found_by_name_and_by_number() {
        let uid = |user: &str| look_up(OsStr::new(user)).unwrap().map(|found| found.uid.as_raw());
        assert_eq!((uid("root"), uid("0")), (Some(0), Some(0)));
        assert_eq!((uid("no-such-user"), uid("4294967294")), (None, None));
    }
}
