//! Sizes, times and shares as people write them: `1G` or `1 GiB`, `2d` or `2 days`, `70%` or `70 %`.

use canopy_base::size::parse_size;
use std::time::Duration;

const UNITS: [(u64, &[&str]); 6] = [
    (365 * 86_400, &["y", "year", "years"]),
    (7 * 86_400, &["w", "week", "weeks"]),
    (86_400, &["d", "day", "days"]),
    (3600, &["h", "hour", "hours"]),
    (60, &["m", "min", "minute", "minutes"]),
    (1, &["s", "second", "seconds"]),
];

/// Splits a number from its unit.
fn parts(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    (&text[..end], text[end..].trim())
}

/// Returns a size in bytes, with units of powers of 1024.
pub fn size(text: &str) -> Option<u64> {
    let (number, unit) = parts(text);
    let rest = unit.get(1..).unwrap_or_default();
    let letter = if matches!(rest, "" | "B" | "iB" | "ib" | "b") {
        unit.get(..1).unwrap_or_default()
    } else {
        return None;
    };
    parse_size(&format!("{number}{letter}")).ok()
}

/// Returns a time. Its unit may not be missing.
pub fn time(text: &str) -> Option<Duration> {
    let (number, unit) = parts(text);
    let (seconds, _) = UNITS.iter().find(|(_, words)| words.contains(&unit))?;
    number.parse::<u64>().ok()?.checked_mul(*seconds).map(Duration::from_secs)
}

/// Returns a number of whole per cents, at most 100.
pub fn percent(text: &str) -> Option<u8> {
    let (number, unit) = parts(text);
    let number = number.parse().ok().filter(|number| *number <= 100)?;
    matches!(unit, "" | "%" | "percent" | "per cent").then_some(number)
}

/// Returns a time of day as hour and minute.
pub fn time_of_day(text: &str) -> Option<(u8, u8)> {
    let (hour, minute) = text.trim().split_once(':')?;
    let number = |text: &str, below: u8| {
        let number: u8 = text.parse().ok()?;
        (number < below && text.bytes().all(|byte| byte.is_ascii_digit())).then_some(number)
    };
    Some((number(hour, 24)?, number(minute, 60).filter(|_| minute.len() == 2)?))
}

/// Formats a time in the largest unit that divides it: `2 days`.
pub fn format_time(time: Duration) -> String {
    let seconds = time.as_secs();
    let unit = UNITS.iter().find(|(unit, _)| seconds != 0 && seconds.is_multiple_of(*unit));
    let (unit, words) = unit.unwrap_or(&UNITS[5]);
    let number = seconds / unit;
    // The singular comes before the plural.
    let word = words[words.len() - if number == 1 { 2 } else { 1 }];
    format!("{number} {word}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_those_that_people_write() {
        for text in ["1G", "1 G", "1g", "1GiB", "1 GiB", "1GB", "1024M", "1073741824"] {
            assert_eq!(size(text), Some(1 << 30), "{text}");
        }
        for text in ["2 days", "2d", "2 d", "48h", "48 hours", "2880 min", "172800s"] {
            assert_eq!(time(text), Some(Duration::from_secs(172_800)), "{text}");
        }
        for text in ["70", "70%", "70 %", "70 per cent"] {
            assert_eq!(percent(text), Some(70), "{text}");
        }
        assert_eq!((time_of_day("03:00"), time_of_day("3:07")), (Some((3, 0)), Some((3, 7))));
        for text in ["", "G", "1X", "1 Gold", "-1", "1.5G", "99999999999T"] {
            assert_eq!(size(text), None, "{text}");
        }
        for text in ["", "2", "days", "2 moons", "-2d", "99999999999999999999d"] {
            assert_eq!(time(text), None, "{text}");
        }
        assert_eq!((percent("101%"), percent("%"), percent("7 o")), (None, None, None));
        assert_eq!(
            (time_of_day("24:00"), time_of_day("3"), time_of_day("3:7"), time_of_day("+3:07")),
            (None, None, None, None)
        );
    }

    #[test]
    fn times_are_formatted_so_that_they_can_be_read_again() {
        for (seconds, text) in [
            (0, "0 seconds"),
            (1, "1 second"),
            (60, "1 minute"),
            (7200, "2 hours"),
            (86_400, "1 day"),
            (172_800, "2 days"),
            (604_800, "1 week"),
            (90, "90 seconds"),
        ] {
            assert_eq!(format_time(Duration::from_secs(seconds)), text);
            assert_eq!(time(text), Some(Duration::from_secs(seconds)));
        }
    }
}
