//! What disks have told, in a file that outlives restarts. Losing it costs nothing but the memory of what has grown.

use super::smartctl::{Counts, SmartAnswer};
use super::{DiskHealth, verdict};
use canopy_config::state::keep;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

const DAY: i64 = 24 * 60 * 60;
/// For how many days counts are kept, and for how many disks: also of those that are on a shelf.
const DAYS: usize = 30;
const MOST: usize = 256;

/// When a disk was asked last, and what is known since.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub(super) struct Asked {
    pub(super) at: i64,
    /// How many requests it had answered then.
    pub(super) completed: u64,
    pub(super) health: DiskHealth,
}

/// The counts of a disk on a day.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Day {
    day: i64,
    counts: Counts,
}

#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub(super) struct Records {
    /// By the name in /dev.
    #[serde(default)]
    pub(super) asked: BTreeMap<String, Asked>,
    /// By the serial number, the oldest first.
    #[serde(default)]
    history: BTreeMap<String, Vec<Day>>,
}

impl Records {
    /// Reads the file. What is missing or damaged is begun anew.
    pub(super) fn read(file: &Path) -> Records {
        fs::read(file).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
    }

    /// Takes in an answer.
    pub(super) fn take(&mut self, now: i64, name: &str, completed: u64, answer: SmartAnswer) {
        let asked = self.asked.entry(name.to_owned()).or_default();
        (asked.at, asked.completed, asked.health.name) = (now, completed, name.to_owned());
        match answer {
            // What it told before it fell asleep stays true.
            SmartAnswer::Asleep => asked.health.asleep = true,
            // A disk that told something, and now nothing, may be busy: what it told stays, with its time.
            SmartAnswer::Nothing => asked.health.asleep = false,
            SmartAnswer::Reading(reading) => {
                let days =
                    reading.serial.as_ref().map(|serial| self.history.entry(serial.clone()).or_default());
                let before = days.and_then(|days| note(days, now / DAY, reading.counts));
                let (verdict, findings) = verdict::judge(&reading, before);
                asked.health = DiskHealth {
                    name: name.to_owned(),
                    model: reading.model,
                    serial: reading.serial,
                    temperature: reading.temperature,
                    hours: reading.hours,
                    verdict,
                    findings,
                    asleep: false,
                    asked: Some(now),
                };
            }
        }
        self.forget();
    }

    /// Bounds what is kept, by forgetting those that were asked longest ago.
    fn forget(&mut self) {
        while self.asked.len() > MOST {
            let oldest = self.asked.iter().min_by_key(|(_, asked)| asked.at).map(|(name, _)| name.clone());
            oldest.map(|name| self.asked.remove(&name));
        }
        while self.history.len() > MOST {
            let last = |days: &Vec<Day>| days.last().map(|day| day.day);
            let oldest =
                self.history.iter().min_by_key(|(_, days)| last(days)).map(|(serial, _)| serial.clone());
            oldest.map(|serial| self.history.remove(&serial));
        }
    }

    /// Keeps it. Failing to is no reason to say nothing of the disks.
    pub(super) fn write(&self, file: &Path) {
        let bytes = serde_json::to_vec(self).unwrap_or_default();
        let _ = keep(file, &bytes, 0o644);
    }
}

/// Notes the counts of a day. Returns those of the oldest day that is kept; `None` on the first day.
fn note(days: &mut Vec<Day>, day: i64, counts: Counts) -> Option<Counts> {
    days.retain(|one| one.day <= day && one.day + (DAYS as i64) > day);
    let before = days.first().map(|one| one.counts);
    if days.last().is_none_or(|last| last.day != day) {
        days.push(Day { day, counts });
    }
    before
}

#[cfg(test)]
mod tests {
    use super::super::smartctl::{self, tests::ATA};
    use super::*;
    use crate::disks::Verdict;

    fn answer(json: &str) -> SmartAnswer {
        smartctl::read(json.as_bytes())
    }

    #[test]
    fn what_grows_within_a_month_is_noticed() {
        let calm = ATA.replace(r#""value":8,"#, r#""value":0,"#);
        let grown = calm.replace(r#""value":2,"#, r#""value":3,"#);
        let mut records = Records::default();
        let verdict = |records: &Records| records.asked["sda"].health.verdict;
        records.take(0, "sda", 1, answer(&calm));
        assert_eq!(verdict(&records), Verdict::Worn, "two errors, whenever they were");
        records.take(20 * DAY, "sda", 1, answer(&calm));
        assert_eq!(verdict(&records), Verdict::Worn);
        // It is known by its serial number, wherever it is plugged in.
        records.take(21 * DAY, "sdb", 1, answer(&grown));
        assert_eq!(
            records.asked["sdb"].health.findings,
            ["it has had 3 read errors, 1 of them within a month"]
        );
        records.take(60 * DAY, "sdb", 1, answer(&grown));
        assert_eq!(records.asked["sdb"].health.verdict, Verdict::Worn, "long ago");
        assert_eq!(records.history.len(), 1);
        assert!(records.history.values().all(|days| days.len() == 1));
    }

    #[test]
    fn a_disk_that_sleeps_keeps_what_it_told() {
        let mut records = Records::default();
        records.take(10, "sda", 1, answer(ATA));
        records.take(700, "sda", 2, SmartAnswer::Asleep);
        let health = &records.asked["sda"].health;
        assert_eq!((health.asleep, health.asked, health.verdict), (true, Some(10), Verdict::Worn));
        assert_eq!(records.asked["sda"].at, 700);
    }

    #[test]
    fn the_file_is_read_back_and_damage_is_begun_anew() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("below/disks.json");
        let mut records = Records::default();
        records.take(10, "sda", 1, answer(ATA));
        records.write(&file);
        assert_eq!(Records::read(&file), records);
        fs::write(&file, "{").unwrap();
        assert_eq!(Records::read(&file), Records::default());
        assert_eq!(fs::read_dir(file.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn there_is_a_bound() {
        let mut records = Records::default();
        for number in 0..MOST as i64 + 10 {
            let disk = ATA.replace("WD-WCC7K0000001", &format!("S{number}"));
            records.take(number * DAY, &format!("sd{number}"), 1, answer(&disk));
        }
        assert_eq!((records.asked.len(), records.history.len()), (MOST, MOST));
        assert!(!records.asked.contains_key("sd0") && records.history.contains_key("S265"));
    }
}
