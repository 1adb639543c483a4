//! Options that are lists, as tables in a form: rules, tiers, read caches, and what the trash keeps. An option has one value for all rows.
//!
//! The command judges what the rows say. Here it is only seen to that no row becomes two.

use crate::request::Fields;
use canopy_base::separated::{quote, split};

/// The most rows that a form has.
const MOST: usize = 100;
/// How many empty rows a form has for new ones.
const NEW: usize = 2;

/// Which list it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rows {
    Rules,
    Tiers,
    Caches,
    Trash,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Column {
    pub name: &'static str,
    pub label: &'static str,
    pub help: &'static str,
    /// It is there or not.
    pub is_check: bool,
}

const fn column(name: &'static str, label: &'static str, help: &'static str) -> Column {
    Column { name, label, help, is_check: false }
}

const fn check(name: &'static str, label: &'static str) -> Column {
    Column { name, label, help: "", is_check: true }
}

/// What a row has in each column, in their order.
pub type Row = Vec<String>;

const PLACES: &str = "Whole paths or patterns, with colons between them: /mnt/disk1:/mnt/disk2.";
const RULES: &[Column] = &[
    column("path", "Files", "A pattern, such as films/** or *.part. The first rule that matches decides."),
    column("tier", "Tier", "The name of a tier, or nothing."),
    column("branches", "Or branches", PLACES),
    column("copies", "Copies", "On how many disks; empty for one."),
];
const TIERS: &[Column] = &[
    column("name", "Name", "Letters, digits, -, _ and dots."),
    column("branches", "Branches", PLACES),
    column(
        "when",
        "Files leave it when it is",
        "Such as: fuller than 70 % | older than 2 days. Also: larger than 1G, every night at 03:00.",
    ),
];
const CACHES: &[Column] = &[
    column(
        "branches",
        "Directories for copies",
        "Whole paths on the fast disk, with colons between them, each for one cache: /mnt/ssd/films. They have to exist.",
    ),
    column(
        "path",
        "Files",
        "Patterns, with colons between them, such as films/**. The first cache that matches counts.",
    ),
    column("size", "Copies take at most", "Such as 200 GiB."),
    column("free", "Or leave free", "Such as 10 % or 20 GiB; 10 % if neither is given."),
    column(
        "when",
        "A file is copied when it is",
        "opened, read twice in a week, read 3 times in 2 days; empty for read twice in a week.",
    ),
];
const TRASH: &[Column] = &[
    column("path", "Files", "A pattern, such as ** for all. The first that matches decides."),
    column("keep", "Kept for", "Such as 30 days, or: until snapraid sync."),
    column("except", "Except", "Patterns, with colons between them: *.part:cache/**."),
    check("overwritten", "Also what is overwritten"),
    column("alarm", "Tell of more than", "Such as: 1000 in a minute."),
    check("freeze", "And stop it"),
];

impl Rows {
    pub fn option(self) -> &'static str {
        match self {
            Rows::Rules => "rules",
            Rows::Tiers => "tiers",
            Rows::Caches => "read-cache",
            Rows::Trash => "trash",
        }
    }

    /// What one of them is called.
    pub fn one(self) -> &'static str {
        match self {
            Rows::Rules => "Rule",
            Rows::Tiers => "Tier",
            Rows::Caches => "Cache",
            Rows::Trash => "Rule of the trash",
        }
    }

    pub fn columns(self) -> &'static [Column] {
        match self {
            Rows::Rules => RULES,
            Rows::Tiers => TIERS,
            Rows::Caches => CACHES,
            Rows::Trash => TRASH,
        }
    }

    /// Returns the rows of a value as the pool has it.
    pub fn of_value(self, value: &str) -> Vec<Row> {
        split(value, ';').into_iter().filter(|part| !part.is_empty()).map(|part| self.of_part(part)).collect()
    }

    fn of_part(self, part: &str) -> Row {
        let key = split(part, '=')[0];
        let rest = part[key.len()..].trim_start().trim_start_matches('=');
        let mut row = vec![String::new(); self.columns().len()];
        row[0] = key.to_owned();
        let parts = split(rest, '|');
        match self {
            Rows::Rules => {
                for part in parts {
                    let (at, text) = match part.strip_prefix("copies ") {
                        Some(copies) => (3, copies),
                        None if part.starts_with('/') => (2, part),
                        None => (1, part),
                    };
                    row[at] = text.to_owned();
                }
            }
            Rows::Tiers => {
                row[1] = parts[0].to_owned();
                row[2] = parts[1..].join(" | ");
            }
            Rows::Caches => {
                row[1] = parts[0].to_owned();
                for part in &parts[1..] {
                    let (word, value) = part.split_once(' ').unwrap_or((part, ""));
                    if let Some(at) = CACHES.iter().skip(2).position(|column| column.name == word) {
                        row[at + 2] = value.to_owned();
                    }
                }
            }
            Rows::Trash => {
                row[1] = parts[0].to_owned();
                for part in &parts[1..] {
                    match part.split_once(' ') {
                        Some(("except", globs)) => row[2] = globs.to_owned(),
                        Some(("alarm", alarm)) => row[4] = alarm.to_owned(),
                        _ if *part == "overwritten" => row[3] = YES.to_owned(),
                        _ if *part == "freeze" => row[5] = YES.to_owned(),
                        _ => {}
                    }
                }
            }
        }
        row
    }

    /// Returns the rows as a form shows them: those of a form that was sent, or of the value, and empty ones for more.
    pub fn shown(self, typed: &Fields, value: &str) -> Vec<Row> {
        let mut rows = self.of_form(typed);
        if rows.is_empty() {
            rows = self.of_value(value);
        }
        rows.truncate(MOST);
        rows.extend((0..NEW).map(|_| vec![String::new(); self.columns().len()]));
        rows
    }

    /// Returns the rows of a form in the order that it asks for; rows that are empty are none.
    fn of_form(self, form: &Fields) -> Vec<Row> {
        let row = |index: usize| {
            let values =
                self.columns().iter().map(|column| form.text(&field(column.name, index)).trim().to_owned());
            let row: Row = values.collect();
            let place: f64 = form.text(&field(PLACE, index)).trim().parse().unwrap_or(f64::MAX);
            row.iter().any(|value| !value.is_empty()).then_some((place, row))
        };
        let mut rows: Vec<(f64, Row)> = (0..MOST + NEW).filter_map(row).collect();
        // Rows with the same number stay as they are.
        rows.sort_by(|one, other| one.0.total_cmp(&other.0));
        rows.into_iter().map(|(_, row)| row).collect()
    }

    /// Returns the value that a form gives the option.
    ///
    /// # Errors
    /// If a row is not one.
    pub fn value(self, form: &Fields) -> Result<String, String> {
        let rows = self.of_form(form);
        if rows.len() > MOST {
            return Err(format!("there are more than {MOST}"));
        }
        let parts = rows.iter().enumerate().map(|(index, row)| {
            let wrong = |why: String| format!("{} {}: {why}", self.one(), index + 1);
            if row.iter().any(|value| value.chars().any(char::is_control)) {
                return Err(wrong("it has control characters".into()));
            }
            // It would quote the separator behind it.
            let quotes = |value: &String| (value.len() - value.trim_end_matches('\\').len()) % 2 == 1;
            if row.iter().any(quotes) {
                return Err(wrong("it ends with a backslash".into()));
            }
            self.part(row).map_err(wrong)
        });
        Ok(parts.collect::<Result<Vec<_>, _>>()?.join(";"))
    }

    fn part(self, row: &Row) -> Result<String, String> {
        let needed = |at: usize| {
            let value = row[at].as_str();
            let name = self.columns()[at].label;
            if value.is_empty() { Err(format!("“{name}” is needed")) } else { Ok(value) }
        };
        let key = match self {
            Rows::Caches => listed(needed(0)?),
            Rows::Rules | Rows::Tiers | Rows::Trash => quote(needed(0)?),
        };
        let mut parts = Vec::new();
        match self {
            Rows::Rules => {
                match (row[1].as_str(), row[2].as_str()) {
                    ("", "") => {}
                    (tier, "") => parts.push(plain(tier)?.to_owned()),
                    ("", branches) => parts.push(listed(branches)),
                    _ => return Err("give a tier or branches, not both".into()),
                }
                if !row[3].is_empty() {
                    parts.push(format!("copies {}", plain(&row[3])?));
                }
                if parts.is_empty() {
                    return Err("it needs a tier, branches or copies".into());
                }
            }
            Rows::Tiers => {
                parts.push(listed(needed(1)?));
                for when in split(&row[2], '|').into_iter().filter(|when| !when.is_empty()) {
                    parts.push(plain(when)?.to_owned());
                }
            }
            Rows::Caches => {
                parts.push(listed(needed(1)?));
                if !row[2].is_empty() && !row[3].is_empty() {
                    return Err("give what copies take or what they leave free, not both".into());
                }
                for (column, value) in CACHES.iter().zip(row).skip(2).filter(|(_, value)| !value.is_empty()) {
                    parts.push(format!("{} {}", column.name, plain(value)?));
                }
            }
            Rows::Trash => {
                parts.push(plain(needed(1)?)?.to_owned());
                if !row[2].is_empty() {
                    parts.push(format!("except {}", listed(&row[2])));
                }
                parts.extend((row[3] == YES).then(|| "overwritten".to_owned()));
                if !row[4].is_empty() {
                    parts.push(format!("alarm {}", plain(&row[4])?));
                }
                parts.extend((row[5] == YES).then(|| "freeze".to_owned()));
            }
        }
        Ok(format!("{key}={}", parts.join("|")))
    }
}

/// The value of a field that is checked.
pub const YES: &str = "yes";
/// The field with the place of a row.
pub const PLACE: &str = "place";

/// The name of the field of a column.
pub fn field(column: &str, row: usize) -> String {
    format!("{column}.{row}")
}

/// What has no separators, as times and numbers.
fn plain(text: &str) -> Result<&str, String> {
    if text.contains([';', '|', '\\']) { Err(format!("“{text}” is not understood")) } else { Ok(text) }
}

/// Patterns with colons between them.
fn listed(text: &str) -> String {
    split(text, ':').into_iter().map(quote).collect::<Vec<_>>().join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(text: &str) -> Fields {
        Fields::parse(text.replace(' ', "+").as_bytes())
    }

    #[test]
    fn what_a_pool_has_comes_back_as_it_was() {
        for (rows, value) in [
            (Rows::Rules, "films/**=/mnt/d1:/mnt/d2;**/*.part=ssd;photos/**=copies 2;a\\;b\\=c=ssd|copies 3"),
            (Rows::Tiers, "ssd=/mnt/ssd|fuller than 70%|every night at 03:00;disks=/mnt/disk*"),
            (Rows::Trash, "a=until snapraid sync|except b:c|overwritten|alarm 9 in 1 hour|freeze;**=30 days"),
            (
                Rows::Caches,
                "/mnt/ssd/films:/mnt/b=films/**:*.flac|size 200G|when opened;/c\\=d=**|free 10%|when read 3 times in 2 days",
            ),
            (Rows::Rules, ""),
        ] {
            let shown = rows.shown(&Fields::default(), value);
            let mut text = String::new();
            for (index, row) in shown.iter().enumerate() {
                for (column, given) in rows.columns().iter().zip(row) {
                    let given = given.replace('%', "%25").replace(';', "%3b").replace('=', "%3d");
                    text.push_str(&format!("{}={given}&", field(column.name, index)));
                }
            }
            assert_eq!(rows.value(&form(&text)).as_deref(), Ok(value));
        }
    }

    #[test]
    fn rows_are_added_moved_and_taken_away() {
        let value = |text: &str| Rows::Rules.value(&form(text));
        let two = "path.0=a&copies.0=2&place.0=1&path.1=b&tier.1=x&place.1=2";
        assert_eq!(value(two).as_deref(), Ok("a=copies 2;b=x"));
        assert_eq!(value(&two.replace("place.1=2", "place.1=0.5")).as_deref(), Ok("b=x;a=copies 2"));
        assert_eq!(value(&two.replace("path.0=a&copies.0=2", "")).as_deref(), Ok("b=x"));
        assert_eq!(value(&format!("{two}&path.7=c&branches.7=/d")).as_deref(), Ok("a=copies 2;b=x;c=/d"));
        // Of a form that was wrong, what was typed stays.
        assert_eq!(Rows::Rules.shown(&form("path.0=a"), "b=x")[0], ["a", "", "", ""]);
    }

    /// No value of a field becomes another row, another part, or another column.
    #[test]
    fn a_row_stays_one_row() {
        for hostile in ["a;b=c", "a|copies 9", "x=y", "--help", "a:b", "\\", "a\\;c=d;e"] {
            for rows in [Rows::Rules, Rows::Tiers, Rows::Caches, Rows::Trash] {
                for column in rows.columns() {
                    let mut text = "path.0=p&name.0=n&branches.0=/b&keep.0=1 day".to_owned();
                    let escaped: String = hostile.bytes().map(|byte| format!("%{byte:02x}")).collect();
                    text = format!("{}.0={escaped}&{text}", column.name);
                    let Ok(value) = rows.value(&form(&text)) else { continue };
                    assert_eq!(rows.of_value(&value).len(), 1, "{} {hostile}: {value}", column.name);
                    // A tier may have several conditions.
                    let is_when = column.name == "when";
                    assert!(
                        is_when || !value.contains("copies 9") || value.contains("\\|copies 9"),
                        "{value}"
                    );
                }
            }
        }
        for wrong in [
            "path.0=a",
            "copies.0=2",
            "path.0=a&tier.0=x&branches.0=/b",
            "path.0=a%0ab&tier.0=x",
            "path.0=a&tier.0=x;y",
        ] {
            assert!(Rows::Rules.value(&form(wrong)).is_err(), "{wrong}");
        }
        assert!(Rows::Caches.value(&form("branches.0=/s&path.0=a&size.0=1G&free.0=1G")).is_err());
        let many: String = (0..MOST + NEW).map(|row| format!("path.{row}=a&tier.{row}=x&")).collect();
        assert!(Rows::Rules.value(&form(&many)).is_err());
    }
}
