//! What a process that serves a filesystem needs to be, as opposed to what it does.

use rustix::fs::Mode;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit, umask};

/// Prepares this process to serve a pool. Nothing here can fail the mount: each is the best that can be had.
pub fn prepare() {
    // Modes come from the callers, and their umask with them.
    umask(Mode::empty());
    raise_open_files();
    // The size limit of whoever mounted is not that of whoever writes.
    raise(Resource::Fsize, None);
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
