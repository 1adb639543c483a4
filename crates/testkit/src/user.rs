//! Running a program as another user, through util-linux `setpriv`.

use std::ffi::OsStr;
use std::process::Command;

/// A user, given by ids. It needs no entry in the password file.
#[derive(Debug, Clone, Copy)]
pub struct User<'a> {
    pub uid: u32,
    pub gid: u32,
    /// Supplementary groups.
    pub groups: &'a [u32],
}

impl User<'_> {
    /// Returns a command that runs `program` with this user's ids and groups only, and without capabilities.
    ///
    /// Needs root.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("setpriv");
        command.arg(format!("--reuid={}", self.uid)).arg(format!("--regid={}", self.gid));
        if self.groups.is_empty() {
            command.arg("--clear-groups");
        } else {
            let list: Vec<String> = self.groups.iter().map(u32::to_string).collect();
            command.arg(format!("--groups={}", list.join(",")));
        }
        command.arg("--inh-caps=-all").arg("--").arg(program);
        command
    }

    /// Returns a command that runs a shell script as this user. `args` become `$1`, `$2` and so on.
    pub fn shell(&self, script: &str, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
        let mut command = self.command("sh");
        command.args(["-eu", "-c", script, "sh"]).args(args);
        command
    }
}

/// Returns a command that runs `program` as the given user; see [`User::command`].
pub fn as_user(uid: u32, gid: u32, groups: &[u32], program: impl AsRef<OsStr>) -> Command {
    User { uid, gid, groups }.command(program)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cmd::run_within;

    #[test]
    fn a_user_command_changes_every_id_and_drops_capabilities() {
        crate::require_root();
        let user = User { uid: 4242, gid: 4243, groups: &[4244, 4245] };
        let script = "id -u; id -g; id -G; sed -n 's/^CapEff:[[:space:]]*//p' /proc/self/status";
        let done = run_within(&mut user.shell(script, [""; 0]), crate::PATIENCE);
        assert_eq!(
            done.stdout.lines().collect::<Vec<_>>(),
            ["4242", "4243", "4243 4244 4245", "0000000000000000"],
            "{}",
            done.describe()
        );
    }

    #[test]
    fn a_user_without_groups_has_none() {
        crate::require_root();
        let done = run_within(as_user(1, 1, &[], "id").arg("-G"), crate::PATIENCE);
        assert_eq!(done.stdout.trim(), "1", "{}", done.describe());
    }
}
