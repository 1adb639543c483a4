//! The health of the disks below branches, as smartctl(8) of smartmontools tells it.
//!
//! `smartctl` asks a disk and reads the answer, `verdict` judges it, `records` keeps what was found, so that what grows is
//! noticed and a disk that sleeps is not asked.
//!
//! To be asked must neither wake a disk nor keep it awake. A disk that spins is asked only after it was used for something
//! else, and once a day.

mod list;
mod records;
mod smartctl;
mod verdict;

use canopy_base::text::one_line;
use canopy_branch::fs::disk::Disk;
pub use list::{DisksArgs, Row, print_list};
use records::{Asked, Records};
use serde::{Deserialize, Serialize};
use smartctl::SmartAnswer;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
pub use verdict::Verdict;

/// How often a disk that does not spin is asked at most, one that spins, and one that was asleep, in seconds.
const SOLID: i64 = 15;
const SPINNING: i64 = 600;
const ASLEEP: i64 = 60;
/// How often a disk is asked that nobody uses.
const UNUSED: i64 = 24 * 60 * 60;

/// How long all disks have to answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// What is known of a disk.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct DiskHealth {
    /// Its name in /dev.
    pub name: String,
    pub model: Option<String>,
    pub serial: Option<String>,
    /// Degrees Celsius.
    pub temperature: Option<i64>,
    /// For how many hours it has been powered on.
    pub hours: Option<u64>,
    pub verdict: Verdict,
    /// Why, each in some words.
    pub findings: Vec<String>,
    /// It slept when it was asked last; the rest is from before.
    pub asleep: bool,
    /// When it answered last, in seconds since 1970; null if never.
    pub asked: Option<i64>,
}

impl DiskHealth {
    /// Returns what to tell of it as the disk of a branch, and what to do; `None` if there is nothing to tell.
    pub fn warning(&self, pool: &str, branch: &str) -> Option<(String, String)> {
        let fix = match self.verdict {
            Verdict::Unknown | Verdict::Good => return None,
            Verdict::Worn => {
                format!("canopy disks {pool} shows it; keep a copy of what matters, and plan for a new disk")
            }
            Verdict::Failing => format!(
                "canopy drain {pool} {branch} moves its files to the other disks (--dry-run shows what, and where to); then \
                 replace the disk"
            ),
        };
        let known_as: String =
            self.model.iter().chain(&self.serial).map(|word| format!(", {}", one_line(word))).collect();
        let (name, word, why) = (&self.name, self.verdict.word(), self.findings.join("; "));
        Some((format!("the disk of {branch} ({name}{known_as}) is {word}: {why}"), fix))
    }
}

/// What a look at disks gives.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Look {
    pub disks: Vec<DiskHealth>,
    /// Why nothing is known of disks that have not been asked.
    pub obstacle: Option<Obstacle>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Obstacle {
    /// smartctl is not installed.
    NoProgram,
    /// Only root may ask disks.
    NotRoot,
}

impl Obstacle {
    /// Returns one line with a remedy.
    pub fn line(self) -> &'static str {
        match self {
            Obstacle::NoProgram => {
                "disks are not asked for their health: smartctl is missing (apt install smartmontools)"
            }
            Obstacle::NotRoot => "only root can ask disks for their health (sudo canopy disks)",
        }
    }
}

/// Looks at these disks, by their names in /dev. Asks those that may be asked now, all at the same time.
pub fn look(names: &[String], file: &Path) -> Look {
    let now = now();
    let mut records = Records::read(file);
    let (mut running, mut obstacle) = (Vec::new(), None);
    for name in names {
        let Some(disk) = Disk::named(name) else { continue };
        let completed = disk.activity().map_or(0, |activity| activity.completed);
        let spins = disk.spins();
        if !is_due(now, records.asked.get(name), completed, spins) {
            continue;
        }
        if !rustix::process::geteuid().is_root() {
            obstacle = Some(Obstacle::NotRoot);
            continue;
        }
        match smartctl::start(name, spins) {
            Ok(command) => running.push((name, disk, command)),
            Err(why) if why.kind() == std::io::ErrorKind::NotFound => obstacle = Some(Obstacle::NoProgram),
            Err(_) => {}
        }
    }
    let (deadline, any) = (Instant::now() + PATIENCE, !running.is_empty());
    for (name, disk, command) in running {
        // What asking has caused itself is not use.
        let answer = command.output_before(deadline).map(|bytes| smartctl::read(&bytes));
        let completed = disk.activity().map_or(0, |activity| activity.completed);
        records.take(now, name, completed, answer.unwrap_or(SmartAnswer::Nothing));
    }
    if any {
        records.write(file);
    }
    let known = |name: &String| {
        let asked = records.asked.get(name);
        asked.map_or_else(
            || DiskHealth { name: name.clone(), ..DiskHealth::default() },
            |asked| asked.health.clone(),
        )
    };
    Look { disks: names.iter().map(known).collect(), obstacle }
}

/// Returns whether a disk may be asked now. `completed`: how many requests it has answered so far.
fn is_due(now: i64, asked: Option<&Asked>, completed: u64, spins: bool) -> bool {
    let Some(asked) = asked else { return true };
    let since = now - asked.at;
    // The clock was set back.
    if since < 0 {
        return true;
    }
    let pause = match (spins, asked.health.asleep) {
        (false, _) => return since >= SOLID,
        (true, true) => ASLEEP,
        (true, false) => SPINNING,
    };
    since >= UNUSED || since >= pause && completed != asked.completed
}

fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_nobody_uses_is_left_alone() {
        let asked =
            |asleep| Asked { at: 1000, completed: 5, health: DiskHealth { asleep, ..DiskHealth::default() } };
        let table = [
            // Seconds since it was asked, whether it slept, spins, was used, and is asked.
            (1, false, true, true, false),
            (599, false, true, true, false),
            (600, false, true, true, true),
            (600, false, true, false, false),
            (60, true, true, true, true),
            (60, true, true, false, false),
            (86_399, true, true, false, false),
            (86_400, true, true, false, true),
            (14, false, false, true, false),
            (15, false, false, false, true),
            (-1, false, true, false, true),
        ];
        for (since, asleep, spins, used, expected) in table {
            let due = is_due(1000 + since, Some(&asked(asleep)), if used { 6 } else { 5 }, spins);
            assert_eq!(due, expected, "{since} {asleep} {spins} {used}");
        }
        assert!(is_due(0, None, 0, true));
    }
}
