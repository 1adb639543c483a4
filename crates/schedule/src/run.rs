//! One run of a job: its command with its log, and what has become of it.

use crate::due::dealt_with;
use crate::error::{Error, Result};
use crate::log::Log;
use crate::place::JobsDir;
use crate::record::{Outcome, Record, Run};
use crate::snapraid;
use crate::table::Job;
use crate::work::Work;
use canopy_base::text::{one_line, os_error};
use jiff::Zoned;
use rustix::process::{Pid, Signal, kill_process_group};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

/// How long a command that is to stop has for it.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long what it has started is listened to when it has ended.
const RESTS: Duration = Duration::from_secs(2);
const LOOK_AGAIN: Duration = Duration::from_millis(200);
/// How much of a line is read, in bytes, and how many lines are looked at again.
const LONGEST_LINE: usize = 8 << 10;
const REMEMBERED: usize = 50;

/// How a run was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Asked {
    /// It is due, for this time.
    Due(i64),
    ByHand,
}

/// What a command has left.
struct Ended {
    status: Option<ExitStatus>,
    /// Why it was stopped.
    stopped: Option<Outcome>,
    lines: Vec<String>,
}

/// Runs a job of the pool that is mounted here, and says what has become of it; `None` if another process has run it for this
/// time meanwhile.
///
/// # Errors
/// If it runs already, or nothing can be kept of it.
pub(crate) fn run(pool: &str, mountpoint: &Path, job: &Job, asked: Asked) -> Result<Option<Outcome>> {
    let place = JobsDir::of(pool);
    let lock = place.lock(&job.name)?.ok_or_else(|| Error::Running(job.name.clone()))?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop))
            .map_err(Error::system("cannot wait for signals"))?;
    }
    lock.share().map_err(Error::system("cannot share a lock"))?;
    let mut record = place.record(&job.name)?.unwrap_or_default();
    if let Asked::Due(due) = asked
        && record.when == job.when.to_string()
        && record.due >= due
        && !record.is_cut_off()
    {
        return Ok(None);
    }
    record.cut_off = if record.is_cut_off() { record.cut_off + 1 } else { 0 };
    record.waits = None;
    if let Asked::Due(due) = asked {
        record.when = job.when.to_string();
        record.due = due;
    }
    let began = Zoned::now();
    record.last = Some(Run {
        command: job.work.shown(mountpoint),
        began: began.timestamp().as_second(),
        ended: None,
        outcome: None,
        text: String::new(),
        by_hand: asked == Asked::ByHand,
    });
    place.keep(&job.name, &record)?;
    let file = place.log_file(&job.name);
    let mut log = Log::open(&file).map_err(Error::file(file))?;
    log.event(&began, &format!("begins: {}", job.work.shown(mountpoint)));
    if job.nice > 0 {
        // One that cannot be had stops no job.
        let _ = rustix::process::nice(job.nice.into());
    }
    let process = Process { log: &mut log, stop: &stop, aloud: asked == Asked::ByHand, until: until(job) };
    let (outcome, text) = carry_out(job, mountpoint, process, asked);
    let now = Zoned::now();
    log.event(&now, &format!("{}: {text}", outcome.word()));
    ended(&mut record, job, &now, outcome, text);
    place.keep(&job.name, &record)?;
    Ok(Some(outcome))
}

fn until(job: &Job) -> Option<Instant> {
    job.at_most.and_then(|time| Instant::now().checked_add(time))
}

fn ended(record: &mut Record, job: &Job, now: &Zoned, outcome: Outcome, text: String) {
    if outcome != Outcome::CutOff {
        record.cut_off = 0;
        if record.when == job.when.to_string() {
            record.due = dealt_with(job, record.due, now);
        }
    }
    record.done += u64::from(outcome == Outcome::Done);
    if let Some(run) = &mut record.last {
        run.ended = Some(now.timestamp().as_second());
        run.outcome = Some(outcome);
        run.text = text;
    }
}

fn carry_out(job: &Job, pool: &Path, mut process: Process<'_>, asked: Asked) -> (Outcome, String) {
    let stopped = |outcome| match outcome {
        Outcome::TimeUp => (outcome, "its time was up".to_owned()),
        _ if asked == Asked::ByHand => (Outcome::Stopped, "it was stopped".to_owned()),
        _ => (Outcome::CutOff, "it was stopped, and begins anew".to_owned()),
    };
    if let Some(most) = job.deletions {
        let ended = match process.command("snapraid", &["diff".into()]) {
            Ok(ended) => ended,
            Err(why) => return (Outcome::Failed, why),
        };
        if let Some(outcome) = ended.stopped {
            return stopped(outcome);
        }
        // 2: there are differences.
        let is_told =
            ended.status.and_then(|status| status.code()).is_some_and(|code| code == 0 || code == 2);
        match snapraid::removed(&ended.lines).filter(|_| is_told) {
            None => {
                let last = last_line(&ended.lines);
                return (Outcome::Failed, format!("snapraid diff does not tell what was removed: {last}"));
            }
            Some(removed) if removed > most => {
                let why = format!(
                    "{removed} files were removed since the last sync, more than deletions = {most}: they could not be got \
                     back after it"
                );
                return (Outcome::HeldBack, why);
            }
            Some(_) => {}
        }
    }
    let (program, words) = job.work.command(pool);
    match process.command(program, &words) {
        Err(why) => (Outcome::Failed, why),
        Ok(Ended { stopped: Some(outcome), .. }) => stopped(outcome),
        Ok(Ended { status, lines, .. }) => match status {
            Some(status) if status.success() => (Outcome::Done, done(&job.work, &lines)),
            Some(status) => {
                let last = last_line(&lines);
                (Outcome::Failed, if last.is_empty() { format!("it ended with {status}") } else { last })
            }
            None => (Outcome::Failed, "it is not known how it has ended".into()),
        },
    }
}

fn done(work: &Work, lines: &[String]) -> String {
    match work {
        Work::Drain(branch) => format!("the files of {} are on other disks now", one_line(branch)),
        _ => last_line(lines),
    }
}

/// Returns the last line that says something, without the name of the program.
fn last_line(lines: &[String]) -> String {
    let telling = |line: &&String| !line.trim().is_empty() && !snapraid::is_noise(line);
    let last = lines.iter().rev().find(telling).map_or("", |line| line.trim());
    one_line(last.strip_prefix("canopy: ").unwrap_or(last)).chars().take(300).collect()
}

/// How commands run.
struct Process<'p> {
    log: &'p mut Log,
    stop: &'p AtomicBool,
    /// What they say is printed, too.
    aloud: bool,
    until: Option<Instant>,
}

impl Process<'_> {
    /// Runs a command to its end.
    ///
    /// Errors: a sentence, if it cannot be started.
    fn command(&mut self, program: &str, words: &[OsString]) -> Result<Ended, String> {
        let failed = |why: io::Error| match why.kind() {
            io::ErrorKind::NotFound => format!("{program} is not installed"),
            _ => format!("{program} cannot be started: {}", os_error(&why)),
        };
        let (reader, writer) = io::pipe().map_err(failed)?;
        let other = writer.try_clone().map_err(failed)?;
        let mut command = Command::new(if program == "canopy" { "/proc/self/exe" } else { program });
        command.args(words).stdin(Stdio::null()).stdout(writer).stderr(other);
        // In a group of its own, it gets the signals that are passed on, and only these.
        command.current_dir("/").process_group(0);
        let child = command.spawn().map_err(failed)?;
        drop(command);
        let (lines, received) = sync_channel(100);
        thread::spawn(move || {
            let _ = each_line(reader, &mut |line| lines.send(line).is_ok());
        });
        Ok(self.attend(child, &received))
    }

    fn attend(&mut self, mut child: Child, lines: &Receiver<String>) -> Ended {
        let mut ended = Ended { status: None, stopped: None, lines: Vec::new() };
        let (mut killed_at, mut over_at): (Option<Instant>, Option<Instant>) = (None, None);
        let mut at_end = false;
        loop {
            match lines.recv_timeout(if at_end { Duration::ZERO } else { LOOK_AGAIN }) {
                Ok(line) => {
                    self.hear(line, &mut ended.lines);
                    // A command that prints without end is stopped all the same.
                    match over_at {
                        Some(over) if over.elapsed() > RESTS => return ended,
                        Some(_) => continue,
                        None if killed_at.is_none() && !self.is_over() => continue,
                        None => {}
                    }
                }
                Err(RecvTimeoutError::Disconnected) if !at_end => {
                    at_end = true;
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) if ended.status.is_none() => {
                    thread::sleep(LOOK_AGAIN / 10)
                }
                // What it has started may hold the pipe longer.
                Err(_) if ended.status.is_some() => return ended,
                Err(_) => {}
            }
            match child.try_wait() {
                Ok(None) => {}
                Ok(status) => {
                    // Whoever has stopped this one may have stopped the command, too.
                    if self.stop.load(Ordering::Relaxed) && !status.is_some_and(|status| status.success()) {
                        ended.stopped = ended.stopped.or(Some(Outcome::Stopped));
                    }
                    ended.status = status;
                    over_at = Some(Instant::now());
                    continue;
                }
                Err(_) => return ended,
            }
            let group = Pid::from_child(&child);
            match killed_at {
                None if self.is_over() => {
                    let is_stopped = self.stop.load(Ordering::Relaxed);
                    ended.stopped = Some(if is_stopped { Outcome::Stopped } else { Outcome::TimeUp });
                    killed_at = Some(Instant::now());
                    let _ = kill_process_group(group, Signal::TERM);
                }
                Some(since) if since.elapsed() > PATIENCE => _ = kill_process_group(group, Signal::KILL),
                _ => {}
            }
        }
    }

    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || self.until.is_some_and(|until| Instant::now() >= until)
    }

    fn hear(&mut self, line: String, lines: &mut Vec<String>) {
        self.log.line(&line);
        if self.aloud {
            canopy_terminal::print(&format!("{line}\n"));
        }
        if lines.len() >= REMEMBERED {
            lines.remove(0);
        }
        lines.push(line);
    }
}

/// Calls this with each line, until it says no. A program that shows progress in one line overwrites it: what is there last
/// counts.
fn each_line(mut from: impl Read, take: &mut dyn FnMut(String) -> bool) -> io::Result<()> {
    let (mut line, mut buffer) = (Vec::new(), [0; 4096]);
    let shown = |line: &[u8]| {
        let mut parts = line.split(|&byte| byte == b'\r').rev();
        let last = parts.find(|part| !part.trim_ascii().is_empty()).unwrap_or_default();
        String::from_utf8_lossy(last.trim_ascii_end()).into_owned()
    };
    loop {
        let length = from.read(&mut buffer)?;
        if length == 0 {
            break;
        }
        for &byte in &buffer[..length] {
            if byte == b'\n' {
                if !take(shown(&line)) {
                    return Ok(());
                }
                line.clear();
            } else if line.len() < LONGEST_LINE {
                line.push(byte);
            } else if byte == b'\r' {
                line.clear();
            }
        }
    }
    if !line.is_empty() {
        take(shown(&line));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_what_is_seen_in_the_end() {
        let mut all = Vec::new();
        let text = b"one\n\n50%\r100% completed   \r\ntwo\xff\r\nrest".as_slice();
        each_line(text, &mut |line| {
            all.push(line);
            true
        })
        .unwrap();
        assert_eq!(all, ["one", "", "100% completed", "two\u{fffd}", "rest"]);
        // A line without end takes no memory.
        let long = vec![b'x'; 1 << 20];
        let mut lengths = Vec::new();
        each_line(&long[..], &mut |line| {
            lengths.push(line.len());
            true
        })
        .unwrap();
        assert_eq!(lengths, [LONGEST_LINE]);
    }

    #[test]
    fn the_last_line_says_what_it_was_about() {
        let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(last_line(&lines("files: 3\ncanopy: damaged files: 1\n\n")), "damaged files: 1");
        assert_eq!(
            last_line(&lines("Everything OK\nSaving state to /x...\nVerified /x in 0 seconds")),
            "Everything OK"
        );
        assert_eq!(last_line(&[]), "");
    }
}
