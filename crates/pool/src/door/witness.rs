//! Which namespaces a task shares with the daemon.

use std::fs;
use std::os::unix::fs::MetadataExt;

/// The namespaces that a task is proved to share with the daemon.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Namespaces {
    pub user: bool,
    pub mount: bool,
}

/// Looks at a task. A namespace is one file, and no two have the same at a time (namespaces(7)).
///
/// Looking requires what ptrace(2) calls `PTRACE_MODE_READ_FSCREDS`: CAP_SYS_PTRACE, or that the task is of the same user and
/// group, dumpable, and has no capability that the calling thread lacks. Landlock denies it whatever the capabilities.
/// A namespace that cannot be read is not shared.
#[must_use]
pub fn look(pid: u32) -> Namespaces {
    let shares = |kind: &str| {
        let of = |task: &str| {
            let found = fs::metadata(format!("/proc/{task}/ns/{kind}")).ok()?;
            Some((found.dev(), found.ino()))
        };
        of(&pid.to_string()).is_some_and(|theirs| of("self") == Some(theirs))
    };
    Namespaces { user: shares("user"), mount: shares("mnt") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_shares_its_own_namespaces() {
        assert_eq!(look(std::process::id()), Namespaces { user: true, mount: true });
        assert_eq!(look(0), Namespaces::default());
    }
}
