//! Which disks of a pool sleep, and who has woken them.
//!
//! The daemon tells when each disk has last done something, and who has woken it. Whether one sleeps, only it can tell
//! itself: ATA disks do so without waking up, if root asks. Of others there is only how long they have had nothing to do.

use crate::probe;
use canopy_base::text::bytes;
use canopy_branch::fs::disk::Disk;
use canopy_control::{CatalogueReport, OsText, RestReport, VerifyingReport, WakeReport};
use canopy_sys::ioctl::ata_power;
use rustix::fs::{Mode, OFlags};
use serde::Serialize;
use std::io;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long all disks have to answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// A disk of a pool, as far as that can be told without waking it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct DiskSleep {
    /// Its name in /dev.
    pub name: String,
    pub branches: Vec<OsText>,
    pub state: SleepState,
    /// For how many seconds it has had nothing to do.
    pub idle: u64,
    /// How often it was woken since the process that serves the pool began.
    pub woken: u64,
    /// For how many seconds it had rested before that, in all.
    pub rested: u64,
    /// By whom the last times, the latest first.
    pub wakes: Vec<WakeReport>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SleepState {
    /// It says so, or it has done something in the last minutes.
    Awake,
    /// It says so, or the kernel has put it to sleep.
    Asleep,
    /// It has had nothing to do for minutes, and does not say whether it sleeps.
    Idle,
    /// Nothing in it turns.
    AlwaysAwake,
}

/// Looks at the disks that a daemon has reported. Wakes none.
///
/// # Errors
/// If processes that ask the disks cannot be started.
pub fn look<'a>(disks: impl Iterator<Item = &'a RestReport>) -> io::Result<Vec<DiskSleep>> {
    let disks: Vec<&RestReport> = disks.collect();
    let root = rustix::process::geteuid().is_root();
    let is_asked = |disk: &&&RestReport| {
        // To ask one that the kernel has put to sleep would wake it.
        root && !disk.solid
            && !disk.suspended
            && Disk::named(&disk.name).is_some_and(|disk| disk.speaks_ata())
    };
    let asked: Vec<&RestReport> = disks.iter().filter(is_asked).copied().collect();
    let queries = probe::start_all("power", asked.iter().map(|disk| Path::new(&disk.name)))?;
    let deadline = Instant::now() + PATIENCE;
    let answers: Vec<Option<bool>> =
        queries.into_iter().map(|query| probe::answer::<Option<bool>>(query, deadline).ok()?).collect();
    let sleep = |disk: &&RestReport| {
        let at = asked.iter().position(|one| one.name == disk.name);
        DiskSleep {
            name: disk.name.clone(),
            branches: disk.branches.clone(),
            state: state(disk, at.and_then(|at| answers[at])),
            idle: idle(disk),
            woken: disk.woken,
            rested: disk.rested,
            wakes: disk.wakes.clone(),
        }
    };
    Ok(disks.iter().map(sleep).collect())
}

/// Asks the disk of this name whether it sleeps; `None` if it does not say. For the child that may wait for ever.
///
/// # Errors
/// Those of opening it, and of a disk that takes no such question.
pub fn ask(name: &Path) -> io::Result<Option<bool>> {
    let path = Path::new("/dev").join(name);
    let disk = rustix::fs::open(&path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?;
    Ok(ata_power::sleeps(disk.as_fd())?)
}

/// Returns for how many seconds a disk has had nothing to do.
pub(crate) fn idle(disk: &RestReport) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    now.saturating_sub(disk.since)
}

/// Returns the disks that may sleep, and who has last woken one, in few words each; nothing if there are none.
pub(crate) fn summary(disks: &[RestReport]) -> Vec<String> {
    let rest: Vec<&str> = disks.iter().filter(|disk| disk.rests).map(|disk| disk.name.as_str()).collect();
    let last = disks.iter().flat_map(|disk| disk.wakes.iter().map(move |wake| (disk, wake)));
    let last = last.max_by_key(|(_, wake)| wake.at);
    let rest = (!rest.is_empty()).then(|| format!("idle for minutes: {}", rest.join(", ")));
    let woken = |(disk, last): (&RestReport, &WakeReport)| {
        format!("{} was woken {}{}", disk.name, wake(last), in_all(disk.woken, disk.rested))
    };
    rest.into_iter().chain(last.map(woken)).collect()
}

fn state(disk: &RestReport, sleeps: Option<bool>) -> SleepState {
    match sleeps {
        _ if disk.suspended => SleepState::Asleep,
        _ if disk.solid => SleepState::AlwaysAwake,
        Some(true) => SleepState::Asleep,
        Some(false) => SleepState::Awake,
        None if disk.rests => SleepState::Idle,
        None => SleepState::Awake,
    }
}

/// Returns how to ask a branch how it is: without reading it, if its disks rest.
pub fn query(disks: &[RestReport], branch: &Path) -> &'static str {
    let branch = OsText::from(branch);
    let mut below = disks.iter().filter(|disk| disk.branches.contains(&branch)).peekable();
    if below.peek().is_some() && below.all(|disk| disk.rests) { "resting" } else { "branch" }
}

/// Returns lines for people, each with its heading.
pub fn facts(disks: &[DiskSleep], catalogue: Option<&CatalogueReport>) -> Vec<(&'static str, String)> {
    let solid: Vec<&str> = disks
        .iter()
        .filter(|disk| disk.state == SleepState::AlwaysAwake)
        .map(|disk| disk.name.as_str())
        .collect();
    let others = disks.iter().filter(|disk| disk.state != SleepState::AlwaysAwake);
    let mut facts: Vec<(&str, String)> = others.map(|disk| ("disk", line(disk))).collect();
    if !facts.is_empty() && !solid.is_empty() {
        facts.push(("disk", format!("{}: always awake", solid.join(", "))));
    }
    facts.extend(catalogue.map(|catalogue| ("known", known(catalogue))));
    facts.extend(catalogue.and_then(|it| it.verifying).map(|progress| ("known", verifying(progress))));
    facts
}

/// Returns how much is known without the disks.
fn known(catalogue: &CatalogueReport) -> String {
    let CatalogueReport { relied_on, directories, bytes: used, bound, answered, asked, .. } = *catalogue;
    if !relied_on {
        return "nothing, because not all branches are watched".into();
    }
    let share = (answered * 100).checked_div(answered + asked).unwrap_or_default();
    format!(
        "{directories} directories, {} of {}; {share} % of the questions were answered without a disk",
        bytes(used),
        bytes(bound)
    )
}

/// Returns how far what was known before has been looked at again.
fn verifying(progress: VerifyingReport) -> String {
    let VerifyingReport { done, total, waits_for_disk } = progress;
    let waits = if waits_for_disk { "; waits for a disk that may sleep" } else { "" };
    format!("verifying what was known before: {done} of {total} directories{waits}")
}

fn line(disk: &DiskSleep) -> String {
    let idle = ago(disk.idle);
    let state = match disk.state {
        SleepState::Awake => "awake".to_owned(),
        SleepState::Asleep => format!("asleep, idle for {idle}"),
        SleepState::Idle => format!("idle for {idle}"),
        SleepState::AlwaysAwake => "always awake".to_owned(),
    };
    let woken = disk.wakes.first().map(|last| format!("; woken {}", wake(last))).unwrap_or_default();
    format!("{}: {state}{woken}{}", disk.name, in_all(disk.woken, disk.rested))
}

/// Returns how often a disk was woken, and for how many seconds it had rested before; nothing if the last wake tells it.
fn in_all(woken: u64, rested: u64) -> String {
    match woken {
        0..2 => String::new(),
        times => format!("; in all {times} times, after {} of rest", ago(rested)),
    }
}

/// Returns when a disk was woken, and by whom.
pub(crate) fn wake(wake: &WakeReport) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let since = ago(now.saturating_sub(wake.at));
    let operation = wake.operation.as_deref().unwrap_or_default();
    let path = wake.path.as_ref().map(|path| match path.one_line() {
        path if path.is_empty() => " .".into(),
        path => format!(" {path}"),
    });
    let who = match wake.by.as_str() {
        "outside" => "something past the pool, or by a file that has been open for long".to_owned(),
        "pool" => format!("the pool itself ({operation})"),
        _ => {
            let program = wake.program.as_ref().map_or_else(|| "a program".to_owned(), OsText::one_line);
            format!("{program} ({operation}{})", path.unwrap_or_default())
        }
    };
    format!("{since} ago by {who}, after {}", ago(wake.rested))
}

fn ago(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(solid: bool, suspended: bool, rests: bool) -> RestReport {
        RestReport { name: "sda".into(), solid, suspended, rests, ..RestReport::default() }
    }

    #[test]
    fn what_a_disk_says_counts_more_than_what_it_does() {
        use SleepState::*;
        for (solid, suspended, rests, says, expected) in [
            (false, false, false, None, Awake),
            (false, false, true, None, Idle),
            (false, false, true, Some(true), Asleep),
            (false, false, true, Some(false), Awake),
            // Put to sleep by hand a moment ago.
            (false, false, false, Some(true), Asleep),
            (false, true, true, None, Asleep),
            (true, false, true, None, AlwaysAwake),
            (true, true, true, None, Asleep),
        ] {
            assert_eq!(state(&disk(solid, suspended, rests), says), expected);
        }
    }

    #[test]
    fn a_line_says_who_has_woken_a_disk() {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let woken = |by: &str, path: Option<&str>| WakeReport {
            at: now - 600,
            rested: 7200,
            by: by.into(),
            program: (by != "pool").then(|| OsText::Text("smbd".into())),
            pid: Some(7),
            operation: Some("lookup".into()),
            path: path.map(|path| OsText::Text(path.into())),
        };
        let sleep = |state, wakes: Vec<WakeReport>| DiskSleep {
            name: "sdb".into(),
            branches: vec![],
            state,
            idle: 2400,
            woken: wakes.len() as u64,
            rested: 7200 * wakes.len() as u64,
            wakes,
        };
        for (state, wakes, expected) in [
            (SleepState::Asleep, vec![], "sdb: asleep, idle for 40 min"),
            (SleepState::Idle, vec![], "sdb: idle for 40 min"),
            (
                SleepState::Awake,
                vec![woken("client", Some("films/a"))],
                "sdb: awake; woken 10 min ago by smbd (lookup films/a), after 2 h",
            ),
            (
                SleepState::Awake,
                vec![woken("later", None)],
                "sdb: awake; woken 10 min ago by smbd (lookup), after 2 h",
            ),
            (
                SleepState::Awake,
                vec![woken("pool", None), woken("client", None)],
                "sdb: awake; woken 10 min ago by the pool itself (lookup), after 2 h; in all 2 times, after 4 h of rest",
            ),
        ] {
            assert_eq!(facts(&[sleep(state, wakes)], None), [("disk", expected.to_owned())]);
        }
        let solid = sleep(SleepState::AlwaysAwake, vec![]);
        assert_eq!(facts(std::slice::from_ref(&solid), None), [], "it needs no line");
        assert_eq!(facts(&[solid, sleep(SleepState::Awake, vec![])], None)[1].1, "sdb: always awake");
    }

    #[test]
    fn what_is_looked_at_again_has_its_line() {
        let verifying = VerifyingReport { done: 1204, total: 24_000, waits_for_disk: false };
        let lines = |verifying| {
            let catalogue = CatalogueReport { relied_on: true, verifying, ..CatalogueReport::default() };
            facts(&[], Some(&catalogue)).into_iter().map(|(_, line)| line).collect::<Vec<_>>()
        };
        assert_eq!(lines(None).len(), 1);
        let known = "verifying what was known before: 1204 of 24000 directories";
        assert_eq!(lines(Some(verifying))[1], known);
        let waits = VerifyingReport { waits_for_disk: true, ..verifying };
        assert_eq!(lines(Some(waits))[1], format!("{known}; waits for a disk that may sleep"));
    }
}
