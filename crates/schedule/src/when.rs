//! When a job is to run, in words: `every Sunday at 03:00`.
//!
//! Days and times are those of the clock on the wall. A time that a day does not have, because clocks are put forward, is
//! taken as much later; of one that it has twice, the first counts. So a job of each night runs once in every night.

use canopy_config::units::time_of_day;
use jiff::Zoned;
use jiff::civil::{Date, Weekday};
use std::fmt;
use std::time::Duration;

/// The hour of a job whose words name none.
const HOUR: u16 = 3;
const DAY: u16 = 24 * 60;
/// No two days of the same words are further apart.
const FURTHEST: usize = 400;

const WEEKDAYS: [(&str, Weekday); 7] = [
    ("Monday", Weekday::Monday),
    ("Tuesday", Weekday::Tuesday),
    ("Wednesday", Weekday::Wednesday),
    ("Thursday", Weekday::Thursday),
    ("Friday", Weekday::Friday),
    ("Saturday", Weekday::Saturday),
    ("Sunday", Weekday::Sunday),
];
/// `-1` is the last one of a month.
const ORDINALS: [(&str, i8); 5] = [("first", 1), ("second", 2), ("third", 3), ("fourth", 4), ("last", -1)];
/// So that each day has the same times, and the last of them is as far from the first of the next day.
const HOURS: [u16; 7] = [1, 2, 3, 4, 6, 8, 12];
const MINUTES: [u16; 5] = [5, 10, 15, 20, 30];
/// So that each year has the same months.
const MONTHS: [u16; 5] = [1, 2, 3, 4, 6];

#[derive(Clone, PartialEq, Eq, Debug)]
enum Days {
    /// Every so many days, counted from 1970-01-01.
    Each(u16),
    /// By weekday, from Monday on.
    Week([bool; 7]),
    /// Every so many months from January on.
    Months(u16, DayOfMonth),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum DayOfMonth {
    /// The last one of a month that is shorter.
    Number(i8),
    Last,
    /// The first, ... or last of a weekday.
    Weekday(i8, Weekday),
}

/// When a job is to run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct When {
    days: Days,
    /// The first time of each day, in minutes.
    first: u16,
    /// How many minutes later the others are.
    step: Option<u16>,
}

impl When {
    /// # Errors
    /// One line that says what is accepted.
    pub(crate) fn parse(text: &str) -> Result<When, String> {
        let lower = text.to_lowercase().replace(',', " , ");
        let words: Vec<&str> = lower.split_whitespace().collect();
        let Some(("every", words)) = words.split_first().map(|(first, rest)| (*first, rest)) else {
            return Err(not_understood(text));
        };
        let mut words = Words { all: text, rest: words };
        let when = words.when()?;
        if words.rest.is_empty() { Ok(when) } else { Err(not_understood(text)) }
    }

    pub(crate) fn daily() -> When {
        When { days: Days::Each(1), first: HOUR * 60, step: None }
    }

    /// Returns the last time that is not later than this.
    pub(crate) fn latest(&self, now: &Zoned) -> Option<Zoned> {
        // What clocks skip at midnight may be moved to the day after.
        let mut date = now.date().tomorrow().ok()?;
        for _ in 0..FURTHEST {
            let found = self.on(date, now).into_iter().rev().find(|time| time <= now);
            if found.is_some() {
                return found;
            }
            date = date.yesterday().ok()?;
        }
        None
    }

    /// Returns the first time that is later than this.
    pub(crate) fn next(&self, now: &Zoned) -> Option<Zoned> {
        let mut date = now.date().yesterday().ok()?;
        for _ in 0..FURTHEST {
            let found = self.on(date, now).into_iter().find(|time| time > now);
            if found.is_some() {
                return found;
            }
            date = date.tomorrow().ok()?;
        }
        None
    }

    /// Returns how long it is from the last time to the next one.
    pub(crate) fn interval(&self, now: &Zoned) -> Duration {
        let both = self.latest(now).zip(self.next(now));
        both.map_or(Duration::MAX, |(last, next)| {
            Duration::try_from(last.timestamp().duration_until(next.timestamp())).unwrap_or(Duration::MAX)
        })
    }

    /// Returns the times of a day, in order.
    fn on(&self, date: Date, zone: &Zoned) -> Vec<Zoned> {
        if !self.days.have(date) {
            return Vec::new();
        }
        let minutes = (self.first..DAY).step_by(self.step.unwrap_or(DAY).max(1).into());
        let times = minutes.filter_map(|minute| {
            let (hour, minute) = (i8::try_from(minute / 60).ok()?, i8::try_from(minute % 60).ok()?);
            date.at(hour, minute, 0, 0).to_zoned(zone.time_zone().clone()).ok()
        });
        // A time that was moved may be behind the next one, or the same.
        let mut times: Vec<Zoned> = times.collect();
        times.sort();
        times.dedup();
        times
    }
}

impl Days {
    fn have(&self, date: Date) -> bool {
        match self {
            Days::Each(days) => {
                let since = date.duration_since(Date::constant(1970, 1, 1)).as_hours() / 24;
                since.rem_euclid(i64::from(*days).max(1)) == 0
            }
            Days::Week(days) => days[usize::from(date.weekday().to_monday_zero_offset().unsigned_abs())],
            Days::Months(every, day) => {
                (u16::from(date.month().unsigned_abs()) - 1) % every.max(&1) == 0
                    && match *day {
                        DayOfMonth::Number(number) => date.day() == number.min(date.days_in_month()),
                        DayOfMonth::Last => date.day() == date.days_in_month(),
                        DayOfMonth::Weekday(nth, weekday) => {
                            date.nth_weekday_of_month(nth, weekday).is_ok_and(|found| found == date)
                        }
                    }
            }
        }
    }
}

fn not_understood(text: &str) -> String {
    format!(
        "when '{}' is not understood (write 'every night at 02:30', 'every Sunday at 03:00', 'every Monday and Friday', \
         'every 2 days', 'every month', 'every month on the 15th at 04:00', 'every month on the first Sunday', 'every 3 months', \
         'every year', 'every hour', 'every 6 hours' or 'every 15 minutes')",
        canopy_base::text::one_line(text)
    )
}

/// The words that are left.
struct Words<'t> {
    all: &'t str,
    rest: &'t [&'t str],
}

impl<'t> Words<'t> {
    fn next(&mut self) -> Option<&'t str> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(first)
    }

    fn take(&mut self, word: &str) -> bool {
        let is_next = self.rest.first() == Some(&word);
        if is_next {
            self.rest = &self.rest[1..];
        }
        is_next
    }

    fn wrong(&self) -> String {
        not_understood(self.all)
    }

    fn when(&mut self) -> Result<When, String> {
        let word = self.next().ok_or_else(|| self.wrong())?;
        if word.bytes().all(|byte| byte.is_ascii_digit()) {
            let number = word.parse::<u16>().ok().filter(|number| *number > 0).ok_or_else(|| self.wrong())?;
            let unit = self.next().ok_or_else(|| self.wrong())?;
            return self.every(number, unit.strip_suffix('s').unwrap_or(unit));
        }
        let days = match word {
            "hour" | "day" | "month" => return self.every(1, word),
            "night" => Days::Each(1),
            "week" => Days::Week([false, false, false, false, false, false, true]),
            "weekday" => Days::Week([true, true, true, true, true, false, false]),
            "year" => Days::Months(12, DayOfMonth::Number(1)),
            _ => self.weekdays(word)?,
        };
        Ok(When { days, first: self.at()?, step: None })
    }

    fn every(&mut self, number: u16, unit: &str) -> Result<When, String> {
        let one_of = |known: &[u16]| {
            let listed: Vec<String> = known.iter().map(u16::to_string).collect();
            let fits = known.contains(&number).then_some(());
            fits.ok_or_else(|| {
                format!(
                    "when '{}': every {number} {unit}s is not possible (the number must be one of {})",
                    self.all,
                    listed.join(", ")
                )
            })
        };
        match unit {
            "minute" => {
                one_of(&MINUTES)?;
                Ok(When { days: Days::Each(1), first: 0, step: Some(number) })
            }
            "hour" => {
                one_of(&HOURS)?;
                Ok(When { days: Days::Each(1), first: 0, step: Some(number * 60) })
            }
            "day" if number <= 366 => Ok(When { days: Days::Each(number), first: self.at()?, step: None }),
            "month" => {
                one_of(&MONTHS)?;
                let day = if self.take("on") { self.day_of_month()? } else { DayOfMonth::Number(1) };
                Ok(When { days: Days::Months(number, day), first: self.at()?, step: None })
            }
            _ => Err(self.wrong()),
        }
    }

    fn weekdays(&mut self, mut word: &'t str) -> Result<Days, String> {
        let mut days = [false; 7];
        loop {
            let found = WEEKDAYS.iter().position(|(name, _)| name.eq_ignore_ascii_case(word));
            days[found.ok_or_else(|| self.wrong())?] = true;
            let comma = self.take(",");
            if !self.take("and") && !comma {
                return Ok(Days::Week(days));
            }
            word = self.next().ok_or_else(|| self.wrong())?;
        }
    }

    /// Reads what follows `on`.
    fn day_of_month(&mut self) -> Result<DayOfMonth, String> {
        if !self.take("the") {
            return Err(self.wrong());
        }
        let word = self.next().ok_or_else(|| self.wrong())?;
        if let Some((_, nth)) = ORDINALS.iter().find(|(name, _)| *name == word) {
            return match self.next() {
                Some("day") if *nth == -1 => Ok(DayOfMonth::Last),
                Some("day") => Ok(DayOfMonth::Number(*nth)),
                Some(day) => {
                    let known = WEEKDAYS.iter().find(|(name, _)| name.eq_ignore_ascii_case(day));
                    known.map(|(_, day)| DayOfMonth::Weekday(*nth, *day)).ok_or_else(|| self.wrong())
                }
                None => Err(self.wrong()),
            };
        }
        let number = (1..=31).find(|number| word == format!("{number}{}", suffix(*number)));
        number.map(DayOfMonth::Number).ok_or_else(|| {
            format!("when '{}': '{word}' is no day of a month (1st to 31st, or 'the last day')", self.all)
        })
    }

    /// Reads the time, if there is one.
    fn at(&mut self) -> Result<u16, String> {
        if !self.take("at") {
            return Ok(HOUR * 60);
        }
        let word = self.next().ok_or_else(|| self.wrong())?;
        let time = time_of_day(word).map(|(hour, minute)| u16::from(hour) * 60 + u16::from(minute));
        time.ok_or_else(|| format!("when '{}': '{word}' is no time (write it as 03:00 or 15:30)", self.all))
    }
}

fn suffix(number: i8) -> &'static str {
    match (number % 10, number / 10) {
        (_, 1) => "th",
        (1, _) => "st",
        (2, _) => "nd",
        (3, _) => "rd",
        _ => "th",
    }
}

impl fmt::Display for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.step {
            Some(60) => return write!(f, "every hour"),
            Some(step) if step % 60 == 0 => return write!(f, "every {} hours", step / 60),
            Some(step) => return write!(f, "every {step} minutes"),
            None => {}
        }
        match &self.days {
            Days::Each(1) => write!(f, "every day")?,
            Days::Each(days) => write!(f, "every {days} days")?,
            Days::Week([true, true, true, true, true, false, false]) => write!(f, "every weekday")?,
            Days::Week(days) => {
                let named = WEEKDAYS.iter().zip(days).filter(|(_, on)| **on).map(|((name, _), _)| *name);
                write!(f, "every {}", named.collect::<Vec<_>>().join(" and "))?;
            }
            Days::Months(12, _) => write!(f, "every year")?,
            Days::Months(every, day) => {
                match every {
                    1 => write!(f, "every month")?,
                    every => write!(f, "every {every} months")?,
                }
                match day {
                    DayOfMonth::Number(number) => write!(f, " on the {number}{}", suffix(*number))?,
                    DayOfMonth::Last => write!(f, " on the last day")?,
                    DayOfMonth::Weekday(nth, weekday) => {
                        let nth = ORDINALS.iter().find(|(_, it)| it == nth).map_or("", |(name, _)| name);
                        let day = WEEKDAYS.iter().find(|(_, it)| it == weekday).map_or("", |(name, _)| name);
                        write!(f, " on the {nth} {day}")?;
                    }
                }
            }
        }
        write!(f, " at {:02}:{:02}", self.first / 60, self.first % 60)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::tz::TimeZone;

    /// Central Europe: clocks are put forward on the last Sunday of March at 02:00, and back in October at 03:00.
    fn at(text: &str) -> Zoned {
        let zone = TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap();
        text.parse::<jiff::civil::DateTime>().unwrap().to_zoned(zone).unwrap()
    }

    fn shown(time: Option<Zoned>) -> String {
        time.map_or_else(String::new, |time| time.strftime("%a %Y-%m-%d %H:%M%z").to_string())
    }

    #[test]
    fn words_are_times() {
        // From Friday on.
        let now = at("2026-11-27T22:40");
        for (words, latest, next) in [
            ("every night at 2:30", "Fri 2026-11-27 02:30+0100", "Sat 2026-11-28 02:30+0100"),
            ("Every DAY", "Fri 2026-11-27 03:00+0100", "Sat 2026-11-28 03:00+0100"),
            ("every night at 22:40", "Fri 2026-11-27 22:40+0100", "Sat 2026-11-28 22:40+0100"),
            ("every Sunday at 03:00", "Sun 2026-11-22 03:00+0100", "Sun 2026-11-29 03:00+0100"),
            ("every week", "Sun 2026-11-22 03:00+0100", "Sun 2026-11-29 03:00+0100"),
            (
                "every monday, tuesday and friday at 23:00",
                "Tue 2026-11-24 23:00+0100",
                "Fri 2026-11-27 23:00+0100",
            ),
            ("every weekday", "Fri 2026-11-27 03:00+0100", "Mon 2026-11-30 03:00+0100"),
            ("every month", "Sun 2026-11-01 03:00+0100", "Tue 2026-12-01 03:00+0100"),
            ("every month on the 31st at 04:00", "Sat 2026-10-31 04:00+0100", "Mon 2026-11-30 04:00+0100"),
            ("every month on the last day", "Sat 2026-10-31 03:00+0100", "Mon 2026-11-30 03:00+0100"),
            ("every month on the first Sunday", "Sun 2026-11-01 03:00+0100", "Sun 2026-12-06 03:00+0100"),
            (
                "every month on the last Friday at 23:00",
                "Fri 2026-10-30 23:00+0100",
                "Fri 2026-11-27 23:00+0100",
            ),
            ("every 3 months", "Thu 2026-10-01 03:00+0200", "Fri 2027-01-01 03:00+0100"),
            ("every year", "Thu 2026-01-01 03:00+0100", "Fri 2027-01-01 03:00+0100"),
            ("every hour", "Fri 2026-11-27 22:00+0100", "Fri 2026-11-27 23:00+0100"),
            ("every 6 hours", "Fri 2026-11-27 18:00+0100", "Sat 2026-11-28 00:00+0100"),
            ("every 15 minutes", "Fri 2026-11-27 22:30+0100", "Fri 2026-11-27 22:45+0100"),
        ] {
            let when = When::parse(words).unwrap();
            assert_eq!(
                (shown(when.latest(&now)), shown(when.next(&now))),
                (latest.into(), next.into()),
                "{words}"
            );
            assert_eq!(When::parse(&when.to_string()).as_ref(), Ok(&when), "{words}: {when}");
        }
        // Every second day is the same for everybody.
        let two = When::parse("every 2 days").unwrap();
        assert_eq!(two.interval(&now), Duration::from_secs(2 * 24 * 60 * 60));
    }

    #[test]
    fn a_night_in_which_clocks_change_has_its_job_once() {
        let night = When::parse("every night at 02:30").unwrap();
        // There is no 02:30 in this one: 03:30 is as late after midnight as 02:30 would be.
        let spring = at("2026-03-28T12:00");
        let first = night.next(&spring).unwrap();
        assert_eq!(shown(Some(first.clone())), "Sun 2026-03-29 03:30+0200");
        assert_eq!(shown(night.next(&first)), "Mon 2026-03-30 02:30+0200");
        // There are two in this one.
        let autumn = at("2026-10-24T12:00");
        let first = night.next(&autumn).unwrap();
        assert_eq!(shown(Some(first.clone())), "Sun 2026-10-25 02:30+0200");
        assert_eq!(shown(night.next(&first)), "Mon 2026-10-26 02:30+0100");
        assert_eq!(night.latest(&at("2026-10-25T12:00")), Some(first));
        // Each hour once, and the one that is not there with the next.
        let hour = When::parse("every hour").unwrap();
        let (mut time, mut all) = (at("2026-03-29T00:30"), Vec::new());
        for _ in 0..3 {
            time = hour.next(&time).unwrap();
            all.push(time.strftime("%H:%M").to_string());
        }
        assert_eq!(all, ["01:00", "03:00", "04:00"]);
    }

    #[test]
    fn a_mistake_says_what_is_accepted() {
        for words in [
            "",
            "every",
            "sunday",
            "every sonday",
            "every night at",
            "every 0 days",
            "every Sunday 03:00",
            "every month on 1st",
            "every hour at 03:00",
            "every Monday and",
            "every night at 03:00 please",
            "every 2 weeks",
            "every 99999 days",
        ] {
            let why = When::parse(words).unwrap_err();
            assert!(
                why.starts_with(&format!("when '{words}' is not understood (write 'every night at")),
                "{why}"
            );
        }
        for (words, part) in [
            ("every 5 hours", "the number must be one of 1, 2, 3, 4, 6, 8, 12"),
            ("every 7 minutes", "one of 5, 10, 15, 20, 30"),
            ("every night at 3", "'3' is no time (write it as 03:00"),
            ("every night at 25:00", "'25:00' is no time"),
            ("every month on the 32nd", "'32nd' is no day of a month"),
            ("every month on the fifth Sunday", "'fifth' is no day of a month"),
            ("every month on the 1th", "'1th' is no day of a month"),
            ("every 5 months", "one of 1, 2, 3, 4, 6"),
        ] {
            let why = When::parse(words).unwrap_err();
            assert!(why.contains(part) && !why.contains('\n'), "{why}");
        }
    }
}
