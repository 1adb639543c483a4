//! Judges what a disk tells of itself.

use super::smartctl::{Counts, Reading};
use serde::{Deserialize, Serialize};

/// How a disk is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It tells nothing, or was not asked.
    #[default]
    Unknown,
    Good,
    /// It wears out, is too hot, or has lost sectors some time ago: look at it.
    Worn,
    /// It says itself that it fails, or it loses sectors now.
    Failing,
}

impl Verdict {
    pub fn word(self) -> &'static str {
        match self {
            Verdict::Unknown => "unknown",
            Verdict::Good => "good",
            Verdict::Worn => "worn",
            Verdict::Failing => "failing",
        }
    }
}

/// From this temperature on a disk is too hot, in degrees Celsius: what makers allow for disks that spin, and for NVMe.
const HOT: i64 = 60;
const HOT_NVME: i64 = 80;

/// The bits of NVMe's critical warning (NVM Express Base Specification, SMART / Health Information) that mean that data are in
/// danger, each with its meaning. Bit 1 is the temperature.
const CRITICAL: [(u64, &str); 4] = [
    (1, "its spare blocks are used up"),
    (4, "its media or electronics do not work reliably"),
    (8, "it accepts no more writes"),
    (16, "the backup of its volatile memory has failed"),
];

/// What is counted, in words.
struct Kind {
    of: fn(&Counts) -> u64,
    has: &'static str,
    one: &'static str,
    more: &'static str,
}

const KINDS: [Kind; 3] = [
    Kind {
        of: |counts| counts.pending,
        has: "has",
        one: "sector that it cannot read",
        more: "sectors that it cannot read",
    },
    Kind { of: |counts| counts.uncorrectable, has: "has had", one: "read error", more: "read errors" },
    Kind { of: |counts| counts.reallocated, has: "has replaced", one: "sector", more: "sectors" },
];

/// Returns how a disk is, and why. `before` are the counts of a month ago, or the oldest since.
pub(super) fn judge(reading: &Reading, before: Option<Counts>) -> (Verdict, Vec<String>) {
    let mut found: Vec<(Verdict, String)> = Vec::new();
    let mut tell = |verdict, words: String| found.push((verdict, words));
    if reading.passed == Some(false) {
        tell(Verdict::Failing, "it says that it will fail".into());
    }
    for (_, words) in CRITICAL.iter().filter(|(bit, _)| reading.critical & bit != 0) {
        tell(Verdict::Failing, (*words).into());
    }
    for attribute in &reading.below {
        tell(Verdict::Failing, format!("{attribute} is below the threshold of its maker"));
    }
    for Kind { of, has, one, more } in KINDS {
        let now = of(&reading.counts);
        let number = |count: u64| match count {
            1 => format!("1 {one}"),
            count => format!("{count} {more}"),
        };
        // What happened long ago, and not since, says little of a disk.
        match before.as_ref().map_or(0, |before| now.saturating_sub(of(before))) {
            0 if now == 0 => {}
            0 => tell(Verdict::Worn, format!("it {has} {}", number(now))),
            grown if grown == now => {
                tell(Verdict::Failing, format!("it {has} {}, all within a month", number(now)))
            }
            grown => {
                tell(Verdict::Failing, format!("it {has} {}, {grown} of them within a month", number(now)))
            }
        }
    }
    if let Some(used) = reading.used.filter(|used| *used >= 100) {
        tell(Verdict::Worn, format!("it has written {used} % of the data that its maker guarantees"));
    }
    let hot = if reading.used.is_some() { HOT_NVME } else { HOT };
    if let Some(degrees) = reading.temperature.filter(|degrees| *degrees >= hot) {
        tell(Verdict::Worn, format!("it is too hot: {degrees} degrees"));
    }
    let verdict = found.iter().map(|(verdict, _)| *verdict).max();
    let told = reading.passed.is_some() || !found.is_empty();
    let verdict = verdict.unwrap_or(if told { Verdict::Good } else { Verdict::Unknown });
    found.sort_by_key(|(verdict, _)| std::cmp::Reverse(*verdict));
    (verdict, found.into_iter().map(|(_, words)| words).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading() -> Reading {
        Reading { passed: Some(true), temperature: Some(35), ..Reading::default() }
    }

    #[test]
    fn each_sign_is_judged() {
        let counts = |reallocated, pending, uncorrectable| Counts { reallocated, pending, uncorrectable };
        let with = |change: fn(&mut Reading)| {
            let mut reading = reading();
            change(&mut reading);
            reading
        };
        let table: [(Reading, Option<Counts>, Verdict, &str); 14] = [
            (reading(), None, Verdict::Good, ""),
            (Reading::default(), None, Verdict::Unknown, ""),
            (with(|one| one.passed = Some(false)), None, Verdict::Failing, "it says that it will fail"),
            (with(|one| one.critical = 1), None, Verdict::Failing, "its spare blocks are used up"),
            (with(|one| one.critical = 2), None, Verdict::Good, ""),
            (
                with(|one| one.below = vec!["Spin Up Time".into()]),
                None,
                Verdict::Failing,
                "Spin Up Time is below the threshold of its maker",
            ),
            (with(|one| one.counts.pending = 1), None, Verdict::Worn, "it has 1 sector that it cannot read"),
            (with(|one| one.counts.reallocated = 8), None, Verdict::Worn, "it has replaced 8 sectors"),
            (
                with(|one| one.counts.reallocated = 8),
                Some(counts(8, 0, 0)),
                Verdict::Worn,
                "it has replaced 8 sectors",
            ),
            (
                with(|one| one.counts.reallocated = 8),
                Some(counts(7, 0, 0)),
                Verdict::Failing,
                "it has replaced 8 sectors, 1 of them within a month",
            ),
            (
                with(|one| one.counts.uncorrectable = 3),
                Some(counts(0, 0, 3)),
                Verdict::Worn,
                "it has had 3 read errors",
            ),
            (
                with(|one| one.counts.uncorrectable = 3),
                Some(counts(0, 0, 1)),
                Verdict::Failing,
                "it has had 3 read errors, 2 of them within a month",
            ),
            (with(|one| one.temperature = Some(61)), None, Verdict::Worn, "it is too hot: 61 degrees"),
            (
                with(|one| (one.temperature, one.used) = (Some(61), Some(101))),
                None,
                Verdict::Worn,
                "it has written 101 % of the data that its maker guarantees",
            ),
        ];
        for (reading, before, verdict, words) in table {
            let (judged, findings) = judge(&reading, before);
            assert_eq!((judged, findings.join("; ").as_str()), (verdict, words), "{reading:?}");
        }
    }

    #[test]
    fn the_gravest_comes_first() {
        let mut reading = reading();
        (reading.counts.reallocated, reading.counts.pending) = (1, 2);
        assert_eq!(
            judge(&reading, None).1,
            ["it has 2 sectors that it cannot read", "it has replaced 1 sector"]
        );
    }
}
