//! Runs `canopy`, with a deadline, a limit on what it may print, and few at a time.

use canopy_base::text::{one_line, os_error};
use canopy_sys::shown::Show as _;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::Command;
use tokio::sync::Semaphore;

/// `canopy status` itself waits for what does not answer, and says so. This is for what waits beyond that.
const DEADLINE: Duration = Duration::from_secs(45);
const LARGEST_OUTPUT: u64 = 16 << 20;
const AT_ONCE: usize = 6;

/// The program `canopy`.
#[derive(Debug)]
pub struct Program {
    path: PathBuf,
    deadline: Duration,
    turns: Semaphore,
}

/// Why a command has given nothing, in one line.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct Failure(pub String);

#[derive(Debug)]
pub struct Output {
    pub stdout: Vec<u8>,
    line: String,
    stderr: Vec<u8>,
}

impl Output {
    /// Returns why there is no answer: what the command said of it, or what `else_why` says.
    pub fn failure(&self, else_why: impl FnOnce() -> String) -> Failure {
        let said = String::from_utf8_lossy(&self.stderr);
        let said = said.lines().find(|line| !line.is_empty());
        Failure(match said {
            Some(said) => one_line(said.trim_start_matches("canopy: ")),
            None => format!("{} {}", self.line, else_why()),
        })
    }
}

impl Program {
    pub fn new(path: PathBuf) -> Program {
        Program { path, deadline: DEADLINE, turns: Semaphore::new(AT_ONCE) }
    }

    /// The program beside this one, else the one in PATH.
    pub fn beside(own: Option<&Path>) -> PathBuf {
        let beside = own.and_then(|own| own.parent()).map(|dir| dir.join("canopy"));
        beside.filter(|path| path.exists()).unwrap_or_else(|| PathBuf::from("canopy"))
    }

    /// Returns what a command has printed, whatever its exit status.
    ///
    /// # Errors
    /// If it cannot be started, takes too long or prints too much.
    pub async fn run(
        &self,
        arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
    ) -> Result<Output, Failure> {
        self.run_within(arguments, self.deadline).await
    }

    /// The same with another deadline.
    ///
    /// # Errors
    /// If it cannot be started, takes too long or prints too much.
    pub async fn run_within(
        &self,
        arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
        deadline: Duration,
    ) -> Result<Output, Failure> {
        let arguments: Vec<OsString> = arguments.into_iter().map(|word| word.as_ref().to_owned()).collect();
        let line = command_line(&arguments);
        // Nobody closes it.
        let _turn = self.turns.acquire().await;
        let mut command = Command::new(&self.path);
        command.args(&arguments).current_dir("/").kill_on_drop(true);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let cannot = |why: std::io::Error| {
            Failure(format!("cannot run {}: {} (is canopy installed?)", self.path.shown(), os_error(why)))
        };
        let mut child = command.spawn().map_err(cannot)?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let read = async { tokio::join!(all(stdout), all(stderr)) };
        let Ok((stdout, stderr)) = tokio::time::timeout(deadline, read).await else {
            // It is killed, and not waited for: it may wait for a disk.
            return Err(Failure(format!("{line} takes longer than {} s", deadline.as_secs())));
        };
        if stdout.len() as u64 > LARGEST_OUTPUT {
            return Err(Failure(format!("{line} prints more than {} MiB", LARGEST_OUTPUT >> 20)));
        }
        Ok(Output { stdout, line, stderr })
    }
}

/// Reads until the end, or a byte more than is allowed.
async fn all(pipe: Option<impl AsyncRead + Unpin>) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(pipe) = pipe {
        let _ = pipe.take(LARGEST_OUTPUT + 1).read_to_end(&mut bytes).await;
    }
    bytes
}

/// Returns the line that runs a command in a shell.
pub fn command_line(arguments: &[OsString]) -> String {
    let words = arguments.iter().map(|word| quoted(word));
    std::iter::once("canopy".to_owned()).chain(words).collect::<Vec<_>>().join(" ")
}

fn quoted(word: &OsStr) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/.-_=:,@%+".contains(c);
    match word.to_str() {
        Some(text) if !text.is_empty() && text.chars().all(is_plain) => text.to_owned(),
        Some(text) if text.shown().to_string() == text => format!("'{}'", text.replace('\'', r"'\''")),
        // What would not be seen, or is no text, as bash reads it.
        _ => {
            let bytes = std::os::unix::ffi::OsStrExt::as_bytes(word);
            let escaped: String = bytes.iter().map(|&byte| escaped(byte)).collect();
            format!("$'{escaped}'")
        }
    }
}

fn escaped(byte: u8) -> String {
    match byte {
        b'\'' | b'\\' => format!("\\{}", byte as char),
        b' '..=b'~' => (byte as char).to_string(),
        _ => format!("\\x{byte:02x}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt as _;

    fn run(deadline: Duration, arguments: &[&str]) -> Result<Output, Failure> {
        let mut program = Program::new("/bin/sh".into());
        program.deadline = deadline;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(program.run(arguments))
    }

    #[test]
    fn output_counts_whatever_the_exit_status() {
        let done = run(DEADLINE, &["-c", "echo '{}'; exit 1"]).unwrap();
        assert_eq!(done.stdout, b"{}\n");
        let nothing = run(DEADLINE, &["-c", "echo 'canopy: /x\u{1b}[1m is no pool' >&2"]).unwrap();
        assert_eq!(nothing.failure(String::new).0, "/x\\u{1b}[1m is no pool");
        assert_eq!(done.failure(|| "fails".into()).0, "canopy -c 'echo '\\''{}'\\''; exit 1' fails");
    }

    #[test]
    fn a_command_that_hangs_is_given_up() {
        let failure = run(Duration::from_millis(50), &["-c", "exec sleep 600"]).unwrap_err();
        assert_eq!(failure.0, "canopy -c 'exec sleep 600' takes longer than 0 s");
        let failure = run(DEADLINE, &["-c", "head -c 17M /dev/zero"]).unwrap_err();
        assert!(failure.0.ends_with("prints more than 16 MiB"), "{failure}");
    }

    #[test]
    fn a_program_that_is_missing_is_named() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let failure = runtime.block_on(Program::new("/no/canopy".into()).run([""; 0])).unwrap_err();
        assert!(failure.0.starts_with("cannot run /no/canopy: No such file"), "{failure}");
    }

    #[test]
    fn lines_can_be_pasted_into_a_shell() {
        let words: [&[u8]; 6] =
            [b"plain-1.a", b"", b"a b", b"it's $HOME `x`", b"\xff\n'", "a\u{202e}b".as_bytes()];
        let words = words.map(|word| OsStr::from_bytes(word).to_owned());
        let line = command_line(&words);
        assert!(line.starts_with(r"canopy plain-1.a '' 'a b' 'it'\''s $HOME `x`' $'\xff\x0a\''"), "{line}");
        let shell = std::process::Command::new("bash");
        let mut shell = shell;
        let shown = shell.args(["-c", &line.replacen("canopy", "printf '%s\\0'", 1)]).output().unwrap();
        let expected: Vec<u8> = words.iter().flat_map(|word| [word.as_bytes(), b"\0"].concat()).collect();
        assert_eq!(shown.stdout, expected);
    }
}
