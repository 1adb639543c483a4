//! Programs that run in a target.

use super::Error;
use std::path::Path;
use std::process::{Command, Stdio};

/// Returns the first of these programs that is not installed.
pub(crate) fn missing(programs: &[&'static str]) -> Option<&'static str> {
    programs.iter().copied().find(|program| !is_installed(program))
}

pub(super) fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

/// Runs a program in a directory, without the user's settings.
pub(super) fn run(words: &[&str], dir: &Path) -> Result<(), Error> {
    let failed = |why: String| Error::Program { program: words.join(" "), dir: dir.to_owned(), why };
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).current_dir(dir);
    command.env("LC_ALL", "C").env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_CONFIG_GLOBAL", "/dev/null");
    for (key, value) in [("GIT_AUTHOR", "bench"), ("GIT_COMMITTER", "bench")] {
        command.env(format!("{key}_NAME"), value).env(format!("{key}_EMAIL"), "bench@localhost");
    }
    for key in [
        "GIT_DIR",
        "GIT_WORK_TREE",
        "GIT_INDEX_FILE",
        "MAKEFLAGS",
        "TAR_OPTIONS",
        "BLOCK_SIZE",
        "DU_BLOCK_SIZE",
    ] {
        command.env_remove(key);
    }
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let done = command.spawn().and_then(std::process::Child::wait_with_output);
    let done = done.map_err(|error| failed(error.to_string()))?;
    if done.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&done.stderr);
    Err(failed(text.lines().next().map_or_else(|| done.status.to_string(), str::to_owned)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_program_says_why() {
        let dir = tempfile::tempdir().unwrap();
        let error = run(&["ls", "missing"], dir.path()).unwrap_err().to_string();
        assert!(error.starts_with("ls missing in /") && error.contains("No such file"), "{error}");
        assert!(!is_installed("no-such-program-of-canopy"));
        assert_eq!(missing(&["ls", "no-such-program-of-canopy"]), Some("no-such-program-of-canopy"));
    }
}
