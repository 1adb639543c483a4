//! `canopy log`: shows what daemons said, wherever it went: the journal, syslog, or what was their standard error.

use crate::error::{Error, Result};
use canopy_config::program_name::Name;
use canopy_config::source::named;
use canopy_sys::mountinfo::{self, MountEntry};
use canopy_sys::shown::Show as _;
use canopy_terminal::{eprint_line, print, print_exactly, print_json};
use clap::Args;
use rustix::process::{Pid, geteuid};
use serde::Serialize;
use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Show what the daemons of pools said
#[derive(Args, Debug)]
#[command(after_help = NOTES)]
pub struct LogArgs {
    /// A pool's mountpoint or name [default: all pools]
    pub pool: Option<PathBuf>,
    /// How many lines to show
    #[arg(short = 'n', long, value_name = "N", default_value_t = 50)]
    pub lines: usize,
    /// Go on with new lines as they come
    #[arg(short, long, conflicts_with = "json")]
    pub follow: bool,
    /// Print JSON, for programs
    #[arg(long)]
    pub json: bool,
}

const NOTES: &str = "\
A daemon in the background writes to the journal, or to syslog if there is none;
canopy mount -f writes to its standard error. CANOPY_LOG=debug, given when the
pool is mounted, makes it say more.

Examples:
  canopy log media
  canopy log -f";

const JOURNAL: &str = "/run/systemd/journal/socket";
const SYSLOG: &str = "/dev/log";
/// Where syslog daemons write what a daemon says.
const SYSLOG_FILES: [&str; 3] = ["/var/log/syslog", "/var/log/daemon.log", "/var/log/messages"];

/// Where the lines of a daemon are.
#[derive(Clone, PartialEq, Eq, Debug)]
enum LogPlace {
    Journal,
    Syslog(PathBuf),
    File(PathBuf),
    /// They cannot be read there, and why.
    Elsewhere(String),
}

/// A place, and the processes whose lines are looked for there; without any, those of all.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Source {
    place: LogPlace,
    processes: Vec<u32>,
}

#[derive(Serialize)]
struct Report {
    sources: Vec<SourceReport>,
}

#[derive(Serialize)]
struct SourceReport {
    /// journal, syslog, file or none.
    kind: &'static str,
    /// The file, if it is one.
    file: Option<String>,
    lines: Vec<String>,
}

/// Returns the processes that serve a mount.
pub type Servers = fn(&MountEntry) -> Vec<Pid>;

/// Shows what the daemons said.
///
/// # Errors
/// If it cannot be read.
pub fn log(args: &LogArgs, servers: Servers) -> Result<()> {
    let mut sources = sources(args.pool.as_deref(), servers)?;
    if args.follow {
        return follow_one(&sources, args);
    }
    let mut report = Report { sources: Vec::new() };
    for source in &mut sources {
        let lines = match source.lines(args.lines) {
            // Nobody has named the pool whose messages cannot be read, and those of others can.
            Err(why) if args.pool.is_none() => {
                source.place = LogPlace::Elsewhere(why.to_string());
                Vec::new()
            }
            lines => lines?,
        };
        report.sources.push(SourceReport {
            kind: source.place.kind(),
            file: source.place.file().map(|file| file.shown().to_string()),
            lines,
        });
    }
    let nowhere = sources.iter().map(|source| source.place.nowhere().map(str::to_owned));
    let nowhere: Option<Vec<String>> = nowhere.collect();
    if args.json {
        print_json(&report);
    }
    if let Some(whys) = nowhere {
        return Err(Error::NoLog(whys.join("; ")));
    }
    if args.json {
        return Ok(());
    }
    for (source, shown) in sources.iter().zip(&report.sources) {
        if sources.len() > 1 && !matches!(source.place, LogPlace::Elsewhere(_)) {
            print(&format!("{}:\n", source.place.name()));
        }
        match (&source.place, shown.lines.is_empty()) {
            (LogPlace::Elsewhere(why), _) => eprint_line(why),
            (place, true) => eprint_line(&format!("there are no messages in {}", place.name())),
            (_, false) => shown.lines.iter().for_each(|line| print_exactly(format!("{line}\n").as_bytes())),
        }
    }
    Ok(())
}

/// Follows the only place that can be read.
fn follow_one(sources: &[Source], args: &LogArgs) -> Result<()> {
    let readable: Vec<&Source> = sources.iter().filter(|source| source.place.nowhere().is_none()).collect();
    if let [source] = readable.as_slice() {
        sources.iter().filter_map(|source| source.place.nowhere()).for_each(eprint_line);
        return follow(source, args.lines);
    }
    if readable.is_empty() {
        let whys: Vec<&str> = sources.iter().filter_map(|source| source.place.nowhere()).collect();
        return Err(Error::NoLog(whys.join("; ")));
    }
    let places: Vec<String> = readable.iter().map(|source| source.place.name()).collect();
    Err(Error::SeveralLogs(places.join(", ")))
}

/// Returns where to look for what was said of a pool, or of all.
fn sources(pool: Option<&Path>, servers: Servers) -> Result<Vec<Source>> {
    let listed = mountinfo::list().map_err(Error::system("cannot read /proc/self/mountinfo"))?;
    let pools: Vec<MountEntry> = listed.into_iter().filter(MountEntry::is_pool).collect();
    let Some(pool) = pool else {
        let mut sources: Vec<Source> = Vec::new();
        for source in pools.iter().flat_map(|mounted| of_pool(mounted, servers)) {
            let source = match source.place {
                LogPlace::File(_) => source,
                place => Source { place, processes: Vec::new() },
            };
            if !sources.contains(&source) {
                sources.push(source);
            }
        }
        // What daemons have said that have ended since is in the system's log.
        let ended = Source { place: system(), processes: Vec::new() };
        if sources.is_empty() || ended.place.nowhere().is_none() && !sources.contains(&ended) {
            sources.push(ended);
        }
        return Ok(sources);
    };
    let path = named::mountpoint(pool)?;
    let place = mountinfo::listed_path(&path).unwrap_or_else(|_| path.clone());
    match pools.iter().rev().find(|mounted| mounted.mountpoint == place) {
        Some(mounted) => {
            let mut sources = of_pool(mounted, servers);
            // With one pool, what earlier daemons of it have said belongs to it as well.
            if pools.len() == 1 {
                let shared = sources.iter_mut().filter(|source| !matches!(source.place, LogPlace::File(_)));
                shared.for_each(|source| source.processes.clear());
            }
            Ok(sources)
        }
        None => {
            eprint_line(&format!(
                "no pool is mounted at {}, so these are the messages of all pools",
                path.shown()
            ));
            Ok(vec![Source { place: system(), processes: Vec::new() }])
        }
    }
}

/// Returns where the processes of a pool write.
fn of_pool(mounted: &MountEntry, servers: Servers) -> Vec<Source> {
    let mut processes: Vec<u32> =
        servers(mounted).iter().map(|pid| pid.as_raw_nonzero().get().cast_unsigned()).collect();
    let keepers: Vec<u32> = processes.iter().filter_map(|pid| keeper_of(*pid)).collect();
    processes.extend(keepers);
    let Some(server) = processes.first() else {
        let place = mounted.mountpoint.shown();
        let why = if geteuid().is_root() {
            format!(
                "the daemon of {place} cannot be found: it has ended (canopy status), or runs in a container"
            )
        } else {
            format!("the daemon of {place} has ended, or belongs to another user (sudo canopy log)")
        };
        return vec![Source { place: LogPlace::Elsewhere(why), processes }];
    };
    let stderr = fs::read_link(format!("/proc/{server}/fd/2"));
    let place = match stderr.map_or_else(|_| system(), |link| written_to(&link)) {
        place if place == system() => place,
        LogPlace::Elsewhere(why) => LogPlace::Elsewhere(format!("{}: {why}", mounted.mountpoint.shown())),
        place => place,
    };
    vec![Source { place, processes }]
}

/// Returns the process that started a server and keeps its pool, if it is one of ours.
fn keeper_of(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let parent = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
    let name = fs::read_to_string(format!("/proc/{parent}/comm")).ok()?;
    Name::from_fstype(name.trim()).map(|_| parent)
}

/// Returns the place that a standard error leads to.
fn written_to(link: &Path) -> LogPlace {
    match link.to_str().unwrap_or_default() {
        // A daemon in the background has closed it.
        "/dev/null" => system(),
        // The journal, if systemd has started it.
        text if text.starts_with("socket:") => system(),
        text if text.starts_with("pipe:") => LogPlace::Elsewhere(
            "the daemon writes to a pipe: the program that started it has the messages (of a container: \
             docker logs, podman logs)"
                .into(),
        ),
        text if text.starts_with("/dev/") => {
            LogPlace::Elsewhere(format!("the daemon writes to the terminal {text}"))
        }
        text if text.ends_with(" (deleted)") => {
            LogPlace::Elsewhere(format!("the daemon writes to a file that was removed: {text}"))
        }
        text if fs::metadata(link).is_ok_and(|meta| !meta.is_file()) => {
            LogPlace::Elsewhere(format!("the daemon writes to {text}, which is not a file"))
        }
        _ => LogPlace::File(link.to_owned()),
    }
}

/// Returns where a daemon in the background writes.
fn system() -> LogPlace {
    if Path::new(JOURNAL).exists() {
        return LogPlace::Journal;
    }
    let file = SYSLOG_FILES.iter().map(Path::new).find(|file| file.exists());
    match file.filter(|_| Path::new(SYSLOG).exists()) {
        Some(file) => LogPlace::Syslog(file.to_owned()),
        None => LogPlace::Elsewhere(
            "there is neither a journal nor syslog, so daemons in the background log nowhere (canopy mount -f \
             logs to its standard error)"
                .into(),
        ),
    }
}

impl LogPlace {
    fn kind(&self) -> &'static str {
        match self {
            LogPlace::Journal => "journal",
            LogPlace::Syslog(_) => "syslog",
            LogPlace::File(_) => "file",
            LogPlace::Elsewhere(_) => "none",
        }
    }

    fn file(&self) -> Option<&Path> {
        match self {
            LogPlace::Syslog(file) | LogPlace::File(file) => Some(file),
            LogPlace::Journal | LogPlace::Elsewhere(_) => None,
        }
    }

    /// Returns why nothing can be read there.
    fn nowhere(&self) -> Option<&str> {
        match self {
            LogPlace::Elsewhere(why) => Some(why),
            LogPlace::Journal | LogPlace::Syslog(_) | LogPlace::File(_) => None,
        }
    }

    fn name(&self) -> String {
        match self {
            LogPlace::Journal => "the journal".into(),
            LogPlace::Syslog(file) | LogPlace::File(file) => file.shown().to_string(),
            LogPlace::Elsewhere(why) => why.clone(),
        }
    }
}

impl Source {
    /// Returns the last lines.
    fn lines(&self, most: usize) -> Result<Vec<String>> {
        match &self.place {
            LogPlace::Journal => {
                let done = self.journalctl(most).output();
                let done = done.map_err(Error::system("journalctl cannot be run"))?;
                if !done.status.success() {
                    let said = String::from_utf8_lossy(&done.stderr);
                    return Err(Error::Journal(
                        said.lines().last().unwrap_or("journalctl failed").to_owned(),
                    ));
                }
                Ok(String::from_utf8_lossy(&done.stdout).lines().map(str::to_owned).collect())
            }
            LogPlace::Syslog(file) | LogPlace::File(file) => {
                let failed = |why| Error::Log { path: file.clone(), why };
                let file = File::open(file).map_err(failed)?;
                let mut last = VecDeque::new();
                for line in BufReader::new(file).split(b'\n') {
                    let line = String::from_utf8_lossy(&line.map_err(failed)?).into_owned();
                    if self.admits(&line) {
                        last.push_back(line);
                        if last.len() > most {
                            last.pop_front();
                        }
                    }
                }
                Ok(last.into())
            }
            LogPlace::Elsewhere(_) => Ok(Vec::new()),
        }
    }

    fn journalctl(&self, most: usize) -> Command {
        let mut command = Command::new("journalctl");
        command.args(["--no-pager", "--quiet", "--output=short-iso", "-t", "canopy", "-t", "mergerfs"]);
        command.arg("--lines").arg(most.to_string());
        command.args(self.processes.iter().map(|pid| format!("_PID={pid}")));
        command.stdin(Stdio::null());
        command
    }

    /// Returns whether a line is from one of these processes.
    fn admits(&self, line: &str) -> bool {
        match (&self.place, self.processes.as_slice()) {
            (LogPlace::Syslog(_), []) => line.contains(" canopy[") || line.contains(" mergerfs["),
            (LogPlace::Syslog(_), processes) => processes.iter().any(|pid| {
                line.contains(&format!(" canopy[{pid}]:")) || line.contains(&format!(" mergerfs[{pid}]:"))
            }),
            _ => true,
        }
    }
}

/// Shows the last lines, and new ones as they come, until a signal ends it.
fn follow(source: &Source, most: usize) -> Result<()> {
    let failed = Error::system("the log cannot be followed");
    match &source.place {
        LogPlace::Journal => Err(failed(source.journalctl(most).arg("--follow").exec())),
        LogPlace::Elsewhere(why) => Err(Error::NoLog(why.clone())),
        LogPlace::Syslog(file) | LogPlace::File(file) => {
            source.lines(most)?.iter().for_each(|line| print_exactly(format!("{line}\n").as_bytes()));
            let mut tail = Command::new("tail");
            tail.args(["-n", "0", "-F"]).arg(file).stdin(Stdio::null()).stdout(Stdio::piped());
            let mut tail = tail.spawn().map_err(failed)?;
            let Some(lines) = tail.stdout.take() else { return Ok(()) };
            for line in BufReader::new(lines).split(b'\n').map_while(Result::ok) {
                let line = String::from_utf8_lossy(&line).into_owned();
                if source.admits(&line) {
                    print_exactly(format!("{line}\n").as_bytes());
                }
            }
            tail.wait().map(drop).map_err(Error::system("the log cannot be followed"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_syslog_are_told_apart() {
        let of = |processes: &[u32]| Source {
            place: LogPlace::Syslog("/var/log/syslog".into()),
            processes: processes.into(),
        };
        let line = "Nov 27 14:00:01 host canopy[123]: /pool has ended";
        assert!(of(&[]).admits(line) && of(&[9, 123]).admits(line));
        assert!(!of(&[12]).admits(line) && !of(&[23]).admits(line));
        assert!(!of(&[]).admits("Nov 27 14:00:01 host sshd[123]: canopy"));
        assert!(of(&[]).admits(&line.replace("canopy", "mergerfs")));
    }

    #[test]
    fn standard_error_tells_the_place() {
        assert_eq!(written_to(Path::new("/srv/log")), LogPlace::File("/srv/log".into()));
        for elsewhere in ["/dev/pts/3", "pipe:[77]", "/srv/log (deleted)", "/proc"] {
            assert!(matches!(written_to(Path::new(elsewhere)), LogPlace::Elsewhere(_)), "{elsewhere}");
        }
    }

    #[test]
    fn the_last_lines_of_a_file_are_shown() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        fs::write(&path, "one\ntwo\nthree\n").unwrap();
        let source = Source { place: LogPlace::File(path), processes: Vec::new() };
        assert_eq!(source.lines(2).unwrap(), ["two", "three"]);
        assert_eq!(source.lines(9).unwrap().len(), 3);
    }
}
