//! What a process that serves a filesystem needs to be, as opposed to what it does.

use crate::error::Error;
use rustix::fs::Mode;
use rustix::process::{
    Gid, Resource, Rlimit, Uid, geteuid, getrlimit, setpriority_process, setrlimit, umask,
};
use rustix::thread::{set_thread_gid, set_thread_groups, set_thread_uid};
use std::ffi::OsStr;
use std::process::{Command, Stdio};

/// Prepares this process to serve a pool. Nothing here can fail the mount: each is the best that can be had.
/// Called before there is a second thread: those that come inherit the nice value.
pub fn prepare(priority: i32) {
    if let Err(errno) = setpriority_process(None, priority) {
        tracing::debug!("scheduling-priority={priority}: {errno}");
    }
    // Modes come from the callers, and their umask with them.
    umask(Mode::empty());
    raise_open_files();
    // The size limit of whoever mounted is not that of whoever writes.
    raise(Resource::Fsize, None);
    // Nor is that of its processor time, beyond which the kernel kills.
    raise(Resource::Cpu, None);
    // Rings of io_uring count, once CAP_IPC_LOCK is given up.
    raise(Resource::Memlock, None);
    // Better for the machine to lose any one program than the files of all of them.
    if rustix::process::geteuid().is_root() {
        let _ = std::fs::write("/proc/self/oom_score_adj", "-990");
    }
}

/// Every open file of every user of the pool is one here.
fn raise_open_files() {
    let most = std::fs::read_to_string("/proc/sys/fs/nr_open").ok().and_then(|text| text.trim().parse().ok());
    if most.is_none() || !raise(Resource::Nofile, most) {
        let hard = getrlimit(Resource::Nofile).maximum;
        raise(Resource::Nofile, hard);
    }
}

fn raise(resource: Resource, to: Option<u64>) -> bool {
    let now = getrlimit(resource);
    let to = match (to, now.maximum) {
        // Never lower what is given.
        (Some(to), Some(hard)) => Some(to.max(hard)),
        (_, None) => None,
        (None, _) => None,
    };
    setrlimit(resource, Rlimit { current: to, maximum: to }).is_ok()
        || setrlimit(resource, Rlimit { current: now.maximum, maximum: now.maximum }).is_ok()
}

/// Becomes another user with all their groups, for good. Only while there is but one thread.
pub fn become_user(user: &OsStr) -> Result<(), Error> {
    let failed = |why: String| Error::User { user: user.to_string_lossy().into_owned(), why };
    // id(1) asks wherever the system keeps its users: files, LDAP and others.
    let ask = |what: &str| -> Result<Vec<u32>, Error> {
        let told = Command::new("id").args([what, "--"]).arg(user).stderr(Stdio::null()).output();
        let told = told.map_err(|why| failed(format!("cannot run id: {why}")))?;
        let ids: Result<Vec<u32>, _> =
            String::from_utf8_lossy(&told.stdout).split_whitespace().map(str::parse).collect();
        ids.ok()
            .filter(|ids| told.status.success() && !ids.is_empty())
            .ok_or_else(|| failed("no such user".into()))
    };
    let uid = Uid::from_raw(ask("-u")?[0]);
    if geteuid() == uid {
        // The background half was started by one who is that user already.
        return Ok(());
    }
    if !geteuid().is_root() {
        return Err(failed("only root can mount as another user".into()));
    }
    let gid = Gid::from_raw(ask("-g")?[0]);
    let groups: Vec<Gid> = ask("-G")?.into_iter().map(Gid::from_raw).collect();
    set_thread_groups(&groups)
        .and_then(|()| set_thread_gid(gid))
        .and_then(|()| set_thread_uid(uid))
        .map_err(|errno| failed(errno.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_limit_is_raised_to_the_hard_one_at_least() {
        let hard = getrlimit(Resource::Nofile).maximum;
        raise_open_files();
        let now = getrlimit(Resource::Nofile);
        assert_eq!(now.current, now.maximum);
        assert!(now.maximum.unwrap_or(u64::MAX) >= hard.unwrap_or(u64::MAX));
    }
}
