//! Batches: what one user has removed with one program within some minutes.
//!
//! The name is `TIME.UID.NUMBER.PROGRAM`, such as `20261127T223305Z.1000.0.smbd`. The number is counted up where a name is in the
//! batch already. The time is when the batch began; each file has its own, by the change time that its rename gave it.

use canopy_base::text::date;

/// How long a batch is used, in seconds.
pub const LASTS: i64 = 600;

/// The longest name of a program, in bytes.
const LONGEST: usize = 32;

/// Who has removed something.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Who {
    /// `None` if it is not known.
    pub uid: Option<u32>,
    /// The name of the program; empty if it is not known.
    pub program: Vec<u8>,
}

/// What the name of a batch says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Batch {
    /// In seconds since 1970.
    pub began: i64,
    pub who: Who,
    pub number: u32,
}

/// Stands for a user or program that is not known.
const UNKNOWN: &str = "unknown";

impl Batch {
    pub fn name(&self) -> String {
        let time: String = date(self.began).chars().filter(|c| !matches!(c, '-' | ':')).collect();
        let time = time.trim_end_matches("+0000");
        let uid = self.who.uid.map_or_else(|| UNKNOWN.to_owned(), |uid| uid.to_string());
        // FAT takes no more of them.
        let plain = |byte: &u8| match byte {
            byte if byte.is_ascii_alphanumeric() || b"-_.+".contains(byte) => char::from(*byte),
            _ => '_',
        };
        let program: String = self.who.program.iter().take(LONGEST).map(plain).collect();
        let program = if program.is_empty() { UNKNOWN } else { &program };
        format!("{time}Z.{uid}.{}.{program}", self.number)
    }

    /// Returns what a name says; `None` if it is not one of a batch.
    pub fn parse(name: &[u8]) -> Option<Batch> {
        let mut parts = std::str::from_utf8(name).ok()?.splitn(4, '.');
        let began = seconds(parts.next()?)?;
        let uid = match parts.next()? {
            UNKNOWN => None,
            uid => Some(uid.parse().ok()?),
        };
        let number = parts.next()?.parse().ok()?;
        let program = parts.next()?.as_bytes();
        let program = if program == UNKNOWN.as_bytes() { Vec::new() } else { program.to_vec() };
        Some(Batch { began, who: Who { uid, program }, number })
    }

    /// Returns when a file of the batch was removed, given when it last changed. What has been changed later, by who had it
    /// open, was removed before the batch ended.
    pub fn removed(&self, changed: i64) -> i64 {
        changed.clamp(self.began, self.began.saturating_add(LASTS))
    }
}

/// Parses a time such as `20261127T223305Z`, as seconds since 1970.
pub fn seconds(text: &str) -> Option<i64> {
    let digits = |from: usize, to: usize| -> Option<i64> {
        let part = text.get(from..to)?;
        part.bytes().all(|byte| byte.is_ascii_digit()).then(|| part.parse().ok())?
    };
    if text.len() != 16 || text.get(8..9) != Some("T") || text.get(15..) != Some("Z") {
        return None;
    }
    let (year, month, day) = (digits(0, 4)?, digits(4, 6)?, digits(6, 8)?);
    let of_day = digits(9, 11)? * 3600 + digits(11, 13)? * 60 + digits(13, 15)?;
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // As in `date`: years start in March.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = year * 365 + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1 - 719_468;
    Some(days * 86_400 + of_day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_when_and_who() {
        let table = [
            (0, Some(0), 0, "rm", "19700101T000000Z.0.0.rm"),
            (951_782_399, Some(1000), 3, "kworker/u8:2", "20000228T235959Z.1000.3.kworker_u8_2"),
            (951_782_400, None, 0, "", "20000229T000000Z.unknown.0.unknown"),
            (1_795_818_785, Some(u32::MAX), 7, "a.b", "20261127T223305Z.4294967295.7.a.b"),
        ];
        for (began, uid, number, program, name) in table {
            let batch = Batch { began, who: Who { uid, program: program.into() }, number };
            assert_eq!(batch.name(), name);
            let parsed = Batch::parse(name.as_bytes()).unwrap();
            assert_eq!((parsed.began, parsed.who.uid, parsed.number), (began, uid, number), "{name}");
            assert_eq!(parsed.name(), name);
        }
        for day in (0..60_000).step_by(17) {
            let batch =
                Batch { began: day * 86_400 + 7, who: Who { uid: None, program: Vec::new() }, number: 0 };
            assert_eq!(Batch::parse(batch.name().as_bytes()), Some(batch), "day {day}");
        }
        for name in [
            "",
            "x",
            "20261127T223305Z",
            "20261327T223305Z.0.0.rm",
            "20261127T223305Z.-1.0.rm",
            "2026112xT223305Z.0.0.rm",
        ] {
            assert_eq!(Batch::parse(name.as_bytes()), None, "{name}");
        }
    }

    #[test]
    fn a_file_is_removed_while_its_batch_lasts() {
        let batch = Batch { began: 1000, who: Who { uid: None, program: Vec::new() }, number: 0 };
        assert_eq!([5, 1000, 1200, 9999].map(|changed| batch.removed(changed)), [1000, 1000, 1200, 1600]);
    }
}
