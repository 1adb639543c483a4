//! Text for one line of a terminal or a log.

use canopy_sys::shown::Show as _;

/// Returns the text of a system error without its number.
pub fn os_error(error: impl std::fmt::Display) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}

/// Escapes control characters and what misleads ([`canopy_sys::shown`]), so that a text stays on one line, cannot control a
/// terminal and is what it looks like.
pub fn one_line(text: &str) -> String {
    text.shown().to_string()
}

/// Formats bytes with a unit and at most four digits: `1.5G`, `300M`, `0B`.
pub fn bytes(number: u64) -> String {
    let mut value = number as f64;
    for unit in ["B", "K", "M", "G", "T", "P"] {
        // A value that would be rounded to 1024 takes the next unit.
        if value < 1023.5 {
            return match unit {
                "B" => format!("{number}B"),
                _ if value < 9.95 => format!("{value:.1}{unit}"),
                _ => format!("{value:.0}{unit}"),
            };
        }
        value /= 1024.0;
    }
    format!("{value:.0}E")
}

/// Formats seconds since 1970 as ISO 8601, in UTC.
pub fn date(seconds: i64) -> String {
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Years start in March, so that the leap day is the last day of a year. There are 719,468 days between 0000-03-01
    // and 1970-01-01, and 146,097 in 400 years.
    let day = days + 719_468;
    let (era, day) = (day.div_euclid(146_097), day.rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + i64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}+0000")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_short() {
        let table = [
            (0, "0B"),
            (1023, "1023B"),
            (1024, "1.0K"),
            (1536, "1.5K"),
            (10 << 10, "10K"),
            ((1 << 20) - 1, "1.0M"),
            (300 << 20, "300M"),
            (4_294_967_295, "4.0G"),
            (3 << 40, "3.0T"),
            (u64::MAX, "16E"),
        ];
        for (number, text) in table {
            assert_eq!(bytes(number), text, "{number}");
        }
    }

    #[test]
    fn dates_are_iso_8601() {
        // From date -u -d @SECONDS.
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00+0000"),
            (951_782_400, "2000-02-29T00:00:00+0000"),
            (1_709_251_199, "2024-02-29T23:59:59+0000"),
            (1_709_251_200, "2024-03-01T00:00:00+0000"),
            (4_107_542_399, "2100-02-28T23:59:59+0000"),
            (4_107_542_400, "2100-03-01T00:00:00+0000"),
            (-1, "1969-12-31T23:59:59+0000"),
        ] {
            assert_eq!(date(seconds), text, "{seconds}");
        }
    }
}
