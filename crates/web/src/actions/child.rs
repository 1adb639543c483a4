//! A command that runs for an action: without a shell, in a process group of its own, which can be paused and stopped.

use canopy_base::text::os_error;
use canopy_sys::shown::{Show as _, legible};
use rustix::process::{Pid, Signal, kill_process_group};
use std::ffi::OsString;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::mpsc::Receiver;

/// A longer line is broken.
const LONGEST_LINE: usize = 2000;
/// What a command leaves behind may hold its output open: a pool that it has mounted.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// What somebody wants of a command that runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    Pause,
    GoOn,
    /// As Ctrl-C: it ends what it is at, and says what it has done.
    Stop,
    Kill,
}

/// How a command has ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct End {
    pub well: bool,
    /// It is no answer of the command that it did not do what it could.
    pub said_anything: bool,
    pub words: String,
}

/// Runs a command to its end. `tell` gets each line of what it prints.
pub async fn run(
    program: &Path,
    arguments: &[OsString],
    input: &[u8],
    mut orders: Receiver<Order>,
    tell: impl Fn(&str),
) -> End {
    let mut command = Command::new(program);
    command.args(arguments).current_dir("/").process_group(0);
    command.stdin(if input.is_empty() { Stdio::null() } else { Stdio::piped() });
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(why) => {
            let words = format!("cannot run {}: {} (is canopy installed?)", program.shown(), os_error(why));
            return End { well: false, said_anything: false, words };
        }
    };
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let reading = async { tokio::join!(lines(stdout, &tell), lines(stderr, &tell), feed(stdin, input)).0 };
    tokio::pin!(reading);
    let mut read = None;
    let ended = loop {
        tokio::select! {
            said = &mut reading, if read.is_none() => read = Some(said),
            ended = child.wait() => break ended,
            Some(order) = orders.recv() => send(&child, order),
        }
    };
    let said_anything = match read {
        Some(said) => said,
        // Whether it said anything is asked of plans only, which leave nothing behind.
        None => tokio::time::timeout(LAST_WORDS, reading).await.unwrap_or(true),
    };
    match ended {
        Ok(status) => End { well: status.success(), said_anything, words: words(status) },
        Err(why) => {
            End { well: false, said_anything, words: format!("nobody knows how it ended: {}", os_error(why)) }
        }
    }
}

/// Writes what a command reads, to its end. One that does not read it has said why.
async fn feed(pipe: Option<ChildStdin>, input: &[u8]) {
    if let Some(mut pipe) = pipe {
        let _ = pipe.write_all(input).await;
    }
}

fn words(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt as _;
    match (status.code(), status.signal()) {
        (Some(0), _) => "done".into(),
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => format!("ended by signal {signal}"),
        (None, None) => "ended".into(),
    }
}

/// Sends a signal to a command that has not been waited for: its number is no other's.
fn send(child: &Child, order: Order) {
    let id = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    let Some(group) = id else { return };
    let signals: &[Signal] = match order {
        Order::Pause => &[Signal::STOP],
        Order::GoOn => &[Signal::CONT],
        Order::Stop => &[Signal::TERM, Signal::CONT],
        Order::Kill => &[Signal::KILL],
    };
    for &signal in signals {
        let _ = kill_process_group(group, signal);
    }
}

/// Tells lines until the end, and returns whether there were any.
async fn lines(pipe: Option<impl AsyncRead + Unpin>, tell: &impl Fn(&str)) -> bool {
    let Some(mut pipe) = pipe else { return false };
    let (mut line, mut buffer, mut any) = (Vec::new(), [0; 8192], false);
    while let Ok(count @ 1..) = pipe.read(&mut buffer).await {
        for &byte in &buffer[..count] {
            let ends = byte == b'\n' || byte == b'\r';
            if !ends {
                line.push(byte);
            }
            if (ends || line.len() >= LONGEST_LINE) && !line.is_empty() {
                any = true;
                tell(&plain(&line));
                line.clear();
            }
        }
    }
    if !line.is_empty() {
        any = true;
        tell(&plain(&line));
    }
    any
}

/// A line as text without control characters.
fn plain(line: &[u8]) -> String {
    let text = String::from_utf8_lossy(line);
    legible(&text).chars().map(|c| if c.is_control() && c != '\t' { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use tokio::sync::mpsc::{Sender, channel};

    fn shell(
        script: &str,
        during: impl AsyncFnOnce(Sender<Order>, &Mutex<Vec<String>>),
    ) -> (End, Vec<String>) {
        let told = Mutex::new(Vec::new());
        let (sender, receiver) = channel(4);
        let arguments = ["-c", script].map(OsString::from);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let end = runtime.block_on(async {
            let tell = |line: &str| told.lock().unwrap().push(line.to_owned());
            tokio::join!(run(Path::new("/bin/sh"), &arguments, b"", receiver, tell), during(sender, &told)).0
        });
        (end, told.into_inner().unwrap())
    }

    /// Waits until the script has said something.
    async fn up(told: &Mutex<Vec<String>>) {
        while told.lock().unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    #[test]
    fn lines_are_told_and_the_end_too() {
        let (end, told) = shell("printf 'a\\rb\\n\\033[1mred\\n'; echo no >&2; exit 3", async |_, _| {});
        assert!(!end.well && end.said_anything && end.words == "exit status 3", "{end:?}");
        assert_eq!(told.len(), 4, "{told:?}");
        assert!(told.iter().all(|line| !line.contains('\u{1b}')));
        let (end, told) = shell("head -c 5000 /dev/zero | tr '\\0' x", async |_, _| {});
        assert!(end.well && end.words == "done");
        assert_eq!(told.iter().map(String::len).collect::<Vec<_>>(), [2000, 2000, 1000]);
        let (end, _) = shell("echo only an error >&2; exit 1", async |_, _| {});
        assert!(!end.said_anything);
    }

    #[test]
    fn what_is_left_behind_is_not_waited_for() {
        let start = std::time::Instant::now();
        let (end, told) = shell("sleep 5 & echo $!", async |_, _| {});
        assert!(end.well && start.elapsed() < Duration::from_secs(4));
        let pid = told[0].parse().ok().and_then(Pid::from_raw).unwrap();
        rustix::process::kill_process(pid, Signal::KILL).unwrap();
    }

    #[test]
    fn orders_reach_the_whole_group() {
        let (end, told) = shell(
            "trap 'echo asked; exit 7' TERM; echo up; while :; do sleep 0.05; done",
            async |orders, told| {
                up(told).await;
                for order in [Order::Pause, Order::GoOn, Order::Pause, Order::Stop] {
                    orders.send(order).await.unwrap();
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            },
        );
        // The shell may also tell that the signal ended its `sleep`.
        assert!(end.words == "exit status 7" && told.iter().any(|line| line == "asked"), "{end:?} {told:?}");
        let (end, _) = shell("trap '' TERM; echo up; while :; do sleep 0.05; done", async |orders, told| {
            up(told).await;
            orders.send(Order::Kill).await.unwrap();
        });
        assert_eq!(end.words, "ended by signal 9");
    }

    #[test]
    fn a_program_that_is_missing_is_named() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (_sender, receiver) = channel(1);
        let end = runtime.block_on(run(Path::new("/no/canopy"), &[], b"", receiver, |_| {}));
        assert!(!end.well && end.words.starts_with("cannot run /no/canopy: No such file"), "{end:?}");
    }
}
